"""What the best learning rate does as networks grow, and what tuning a small one costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from scipy.special import ndtr

from nfd.core.errors import InputError, check_choice, check_real
from nfd.core.estimates import UNKNOWN, Interval, combined, mean, standard_errors
from nfd.core.names import AXES, Axis
from nfd.core.tables import rows_as_text
from nfd.logs import Field, Log, LoggedRun, read_log
from nfd.rates.optimum import (
    Array,
    Bools,
    Scores,
    Size,
    chosen,
    fitted_exponent,
    in_words,
    rate_in_words,
    rate_of,
    signed,
)

# ---- The answer of a sweep or of a log, for all rules


@dataclass(frozen=True)
class Transfer:
    """The result of ``nfd.transfer`` and ``nfd.fit_transfer``. Print it to see the table.

    Best rates, their drift with size, and the regret of tuning on a small network.

    Attributes:
        rules: the answer for each rule. about: a description of the runs. score: the loss that best rates minimise.
        notes: which runs were left out, and why.
        initial_scale: standard deviation of the initial inner matrices of the smallest network over fan_in^-1/2;
            not-a-number if it is not known.
    """

    rules: tuple[RuleTransfer, ...]
    about: str
    score: str
    notes: tuple[str, ...] = ()
    initial_scale: float = math.nan

    def __iter__(self) -> Iterator[RuleTransfer]:
        return iter(self.rules)

    def of(self, rule: str) -> RuleTransfer:
        """The answer for one rule."""
        named = {transfer.rule: transfer for transfer in self.rules}
        return named[check_choice("rule", rule, named)]

    def best(self, rule: str, width: int, depth: int, **setting: float) -> Interval:
        """The best rate at a size; not-a-number where it lies at an end of the grid.

        Args:
            setting: a value of one further axis, such as ``batch_size=32``.

        Raises:
            ValueError: for a rule, a size or a value of which there are no runs.
        """
        transfer = self._trained(rule, width, depth)
        if not setting:
            return rate_of(transfer.optimum((width, depth)))
        if not transfer.against:
            raise InputError(f"nothing but width and depth varied; got {', '.join(setting)}. Measure it with axes=.")
        if len(setting) > 1:
            raise InputError(f"settings vary one at a time; got {', '.join(setting)}. Ask for one of them.")
        ((name, value),) = setting.items()
        return transfer.against[check_choice("setting", name, transfer.against)].best((width, depth), value)

    def loss(self, rule: str, width: int, depth: int) -> Interval:
        """The loss at the best rate of a size.

        For the smallest and the largest size it is that of starts which chose no rate, for others that of the grid,
        each seed at the rate that the others choose.

        Raises:
            ValueError: for a rule or a size of which there are no runs.
        """
        return self._trained(rule, width, depth).loss((width, depth))

    def drift(self, rule: str, axis: str) -> Interval:
        """Doublings of the best rate per doubling of an axis, with a 95 % interval: 0 if the rate transfers.

        Args:
            rule: one of the rules that were trained; ``"logged"`` for logs without a rule.
            axis: ``"width"``, ``"depth"`` or a further axis, such as ``"batch_size"``. If it did not vary, the result
                is not-a-number.
        """
        transfer = self.of(rule)
        if check_choice("axis", axis, [*AXES, *transfer.against]) in transfer.against:
            return transfer.against[axis].exponent
        return transfer.drifts.get(cast(Axis, axis), UNKNOWN)

    def regret(self, rule: str) -> Interval:
        """The loss that the largest network loses at the smallest one's best rate, in nats; not-a-number if unknown."""
        regret = self.of(rule).regret
        return UNKNOWN if regret is None else regret.loss

    def verdict(self, rule: str) -> TransferVerdict:
        """Whether the best rate of the smallest network serves the largest: an enum; ``str`` gives the word."""
        return self.of(rule).verdict

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per rule and quantity (best rates, drifts, regret), followed by those of further axes."""
        sizes = [row for transfer in self.rules for row in transfer.table]
        return [*sizes, *(row for t in self.rules for against in t.against.values() for row in against.table)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a small regret does not show: another rule whose loss is lower, a larger network that is no better than
        the smallest, initial weights far from fan-in scaling. Empty if there is nothing of the kind."""
        advised = self.recommendation
        measured = any("init_scale" in answer.against for answer in self.rules)
        of_levels = _of_level(self.rules, advised.rule) if advised and advised.rule else []
        return (*of_levels, *([] if measured else _of_initial_scale(self.initial_scale)))

    @property
    def along_settings(self) -> list[str]:
        """One sentence per rule and further axis: how the best rate depends on it."""
        return [against.sentence for answer in self.rules for against in answer.against.values()]

    def __str__(self) -> str:
        against = [str(against) for answer in self.rules for against in answer.against.values()]
        warnings = [f"Warning: {warning}" for warning in self.warnings]
        advice = [self.recommendation.sentence] if self.recommendation else []
        return "\n".join([self.levels, *map(str, self.rules), *against, *self.notes, *warnings, *advice])

    @property
    def levels(self) -> str:
        """The best rates and losses of all rules at all sizes, as text."""
        sizes = dict.fromkeys(size for answer in self.rules for size in answer.cells)
        return rows_as_text(
            [
                {"width": n, "depth": L, "rule": answer.rule, "best lr": rate_in_words(rate), "loss": loss}
                for n, L in sizes
                for answer in self.rules
                if (n, L) in answer.cells
                for rate, loss in [(rate_of(answer.optimum((n, L))), answer.loss((n, L)).unsigned)]
            ]
        )

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """What to do; None unless every rule has a regret, so that there is something to advise."""
        return recommended(self.rules) if all(answer.regret for answer in self.rules) else None

    def _trained(self, rule: str, width: int, depth: int) -> RuleTransfer:
        """The answer for a rule, of which there are runs of this size."""
        transfer = self.of(rule)
        if (width, depth) not in transfer.cells:
            sizes = "; ".join(map(in_words, transfer.cells))
            raise InputError(f"there are no runs of {in_words((width, depth))}. There are some of {sizes}.")
        return transfer


