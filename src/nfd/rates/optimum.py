"""The best learning rate: where the typical score of networks is lowest, over log eta_c.

What is sought is the rate that minimises the geometric mean over all initialisations of the score, which is the loss
or, where that is larger or not finite, log C: divergence counts, as the loss of a uniform guess. We measure the
same over a few seeds, on a grid. A cubic is fitted through the rates around the best one that keep four fifths of the
best progress, each with a weight that falls to zero where a fifth is lost: losses rise faster to the right of the best
rate than to the left, which moves the vertex of a parabola by a fifth of a doubling and more. Which rates those are
jumps from seed to seed beside divergence, so the best rate is the mean of the lowest points over samples of the seeds
with replacement ("bagging"): its standard error is up to a third smaller there.

The interval holds three errors, each once. Of the seeds: what the lowest point changes per seed, by least squares over
the same samples, with Student's t. Of the curve's form: 0.6 of the distance to a parabola's vertex, less the part of
it that the seeds explain; a ninth of a step where too few rates are near for a cubic. Of the grid: that of any place
within half a step, in the share of the samples where a rate next to the best one has lost a fifth already. On an uneven
grid the step is that from the rates of the fit to the next ones; where it is larger than all of the fit is wide, the
error of the grid counts too.

Source: Efron 2014, "Estimation and accuracy after model selection" (the error of a bagged estimate).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nfd.core.estimates import Interval, combined

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Size = tuple[int, int]  # width and depth

_NEAR = 0.2  # the cubic is fitted where this share of the best network's progress is not yet lost
_LEAST_WEIGHT = 1e-3  # of a rate of the fit
_RESAMPLES = 200
_FORM = 0.6  # standard error of the form, over the distance between the cubic's lowest point and the parabola's
_FORM_UNSEEN = 0.11  # of a step: the same where no cubic can be fitted
_GRID = 0.475 / 1.96  # of a step: of a place within half a step, so that 95 % reach as far as they should
LEARNT = 0.01  # nats below a uniform guess
_LEAST = 1e-9  # of a loss whose logarithm is taken


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
        typical: Array = np.exp(self.logs.mean(0))
        return typical

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
        """Whether the best rate lies inside of the grid: it is fitted there alone."""
        return self.learns and not self.edge

    @property
    def reached(self) -> Array:
        """Scores ``[S]`` at the best rate of the grid, each at that of the other seeds: one's own luck lowers none."""
        logs = self.logs
        others = logs.sum(0) - logs if len(logs) > 1 else logs
        reached: Array = self.scores[np.arange(len(logs)), others.argmin(1)]
        return reached

    @property
    def near_ends(self) -> tuple[bool, bool]:
        """Whether the ends of the grid keep so much progress that rates beyond them could be part of the fit."""
        lost = _lost(self.typical, self.guess)
        return bool(lost[0] <= 1), bool(lost[-1] <= 1)

    def of(self, seeds: ArrayLike) -> Scores:
        """The scores of some of the seeds, given by their indices."""
        return replace(self, losses=self.losses[np.asarray(seeds)], upset=self.upset[np.asarray(seeds)])

    @cached_property
    def resampled(self) -> Vertex:
        """The lowest points in samples of the seeds with replacement (``resamples``)."""
        return vertex(self.log2_eta, np.exp(resamples(len(self.losses)) @ self.logs), self.guess)

    def best(self) -> float:
        """log2 of the best rate: the mean over samples of the seeds of the lowest point of the fit."""
        return float(self.resampled.place.mean())

    def optimum(self) -> Interval:
        """``best`` with its interval."""
        return chosen([self], np.ones(1))

    def at(self, log2_eta: float) -> float:
        """The typical score at any rate: linear between those of the grid, constant beyond."""
        return float(np.interp(log2_eta, self.log2_eta, self.typical))


def rate_of(log2_eta: Interval) -> Interval:
    """The interval of a rate from that of its logarithm to base 2."""
    value, low, high = (math.pow(2, v) for v in (log2_eta.value, log2_eta.low, log2_eta.high))
    return Interval(value, value * math.log(2) * log2_eta.stderr, low, high)


