"""The best learning rate of networks: where their typical score is lowest over log2 of the rate; the regret of others.

What is sought minimises the geometric mean over all initialisations of the score: the loss, or log C where that is
larger or not finite, as divergence counts as the loss of a uniform guess. The losses of a few seeds on a grid have a
likelihood: around the vertex ``nu`` they rise as

    ``f(x) = h (x - nu)^2`` to the left, ``a h (x - nu)^2`` to the right,    at most ``cap``,

with any curvature ``h``, a lognormal asymmetry ``a``, noise of the seeds, and an error of the form in proportion to f,
by which far rates count little. Beyond ``cap``, a share of the progress, a rate only says that it is that bad: on a
steep side of the bowl, or beyond a cliff, which may cut the bowl off before its vertex; then the best rate is the edge.

The interval adds the spread of the best rate given these losses, and what each seed adds to it (``chosen``).

Source: shapes of the cells of public rate sweeps; Efron 2014, "Estimation and accuracy after model selection" (errors
by influence); docs/mathematics/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from nfd.core.estimates import UNKNOWN, Interval, combined, standard_errors

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Size = tuple[int, int]  # width and depth

_NEAR = 0.3  # of the best progress: rates that lose more are only known to be worse
# Error of the bowl's form, over its rise. One prior for all bowls makes intervals of a parabola too wide (.99 to 1.0):
# with 0.12 here they hold .97 to 1.0, but those of a steep right side .84 to .90; with an asymmetry of 0.6 below, those
# of a steep left side .90 to .94.
_FORM = 0.18
_NOISE = 0.01  # the least of the noise, over the cap: the grids of the integrals resolve no less
_NOISE_UNSEEN = 0.1  # the same where there is one seed
_STEEPER, _ASYMMETRY = 0.4, 0.9  # mean and standard deviation of log(right over left curvature)
_CLIFF = 0.12  # chance that a loss beyond the cap, to the right, stands behind a cliff
_WALL = 1.5  # times the variance, where the next rate above the best one is beyond the cap,
_COARSE = 1.6  # and more where it is more than these doublings away
_SCATTER = 0.1  # doublings, of the best rate from seed to seed
_PRIOR_SEEDS = 2.0
_PLACES, _CURVATURES, _ASYMMETRIES, _CLIFFS = 61, 24, 9, 8  # nodes of the integrals
LEARNT = 0.01  # nats below a uniform guess
_LEAST = 1e-9  # of a loss whose logarithm is taken


@dataclass(frozen=True)
class Posterior:
    """What the losses of a cell say of its best rate.

    Attributes:
        mean, variance: of log2 of the best rate. single: the part of the variance that is noise of single runs.
        shares: ``[S]``, what each seed adds to the mean; they sum to zero.
    """

    mean: float
    variance: float
    single: float
    shares: Array


@dataclass(frozen=True)
class Scores:
    """Final losses of networks of one size.

    Attributes:
        log2_eta: ``[E]``, ascending. losses: ``[S, E]``, one row per seed, infinite where one diverged.
        upset: ``[S, E]``, whether training diverged, or its loss rose to twice the first on the way.
        guess: the loss that divergence counts as, and progress is measured from: log C, that of a uniform guess.
        seeds: names of the seeds; sizes with the same names share them.
        least: how far below ``guess`` a typical score must be for something to be learnt.
    """

    log2_eta: Array
    losses: Array
    upset: Bools
    guess: float
    seeds: tuple[str, ...] = ()
    least: float = LEARNT

    @property
    def scores(self) -> Array:
        """Losses, at most ``guess``: a network that diverged or died knows nothing."""
        return np.minimum(self.losses, self.guess)

    @property
    def logs(self) -> Array:
        """Logarithms of the scores."""
        return np.log(np.maximum(self.scores, _LEAST))

    @property
    def typical(self) -> Array:
        """Geometric mean over seeds, ``[E]``, which single spikes near the edge of stability change little."""
        return np.asarray(np.exp(self.logs.mean(0)))

    @property
    def learns(self) -> bool:
        """Whether at any rate the typical score is below ``guess``."""
        return bool(self.typical.min() < self.guess - self.least)

    @property
    def edge(self) -> int:
        """-1 or 1 where lower or higher rates may be better than all of these, 0 elsewhere."""
        if not self.learns:  # the rates are too high where training is upset at the least, too low where it is nowhere
            return -1 if bool(self.upset[:, 0].any()) else 0 if bool(self.upset.any()) else 1
        best = int(self.typical.argmin())
        return -1 if best == 0 else 1 if best == len(self.log2_eta) - 1 else 0

    @property
    def has_optimum(self) -> bool:
        """Whether the best rate lies inside of the grid: it is known there alone."""
        return self.learns and not self.edge

    @property
    def reached(self) -> Array:
        """Scores ``[S]`` at the best rate of the grid, each at that of the other seeds: one's own luck lowers none."""
        logs = self.logs
        others = logs.sum(0) - logs if len(logs) > 1 else logs
        return np.asarray(self.scores[np.arange(len(logs)), others.argmin(1)])

    @property
    def near(self) -> Bools:
        """The rates ``[E]`` that keep so much of the best progress that their losses count as they are."""
        lowest = self.typical.min()
        return np.asarray(self.typical - lowest <= _NEAR * (self.guess - lowest))

    @cached_property
    def posterior(self) -> Posterior:
        """What the losses say of the best rate."""
        logs, typical, near, S = self.logs, self.typical, self.near, len(self.losses)
        lowest = typical.min()
        cap = max(_NEAR * (self.guess - lowest) / lowest, _LEAST)
        rise = np.minimum((typical / lowest - 1) / cap, 1.0)
        apart = (logs - logs.mean(0)) / cap  # of seeds from the typical losses
        own = apart[:, near] - apart[:, near].mean(1, keepdims=True) * (near.sum() > 1)  # a seed's level moves no rate
        freedom = (S - 1) * max(int(near.sum()) - 1, 1)
        noise = _NOISE_UNSEEN if S < 2 else max(_NOISE, math.sqrt(float(np.square(own).sum()) / freedom / S))
        mean, variance, slopes = posterior(self.log2_eta, rise, noise * typical / lowest)
        slopes = np.where(near, slopes * typical / lowest, 0.0)  # by the logarithms of losses, whose noise is even
        single = float(np.square(slopes * noise).sum())
        return Posterior(mean, variance, min(single, variance), apart @ slopes)

    def best(self) -> float:
        """log2 of the best rate."""
        return self.posterior.mean

    def optimum(self) -> Interval:
        """``best`` with its interval."""
        return chosen([self], np.ones(1))

    def rate(self) -> Interval:
        """The best rate; not-a-number where it lies at an end of the grid, or nothing is learnt."""
        return self.optimum().scaled(math.log(2)).exp() if self.has_optimum else UNKNOWN


