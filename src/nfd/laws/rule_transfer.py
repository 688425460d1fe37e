"""Under one rule: whether the best learning rate of a small network serves a large one.

What several rules decide together is in ``nfd.laws.transfer_answer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from nfd.core.estimates import Interval, mean
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.core.words import listed
from nfd.laws.best_rate import Scores, Size, fitted_exponent, in_words
from nfd.laws.bowl import Array

if TYPE_CHECKING:
    from nfd.laws.rate_against import RateAgainst
    from nfd.laws.regret import Regret
    from nfd.laws.sequential import Decision

TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

# A share of the largest network's progress: a smaller regret is none, a larger one is one.
TOLERANCE = 0.1
# Seeds that a verdict needs.
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class SearchSpent:
    """What the searches of all rules took together, and what they might take.

    Attributes:
        trainings: how many. budget: how many at most. seeds: of the largest network at most.
        sizes: those asked about, of which some may not have been trained.
    """

    trainings: int
    budget: float
    seeds: int
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class RuleTransfer:
    """The scores of one rule by (width, depth), and the regret of the smallest at the largest.

    Attributes:
        regret: None where no new networks were trained at both rates, as in most logs, or there is
            one size.
        against: the best rate against further settings, by their names.
        decision: how a search for the verdict ended; None for a grid or a log.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    against: Mapping[str, RateAgainst] = field(default_factory=dict)
    decision: Decision | None = None

    def learns(self, size: Size) -> bool:
        """Whether a size was trained, and learnt something."""
        return size in self.cells and self.cells[size].learns

    def rate(self, size: Size) -> Interval:
        """The best rate of a size.

        Of the smallest network it is the one that a search decided on: trainings that came later,
        to find where training becomes unstable, may move the estimate a little.
        """
        rate = self.cells[size].rate()
        if self.decision is None or size != next(iter(self.cells)) or math.isnan(rate.value):
            return rate
        return replace(rate, value=math.pow(2, self.decision.at))

    def reached(self, size: Size) -> Array:
        """Scores ``[S]`` at the best rate of a size.

        At the largest size they are of starts that compared the two best rates, where there are
        some; else of the grid, each seed at the rate that the other seeds choose.
        """
        if self.regret and size == self.largest:
            return self.regret.at_best
        return self.cells[size].reached

    def loss(self, size: Size) -> Interval:
        """The loss at the best rate of a size."""
        return mean(self.reached(size))

    @property
    def largest(self) -> Size:
        """The largest size, which comes last."""
        return list(self.cells)[-1]

    @property
    def unlearnt(self) -> Size | None:
        """The smallest or the largest size, where its best rate learns too little to judge by."""
        ends = list(self.cells)[:1] + list(self.cells)[-1:]
        return next((size for size in ends if self.cells[size].hardly_learns), None)

    @cached_property
    def drifts(self) -> dict[Axis, Interval]:
        """Doublings of the best rate per doubling of every axis that varies, the other held."""
        inside = {size: cell for size, cell in self.cells.items() if cell.has_optimum}
        drifts = {axis: drift(inside, axis) for axis in reversed(AXES)}
        return {axis: estimate for axis, estimate in drifts.items() if estimate is not None}

    def along(self, axis: Axis) -> dict[int, Scores]:
        """The scores along one axis, the other at its largest."""
        place = AXES.index(axis)
        largest = max(size[1 - place] for size in self.cells)
        return {
            size[place]: cell for size, cell in self.cells.items() if size[1 - place] == largest
        }

    @property
    def table(self) -> list[Row]:
        """A row per quantity: best rates and losses by size, drifts, and the regret.

        The regret is in nats, and over the progress.
        """
        rows = [self._row("best lr", self.rate(size), size) for size in self.cells]
        rows += [self._row("best loss", self.loss(size), size) for size in self.cells]
        for axis, doublings in self.drifts.items():
            rows.append(self._row(f"drift per doubling of {axis}", doublings))
        if self.regret is not None:
            rows.append(self._row("regret (nats)", self.regret.loss))
            rows.append(self._row("regret over progress", self.regret.share))
        return rows

    def _row(
        self, quantity: str, estimate: Interval, size: tuple[int | None, int | None] = (None, None)
    ) -> Row:
        place = {"rule": self.rule, "width": size[0], "depth": size[1]}
        return place | {"quantity": quantity} | estimate.limits

    def __str__(self) -> str:
        name, _ = rule_in_words(self.rule)
        sentences = list[str]()
        if self.regret is not None:
            sentences.append(f"{self.verdict}: {self._cost(self.regret)}.")
        if self.decision is not None and self.decision.reason:
            sentences.append(f"Not decided, as {self.decision.reason}.")
        moves = moves_in_words(self.drifts)
        if moves:
            sentences.append(moves)
        if self.doubt:
            sentences.append(f"{self.doubt}.")
        return f"{name[0].upper()}{name[1:]}: {' '.join(sentences)}"

    def _cost(self, regret: Regret) -> str:
        """Say what tuning the smallest network costs."""
        sizes = list(self.cells)
        small = size_in_words(sizes[0], sizes)
        large = size_in_words(self.largest, sizes)
        if math.isnan(regret.loss.value):
            return f"what the best rate of {small} costs at {large} is not known"
        nothing = "" if regret.loss.resolved else "nothing measurable, "
        share = regret.share.scaled(100).in_words(" %", 100 * TOLERANCE)
        return (
            f"the best rate of {small} costs {nothing}{regret.loss.in_words(' nats')} at {large}, "
            f"{share} of its loss reduction"
        )

    @property
    def doubt(self) -> str:
        """Why best rates cannot be compared, or what a verdict needs whatever the regret is.

        Empty where neither is so. A search judges by itself whether best rates can be compared.
        """
        if self.unlearnt:
            return "Networks hardly learn: take more steps"
        if self.decision is not None:
            return ""
        unknown = list[str]()
        for size, cell in self.cells.items():
            if not cell.has_optimum:
                unknown.append(f"{in_words(size)} ({_why(cell)})")
        if unknown:
            return (
                f"The best rate is not known at {', '.join(unknown)}: give other rates or more "
                "steps"
            )
        if self.regret is None:
            return ""
        has_too_few_seeds = len(self.regret.grid.losses) < FEWEST_SEEDS
        if has_too_few_seeds or math.isnan(self.regret.share.value):
            return (
                f"A verdict needs {FEWEST_SEEDS} seeds or more, each of which learns something at "
                "its best rate"
            )
        return ""

    @property
    def verdict(self) -> TransferVerdict:
        """Whether the best rate transfers, by the regret as a share of progress.

        TRANSFERS where its 95 % interval is below ``TOLERANCE``, COSTS where it is above, else
        UNCERTAIN. A negative regret is a gain: the rate tuned at the small size costs nothing.
        """
        if self.unlearnt:
            return "UNCERTAIN"
        if self.decision is not None:
            return self.decision.verdict
        if self.doubt or self.regret is None:
            return "UNCERTAIN"
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


