"""Of a log with several learning rates at each size, the runs of one: a given rate, or the best of the size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from nfd.core.errors import InputError, check_real
from nfd.questions.logs import LoggedRun

BEST = "best"


def at_rate(
    runs: Sequence[LoggedRun], variables: Sequence[str], rate: float | str | None
) -> tuple[list[LoggedRun], list[str]]:
    """The runs of a rate, or of the best one of each size, and notes on the choice; all of them where it is None.

    Raises:
        ValueError, TypeError: for another rate, for one that no run has, and for runs without a rate.
    """
    if rate is None:
        return list(runs), []
    tried = sorted({run.lr for run in runs if run.lr is not None})
    if not tried:
        raise InputError(f"rate={rate!r} chooses runs by their learning rate, which no column of the log holds.")
    if rate == BEST:
        best = {size: _best(of_size) for size, of_size in _by_size(runs, variables).items()}
        return [run for run in runs if run.lr == best[_size(run, variables)]], _notes(best, tried)
    wanted = check_real("rate", _number(rate), above=0.0)
    chosen = [run for run in runs if run.lr is not None and math.isclose(run.lr, wanted, rel_tol=1e-5)]
    if not chosen:
        raise InputError(f"rate={wanted:g} is of no run of the log. The rates are {_listed(tried)}.")
    return chosen, []


def _best(runs: Sequence[LoggedRun]) -> float | None:
    """The rate with the lowest mean loss over seeds."""
    losses: dict[float | None, list[float]] = {}
    for run in runs:
        losses.setdefault(run.lr, []).append(math.inf if run.loss is None else run.loss)
    return min(losses, key=lambda rate: fmean(losses[rate]))


def _notes(best: Mapping[tuple[float, ...], float | None], tried: Sequence[float]) -> list[str]:
    chosen = [rate for rate in best.values() if rate is not None]
    notes = [f"Of each size the runs at its best rate count: {_listed(sorted(set(chosen)))} of {_listed(tried)}."]
    ends = sum(rate in (tried[0], tried[-1]) for rate in chosen)
    if ends and len(tried) > 1:
        notes.append(f"At {ends} of {len(best)} sizes that is the lowest or highest rate tried: a better one may lie "
                     "beyond.")  # fmt: skip
    return notes


def _by_size(runs: Sequence[LoggedRun], variables: Sequence[str]) -> dict[tuple[float, ...], list[LoggedRun]]:
    sizes: dict[tuple[float, ...], list[LoggedRun]] = {}
    for run in runs:
        sizes.setdefault(_size(run, variables), []).append(run)
    return sizes


def _size(run: LoggedRun, variables: Sequence[str]) -> tuple[float, ...]:
    return tuple(getattr(run, name) for name in variables)


def _number(rate: float | str) -> float | str:
    """A number that the shell gave as a text; anything else as it is."""
    try:
        return float(rate)
    except (TypeError, ValueError):
        raise InputError(f"rate must be a learning rate or {BEST!r}; got {rate!r}.") from None


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