@dataclass(frozen=True)
class Vertex:
    """The lowest points of fits ``[...]``.

    Attributes:
        place: log2 of the rate. parabola: the same by a parabola.
        curved: whether a cubic was fitted. resolved: whether a parabola was, rates on both sides of the best one keep
            four fifths of the progress, and the rates of the fit reach as far as ``coarse``.
        coarse: the larger of the two steps, in log2, from the rates of the fit to those beyond.
    """

    place: Array
    parabola: Array
    curved: Bools
    resolved: Bools
    coarse: Array


def vertex(log2_eta: Array, typical: Array, guess: float) -> Vertex:
    """The best rate of typical scores ``[..., E]`` on a grid ``[E]``.

    The cubic needs five rates and a lowest point, the parabola three and to open upward; else the next simpler one
    stands for it, at last the best rate of the grid. Neither leaves the rates of the fit.
    """
    x, y, E = log2_eta, typical, len(log2_eta)
    place = np.arange(E)
    best = y.argmin(-1, keepdims=True)
    lost = _lost(y, guess)
    far = lost > 1
    first = np.where(far & (place < best), place, -1).max(-1, keepdims=True)
    last = np.where(far & (place > best), place, E).min(-1, keepdims=True)
    near = (place > first) & (place < last)
    weights = np.where(near, np.maximum(1 - lost, _LEAST_WEIGHT), 0.0)
    t = x - x[best]
    parabola, upward = _lowest(_fitted(t, y, weights, near, 3))
    parabola = np.where(upward, parabola, 0.0)
    cubic, curved = _lowest(_fitted(t, y, weights, near & (near.sum(-1, keepdims=True) > 4), 4))
    cubic = np.where(curved, cubic, parabola)
    low, high = np.where(near, t, math.inf).min(-1), np.where(near, t, -math.inf).max(-1)
    start = x[best[..., 0]]
    steps = np.diff(x) if E > 1 else np.zeros(1)
    left, right = np.append(steps[:1], steps)[first + 1], np.append(steps, steps[-1:])[last - 1]
    coarse = np.maximum(left, right)[..., 0]
    # rates close to each other show the slope between them, but not whether the best lies in the gap beside them
    wide = high - low >= coarse
    resolved = upward & wide & (best - first > 1)[..., 0] & (last - best > 1)[..., 0]
    return Vertex(start + cubic.clip(low, high), start + parabola.clip(low, high), curved, resolved, coarse)


def _lost(typical: Array, guess: float) -> Array:
    """The progress that rates ``[..., E]`` lose, over what the rates of the fit may lose."""
    lowest = typical.min(-1, keepdims=True)
    lost: Array = (typical - lowest) / np.maximum(_NEAR * (guess - lowest), _LEAST)
    return lost


def _fitted(t: Array, y: Array, weights: Array, near: Bools, terms: int) -> Array:
    """Coefficients ``[..., terms]`` of powers of t by weighted least squares; zeros where there are too few rates."""
    powers = t[..., None] ** np.arange(terms)
    weighted = np.swapaxes(powers * weights[..., None], -1, -2)
    enough = (near.sum(-1) >= terms)[..., None, None]
    square = np.where(enough, weighted @ powers, np.eye(terms))
    solution: Array = np.linalg.solve(square, np.where(enough, weighted @ y[..., None], 0.0))[..., 0]
    return solution


def _lowest(coefficients: Array) -> tuple[Array, Bools]:
    """Where a parabola or cubic has its minimum, and whether it has one."""
    slope, bend = coefficients[..., 1], coefficients[..., 2]
    turn = coefficients[..., 3] if coefficients.shape[-1] > 3 else np.zeros_like(bend)
    inside = bend**2 - 3 * slope * turn
    below = bend + np.sqrt(np.maximum(inside, 0))
    has_minimum = (inside > 0) & (below > 0)
    return -slope / np.where(has_minimum, below, 1.0), has_minimum


def chosen(cells: list[Scores], weights: Array, scatter: tuple[float, float] = (math.nan, 1.0)) -> Interval:
    """A weighted sum of the best rates of some sizes, with its interval.

    Args:
        cells: scores of each size. Those of the same seeds vary together, others independently.
        weights: ``[sizes]``.
        scatter: in place of the noise of the seeds where a size has one seed alone: a variance, and its degrees of
            freedom; limits are not-a-number without it.
    """
    fits = [cell.resampled for cell in cells]
    places, parabolas = (np.stack(p, -1) * weights for p in zip(*((f.place, f.parabola) for f in fits), strict=True))
    form = places - parabolas
    noise = [scatter] if any(len(cell.losses) < 2 for cell in cells) else _noise(places, cells)
    # a distance between the fits that is noise of the seeds is in their error already
    square = max(0.0, float(form.sum(-1).mean() ** 2) - sum(v for v, _ in _noise(form, cells)))
    errors = [np.where(f.resolved, _FORM_UNSEEN * ~f.curved, _GRID) * f.coarse for f in fits]
    of_grid = float(np.square(np.stack(errors, -1) * weights).mean(0).sum())
    return combined(float(places.sum(-1).mean()), [*noise, (_FORM**2 * square + of_grid, math.inf)])


