"""The best learning rate of networks: where their typical score is lowest over log2 of the rate.

What is sought minimises the geometric mean over all initialisations of the score: the loss, or log
C where that is larger or not finite, as divergence counts as the loss of a uniform guess. The
losses of a few seeds on a grid have a likelihood: around the vertex ``nu`` they rise as

    ``f(x) = h (x - nu)^2`` to the left, ``a h (x - nu)^2`` to the right,    at most ``cap``,

with any curvature ``h``, a lognormal asymmetry ``a``, noise of the seeds, and an error of the form
in proportion to f, by which far rates count little. Beyond ``cap``, a share of the progress, a rate
only says that it is that bad: on a steep side of the bowl, or beyond a cliff, which may cut the
bowl off before its vertex; then the best rate is the edge.

The interval adds the spread of the best rate given these losses, and what each seed adds to it
(``chosen``).

Source: shapes of the cells of public rate sweeps; Efron 2014, "Estimation and accuracy after model
selection" (errors by influence); docs/mathematics/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nfd.core.estimates import UNKNOWN, Interval, combined
from nfd.laws.bowl import NEAR_SHARE, Array, Bools, posterior

Size = tuple[int, int]  # width and depth

# The least noise of a rise, in units of the cap: the grids of the integrals (``bowl``) resolve no
# less.
LEAST_NOISE = 0.01
UNSEEN_NOISE = 0.1  # the same where one seed shows no noise

# How much the best rate differs from seed to seed: a prior of so many doublings, worth so many
# seeds.
SEED_SCATTER = 0.1
SCATTER_SEEDS = 2.0

LEARNT = 0.01  # nats below a uniform guess
# Of a guess's loss. Below it the seeds' spread is as large as what is learnt: a ViT of 60 steps had
# 2.303 nats before and 2.20 after, and an interval of the cost from -54 to 67 %. Another, of 20
# steps, had 2.28, a best rate 30 times too high, and an interval far from zero.
HARDLY = 0.05
LEAST_LOSS = 1e-9  # below which no logarithm of a loss is taken


@dataclass(frozen=True)
class Posterior:
    """What the losses at one size say of its best rate.

    Attributes:
        mean: expected log2 of the best rate.
        variance: of log2 of the best rate.
        single: the part of ``variance`` that is noise of single runs; the rest is error of the
            bowl's form.
        shares: what each seed adds to the mean ``[S]``; they sum to zero.
        freedom: degrees of freedom of the noise.
    """

    mean: float
    variance: float
    single: float
    shares: Array
    freedom: int


@dataclass(frozen=True)
class Scores:
    """Final losses of networks of one size.

    Attributes:
        log2_eta: ``[E]``, ascending. losses: ``[S, E]``, one row per seed, infinite where one
            diverged, not-a-number where none was trained.
        upset: ``[S, E]``, whether training diverged, or its loss rose to twice the first on the
            way.
        guess: the loss that divergence counts as, and progress is measured from: log C, that of a
            uniform guess.
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
        return np.log(np.maximum(self.scores, LEAST_LOSS))

    @cached_property
    def counts(self) -> Array:
        """How many seeds were trained at every rate ``[E]``."""
        return np.asarray((~np.isnan(self.losses)).sum(0))

    @cached_property
    def has_gaps(self) -> bool:
        """Whether some seeds were not trained at some rates."""
        return bool(self.counts.min() < len(self.losses))

    @cached_property
    def fit(self) -> TwoWay:
        """Levels of rates and seeds where there are gaps: seeds count at near rates only.

        At far rates, where some seeds diverge, a seed is not better or worse by one amount.
        """
        means = np.nanmean(self.logs, 0)
        return two_way(self.logs, self._near(np.exp(means)))

    @property
    def typical(self) -> Array:
        """Geometric mean over seeds ``[E]``, which single spikes change little."""
        if self.has_gaps:
            return np.asarray(np.exp(self.fit.levels))
        return np.asarray(np.exp(self.logs.mean(0)))

    @property
    def learns(self) -> bool:
        """Whether at any rate the typical score is below ``guess``."""
        return bool(self.typical.min() < self.guess - self.least)

    @property
    def hardly_learns(self) -> bool:
        """Whether even the best rate learns too little for rates to be compared by it.

        False where nobody said the loss before training, so that ``least`` is 0.
        """
        return self.least > 0 and self.guess - float(self.typical.min()) < HARDLY * self.guess

    @property
    def edge(self) -> int:
        """-1 where lower rates may be better, 1 where higher ones may be, 0 elsewhere."""
        if self.learns:
            best = int(self.typical.argmin())
            if best == 0:
                return -1
            return 1 if best == len(self.log2_eta) - 1 else 0

        # Nothing is learnt: rates are too high if the lowest upsets training, too low if none does.
        if self.upset[:, 0].any():
            return -1
        return 0 if self.upset.any() else 1

    @property
    def has_optimum(self) -> bool:
        """Whether the best rate lies inside of the grid: it is known there alone."""
        return self.learns and not self.edge

    @property
    def fails_from(self) -> float:
        """The lowest rate above the best at which half of the seeds or more learn nothing.

        Infinite where no such rate was trained. Where nobody said the loss of a guess, only
        divergence counts.
        """
        nothing_learnt = self.guess if self.least > 0 else math.inf
        lost = (self.losses >= nothing_learnt).sum(0) >= self.counts / 2
        above = np.arange(len(self.log2_eta)) > self.typical.argmin()
        failing = self.log2_eta[lost & above]
        return math.pow(2, failing[0]) if len(failing) else math.inf

    @property
    def reached(self) -> Array:
        """Scores ``[S]``, each at the rate that is best for the other seeds, so free of luck.

        Seeds that were not trained there are left out.
        """
        if self.has_gaps:
            return self._reached_with_gaps()
        logs = self.logs
        others = logs.sum(0) - logs if len(logs) > 1 else logs
        return np.asarray(self.scores[np.arange(len(logs)), others.argmin(1)])

    def _reached_with_gaps(self) -> Array:
        reached = list[float]()
        for seed in range(len(self.losses)):
            others = np.delete(self.losses, seed, 0)
            trained = ~np.isnan(others).all(0)
            of_others = replace(
                self,
                log2_eta=self.log2_eta[trained],
                losses=others[:, trained],
                upset=np.delete(self.upset, seed, 0)[:, trained],
                seeds=(),
            )
            score = self.scores[seed, trained][of_others.typical.argmin()]
            if not math.isnan(score):
                reached.append(float(score))
        return np.array(reached)

    @property
    def near(self) -> Bools:
        """Whether a rate keeps enough of the progress for its loss to count as it is ``[E]``."""
        return self._near(self.typical)

    def _near(self, typical: Array) -> Bools:
        lowest = typical.min()
        return np.asarray(typical - lowest <= NEAR_SHARE * (self.guess - lowest))

    @cached_property
    def posterior(self) -> Posterior:
        """What the losses say of the best rate."""
        lowest = self.typical.min()
        relative = self.typical / lowest
        cap = max(NEAR_SHARE * (self.guess - lowest) / lowest, LEAST_LOSS)
        rise = np.minimum((relative - 1) / cap, 1.0)
        # of every run from the typical loss at its rate
        if self.has_gaps:
            deviations = self.fit.residuals / cap
        else:
            deviations = (self.logs - self.logs.mean(0)) / cap
        noise, freedom = self._noise(deviations)

        mean, variance, slopes = posterior(self.log2_eta, rise, noise * relative)
        # Derivatives by logarithms of losses, whose noise is the same at every rate. Beyond the cap
        # they are zero.
        slopes = np.where(self.near, slopes * relative, 0.0)
        noise_variance = float(np.square(slopes * noise).sum())
        shares = deviations @ slopes
        if self.has_gaps:
            # A mean over fewer seeds gives each of them more weight.
            weights = len(self.losses) / self.counts
            shares = np.nan_to_num(deviations) @ (weights * slopes)
        return Posterior(mean, variance, min(noise_variance, variance), shares, freedom)

    def _noise(self, deviations: Array) -> tuple[float | Array, int]:
        """Standard error of the typical loss at a rate, from the ``near`` runs ``[S, E]``.

        With its degrees of freedom. Where there are gaps it is an array ``[E]``.
        """
        if self.has_gaps:
            return self._noise_with_gaps(deviations)
        seeds = len(deviations)
        if seeds < 2:
            return UNSEEN_NOISE, 0
        near = deviations[:, self.near]
        rates = near.shape[1]
        if rates > 1:  # a seed that is better at every rate moves no best rate
            near = near - near.mean(1, keepdims=True)
        freedom = (seeds - 1) * max(rates - 1, 1)
        noise = math.sqrt(float(np.square(near).sum()) / freedom / seeds)
        return max(LEAST_NOISE, noise), freedom

    def _noise_with_gaps(self, deviations: Array) -> tuple[Array, int]:
        near = deviations[:, self.near]
        trained = ~np.isnan(near)
        parameters = near.shape[1]
        if near.shape[1] > 1:
            parameters += int(trained.any(1).sum()) - 1
        freedom = max(int(trained.sum()) - parameters, 0)
        single = UNSEEN_NOISE
        if freedom:
            single = math.sqrt(float(np.nansum(np.square(near))) / freedom)
        return np.maximum(LEAST_NOISE, single / np.sqrt(self.counts)), freedom

    def best(self) -> float:
        """log2 of the best rate."""
        return self.posterior.mean

    def optimum(self) -> Interval:
        """``best`` with its interval."""
        return chosen([self], np.ones(1))

    def rate(self) -> Interval:
        """The best rate; not-a-number where it lies at an end of the grid, or nothing is learnt."""
        return self.optimum().scaled(math.log(2)).exp() if self.has_optimum else UNKNOWN


