"""Which trainings decide whether the best learning rate of a small network serves a large one.

Trainings are asked for one batch after another, each where it decides most:

1. The small network, which is cheap: three learning rates four octaves apart in all, two seeds. The
   best one is walked after until it lies inside, the step is halved there, and seeds are added
   until the best rate is known to ``KNOWN`` doublings.
2. The large network at the small one's best rate and an octave to either side, two seeds; it is
   walked after in the same way.
3. Looks, after 2, 3, 5, 8 and 12 seeds. Only the small network's rate and its close rivals take
   more seeds. With L the loss of the large network, paired by seed, and rates over its progress:

   - TRANSFERS, if ``L(small's rate) - L(rival)`` is below the tolerance for *every* close rival, by
     the upper limit of its interval. That is an intersection of tests, so that seeds may choose the
     rivals and judge them.
   - COSTS, if it is above the tolerance for the best rate of the large network, by the lower limit.

   Every look has the one-sided level ``LEVEL``. Where the regret is exactly the tolerance, the
   worst case, five looks make a false verdict with a chance of .027 for normal noise, .038 for
   exponential noise; a sixth at 24 seeds makes it .033 and .056 (200,000 draws).
4. Where only the chance to diverge keeps a verdict open, guards show where the edge of stability
   lies: the small network is trained at its own edge, the large one beyond the small one's rate.

A search stops without a verdict where the last look is not expected to decide.

Source: Pocock 1977 (levels of looks); Berger 1982 (intersections of tests).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from nfd.core.estimates import UNKNOWN, Interval, combined, standard_errors
from nfd.core.words import number, plural
from nfd.laws.best_rate import LEARNT, Scores, rounded
from nfd.laws.bowl import Array, Bools
from nfd.laws.regret import Regret, edge_chance, edge_log_likelihood

Which = Literal["small", "large"]

LOOKS = (2, 3, 5, 8, 12)  # seeds
LEVEL = 0.008  # one-sided, of every look
FIRST_SEEDS = 1
KNOWN = 0.25  # doublings: standard error of the small network's best rate
SMALL_SEEDS = 8
# Doublings within which a rate that was trained stands for the best one.
NEAR_ENOUGH = 0.35
# Of the progress: rates that are worse than the small network's by more are no rivals.
BEHIND = 0.02
# Degrees of freedom that the noise of near rates, of both sizes, adds to that of a pair. Where the
# pooled variance is half the true one, the level of a look is .054 in place of .01.
PRIOR_FREEDOM = 6.0
# Steps of a walk at most: each adds a rate at the end where the best one lies.
_WALK = 8
# Guards above the small network's rate, in doublings, and seeds of the small network at its edge.
_GUARDS = (0.5, 1.0, 2.0)
_EDGE_SEEDS = 10
_MOST_GUARDS = 2  # at one look
# Trainings of a small network at most: for its best rate, and for its edge of stability, with five
# rates of two seeds on the way up and five of all seeds to halve the gap.
MOST_OF_SMALL = SMALL_SEEDS * (3 + _WALK + 2)
_MOST_OF_EDGE = 5 * (2 + _EDGE_SEEDS)
# Of the expected half length of the interval at the last look: nearer to the tolerance than this, a
# search ends.
_FUTILE = 0.6
# Of the way from the regret to the tolerance, where the end of an interval decides.
_ROOM = 0.8
# Doublings: the widest spread of the edge of stability over seeds, and the least.
_WIDEST_EDGE = 1.0
_NARROWEST_EDGE = 0.05
_BEYOND = 3.0


@dataclass(frozen=True)
class Wanted:
    """Trainings that a search asks for: rates times seeds of one size, and what they are for.

    Attributes:
        then: rates and seeds that it wants next if these do not decide, the likeliest first.
    """

    which: Which
    log2_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    why: str
    then: tuple[tuple[float, int], ...] = ()


@dataclass
class Runs:
    """The trainings of one size under one rule.

    Attributes:
        guess: the loss that divergence counts as. least: as of ``Scores``.
        losses: loss, and whether training was upset, by log2 of the learning rate and seed.
    """

    guess: float
    least: float = LEARNT
    losses: dict[tuple[float, int], tuple[float, bool]] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """log2 of all rates that were trained, ascending."""
        return sorted({rate for rate, _ in self.losses})

    def seeds(self, rates: Iterable[float]) -> list[int]:
        """The seeds that were trained at all of these rates."""
        seeds = [{seed for rate, seed in self.losses if rate == one} for one in rates]
        return sorted(set.intersection(*seeds))

    def missing(self, rates: Iterable[float], seeds: Iterable[int]) -> int:
        """Count the trainings that are not there yet."""
        seeds = list(seeds)
        return sum((rate, seed) not in self.losses for rate in rates for seed in seeds)

    def scores(self, rates: Sequence[float] = ()) -> Scores:
        """The scores of the seeds that these rates share, by default all rates."""
        rates = list(rates) or self.rates
        seeds = self.seeds(rates)
        losses = np.array([[self.losses[rate, seed][0] for rate in rates] for seed in seeds])
        upset = np.array([[self.losses[rate, seed][1] for rate in rates] for seed in seeds])
        names = tuple(map(str, seeds))
        return Scores(np.array(rates), losses, upset, self.guess, names, self.least)

    def everything(self) -> Scores:
        """The scores of all trainings, not-a-number where a seed was not trained at a rate."""
        rates = self.rates
        seeds = sorted({seed for _, seed in self.losses})
        losses = np.full((len(seeds), len(rates)), math.nan)
        upset = np.zeros(losses.shape, np.bool_)
        for (rate, seed), outcome in self.losses.items():
            place = seeds.index(seed), rates.index(rate)
            losses[place], upset[place] = outcome
        return Scores(np.array(rates), losses, upset, self.guess, least=self.least)

    def groups(self) -> list[Scores]:
        """The scores of seeds that were trained at the same rates, one for each set of rates."""
        groups = defaultdict[tuple[float, ...], list[int]](list)
        for seed in sorted({seed for _, seed in self.losses}):
            rates = tuple(rate for rate in self.rates if (rate, seed) in self.losses)
            groups[rates].append(seed)
        scores = list[Scores]()
        for rates, seeds in groups.items():
            cells = [[self.losses[rate, seed] for rate in rates] for seed in seeds]
            numbers = np.array(cells, float)
            scores.append(Scores(np.array(rates), numbers[..., 0], numbers[..., 1] > 0, self.guess))
        return scores


@dataclass(frozen=True)
class SequentialRegret(Regret):
    """What the large network loses at the small one's best rate, at a look of a search.

    Attributes:
        interval: the loss paid over the progress, at the level of a look. progress: in nats.
    """

    interval: Interval = UNKNOWN
    progress: float = math.nan

    @property
    def share(self) -> Interval:
        return self.interval

    @property
    def loss(self) -> Interval:
        return self.interval.scaled(self.progress) if self.progress > 0 else UNKNOWN


@dataclass(frozen=True)
class Decision:
    """How a search ended.

    Attributes:
        at: log2 of the small network's best rate. verdict: TRANSFERS, COSTS or UNCERTAIN.
        regret: None where nothing could be compared.
        seeds_needed: of the large network, for a verdict that is still open; None where nobody can
            tell.
        reason: why it is open, in words; empty with a verdict.
        compared: how many rates of the large network the last look compared.
    """

    at: float
    verdict: Literal["TRANSFERS", "COSTS", "UNCERTAIN"]
    regret: SequentialRegret | None
    seeds_needed: int | None = None
    reason: str = ""
    compared: int = 0


BUDGET_SPENT = "the budget is spent"
Asking = Generator[Wanted, None, None]


class BudgetError(Exception):
    """What a search wants next is more than it may still train."""


@dataclass
class Search:
    """A search for the verdict of one rule.

    Attributes:
        small, large: the trainings so far; whoever runs the search adds those that it asks for.
        usual: log2 of the optimizer's usual learning rate, where it begins.
        tolerance: the share of the progress that counts as no regret.
        most: trainings at most, of both sizes.
        looks: seeds of the large network at which it looks.
        known: what it knows so far, in words.
        bounds: trainings of each size at most, in all, by what is known so far.
    """

    small: Runs
    large: Runs
    usual: float
    tolerance: float
    most: float = math.inf
    looks: Sequence[int] = field(default_factory=lambda: LOOKS)
    known: str = ""
    bounds: dict[Which, int] = field(default_factory=dict)

    def decide(self) -> Generator[Wanted, None, Decision]:
        """Ask for trainings, batch after batch, and return the decision."""
        try:
            return (yield from self._decide())
        except BudgetError:
            cell = self.small.everything()
            at = float(cell.log2_eta[cell.typical.argmin()])
            return Decision(at, "UNCERTAIN", None, reason=BUDGET_SPENT)

    def _decide(self) -> Generator[Wanted, None, Decision]:
        self.bound_large(3 + _WALK, len(self.looks))
        at = yield from self.best_of_small(reserve=_MOST_OF_EDGE)
        self.known = f"the small network's best rate is about {number(2**at)}"
        cell = self.small.scores()
        if not cell.learns:
            return Decision(at, "UNCERTAIN", None, reason="the small network learns nothing")
        why = "where the large network's best rate lies"
        first = [at - 1, at, at + 1]
        later = [(rate, seed) for seed in range(self.looks[0]) for rate in first]
        yield from self.ask("large", first, range(FIRST_SEEDS), why, later)
        yield from self._walk("large", 1.0, FIRST_SEEDS, why)
        self.bound_large(len(self.large.rates), len(self.looks))
        if not self.large.scores().learns:
            return Decision(at, "UNCERTAIN", None, reason="the large network learns nothing")
        return (yield from _Looks(self, at).decide())

    def runs(self, which: Which) -> Runs:
        """The trainings of a size."""
        return self.small if which == "small" else self.large

    @property
    def trained(self) -> int:
        """The number of trainings so far."""
        return len(self.small.losses) + len(self.large.losses)

    @property
    def so_far(self) -> str:
        """What it knows so far, in words; before that the best of the rates that were tried."""
        rates = self.small.rates
        if self.known or not self.small.seeds(rates):
            return self.known
        best = rates[int(self.small.scores().typical.argmin())]
        return f"of {len(rates)} rates of the small network {number(2**best)} is the best so far"

    def end(self) -> None:
        """Note that it asks for nothing more."""
        self.bounds = {"small": len(self.small.losses), "large": len(self.large.losses)}

    def bound_large(self, rates: int, looks: int) -> None:
        """Bound the large network's trainings, by its rates so far and the looks to come."""
        # Every look may choose a rate at first and after each guard.
        more = looks * (1 + _MOST_GUARDS) + len(_GUARDS)
        self.bounds["large"] = self.looks[-1] * (rates + more)

    def ask(
        self,
        which: Which,
        rates: Sequence[float],
        seeds: Iterable[int],
        why: str,
        then: Iterable[tuple[float, int]] = (),
    ) -> Asking:
        """Ask for what is missing of rates times seeds; ``BudgetError`` where that is too much."""
        seeds = tuple(seeds)
        missing = self.runs(which).missing(rates, seeds)
        if missing > self.most - self.trained:
            raise BudgetError
        if missing:
            yield Wanted(which, tuple(rates), seeds, why, tuple(then))

    def _walk(self, which: Which, step: float, seeds: int, why: str) -> Asking:
        """Add rates at the end where the best one lies, until it lies inside."""
        runs = self.runs(which)
        for _ in range(_WALK):
            cell = runs.scores()
            if cell.has_optimum:
                return
            stride = step if cell.edge > 0 else -step
            end = runs.rates[-1] if stride > 0 else runs.rates[0]
            later = [(end + 2 * stride, seed) for seed in range(seeds)]
            yield from self.ask(which, [end + stride], range(seeds), why, later)

    def best_of_small(
        self, why: str = "the small network's best rate", reserve: int = 0
    ) -> Generator[Wanted, None, float]:
        """Find log2 of the small network's best learning rate.

        ``reserve`` are trainings of the small network that may follow.
        """
        small = self.small
        coarse = [self.usual - 2, self.usual, self.usual + 2]
        self.bounds["small"] = MOST_OF_SMALL + reserve
        yield from self.ask("small", coarse, range(2), why, [(rate, 2) for rate in coarse])
        yield from self._walk("small", 2.0, 2, why)
        self.bounds["small"] = SMALL_SEEDS * (len(small.rates) + 2) + reserve
        best = small.rates[int(small.scores().typical.argmin())]
        if not small.scores().learns:
            return best
        # At least three seeds are trained at every rate.
        later = [(rate, 2) for rate in [best - 1, best + 1, *small.rates]]
        yield from self.ask("small", [best - 1, best + 1], range(2), why, later)
        for count in range(2, SMALL_SEEDS + 1):
            next_seed = min(count, SMALL_SEEDS - 1)
            later = [(rate, next_seed) for rate in small.rates]
            yield from self.ask("small", small.rates, range(count), why, later)
            cell = small.scores()
            near = np.flatnonzero(cell.near)
            around = slice(max(int(near[0]) - 1, 0), int(near[-1]) + 2)
            bowl = small.scores(cell.log2_eta[around].tolist())
            if count >= 3 and bowl.optimum().stderr < KNOWN:
                break
        self.bounds["small"] = len(small.losses) + reserve
        return math.log2(rounded(bowl.best()))

    def find_edge(self, at: float) -> Asking:
        """Train the small network at its edge of stability: halve the gap between calm and lost."""
        small = self.small
        why = "where training becomes unstable"
        while small.rates[-1] < at + 4 and self._lost_share(small.rates[-1]) < 0.5:
            yield from self.ask("small", [small.rates[-1] + 1], range(2), why)
        lost = [rate for rate in small.rates if rate > at and self._lost_share(rate) >= 0.5]
        if not lost:
            return
        above = lost[0]
        calm = [rate for rate in small.rates if rate < above and self._lost_share(rate) < 0.5]
        below = max(calm, default=above - 1)
        for _ in range(3):
            yield from self.ask("small", [below, above], range(_EDGE_SEEDS), why)
            if above - below <= 0.3:
                return
            middle = (above + below) / 2
            yield from self.ask("small", [middle], range(_EDGE_SEEDS), why)
            if self._lost_share(middle) >= 0.5:
                above = middle
            else:
                below = middle

    def _lost_share(self, rate: float) -> float:
        """The share of the small network's seeds that learn nothing at a rate."""
        seeds = self.small.seeds([rate])
        lost = [self.small.losses[rate, seed][0] >= self.small.guess for seed in seeds]
        return sum(lost) / len(lost)


