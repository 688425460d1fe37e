"""What the meters of a larger network come to, predicted with intervals from small networks.

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
the last look there is no band.

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
from nfd.scaling.find_law import law_of
from nfd.scaling.model import numberless
from nfd.scaling.optimizers import WHOLE_MATRIX

Array = NDArray[np.float64]

# The change of a matrix, by all of its entries
CHANGE = "change"
# How many alerts a watch raised so far: a row of every look, for trackers
ALERTS = "alerts"
# The chance that a sound run raises an alert
LEVEL = 0.05
_OLDER = (
    "expected is a check of an earlier version, whose stream_update left out factors of the "
    "forward pass: this meter is not compared. Check again to compare it."
)
# Zero is taken for this share of the median.
_OFFSET = 1e-3
# How far the widths may differ that the tensors of one network show
_SAME_SIZE = 0.01
# No band is narrower: a change of a meter by 1 % has no cause worth a name.
_LEAST_ERROR = 0.01
# Degrees of freedom of a fit
_LEAST_FREEDOM = 3
# Widens the limit where the check found faults: trends that two sizes show need not go on. Of 36
# sound networks under ``standard`` (GPT-2, an encoder, MLPs) 20 left the usual limit lastingly, 6
# one 1.75 times as wide, and 1 this one.
DRIFTING = 2.25

# ---- A ladder: small networks of several sizes that were looked at after the same steps


@dataclass(frozen=True)
class LadderRun:
    """One network of a ladder: its size, what was read of it, and the shapes of its tensors.

    ``losses`` are by step, at the looks; empty in files of earlier versions.
    """

    width: float
    depth: float
    rows: Sequence[WatchRow]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)

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
        """Every series ``[looks, layers along blocks]``; not-a-number where nothing was read."""
        depths = sorted({row.depth for row in self.rows if row.depth is not None})
        curves: dict[Series, Array] = {}
        for series, rows in in_series(self.rows).items():
            places: list[float | None] = [None]
            if series.stack is not None:
                places = [depth for depth in depths if stack_at(depth) == series.stack]
            curve = np.full((len(self.steps), len(places)), np.nan)
            for row in rows:
                # JSON has None for not-a-number, which this assignment takes as such.
                curve[self.steps.index(row.step), places.index(row.depth)] = row.value
            curves[series] = curve
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
        schedule: factors on it, one for each step; empty where they were not stored.
    """

    networks: Sequence[LadderRun]
    base: tuple[float, float]
    rule: str = ""
    optimizer: str = ""
    ok: bool = True
    lr: float | None = None
    schedule: Sequence[float] = ()

    @classmethod
    def of(cls, stored: Any) -> Self:
        """Read ``Check.ladder``, of a check or from a file.

        Meters that were stored under another definition are left out, with a warning.

        Raises:
            ValueError: if it is not a ladder.
        """
        try:
            definition = int(stored.get("definition", 1))
            networks = [_run_of(run, definition) for run in stored["networks"]]
            if definition < DEFINITION:
                warnings.warn(_OLDER, RuntimeWarning, stacklevel=4)
            width, depth = (float(size) for size in stored["base"])
            lr = None if stored.get("lr") is None else float(stored["lr"])
            # Earlier versions did not store it.
            schedule = [float(factor) for factor in stored.get("schedule", ())]
            return cls(
                networks,
                (width, depth),
                stored["rule"],
                stored["optimizer"],
                bool(stored.get("ok", True)),
                lr,
                schedule,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected is not the ladder of a check ({type(error).__name__}: {error}). Check "
                "again, with at=(...)."
            ) from None

    def rate_at(self, step: int) -> float | None:
        """The tuned learning rate of a step, its schedule included; None where it is not known."""
        if self.lr is None or step > len(self.schedule):
            return self.lr
        return self.lr * self.schedule[step - 1]

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
        """Every series that all runs have and that follows their size, with the curve of each."""
        shared = set.intersection(*(set(run.curves) for run in self.runs))
        curves = {}
        for series in self.runs[0].curves:
            if series in shared and not self._follows_rank(series):
                curves[series] = [run.curves[series] for run in self.runs]
        return curves

    @cached_property
    def losses(self) -> dict[int, tuple[float, float]]:
        """The least and the largest loss of the networks, at every step where all have one."""
        ranges = {}
        for step in self.steps:
            losses = [run.losses[step] for run in self.runs if step in run.losses]
            if len(losses) == len(self.runs):
                ranges[step] = min(losses), max(losses)
        return ranges

    def size_of(self, shapes: Mapping[str, Sequence[int]]) -> tuple[float, float]:
        """Find the width and depth of a network by its shapes, in the units of this ladder.

        The number of tensors is linear in the depth, and every length that grows is linear in the
        width.

        Raises:
            ValueError: where shapes were not stored, or the network's do not follow from theirs.
        """
        runs = [run for run in self.networks if run.shapes]
        if not runs:
            raise InputError(
                "expected was stored without the shapes of its networks, and the plan has no base "
                "that says the size of the model. Check again."
            )
        depth = _solved({run.depth: float(len(run.shapes)) for run in runs}, float(len(shapes)))
        widths = _widths(runs, shapes)
        if depth is None or not widths or max(widths) > min(widths) * (1 + _SAME_SIZE):
            raise InputError(
                "expected does not show how wide and deep the model is: the shapes of its tensors "
                "do not follow from those of the check's networks. Check networks of the model's "
                "own kind, of two widths and two depths."
            )
        return float(np.median(widths)), depth

    def _follows_rank(self, series: Series) -> bool:
        """Whether a meter grows with the rank of the gradients, which follows no law of size.

        It does where it adds up all singular values, and the optimizer fixes only the largest.
        """
        if series.meter != CHANGE or not self.optimizer:
            return False
        law = law_of(self.optimizer)
        return law.unit == WHOLE_MATRIX and (series.stack is not None or law.rest is None)