@dataclass(frozen=True)
class TwoWay:
    """Levels of rates, and what is left of every training.

    Attributes:
        levels: ``[E]``, of the average seed at near rates. residuals: ``[S, E]``, not-a-number
            where nothing was trained.
    """

    levels: Array
    residuals: Array


def two_way(logs: Array, near: Bools) -> TwoWay:
    """Fit levels of rates ``[E]`` to logarithms ``[S, E]``, and of seeds where rates are near.

    By least squares, so that a rate is not better for having been trained from better seeds.
    """
    levels = np.nanmean(logs, 0)
    residuals = logs - levels
    if int(near.sum()) < 2:
        return TwoWay(levels, residuals)
    near_logs = logs[:, near]
    seeds = np.flatnonzero(~np.isnan(near_logs).all(1))
    seed_places, rate_places = np.nonzero(~np.isnan(near_logs[seeds]))
    design = np.zeros((len(seed_places), len(seeds) + near_logs.shape[1]))
    rows = np.arange(len(design))
    design[rows, seed_places] = 1.0
    design[rows, len(seeds) + rate_places] = 1.0
    observed = near_logs[seeds][seed_places, rate_places]
    solution = np.linalg.lstsq(design, observed)[0]
    of_seeds, of_rates = np.split(solution, [len(seeds)])
    levels[near] = of_rates + of_seeds.mean()
    fitted = np.full(near_logs.shape, np.nan)
    fitted[seeds] = of_seeds[:, None] + of_rates
    residuals[:, near] = near_logs - fitted
    return TwoWay(levels, residuals)


