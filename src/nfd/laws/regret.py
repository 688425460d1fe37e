"""The regret: what the largest network loses at the smallest one's best learning rate.

Its interval allows for rare divergence. The loss of networks that do not diverge is a mean over
starts. Whether one diverges is a matter of few cases: where none of eight did, one of ten may. So
every start is taken to have an edge of stability, normally distributed over log eta_c. Its
distribution is fitted to the new training runs and to the largest network's whole grid. A calm run
that learns nothing at a rate below the best is not beyond its edge: the rate was too small. With

    ``q`` the chance to diverge at the smallest network's best rate, less the chance at the
    largest network's,
    ``A`` the mean loss paid by starts that train at both rates,
    ``D`` what a start loses that trains only at the largest network's best rate,

the regret is ``(1 - q) A + q D``. The limits of q are limits of the likelihood ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from nfd.core.estimates import UNKNOWN, Interval, combined, standard_errors
from nfd.laws.best_rate import Scores
from nfd.laws.bowl import Array, Bools

# Middles of the edge's distribution that are tried: doublings from one to the next, and how far
# beyond the rates they go.
_STEP = 0.05
_BEYOND = 3.0
# Widths of the edge's distribution that are tried: how many, and from how many doublings to how
# many.
_WIDTHS = 40
_NARROWEST = 0.05
_WIDEST = 3.0
_LEAST_CHANCE = 1e-9
# Doublings by which the logarithm of a rate may differ from itself.
_SAME = 1e-6


@dataclass(frozen=True)
class Regret:
    """What the largest network loses at the smallest one's best rate, by networks trained for this.

    Attributes:
        new: scores of the largest network at the smallest one's best rate and at its own, a column
            each, in this order, from starts that chose neither.
        grid: the scores that chose its own best rate. Progress counts from its ``guess``.
    """

    new: Scores
    grid: Scores

    @property
    def at_best(self) -> Array:
        """Scores ``[S]`` at the largest network's own best rate."""
        return self.new.scores[:, 1]

    @cached_property
    def diverges(self) -> tuple[float, float, float]:
        """The chance to diverge at the smallest network's rate, less the chance at the largest's.

        Most likely, and with 95 % limits.
        """
        rates = self.new.log2_eta
        order = rates.argsort()
        grid_lost = self._lost(self.grid)
        new_lost = self._lost(self.new)
        middles, widths = self._edges(grid_lost)
        likely = edge_log_likelihood(self.grid.log2_eta, grid_lost, middles, widths)
        likely = likely + edge_log_likelihood(rates[order], new_lost[:, order], middles, widths)

        chance = edge_chance(rates, middles, widths)
        difference = chance[:, 0] - chance[:, 1]
        starts = len(grid_lost) + len(new_lost)
        within = difference[likely > likely.max() - standard_errors(starts - 2) ** 2 / 2]
        return float(difference[likely.argmax()]), float(within.min()), float(within.max())

    def _edges(self, grid_lost: Bools) -> tuple[Array, Array]:
        """List middles and widths ``[M]`` of every edge of stability that is tried."""
        # Calm rates below all that diverge say nothing of the edge.
        diverging = np.append(self.new.log2_eta, self.grid.log2_eta[grid_lost.any(0)])
        low = float(diverging.min()) - _BEYOND
        high = max(float(self.grid.log2_eta[-1]), float(self.new.log2_eta.max())) + _BEYOND
        middles = np.arange(low, high, _STEP)
        widths = np.geomspace(_NARROWEST, _WIDEST, _WIDTHS)
        return middles.repeat(_WIDTHS), np.tile(widths, len(middles))

    @cached_property
    def loss(self) -> Interval:
        """The loss paid, in nats."""
        lost = self._lost(self.new)
        trains = ~lost[:, 1]
        trains_at_both = trains & ~lost[:, 0]
        if int(trains.sum()) < 2:
            return UNKNOWN

        q, low, high = self.diverges
        learnt = self.grid.guess - self.at_best[trains]
        # Where too few train at both, q is near 1, and what they pay does not count.
        paid = np.zeros(2)
        if int(trains_at_both.sum()) > 1:
            paid = (self.new.scores[:, 0] - self.at_best)[trains_at_both]
        A = float(paid.mean())
        D = float(learnt.mean())
        calm = combined(A + q * (D - A), [_part(1 - q, paid), _part(q, learnt)])
        error = math.hypot(calm.stderr, (D - A) * (high - low) / (2 * standard_errors(math.inf)))
        down = math.hypot(calm.value - calm.low, (D - A) * (q - low))
        up = math.hypot(calm.high - calm.value, (D - A) * (high - q))
        return Interval(calm.value, error, calm.value - down, calm.value + up)

    @property
    def share(self) -> Interval:
        """The loss paid over the progress.

        The progress is what is learnt at the largest network's best rate, in nats below a uniform
        guess.
        """
        progress = self.grid.guess - float(self.at_best.mean())
        return self.loss.scaled(1 / progress) if progress > 0 else UNKNOWN

    def _lost(self, scores: Scores) -> Bools:
        """Say which training runs ``[S, E]`` diverged.

        They know nothing, and are not calm at a rate below the best.
        """
        too_small = scores.log2_eta < self.new.log2_eta[1] - _SAME
        lost: Bools = (scores.losses >= self.grid.guess) & ~(too_small & ~scores.upset)
        return lost


def _part(weight: float, values: Array) -> tuple[float, float]:
    """Compute the variance of a weighted mean, and its degrees of freedom."""
    return float((weight * values).var(ddof=1)) / len(values), len(values) - 1


def edge_chance(log2_eta: Array, middles: Array, widths: Array) -> Array:
    """The chance ``[M, E]`` to diverge at rates ``[E]``.

    ``[M]`` are middles and widths of the edge of stability.
    """
    chance: Array = ndtr((log2_eta - middles[:, None]) / widths[:, None])
    return chance


def edge_log_likelihood(log2_eta: Array, lost: Bools, middles: Array, widths: Array) -> Array:
    """The log-likelihood ``[M]`` of starts that diverge or not, ``[S, E]``, at rates ``[E]``.

    Rates ascend. The edge of each start lies below the first rate at which it diverges, and above
    the rate before.
    """
    chance = edge_chance(log2_eta, middles, widths)
    within = np.diff(chance, prepend=0.0, append=1.0)
    first = np.where(lost.any(1), lost.argmax(1), lost.shape[1])
    counts = np.bincount(first, minlength=within.shape[1])
    log_likelihood: Array = np.log(np.maximum(within, _LEAST_CHANCE)) @ counts
    return log_likelihood