def posterior(x: Array, rise: Array, noise: Array) -> tuple[float, float, Array]:
    """Mean and variance of the best rate, and the slopes ``[E]`` of the mean by the rises.

    Args:
        x: log2 of the rates ``[E]``, ascending. rise: of the loss over its lowest, over the cap, at most 1. noise: its
            standard error.
    """
    best, count = int(rise.argmin()), len(x)
    step = (x[-1] - x[0]) / (count - 1) if count > 1 else 1.0
    first = max((e for e in range(best) if rise[e] >= 1), default=-1)
    last = min((e for e in range(best + 1, count) if rise[e] >= 1), default=count)
    low = x[0] - step / 2 if first < 0 else x[first]
    high = x[-1] + step / 2 if last == count else x[last]
    used = slice(max(first, 0), last + 1)
    t, y, sigma = x[used], rise[used], noise[used]
    places = np.linspace(low, high, _PLACES)
    h = np.geomspace(1e-3, 1e2, _CURVATURES)[:, None, None]
    z = np.linspace(-2.4, 2.4, _ASYMMETRIES)[:, None]
    right = np.exp(_STEEPER + _ASYMMETRY * z)
    d = t - places[:, None, None, None]
    f = np.minimum(h * d * d * np.where(d > 0, right, 1.0), 1.0)
    v = sigma**2 + (_FORM * f) ** 2

    def summed(kept: Bools, chance: float) -> tuple[Array, Array]:
        """Log densities ``[places, ...]`` and their slopes ``[places, ..., E]``; the level has a flat prior."""
        weights = kept / v
        total = weights.sum(-1, keepdims=True)
        left = y - f - (weights * (y - f)).sum(-1, keepdims=True) / total
        # what is left out has the density of a number of the cap's size
        log = -0.5 * (np.where(kept, np.log(v), math.log(_FORM**2)).sum(-1) + np.log(total[..., 0]))
        log = log - 0.5 * (weights * left**2).sum(-1) - 0.5 * z[..., 0] ** 2 + math.log(chance)
        return log, -weights * left

    walled = last < count
    cases = [summed(np.ones(len(t), np.bool_), 1 - _CLIFF * walled)]
    if walled:
        cases.append(summed(np.arange(len(t)) < len(t) - 1, _CLIFF))
    top = max(float(log.max()) for log, _ in cases)
    mass, first_moment, second, slope, moved = 0.0, 0.0, 0.0, np.zeros_like(t), np.zeros_like(t)
    for case, (log, slopes) in enumerate(cases):
        p = np.exp(log - top)
        of_place, pull = p.sum((1, 2)), np.einsum("pha,phae->pe", p, slopes)
        ends = places[:, None]
        if case:  # the edge may cut the bowl off before its vertex
            between = (np.arange(_CLIFFS) + 0.5) / _CLIFFS
            ends = np.minimum(ends, t[-2] + between * (t[-1] - t[-2]))
        once, twice = ends.mean(1), np.square(ends).mean(1)
        mass, first_moment, second = mass + of_place.sum(), first_moment + of_place @ once, second + of_place @ twice
        slope, moved = slope + pull.sum(0), moved + once @ pull
    mean = float(first_moment / mass)
    full = np.zeros(count)
    full[used] = moved / mass - mean * slope / mass
    variance = float(second / mass) - mean**2
    if last == best + 1:  # this wall may be steeper than any bowl here: without the factor .86 to .94 held, not .95
        variance *= _WALL * max(1.0, float(t[-1] - t[-2]) / _COARSE) ** 2
    return mean, variance, full