def chosen(
    cells: Sequence[Scores], weights: Array, scatter: tuple[float, float] = (math.nan, 1.0)
) -> Interval:
    """Estimate a weighted sum of the best rates of some sizes.

    Args:
        cells: scores of each size. Those of the same seeds vary together, others independently.
        weights: ``[sizes]``.
        scatter: in place of the noise of the seeds where a size has one seed alone: a variance, and
            its degrees of freedom; limits are not-a-number without it.
    """
    posteriors = [cell.posterior for cell in cells]
    value = sum(w * p.mean for w, p in zip(weights, posteriors, strict=True))
    form_variance = sum(
        w**2 * (p.variance - p.single) for w, p in zip(weights, posteriors, strict=True)
    )
    form = (float(form_variance), math.inf)
    if any(len(cell.losses) < 2 for cell in cells):
        return combined(float(value), [scatter, form])

    weighted = [(float(w), p) for w, p in zip(weights, posteriors, strict=True)]
    if any(cell.has_gaps for cell in cells):
        parts = [_cell_variance(*one, cell) for one, cell in zip(weighted, cells, strict=True)]
        return combined(float(value), [*parts, form])
    seed_sets = {(len(cell.losses), cell.seeds) for cell in cells}
    groups = [weighted] if len(seed_sets) == 1 else [[one] for one in weighted]
    return combined(float(value), [*map(_seed_variance, groups), form])