# ---- the looks at the large network


@dataclass
class _Looks:
    """The looks of a search, after the large network's first trainings.

    Attributes:
        at: log2 of the small network's best rate.
        settled: rivals that an earlier look has ruled out.
        guards: how many guards were trained.
        last: what the last look says.
    """

    search: Search
    at: float
    settled: set[float] = field(default_factory=set)
    guards: int = 0
    last: Decision | None = None

    @property
    def large(self) -> Runs:
        """The trainings of the large network."""
        return self.search.large

    def decide(self) -> Generator[Wanted, None, Decision]:
        """Look after more and more seeds until the verdict is clear."""
        for place, count in enumerate(self.search.looks):
            self.search.bound_large(len(self.large.rates), len(self.search.looks) - place)
            try:
                look = yield from self._look_after(count)
            except BudgetError:
                return self._open(BUDGET_SPENT)
            decision = self._judged(look)
            if decision.verdict != "UNCERTAIN":
                return decision
            if place and is_futile(look.limits[look.chosen].share, count, self.search):
                return self._open("the cost is about the limit")
            self.settled |= look.below(self.search.tolerance)
        return self._open("these seeds do not tell")

    def _look_after(self, count: int) -> Generator[Wanted, None, _Look]:
        """Look after so many seeds, with guards where only the chance to diverge is open."""
        tries = 0
        while True:
            chosen, is_best = yield from self._best()
            close = self._close(chosen)
            why = f"whether the small network's rate costs the large one ({plural(count, 'seed')})"
            rates = [self.at, *close]
            next_count = min((look for look in self.search.looks if look > count), default=0)
            later = [(rate, seed) for seed in range(count, next_count) for rate in rates]
            yield from self.search.ask("large", rates, range(count), why, later)
            look = self._look(chosen, close, is_best)
            self.last = self._judged(look)
            self.search.known = self._known()
            if self.last.verdict != "UNCERTAIN" or tries == _MOST_GUARDS:
                return look
            if not look.is_open_by_chance(self.search.tolerance):
                return look
            yield from self._guard(count)
            tries += 1

    def _known(self) -> str:
        """What the last look says, in words."""
        if self.last is None or self.last.regret is None:
            return self.search.known
        share = self.last.regret.share.scaled(100)
        seeds = plural(len(self.last.regret.new.losses), "seed")
        return (
            f"at the small network's best rate, {number(2**self.at)}, the large one gives up "
            f"{share.in_words(' %', 100 * self.search.tolerance)} by {seeds}"
        )

    def _best(self) -> Generator[Wanted, None, tuple[float, bool]]:
        """Choose the trained rate that stands for the large network's best one.

        Where it is the small network's, the rate is the best of the others, and the second value
        True.
        """
        judged = self._judged_rates
        cell = self.large.scores(judged)
        best = float(cell.log2_eta[cell.typical.argmin()])
        if cell.has_optimum:
            best = cell.best()
        chosen = min(judged, key=lambda rate: abs(rate - best))
        if abs(chosen - best) > NEAR_ENOUGH:
            chosen = math.log2(rounded(best))
            why = "the large network's best rate"
            yield from self.search.ask("large", [chosen], range(FIRST_SEEDS), why)
        if chosen != self.at:
            return chosen, False
        rivals = [rate for rate in judged if rate != self.at]
        return min(rivals, key=self._behind), True

    @property
    def _judged_rates(self) -> list[float]:
        """Rates of the large network without the nearest guard, which is no rival."""
        return [rate for rate in self.large.rates if rate != self.at + _GUARDS[0]]

    def _behind(self, rate: float) -> float:
        """How much worse than the small network's rate one is, over the progress."""
        of_at, of_rate = self.large.scores([self.at, rate]).scores.mean(0)
        lowest = float(self.large.scores(self._judged_rates).typical.min())
        return float(of_rate - of_at) / (self.large.guess - lowest)

    def _close(self, chosen: float) -> list[float]:
        """The rivals that have to be ruled out for TRANSFERS, the chosen one among them."""
        close = {chosen}
        if self._behind(chosen) > -self.search.tolerance:
            for rate in self._judged_rates:
                is_rival = rate != self.at and rate not in self.settled
                if is_rival and self._behind(rate) < BEHIND:
                    close.add(rate)
        return sorted(close)

    def _look(self, chosen: float, close: Sequence[float], is_best: bool) -> _Look:
        limits = {rate: paired(self.search, self.at, rate) for rate in close}
        behind = self._behind(chosen)
        # Rivals were left out where the chosen rate is far better.
        is_whole = len(close) > 1 or behind > -self.search.tolerance
        return _Look(chosen, limits, is_whole, is_best)

    def _judged(self, look: _Look) -> Decision:
        """The verdict of a look."""
        tolerance = self.search.tolerance
        of_chosen = look.limits[look.chosen]
        share = of_chosen.share
        against = look.chosen
        if look.is_best and share.value <= 0:
            # Against itself the best rate has no regret; another one may still be better.
            share = Interval(0.0, share.stderr, 0.0, max(0.0, *look.uppers.values()))
            against = self.at
        best = self.at if look.is_best else look.chosen
        share = replace(share, high=share.high + self._between(best))
        verdict: Literal["TRANSFERS", "COSTS", "UNCERTAIN"] = "UNCERTAIN"
        if of_chosen.share.low > tolerance:
            verdict = "COSTS"
        elif look.is_whole and max(share.high, *look.uppers.values()) < tolerance:
            verdict = "TRANSFERS"
        elif share.value < tolerance:
            # Another rival may be better than the chosen one.
            share = replace(share, high=max(share.high, *look.uppers.values()))
        if not math.isfinite(share.high - share.low):
            share = UNKNOWN
        regret = SequentialRegret(
            self.large.scores([self.at, against]),
            self.large.scores(self._judged_rates),
            share,
            of_chosen.progress,
        )
        return Decision(self.at, verdict, regret, compared=1 + len(look.limits))

    def _between(self, best: float) -> float:
        """How much better a rate between those that were trained may be, over the progress.

        The best rate is known to ``NEAR_ENOUGH`` doublings; the loss rises about it as it does to
        the flatter side. Without it, the interval held the true regret .87 of the time.
        """
        cell = self.large.scores(self._judged_rates)
        progress = self.large.guess - float(cell.typical.min())
        rises = list[float]()
        for side in (-1, 1):
            beyond = [rate for rate in self._judged_rates if side * (rate - best) > NEAR_ENOUGH]
            if beyond:
                rate = min(beyond, key=lambda one: abs(one - best))
                of_best, of_rate = self.large.scores([best, rate]).scores.mean(0)
                rise = float(of_rate - of_best) / progress
                rises.append(rise * (NEAR_ENOUGH / (rate - best)) ** 2)
        return max(0.0, min(rises, default=0.0))

    def _guard(self, count: int) -> Asking:
        """Train a guard above the small network's rate, and its edge before the first one."""
        if not self.guards:
            yield from self.search.find_edge(self.at)
        above = _GUARDS[min(self.guards, len(_GUARDS) - 1)]
        seeds = range(min(count, LOOKS[0]))
        self.guards += 1
        why = "where training becomes unstable"
        yield from self.search.ask("large", [self.at + above], seeds, why)

    def _open(self, reason: str) -> Decision:
        """The last look without a verdict, and how many seeds would make one."""
        if self.last is None or self.last.regret is None:
            return Decision(self.at, "UNCERTAIN", None, reason=reason)
        seeds = len(self.last.regret.new.losses)
        needed = seeds_needed(self.last.regret.share, seeds, self.search.tolerance)
        return replace(self.last, seeds_needed=needed, reason=reason)


