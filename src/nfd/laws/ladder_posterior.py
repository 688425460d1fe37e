"""The loss law over parameters and tokens: its form, its priors, its posterior from a ladder.

For N parameters and D tokens,

    loss = E + ((A / N^a)^p + (B / D^b)^p)^(1/p),    E > 0;

of only one of them, ``E + A / N^a``. The additive law has p = 1; published ladders have p near 2.
What this form misses, the discrepancy, is modelled by a Gaussian process over (log10 N, log10 D):
it grows with the distance from the runs. Errors of runs are Student's t, so that a badly tuned run
counts less. The numbers have a prior, learned from published ladders (``losses.json``;
docs/real-ladders.md), and a posterior, sampled by an ensemble of walkers. The widths of intervals
are calibrated on such ladders.

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
from nfd.laws.supplies import SUPPLIES

Array = NDArray[np.float64]
VARIABLES = ("parameters", "tokens")
# The error of a run, over its loss, below which ladders stay whose runs are tuned alike.
UNTUNED = 0.005


# ---- What is assumed before any loss is seen.


@dataclass(frozen=True)
class Calibration:
    """Half widths of intervals of the log loss of one new run, with constants fitted on ladders.

    They are ``q sqrt((k sd)^2 + tau^2 + (kappa gain)^2)``. Here ``sd`` is the posterior's standard
    deviation of the log loss, and ``gain`` is how far the forecast lies below the best run that was
    fitted. Where the error of a run is ``UNTUNED`` or more, k falls with its power ``scatter``:
    runs that are not tuned alike scatter more than the law that they show is off.
    """

    k: float = 1.0
    tau: float = 0.0
    kappa: float = 0.0
    q: float = 1.96
    scatter: float = 0.0

    def spread(self, sd: Array, gain: Array, error: float = 0.0) -> Array:
        """The half widths divided by q, for runs with a relative error."""
        k = self.k * max(1.0, error / UNTUNED) ** -self.scatter
        return np.asarray(np.sqrt((k * sd) ** 2 + self.tau**2 + (self.kappa * gain) ** 2))


@dataclass(frozen=True)
class Prior:
    """A prior of six numbers, and how far to trust the form.

    The numbers are logarithms: of ``A / N^a / E`` and ``B / D^b / E`` at the size ``reference``, of
    the powers a and b, of the combining power p, and of the relative error of the loss of a run.

    Attributes:
        name: what answers call it.
        mean, covariance: of the numbers.
        ladders: what it was learned from, with sources.
        reference: a size (N, D); None for the geometric mean of the sizes that are fitted.
        reach: the smallest and the largest N, and D, of the ladders.
        freedom: degrees of freedom of the prior of all numbers but the last, a Student's t. Few let
            runs overrule the prior; the default is nearly a normal prior.
        discrepancy: its standard deviation, as a multiple of the error of a run.
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
        terms = [VARIABLES.index(name) for name in variables]
        powers = [2 + k for k in terms]
        combining_power = [4] if len(terms) == 2 else []
        places = [*terms, *powers, *combining_power, 5]
        return self.mean[places], self.covariance[np.ix_(places, places)]

    def with_supplies(
        self, variables: Sequence[str], supplies: Sequence[str]
    ) -> tuple[Array, Array]:
        """Mean and covariance with the numbers of supplies, which stand before the error's."""
        mean, covariance = self.of(variables)
        of_supplies = [SUPPLIES[name] for name in supplies]
        place = [len(mean) - 1] * len(of_supplies)
        mean = np.insert(mean, place, [supply.mean for supply in of_supplies])
        for axis in (0, 1):
            covariance = np.insert(covariance, place, 0.0, axis)
        for k, supply in enumerate(of_supplies, place[0] if place else 0):
            covariance[k, k] = supply.error**2
        return mean, covariance


