"""Capacity from a log: the law of size of the user's runs, of any framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError
from nfd.questions.capacity import Capacity
from nfd.questions.costs import Costs, counted
from nfd.questions.logged_rates import at_rate
from nfd.questions.logs import Field, Log, LoggedRun, read_log
from nfd.questions.power_law import Sizes
from nfd.questions.trusted import judged_law

_SIZES: tuple[Field, ...] = ("width", "depth", "parameters", "tokens")

_REMEDIES = {
    "lr": "Give rate='best', in the shell --rate best, to fit the runs of the best rate of each size, or one rate.",
    "rule": "Give the rows of one rule at each size.",
}


@undisturbed()
def fit_scaling_law(
    rows: Any, *, columns: Mapping[str, str | None] | None = None, rate: float | str | None = None
) -> Capacity:
    """Fit a law of size to the final losses of your logged runs, from any framework.

    If width n and depth L vary independently and every size has two seeds or more, the law is
    ``loss = floor + a/n + b/L`` with terms of second order (``nfd.questions.law_fit``). Otherwise it has the variables
    that vary among width, depth, parameters N and tokens D: ``floor + a / n + b / L + c / D^beta`` or
    ``floor + a / N^alpha + c / D^beta`` (``nfd.questions.power_law``). As a test, a second fit without the largest size
    predicts its loss. Small sizes are left out until the law holds; one by least squares must predict the largest, too.

    Args:
        rows: dicts, a DataFrame, or the path of a CSV; one row for each run, or for each step of one, of which the
            last counts. A loss that is not a number diverged.
        columns: the names of your columns, if they are not recognised: ``{"loss": "eval/loss"}``. Keys: loss, width,
            depth, parameters, tokens (or steps), seed, lr, rule, run, step and state. None ignores a column.
        rate: if runs of one size differ in their learning rate, the rate whose runs count; or ``"best"``, at each size
            the rate with the lowest mean loss over seeds. That choice makes losses too low, by less than their noise.

    Returns:
        A ``Capacity``: ``.floor``, ``.law``, ``.at(...)``, ``.best(...)``, ``.table`` and ``.held_out``. Print it to
        see the table. ``about`` lists the recognised columns.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if the rows cannot be read; if nothing varies, or there are
            too few sizes for a law.

    Example::

        from random import Random

        noise = Random(0)
        rows = [
            {"width": n, "depth": L, "seed": seed, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)}
            for n in (64, 128, 256)
            for L in (4, 8, 16)
            for seed in (0, 1)
        ]
        print(nfd.fit_scaling_law(rows).floor)
    """
    log = read_log(rows, columns, ("loss",), (*_SIZES, "lr", "rule", "seed"))
    variables = _variables(log)
    runs = [run for run in log.runs if all(getattr(run, name) is not None for name in variables)]
    lacking = len(log.runs) - len(runs)
    runs, of_rates = at_rate(runs, variables, rate)
    rungs = _rungs(runs, variables)
    losses = {size: [run.loss for run in rung if run.loss is not None] for size, rung in rungs.items()}
    return Capacity(
        **judged_law(variables, losses, paired=_paired(rungs)),
        about=f"A log of {log.recognised}",
        score=log.columns["loss"],
        costs=_costs(runs),
        notes=(*log.notes, *of_rates, *([f"{lacking} rows that lack a size were left out."] if lacking else [])),
    )


def _variables(log: Log) -> tuple[str, ...]:
    """The sizes that vary, of which parameters stand for a width and depth that grow together."""
    values = {name: {size for run in log.runs if (size := getattr(run, name)) is not None} for name in _SIZES}
    varying = [name for name in _SIZES if len(values[name]) > 1]
    shape: list[str] = [name for name in ("width", "depth") if name in varying]
    if "parameters" in varying and (not shape or (len(shape) == 2 and not _independent(log.runs))):
        shape = ["parameters"]
    if not varying:
        raise InputError(
            f"runs must differ in width, depth, parameters or tokens; none of them varies in {log.recognised} Name "
            "their columns by columns=."
        )
    return (*shape, "tokens") if "tokens" in varying else tuple(shape)


def _independent(runs: Sequence[LoggedRun]) -> bool:
    """Whether the law can separate width and depth."""
    rows = [[1.0, 1 / run.width, 1 / run.depth] for run in runs if run.width and run.depth]
    return int(np.linalg.matrix_rank(np.array(rows), tol=1e-6)) > 2


def _rungs(runs: list[LoggedRun], variables: tuple[str, ...]) -> dict[Sizes, list[LoggedRun]]:
    """The runs by size, in the order of their seeds; ValueError where they differ in their rate or rule."""
    rungs = dict[Sizes, list[LoggedRun]]()
    for run in sorted(runs, key=lambda run: (run.seed or "", run.loss or 0.0)):
        rungs.setdefault(tuple(getattr(run, name) for name in variables), []).append(run)
    for name in ("lr", "rule"):
        for size, rung in rungs.items():
            if len(values := {getattr(run, name) for run in rung}) > 1:
                raise InputError(
                    f"the runs of {' x '.join(variables)} = {' x '.join(f'{x:g}' for x in size)} differ in {name}: "
                    f"{', '.join(sorted(map(str, values)))}. {_REMEDIES[name]}"
                )
    return dict(sorted(rungs.items()))


def _paired(rungs: Mapping[Sizes, list[LoggedRun]]) -> bool:
    """Whether the sizes share their seeds."""
    seeds = {tuple(run.seed for run in rung) for rung in rungs.values()}
    return len(seeds) == 1 and None not in next(iter(seeds))


def _costs(runs: list[LoggedRun]) -> Costs | None:
    """The parameters at every width and depth, where the log has them and a polynomial gives them all."""
    counts = {(run.width, run.depth): run.parameters for run in runs if run.width and run.depth and run.parameters}
    cost = counted({size: round(count) for size, count in counts.items()}) if counts else None
    return None if cost is None else Costs({"parameters": cost})
