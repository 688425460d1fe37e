"""The law of size of some runs, its floor, the best size for a budget, and what holds the law to account.

The runs are trained (``nfd.forecasts.trained``) or come from a log (``nfd.forecasts.scaling_law``). A size
outside the fit is predicted, then compared with the runs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nfd.core.errors import InputError, check_real
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import rows_as_text
from nfd.forecasts.budget import BestSize, BestSplit, Costs, Resource, best_size, best_split, counted
from nfd.forecasts.law import Law, Losses, fit_law
from nfd.forecasts.power_law import PowerLaw, Sizes, fit_power_law, without_smallest
from nfd.logs import Field, Log, LoggedRun, at_rate, read_log


@dataclass(frozen=True)
class HeldOut:
    """A size outside the fit: what the law said of the mean of so many runs, and what they did."""

    size: Sizes
    networks: int
    predicted: Interval
    measured: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured mean lies in the prediction's 95 % interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high


@dataclass(frozen=True)
class Capacity:
    """The result of ``nfd.scaling_law`` and ``nfd.fit_scaling_law``. Print it to see the table.

    A law of size, fitted to the losses of runs, and the best size for a budget.

    Attributes:
        law: ``floor + a/n + b/L`` (``Law``), or a law of other variables (``PowerLaw``).
        losses: of the fitted runs, by size, in the order of ``law.variables``.
        about: a description of the runs. score: the kind of their loss, in words.
        costs: parameters and operations of networks of any size, if known.
        held_out: the largest size, predicted by a fit without it.
        shorter: the law without the smallest sizes, if enough are left. A floor that moves without them is not yet the
            limit, even if the law fits well.
        lr: the rate of the runs, if they share one.
        speed: operations per second at which the largest network was trained; not-a-number if not known.
        notes: which runs were left out, and why.

    Example::

        from random import Random

        noise = Random(0)
        rows = [
            {"width": n, "depth": L, "seed": seed, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)}
            for n in (64, 128, 256)
            for L in (4, 8, 16)
            for seed in (0, 1)
        ]
        capacity = nfd.fit_scaling_law(rows)
        capacity.floor.value, capacity.floor.low, capacity.floor.high
        capacity.at(width=512, depth=32)  # the loss of a larger network, with its interval
    """

    law: Law | PowerLaw
    losses: Losses = field(repr=False)
    about: str
    score: str = "test loss"
    costs: Costs | None = None
    held_out: HeldOut | None = None
    shorter: Law | PowerLaw | None = None
    lr: float = math.nan
    speed: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def trusted(self) -> dict[str, float]:
        """The smallest value of each variable that was fitted; smaller ones bend the law or were not trained."""
        return dict(zip(self.law.variables, self.law.smallest, strict=True))

    @property
    def floor(self) -> Interval:
        """The loss of the infinitely large network, with its 95 % interval: every variable of the law is infinite.

        Not-a-number where the law may not be extrapolated (``law.good``); ``law.note`` says what would settle it.
        """
        return self.law.floor if self.law.good else UNKNOWN

    def at(
        self,
        width: float | None = None,
        depth: float | None = None,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
    ) -> Interval:
        """The mean loss of runs of a size by the law, with its 95 % interval.

        Args:
            width, depth, parameters, tokens: the variables of the law; each may be ``math.inf``. ``tokens`` is by
                default the largest number that was fitted.

        Raises:
            ValueError: if a variable of the law is missing or does not belong to it, and outside of the fitted sizes
                if the law may not be extrapolated.
        """
        named = {"width": width, "depth": depth, "parameters": parameters, "tokens": tokens}
        given = {name: size for name, size in named.items() if size is not None}
        if others := [name for name in given if name not in self.law.variables]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; got {', '.join(others)}. Drop it.")
        longest = dict(zip(self.law.variables, self.law.largest, strict=True))
        sizes = ({"tokens": longest["tokens"]} if "tokens" in longest else {}) | given
        if missing := [name for name in self.law.variables if name not in sizes]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; give {' and '.join(missing)} as well.")
        return self.law.loss(*(sizes[name] for name in self.law.variables))

    def best(
        self,
        *,
        parameters: float | str | None = None,
        flops: float | str | None = None,
        memory: float | str | None = None,
        seconds: float | None = None,
    ) -> BestSize | BestSplit:
        """The size of the lowest loss within one budget, such as ``parameters="2M"`` or ``flops=1e18``.

        Args:
            parameters: numbers that the network stores.
            flops: floating-point operations of one whole training.
            memory: bytes of one training, such as ``"4 GiB"``.
            seconds: of one training, at the speed at which the largest network was trained.

        Returns:
            The best width and depth, or the best numbers of parameters and tokens for a law in these, with the cost
            and the predicted loss; ``inside`` says whether that was fitted.

        Raises:
            ValueError: without exactly one budget, if it cannot be read or is too small for any size, if the costs are
                not known, and if the losses do not tell which size is best.
        """
        if seconds is not None and flops is None:
            if math.isnan(self.speed):
                raise InputError("how fast these networks train is not known. Give the budget as flops.")
            flops = self.speed * check_real("seconds", seconds, above=0.0)
        elif seconds is not None:
            raise InputError("best needs one budget; got flops and seconds. Drop one.")
        budgets: dict[Resource, float | str | None] = {"parameters": parameters, "flops": flops, "memory": memory}
        given = [(resource, budget) for resource, budget in budgets.items() if budget is not None]
        if len(given) != 1:
            raise InputError(f"best needs one budget: parameters, flops or memory; got {len(given)}.")
        resource, budget = given[0]
        if isinstance(self.law, PowerLaw) and self.law.variables == ("parameters", "tokens"):
            return best_split(self.law, resource, budget)
        if self.law.variables[:2] != ("width", "depth") or self.costs is None:
            raise InputError(
                f"the best size for {resource} needs a law in width and depth, and what sizes cost; this law is in "
                f"{' and '.join(self.law.variables)}{'' if self.costs else ', and nothing is known of the costs'}."
            )
        return best_size(self.law, self.costs, resource, budget)

    def named(self, size: Sizes) -> str:
        """A size in words: ``width 64 and depth 4``."""
        return " and ".join(f"{name} {x:,.10g}" for name, x in zip(self.law.variables, size, strict=True))

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per quantity: the numbers of the law, and the mean loss of each size.

        ``value``, ``stderr``, ``low`` and ``high`` are a number, its standard error and its 95 % interval.
        """
        terms = self.law.terms | {"floor": self.floor}
        about: dict[str, Any] = dict.fromkeys(self.law.variables)
        rows = [{"quantity": name, **about, **term.limits} for name, term in terms.items()]
        for size, losses in sorted(self.losses.items()):
            sizes = dict(zip(self.law.variables, size, strict=True))
            rows.append({"quantity": self.score, **sizes, **mean_of(losses).limits})
        return rows

    def __str__(self) -> str:
        notes = " ".join(filter(None, (self.law.note, *self.notes)))
        return f"{self.law.equation}: {self.law.test}\n{rows_as_text(self.table)}\n{notes}".strip()


