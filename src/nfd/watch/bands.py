"""What the meters of a larger network come to, with prediction intervals, from a ladder of small
ones.

**Scale.** A meter v is compared as ``z = log(v + c)``, with c a thousandth of its median over the
ladder: factors count, and zero, a frozen layer, lies far outside of every band, at a finite
distance.

**Place.** Layers of one kind, such as ``up`` of every block, are one curve along the blocks of
their stack. A network with another number of blocks takes its values from this curve linearly, its
ends at the curve's ends.

**Size.** At every step and place the runs r of the ladder, of widths n and depths L, give two
predictions by least squares,

    z = a + b log n + d log L        a power of size
    z = a + b / n + d / L            a limit

A short ladder does not decide between these laws, and most meters lie between: their mean ``sum_r
w_r z_r`` is the prediction, and half of their distance, ``gap``, an error of it.

**Error.** Every run of the ladder is predicted from the others. The squares of these deviations
over ``1 + sum w_r^2`` estimate the variance s^2 of one run at one step. With few runs this estimate
is noisy, so it is averaged with its own mean over the steps and with the median over all meters
(moderation, Smyth 2004). Then

    error^2 = s^2 (1 + sum w_r^2) + gap^2 + 0.01^2,      t = (z - prediction) / error

**All meters, layers and looks at once.** A run deviates by

    S = max over meters and layers and over looks of min(|t|, |t of the look before|), where both
    have one sign

so that a deviation has to last two looks. The S of the runs of the ladder, each predicted from the
others, vary as lognormal numbers; the limit is the point that a further one of their kind passes
with a chance of ``level``, ``exp(mean + q sd sqrt(1 + 1/R))`` of their logarithms, q by Student's t
with R - 1 degrees of freedom.

**Faults.** Where the check of the ladder found faults, as under rule ``standard``, meters drift
with size. The laws of size above carry the trend on. A trend that two sizes show need not go on, so
that the limit is ``2.25`` times as far.

Between two looks of the ladder predictions are interpolated in log step; before the first and after
the last there is no band.

Source: G. Smyth, Linear models and empirical Bayes methods (2004), for the moderated variance.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError
from nfd.core.estimates import standard_errors
from nfd.meters.reading import Series, in_series, stack_at
from nfd.meters.reading import WatchRow as WatchRow
from nfd.meters.updates import DEFINITION, means_the_same
from nfd.scaling.model import numberless
from nfd.scaling.optimizers import WHOLE_MATRIX, law_of

Array = NDArray[np.float64]

CHANGE = "change"  # of a matrix, by all of its entries
ALERTS = "alerts"  # how many a watch raised so far: a row of every look, for trackers
LEVEL = 0.05  # the chance that a sound run raises an alert
_OLDER = (
    "expected is a check of an earlier version, whose stream_update left out factors of the "
    "forward pass: this meter is not compared. Check again to compare it."
)
_OFFSET = 1e-3  # of the median: what zero is taken for
_SAME_SIZE = 0.01  # widths that the tensors of one network say
_LEAST_ERROR = 0.01  # no band is narrower: a change of a meter by 1 % has no cause worth a name
_LEAST_FREEDOM = 3  # degrees of freedom of a fit
# Of the limit, where the check found faults: trends that two sizes show need not go on. Of 36 sound
# networks under ``standard`` (GPT-2, an encoder, MLPs) 20 left the usual limit lastingly, 6 one
# 1.75 times as wide, and 1 this one.
DRIFTING = 2.25

# ---- A ladder: small networks of several sizes that were looked at after the same steps


@dataclass(frozen=True)
class LadderRun:
    """One network of a ladder: its size, what was read of it, and the shapes of its tensors."""

    width: float
    depth: float
    rows: Sequence[WatchRow]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps after which it was looked at."""
        return tuple(sorted({row.step for row in self.rows}))

    @property
    def layers(self) -> set[str]:
        """The layers that have matrices, with ``*`` for numbers."""
        return {
            numberless(row.layer)
            for row in self.rows
            if row.layer is not None and row.meter == CHANGE
        }

    @cached_property
    def curves(self) -> dict[Series, Array]:
        """Every series as ``[looks, layers along the blocks]``; not-a-number where nothing was
        read.
        """
        depths = sorted({row.depth for row in self.rows if row.depth is not None})
        curves: dict[Series, Array] = {}
        for series, rows in in_series(self.rows).items():
            places: list[float | None] = [
                depth for depth in depths if stack_at(depth) == series.stack
            ]
            if series.stack is None:
                places = [None]
            curve = curves[series] = np.full((len(self.steps), len(places)), np.nan)
            for row in rows:
                # None of JSON is not a number
                curve[self.steps.index(row.step), places.index(row.depth)] = row.value
        return curves


