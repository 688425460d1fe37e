"""The losses of logged training runs by size: what loss laws are fitted to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from nfd.core.errors import InputError
from nfd.core.words import listed, plural, quoted
from nfd.laws.log_columns import Field
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.logs import Log, read_log
from nfd.laws.run_table import RunTable, table_of
from nfd.laws.supplies import supplies_of, with_supplies

BEST = "best"
# Sizes that a law in parameters and tokens needs.
FEWEST_SIZES = 4
_COUNTED = ("parameters", "tokens")
_SIZES: tuple[Field, ...] = ("width", "depth", "parameters", "tokens")
_FLOPS: Field = "flops"
_SUPPLIES: tuple[Field, ...] = ("unique_tokens", "epochs", "total_parameters")
# Training runs by their size.
Rungs = dict[tuple[float, ...], list[LoggedRun]]


def sizes_in_words(sizes: Collection[tuple[float, ...]]) -> str:
    """Count sizes; those that share parameters are pairs of a size and its tokens."""
    noun = "size" if len({size[0] for size in sizes}) == len(sizes) else "pair"
    several = "" if noun == "size" else "pairs of size and tokens"
    return plural(len(sizes), noun, several)


@dataclass(frozen=True)
class LossRuns:
    """Runs by their size, and how they were read.

    Attributes:
        variables: what a size is made of.
        rungs: the runs of each size, ascending, in the order of their seeds.
        about: a description of the log.
        score: the kind of the losses.
        notes: which runs were left out, and why.
        has_rates: whether the runs were chosen among several learning rates.
        left_out: sentences on the rows that do not count, which the notes have too.
        supplies: what stands behind the sizes (``nfd.laws.supplies``); sizes end with it.
        table: what the log says of the runs beside.
    """

    variables: tuple[str, ...]
    rungs: Rungs
    about: str
    score: str
    notes: tuple[str, ...]
    has_rates: bool = False
    left_out: str = ""
    supplies: tuple[str, ...] = ()
    table: RunTable = field(default_factory=RunTable)

    @property
    def losses(self) -> dict[tuple[float, ...], list[float]]:
        """The losses of every size."""
        return {size: _losses(rung) for size, rung in self.rungs.items()}

    @property
    def share_seeds(self) -> bool:
        """Whether all sizes were trained from the same named seeds."""
        seeds = set[tuple[str | None, ...]]()
        for rung in self.rungs.values():
            seeds.add(tuple(run.seed for run in rung))
        return len(seeds) == 1 and None not in next(iter(seeds))

    @property
    def counts(self) -> dict[tuple[int, int], int]:
        """Numbers of parameters by width and depth, as far as the log says them."""
        counts = dict[tuple[int, int], int]()
        for rung in self.rungs.values():
            for run in rung:
                if run.width and run.depth and run.parameters:
                    counts[run.width, run.depth] = round(run.parameters)
        return counts


def _losses(runs: Sequence[LoggedRun]) -> list[float]:
    return [run.loss for run in runs if run.loss is not None]


def read_sizes(rows: Any, columns: Mapping[str, str | None] | None) -> Log:
    """Read a log for its losses and sizes."""
    return read_log(rows, columns, ("loss",), (*_SIZES, *_SUPPLIES, "lr", "rule", "seed"))


def varying_sizes(log: Log) -> list[str]:
    """Name the sizes that differ between training runs; ValueError where none does."""
    varying = list[str]()
    for name in _SIZES:
        values = {getattr(run, name) for run in log.runs} - {None}
        if len(values) > 1:
            varying.append(name)
    # Compute alone; where other sizes are known, they say it.
    if not varying and len({run.flops for run in log.runs} - {None}) > 1:
        return [_FLOPS]
    if not varying:
        read = [name for name in _SIZES if name in log.columns]
        sweep = ""
        if len({run.lr for run in log.runs}) > 1:
            sweep = " It sweeps the learning rate: it is for nfd.fit_rate_law, nfd transfer --from."
        if not read:
            raise InputError(
                "runs must differ in width, depth, parameters or tokens; no column of them was "
                f"found in {log.recognised} Name their columns by columns=, in the shell "
                f"--columns parameters=...{sweep} The columns are {quoted(log.names, most=30)}."
            )
        sizes = listed(
            f"one number of {name}" if name in _COUNTED else f"one {name}" for name in read
        )
        raise InputError(
            f"a law of the loss needs runs that differ in size; this table has {sizes}.{sweep} "
            f"Read: {log.recognised}"
        )
    return varying


def variables_of(log: Log) -> tuple[str, ...]:
    """Choose the sizes that a loss law is in, by what varies.

    Parameters stand for width and depth where tokens vary, too, or where both grow together.
    """
    varying = varying_sizes(log)
    shape: list[str] = [name for name in ("width", "depth") if name in varying]
    grow_together = len(shape) == 2 and _grow_together(log)
    with_tokens = "tokens" in varying and not log.in_steps
    if "parameters" in varying and (not shape or grow_together or with_tokens):
        shape = ["parameters"]
    if _FLOPS in varying:
        return (_FLOPS,)
    return (*shape, "tokens") if "tokens" in varying else tuple(shape)


def _grow_together(log: Log) -> bool:
    """Say whether the terms of width and depth cannot be told apart in these runs."""
    inverse = list[tuple[float, float, float]]()
    for run in log.runs:
        if run.width and run.depth:
            inverse.append((1.0, 1 / run.width, 1 / run.depth))
    return bool(np.linalg.matrix_rank(np.array(inverse), tol=1e-6) < 3)


def loss_runs(log: Log, variables: tuple[str, ...], rate: float | str | None) -> LossRuns:
    """Take the runs of a log that have every size, at one learning rate or at the best ones.

    Raises:
        ValueError: for a rate that no run has, and where runs of one size differ in their rate or
            rule.
    """
    runs = [run for run in log.runs if run.has(variables)]
    lacking = len(log.runs) - len(runs)
    notes = list(log.notes)
    left_out = log.left_out
    supplies = supplies_of(runs, variables, notes)
    runs = with_supplies(runs, supplies)
    columns = (*variables, *supplies)
    if rate is not None:
        runs = _at_rate(runs, columns, rate, notes)
    if lacking:
        without_size = f"Left out: {plural(lacking, 'row')} without a size."
        notes.append(without_size)
        left_out = f"{left_out} {without_size}".lstrip()
    rungs = _rungs(runs, columns)
    return LossRuns(
        variables,
        rungs,
        f"A log of {log.recognised}",
        log.columns["loss"],
        tuple(notes),
        has_rates=rate is not None,
        left_out=left_out,
        supplies=supplies,
        table=table_of(rungs, log.columns),
    )


def _rungs(runs: Sequence[LoggedRun], variables: tuple[str, ...]) -> Rungs:
    """Group runs by size, in the order of their seeds.

    Raises:
        ValueError: where runs of one size differ in their rate or rule.
    """
    rungs = Rungs()
    for run in sorted(runs, key=lambda run: (run.seed or "", run.loss or 0.0)):
        rungs.setdefault(_size(run, variables), []).append(run)
    for name in ("lr", "rule"):
        for size, rung in rungs.items():
            values = {getattr(run, name) for run in rung}
            if len(values) > 1:
                place = " x ".join(f"{x:g}" for x in size)
                raise InputError(
                    f"the runs of {' x '.join(variables)} = {place} "
                    f"differ in {name}: {', '.join(sorted(map(str, values)))}. Give the rows of "
                    f"one {name} at each size, or rate='best', in the shell --rate best, for those "
                    "of the best rate."
                )
    return dict(sorted(rungs.items()))


def _size(run: LoggedRun, variables: Sequence[str]) -> tuple[float, ...]:
    return tuple(getattr(run, name) for name in variables)


def _at_rate(
    runs: Sequence[LoggedRun], variables: Sequence[str], rate: float | str, notes: list[str]
) -> list[LoggedRun]:
    """Take the runs of a rate, or of the best one of each size; a note is on that choice."""
    rates = sorted({run.lr for run in runs if run.lr is not None})
    if rate == BEST and rates:
        return _at_best_rates(runs, variables, rates, notes)
    # The shell gives a text.
    try:
        wanted = float(rate)
    except ValueError:
        wanted = math.nan
    at_rate = [run for run in runs if math.isclose(run.lr or math.nan, wanted, rel_tol=1e-5)]
    if not at_rate:
        tried = _listed(rates) or "not in the log"
        raise InputError(
            f"rate must be a rate of the log or {BEST!r}; got {rate!r}. The rates are {tried}."
        )
    return at_rate


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _at_best_rates(
    runs: Sequence[LoggedRun], variables: Sequence[str], rates: Sequence[float], notes: list[str]
) -> list[LoggedRun]:
    """Take at each size the runs of the rate with the lowest mean loss."""
    losses = dict[tuple[float, ...], dict[float | None, list[float]]]()
    for run in runs:
        loss = math.inf if run.loss is None else run.loss
        losses.setdefault(_size(run, variables), {}).setdefault(run.lr, []).append(loss)

    best = dict[tuple[float, ...], float | None]()
    ends = 0
    for size, by_rate in losses.items():
        means = {lr: fmean(of_seeds) for lr, of_seeds in by_rate.items()}
        best[size] = min(means, key=means.__getitem__)
        tried = sorted(lr for lr in by_rate if lr is not None)
        ends += best[size] in (tried[:1] + tried[-1:])
    notes.append(
        f"Of each size the runs at its best rate count, of {_listed(rates)}; at {ends} of "
        f"{sizes_in_words(best)} it is an end of those tried there."
    )
    return [run for run in runs if run.lr == best[_size(run, variables)]]