_WIDE_MEAN = np.array([-0.9, -0.9, math.log(0.35), math.log(0.33), math.log(1.4), math.log(0.004)])
_WIDE_ERROR = np.array([1.5, 1.5, 0.5, 0.5, 0.5, 1.0])
# Nominal 95 % intervals held 85 % of the targets of a published ladder without calibration, 94 %
# with q 2.6, and 98 % with q 2.8.
_WIDE_CALIBRATION = Calibration(tau=0.005, kappa=0.02, q=2.8)
WIDE = Prior("wide priors", _WIDE_MEAN, np.diag(_WIDE_ERROR**2), None, 3.0, _WIDE_CALIBRATION)


def read_prior(prior: str | os.PathLike[str] | None) -> Prior:
    """Read the prior of the package (``"ladders"``) or of another file; a wide one for None."""
    if prior is None:
        return WIDE
    try:
        return priors.read_prior("losses", prior, _parsed)
    # Callers document a ValueError, which InputError is, for every prior that cannot be read.
    except OSError as error:
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


# The length scale of the discrepancy's kernel, in decades of N and of D.
_LENGTH = 1.0
# The same in the ratios of supplies, such as how often tokens repeat.
_LENGTH_OF_RATIOS = 0.3
# The degrees of freedom of the errors of runs, which are Student's t.
FREEDOM = 4.0
# How often the variances of runs are expected, and the most likely law is found anew (expectation
# maximisation); the tenth turn moved the variances by less than a percent.
_TURNS = 6
# The ensemble: the number of walkers, and of rounds in which all of them move.
_WALKERS = 40
_ROUNDS = 1400
# Walkers become draws after these rounds, in every tenth one.
_BURN_IN = 500
_DRAW_EVERY = 10
# The share of rounds that move walkers along the line to another one ("stretch moves"); the others
# move them by the difference of two others.
_STRETCH_SHARE = 0.7


