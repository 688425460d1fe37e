"""Under one rule: whether the best learning rate of a small network serves a large one.

And what several rules say together: the advice of ``nfd.transfer`` and ``nfd.fit_transfer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from nfd.core.estimates import Interval, mean
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.laws.best_rate import Scores, Size, fitted_exponent, in_words, rate_in_words
from nfd.laws.bowl import Array

if TYPE_CHECKING:
    from nfd.laws.rate_against import RateAgainst
    from nfd.laws.regret import Regret

TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

# A share of the largest network's progress: a smaller regret is none, a larger one is one.
TOLERANCE = 0.1
# Seeds that a verdict needs.
_FEWEST_SEEDS = 3


@dataclass(frozen=True)
class RuleTransfer:
    """The scores of one rule by (width, depth), and the regret of the smallest at the largest.

    Attributes:
        regret: None where no new networks were trained at both rates, as in most logs, or there is
            one size.
        against: the best rate against further settings, by their names.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    against: Mapping[str, RateAgainst] = field(default_factory=dict)

    def reached(self, size: Size) -> Array:
        """Scores ``[S]`` at the best rate of a size.

        They are of new starts at the largest size, where there are some; else of the grid, each
        seed at the rate that the other seeds choose.
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
        rows = [self._row("best lr", cell.rate(), size) for size, cell in self.cells.items()]
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
        sentences = list[str]()
        if self.regret is not None:
            small = in_words(next(iter(self.cells)))
            sentences.append(f"{self.verdict}. Tuning at {small} costs {self._cost(self.regret)}.")
        for axis, doublings in self.drifts.items():
            sentences.append(f"The best lr moves by {doublings} doublings per doubling of {axis}.")
        if self.doubt:
            sentences.append(f"{self.doubt}.")
        return f"{self.rule}: {' '.join(sentences)}"

    def _cost(self, regret: Regret) -> str:
        """Say what tuning the smallest network costs."""
        if math.isnan(regret.loss.value):
            return "an unknown amount"
        large = in_words(self.largest)
        cost = f"{regret.loss} nats at {large}, {regret.in_percent} of its progress"
        return cost if regret.loss.resolved else f"nothing measurable: {cost}"

    @property
    def doubt(self) -> str:
        """Why best rates cannot be compared, or what a verdict needs whatever the regret is.

        Empty where neither is so.
        """
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
        has_too_few_seeds = len(self.regret.grid.losses) < _FEWEST_SEEDS
        if has_too_few_seeds or math.isnan(self.regret.share.value):
            return f"A verdict needs {_FEWEST_SEEDS} seeds or more that learn at their best rate"
        return ""

    @property
    def verdict(self) -> TransferVerdict:
        """Whether the best rate transfers, by the regret as a share of progress.

        TRANSFERS where its 95 % interval is below ``TOLERANCE``, COSTS where it is above, else
        UNCERTAIN. A negative regret is a gain: the rate tuned at the small size costs nothing.
        """
        if self.doubt or self.regret is None:
            return "UNCERTAIN"
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


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


# ---- What the rules say together.


def compared(rules: Sequence[RuleTransfer]) -> list[str]:
    """Say what the rules show together, and last what to do; nothing unless all have a regret.

    The advised rule has the lowest loss of the largest network: of the rules that transfer, at the
    smallest network's best rate; where none does, of all at the largest network's best rate.
    Another rule may be better there at the largest network's best rate. It is chosen by the grid
    and judged by new starts, so that chance counts once. Rules share their seeds, so the test is
    one of pairs.
    """
    regrets = {answer.rule: answer.regret for answer in rules if answer.regret is not None}
    if len(regrets) < len(rules):
        return []
    transferring = [answer for answer in rules if answer.verdict == "TRANSFERS"]
    # The column of the smallest network's best rate, or of the largest network's.
    rate = 0 if transferring else 1
    best = min(
        transferring or rules,
        key=lambda answer: float(regrets[answer.rule].new.scores[:, rate].mean()),
    )
    small, *_, large = best.cells
    learning = [answer for answer in rules if answer.cells[large].learns]
    if not learning:
        return [
            f"Nothing is learnt at {in_words(large)} at any rate: take more steps, or other "
            "initial weights."
        ]

    notes = _growth(best, small, large)
    if not transferring:
        best_rate = rate_in_words(best.cells[large].rate())
        return [
            *notes,
            f"No rule is known to transfer: tune at the size that you train. At {in_words(large)} "
            f"the loss is lowest under {best.rule} at lr = {best_rate}.",
        ]
    better = _better_rule(best, [answer for answer in learning if answer is not best], large)
    if better is not None:
        return [*notes, better]
    return [
        *notes,
        f"Use {best.rule} at lr = {rate_in_words(best.cells[small].rate())}: tuned at "
        f"{in_words(small)} it costs {regrets[best.rule].in_percent} of the progress at "
        f"{in_words(large)}.",
    ]


def _growth(best: RuleTransfer, small: Size, large: Size) -> list[str]:
    """Note where the larger network is not better than the smaller one."""
    change = best.loss(large).minus(best.loss(small))
    if change.high < 0:
        return []
    word = "worse" if change.low > 0 else "not known to be better"
    return [
        f"Under {best.rule} the larger network is {word}: from {in_words(small)} to "
        f"{in_words(large)} the best loss changes by {change} nats."
    ]


def _better_rule(best: RuleTransfer, rivals: Sequence[RuleTransfer], large: Size) -> str | None:
    """Advise a rival where its best loss is lower than the best loss of the advised rule."""
    if not rivals:
        return None
    other = min(rivals, key=lambda answer: float(answer.cells[large].reached.mean()))
    of_best = best.reached(large)
    of_other = other.reached(large)
    # As many scores are from the same seeds, in pairs.
    if len(of_best) == len(of_other):
        lower = mean(of_best - of_other)
    else:
        lower = mean(of_best).minus(mean(of_other))
    # A smaller difference is not learning anything at all.
    if lower.low <= 0 or lower.value <= best.cells[large].least:
        return None
    return (
        f"{best.rule} transfers, but at {in_words(large)} {other.rule} is better: the loss at its "
        f"own best lr is lower by {lower.unsigned} nats. Find out why, or tune {other.rule} at the "
        "size that you train."
    )