def is_futile(share: Interval, count: int, search: Search) -> bool:
    """Whether the last look is not expected to decide, by the regret after so many seeds."""
    end = share.high if share.value < search.tolerance else share.low
    half = abs(end - share.value) * math.sqrt(count / search.looks[-1])
    return abs(share.value - search.tolerance) < _FUTILE * half


def seeds_needed(share: Interval, seeds: int, limit: float) -> int | None:
    """About how many seeds would decide, by the regret after so many; None if nobody can tell."""
    # The end of the interval that has to move to the other side of the limit.
    end = share.high if share.value < limit else share.low
    apart = _ROOM * abs(limit - share.value)
    if apart == 0 or not math.isfinite(end):
        return None
    return max(seeds + 1, math.ceil(seeds * ((end - share.value) / apart) ** 2))


@dataclass(frozen=True)
class _Limits:
    """The regret against one rival over the progress, at the level of a look.

    Attributes:
        share: with the chance to diverge. calm_high: its upper limit without that chance.
        progress: in nats.
    """

    share: Interval
    calm_high: float
    progress: float


@dataclass(frozen=True)
class _Look:
    """What a look shows.

    Attributes:
        chosen: log2 of the rate that stands for the large network's best one.
        limits: by rival. is_whole: whether every close rival is among them.
        is_best: whether the small network's rate is the best of the large one.
    """

    chosen: float
    limits: dict[float, _Limits]
    is_whole: bool
    is_best: bool

    @cached_property
    def uppers(self) -> dict[float, float]:
        """Upper limits by rival: with the chance to diverge against the best rate only."""
        uppers = {rate: limits.calm_high for rate, limits in self.limits.items()}
        if not self.is_best:
            uppers[self.chosen] = self.limits[self.chosen].share.high
        return uppers

    def is_open_by_chance(self, tolerance: float) -> bool:
        """Whether only the chance to diverge keeps the verdict open."""
        limits = self.limits[self.chosen]
        return (
            not self.is_best
            and limits.calm_high < limits.share.high - BEHIND
            and limits.share.value < tolerance
        )

    def below(self, tolerance: float) -> set[float]:
        """Rivals that this look rules out."""
        return {
            rate for rate, high in self.uppers.items() if high < tolerance and rate != self.chosen
        }