class Posterior:
    """Draws of the law that a ladder's losses and a prior allow, and forecasts of the log loss.

    Without any runs they are draws of the prior, of a loss near 3 nats whose level is not known.

    A draw begins with the level, and goes on with the numbers of the prior in one or both
    variables, in its order. The level is the log loss that the law with these E, A and B would have
    at the reference size if p were 1.

    Attributes:
        draws: ``[B, numbers]``.
        reference: the size for which a draw gives the terms ``A / N^a`` and ``B / D^b``,
            ``[variables]``.
        supplies: what stands behind the sizes of the runs (``nfd.laws.supplies``), by name.
        ratios: of the runs for each supply, such as how often tokens repeat, ``[K, supplies]``.
    """

    def __init__(
        self,
        variables: Sequence[str],
        sizes: ArrayLike,
        losses: ArrayLike,
        prior: Prior,
        supplies: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        self.variables = tuple(variables)
        self.prior = prior
        self.supplies = tuple(supplies or ())
        self.sizes = np.array(sizes, dtype=float).reshape(-1, len(self.variables))
        self.log_losses = np.log(np.array(losses, dtype=float))
        if prior.reference is None:
            self.reference = np.exp(np.log(self.sizes).mean(0))
        else:
            self.reference = np.array(
                [prior.reference[VARIABLES.index(name)] for name in self.variables]
            )
        self.ratios = self.ratios_of(self.sizes, supplies or {})
        # Asked of thousands of draws
        self._logs_of_runs = self._log_ratios(self.sizes)
        self.mean, covariance = prior.with_supplies(self.variables, self.supplies)
        self.precision = np.linalg.inv(covariance[:-1, :-1])
        # The prior's variance of the log error of a run, which is taken to be independent of the
        # other numbers.
        self.log_error_variance = covariance[-1, -1]
        # Discrepancy and variances are in units of the squared error of a run.
        self.amplitude = prior.discrepancy**2
        self.places = _places(self.sizes, self.ratios)
        self.discrepancy = self.amplitude * _kernel(self.places, self.places)
        if not len(self.sizes):
            self.covariance = self.discrepancy
            self.draws = self._draws_of_prior(covariance)
            return
        self._set_variances(np.ones(len(self.sizes)))
        peak = self._most_likely()
        for _ in range(_TURNS):
            self._set_variances(self._expected_variances(peak))
            peak = self._peak(peak)
        self.draws = _ensemble(self.log_density, peak)

    def ratios_of(self, sizes: Array, supplies: Mapping[str, ArrayLike]) -> Array:
        """The ratios of sizes ``[K, variables]`` for each supply, ``[K, supplies]``.

        Without one tokens are new, and networks as sparse as the run of the lowest loss.
        """
        columns = np.ones((len(sizes), len(self.supplies)))
        for k, name in enumerate(self.supplies):
            supply = SUPPLIES[name]
            used = sizes[:, self.variables.index(supply.variable)]
            if name in supplies:
                columns[:, k] = supply.ratio(used, np.asarray(supplies[name], dtype=float))
            elif supply.is_larger:
                columns[:, k] = self.ratios[self.log_losses.argmin(), k]
        return columns

    def _draws_of_prior(self, covariance: Array) -> Array:
        """Draw laws before the first run, as many as after it."""
        stream = np.random.default_rng(0)
        count = _WALKERS * (_ROUNDS - _BURN_IN) // _DRAW_EVERY
        away = stream.multivariate_normal(np.zeros(len(self.mean)), covariance, count)
        # Student's t of all numbers but the error; its covariance is the prior's.
        freedom = self.prior.freedom
        away[:, :-1] *= np.sqrt((freedom - 2) / stream.chisquare(freedom, (count, 1)))
        level = math.log(3.0) + stream.standard_normal((count, 1))
        return np.hstack([level, self.mean + away])

    def _set_variances(self, variances: Array) -> None:
        """Set the variance of the error of every run, as a multiple of the common squared error."""
        self.variances = variances
        self.covariance = self.discrepancy + np.diag(variances)
        # Along eigenvectors the residuals are independent.
        spectrum, self.directions = np.linalg.eigh(self.covariance)
        self.spectrum = np.clip(spectrum, 1e-9, None)

    def _expected_variances(self, draw: Array) -> Array:
        """Expect the variance of the error of every run, given the residuals of a draw.

        It is one step of expectation maximisation for Student's t errors (Lange et al.): a run far
        off the curve gets a larger variance.
        """
        expected = self.curve(draw[None], self.sizes, self.ratios)[0]
        residuals = (self.log_losses - expected) * np.exp(-draw[-1])
        precision = np.linalg.inv(self.covariance)
        # A residual is discrepancy plus error. Given all residuals r, with P the inverse covariance
        # and v the variance, the error has the mean v (P r) and the variance v - v^2 diag(P).
        correction = (precision @ residuals) ** 2 - np.diag(precision)
        squared_errors = self.variances + self.variances**2 * correction
        return np.asarray((FREEDOM + squared_errors) / (FREEDOM + 1))

    @cached_property
    def middle(self) -> Array:
        """The medians of the draws."""
        return np.asarray(np.median(self.draws, 0))

    def numbers(self, draws: Array) -> tuple[Array, Array, Array, Array]:
        """Split draws ``[B, numbers]`` into the level, log terms over E, powers, and p.

        Level and terms are at the reference. p is 1 for one variable.
        """
        V = len(self.variables)
        level = draws[:, 0]
        terms = draws[:, 1 : 1 + V]
        powers = np.exp(draws[:, 1 + V : 1 + 2 * V])
        p = np.exp(draws[:, 1 + 2 * V]) if V == 2 else np.ones(len(draws))
        return level, terms, powers, p

    def curve(self, draws: Array, sizes: Array, ratios: Array | None = None) -> Array:
        """The log loss by the law, without discrepancy, ``[B, K]``, at sizes ``[K, variables]``.

        Args:
            draws, sizes: as above.
            ratios: of the sizes for each supply, ``[K, supplies]``; as of ``ratios_of`` by default.
        """
        level, terms, powers, p = self.numbers(draws)
        logs = self._log_sizes(draws, sizes, ratios)
        reducible = terms[:, :1] - powers[:, :1] * logs[0]
        if terms.shape[1] == 2:
            other = terms[:, 1:] - powers[:, 1:] * logs[1]
            reducible = np.logaddexp(p[:, None] * reducible, p[:, None] * other) / p[:, None]
        # The log of the loss over E where the level is: at the reference, with p = 1.
        of_level = np.logaddexp(0.0, terms[:, 0])
        for k in range(1, terms.shape[1]):
            of_level = np.logaddexp(of_level, terms[:, k])
        return np.asarray(level[:, None] + np.logaddexp(0.0, reducible) - of_level[:, None])

    def _log_ratios(self, sizes: Array) -> list[Array]:
        """The logarithms of every variable over the reference: ``[1, K]``."""
        return list(np.log(sizes / self.reference).T[:, None])

    def _log_sizes(self, draws: Array, sizes: Array, ratios: Array | None) -> list[Array]:
        """The logarithms of what counts of each variable, over the reference: ``[B or 1, K]``."""
        logs = self._logs_of_runs if sizes is self.sizes else self._log_ratios(sizes)
        if not self.supplies:
            return logs
        if ratios is None:
            ratios = self.ratios_of(sizes, {})
        logs = [*logs]
        for k, name in enumerate(self.supplies):
            place = self.variables.index(SUPPLIES[name].variable)
            logs[place] = logs[place] + SUPPLIES[name].log_worth(
                ratios[:, k], self.of_supply(draws, name)
            )
        return logs

    def of_supply(self, draws: Array, name: str) -> Array:
        """The numbers of a supply in draws, ``[B]``."""
        return np.asarray(draws[:, self.supplies.index(name) - len(self.supplies) - 1])

    def log_density(self, draws: Array) -> Array:
        """The logarithm of the posterior density of draws, up to a constant."""
        with np.errstate(all="ignore"):
            residuals = self.log_losses - self.curve(draws, self.sizes, self.ratios)
            log_error = draws[:, -1:]
            variances = np.exp(2 * log_error) * self.spectrum
            squares = (residuals @ self.directions) ** 2
            likely = -0.5 * (squares / variances + np.log(variances)).sum(1)
            # The prior: Student's t in all numbers but the error, and normal in the log error. The
            # level has none.
            away = draws[:, 1:] - self.mean
            freedom = self.prior.freedom
            distance = np.einsum("bi,ij,bj->b", away[:, :-1], self.precision, away[:, :-1])
            weight = (freedom + len(self.mean) - 1) / 2
            density = likely - weight * np.log1p(distance / (freedom - 2))
            # A law may fit a few runs exactly: without a prior of its own their error would go to
            # zero, and the density to infinity.
            density -= 0.5 * away[:, -1] ** 2 / self.log_error_variance
        return np.where(np.isfinite(density), density, -1e300)

    def _most_likely(self) -> Array:
        """Find the draw of highest density, from the prior's mean and from a point near it."""
        peaks = []
        for seed in range(2):
            # Zero at the first start.
            away = 0.3 * seed * np.random.default_rng(seed).normal(size=len(self.mean))
            start = np.concatenate([[0.0], self.mean + away])
            expected = self.curve(start[None], self.sizes, self.ratios)[0]
            start[0] = (self.log_losses - expected).mean()
            peaks.append(self._peak(start))
        return peaks[int(np.argmax(self.log_density(np.array(peaks))))]

    def _peak(self, start: Array) -> Array:
        """Climb from a draw to a maximum of the density."""
        count = len(start)
        steps = 1e-6 * np.eye(count)

        def fall(x: Array) -> tuple[float, Array]:
            """Return minus the log density and its gradient, by central differences."""
            heights = self.log_density(np.vstack([x, x + steps, x - steps]))
            above = heights[1 : 1 + count]
            below = heights[1 + count :]
            return -heights[0], (below - above) / 2e-6

        return np.asarray(minimize(fall, start, jac=True, method="L-BFGS-B").x)

    def moments(self, sizes: Array, ratios: Array | None = None) -> tuple[Array, Array]:
        """Compute what every draw expects of the log loss at sizes: means and their covariance.

        Args:
            sizes, ratios: as for ``curve``.

        Returns:
            Means ``[B, K]`` of law and discrepancy, given the residuals of the runs; and the
            covariance ``[K, K]`` of the discrepancy, which is the same for all draws in units of
            the draw's squared error. Errors of new runs are not in it.
        """
        if ratios is None:
            ratios = self.ratios_of(sizes, {})
        places = _places(sizes, ratios)
        across = self.amplitude * _kernel(self.places, places)
        weights = np.linalg.solve(self.covariance, across)
        residuals = self.log_losses - self.curve(self.draws, self.sizes, self.ratios)
        means = self.curve(self.draws, sizes, ratios) + residuals @ weights
        return means, self.amplitude * _kernel(places, places) - across.T @ weights

    def slopes(self) -> Array:
        """Draw slopes of the discrepancy in log N at constant N D, one for each draw."""
        # The slope of a Gaussian process with this kernel has the deviation sqrt(amplitude) /
        # _LENGTH per decade. There is a factor sqrt(2) as log D falls by what log N rises.
        slope = math.sqrt(2 * self.amplitude) / (_LENGTH * math.log(10))
        deviations = slope * np.exp(self.draws[:, -1])
        return np.asarray(deviations * np.random.default_rng(1).standard_normal(len(self.draws)))

    def off_line(self, size: Array) -> float:
        """How far a size lies off the line through the runs, over their standard deviation from it.

        The line is fitted in (log10 N, log10 D). The deviation counts as at least 0.01 decades. For
        runs in one variable, which all lie on a line, the answer is 0.
        """
        logs = np.log10(self.sizes)
        if logs.shape[1] < 2:
            return 0.0
        middle = logs.mean(0)
        across = np.linalg.svd(logs - middle, full_matrices=False)[2][-1]
        deviation = max(float(((logs - middle) @ across).std()), 0.01)
        return abs(float((np.log10(size) - middle) @ across)) / deviation

    def forecasts(self, sizes: Array, ratios: Array | None = None) -> tuple[Array, Array, Array]:
        """Forecast the log loss of new runs at sizes ``[K, variables]``.

        Args:
            sizes, ratios: as for ``curve``.

        Returns:
            Median, standard deviation, and how far the median lies below the best run that was
            fitted (0 where it does not), ``[K]`` each.
        """
        means, covariance = self.moments(sizes, ratios)
        of_discrepancy = np.sqrt(np.clip(np.diag(covariance), 0.0, None))
        stream = np.random.default_rng(0)
        # One error for all sizes of a draw, so that a curve of forecasts is smooth, and the same as
        # forecasts of single sizes.
        shape = (len(means), 1)
        errors = of_discrepancy * stream.standard_normal(shape)
        errors = errors + stream.standard_t(FREEDOM, shape)
        new = means + np.exp(self.draws[:, -1:]) * errors
        low, middle, high = np.quantile(new, (0.025, 0.5, 0.975), 0)
        # A 95 % interval of a normal is 2 x 1.96 standard deviations wide.
        sd = (high - low) / 3.92
        return middle, sd, np.clip(self.log_losses.min() - middle, 0.0, None)


def _places(sizes: Array, ratios: Array) -> Array:
    """Where the discrepancy sees runs, ``[K, variables + supplies]``."""
    return np.hstack([sizes, ratios ** (_LENGTH / _LENGTH_OF_RATIOS)])


def _kernel(rows: Array, columns: Array) -> Array:
    """The correlation of the discrepancy between two lists of sizes, ``[rows, columns]``."""
    apart = np.log10(rows)[:, None] - np.log10(columns)[None]
    return np.asarray(np.exp(-0.5 * np.square(apart).sum(-1) / _LENGTH**2))


def _ensemble(log_density: Callable[[Array], Array], start: Array) -> Array:
    """Draw from a density by an ensemble of walkers (Goodman & Weare).

    Half of the walkers move at a time, each along the line through one of the resting half, or by
    the difference of two of that half.
    """
    stream = np.random.default_rng(0)
    numbers = len(start)
    half = _WALKERS // 2
    first = slice(0, half)
    second = slice(half, None)
    walkers = start + 0.01 * stream.standard_normal((_WALKERS, numbers))
    heights = log_density(walkers)
    draws = list[Array]()
    for turn in range(_ROUNDS):
        for moving, resting in ((first, second), (second, first)):
            now = walkers[moving]
            partners = walkers[resting][stream.integers(half, size=half)]
            if stream.random() < _STRETCH_SHARE:
                # From 1/2 to 2, with the density 1 / sqrt(stretch) that makes the move reversible.
                stretch = np.square(stream.random(half) + 1) / 2
                moved = partners + stretch[:, None] * (now - partners)
                log_volume = (numbers - 1) * np.log(stretch)
            else:
                difference = partners - walkers[resting][stream.integers(half, size=half)]
                # The usual factor of differential evolution (ter Braak 2006).
                moved = now + 2.38 / math.sqrt(2 * numbers) * difference
                log_volume = np.zeros(half)
            reached = log_density(moved)
            accepted = np.log(stream.random(half)) < log_volume + reached - heights[moving]
            walkers[moving] = np.where(accepted[:, None], moved, now)
            heights[moving] = np.where(accepted, reached, heights[moving])
        if turn >= _BURN_IN and turn % _DRAW_EVERY == 0:
            draws.append(walkers.copy())
    return np.concatenate(draws)


# ---- The usual additive fit, for comparison.


# The residual of the log loss beyond which Huber's loss is linear, not quadratic.
_HUBER = 1e-3
# Powers from which the fit starts.
_STARTS = (0.25, 0.5)


@dataclass(frozen=True)
class Additive:
    """The usual fit ``E + A / N^a + B / D^b`` by Huber's loss of log losses, without intervals.

    Attributes:
        E: the irreducible loss.
        factors, powers: A and B, and a and b, in the order of the variables.
    """

    E: float
    factors: tuple[float, ...]
    powers: tuple[float, ...]

    def loss(self, sizes: Array) -> Array:
        """The losses ``[K]`` at sizes ``[K, variables]``."""
        terms = np.array(self.factors) * sizes ** -np.array(self.powers)
        return np.asarray(self.E + terms.sum(1))


def fit_additive(sizes: Array, losses: Array) -> Additive:
    """Fit the additive law to losses ``[K]`` at sizes ``[K, variables]``."""
    V = sizes.shape[1]
    middle = np.exp(np.log(sizes).mean(0))
    logs = np.log(sizes / middle)

    def residuals(x: Array) -> Array:
        """Take x as log E, the logs of the terms at ``middle``, and the powers."""
        terms = np.hstack([np.full((len(logs), 1), x[0]), x[1 : 1 + V] - x[1 + V :] * logs])
        return np.asarray(np.logaddexp.reduce(terms, axis=1) - np.log(losses))

    least = math.log(losses.min())
    fits = []
    for power in _STARTS:
        # E at 0.6 of the lowest loss, and each term at 0.2 of it.
        start = [least - 0.5, *[least - 1.6] * V, *[power] * V]
        fits.append(least_squares(residuals, start, loss="huber", f_scale=_HUBER, max_nfev=500))
    x = min(fits, key=lambda fit: fit.cost).x
    factors = np.exp(x[1 : 1 + V]) * middle ** x[1 + V :]
    return Additive(math.exp(x[0]), tuple(factors.tolist()), tuple(x[1 + V :].tolist()))