# ---- Transfer from a log: best rates of the user's runs, of any framework, and their drift


_NEAREST = (5, 4, 3)  # rates of a fit: the most that lie
_REACH = 3.5  # doublings apart, or the fewest
_SHARE = 0.2  # of the progress that a rate of a fit may have lost, where no guess says how much there is
_SAME_RATE = 0.25  # doublings within which a rate that was trained counts as the best one
_RULE = "logged"  # where no rule is logged

Place = tuple[str, Size]


def fit_transfer(rows: Any, *, columns: Mapping[str, str | None] | None = None, guess: float | None = None) -> Transfer:
    """Find the best learning rate of every size, and its drift, in your logged runs, from any framework.

    Best rates are fitted as by ``nfd.transfer`` (``nfd.rates.optimum``). A best rate at an end of the trained rates
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
        large = [*own][-1]
        regret = _regret(own, places[rule, large], guess_is_given=given is not None)
        rules.append(RuleTransfer(rule, own, regret, new={} if regret is None else {large: regret.own}))
        used = {size: cell.losses.size for size, cell in own.items()}
        if regret is not None:
            used[large] += regret.new.losses[:, : len({regret.foreign_eta, regret.own_eta})].size
        notes += [
            f"{lost} runs of {rule} at {in_words(size)} were left out: their seeds were not trained at every rate."
            for size, count in used.items()
            if (lost := len(places[rule, size]) - count)
        ]
    return Transfer(tuple(rules), f"A log of {log.recognised}", log.columns["loss"], tuple(notes))


def _regret(cells: Mapping[Size, Scores], runs: Sequence[LoggedRun], *, guess_is_given: bool) -> Regret | None:
    """What the largest network loses at the smallest one's best rate, by its runs from seeds that chose neither rate;
    None where fewer than two seeds were trained at both."""
    if len(cells) < 2:
        return None
    small, large = cells[min(cells)], cells[max(cells)]
    losses = dict[float, dict[str, float]]()
    for run in runs:
        if run.seed is not None and run.seed not in large.seeds:
            losses.setdefault(run.lr or 0.0, {})[run.seed] = run.loss or math.inf
    pair = []
    for cell in (small, large):
        apart = {rate: abs(math.log2(rate) - cell.best()) for rate in losses}
        if not apart or min(apart.values()) > _SAME_RATE:
            return None
        pair.append(min(apart, key=lambda rate: apart[rate]))
    seeds = sorted(losses[pair[0]].keys() & losses[pair[1]].keys())
    if len(seeds) < 2:
        return None
    at = np.array([[losses[rate][seed] for rate in pair] for seed in seeds])
    if not guess_is_given:  # divergence counts as a loss just above all others
        known = [float(some[np.isfinite(some)].max(initial=0.0)) for some in (at, large.losses)]
        large = replace(large, guess=math.nextafter(max(known), math.inf))
    return Regret(pair[0], pair[1], Scores(np.log2(pair), at, ~np.isfinite(at), large.guess), large, guess_is_given)


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
    return Scores(rates, losses, ~np.isfinite(losses), guess or _scale(rates, losses), seeds, 0.0)


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


# ---- Transfer: whether the best learning rate of a small network is that of a large one, and what it costs if not


TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

TOLERANCE = 0.1  # of the largest network's progress: a regret below is none, above is one
FEWEST_SEEDS = 3  # for a verdict
GUESS = "guess= (in the shell --guess), the loss of a network that knows nothing, such as log C of C classes"
_MEANINGS: dict[TransferVerdict, str] = {
    "TRANSFERS": "it transfers",
    "COSTS": "it does not transfer",
    "UNCERTAIN": "the seeds leave open whether it transfers",
}
_END = {-1: "lower rates may be better", 1: "higher rates may be better"}


@dataclass(frozen=True)
class Doubt:
    """Sizes whose best rate is not known; false where it is at all.

    Attributes:
        unlearnt: sizes at which nothing is learnt. ends: -1 or 1 for sizes where lower or higher rates may be better.
    """

    unlearnt: tuple[Size, ...]
    ends: Mapping[Size, int]

    def __bool__(self) -> bool:
        return bool(self.unlearnt or self.ends)

    def __str__(self) -> str:
        if self.unlearnt:
            return f"nothing is learnt at {', '.join(map(in_words, self.unlearnt))}: take more steps or other rates"
        ends = [f"{in_words(size)} ({_END[end]})" for size, end in self.ends.items()]
        return f"the best rate lies at an end of its grid at {', '.join(ends)}: give other rates" if ends else ""


@dataclass(frozen=True)
class RuleTransfer:
    """The scores of one rule by (width, depth), and the regret between the smallest and the largest.

    Attributes:
        regret: None where no new networks were trained at both rates, as in most logs, or there is one size.
        against: the best rate against further settings, by their names.
        new: scores at the best rate of a size from starts that chose no rate, where there are any.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    against: Mapping[str, RateAgainst] = field(default_factory=dict)
    new: Mapping[Size, Array] = field(default_factory=dict)

    @cached_property
    def inside(self) -> dict[Size, Scores]:
        """The sizes whose best rate lies inside of its grid: it is fitted there alone."""
        return {size: cell for size, cell in self.cells.items() if cell.has_optimum}

    def optimum(self, size: Size) -> Interval:
        """log2 of the best rate; not-a-number where it lies at an end of the grid, or nothing is learnt."""
        return self.inside[size].optimum() if size in self.inside else UNKNOWN

    def reached(self, size: Size) -> Array:
        """Scores ``[S]`` at the best rate of a size: of new starts, else of the grid at the rate of the other seeds."""
        return self.new.get(size, self.cells[size].reached)

    def loss(self, size: Size) -> Interval:
        """The loss at the best rate of a size."""
        return mean(self.reached(size))

    def drift(self, axis: Axis) -> Interval | None:
        """Doublings of the best rate per doubling of width or depth, the other held; None where it does not vary."""
        return drift(self.inside, axis)

    @cached_property
    def drifts(self) -> dict[Axis, Interval]:
        """The drift along every axis that varies."""
        return {axis: moved for axis in reversed(AXES) if (moved := self.drift(axis)) is not None}

    def along(self, axis: Axis) -> dict[int, Size]:
        """The sizes along one axis, the other at its largest."""
        place = AXES.index(axis)
        largest = max(size[1 - place] for size in self.cells)
        return {size[place]: size for size in self.cells if size[1 - place] == largest}

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per quantity: best rates and losses by size, drifts, and the regret in nats and over the progress."""
        about: dict[str, Any] = {"rule": self.rule, "width": None, "depth": None}
        rates = [
            about | {"quantity": "best lr", "width": n, "depth": L} | rate_of(self.optimum((n, L))).limits
            for n, L in self.cells
        ]
        rates += [
            about | {"quantity": "best loss", "width": n, "depth": L} | self.loss((n, L)).limits for n, L in self.cells
        ]
        others = {f"drift per doubling of {axis}": moved for axis, moved in self.drifts.items()}
        if self.regret is not None:
            others |= {"regret (nats)": self.regret.loss, "regret over progress": self.regret.share}
        return [*rates, *(about | {"quantity": name} | estimate.limits for name, estimate in others.items())]

    @property
    def sentence(self) -> str:
        """The answer with its numbers."""
        rates = " and ".join(
            f"{rate_in_words(rate_of(self.optimum(size)))} at {in_words(size)}"
            for size in dict.fromkeys((min(self.cells), max(self.cells)))
        )
        drifts = [f"{signed(drift)} doublings per doubling of {axis}" for axis, drift in self.drifts.items()]
        reading = f"{self.rule}: the best lr is {rates}"
        reading += f", a drift of {' and '.join(drifts)}" if drifts else ""
        if self.regret is None:
            return f"{reading}: {self.doubt}." if self.doubt else f"{reading}."
        loss, share = self.regret.loss, self.regret.share
        cost = "an unknown loss" if math.isnan(loss.value) else f"{loss} nats"
        reading += f"; the smallest network's best rate costs the largest {cost}"
        if math.isfinite(share.value):
            reading += f", {100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] of its progress"
        return f"{reading}: {self.doubt or self.lacks or _MEANINGS[self.verdict]}."

    def __str__(self) -> str:
        return self.sentence if self.regret is None else f"{self.verdict}  {self.sentence}"

    @property
    def doubt(self) -> Doubt:
        """Why best rates cannot be compared; false when they can."""
        unlearnt = tuple(size for size, cell in self.cells.items() if not cell.learns)
        return Doubt(unlearnt, {size: cell.edge for size, cell in self.cells.items() if cell.edge})

    @property
    def lacks(self) -> str:
        """What a verdict on the regret needs and is not there, whatever the regret is; else empty."""
        if self.regret is None:
            return ""
        if not self.regret.counts_progress:
            return f"a verdict needs {GUESS}"
        if math.isnan(self.regret.share.value):
            return "a verdict needs two starts or more of the largest network that learn at its own best rate"
        return f"a verdict needs {FEWEST_SEEDS} seeds" if len(self.regret.grid.losses) < FEWEST_SEEDS else ""

    @property
    def verdict(self) -> TransferVerdict:
        """By the 95 % interval of the regret as a share of progress: below ``TOLERANCE``, above it, or neither.

        A negative regret is a gain, and no reason for doubt: the rate tuned at the small size costs nothing.
        """
        if self.doubt or self.regret is None or self.lacks:
            return "UNCERTAIN"
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


def drift(cells: Mapping[Size, Scores], axis: Axis) -> Interval | None:
    """Doublings of the best rate per doubling of one axis, over scores by (width, depth); None where it is one size.

    The exponent of least squares is a weighted sum of the best rates (``nfd.rates.optimum.fitted_exponent``).
    """
    k = AXES.index(axis)
    if len({size[k] for size in cells}) < 2:
        return None
    return fitted_exponent(list(cells.values()), [[math.log2(n), math.log2(L)] for n, L in cells], k)


# ---- What the largest network loses at the smallest one's best rate, with an interval that knows of rare divergence.
#
# Of the networks that do not diverge the loss is a mean over starts. Whether one diverges is a matter of few cases:
# where none of eight did, one of ten may. So every start is taken to have an edge of stability, normally distributed
# over log eta_c. Its distribution is fitted to the new runs and to the largest network's whole grid. A calm run that
# learns nothing at a rate below the best lies not beyond its edge: the rate was too small. With
#
#     ``q`` the chance at the smallest one's rate less that at its own,
#     ``A`` the mean loss paid by starts that train at both rates, ``D`` what a start loses that trains at its own only,
#
# the regret is ``(1 - q) A + q D``. The limits of q are those of the likelihood ratio.


_STEP, _WIDTHS = 0.05, 40  # of the fit: doublings between middles of the distribution, and how many widths it may have
_NARROWEST, _WIDEST = 0.05, 3.0  # doublings, of the normal distribution
_BEYOND = 3.0  # doublings beyond the rates
_SURE = 1e-9  # the least chance
_SAME = 1e-6  # doublings, by which the logarithm of a rate may differ from itself


@dataclass(frozen=True)
class Regret:
    """Scores of the largest network at the smallest one's best rate and at its own, trained for this from starts of
    their own.

    ``new`` has one column for each of the two rates, in this order; ``grid`` are the scores by which its own best rate
    was chosen. ``counts_progress``: whether its ``guess`` is one from which progress counts, and no more than a loss
    for divergence.
    """

    foreign_eta: float
    own_eta: float
    new: Scores
    grid: Scores
    counts_progress: bool = True

    @property
    def foreign(self) -> Array:
        """Scores ``[S]`` at the smallest network's best rate."""
        return self.new.scores[:, 0]

    @property
    def own(self) -> Array:
        """Scores ``[S]`` at its own best rate."""
        return self.new.scores[:, 1]

    @property
    def guess(self) -> float:
        """log C, from which progress counts."""
        return self.grid.guess

    @property
    def progress(self) -> float:
        """What the largest network learns at its own best rate, in nats below a uniform guess; not-a-number where that
        is not known."""
        return self.guess - float(self.own.mean()) if self.counts_progress else math.nan

    @property
    def diverges(self) -> tuple[float, float, float]:
        """The chance to diverge at the smallest network's rate less that at its own: most likely, and 95 % limits."""
        rates, grid = self.new.log2_eta, self.grid.log2_eta
        order, lost, new = rates.argsort(), self._lost(self.grid), self._lost(self.new)
        diverging = np.append(rates, grid[lost.any(0)])  # calm rates below all of these say nothing of the edge
        low, high = float(diverging.min()) - _BEYOND, max(float(grid[-1]), float(rates.max())) + _BEYOND
        middle = np.arange(low, high, _STEP)
        width = np.geomspace(_NARROWEST, _WIDEST, _WIDTHS)
        edges = middle.repeat(_WIDTHS), np.tile(width, len(middle))
        likely = _likely(grid, lost, *edges) + _likely(rates[order], new[:, order], *edges)
        chance = _chance(rates, *edges)
        apart = chance[:, 0] - chance[:, 1]
        starts = len(lost) + len(new)
        within = apart[likely > likely.max() - standard_errors(starts - 2) ** 2 / 2]
        return float(apart[likely.argmax()]), float(within.min()), float(within.max())

    @property
    def loss(self) -> Interval:
        """The loss paid, in nats."""
        lost = self._lost(self.new)
        trains = ~lost[:, 1]
        both = trains & ~lost[:, 0]
        if int(trains.sum()) < 2:
            return UNKNOWN
        q, low, high = self.diverges
        known = self.guess - self.own[trains]
        paid = (self.foreign - self.own)[both] if int(both.sum()) > 1 else np.zeros(2)  # q is near 1
        A, D = float(paid.mean()), float(known.mean())
        parts = [(float((w * v).var(ddof=1)) / len(v), len(v) - 1) for w, v in ((1 - q, paid), (q, known))]
        calm = combined(A + q * (D - A), parts)
        down, up = (calm.value - calm.low, (D - A) * (q - low)), (calm.high - calm.value, (D - A) * (high - q))
        error = math.hypot(calm.stderr, (D - A) * (high - low) / (2 * standard_errors(math.inf)))
        return Interval(calm.value, error, calm.value - math.hypot(*down), calm.value + math.hypot(*up))

    @property
    def share(self) -> Interval:
        """The loss paid over the progress."""
        return self.loss.scaled(1 / self.progress) if self.progress > 0 else UNKNOWN

    def _lost(self, scores: Scores) -> Bools:
        """Which runs ``[S, E]`` diverged: those that know nothing, unless they are calm and below the best rate."""
        too_small = scores.log2_eta < math.log2(self.own_eta) - _SAME
        return (scores.losses >= self.guess) & ~(too_small & ~scores.upset)