def chosen(cells: Sequence[Scores], weights: Array, scatter: tuple[float, float] = (math.nan, 1.0)) -> Interval:
    """A weighted sum of the best rates of some sizes, with its interval.

    Args:
        cells: scores of each size. Those of the same seeds vary together, others independently.
        weights: ``[sizes]``.
        scatter: in place of the noise of the seeds where a size has one seed alone: a variance, and its degrees of
            freedom; limits are not-a-number without it.
    """
    known = [cell.posterior for cell in cells]
    value = sum(w * own.mean for w, own in zip(weights, known, strict=True))
    form = sum(w**2 * (own.variance - own.single) for w, own in zip(weights, known, strict=True))
    if any(len(cell.losses) < 2 for cell in cells):
        return combined(float(value), [scatter, (float(form), math.inf)])
    groups = dict[tuple[object, ...], list[tuple[float, Posterior]]]()
    together = len({(len(cell.losses), cell.seeds) for cell in cells}) == 1
    for place, (w, own) in enumerate(zip(weights, known, strict=True)):
        groups.setdefault(() if together else (place,), []).append((float(w), own))
    noise = []
    for group in groups.values():
        shares = np.sum([w * own.shares for w, own in group], 0)
        S = len(shares)
        prior = sum(w**2 * (own.single + _SCATTER**2 / S) for w, own in group)
        freedom = S - 1 + _PRIOR_SEEDS
        noise.append(((float(np.square(shares).sum()) / S + _PRIOR_SEEDS * prior) / freedom, freedom))
    return combined(float(value), [*noise, (float(form), math.inf)])