# ---- the regret against one rival


def paired(search: Search, at: float, rival: float) -> _Limits:
    """Estimate the regret of one rate against another by seeds that were trained at both.

    As ``nfd.laws.regret``: ``(1 - q) A + q D`` with q the difference of chances to diverge. The
    variance of a pair is averaged with that of near rates of both sizes.
    """
    large = search.large
    new = large.scores([at, rival])
    lost = _lost(new, rival)
    trains = ~lost[:, 1]
    trains_at_both = trains & ~lost[:, 0]
    progress = large.guess - float(new.scores[:, 1].mean())
    unknown = Interval(math.nan, math.nan, -math.inf, math.inf)
    if int(trains.sum()) < 2 or progress <= large.least:
        return _Limits(unknown, math.inf, progress)

    q, q_low, q_high = _chance_apart(search, at, rival)
    learnt = large.guess - new.scores[trains, 1]
    paid = np.zeros(2)
    if int(trains_at_both.sum()) > 1:
        paid = (new.scores[:, 0] - new.scores[:, 1])[trains_at_both]
    A = float(paid.mean())
    D = float(learnt.mean())
    of_near, freedom_of_near = near_variance(search, (large, search.small))
    # Where no two rates are near, there is nothing to average with.
    prior = PRIOR_FREEDOM if freedom_of_near else 0.0
    variance, freedom = pair_variance(paid, of_near, prior)
    parts = [
        ((1 - q) ** 2 * variance / len(paid), freedom),
        (q * q * float(learnt.var(ddof=1)) / len(learnt), len(learnt) - 1),
    ]
    calm = combined(A + q * (D - A), parts, LEVEL)
    down = math.hypot(calm.value - calm.low, (D - A) * (q - q_low))
    up = math.hypot(calm.high - calm.value, (D - A) * (q_high - q))
    whole = Interval(calm.value, calm.stderr, calm.value - down, calm.value + up)
    return _Limits(whole.scaled(1 / progress), calm.high / progress, progress)