def _noise(values: Array, cells: list[Scores]) -> list[tuple[float, float]]:
    """Variances of the mean of a sum of ``values [B, sizes]`` over samples of the seeds, with degrees of freedom: of
    all sizes together where they share their seeds, else of each; none of sizes of one seed."""
    counts = [len(cell.losses) for cell in cells]
    if len({(count, cell.seeds) for count, cell in zip(counts, cells, strict=True)}) == 1:
        values, counts = values.sum(-1, keepdims=True), counts[:1]
    return [(of_seeds(v, S), S - 1) for v, S in zip(values.T, counts, strict=True) if S > 1]


def fitted_exponent(cells: list[Scores], logs: Sequence[Sequence[float]], k: int) -> Interval:
    """p of ``best rate ~ x^p y^q ...`` along the k-th of some variables, by least squares over cells.

    Args:
        logs: ``[cells, variables]``, to base 2. Where cells have one seed each, the error comes from how far they lie
            from the power law.
    """
    rows = np.array([[1.0, *place] for place in logs])
    weights = np.linalg.pinv(rows)[1 + k]
    return chosen(cells, weights, scatter(cells, rows, weights))


def scatter(cells: list[Scores], rows: Array, weights: Array) -> tuple[float, float]:
    """What sizes of one seed show of their noise: how far their best rates lie from the least squares by ``rows``.

    Args:
        rows: ``[sizes, terms]``. weights: ``[sizes]``, of the sum that ``chosen`` is asked for.

    Returns:
        Its variance and degrees of freedom; not-a-number where no size is left to tell it by.
    """
    places = np.array([cell.best() for cell in cells])
    left, freedom = places - rows @ (np.linalg.pinv(rows) @ places), len(rows) - int(np.linalg.matrix_rank(rows))
    if freedom < 1:
        return math.nan, 1.0
    return float(left @ left / freedom * (weights @ weights)), float(freedom)


def of_seeds(values: Array, seeds: int) -> float:
    """Variance of the mean of values ``[B]`` over samples of the seeds (``resamples``), by what each seed adds to it.

    ``sum_s c_s^2 / (S (S - 1))``, where ``c_s`` is the coefficient of least squares of the values by the weights of the
    seeds, in the mean 0: exact for a mean over seeds.
    """
    return float(np.square(_changes(seeds) @ values).sum()) / (seeds * (seeds - 1))


@cache
def resamples(seeds: int) -> Array:
    """Weights ``[B, S]`` of the seeds in B samples with replacement, in which together every seed is equally often."""
    drawn = np.random.default_rng(0).permutation(_RESAMPLES * seeds) % seeds
    weights: Array = np.eye(seeds)[drawn.reshape(_RESAMPLES, seeds)].mean(1)
    return weights


@cache
def _changes(seeds: int) -> Array:
    """Least squares of values ``[B]`` by the weights of ``resamples``, ``[S, B]``."""
    changes: Array = np.linalg.pinv(resamples(seeds) - 1 / seeds).astype(np.float64)
    return changes


def rounded(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")


# ---- in words ------------------------------------------------------------------------------------------------------


def in_words(size: Size) -> str:
    """``width 8 and depth 4``."""
    return f"width {size[0]} and depth {size[1]}"


def rate_in_words(rate: Interval) -> str:
    """``0.003 [0.002, 0.004]``, as far as it is known."""
    if math.isnan(rate.value):
        return "unknown"
    return f"{rate.value:.2g}" if math.isnan(rate.low) else f"{rate.value:.2g} [{rate.low:.2g}, {rate.high:.2g}]"


def signed(number: Interval) -> str:
    """``+0.50 [+0.40, +0.60]``."""
    value, low, high = (round(v, 2) + 0.0 for v in (number.value, number.low, number.high))  # no -0.00
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
