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
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError
from nfd.core.estimates import standard_errors
from nfd.scaling.model import numberless
from nfd.scaling.optimizers import WHOLE_MATRIX, law_of

# ---- What a watch reads: a number of a layer or of the whole network after a step, and what it cannot read


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One number of a training.

    Attributes:
        step: how many steps the optimizer had taken.
        meter: its name; of one of several stacks of blocks with the name of the stack, as in
            ``"activation of decoder.layers"``.
        layer: the name of the module that it was read from; None for the whole network.
        depth: where that layer stands along the stream, in (0, 1]: the place of its block, counted from 1, over the
            number of blocks of its stack. The second stack, such as a decoder, has (1, 2]. None for layers outside of
            the blocks, and for the whole network.
        value: not-a-number where training diverged.
    """

    step: int
    meter: str
    layer: str | None
    depth: float | None
    value: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A meter that a watch cannot read from this model, and the reason."""

    meter: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory of a watch: the kind of data from the start of training, the device, and the number of bytes."""

    kind: str
    place: str
    bytes: int


class Expected(Protocol):
    """What knows how large the meters of a sound training are."""

    def alerts(self, rows: Sequence[WatchRow]) -> Sequence[Any]:
        """What the rows of one look say against the training."""


# ---- A ladder: small networks of several sizes that were looked at after the same steps, as curves along their blocks


CHANGE = "change"  # of a matrix, by all of its entries

Array = NDArray[np.float64]


class Series(NamedTuple):
    """A meter of layers of one kind.

    Attributes:
        meter: its name.
        kind: the name of the layer, for one in a block the part behind the block's name, or where there are several
            stacks of blocks its name with ``*`` for the block's number; None for the whole network.
        stack: the stack of blocks of which every one has such a layer, counted from 0; None outside of blocks.
    """

    meter: str
    kind: str | None
    stack: int | None

    @property
    def along(self) -> bool:
        """Whether it runs along the blocks of a stack."""
        return self.stack is not None


@dataclass(frozen=True)
class LadderRun:
    """One network of a ladder: its size, and what was read of it."""

    width: float
    depth: float
    rows: Sequence[WatchRow]

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps after which it was looked at."""
        return tuple(sorted({row.step for row in self.rows}))

    @property
    def layers(self) -> set[str]:
        """The layers that have matrices, with ``*`` for numbers."""
        return {numberless(row.layer) for row in self.rows if row.layer is not None and row.meter == CHANGE}

    @cached_property
    def curves(self) -> dict[Series, Array]:
        """Every series as ``[looks, layers along the blocks]``; not-a-number where nothing was read."""
        kinds = kinds_of(self.rows)
        places: dict[int | None, list[float | None]] = defaultdict(list)  # of every stack, along it
        for depth in sorted({row.depth for row in self.rows if row.depth is not None}):
            places[stack_at(depth)].append(depth)
        places[None] = [None]
        look = {step: k for k, step in enumerate(self.steps)}
        curves: dict[Series, Array] = {}
        for row in self.rows:
            series = series_of(row, kinds)
            own = places[series.stack]
            curve = curves.setdefault(series, np.full((len(look), len(own)), np.nan))
            curve[look[row.step], own.index(row.depth)] = row.value
        return curves