@dataclass(frozen=True)
class Ladder:
    """Networks that were looked at after the same steps.

    Args:
        networks: of several sizes; those that broke off are left out.
        base: the width and depth by which plans of this ladder count.
        rule, optimizer: their names.
        ok: whether the check found no fault in them.
        lr: the tuned learning rate; None where it was not stored.
    """

    networks: Sequence[LadderRun]
    base: tuple[float, float]
    rule: str = ""
    optimizer: str = ""
    ok: bool = True
    lr: float | None = None

    @classmethod
    def of(cls, stored: Any) -> Self:
        """The ladder of ``Check.ladder``, of a check or from a file.

        Meters that an earlier version defined otherwise are left out, with a warning.

        Raises:
            ValueError: for what is none.
        """
        try:
            definition = int(stored.get("definition", 1))
            networks = [
                LadderRun(
                    float(run["width"]),
                    float(run["depth"]),
                    [
                        row
                        for row in starmap(WatchRow, run["readings"])
                        if means_the_same(row.meter, definition)
                    ],
                    dict(run.get("shapes", {})),
                )
                for run in stored["networks"]
            ]
            if definition < DEFINITION:
                warnings.warn(_OLDER, RuntimeWarning, stacklevel=4)
            width, depth = (float(size) for size in stored["base"])
            lr = None if stored.get("lr") is None else float(stored["lr"])
            is_sound = bool(stored.get("ok", True))
            return cls(networks, (width, depth), stored["rule"], stored["optimizer"], is_sound, lr)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected is not the ladder of a check ({type(error).__name__}: {error}). Check "
                "again, with at=(...)."
            ) from None

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps after which every network was looked at."""
        return max((run.steps for run in self.networks), key=len, default=())

    @cached_property
    def runs(self) -> list[LadderRun]:
        """The networks that trained to the end."""
        return [run for run in self.networks if run.steps == self.steps]

    @cached_property
    def curves(self) -> dict[Series, list[Array]]:
        """Every series that all runs have and that follows their size, one curve for each of
        them.
        """
        shared = set.intersection(*(set(run.curves) for run in self.runs))
        kept = [
            series
            for series in self.runs[0].curves
            if series in shared and not self._follows_rank(series)
        ]
        return {series: [run.curves[series] for run in self.runs] for series in kept}

    def size_of(self, shapes: Mapping[str, Sequence[int]]) -> tuple[float, float]:
        """Find the width and the depth, in the units of this ladder, of a network whose tensors
        have these shapes.

        The number of tensors is linear in the depth, and every length that grows is linear in the
        width.

        Raises:
            ValueError: where shapes were not stored, or those of the network do not follow from
                theirs.
        """
        known = [run for run in self.networks if run.shapes]
        if not known:
            raise InputError(
                "expected was stored without the shapes of its networks, and the plan has no base "
                "that says the size of the model. Check again."
            )
        depth = _solved({run.depth: float(len(run.shapes)) for run in known}, float(len(shapes)))
        lengths = defaultdict[tuple[str, int], dict[float, float]](dict)
        for run in known:
            for name, shape in run.shapes.items():
                for axis, length in enumerate(shape):
                    lengths[name, axis][run.width] = float(length)
        widths = {
            _solved(lengths[name, axis], float(length))
            for name, shape in shapes.items()
            for axis, length in enumerate(shape)
            if len(set(lengths[name, axis].values())) > 1 or len({run.width for run in known}) == 1
        }
        solved = [width for width in widths if width is not None]
        if depth is None or not solved or max(solved) > min(solved) * (1 + _SAME_SIZE):
            raise InputError(
                "expected does not show how wide and deep the model is: the shapes of its tensors "
                "do not follow from those of the check's networks. Check networks of the model's "
                "own kind, of two widths and two depths."
            )
        return float(np.median(solved)), depth

    def _follows_rank(self, series: Series) -> bool:
        """Whether a meter adds up all singular values where the optimizer fixes the largest alone:
        it then grows with the rank of the gradients, which follows no law of size."""
        if series.meter != CHANGE or not self.optimizer:
            return False
        law = law_of(self.optimizer)
        return law.unit == WHOLE_MATRIX and (series.stack is not None or law.rest is None)


def _solved(lengths: Mapping[float, float], length: float) -> float | None:
    """Find the size at which a length that is linear in the size has a value; None where sizes do
    not show it.
    """
    sizes = sorted(lengths)
    if not sizes:
        return None
    first = sizes[0]
    last = sizes[-1]
    slope = (lengths[last] - lengths[first]) / (last - first) if last > first else 0.0
    if slope:
        return first + (length - lengths[first]) / slope
    return first if length == lengths[first] else first * length / lengths[first]


# ---- Bands: what a network of another size should come to


@dataclass(frozen=True)
class Band:
    """The predicted value of a meter with two intervals.

    Attributes:
        value: the prediction.
        low, high: limits for alerts. With probability 1 - ``LEVEL`` a healthy run keeps them in all
            meters, layers and looks together.
        deviation: the measured value minus the prediction, in standard errors of the prediction.
    """

    value: float
    low: float
    high: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


class Bands:
    """Bands of every meter for a network of this size.

    Args:
        ladder: of small networks.
        width, depth: of the network, in the units of the ladder.
        blocks: how many residual blocks every stack of it has.

    Attributes:
        alone: how many errors of prediction a number alone stays within with 95 %.
        limit: how many a deviation that lasts may reach; no fewer.

    Raises:
        ValueError: where the ladder is too small, or has a single width or depth which is not the
            network's.
    """

    def __init__(self, ladder: Ladder, width: float, depth: float, blocks: Sequence[int]) -> None:
        sizes = np.array([(run.width, run.depth) for run in ladder.runs], dtype=float).reshape(
            -1, 2
        )
        coefficients = 1 + sum(len(set(own)) > 1 for own in sizes.T)
        _check(ladder, sizes, (width, depth), coefficients + _LEAST_FREEDOM)
        self.ladder = ladder
        self.blocks = blocks
        self.alone = standard_errors(len(sizes) - coefficients)
        logs: dict[Series, tuple[list[Array], float]] = {}
        for series, runs in ladder.curves.items():
            values = np.concatenate([curve.ravel() for curve in runs])
            offset = _OFFSET * float(np.median(values))
            if np.isfinite(values).all() and (values >= 0).all() and offset > 0:
                logs[series] = [np.log(curve + offset) for curve in runs], offset
        others = [_weights(np.delete(sizes, r, 0), sizes[r])[0] for r in range(len(sizes))]
        deviations = {
            series: [_deviation(curves, r, own) for r, own in enumerate(others)]
            for series, (curves, _) in logs.items()
        }
        self.limit = max(_limit(deviations, len(sizes)), self.alone) * (
            1.0 if ladder.ok else DRIFTING
        )
        weights, gaps = _weights(sizes, np.array([width, depth], dtype=float))
        variances = _variance(deviations)
        # z and its error [looks, places]; the offset
        self._predicted: dict[Series, tuple[Array, Array, float]] = {}
        for series, (curves, offset) in logs.items():
            z = np.stack(
                [_at_places(c, 1 if series.stack is None else blocks[series.stack]) for c in curves]
            )
            spread = variances[series][:, None] * (1 + weights @ weights)
            errors = np.sqrt(spread + np.tensordot(gaps, z, 1) ** 2 + _LEAST_ERROR**2)
            self._predicted[series] = np.tensordot(weights, z, 1), errors, offset

    def at(self, series: Series, step: int, depth: float | None, value: float) -> Band | None:
        """The band of a series at a step and at a depth in its stack, and where a value lies in it;
        None where the ladder does not know it."""
        steps = self.ladder.steps
        if series not in self._predicted or not steps[0] <= step <= steps[-1]:
            return None
        *curves, offset = self._predicted[series]
        stack = series.stack
        place = (
            0 if depth is None or stack is None else round((depth - stack) * self.blocks[stack]) - 1
        )
        z, error = (
            float(np.interp(math.log(step), np.log(steps), curve[:, place])) for curve in curves
        )
        low, expected, high = (
            max(math.exp(min(z + errors * error, 700.0)) - offset, 0.0)
            for errors in (-self.limit, 0.0, self.limit)
        )
        known = math.isfinite(value) and value + offset > 0
        deviation = (math.log(value + offset) - z) / error if known else math.inf
        return Band(expected, low, high, deviation)


def _check(ladder: Ladder, sizes: Array, size: tuple[float, float], needed: int) -> None:
    """ValueError where a ladder of networks of these sizes cannot tell of this one."""
    if len(sizes) < needed:
        had = (
            f"at least {needed} networks that trained to the end; got {len(sizes)}. Check with "
            "more seeds."
        )
        raise InputError(f"expected must hold {had}")
    if len(ladder.steps) < 2:
        raise InputError(
            f"expected must have looked at two steps or more; got {list(ladder.steps)}. Check with "
            "at=(1, 3, 10, ...), up to the last step that is to be watched."
        )
    for axis, wanted, own in zip(("width", "depth"), size, sizes.T, strict=True):
        if np.ptp(own) == 0 and not math.isclose(wanted, own[0], rel_tol=1e-6):
            one = f"networks of {axis} {own[0]:g} alone, and the model has {axis} {wanted:g}"
            raise InputError(f"expected has {one}. Check with two {axis}s or more.")


def _variance(
    deviations: Mapping[Series, Sequence[Array]], without: int | None = None
) -> dict[Series, Array]:
    """The variance of one run at every look, by the held-out deviations of all runs or without
    one.
    """
    own = {
        series: np.stack([np.square(of).mean(1) for r, of in enumerate(runs) if r != without]).mean(
            0
        )
        for series, runs in deviations.items()
    }
    typical: dict[bool, Array] = {
        in_block: np.median(
            np.stack([v for s, v in own.items() if (s.stack is not None) == in_block]), axis=0
        )
        for in_block in {s.stack is not None for s in own}
    }
    return {
        series: (v + v.mean() + typical[series.stack is not None]) / 3 for series, v in own.items()
    }


def _limit(deviations: Mapping[Series, Sequence[Array]], count: int) -> float:
    """How far the largest lasting deviation of a further run reaches, but for a chance of
    ``LEVEL``.
    """
    largest = np.zeros(count)
    for run in range(count):
        variance = _variance(deviations, run)
        for series, own in deviations.items():
            t = own[run] / np.sqrt(variance[series] + _LEAST_ERROR**2)[:, None]
            lasting = np.where(t[:-1] * t[1:] > 0, np.minimum(np.abs(t[:-1]), np.abs(t[1:])), 0.0)
            largest[run] = max(largest[run], lasting.max())
    logs = np.log(largest)
    reach = standard_errors(count - 1, LEVEL) * logs.std(ddof=1) * math.sqrt(1 + 1 / count)
    return math.exp(logs.mean() + reach)


def _deviation(curves: Sequence[Array], run: int, weights: Array) -> Array:
    """The deviation of one run from what the others predict, over ``sqrt(1 + |w|^2)``."""
    others = np.stack(
        [_at_places(curve, curves[run].shape[1]) for r, curve in enumerate(curves) if r != run]
    )
    deviation: Array = (curves[run] - np.tensordot(weights, others, 1)) / math.sqrt(
        1 + weights @ weights
    )
    return deviation


def _weights(sizes: Array, size: Array) -> tuple[Array, Array]:
    """How runs of these sizes add up to the prediction at another size, and to half the distance of
    the two laws.
    """
    power, limit = (_of_law(law(sizes), law(size)) for law in (np.log, np.reciprocal))
    return (power + limit) / 2, (power - limit) / 2


def _of_law(sizes: Array, size: Array) -> Array:
    """Least squares on a constant and on the sizes that differ, as weights of the runs."""
    differ = np.ptp(sizes, axis=0) > 0
    design = np.column_stack([np.ones(len(sizes)), sizes[:, differ]])
    weights: Array = np.append(1.0, size[differ]) @ np.linalg.pinv(design)
    return weights


def _at_places(curve: Array, places: int) -> Array:
    """A curve ``[looks, p]`` at another number of places, the first and the last of both the
    same.
    """
    own, at = (
        np.linspace(0, 1, count) if count > 1 else np.array([0.5])
        for count in (curve.shape[1], places)
    )
    return np.stack([np.interp(at, own, look) for look in curve])