def mean_of(losses: Sequence[float]) -> Interval:
    """The mean loss of the runs of a size."""
    return mean(losses)


def largest_held_out(fit: Callable[[Any], Any], losses: Losses) -> HeldOut | None:
    """The largest size, by a law without it; None where that law may not be extrapolated."""
    trained = {size: runs for size, runs in losses.items() if all(map(math.isfinite, runs))}
    largest = max(trained, key=math.prod)
    with suppress(InputError):
        law = fit({size: runs for size, runs in trained.items() if size != largest})
        runs = trained[largest]
        return HeldOut(largest, len(runs), law.network(*largest, networks=len(runs)), mean_of(runs))
    return None


def shorter(fit: Callable[[Any], Law | PowerLaw], losses: Losses) -> Law | PowerLaw | None:
    """The law without the smallest size of each variable; None where three of each are not left."""
    axes = [{*sizes} for sizes in zip(*losses, strict=True)]
    if min(map(len, axes)) < 4:
        return None
    least = [min(sizes) for sizes in axes]
    with suppress(InputError):
        return fit(
            {size: runs for size, runs in losses.items() if all(x > x0 for x, x0 in zip(size, least, strict=True))}
        )
    return None


# ---- The law of some runs that may be trusted: the smallest can bend it.


_FAILS = "From the others the law does not predict the largest size: train it from other seeds, or a larger one."
_LEFT_OUT = "Smaller sizes were left out until the law held and predicted the largest size from the others."


def judged_law(variables: tuple[str, ...], losses: Losses, *, paired: bool) -> dict[str, Any]:
    """The law, and what holds it to account: fields of a ``Capacity``, the same for runs that were trained here and for
    those of a log.

    Args:
        variables: what the sizes are. losses: of the runs. paired: whether the i-th of all sizes are of one seed.
    """
    law: Law | PowerLaw
    if variables == ("width", "depth") and min(map(len, losses.values())) > 1:
        fit: Callable[[Any], Any] = partial(fit_law, paired=paired, trim=True)
        law, held_out = fit(losses), largest_held_out(fit, losses)
    else:
        fit = partial(fit_power_law, variables)
        law, held_out = trusted_law(variables, losses)
    return {"law": law, "losses": losses, "held_out": held_out, "shorter": shorter(fit, losses)}


def trusted_law(variables: tuple[str, ...], losses: Losses) -> tuple[PowerLaw, HeldOut | None]:
    """The law of the rungs from which it holds and predicts the largest, and how; where no rungs are, that of all."""
    fit, kept = partial(fit_power_law, variables), losses
    whole = law, held_out = fit(losses), largest_held_out(fit, losses)
    while not law.good or (held_out is not None and not held_out.inside):
        left = without_smallest(variables, kept)
        if left is None:
            fails = whole[0].note if not whole[0].good else f"{_FAILS} {whole[0].note}".strip()
            return replace(whole[0], good=False, note=fails), whole[1]
        kept, law, held_out = left, fit(left), largest_held_out(fit, left)
    return law if kept is losses else replace(law, note=f"{_LEFT_OUT} {law.note}".strip()), held_out


# ---- Capacity from a log: the law of size of the user's runs, of any framework.


_SIZES: tuple[Field, ...] = ("width", "depth", "parameters", "tokens")

_REMEDIES = {
    "lr": "Give rate='best', in the shell --rate best, to fit the runs of the best rate of each size, or one rate.",
    "rule": "Give the rows of one rule at each size.",
}


def fit_scaling_law(
    rows: Any, *, columns: Mapping[str, str | None] | None = None, rate: float | str | None = None
) -> Capacity:
    """Fit a law of size to the final losses of your logged runs, from any framework.

    If width n and depth L vary independently and every size has two seeds or more, the law is
    ``loss = floor + a/n + b/L`` with terms of second order (``nfd.forecasts.law``). Otherwise it has the variables
    that vary among width, depth, parameters N and tokens D: ``floor + a / n + b / L + c / D^beta`` or
    ``floor + a / N^alpha + c / D^beta`` (``nfd.forecasts.power_law``). As a test, a second fit without the largest size
    predicts its loss. Small sizes are left out until the law holds; one by least squares must predict the largest, too.

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