@dataclass(frozen=True)
class Ladder:
    """Networks that were looked at after the same steps.

    Args:
        networks: of several sizes; those that broke off are left out.
        base: the width and depth by which plans of this ladder count.
        rule, optimizer: their names.
        ok: whether the check found no fault in them.
    """

    networks: Sequence[LadderRun]
    base: tuple[float, float]
    rule: str = ""
    optimizer: str = ""
    ok: bool = True

    @classmethod
    def of(cls, stored: Any) -> Self:
        """The ladder of ``Check.ladder``, of a check or from a file.

        Raises:
            ValueError: for what is none.
        """
        try:
            networks = [_run(network) for network in stored["networks"]]
            width, depth = (float(size) for size in stored["base"])
            ok = bool(stored.get("ok", True))  # a ladder of an earlier version does not say
            return cls(networks, (width, depth), str(stored["rule"]), str(stored["optimizer"]), ok)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected is not the ladder of a check ({type(error).__name__}: {error}). Check again, with at=(...)."
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
        """Every series that all runs have and that follows their size, one curve for each of them."""
        if not self.runs:
            return {}
        shared = set.intersection(*(set(run.curves) for run in self.runs))
        kept = [series for series in self.runs[0].curves if series in shared and not self._follows_rank(series)]
        return {series: [run.curves[series] for run in self.runs] for series in kept}

    def _follows_rank(self, series: Series) -> bool:
        """Whether a meter adds up all singular values where the optimizer fixes the largest alone: it then grows with
        the rank of the gradients, which follows no law of size."""
        if series.meter != CHANGE or not self.optimizer:
            return False
        law = law_of(self.optimizer)
        return law.unit == WHOLE_MATRIX and (series.along or law.rest is None)


def _run(network: Mapping[str, Any]) -> LadderRun:
    rows = [
        WatchRow(int(step), meter, layer, depth, math.nan if value is None else float(value))
        for step, meter, layer, depth, value in network["readings"]
    ]
    return LadderRun(float(network["width"]), float(network["depth"]), rows)


def stack_at(depth: float | None) -> int | None:
    """Which stack of blocks, from 0, a layer at this depth stands in."""
    return None if depth is None else math.ceil(depth) - 1


def series_of(row: WatchRow, kinds: Mapping[str, str]) -> Series:
    """The series of a row; of a layer whose kind is not known a series that no ladder has."""
    return Series(row.meter, None if row.layer is None else kinds.get(row.layer, row.layer), stack_at(row.depth))


def kinds_of(rows: Iterable[WatchRow]) -> Mapping[str, str]:
    """The kind of every layer: its name, for one in a block without the name of the block.

    A block's name is what the layers at its depth have in common; where that holds no number, as in ``inner.3`` and
    ``outer.3``, the numbers are left out instead. Of several stacks the kind keeps the name of the stack.
    """
    blocks: dict[float | None, set[str]] = defaultdict(set)
    for row in rows:
        if row.layer is not None:
            blocks[row.depth].add(row.layer)
    kinds = {layer: layer for layer in blocks.pop(None, set())}
    several = any(stack_at(depth) for depth in blocks)
    for layers in blocks.values():
        parts = {layer: layer.split(".") for layer in layers}
        shared = _shared(list(parts.values()))
        numbered = any(part.isdigit() for part in shared)
        for layer, names in parts.items():
            own = names[len(shared) :] if numbered else ["*" if name.isdigit() else name for name in names]
            own = [numberless(".".join(shared)), *own] if several and numbered else own
            kinds[layer] = ".".join(own)
    return kinds


def _shared(names: Sequence[Sequence[str]]) -> list[str]:
    """The parts that all names begin with."""
    shared = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared


# ---- The rows of a watch in series: a meter of the whole network, or of its layers of one kind


def in_series(rows: Sequence[WatchRow]) -> dict[Series, list[WatchRow]]:
    """The rows of every series, in their order."""
    kinds, series = kinds_of(rows), defaultdict[Series, list[WatchRow]](list)
    for row in rows:
        series[series_of(row, kinds)].append(row)
    return dict(series)


def steps_of(rows: Sequence[WatchRow]) -> list[int]:
    """The steps of rows, which are in their order; searched, as a long run has many rows of a step."""
    steps, place = list[int](), 0
    while place < len(rows):
        steps.append(rows[place].step)
        place = bisect_right(rows, steps[-1], lo=place, key=attrgetter("step"))
    return steps


def at_steps(rows: Sequence[WatchRow], steps: Iterable[int]) -> list[WatchRow]:
    """Those rows, in the order of their steps, that are of these steps."""
    step = attrgetter("step")
    return [row for at in steps for row in rows[bisect_left(rows, at, key=step) : bisect_right(rows, at, key=step)]]


# ---- What the meters of a larger network come to, with prediction intervals, from a ladder of small ones


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