def _run_of(stored: Mapping[str, Any], definition: int) -> LadderRun:
    """Read a stored network, without meters whose definition has changed since."""
    rows = starmap(WatchRow, stored["readings"])
    return LadderRun(
        float(stored["width"]),
        float(stored["depth"]),
        [row for row in rows if means_the_same(row.meter, definition)],
        dict(stored.get("shapes", {})),
        # JSON has None for a loss that is not finite.
        {step: loss for step, loss in stored.get("losses", ()) if loss is not None},
    )


def _widths(runs: Sequence[LadderRun], shapes: Mapping[str, Sequence[int]]) -> list[float]:
    """The widths that the lengths of tensors show, all different."""
    lengths = defaultdict[tuple[str, int], dict[float, float]](dict)
    for run in runs:
        for name, shape in run.shapes.items():
            for axis, length in enumerate(shape):
                lengths[name, axis][run.width] = float(length)
    is_one_width = len({run.width for run in runs}) == 1
    widths = set[float]()
    for name, shape in shapes.items():
        for axis, length in enumerate(shape):
            by_width = lengths[name, axis]
            grows = len(set(by_width.values())) > 1
            if not grows and not is_one_width:
                continue
            width = _solved(by_width, float(length))
            if width is not None:
                widths.add(width)
    return list(widths)