def _chance(log2_eta: Array, middle: Array, width: Array) -> Array:
    """The chance to diverge at rates ``[E]``, for middles and widths ``[M]`` of the edge of stability: ``[M, E]``."""
    chance: Array = ndtr((log2_eta - middle[:, None]) / width[:, None])
    return chance


def _likely(log2_eta: Array, lost: Bools, middle: Array, width: Array) -> Array:
    """Log likelihood ``[M]`` of starts that diverge or not ``[S, E]`` at ascending rates ``[E]``.

    The edge of each lies below the first rate at which it diverges, and above the rate before.
    """
    chance = _chance(log2_eta, middle, width)
    within = np.diff(chance, prepend=0.0, append=1.0)
    first = np.where(lost.any(1), lost.argmax(1), lost.shape[1])
    likely: Array = np.log(np.maximum(within, _SURE)) @ np.bincount(first, minlength=within.shape[1])
    return likely


# ---- The best rate against a setting other than width and depth, under one rule


Agreement = Literal["AGREES", "DIFFERS", "UNDECIDED"]

_IN_WORDS: dict[Agreement | None, str] = {
    "AGREES": "; these runs agree",
    "DIFFERS": "; these runs differ from it",
    "UNDECIDED": "; these runs leave it open",
    None: "",
}


