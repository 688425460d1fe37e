"""Searches of several rules, whose trainings are done together, round after round.

So all workers have work. What decides is in ``nfd.laws.sequential``, which knows no networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from statistics import mean
from typing import Generic, NamedTuple, Protocol, TypeVar

from nfd.core.names import RuleName
from nfd.core.tables import Remarks, time_left
from nfd.families.family import Family
from nfd.laws.best_rate import Size
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer
from nfd.laws.sequential import (
    LOOKS,
    MOST_OF_SMALL,
    BudgetError,
    Decision,
    Runs,
    Search,
    Wanted,
    Which,
)
from nfd.runs.sweep import upset_in
from nfd.runs.trial import Trial
from nfd.scaling.base import instance
from nfd.scaling.plan_answer import table_of_plan
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import rule_named
from nfd.store import Record

T = TypeVar("T")
K = TypeVar("K")

# Trainings that the search of a rule begins with.
FIRST_TRAININGS = 6


class Outcomes(NamedTuple):
    """Final losses, and what they are measured from: ``guess`` and ``least`` as of ``Scores``."""

    losses: Sequence[float]
    guess: float
    least: float


class Trainer(Protocol):
    """What trains: ``nfd.transfer``."""

    def trial(
        self,
        rule: RuleName,
        size: Size,
        seed: int,
        lr: float,
        variation: tuple[str, float] | None = None,
    ) -> Trial:
        """The training of a network, with another value of one setting where one is given."""

    @property
    def workers(self) -> int:
        """How many trainings are done at once."""

    def missing(self, trials: Iterable[Trial]) -> int:
        """Count the trainings that are not there yet."""

    def trained(self, plans: Mapping[K, Sequence[Trial]], label: str) -> dict[K, list[Record]]:
        """Train all that is missing."""

    def outcomes(self, records: Sequence[Record], seeds: Sequence[Record]) -> Outcomes:
        """Read losses; ``seeds`` has a training of every seed."""


@dataclass
class Asked(Generic[T]):
    """A search that goes on, or a part of it.

    Attributes:
        name: what it is about, in words.
        asking: what it wants next, and in the end its result.
        trial: the training of a size at log2 of a rate, or at whatever it varies, from a seed.
        seeds: a training of every seed.
    """

    name: str
    search: Search
    asking: Generator[Wanted, None, T]
    trial: Callable[[Which, float, int], Trial]
    seeds: dict[Which, dict[int, Record]] = field(default_factory=dict)


class _Place(NamedTuple):
    """The trainings of one network: the most there may be, those so far, and the work of one."""

    most: int
    done: int
    cost: float


@dataclass
class Together:
    """Searches within one budget.

    Attributes:
        budget: trainings of all searches at most. keys: those that searches asked for.
        ahead: those of workers that were idle, of which searches may ask for some later.
        remarks: where it says what is known.
        later: trainings at most of searches that may follow those that run.
        times: how long trainings took, in seconds, by the place that they are of.
    """

    trainer: Trainer
    budget: float
    remarks: Remarks
    keys: set[str] = field(default_factory=set)
    ahead: set[str] = field(default_factory=set)
    later: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, asked: Mapping[K, Asked[T]]) -> dict[K, T]:
        """Run searches to their end; those that the budget interrupts have no result."""
        results = dict[K, T]()
        going_on = dict(asked)
        before = len(self.keys)
        while going_on:
            wanted = dict[K, Wanted]()
            plans = dict[K | None, list[Trial]]()
            for name, one in asked.items():
                if name not in going_on:
                    continue
                one.search.most = one.search.trained + self.budget - len(self.keys)
                try:
                    wanted[name] = next(one.asking)
                except StopIteration as end:
                    results[name] = end.value
                except BudgetError:
                    pass
                if name not in wanted:
                    one.search.end()
                    del going_on[name]
                    continue
                plans[name] = self._trials(one, wanted[name])
                self.keys |= {trial.key for trial in plans[name]}
            if not wanted:
                break
            purpose = "; ".join(dict.fromkeys(one.why for one in wanted.values()))
            self._remark(going_on.values(), purpose, self._left(asked.values(), before))
            plans[None] = self._idle(asked, wanted, plans)
            try:
                records = self.trainer.trained(plans, f"{purpose}; this step")
            except KeyboardInterrupt as stop:
                known = [f"{one.name}: {one.search.so_far}" for one in asked.values()]
                stop.add_note(f"Known so far: {'; '.join(known)}.")
                raise
            for name, batch in wanted.items():
                self._add(asked[name], batch, records[name])
        return results

    def _remark(self, going_on: Iterable[Asked[T]], purpose: str, left: str) -> None:
        """Say what searches know, what the next trainings are for, and how many may follow."""
        known = [f"{one.name}: {one.search.known}" for one in going_on if one.search.known]
        self.remarks.say(f"{'; '.join([*known, 'now'])}: {purpose}", f". {left}")

    def _left(self, asked: Iterable[Asked[T]], before: int) -> str:
        """Say how many trainings there are at most, and how long those to come take at most.

        Args:
            asked: the searches that run.
            before: the number of trainings of earlier ones.
        """
        # Rules share networks: these are counted once.
        places = dict[str, _Place]()
        for one in asked:
            for which, most in one.search.bounds.items():
                if most:
                    trial = one.trial(which, one.search.usual, 0)
                    place = _Place(most, len(one.search.runs(which).losses), trial.cost)
                    places[trial.key] = max(place, places.get(trial.key, place))
        most_of_all = before + self.later + sum(place.most for place in places.values())
        text = f"At most {min(most_of_all, self.budget):g} trainings in all"
        if math.isinf(self.budget):
            # In 200 made-up worlds half took 9 % of it or less, and none more than 28 %.
            text += " (most searches take about a tenth; budget= bounds them)"
        text += f", {len(self.keys)} so far"
        seconds = self._seconds_left(places)
        return f"{text}." if seconds is None else f"{text}, {time_left(seconds)} at most."

    def _seconds_left(self, places: Mapping[str, _Place]) -> float | None:
        """How long the trainings to come take at most; None before any was timed."""
        timed = {key: mean(self.times[key]) for key in places if key in self.times}
        if not timed:
            return None
        # Networks that were not trained yet take as long as their work says.
        per_work = sum(timed.values()) / sum(places[key].cost for key in timed)
        each = {key: timed.get(key, place.cost * per_work) for key, place in places.items()}
        left = self.later * max(each.values())
        left += sum((place.most - place.done) * each[key] for key, place in places.items())
        left = min(left, (self.budget - len(self.keys)) * max(each.values()))
        return left / self.trainer.workers

    def _idle(
        self,
        asked: Mapping[K, Asked[T]],
        wanted: Mapping[K, Wanted],
        plans: Mapping[K | None, Sequence[Trial]],
    ) -> list[Trial]:
        """List trainings for workers that would be idle: seeds that searches may want next.

        They change no answer, as a search reads only what it asks for. Within a budget there are
        none: it is for what decides.
        """
        missing = self.trainer.missing(chain.from_iterable(plans.values()))
        if not missing or math.isfinite(self.budget):
            return []
        later = dict[str, Trial]()
        for name, one in wanted.items():
            for log2_rate, seed in one.then:
                trial = asked[name].trial(one.which, log2_rate, seed)
                if trial.key not in self.keys | self.ahead:
                    later[trial.key] = trial
        trials = list(later.values())[: -missing % self.trainer.workers]
        self.ahead |= {trial.key for trial in trials}
        return trials

    def _trials(self, asked: Asked[T], wanted: Wanted) -> list[Trial]:
        trials = list[Trial]()
        for seed, log2_rate in product(wanted.seeds, wanted.log2_rates):
            trials.append(asked.trial(wanted.which, log2_rate, seed))
        return trials

    def _add(self, asked: Asked[T], wanted: Wanted, records: Sequence[Record]) -> None:
        """Give a search what it wanted."""
        runs = asked.search.runs(wanted.which)
        seeds = asked.seeds.setdefault(wanted.which, {})
        place = asked.trial(wanted.which, asked.search.usual, 0).key
        self.times.setdefault(place, []).extend(record.seconds for record in records)
        for record in records:
            seeds.setdefault(record.config["seed"], record)
        losses, runs.guess, runs.least = self.trainer.outcomes(records, list(seeds.values()))
        places = product(wanted.seeds, wanted.log2_rates)
        for (seed, rate), loss, record in zip(places, losses, records, strict=True):
            runs.losses[rate, seed] = (loss, upset_in(record))


def looks_of(seeds: int | None) -> list[int]:
    """Seeds of the large network at which a search looks, the last one as asked for."""
    if seeds is None:
        return list(LOOKS)
    looks = [count for count in LOOKS if count < seeds]
    # Every look adds to the chance of a false verdict: they are twice as far apart.
    further = 2 * LOOKS[-1]
    while further < seeds:
        looks.append(further)
        further *= 2
    return [*looks, seeds]


def searched(
    together: Together,
    families: Mapping[RuleName, Family],
    sizes: Sequence[Size],
    looks: Sequence[int],
    with_middle: bool,
) -> list[RuleTransfer]:
    """Search for the verdict of every rule, from the smallest size to the largest.

    ``with_middle`` says whether the best rates of the sizes between are searched, too.
    """
    small, *middle, large = sizes
    if with_middle:
        together.later += len(families) * len(middle) * MOST_OF_SMALL
    first_rules = sharing(families, small)
    searches = dict[RuleName, Asked[Decision]]()
    for rule, family in families.items():
        usual = math.log2(family.law.default_lr)
        search = Search(Runs(math.nan), Runs(math.nan), usual, TOLERANCE, looks=looks)
        places: dict[Which, tuple[RuleName, Size]] = {
            "small": (first_rules[rule], small),
            "large": (rule, large),
        }
        trial = partial(at_rate, together.trainer, places)
        searches[rule] = Asked(rule, search, search.decide(), trial)
    decisions = together.run(searches)

    between = dict[tuple[RuleName, Size], Asked[float]]()
    for rule, size in product(families, middle if with_middle else []):
        if not searches[rule].search.large.losses:
            continue
        search = Search(Runs(math.nan), Runs(math.nan), decisions[rule].at, TOLERANCE)
        asking = search.best_of_small(f"the best rate at {size[0]} wide, {size[1]} deep")
        trial = partial(at_rate, together.trainer, {"small": (rule, size)})
        between[rule, size] = Asked(rule, search, asking, trial)
    if with_middle:
        together.later -= len(families) * len(middle) * MOST_OF_SMALL
    together.run(between)

    answers = list[RuleTransfer]()
    for rule, asked in searches.items():
        runs = {small: asked.search.small}
        runs |= {size: one.search.small for (name, size), one in between.items() if name == rule}
        runs[large] = asked.search.large
        cells = {size: one.everything() for size, one in runs.items() if one.losses}
        decision = decisions[rule]
        answers.append(RuleTransfer(rule, cells, decision.regret, decision=decision))
    return answers


def at_rate(
    trainer: Trainer,
    places: Mapping[Which, tuple[RuleName, Size]],
    which: Which,
    log2_rate: float,
    seed: int,
    variation: tuple[str, float] | None = None,
) -> Trial:
    """The training of a size at log2 of a rate."""
    # All digits, but for the error of the logarithm: 0.001 is stored as 0.001.
    lr = float(f"{math.pow(2, log2_rate):.12g}")
    return trainer.trial(*places[which], seed, lr, variation)


def sharing(families: Mapping[RuleName, Family], size: Size) -> dict[RuleName, RuleName]:
    """Return for every rule the first one whose networks of this size are the same.

    At the base size the plans of rules often coincide; then networks of one seed are equal. A rule
    that leaves initial weights to the model's own code draws others than one that draws them.
    """
    first_rules = dict[RuleName, RuleName]()
    planned = list[tuple[RuleName, object]]()
    for rule, family in families.items():
        first_rules[rule] = rule
        # Networks of the paper have the scales of their rule in their own forward pass.
        if told_by(instance(family.make_model, *size)) is not None:
            continue
        plan = family.plan(*size)
        network = (rule_named(family.rule).scales_width, table_of_plan(plan), plan.multipliers)
        for other, its_network in planned:
            if its_network == network:
                first_rules[rule] = other
                break
        else:
            planned.append((rule, network))
    return first_rules