def _solved(lengths: Mapping[float, float], length: float) -> float | None:
    """Find the size at which a length that is linear in the size has a value.

    None where there are no sizes to show it.
    """
    sizes = sorted(lengths)
    if not sizes:
        return None
    first = sizes[0]
    last = sizes[-1]
    growth = lengths[last] - lengths[first]
    if last > first and growth:
        return first + (length - lengths[first]) / (growth / (last - first))
    if length == lengths[first]:
        return first
    return first * length / lengths[first]


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
        alone: how many standard errors of prediction a single number stays within, with 95 %.
        limit: how many a deviation that lasts may reach; no fewer.

    Raises:
        ValueError: where the ladder is too small, or has a single width or depth which is not the
            network's.
    """

    def __init__(self, ladder: Ladder, width: float, depth: float, blocks: Sequence[int]) -> None:
        sizes = np.array([(run.width, run.depth) for run in ladder.runs], dtype=float)
        sizes = sizes.reshape(-1, 2)
        count = len(sizes)
        coefficients = 1 + sum(len(set(along)) > 1 for along in sizes.T)
        _check(ladder, sizes, (width, depth), coefficients + _LEAST_FREEDOM)
        self.ladder = ladder
        self.blocks = blocks
        self.alone = standard_errors(count - coefficients)
        logs = _logs(ladder)
        held_out = [_weights(np.delete(sizes, run, 0), sizes[run])[0] for run in range(count)]
        deviations = {}
        for series, (curves, _) in logs.items():
            deviations[series] = [_deviation(curves, r, w) for r, w in enumerate(held_out)]
        self.limit = max(_limit(deviations, count), self.alone)
        if not ladder.ok:
            self.limit *= DRIFTING
        weights, gaps = _weights(sizes, np.array([width, depth], dtype=float))
        variances = _variance(deviations)
        # z and its error [looks, places]; the offset
        self._predicted: dict[Series, tuple[Array, Array, float]] = {}
        for series, (curves, offset) in logs.items():
            places = 1
            if series.stack is not None:
                places = blocks[series.stack]
            z = np.stack([_at_places(curve, places) for curve in curves])
            spread = variances[series][:, None] * (1 + weights @ weights)
            errors = np.sqrt(spread + np.tensordot(gaps, z, 1) ** 2 + _LEAST_ERROR**2)
            self._predicted[series] = np.tensordot(weights, z, 1), errors, offset

    def at(self, series: Series, step: int, depth: float | None, value: float) -> Band | None:
        """The band of a series at a step and at a depth in its stack, and where a value lies in it.

        None where the ladder does not have it.
        """
        steps = self.ladder.steps
        if series not in self._predicted or not steps[0] <= step <= steps[-1]:
            return None
        z_curves, errors, offset = self._predicted[series]
        place = 0
        if depth is not None and series.stack is not None:
            place = round((depth - series.stack) * self.blocks[series.stack]) - 1
        z = float(np.interp(math.log(step), np.log(steps), z_curves[:, place]))
        error = float(np.interp(math.log(step), np.log(steps), errors[:, place]))

        def value_at(distance: float) -> float:
            # An exponential of more would overflow.
            return max(math.exp(min(z + distance * error, 700.0)) - offset, 0.0)

        deviation = math.inf
        if math.isfinite(value) and value + offset > 0:
            deviation = (math.log(value + offset) - z) / error
        return Band(value_at(0.0), value_at(-self.limit), value_at(self.limit), deviation)


def _logs(ladder: Ladder) -> dict[Series, tuple[list[Array], float]]:
    """The curves of every series as ``log(v + c)``, and c, where these are numbers."""
    logs: dict[Series, tuple[list[Array], float]] = {}
    for series, runs in ladder.curves.items():
        values = np.concatenate([curve.ravel() for curve in runs])
        offset = _OFFSET * float(np.median(values))
        if np.isfinite(values).all() and (values >= 0).all() and offset > 0:
            logs[series] = [np.log(curve + offset) for curve in runs], offset
    return logs


def _check(ladder: Ladder, sizes: Array, size: tuple[float, float], needed: int) -> None:
    """Raise ValueError where networks of these sizes cannot predict this one."""
    if len(sizes) < needed:
        raise InputError(
            f"expected must hold at least {needed} networks that trained to the end; got "
            f"{len(sizes)}. Check with more seeds."
        )
    if len(ladder.steps) < 2:
        raise InputError(
            f"expected must have looked at two steps or more; got {list(ladder.steps)}. Check with "
            "at=(1, 3, 10, ...), up to the last step that is to be watched."
        )
    for axis, wanted, along in zip(("width", "depth"), size, sizes.T, strict=True):
        if np.ptp(along) == 0 and not math.isclose(wanted, along[0], rel_tol=1e-6):
            raise InputError(
                f"expected has networks of {axis} {along[0]:g} alone, and the model has {axis} "
                f"{wanted:g}. Check with two {axis}s or more."
            )


def _variance(
    deviations: Mapping[Series, Sequence[Array]], without: int | None = None
) -> dict[Series, Array]:
    """The variance of one run at every look, by held-out deviations.

    The deviations are of all runs, or of all but ``without``.
    """
    of_series = {}
    for series, runs in deviations.items():
        squares = [np.square(of_run).mean(1) for r, of_run in enumerate(runs) if r != without]
        of_series[series] = np.stack(squares).mean(0)
    # The typical one, in blocks and outside of them
    typical: dict[bool, Array] = {}
    for in_block in (False, True):
        alike = [v for s, v in of_series.items() if (s.stack is not None) == in_block]
        if alike:
            typical[in_block] = np.median(np.stack(alike), axis=0)
    return {
        series: (variance + variance.mean() + typical[series.stack is not None]) / 3
        for series, variance in of_series.items()
    }


def _limit(deviations: Mapping[Series, Sequence[Array]], count: int) -> float:
    """How far a further run's largest lasting deviation reaches, but for the chance ``LEVEL``."""
    largest = np.zeros(count)
    for run in range(count):
        variance = _variance(deviations, run)
        for series, of_runs in deviations.items():
            t = of_runs[run] / np.sqrt(variance[series] + _LEAST_ERROR**2)[:, None]
            smaller = np.minimum(np.abs(t[:-1]), np.abs(t[1:]))
            lasting = np.where(t[:-1] * t[1:] > 0, smaller, 0.0)
            largest[run] = max(largest[run], lasting.max())
    logs = np.log(largest)
    reach = standard_errors(count - 1, LEVEL) * logs.std(ddof=1) * math.sqrt(1 + 1 / count)
    return math.exp(logs.mean() + reach)


