"""Transfer from a log: best rates of the user's runs, of any framework, and their drift.

Where the largest network was trained at both best rates from starts that chose neither, a log holds the regret as well.
Its losses may be of anything, so that no loss of a uniform guess is known. Where the caller gives none, the loss from
which the progress of a size counts is five times as far above its best rate as its fifth best rate is: the fit then
sees the five best rates, in any unit of the loss, and one rate that spikes without diverging does not decide its
scale. Of coarse grids it sees fewer, three at least, as no cubic is near a curve over five doublings: with steps of a
factor of 3 intervals of five rates held the best one 0.75 times in one, those of three do 0.95 times. Divergence counts
as that loss. The regret then has no share of progress, and there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nfd.core.errors import InputError, check_real
from nfd.questions.logs import Field, Log, LoggedRun, read_log
from nfd.questions.optimum import Array, Scores, Size, in_words
from nfd.questions.rule_transfer import Regret, RuleTransfer
from nfd.questions.transfer import Transfer

_NEAREST = (5, 4, 3)  # rates of a fit: the most that lie
_REACH = 3.5  # doublings apart, or the fewest
_SAME = 0.25  # doublings within which a rate that was trained counts as the best one
_FEWEST_STARTS = 2  # of a regret
_SHARE = 0.2  # of the progress that a rate of a fit may have lost
_RULE = "logged"  # where no rule is logged

Place = tuple[str, Size]


def fit_transfer(rows: Any, *, columns: Mapping[str, str | None] | None = None, guess: float | None = None) -> Transfer:
    """Find the best learning rate of every size, and its drift, in your logged runs, from any framework.

    Best rates are fitted as by ``nfd.transfer`` (``nfd.questions.optimum``). A best rate at an end of the trained rates
    is reported, and left out of the drift. With several seeds the intervals include their noise. With one seed a best
    rate has no interval, and the interval of a drift comes from the distances of sizes to a power law.

    The regret needs runs of the largest network at both best rates (or within a quarter of a doubling), from two seeds
    or more that were not trained at the other rates, as in the runs of ``nfd.transfer``.

    Example::

        rows = [
            {"width": n, "lr": 2.0**k, "seed": seed, "loss": 2 + 0.1 * (k + 9 + seed / 9) ** 2}
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-12, -6)
        ]
        print(nfd.fit_transfer(rows).best("logged", 128, 1))

    Args:
        rows: dicts, a DataFrame, or the path of a CSV; one row for each run, or for each step of one, of which the
            last counts. A loss that is not a number diverged.
        columns: the names of your columns, if they are not recognised: ``{"lr": "config/learning_rate"}``. Keys: loss,
            lr, width, depth, rule, seed, tokens (or steps), run, step and state. None ignores a column.
        guess: the loss that a diverged run counts as, and from which progress is measured, such as the logarithm of
            the vocabulary; a verdict needs it. By default a diverged run counts as a loss five times as far above that
            of the best rate as the loss of the fifth best rate is, or of the third on a coarse grid.

    Returns:
        A ``Transfer``: ``.best(rule, width, depth)``, ``.drift(rule, "width")``, ``.regret(rule)`` and ``.table``.
        Print it to see the table. ``about`` lists the recognised columns. Runs without a rule have the rule
        ``"logged"``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if the rows cannot be read; if runs of one size, rate and
            seed differ in another column.
    """
    given = None if guess is None else check_real("guess", guess, above=0.0)
    log = read_log(rows, columns, ("lr", "loss"), ("width", "depth", "rule", "seed", "tokens"))
    if "width" not in log.columns and "depth" not in log.columns:
        raise InputError(
            f"the log must say the width or the depth of its runs; it has {log.recognised} Name their columns by "
            "columns=."
        )
    notes = list(log.notes)
    places = _places(log, notes)
    cells = {place: cell for place, runs in places.items() if (cell := _cell(place, runs, given, notes))}
    if not cells:
        raise InputError(f"no size of the log has a run that did not diverge. {' '.join(notes)}")
    if any(len(cell.losses) == 1 for cell in cells.values()):
        notes.append(
            "Best rates of one seed have no intervals; that of a drift comes from how far sizes lie from a power law."
        )
    rules = []
    for rule in dict.fromkeys(rule for rule, _ in cells):
        own = {size: cell for (of, size), cell in sorted(cells.items()) if of == rule}
        regret = _regret(own, places[rule, [*own][-1]], guess_is_given=given is not None)
        new = {} if regret is None else {[*own][-1]: regret.own}
        rules.append(RuleTransfer(rule, own, regret, rate="lr", new=new))
        notes += _left_out(rules[-1], places)
    return Transfer(tuple(rules), f"A log of {log.recognised}", log.columns["loss"], tuple(notes))


def _left_out(answer: RuleTransfer, places: Mapping[Place, Sequence[LoggedRun]]) -> list[str]:
    """Of how many runs nothing was made, by size."""
    notes, largest = [], [*answer.cells][-1]
    for size, cell in answer.cells.items():
        used = cell.losses.size
        if size == largest and answer.regret is not None:
            used += answer.regret.foreign.size * len({answer.regret.foreign_eta, answer.regret.own_eta})
        if lost := len(places[answer.rule, size]) - used:
            where = f"{answer.rule} at {in_words(size)}"
            notes.append(f"{lost} runs of {where} were left out: their seeds were not trained at every rate.")
    return notes


def _regret(cells: Mapping[Size, Scores], runs: Sequence[LoggedRun], *, guess_is_given: bool) -> Regret | None:
    """What the largest network loses at the smallest one's best rate, by its runs from seeds that chose neither rate;
    None where there are too few of these."""
    if len(cells) < 2:
        return None
    small, large = cells[min(cells)], cells[max(cells)]
    losses = dict[float, dict[str, float]]()
    for run in runs:
        if run.seed is not None and run.seed not in large.seeds:
            losses.setdefault(run.lr or 0.0, {})[run.seed] = run.loss or math.inf
    foreign, own = (_nearest(cell.best(), losses) for cell in (small, large))
    if foreign is None or own is None:
        return None
    seeds = sorted(losses[foreign].keys() & losses[own].keys())
    if len(seeds) < _FEWEST_STARTS:
        return None
    at = np.array([[losses[rate][seed] for rate in (foreign, own)] for seed in seeds])
    grid = large if guess_is_given else replace(large, guess=_beyond(at, large.losses))
    scores = Scores(np.log2([foreign, own]), at, ~np.isfinite(at), grid.guess)
    return Regret(foreign, own, scores, grid, guess_is_given)


def _beyond(*losses: Array) -> float:
    """The loss that divergence counts as where none is given: just above all others."""
    known = np.concatenate([loss[np.isfinite(loss)] for loss in losses])
    return math.nextafter(float(known.max()), math.inf)


def _nearest(log2_rate: float, rates: Iterable[float]) -> float | None:
    """The rate that was trained in place of one; None where none is near."""
    near = [rate for rate in rates if abs(math.log2(rate) - log2_rate) <= _SAME]
    return min(near, key=lambda rate: abs(math.log2(rate) - log2_rate), default=None)


def _places(log: Log, notes: list[str]) -> dict[Place, list[LoggedRun]]:
    """The runs by rule and size; an axis that is not logged counts as 1."""
    present: list[Field] = [name for name in ("width", "depth", "rule") if name in log.columns]
    runs = [run for run in log.runs if all(getattr(run, name) is not None for name in present)]
    if len(runs) < len(log.runs):
        notes.append(f"{len(log.runs) - len(runs)} rows that lack {' or '.join(present)} were left out.")
    notes += [f"No {name} is logged: it counts as 1." for name in ("width", "depth") if name not in present]
    places = dict[Place, list[LoggedRun]]()
    for run in runs:
        places.setdefault((run.rule or _RULE, (run.width or 1, run.depth or 1)), []).append(run)
    lengths = {place: {run.tokens for run in several} for place, several in places.items()}
    for (rule, size), several in lengths.items():
        if len(several) > 1:
            raise InputError(
                f"runs of {rule} at {in_words(size)} have several lengths ({log.columns['tokens']}), and best rates "
                "depend on the length. Give the rows of one, or leave it aside by columns={'tokens': None}."
            )
    if len(set().union(*lengths.values())) > 1:
        notes.append("Lengths of training differ between sizes: a drift is of size and length together.")
    return places


def _cell(place: Place, runs: Sequence[LoggedRun], guess: float | None, notes: list[str]) -> Scores | None:
    """The scores of a size; None where every run diverged."""
    rule, size = place
    where = f"{rule} at {in_words(size)}"
    if not any(math.isfinite(run.loss or math.inf) for run in runs):
        notes.append(f"Every run of {where} diverged: it is left out.")
        return None
    if any((run.loss or 0.0) <= 0 for run in runs):
        raise InputError(f"losses must be above 0, as their geometric mean is taken; runs of {where} have others.")
    listed, seeds, losses = _table(where, runs)
    rates = np.log2(listed)
    return Scores(
        rates,
        losses,
        ~np.isfinite(losses),
        _scale(rates, losses) if guess is None else guess,
        seeds,
        0.0,
    )


def _table(where: str, runs: Sequence[LoggedRun]) -> tuple[list[float], tuple[str, ...], Array]:
    """Rates, seeds, and losses ``[S, E]``.

    The seeds that were trained at every rate, where rates are those of the seed that has the most. Where no seed has
    more than half of all rates, or none is named, the first run of each rate, the second, and so on.
    """
    by_rate, by_seed = dict[float, dict[str, float]](), dict[str, dict[float, float]]()
    for run in sorted(runs, key=lambda run: (run.lr or 0.0, run.seed or "")):
        losses = by_rate.setdefault(run.lr or 0.0, {})
        if run.seed in losses:
            raise InputError(
                f"{where} has several runs of lr {run.lr:g} and seed {run.seed}: they differ in something else. Give "
                "the rows of one setting, or name the column of seeds."
            )
        seed = run.seed or f"{where} {len(losses)}"
        losses[seed] = by_seed.setdefault(seed, {})[run.lr or 0.0] = run.loss or math.inf
    rates = max((sorted(own) for own in by_seed.values()), key=lambda own: len(own))
    if 2 * len(rates) > len(by_rate):
        seeds = tuple(sorted(seed for seed, own in by_seed.items() if own.keys() >= {*rates}))
        table = [[by_seed[seed][rate] for rate in rates] for seed in seeds]
    else:
        rates, seeds = [*by_rate], tuple(f"{where} {index}" for index in range(min(map(len, by_rate.values()))))
        table = [[[*losses.values()][index] for losses in by_rate.values()] for index in range(len(seeds))]
    return rates, seeds, np.array(table)


def _scale(rates: Array, losses: Array) -> float:
    """The loss from which the progress of a size counts, where none is given, by log2 of its rates ``[E]``."""
    typical = np.exp(np.log(losses).mean(0))
    if not np.isfinite(typical).any():
        typical = losses.min(0)
    order = typical.argsort(kind="stable")[: int(np.isfinite(typical).sum())]
    several = [order[:count] for count in _NEAREST]
    best = typical[next((few for few in several if rates[few].max() - rates[few].min() <= _REACH), several[-1])]
    return float(best[0] + (best[-1] - best[0]) / _SHARE)