class Variation(NamedTuple):
    """A value of one setting, in place of that of the call."""

    setting: str
    value: float


@dataclass(frozen=True)
class Assumed:
    """``best rate ~ setting^exponent``.

    Attributes:
        name: what the rule is called. kind: what it rests on. source: where it comes from, and for which networks.
    """

    exponent: float
    name: str
    kind: Literal["theorem", "empirical law", "assumption"]
    source: str

    def __str__(self) -> str:
        return f"^{self.exponent:g} ({self.name}, {self.kind}: {self.source})"


@dataclass(frozen=True)
class SettingAxis:
    """A setting that varies beside the rate.

    Attributes:
        name: of the setting. values: ascending. assumed: what is usually assumed along it, if anything is.
    """

    name: str
    values: tuple[float, ...]
    assumed: Assumed | None = None

    @property
    def variations(self) -> list[Variation]:
        """Its values, each with its name."""
        return [Variation(self.name, value) for value in self.values]

    @property
    def has_exponent(self) -> bool:
        """Whether the best rate may follow a power of it; warm-up is a share, whose usual value is 0."""
        return self.name != "warmup"


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size. Print it for the table.

    Attributes:
        rule, axis: the rule, and the setting. cells: scores by size and value of the setting.
    """

    rule: str
    axis: SettingAxis
    cells: Mapping[tuple[Size, float], Scores]

    @cached_property
    def inside(self) -> dict[tuple[Size, float], Scores]:
        """The places whose best rate lies inside of its grid: it is fitted there alone."""
        return {place: cell for place, cell in self.cells.items() if cell.has_optimum}

    @property
    def sizes(self) -> list[Size]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    def optimum(self, size: Size, value: float) -> Interval:
        """log2 of the best rate; not-a-number where it lies at an end of its grid, or nothing is learnt."""
        return self.inside[size, value].optimum() if (size, value) in self.inside else UNKNOWN

    def best(self, size: Size, value: float) -> Interval:
        """The best rate; not-a-number as above. ValueError for a value of which there are no runs."""
        if value not in self.axis.values:
            known = ", ".join(f"{x:g}" for x in self.axis.values)
            raise InputError(f"there are no runs of {self.axis.name} {value:g}. There are some of {known}.")
        return rate_of(self.optimum(size, value))

    @cached_property
    def exponent(self) -> Interval:
        """p of ``best rate ~ value^p`` over all sizes; not-a-number where fewer than two values above 0 can tell it."""
        known = {place: cell for place, cell in self.inside.items() if place[1] > 0}
        if not self.axis.has_exponent or len({value for _, value in known}) < 2:
            return UNKNOWN
        logs = [[math.log2(value), math.log2(n), math.log2(L)] for (n, L), value in known]
        return fitted_exponent(list(known.values()), logs, 0)

    @cached_property
    def moved(self) -> Interval:
        """Doublings of the best rate from the first value to the last, over the sizes at which both are known."""
        first, last = self.axis.values[0], self.axis.values[-1]
        sizes = [size for size in self.sizes if {(size, first), (size, last)} <= self.inside.keys()]
        if not sizes or first == last:
            return UNKNOWN
        cells = [self.inside[size, value] for size in sizes for value in (first, last)]
        return chosen(cells, np.tile([-1.0, 1.0], len(sizes)) / len(sizes))

    @property
    def agreement(self) -> Agreement | None:
        """Whether the exponent is the assumed one; None where nothing is assumed or the exponent is not known.

        It agrees when the 95 % interval holds the assumed exponent and ends before none and before twice of it, and
        differs when the interval leaves it out.
        """
        if self.axis.assumed is None or math.isnan(self.exponent.low):
            return None
        assumed, p = self.axis.assumed.exponent, self.exponent
        if not p.low <= assumed <= p.high:
            return "DIFFERS"
        return "AGREES" if max(p.high - assumed, assumed - p.low) < abs(assumed) else "UNDECIDED"

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per quantity: best rates and losses by size and value, and the exponent."""
        rows = list[dict[str, Any]]()
        for (n, L), value in self.cells:
            about = {"rule": self.rule, "width": n, "depth": L, self.axis.name: value}
            cell = self.cells[(n, L), value]
            rows.append(about | {"quantity": "best lr"} | rate_of(self.optimum((n, L), value)).limits)
            rows.append(about | {"quantity": "loss"} | mean(cell.scores[:, int(cell.typical.argmin())]).limits)
        last = {"rule": self.rule, "width": None, "depth": None, self.axis.name: None}
        if self.axis.has_exponent:
            return [*rows, last | {"quantity": f"exponent of {self.axis.name}"} | self.exponent.limits]
        return [*rows, last | {"quantity": "doublings from first to last"} | self.moved.limits]

    @property
    def sentence(self) -> str:
        """How the best rate follows the setting beside what is assumed, and where the loss is lowest."""
        name, assumed, values = self.axis.name, self.axis.assumed, self.axis.values
        if not self.axis.has_exponent:
            moved = f"from {name} {values[0]:g} to {values[-1]:g} the best lr moves by {signed(self.moved)} doublings."
        elif math.isnan(self.exponent.value):
            moved = f"how the best lr follows {name} is not known from these values."
        else:
            usual = f"usually assumed: {name}{assumed}{_IN_WORDS[self.agreement]}." if assumed else "no usual law."
            moved = f"the best lr follows {name}^{signed(self.exponent)} up to {values[-1]:g}; {usual}"
        parts = [moved]
        if name not in ("batch_size", "steps"):  # other steps or batches are other trainings
            parts += [self._lowest(size) for size in self.sizes]
        if unknown := self.cells.keys() - self.inside.keys():
            places = sorted(f"{name} {value:g} and {in_words(size)}" for size, value in unknown)
            parts.append(f"The best rate is not known at {'; '.join(places)}, so it was left out: give other rates.")
        return f"{self.rule}: {' '.join(parts)}"

    def __str__(self) -> str:
        return f"{self.sentence}\n{rows_as_text(self.table)}"

    def _lowest(self, size: Size) -> str:
        """Where the loss is lowest at one size, each value at its best rate, and whether that is an end of them."""
        learning = [value for value in self.axis.values if self.cells[size, value].learns]
        if not learning:
            return f"At {in_words(size)} nothing is learnt."
        value = min(learning, key=lambda value: float(self.cells[size, value].typical.min()))
        ends = {self.axis.values[0] or math.nan: "smallest", self.axis.values[-1]: "largest"}
        end = f", the {ends[value]} that was tried: the optimum may lie beyond" if value in ends else ""
        best = rate_in_words(rate_of(self.optimum(size, value)))
        return f"At {in_words(size)} the loss is lowest at {self.axis.name} {value:g} and lr {best}{end}."


