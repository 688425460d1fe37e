"""What the meters of a larger network come to, with prediction intervals, from a ladder of small ones.

**Scale.** A meter v is compared as ``z = log(v + c)``, with c a thousandth of its median over the ladder: factors
count, and zero, a frozen layer, lies far outside of every band, at a finite distance.

**Place.** Layers of one kind, such as ``up`` of every block, are one curve along the blocks of their stack. A network
with another number of blocks takes its values from this curve linearly: the first block at the first, the last at the
last.

**Size.** At every step and place the runs r of the ladder, of widths n and depths L, give two predictions by least
squares,

    z = a + b log n + d log L        a power of size
    z = a + b / n + d / L            a limit

A short ladder does not decide between these laws, and most meters lie between: their mean ``sum_r w_r z_r`` is the
prediction, and half of their distance, ``gap``, an error of it.

**Error.** Every run of the ladder is predicted from the others. The squares of these deviations over ``1 + sum w_r^2``
estimate the variance s^2 of one run at one step. With few runs this estimate is noisy, so it is averaged with its own
mean over the steps and with the median over all meters (moderation, Smyth 2004). Then

    error^2 = s^2 (1 + sum w_r^2) + gap^2 + 0.01^2,      t = (z - prediction) / error

**All meters, layers and looks at once.** A run deviates by

    S = max over meters and layers and over looks of min(|t|, |t of the look before|), where both have one sign

so that a deviation has to last two looks. The S of the runs of the ladder, each predicted from the others, vary as
lognormal numbers; the limit is the point that a further one of their kind passes with a chance of ``level``,
``exp(mean + q sd sqrt(1 + 1/R))`` of their logarithms, q by Student's t with R - 1 degrees of freedom.

Between two looks of the ladder predictions are interpolated in log step. Before the first and after the last there is
no band.

Source: G. Smyth, Linear models and empirical Bayes methods (2004), for the moderated variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError
from nfd.core.estimates import standard_errors
from nfd.watch.ladder import Ladder, Series

Array = NDArray[np.float64]

LEVEL = 0.05  # the chance that a sound run raises an alert
_OFFSET = 1e-3  # of the median: what zero is taken for
_LEAST_ERROR = 0.01  # no band is narrower: a change of a meter by 1 % has no cause worth a name
_LEAST_FREEDOM = 3  # degrees of freedom of a fit


@dataclass(frozen=True)
class Band:
    """The predicted value of a meter with two intervals.

    Attributes:
        value: the prediction.
        low, high: limits for alerts. With probability 1 - ``LEVEL`` a healthy run keeps them in all meters, layers and
            looks together.
        alone_low, alone_high: the 95 % prediction interval of this number alone.
        deviation: the measured value minus the prediction, in standard errors of the prediction.
    """

    value: float
    low: float
    high: float
    alone_low: float
    alone_high: float
    deviation: float


@dataclass(frozen=True)
class _Predicted:
    """Predictions of one series and their errors, ``[looks, places]``, in ``log(v + offset)``."""

    values: Array
    errors: Array
    offset: float


class Bands:
    """Bands of every meter for a network of this size.

    Args:
        ladder: of small networks.
        width, depth: of the network, in the units of the ladder.
        blocks: how many residual blocks every stack of it has.

    Attributes:
        limit: how many errors of prediction a deviation that lasts may reach; no fewer than a number alone may.

    Raises:
        ValueError: where the ladder is too small, or has a single width or depth which is not the network's.
    """

    def __init__(self, ladder: Ladder, width: float, depth: float, blocks: Sequence[int]) -> None:
        self.ladder, self.blocks = ladder, blocks
        self._sizes = np.array([(run.width, run.depth) for run in ladder.runs], dtype=float)
        self._check(width, depth)
        self._logs = _logarithms(ladder.curves)
        self._weights, self._gaps = _weights(self._sizes, np.array([width, depth], dtype=float))
        self._held_out = _HeldOut(self._sizes, {series: log.runs for series, log in self._logs.items()})
        self.limit = max(self._held_out.limit(LEVEL), standard_errors(self.freedom))
        self._predicted: dict[Series, _Predicted] = {series: self._predict(series) for series in self._logs}

    @cached_property
    def freedom(self) -> int:
        """Degrees of freedom of the errors: runs of the ladder less coefficients."""
        return len(self._sizes) - _coefficients(self._sizes)

    def at(self, series: Series, step: int, depth: float | None, value: float) -> Band | None:
        """The band of a series at a step and at a depth in its stack, and where a value lies in it; None where the
        ladder does not know it."""
        steps, predicted = self.ladder.steps, self._predicted.get(series)
        if predicted is None or not steps[0] <= step <= steps[-1]:
            return None
        stack = series.stack
        place = 0 if depth is None or stack is None else round((depth - stack) * self.blocks[stack]) - 1
        z, error = (
            float(np.interp(math.log(step), np.log(steps), numbers[:, place]))
            for numbers in (predicted.values, predicted.errors)
        )

        def reach(errors: float) -> float:
            return max(math.exp(min(z + errors * error, 700.0)) - predicted.offset, 0.0)

        alone = standard_errors(self.freedom)
        known = math.isfinite(value) and value + predicted.offset > 0
        deviation = (math.log(value + predicted.offset) - z) / error if known else math.inf
        return Band(reach(0), reach(-self.limit), reach(self.limit), reach(-alone), reach(alone), deviation)

    def _check(self, width: float, depth: float) -> None:
        runs, needed = len(self._sizes), _coefficients(self._sizes) + _LEAST_FREEDOM
        if runs < needed:
            raise InputError(
                f"expected must hold at least {needed} networks that trained to the end; got {runs}. Check with more "
                "seeds."
            )
        if len(self.ladder.steps) < 2:
            raise InputError(
                f"expected must have looked at two steps or more; got {list(self.ladder.steps)}. Check with "
                "at=(1, 3, 10, ...), up to the last step that is to be watched."
            )
        for axis, size, own in (("width", width, self._sizes[:, 0]), ("depth", depth, self._sizes[:, 1])):
            if np.ptp(own) == 0 and not math.isclose(size, own[0], rel_tol=1e-6):
                raise InputError(
                    f"expected has networks of {axis} {own[0]:g} alone, and the model has {axis} {size:g}. Check with "
                    f"two {axis}s or more."
                )

    def _predict(self, series: Series) -> _Predicted:
        log, variance = self._logs[series], self._held_out.variance()[series]
        runs = np.stack(
            [_at_places(curve, 1 if series.stack is None else self.blocks[series.stack]) for curve in log.runs]
        )
        values, gap = np.tensordot(self._weights, runs, 1), np.tensordot(self._gaps, runs, 1)
        spread = variance[:, None] * (1 + self._weights @ self._weights)
        return _Predicted(values, np.sqrt(spread + gap**2 + _LEAST_ERROR**2), log.offset)


@dataclass(frozen=True)
class _Logarithms:
    """``log(v + offset)`` of every run of the ladder, ``[looks, places]``."""

    runs: list[Array]
    offset: float


def _logarithms(curves: Mapping[Series, Sequence[Array]]) -> dict[Series, _Logarithms]:
    """Of every series that is finite, not negative and mostly above zero."""
    logs = {}
    for series, runs in curves.items():
        values = np.concatenate([curve.ravel() for curve in runs])
        if np.isfinite(values).all() and (values >= 0).all() and (offset := _OFFSET * float(np.median(values))) > 0:
            logs[series] = _Logarithms([np.log(curve + offset) for curve in runs], offset)
    return logs


class _HeldOut:
    """Every run of a ladder, predicted from the others.

    Args:
        sizes: ``[R, 2]``, widths and depths. runs: of every series one curve a run.
    """

    def __init__(self, sizes: Array, runs: Mapping[Series, Sequence[Array]]) -> None:
        self.weights = [_weights(np.delete(sizes, r, 0), sizes[r])[0] for r in range(len(sizes))]
        self.deviations = {
            series: [self._deviation(curves, r) for r in range(len(sizes))] for series, curves in runs.items()
        }
        self.squares = {
            series: np.stack([np.square(of_run).mean(1) for of_run in own]) for series, own in self.deviations.items()
        }

    def variance(self, without: int | None = None) -> dict[Series, Array]:
        """The variance of one run at every look, by all runs or without one."""
        kept = [r for r in range(len(next(iter(self.squares.values())))) if r != without]
        own = {series: squares[kept].mean(0) for series, squares in self.squares.items()}
        typical = {along: _median([v for s, v in own.items() if s.along == along]) for along in {s.along for s in own}}
        return {series: (v + v.mean() + typical[series.along]) / 3 for series, v in own.items()}

    def limit(self, level: float) -> float:
        """How far the largest lasting deviation of a further run reaches, but for a chance of ``level``."""
        runs = len(next(iter(self.squares.values())))
        logs = np.log([self._largest(r) for r in range(runs)])
        reach = standard_errors(runs - 1, level) * logs.std(ddof=1) * math.sqrt(1 + 1 / runs)
        return math.exp(logs.mean() + reach)

    def _deviation(self, curves: Sequence[Array], run: int) -> Array:
        """The deviation of one run from what the others predict, over ``sqrt(1 + |w|^2)``."""
        weights, places = self.weights[run], curves[run].shape[1]
        others = np.stack([_at_places(curve, places) for r, curve in enumerate(curves) if r != run])
        deviation: Array = (curves[run] - np.tensordot(weights, others, 1)) / math.sqrt(1 + weights @ weights)
        return deviation

    def _largest(self, run: int) -> float:
        variance = self.variance(run)
        deviations = (
            own[run] / np.sqrt(variance[series] + _LEAST_ERROR**2)[:, None] for series, own in self.deviations.items()
        )
        return max(float(lasting(t[:-1], t[1:]).max()) for t in deviations)


def lasting(before: Array, now: Array) -> Array:
    """The part of deviations that lasts two looks: the smaller one, 0 where their signs differ."""
    return np.where(before * now > 0, np.minimum(np.abs(before), np.abs(now)), 0.0)


def _weights(sizes: Array, size: Array) -> tuple[Array, Array]:
    """How runs of these sizes add up to the prediction at another size, and to half the distance of the two laws."""
    power, limit = (_of_law(law(sizes), law(size)) for law in (np.log, np.reciprocal))
    return (power + limit) / 2, (power - limit) / 2


def _of_law(sizes: Array, size: Array) -> Array:
    """Least squares on a constant and on the sizes that differ, as weights of the runs."""
    differ = np.ptp(sizes, axis=0) > 0
    design = np.column_stack([np.ones(len(sizes)), sizes[:, differ]])
    weights: Array = np.append(1.0, size[differ]) @ np.linalg.pinv(design)
    return weights


def _coefficients(sizes: Array) -> int:
    return 1 + int((np.ptp(sizes, axis=0) > 0).sum())


def _at_places(curve: Array, places: int) -> Array:
    """A curve ``[looks, p]`` at another number of places, the first and the last of both the same."""
    return curve @ _interpolation(curve.shape[1], places)


@cache
def _interpolation(given: int, wanted: int) -> Array:
    """How given places along the blocks add up to wanted ones, ``[given, wanted]``."""
    own, at = (np.linspace(0, 1, count) if count > 1 else np.array([0.5]) for count in (given, wanted))
    return np.stack([np.interp(at, own, unit) for unit in np.eye(given)])


def _median(variances: Sequence[Array]) -> Array:
    median: Array = np.median(np.stack(variances), axis=0)
    return median