def _lost(scores: Scores, best: float) -> Bools:
    """Which trainings diverged: they know nothing, and are not calm below the best rate."""
    too_small = scores.log2_eta < best - 1e-6
    lost: Bools = (scores.losses >= scores.guess) & ~(too_small & ~scores.upset)
    return lost


def pair_variance(paid: Array, of_near: float, prior: float) -> tuple[float, float]:
    """The variance of a pair's differences ``[S]``, and its degrees of freedom.

    Averaged with the variance of near rates, which counts as ``prior`` degrees of freedom.
    """
    freedom = len(paid) - 1 + prior
    of_pair = float(paid.var(ddof=1)) * (len(paid) - 1)
    return (of_pair + prior * of_near) / freedom, freedom


def near_variance(search: Search, pooled: Sequence[Runs]) -> tuple[float, float]:
    """Variance of the difference of two near rates of one seed, in nats of the large network.

    With its degrees of freedom. The small network's counts in proportion to its progress.
    """
    progress = search.large.guess - float(search.large.scores().typical.min())
    total = 0.0
    freedom = 0
    for runs in pooled:
        cell = runs.scores()
        near = cell.near
        if int(near.sum()) < 2:
            continue
        own_progress = max(runs.guess - float(cell.typical.min()), LEARNT)
        # Noise that a small network has before it learns much does not grow with progress.
        scores = cell.scores[:, near] * min(1.0, progress / own_progress)
        # Neither seeds nor rates as such are noise.
        left = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
        total += 2 * float(np.square(left).sum())
        freedom += (len(left) - 1) * (int(near.sum()) - 1)
    return total / max(freedom, 1), freedom