# ---- What a regret does not show, and what to do
#
# A rule under which nothing is lost by tuning small may train every size badly. So the losses that rules reach at their
# own best rates are compared, by starts that chose none of these rates: the best of a grid is too low by chance.

_FAR = 3.0  # times fan-in scaling, or one over it; PyTorch's layers begin at 0.58, those for relu at 1.4
_TRIED = 4  # scales to try, at most


def _better_than(answers: Sequence[RuleTransfer], rule: str) -> tuple[str, Interval] | None:
    """Another rule whose loss at the largest size is significantly lower, each at its own best rate; and by how much.

    The other rule is chosen by the grid and judged by new starts, so that chance counts once. Rules share their seeds,
    so the test is one of pairs. What is less than learning anything at all is left out.
    """
    own = next(answer for answer in answers if answer.rule == rule)
    large = [*own.cells][-1]
    others = [answer for answer in answers if answer.rule != rule and answer.cells[large].learns]
    if not others:
        return None
    other = min(others, key=lambda answer: float(answer.cells[large].reached.mean()))
    first, second = other.reached(large), own.reached(large)
    gap = mean(first - second) if len(first) == len(second) else _apart(first, second)
    return (other.rule, gap) if gap.high < 0 and -gap.value > own.cells[large].least else None


def _apart(first: Array, second: Array) -> Interval:
    """The mean of samples less that of other, independent ones."""
    parts = [(float(own.var(ddof=1)) / len(own), len(own) - 1) for own in (first, second)]
    return combined(float(first.mean() - second.mean()), parts)


