"""Best rates and their regret, of any networks: which runs they need, and what these give.

Grids of rates grow while a best rate lies at their end. For the regret the largest network is trained at the smallest
one's best rate and at its own, from new starts, which chose neither rate, on the same batches. The regret is about
these two rates; how far other seeds would have found other rates is in the intervals of the rates. The smallest network
is trained at its own from new starts too, so that the losses of both are not the best of a grid by chance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nfd.core.names import RuleName
from nfd.questions.against import RateAgainst, SettingAxis, Variation
from nfd.questions.halving import halved, wider
from nfd.questions.optimum import Array, Scores, Size, rounded
from nfd.questions.rule_transfer import TOLERANCE, Regret, RuleTransfer
from nfd.questions.transfer import Transfer
from nfd.runs.sweep import Sweep, upset_in
from nfd.runs.trial import Trial
from nfd.store import Record

SCORES = {"train_loss": "training loss, mean of the last tenth of the steps", "test_loss": "test loss"}
_ROUNDS = 12  # of extending a grid by two rates


NewScores = dict[Size, Array]


class Place(NamedTuple):
    """Where a best rate is asked for."""

    rule: RuleName
    size: Size
    variation: Variation | None = None


@dataclass(frozen=True)
class Asked:
    """What is asked of networks: their best rates under these rules, at these sizes.

    Attributes:
        rules, sizes: every pair; sizes from the smallest to the largest.
        rates: to begin with, ascending. rate_name: what they are called.
        score: the metric that the best rate minimises, of ``SCORES``.
        about: what is trained, in words.
        axes: settings that vary too, one at a time, at every size.
        halving: whether short trainings tell which rates to begin with.
    """

    rules: Sequence[RuleName]
    sizes: Sequence[Size]
    rates: Sequence[float]
    rate_name: str
    score: str
    about: str
    axes: Sequence[SettingAxis] = ()
    halving: bool = False

    @property
    def places(self) -> list[Place]:
        """Every place, those of the sizes themselves first."""
        variations = [None, *(variation for axis in self.axes for variation in axis.variations)]
        return [Place(rule, size, at) for at in variations for rule in self.rules for size in self.sizes]


class Networks(ABC):
    """Networks whose best rates are asked for."""

    asked: Asked

    @abstractmethod
    def runs(self, place: Place, rates: Sequence[float], *, new: bool = False) -> list[Trial]:
        """Seeds times rates, the rates varying fastest; a rate may be given twice.

        ``new``: twice as many seeds, other than those that best rates are chosen by.
        """

    def short_runs(self, place: Place, rates: Sequence[float], share: float) -> list[Trial]:
        """One run at each rate that stops after a share of the steps, where rates are halved."""
        raise NotImplementedError

    @abstractmethod
    def reference(self, records: Sequence[Record]) -> tuple[float, float]:
        """The loss that divergence counts as and progress is measured from, and how much below it is learning."""


def best_rates(networks: Networks, sweep: Sweep) -> Transfer:
    """Train what the question needs: every rule and size together, so that every core has work to the end."""
    return _Question(networks, sweep).answered()


class _Question:
    def __init__(self, networks: Networks, sweep: Sweep) -> None:
        self.networks, self.asked, self.sweep = networks, networks.asked, sweep

    def answered(self) -> Transfer:
        asked, cells = self.asked, self._cells()
        regrets, new = self._regrets(cells) if len(asked.sizes) > 1 else ({}, {})
        rules = [
            RuleTransfer(
                rule,
                {size: cells[Place(rule, size)] for size in asked.sizes},
                regrets.get(rule),
                asked.rate_name,
                {axis.name: self._against(rule, axis, cells) for axis in asked.axes},
                new.get(rule, {}),
            )
            for rule in asked.rules
        ]
        tolerance = f"A regret under {100 * TOLERANCE:.0f} % of the progress counts as none."
        return Transfer(tuple(rules), f"{asked.about} {tolerance}", SCORES[asked.score])

    def _against(self, rule: RuleName, axis: SettingAxis, cells: Mapping[Place, Scores]) -> RateAgainst:
        places = [(size, value) for size in self.asked.sizes for value in axis.values]
        own = {place: cells[Place(rule, place[0], Variation(axis.name, place[1]))] for place in places}
        return RateAgainst(rule, axis, own, self.asked.rate_name)

    def _cells(self) -> dict[Place, Scores]:
        """Scores at every place, on grids that grow until no best rate lies at an end."""
        whole, rates = list(self.asked.rates), self._first_rates()
        cells = self._scored(rates)
        for _ in range(_ROUNDS + (len(whole) if self.asked.halving else 0)):
            more = {place: wider(rates[place], whole, cell) for place, cell in cells.items()}
            if not (more := {place: grid for place, grid in more.items() if grid != rates[place]}):
                break
            rates |= more
            cells |= self._scored(more)
        return cells

    def _first_rates(self) -> dict[Place, list[float]]:
        """All rates, or those that short trainings leave."""
        rates = {place: list(self.asked.rates) for place in self.asked.places}
        if not self.asked.halving:
            return rates
        return halved(rates, self._short_losses)

    def _short_losses(self, rates: Mapping[Place, Sequence[float]], share: float) -> dict[Place, list[float]]:
        plans = {place: self.networks.short_runs(place, of_place, share) for place, of_place in rates.items()}
        trained = self.sweep.run_all(plans, "short trainings")
        return {place: [record.metrics["train_loss"] for record in records] for place, records in trained.items()}

    def _regrets(self, cells: Mapping[Place, Scores]) -> tuple[dict[RuleName, Regret], dict[RuleName, NewScores]]:
        """The regret of each rule, and scores of new starts of the smallest and largest size at their best rates."""
        small, large = self.asked.sizes[0], self.asked.sizes[-1]
        rates = {
            rule: [rounded(cells[Place(rule, size)].best()) for size in (small, large)] for rule in self.asked.rules
        }
        plans = {
            Place(rule, size): self.networks.runs(Place(rule, size), asked, new=True)
            for rule, pair in rates.items()
            for size, asked in ((large, pair), (small, pair[:1]))
        }
        trained = self.sweep.run_all(plans, "regrets")
        regrets, new = dict[RuleName, Regret](), dict[RuleName, NewScores]()
        for rule, pair in rates.items():
            at_large = self._scores(pair, trained[Place(rule, large)])
            at_small = self._scores(pair[:1], trained[Place(rule, small)])
            regrets[rule] = Regret(pair[0], pair[1], at_large, cells[Place(rule, large)])
            new[rule] = {small: at_small.scores[:, 0], large: regrets[rule].own}
        return regrets, new

    def _scored(self, rates: Mapping[Place, Sequence[float]]) -> dict[Place, Scores]:
        plans = {place: self.networks.runs(place, etas) for place, etas in rates.items()}
        trained = self.sweep.run_all(plans, "learning rates")
        return {place: self._scores(rates[place], records) for place, records in trained.items()}

    def _scores(self, rates: Sequence[float], records: Sequence[Record]) -> Scores:
        shape = (-1, len(rates))
        losses = np.array([record.metrics[self.asked.score] for record in records]).reshape(shape)
        upset = np.array([upset_in(record) for record in records]).reshape(shape)
        guess, least = self.networks.reference(records)
        return Scores(np.log2(rates), losses, upset, guess, least=least)