def _chance_apart(search: Search, at: float, rival: float) -> tuple[float, float, float]:
    """The chance to diverge at one rate less the chance at another: likeliest, and limits.

    Every seed has an edge of stability, normal over log2 of the rate. The small network shares how
    widely edges scatter, and not where they lie: its likelihood is profiled over its own middle.
    """
    widths = np.geomspace(_NARROWEST_EDGE, _WIDEST_EDGE, 16)
    groups = [(scores, _lost(scores, rival)) for scores in search.large.groups()]
    lost_rates = [at, rival]
    for scores, lost in groups:
        lost_rates += scores.log2_eta[lost.any(0)].tolist()
    middles = np.arange(min(lost_rates) - _BEYOND, search.large.rates[-1] + _BEYOND, 0.1)
    edges = middles.repeat(len(widths)), np.tile(widths, len(middles))
    likely: Array = np.zeros(len(edges[0]))
    for scores, lost in groups:
        likely = likely + edge_log_likelihood(scores.log2_eta, lost, *edges)

    places = at + np.arange(-5, 7, 0.1)
    own_edges = places.repeat(len(widths)), np.tile(widths, len(places))
    of_small: Array = np.zeros(len(own_edges[0]))
    for scores in search.small.groups():
        of_small = of_small + edge_log_likelihood(scores.log2_eta, _lost(scores, at), *own_edges)
    likely = likely + np.tile(of_small.reshape(len(places), -1).max(0), len(middles))

    chance = edge_chance(np.array([at, rival]), *edges)
    apart = chance[:, 0] - chance[:, 1]
    within = apart[likely > likely.max() - standard_errors(math.inf, LEVEL) ** 2 / 2]
    return float(apart[likely.argmax()]), float(within.min()), float(within.max())