def rule_in_words(rule: str) -> tuple[str, int]:
    """Name a rule, and say whether its verb is of one (1) or many (2)."""
    if rule == "standard":
        return "PyTorch's defaults", 2
    if rule == "logged":
        return "your runs", 2
    return f"the plan {rule}", 1


def sizes_of(rules: Sequence[RuleTransfer]) -> list[Size]:
    """All sizes that were trained, ascending: a search may end before it reaches the largest."""
    sizes = dict[Size, None]()
    for answer in rules:
        sizes |= dict.fromkeys(answer.cells)
    return list(sizes)


def moves_in_words(drifts: Mapping[Axis, Interval]) -> str:
    """How the best rate follows sizes; empty where nothing is known.

    Args:
        drifts: doublings of the rate per doubling of every axis.
    """
    parts = list[str]()
    for axis, doublings in drifts.items():
        if math.isnan(doublings.value):
            continue
        factor = doublings.scaled(math.log(2)).exp()
        parts.append(f"by {factor.in_words()} when {axis} doubles")
    return f"The best rate is multiplied {listed(parts)}." if parts else ""


def size_in_words(size: Size, sizes: Sequence[Size]) -> str:
    """``128 wide, 4 deep``; only what the sizes of a log say, which have 1 for the other."""
    width, depth = size
    parts = list[str]()
    if any(one[0] > 1 for one in sizes):
        parts.append(f"{width} wide")
    if any(one[1] > 1 for one in sizes) or not parts:
        parts.append(f"{depth} deep")
    return ", ".join(parts)


def _why(cell: Scores) -> str:
    """Why the best rate of a size is not known."""
    if not cell.learns:
        return "nothing is learnt"
    return "lower rates may be better" if cell.edge < 0 else "higher rates may be better"


def drift(cells: Mapping[Size, Scores], axis: Axis) -> Interval | None:
    """Fit doublings of the best rate per doubling of one axis, over scores by (width, depth).

    None where the axis does not vary. The exponent of least squares is a weighted sum of the best
    rates (``nfd.laws.best_rate.fitted_exponent``).
    """
    k = AXES.index(axis)
    if len({size[k] for size in cells}) < 2:
        return None
    logs = [[math.log2(n), math.log2(L)] for n, L in cells]
    return fitted_exponent(list(cells.values()), logs, k)