def _deviation(curves: Sequence[Array], run: int, weights: Array) -> Array:
    """The deviation of one run from what the others predict, over ``sqrt(1 + |w|^2)``."""
    places = curves[run].shape[1]
    other_curves = [_at_places(curve, places) for r, curve in enumerate(curves) if r != run]
    predicted = np.tensordot(weights, np.stack(other_curves), 1)
    deviation: Array = (curves[run] - predicted) / math.sqrt(1 + weights @ weights)
    return deviation


def _weights(sizes: Array, size: Array) -> tuple[Array, Array]:
    """How runs of these sizes add up to the prediction at another size.

    The second are the weights of half the distance of the two laws.
    """
    power = _of_law(np.log(sizes), np.log(size))
    limit = _of_law(np.reciprocal(sizes), np.reciprocal(size))
    return (power + limit) / 2, (power - limit) / 2


def _of_law(sizes: Array, size: Array) -> Array:
    """Least squares on a constant and on the sizes that differ, as weights of the runs."""
    differ = np.ptp(sizes, axis=0) > 0
    design = np.column_stack([np.ones(len(sizes)), sizes[:, differ]])
    weights: Array = np.append(1.0, size[differ]) @ np.linalg.pinv(design)
    return weights


def _at_places(curve: Array, places: int) -> Array:
    """Interpolate a curve ``[looks, p]`` to another number of places, between the same ends."""
    before = _places(curve.shape[1])
    after = _places(places)
    return np.stack([np.interp(after, before, look) for look in curve])


def _places(count: int) -> Array:
    """Where so many layers stand between the ends of a stack; one stands in the middle."""
    if count < 2:
        return np.array([0.5])
    return np.linspace(0, 1, count)
