"""What the largest network loses at the smallest one's best rate, with an interval that knows of rare divergence.

Of the networks that do not diverge the loss is a mean over starts. Whether one diverges is a matter of few cases: where
none of eight did, one of ten may. So every start is taken to have an edge of stability, normally distributed over log
eta_c. Its distribution is fitted to the new runs and to the largest network's whole grid. A calm run that learns
nothing at a rate below the best lies not beyond its edge: the rate was too small. With

    ``q`` the chance at the smallest one's rate less that at its own,
    ``A`` the mean loss paid by starts that train at both rates, ``D`` what a start loses that trains at its own only,

the regret is ``(1 - q) A + q D``. The limits of q are those of the likelihood ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from nfd.core.intervals import UNKNOWN, Interval, combined, standard_errors
from nfd.questions.optimum import Array, Bools, Scores

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
