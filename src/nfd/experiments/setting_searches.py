"""Searches for the best value of further settings, and whether it serves the large network.

What decides is in ``nfd.laws.setting_search``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

from nfd.core.names import RuleName
from nfd.experiments.transfer_search import Asked, Together, at_rate
from nfd.families.family import Family
from nfd.laws.best_rate import Size
from nfd.laws.rate_against import RateAgainst
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer
from nfd.laws.sequential import Decision, Runs, Search, Which
from nfd.laws.setting_search import decide_setting
from nfd.runs.trial import Trial


class Axis(NamedTuple):
    """A setting under a rule."""

    rule: RuleName
    setting: str


@dataclass(frozen=True)
class SettingSearches:
    """Searches along axes, under the rules whose learning rate transfers.

    Attributes:
        small, large: the sizes. axes: settings with their values. looks: seeds at which to look.
    """

    together: Together
    families: Mapping[RuleName, Family]
    small: Size
    large: Size
    axes: Mapping[str, Sequence[float]]
    looks: Sequence[int]

    def added_to(self, answers: Sequence[RuleTransfer]) -> list[RuleTransfer]:
        """Search along every axis, and add what is found to the answers."""
        # Where the rate does not transfer, a value would be judged at a wrong one.
        rules = [one for one in self.families if _transfers(answers, one)]
        of_values = len(rules) * sum(map(len, self.axes.values())) * self.looks[-1]
        self.together.later = of_values
        searches = dict[tuple[Axis, float], Asked[float]]()
        for rule, setting in product(rules, self.axes):
            axis = Axis(rule, setting)
            for value in self.axes[setting]:
                searches[axis, value] = self._for_rate(axis, value)
        best_rates = self.together.run(searches)

        settings = dict[Axis, RateAgainst]()
        compared = dict[Axis, Asked[Decision]]()
        for rule, setting in product(rules, self.axes):
            axis = Axis(rule, setting)
            values = self.axes[setting]
            if any((axis, value) not in best_rates for value in values):
                # The budget ended one of them.
                continue
            small = [searches[axis, value].search.small for value in values]
            cells = {
                (self.small, value): runs.everything()
                for value, runs in zip(values, small, strict=True)
            }
            settings[axis] = RateAgainst(rule, setting, cells, largest=self.large)
            log2_rates = [best_rates[axis, value] for value in values]
            search = Search(_at_best(small), Runs(math.nan), 0.0, TOLERANCE, looks=self.looks)
            if len(search.small.rates) > 1:
                compared[axis] = self._for_value(axis, settings[axis], search, log2_rates)
        self.together.later = 0
        for axis, decision in self.together.run(compared).items():
            settings[axis] = replace(settings[axis], decision=decision)
        return [_with(answer, settings) for answer in answers]

    def _for_rate(self, axis: Axis, value: float) -> Asked[float]:
        """A search for the small network's best rate at a value."""
        usual = math.log2(self.families[axis.rule].law.default_lr)
        search = Search(Runs(math.nan), Runs(math.nan), usual, TOLERANCE)
        asking = search.best_of_small(f"the best rate at {axis.setting} {value:g}")
        places: dict[Which, tuple[RuleName, Size]] = {"small": (axis.rule, self.small)}
        trial = partial(at_rate, self.together.trainer, places, variation=(axis.setting, value))
        return Asked(f"{axis.rule}, {axis.setting} {value:g}", search, asking, trial)

    def _for_value(
        self, axis: Axis, against: RateAgainst, search: Search, log2_rates: Sequence[float]
    ) -> Asked[Decision]:
        """A search for whether the small network's best value serves the large one."""
        values = against.values
        best = float(values.index(against.lowest_at(self.small)))
        places: dict[Which, tuple[RuleName, Size]] = {"large": (axis.rule, self.large)}

        def trial(which: Which, place: float, seed: int) -> Trial:
            variation = (axis.setting, values[int(place)])
            log2_rate = log2_rates[int(place)]
            return at_rate(self.together.trainer, places, which, log2_rate, seed, variation)

        asking = decide_setting(search, best, axis.setting)
        return Asked(f"{axis.rule}, {axis.setting}", search, asking, trial)


def _transfers(answers: Sequence[RuleTransfer], rule: RuleName) -> bool:
    """Whether the learning rate transfers under a rule."""
    return any(one.rule == rule and one.verdict == "TRANSFERS" for one in answers)


def _at_best(small: Sequence[Runs]) -> Runs:
    """The trainings of every value at its best rate, by the index of the value.

    Values at which nothing is learnt are left out.
    """
    together = Runs(small[0].guess, small[0].least)
    for place, runs in enumerate(small):
        cell = runs.everything()
        if not cell.learns:
            continue
        best = runs.rates[int(cell.typical.argmin())]
        for seed in runs.seeds([best]):
            together.losses[float(place), seed] = runs.losses[best, seed]
    return together


def _with(answer: RuleTransfer, settings: Mapping[Axis, RateAgainst]) -> RuleTransfer:
    """The answer of a rule with its settings."""
    against = {axis.setting: one for axis, one in settings.items() if axis.rule == answer.rule}
    return replace(answer, against=against)
