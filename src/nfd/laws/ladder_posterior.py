"""The law of the loss over parameters and tokens: its form, its priors, and its posterior from a
ladder of runs.

For N parameters and D tokens,

    loss = E + ((A / N^a)^p + (B / D^b)^p)^(1/p),    E > 0;

of one of them alone, ``E + A / N^a``. The additive law has p = 1; published ladders have p near 2.
What this form misses is a Gaussian process over (log10 N, log10 D), the discrepancy, which grows
with the distance from the runs. Errors of runs are Student's t: a run that is tuned badly counts
less. The numbers have a prior, learned from other people's ladders (``losses.json``;
docs/real-ladders.md), and a posterior, sampled by an ensemble of walkers. Half widths of intervals
are calibrated on ladders.

Sources: Hoffmann et al. 2022, "Training compute-optimal large language models" (p = 1); Goodman &
Weare 2010, "Ensemble samplers with affine invariance"; Kennedy & O'Hagan 2001, "Bayesian
calibration of computer models" (the discrepancy); Lange, Little & Taylor 1989, "Robust statistical
modeling using the t distribution" (variances of runs).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares, minimize

from nfd.core.errors import InputError
from nfd.laws import priors

Array = NDArray[np.float64]
VARIABLES = ("parameters", "tokens")


# ---- What is taken to be so before any loss is seen.


@dataclass(frozen=True)
class Calibration:
    """Half widths of the log loss of one new run: ``q sqrt((k sd)^2 + tau^2 + (kappa gain)^2)``.

    ``sd`` is the posterior's, the gain is by how much the forecast is below the best run that was
    fitted.
    """

    k: float = 1.0
    tau: float = 0.0
    kappa: float = 0.0
    q: float = 1.96

    def spread(self, sd: Array, gain: Array) -> Array:
        """The half widths over q."""
        return np.sqrt((self.k * sd) ** 2 + self.tau**2 + (self.kappa * gain) ** 2)


@dataclass(frozen=True)
class Prior:
    """A prior of six numbers, and how far to trust the form.

    The numbers are the logarithms of the two reducible terms over E at the size ``reference``, of
    the powers a and b, of the combining power p, and of the error of a run, relative to its loss.

    Attributes:
        name: for the answer. mean, covariance: of the numbers. ladders: what it was learned from,
            with sources.
        reference: a size N, D; the middle of the table where it is None.
        reach: the smallest and the largest N, and D, of the ladders.
        freedom: of the prior of the law, a Student's t, so that runs can overrule it; nearly normal
            by default.
        discrepancy: its amplitude over the error of a run.
        calibration: of intervals.
    """

    name: str
    mean: Array
    covariance: Array
    reference: tuple[float, float] | None
    discrepancy: float
    calibration: Calibration = Calibration()
    reach: tuple[tuple[float, float], ...] = ((0.0, math.inf), (0.0, math.inf))
    ladders: Mapping[str, str] = field(default_factory=dict)
    freedom: float = 1e9

    def of(self, variables: Sequence[str]) -> tuple[Array, Array]:
        """Mean and covariance of the numbers of a law in one or both variables."""
        own = [VARIABLES.index(name) for name in variables]
        places = [*own, *(2 + k for k in own), *([4] if len(own) == 2 else []), 5]
        return self.mean[places], self.covariance[np.ix_(places, places)]


_WIDE_MEAN = np.array([-0.9, -0.9, math.log(0.35), math.log(0.33), math.log(1.4), math.log(0.004)])
_WIDE_ERROR = np.array([1.5, 1.5, 0.5, 0.5, 0.5, 1.0])
# Without calibration they held 85 % of the targets of a published ladder; with q 2.6 94 %, with 2.8
# 98 %.
_WIDE_CALIBRATION = Calibration(tau=0.005, kappa=0.02, q=2.8)
WIDE = Prior("wide priors", _WIDE_MEAN, np.diag(_WIDE_ERROR**2), None, 3.0, _WIDE_CALIBRATION)


def read_prior(prior: str | os.PathLike[str] | None) -> Prior:
    """The prior of the package (``"ladders"``), of another file, or a wide one for None."""
    if prior is None:
        return WIDE
    try:
        return priors.read_prior("losses", prior, _parsed)
    except OSError as error:  # fits of the loss promise a ValueError
        raise InputError(str(error)) from None


def _parsed(stored: Mapping[str, Any]) -> Prior:
    """Make a prior of the content of its file."""
    return Prior(
        name=stored["name"],
        mean=np.array(stored["mean"]),
        covariance=np.array(stored["covariance"]),
        reference=(stored["reference"][0], stored["reference"][1]),
        discrepancy=stored["discrepancy"],
        calibration=Calibration(**stored["calibration"]),
        reach=tuple((low, high) for low, high in stored["reach"]),
        ladders=stored["ladders"],
        freedom=stored["freedom"],
    )


# ---- The posterior.


_LENGTH = 1.0  # of the discrepancy, in decades of N and of D
FREEDOM = 4.0  # of Student's t errors of runs
# of expectation and maximisation of the variances of runs; the tenth moved them by less than a
# percent
_TURNS = 6
_WALKERS = 40
_BURNED = 500
_ROUNDS = 1400
_THINNED = 10
# the share of moves along the line to another walker; the others are differences of two
_STRETCHED = 0.7


class Posterior:
    """Draws of the law that the losses of a ladder and a prior allow, and its forecasts of the log
    loss.

    A draw is the logarithm of the loss at the reference size (where p is 1), the numbers of the
    prior in one or both variables, in its order.

    Attributes:
        draws: ``[B, numbers]``. middle: their medians. reference: the size N, D that terms are told
            at.
    """

    def __init__(
        self, variables: Sequence[str], sizes: ArrayLike, losses: ArrayLike, prior: Prior
    ) -> None:
        self.variables = tuple(variables)
        self.prior = prior
        self.sizes = np.array(sizes, dtype=float)
        self.log_losses = np.log(np.array(losses, dtype=float))
        if prior.reference is None:
            self.reference = np.exp(np.log(self.sizes).mean(0))
        else:
            self.reference = np.array(
                [prior.reference[VARIABLES.index(name)] for name in self.variables]
            )
        self.mean, covariance = prior.of(self.variables)
        self.precision = np.linalg.inv(covariance[:-1, :-1])
        self.known = covariance[-1, -1]
        self.amplitude = prior.discrepancy**2
        self.discrepancy = self.amplitude * _kernel(self.sizes, self.sizes)
        self._vary(np.ones(len(self.sizes)))
        peak = self._most_likely()
        for _ in range(_TURNS):
            self._vary(self._expected_variances(peak))
            peak = self._peak(peak)
        self.draws = _ensemble(self.log_density, peak)

    def _vary(self, variances: Array) -> None:
        """Take the errors of runs, over the common one, to have these variances."""
        self.variances = variances
        self.covariance = self.discrepancy + np.diag(variances)
        # directions that are independent
        self.spectrum, self.directions = np.linalg.eigh(self.covariance)
        self.spectrum = np.clip(self.spectrum, 1e-9, None)

    def _expected_variances(self, draw: Array) -> Array:
        """The variances of errors where they are Student's t: expected from what the law and the
        discrepancy leave.
        """
        left = (self.log_losses - self.curve(draw[None], self.sizes)[0]) * np.exp(-draw[-1])
        precision = np.linalg.inv(self.covariance)
        squared = self.variances + self.variances**2 * (
            (precision @ left) ** 2 - np.diag(precision)
        )
        return np.asarray((FREEDOM + squared) / (FREEDOM + 1))

    @cached_property
    def middle(self) -> Array:
        """The medians of the draws."""
        return np.asarray(np.median(self.draws, 0))

    def numbers(self, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Of draws ``[B, numbers]``: log loss and log terms at the reference, powers and p (1 for
        one variable).
        """
        V = len(self.variables)
        level = draws[:, 0]
        terms = draws[:, 1 : 1 + V]
        powers = np.exp(draws[:, 1 + V : 1 + 2 * V])
        return level, terms, powers, np.exp(draws[:, 1 + 2 * V]) if V == 2 else np.ones(len(draws))

    def curve(self, draws: Array, sizes: Array) -> Array:
        """The log loss by the form, ``[B, K]``, at sizes ``[K, variables]``."""
        level, terms, powers, p = self.numbers(draws)
        logs = np.log(sizes / self.reference)
        reducible = terms[:, :1] - powers[:, :1] * logs[:, 0]
        if terms.shape[1] == 2:
            other = terms[:, 1:] - powers[:, 1:] * logs[:, 1]
            reducible = np.logaddexp(p[:, None] * reducible, p[:, None] * other) / p[:, None]
        whole = np.logaddexp.reduce(np.hstack([np.zeros((len(draws), 1)), terms]), axis=1)
        return np.asarray(level[:, None] + np.logaddexp(0.0, reducible) - whole[:, None])

    def log_density(self, draws: Array) -> Array:
        """The logarithm of the posterior density of draws, up to a constant."""
        with np.errstate(all="ignore"):
            left = self.log_losses - self.curve(draws, self.sizes)
            log_error = draws[:, -1:]
            variances = np.exp(2 * log_error) * self.spectrum
            likely = -0.5 * ((left @ self.directions) ** 2 / variances + np.log(variances)).sum(1)
            away = draws[:, 1:] - self.mean
            freedom = self.prior.freedom
            distance = np.einsum("bi,ij,bj->b", away[:, :-1], self.precision, away[:, :-1])
            density = likely - (freedom + len(self.mean) - 1) / 2 * np.log1p(
                distance / (freedom - 2)
            )
            # of few runs, which a law may meet, the error would vanish
            density -= 0.5 * away[:, -1] ** 2 / self.known
        return np.where(np.isfinite(density), density, -1e300)

    def _most_likely(self) -> Array:
        """The draw of highest density, from two starts."""
        found = []
        for seed in range(2):
            away = 0.3 * seed * np.random.default_rng(seed).normal(size=len(self.mean))
            start = np.concatenate([[0.0], self.mean + away])
            start[0] = (self.log_losses - self.curve(start[None], self.sizes)[0]).mean()
            found.append(self._peak(start))
        return found[int(np.argmax(self.log_density(np.array(found))))]

    def _peak(self, start: Array) -> Array:
        """The draw of highest density that is reached from another."""
        steps = 1e-6 * np.eye(len(start))

        def fall(x: Array) -> tuple[float, Array]:
            heights = self.log_density(np.vstack([x, x + steps, x - steps]))
            return -heights[0], (heights[1 + len(x) :] - heights[1 : 1 + len(x)]) / 2e-6

        return np.asarray(minimize(fall, start, jac=True, method="L-BFGS-B").x)

    def moments(self, sizes: Array) -> tuple[Array, Array]:
        """Means of the log loss at sizes, ``[B, K]``, and the covariance of one draw, ``[K, K]``,
        over its squared error; the errors of new runs come on top."""
        across = self.amplitude * _kernel(self.sizes, sizes)
        weights = np.linalg.solve(self.covariance, across)
        left = self.log_losses - self.curve(self.draws, self.sizes)
        means = self.curve(self.draws, sizes) + left @ weights
        return means, self.amplitude * _kernel(sizes, sizes) - across.T @ weights

    def slopes(self) -> Array:
        """Slopes of the discrepancy in log N where N D stays as it is, one for each draw."""
        deviations = (
            math.sqrt(2 * self.amplitude) / (_LENGTH * math.log(10)) * np.exp(self.draws[:, -1])
        )
        return np.asarray(deviations * np.random.default_rng(1).standard_normal(len(self.draws)))

    def off_line(self, size: Array) -> float:
        """How far a size lies off the line through the runs, over their deviation from it, of at
        least .01 decades.
        """
        logs = np.log10(self.sizes)
        across = np.linalg.svd(logs - logs.mean(0), full_matrices=False)[2][-1]
        deviation = max(float(((logs - logs.mean(0)) @ across).std()), 0.01)
        return (
            abs(float((np.log10(size) - logs.mean(0)) @ across)) / deviation
            if logs.shape[1] > 1
            else 0.0
        )

    def forecasts(self, sizes: Array) -> tuple[Array, Array, Array]:
        """Median, standard deviation and gain over the best run, ``[K]`` each, of the log loss of
        new runs.
        """
        means, covariance = self.moments(sizes)
        own = np.sqrt(np.clip(np.diag(covariance), 0.0, None))
        stream = np.random.default_rng(0)
        errors = own * stream.standard_normal(means.shape) + stream.standard_t(FREEDOM, means.shape)
        new = means + np.exp(self.draws[:, -1:]) * errors
        low, middle, high = np.quantile(new, (0.025, 0.5, 0.975), 0)
        return middle, (high - low) / 3.92, np.clip(self.log_losses.min() - middle, 0.0, None)