def _seed_variance(group: Sequence[tuple[float, Posterior]]) -> tuple[float, float]:
    """Variance of a weighted sum that seeds of several sizes cause, and its freedom.

    Few seeds estimate a variance poorly, so that what they show is averaged with a prior worth
    ``SCATTER_SEEDS``.
    """
    shares = np.sum([w * p.shares for w, p in group], 0)
    seeds = len(shares)
    seen = float(np.square(shares).sum()) / seeds
    prior = sum(w**2 * (p.single + SEED_SCATTER**2 / seeds) for w, p in group)
    freedom = seeds - 1 + SCATTER_SEEDS
    return (seen + SCATTER_SEEDS * prior) / freedom, freedom


def _cell_variance(weight: float, posterior: Posterior, cell: Scores) -> tuple[float, float]:
    """Variance that the seeds of one size cause, and its freedom, where some have gaps.

    It is pooled over rates: at a rate that one seed was trained at, its share is zero whatever the
    noise.
    """
    if not cell.has_gaps:
        return _seed_variance([(weight, posterior)])
    fewest_seeds = int(cell.counts[cell.near].min())
    freedom = posterior.freedom + SCATTER_SEEDS
    scatter = SCATTER_SEEDS / freedom * SEED_SCATTER**2 / fewest_seeds
    return weight**2 * (posterior.single + scatter), freedom


def fitted_exponent(cells: Sequence[Scores], logs: Sequence[Sequence[float]], k: int) -> Interval:
    """Fit p of ``best rate ~ x^p y^q ...`` along one variable, by least squares over cells.

    Args:
        cells: scores of each size. Where they have one seed each, the error comes from how far they
            lie from the power law.
        logs: the variables of each cell ``[cells, variables]``, to base 2.
        k: the place of the variable.

    Returns:
        The power with its interval; not-a-number where the variable varies only with the others.
    """
    rows = np.array([[1.0, *variables] for variables in logs])
    rank = int(np.linalg.matrix_rank(rows))
    if rank == np.linalg.matrix_rank(np.delete(rows, 1 + k, 1)):
        return UNKNOWN

    inverse = np.linalg.pinv(rows)
    weights = inverse[1 + k]
    best = np.array([cell.best() for cell in cells])
    misfit = best - rows @ (inverse @ best)
    freedom = len(rows) - rank
    scatter = float(misfit @ misfit / freedom * (weights @ weights)) if freedom else math.nan
    return chosen(cells, weights, (scatter, max(freedom, 1.0)))


def rounded(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")


def in_words(size: Size) -> str:
    """``width 8 and depth 4``."""
    return f"width {size[0]} and depth {size[1]}"
