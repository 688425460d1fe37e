"""Transfer: whether the best learning rate of a small network is that of a large one, and what it costs if not.

For each rule the best rate is known at every width and depth, from a sweep (``nfd.questions.transfer_sweep``) or a log
(``nfd.questions.transfer_logs``). Its *drift* is the exponent of ``best rate ~ L**p n**q``, in doublings per doubling.
Its *regret* is what the largest network loses when it is trained at the smallest one's best rate, as it was found,
instead of its own (``nfd.questions.rule_transfer``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import ndtr

from nfd.core.estimates import UNKNOWN, Interval, combined, mean, standard_errors
from nfd.core.names import AXES, Axis
from nfd.questions.optimum import Array, Bools, Scores, Size, fitted_exponent, in_words, rate_of, signed

if TYPE_CHECKING:
    from nfd.questions.against import RateAgainst


TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

TOLERANCE = 0.1  # of the largest network's progress: a regret below is none, above is one
FEWEST_SEEDS = 3  # for a verdict
GUESS = "guess= (in the shell --guess), the loss of a network that knows nothing, such as log C of C classes"


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
        rate: what the learning rate is called.
        against: the best rate against further settings, by their names.
        new: scores at the best rate of a size from starts that chose no rate, where there are any.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    rate: str = "eta_c"
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
            about | {"quantity": f"best {self.rate}", "width": n, "depth": L} | rate_of(self.optimum((n, L))).limits
            for n, L in self.cells
        ]
        rates += [
            about | {"quantity": "best loss", "width": n, "depth": L} | self.loss((n, L)).limits for n, L in self.cells
        ]
        others = {f"drift per doubling of {axis}": moved for axis, moved in self.drifts.items()}
        if self.regret is not None:
            others |= {"regret (nats)": self.regret.loss, "regret over progress": self.regret.share}
        return [*rates, *(about | {"quantity": name} | estimate.limits for name, estimate in others.items())]

    def __str__(self) -> str:
        moved = ", ".join(f"{signed(drift)} with {axis}" for axis, drift in self.drifts.items())
        parts = [f"drift {moved}, in doublings per doubling"] if moved else []
        if self.regret is None:
            return f"{self.rule}: {self.doubt or '; '.join(parts) or 'one size'}."
        share = self.regret.share
        loss = self.regret.loss
        paid = "an unknown loss" if math.isnan(loss.value) else f"{loss} nats"
        cost = f"The smallest network's best {self.rate} costs the largest {paid}"
        if math.isfinite(share.value):
            value, low, high = (f"{100 * part:.1f}" for part in (share.value, share.low, share.high))
            cost += f", {value} % [{low}, {high}] of its progress"
        lacking = self.doubt or self.lacks
        return f"{self.rule}: {self.verdict}{f', as {lacking}' if lacking else ''}. {'; '.join([cost, *parts])}."

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

    The exponent of least squares is a weighted sum of the best rates (``nfd.questions.optimum.fitted_exponent``).
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