def _of_level(answers: Sequence[RuleTransfer], rule: str) -> list[str]:
    """A sentence where another rule is better than this one, and one where its largest network is no better than its
    smallest, each at its own best rate."""
    own = next(answer for answer in answers if answer.rule == rule)
    small, *_, large = own.cells
    said, grown = [], _apart(own.reached(large), own.reached(small))
    if better := _better_than(answers, rule):
        other, gap = better
        lower = Interval(-gap.value, gap.stderr, -gap.high, -gap.low).unsigned
        said.append(
            f"At {in_words(large)} {other} is better than {rule}: the loss at its own best lr is lower by {lower} nats."
        )
    if not grown.high < 0:
        half = grown.value - grown.low  # of the interval: a gain below half of it is nearer to none than to a known one
        word = "worse" if grown.low > 0 else "no better" if grown.value > -half / 2 else "not known to be better"
        said.append(
            f"Under {rule} the larger network is {word}: from {in_words(small)} to {in_words(large)} the best loss "
            f"changes by {grown} nats."
        )
    return said


def _of_initial_scale(scale: float) -> list[str]:
    """A sentence where initial weights are far from fan-in scaling, with the axis to try."""
    if not max(scale, 1 / scale) > _FAR:
        return []
    octaves = -math.log2(scale)
    steps = math.copysign(math.ceil(abs(octaves) / (_TRIED - 1)), octaves)
    values = sorted(2.0 ** (k * steps) for k in range(math.ceil(octaves / steps) + 1))
    tried = ", ".join(f"{value:g}" for value in values)
    return [
        f"Initial weights are {'small' if scale < 1 else 'large'}: inner matrices of the smallest network begin at "
        f"{scale:.2g} times fan_in^-1/2, and a rule keeps this at every size. Others may be better: try "
        f"axes={{'init_scale': ({tried})}} (in the shell --axes init_scale={tried.replace(' ', '')})."
    ]