def fitted_exponent(cells: Sequence[Scores], logs: Sequence[Sequence[float]], k: int) -> Interval:
    """p of ``best rate ~ x^p y^q ...`` along the k-th of some variables, by least squares over cells; not-a-number
    where it varies only with the others.

    Args:
        logs: ``[cells, variables]``, to base 2. Where cells have one seed each, the error comes from how far they lie
            from the power law.
    """
    rows = np.array([[1.0, *place] for place in logs])
    rank = np.linalg.matrix_rank(rows)
    if rank == np.linalg.matrix_rank(np.delete(rows, 1 + k, 1)):
        return UNKNOWN
    weights = np.linalg.pinv(rows)[1 + k]
    places, freedom = np.array([cell.best() for cell in cells]), len(rows) - int(rank)
    left = places - rows @ (np.linalg.pinv(rows) @ places)
    scatter = float(left @ left / freedom * (weights @ weights)) if freedom else math.nan
    return chosen(cells, weights, (scatter, max(freedom, 1.0)))


def rounded(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")


def in_words(size: Size) -> str:
    """``width 8 and depth 4``."""
    return f"width {size[0]} and depth {size[1]}"


def rate_in_words(rate: Interval) -> str:
    """``0.003 [0.002, 0.004]``, as far as it is known."""
    if math.isnan(rate.value):
        return "unknown"
    return f"{rate.value:.2g}" if math.isnan(rate.low) else f"{rate.value:.2g} [{rate.low:.2g}, {rate.high:.2g}]"


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
    was chosen. Progress counts from its ``guess``.
    """

    new: Scores
    grid: Scores

    @property
    def own(self) -> Array:
        """Scores ``[S]`` at its own best rate."""
        return self.new.scores[:, 1]

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
        known = self.grid.guess - self.own[trains]
        paid = (self.new.scores[:, 0] - self.own)[both] if int(both.sum()) > 1 else np.zeros(2)  # q is near 1
        A, D = float(paid.mean()), float(known.mean())
        parts = [(float((w * v).var(ddof=1)) / len(v), len(v) - 1) for w, v in ((1 - q, paid), (q, known))]
        calm = combined(A + q * (D - A), parts)
        down, up = (calm.value - calm.low, (D - A) * (q - low)), (calm.high - calm.value, (D - A) * (high - q))
        error = math.hypot(calm.stderr, (D - A) * (high - low) / (2 * standard_errors(math.inf)))
        return Interval(calm.value, error, calm.value - math.hypot(*down), calm.value + math.hypot(*up))

    @property
    def share(self) -> Interval:
        """The loss paid over the progress: what is learnt at the own best rate, in nats below a uniform guess."""
        progress = self.grid.guess - float(self.own.mean())
        return self.loss.scaled(1 / progress) if progress > 0 else UNKNOWN

    @property
    def in_percent(self) -> str:
        """``share`` as ``12.8 % [4.6, 27.0]``."""
        known = self.share.scaled(100)
        value, low, high = (f"{round(share, 1) + 0:.1f}" for share in (known.value, known.low, known.high))
        return "an unknown part" if math.isnan(self.share.value) else f"{value} % [{low}, {high}]"

    def _lost(self, scores: Scores) -> Bools:
        """Which runs ``[S, E]`` diverged: those that know nothing, unless they are calm and below the best rate."""
        too_small = scores.log2_eta < self.new.log2_eta[1] - _SAME
        lost: Bools = (scores.losses >= self.grid.guess) & ~(too_small & ~scores.upset)
        return lost


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
