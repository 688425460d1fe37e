"""Which learning rate to train with, where the best one is only known with an error.

A learning rate costs the share of the loss that it gives away against the best one. With u the
doublings from the best learning rate to the one that is tried,

    ``cost(u) = min(h u^2 (a if u > 0 else 1), WORST)``,    and divergence where ``u > w``.

None of the four is known: each has a distribution, and the cost is averaged over draws of all.

| unknown | distribution |
|---|---|
| log2 of the best learning rate | Student, ``FREEDOM`` degrees of freedom |
| curvature h | lognormal |
| asymmetry a | lognormal, deviation ``STEEPER`` |
| distance w to the cliff, in doublings | normal within a table, ``Cliff`` |

The advice is the learning rate of least mean cost. A diverged run is seen early and begun again, so
that it counts ``DIVERGED`` of a loss there; in what an answer calls "at most" it counts a whole
loss. At a size whose losses are in the table, advice never leaves the learning rates that were
tried, and never costs less than those losses say (``Measured``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from nfd.core.answer import Answer
from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.laws.bowl import Array, rise_at
from nfd.laws.rate_answer import GridEnd, of_training
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw
    from nfd.report.page import Section

DRAWS = 4096
# Of Student's distribution: with a normal one, 11 % of held-out cells cost more than "at most".
FREEDOM = 5.0
STEEPER = 0.5  # deviation of the log asymmetry of a new cell
WORST = 0.5  # share of the loss: what a run loses at most that does not diverge
DIVERGED = 0.1  # share of the loss; with .3 advice was 1.7 doublings too low
MOST = 0.975  # quantile of the cost that an answer calls "at most"
LUCK = 0.001  # share of the loss: how far the lowest loss of a table may be luck
# Share of its losses that a measured cell adds to the mean cost: among learning rates that the bowl
# finds equally good, those near the lowest losses.
TABLE_SHARE = 0.5

# A run to the right of the best one that lost this share of its loss is beyond the cliff.
CLIFF_RISE = 0.1
# Doublings from the best learning rate to the cliff: mean and deviation over tables, then the
# deviation within one. In ten public sweeps the means are 1.2 to 4.9.
CLIFF_MEAN = 2.4
CLIFF_DEVIATION = 1.2
CLIFF_SCATTER = 0.6
# Cells of one table are alike: each counts for so much of a cell.
CLIFF_WEIGHT = 0.5
# Chance that a cell says nothing of the cliff, as its run was spoilt by something else.
CLIFF_SPOILT = 0.01


@dataclass(frozen=True, repr=False)
class BestRate(Shown):
    """The learning rate to train with, and what is known of the best one. Print it.

    ``plot()`` draws it on its law, ``to_pandas()`` has the columns ``quantity``, ``value``, ``low``
    and ``high``.

    Attributes:
        rate: the best learning rate with its 95 % interval.
        advised: the learning rate of least expected cost: slightly below the best one, as losses
            rise faster above it.
        excess: the share of the loss that missing the best one costs at ``advised``: its mean over
            runs that do not diverge, and its 95 % interval over all, with the noise of one loss.
        diverges: the chance that training diverges at ``advised``.
        sizes: of the training, as they were asked for. law: that advises; None for a factor.
        at_end: where the lowest loss of a measured size lies at an end of its learning rates.
    """

    rate: Interval
    advised: float
    excess: Interval
    diverges: float = 0.0
    sizes: Mapping[str, float] = field(default_factory=dict)
    law: RateLaw | None = field(default=None, compare=False)
    at_end: GridEnd | None = None

    def times(self, factor: float) -> BestRate:
        """The same answer for learning rates in another unit."""
        return replace(self, rate=self.rate.scaled(factor), advised=self.advised * factor)

    @property
    def answer(self) -> Answer:
        """The learning rate to train with, and what missing the best one costs."""
        return of_training(self)

    @property
    def table(self) -> list[Row]:
        """The learning rate advised, the best one, and what missing it costs."""
        exact = {"low": math.nan, "high": math.nan}
        return [
            {"quantity": "advised learning rate", "value": self.advised} | exact,
            {"quantity": "best learning rate"} | self.rate.limits,
            {"quantity": "share of the loss lost"} | self.excess.limits,
            {"quantity": "chance to diverge", "value": self.diverges} | exact,
        ]

    def first_sections(self) -> list[Section]:
        """The best rate over what varied, with this training."""
        from nfd.laws.rate_law_page import first_sections

        return first_sections(self)


# ---- the cliff


@dataclass(frozen=True)
class Cliff:
    """The distribution of the distance from the best learning rate to the cliff.

    Attributes:
        distances: in doublings, ascending ``[W]``.
        chances: their probabilities ``[W]``.
    """

    distances: Array
    chances: Array

    def draws(self, quantiles: Array) -> Array:
        """Distances at quantiles."""
        return np.interp(quantiles, np.cumsum(self.chances), self.distances)


def cliff_of(log2_rates: Sequence[Array], rises: Sequence[Array], best: Sequence[float]) -> Cliff:
    """Infer where the cliff lies from the cells of a table.

    Each cell says between which two of its runs the cliff lies, or beyond which.

    Args:
        log2_rates: of each cell, ascending ``[E]``.
        rises: of its losses over the lowest, as shares ``[E]``; infinite where a run diverged.
        best: log2 of its best learning rate, as the law's fit found it.
    """
    means = np.linspace(0.0, 8.0, 81)
    log = -0.5 * ((means - CLIFF_MEAN) / CLIFF_DEVIATION) ** 2
    for x, rise, vertex in zip(log2_rates, rises, best, strict=True):
        is_right = x > x[rise.argmin()]
        is_beyond = is_right & (rise > CLIFF_RISE)
        first_beyond = x[is_beyond].min() if is_beyond.any() else math.inf
        last_before = x[(x < first_beyond) & (rise <= CLIFF_RISE)].max()
        # Where the vertex is thought to lie beyond the cliff, the cell only says that it is near.
        nearest = max(last_before - vertex, 0.0) if first_beyond > vertex else -math.inf
        furthest = first_beyond - vertex
        chance = ndtr((furthest - means) / CLIFF_SCATTER) - ndtr((nearest - means) / CLIFF_SCATTER)
        log = log + CLIFF_WEIGHT * np.log((1 - 2 * CLIFF_SPOILT) * chance + CLIFF_SPOILT)

    weights = np.exp(log - log.max())
    distances = np.linspace(0.02, 10.0, 250)
    scores = (distances - means[:, None]) / CLIFF_SCATTER
    density = weights @ np.exp(-0.5 * scores**2)
    return Cliff(distances, density / density.sum())


# ---- the decision


@dataclass(frozen=True)
class Bowl:
    """What is known of the bowl of one training before it runs.

    Attributes:
        log_curvature, curvature_deviation: of the lognormal curvature, in shares of the loss.
        log_asymmetry: the median of the log asymmetry.
        noise: standard deviation of one loss, as a share of it.
        cliff: the distance of the cliff.
    """

    log_curvature: float
    curvature_deviation: float
    log_asymmetry: float
    noise: float
    cliff: Cliff


@dataclass(frozen=True)
class Measured:
    """The losses of a size that the table has.

    Attributes:
        log2_rates: ascending ``[E]``. rises: of its losses over the lowest, as shares ``[E]``.
    """

    log2_rates: Array
    rises: Array

    def cost(self, tried: Array) -> Array:
        """Cost of learning rates by the straight lines between the losses, at most 1."""
        return np.asarray(np.interp(tried, self.log2_rates, np.minimum(self.rises, 1.0)))


def quantiles() -> Array:
    """The quantiles at which every unknown is drawn."""
    return (np.arange(DRAWS) + 0.5) / DRAWS


def new_training(mean: float, deviation: float, bowl: Bowl) -> BestRate:
    """Advise a learning rate where log2 of the best one has a mean and a deviation."""
    student = math.sqrt((FREEDOM - 2) / FREEDOM) * stdtrit(FREEDOM, quantiles())
    tried = mean + max(deviation, 0.05) * np.linspace(-2.5, 0.5, 61)
    half = -float(ndtri(0.025)) * deviation
    interval = _rate_interval(mean, deviation, mean - half, mean + half)
    return _advised(interval, mean + deviation * student, tried, bowl, None)


def measured_training(places: Array, chances: Array, bowl: Bowl, measured: Measured) -> BestRate:
    """Advise a learning rate at a size whose losses are in the table.

    Args:
        places: log2 of best learning rates, ascending ``[places]``.
        chances: their probabilities ``[places]``.
        bowl: what other sizes say of this one's.
        measured: its losses.
    """
    mean = float(chances @ places)
    deviation = math.sqrt(max(float(chances @ places**2) - mean**2, 1e-6))
    cumulative = np.cumsum(chances) - chances / 2
    low, high = np.interp([0.025, 0.975], cumulative, places).tolist()
    lowest = float(measured.log2_rates[0])
    highest = float(measured.log2_rates[-1])
    fine = np.linspace(lowest, highest, max(61, math.ceil(16 * (highest - lowest)) + 1))
    tried = np.unique(np.concatenate([fine, measured.log2_rates]))
    best = np.interp(quantiles(), cumulative, places)
    # Beyond the learning rates that were tried nothing is known of the cost.
    best = np.clip(best, lowest - 0.5, highest + 0.5)
    interval = _rate_interval(mean, deviation, low, high)
    return _advised(interval, best, tried, bowl, measured)


def _rate_interval(mean: float, deviation: float, low: float, high: float) -> Interval:
    value = math.pow(2, mean)
    return Interval(value, value * deviation * math.log(2), math.pow(2, low), math.pow(2, high))


def _advised(
    rate: Interval, best: Array, tried: Array, bowl: Bowl, measured: Measured | None
) -> BestRate:
    """Choose among the learning rates tried (log2) by draws ``[DRAWS]`` of the best one."""
    random = np.random.default_rng(0)
    scores = ndtri(quantiles())
    best = random.permutation(best)
    curvature = np.exp(bowl.log_curvature + bowl.curvature_deviation * random.permutation(scores))
    asymmetry = np.exp(bowl.log_asymmetry + STEEPER * random.permutation(scores))
    cliff = random.permutation(bowl.cliff.draws(quantiles()))
    noise = bowl.noise * np.abs(random.permutation(scores))

    distance = tried[:, None] - best
    cost = np.minimum(rise_at(distance, curvature, asymmetry), WORST)
    if measured is None:
        is_beyond = distance > cliff
        table = np.zeros(len(tried))
        expected = np.where(is_beyond, DIVERGED, cost).mean(1)
    else:
        # Its own losses say where the cliff is.
        is_beyond = np.zeros(cost.shape, np.bool_)
        table = measured.cost(tried)
        expected = np.maximum(cost.mean(1), table - min(bowl.noise, LUCK)) + TABLE_SHARE * table
    chosen = int(expected.argmin())

    diverges = is_beyond[chosen]
    floored = np.maximum(cost[chosen], table[chosen])
    whole = np.where(diverges, 1.0, floored) + noise
    low, high = np.quantile(whole, [1 - MOST, MOST]).tolist()
    trained = floored[~diverges]
    excess = Interval(float(trained.mean()), float(trained.std()), low, high)
    return BestRate(rate, math.pow(2, float(tried[chosen])), excess, float(diverges.mean()))