def _kernel(rows: Array, columns: Array) -> Array:
    """The correlation of the discrepancy at two lists of sizes."""
    apart = np.log10(rows)[:, None] - np.log10(columns)[None]
    return np.asarray(np.exp(-0.5 * np.square(apart).sum(-1) / _LENGTH**2))


def _ensemble(log_density: Callable[[Array], Array], start: Array) -> Array:
    """Draws from a density by walkers that move along the line to another, or by the difference of
    two others.
    """
    stream = np.random.default_rng(0)
    numbers = len(start)
    half = _WALKERS // 2
    walkers = start + 0.01 * stream.standard_normal((_WALKERS, numbers))
    heights = log_density(walkers)
    kept = list[Array]()
    for turn in range(_ROUNDS):
        for moving, others in (
            (slice(0, half), slice(half, None)),
            (slice(half, None), slice(0, half)),
        ):
            own = walkers[moving]
            one = walkers[others][stream.integers(half, size=half)]
            if stream.random() < _STRETCHED:
                stretch = np.square(stream.random(half) + 1) / 2
                moved = one + stretch[:, None] * (own - one)
                volume = (numbers - 1) * np.log(stretch)
            else:
                apart = one - walkers[others][stream.integers(half, size=half)]
                moved = own + 2.38 / math.sqrt(2 * numbers) * apart
                volume = np.zeros(half)
            reached = log_density(moved)
            taken = np.log(stream.random(half)) < volume + reached - heights[moving]
            walkers[moving] = np.where(taken[:, None], moved, own)
            heights[moving] = np.where(taken, reached, heights[moving])
        if turn >= _BURNED and turn % _THINNED == 0:
            kept.append(walkers.copy())
    return np.concatenate(kept)