@dataclass(frozen=True)
class Recommendation:
    """What to do.

    Attributes:
        kind: ``"use"`` a rule that transfers; take ``"more seeds"`` where the seeds leave that open; ``"tune large"``
            where every rule costs, or no guess was given to tell; ``"other rates"`` where no best rate is known.
        rule: the one of the lowest loss at the largest size, of those that the advice is about; None for other rates.
        rate: the best one, at the smallest size for ``"use"``, else at the largest.
        sentence: the same in words.
    """

    kind: Literal["use", "more seeds", "tune large", "other rates"]
    rule: str | None
    rate: Interval | None
    sentence: str


def recommended(answers: Sequence[RuleTransfer]) -> Recommendation:
    """The advice that all rules together give, of which the regrets are known."""
    regrets = {answer.rule: answer.regret for answer in answers if answer.regret is not None}
    known = [answer for answer in answers if not answer.doubt]
    if not known:
        words = "No rule can be recommended: no best rate is known at every size. Give other rates or more steps."
        return Recommendation("other rates", None, None, words)
    small, *_, large = answers[0].cells
    transferring = [answer for answer in known if answer.verdict == "TRANSFERS"]
    if transferring:
        best = min(transferring, key=lambda answer: float(regrets[answer.rule].foreign.mean()))
        rate, cost = rate_of(best.optimum(small)), _share(regrets[best.rule])
        words = (
            f"Use {best.rule} at lr = {rate_in_words(rate)}: tuned at {in_words(small)} it costs {cost} of the "
            f"progress at {in_words(large)}."
        )
        if better := _better_than(answers, best.rule):
            words = (
                f"{best.rule} transfers, but its loss is not the lowest: at lr = {rate_in_words(rate)}, tuned at "
                f"{in_words(small)}, it costs {cost} of the progress at {in_words(large)}, and {better[0]} tuned there "
                f"is better by {-better[1].value:.2g} nats. Find out why before you train at this rate, or tune "
                f"{better[0]} at the size that you train."
            )
        return Recommendation("use", best.rule, rate, words)
    uncertain = [answer for answer in known if answer.verdict == "UNCERTAIN"]
    counts = all(regret.counts_progress for regret in regrets.values())
    among = uncertain if counts and uncertain else known
    best = min(among, key=lambda answer: float(regrets[answer.rule].own.mean()))
    rate, regret = rate_of(best.optimum(large)), regrets[best.rule]
    where = f"At {in_words(large)} its best lr is {rate_in_words(rate)}"
    if not counts:
        words = f"The loss is lowest under {best.rule}. {where}. To tell what tuning small costs, give {GUESS}."
        return Recommendation("tune large", best.rule, rate, words)
    words = f"{best.rule} costs {_share(regret)} of the progress of {regret.progress:.2g} nats. {where}"
    if uncertain:
        more = f"Ask again with {2 * len(regret.grid.losses)} seeds or more steps, or tune at the size that you train."
        return Recommendation("more seeds", best.rule, rate, f"No rule is known to transfer: {words}. {more}")
    return Recommendation(
        "tune large", best.rule, rate, f"No rule transfers: {words}: tune at the size that you train."
    )


def _share(regret: Regret) -> str:
    """The share of progress that a small network's rate costs, in per cent."""
    if not math.isfinite(regret.share.value):
        return "an unknown part"
    value, low, high = (round(100 * share) for share in (regret.share.value, regret.share.low, regret.share.high))
    return f"{value} % [{low}, {high}]"