# ---- The usual additive fit, beside it.


_HUBER = 1e-3  # of the log loss: where squares become absolute values
_STARTS = (0.25, 0.5)


@dataclass(frozen=True)
class Additive:
    """The usual fit ``E + A / N^a + B / D^b`` by Huber's loss of log losses, without intervals.

    Attributes:
        E: the irreducible loss. factors: A and B. powers: a and b, in the order of the variables.
    """

    E: float
    factors: tuple[float, ...]
    powers: tuple[float, ...]

    def loss(self, sizes: Array) -> Array:
        """The losses at sizes ``[K, variables]``."""
        return np.asarray(
            self.E + (np.array(self.factors) * sizes ** -np.array(self.powers)).sum(1)
        )


def fit_additive(sizes: Array, losses: Array) -> Additive:
    """The additive fit to losses ``[K]`` at sizes ``[K, variables]``."""
    V = sizes.shape[1]
    middle = np.exp(np.log(sizes).mean(0))
    logs = np.log(sizes / middle)

    def left(x: Array) -> Array:
        terms = np.hstack([np.full((len(logs), 1), x[0]), x[1 : 1 + V] - x[1 + V :] * logs])
        return np.asarray(np.logaddexp.reduce(terms, axis=1) - np.log(losses))

    least = math.log(losses.min())
    starts = [[least - 0.5, *[least - 1.6] * V, *[power] * V] for power in _STARTS]
    fits = [
        least_squares(left, start, loss="huber", f_scale=_HUBER, max_nfev=500) for start in starts
    ]
    x = min(fits, key=lambda fit: fit.cost).x
    factors = np.exp(x[1 : 1 + V]) * middle ** x[1 + V :]
    return Additive(math.exp(x[0]), tuple(factors.tolist()), tuple(x[1 + V :].tolist()))
