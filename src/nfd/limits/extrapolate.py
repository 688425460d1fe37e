"""The limits of width and depth, from ensembles of networks of finite size.

**Depth.** ``f_L = f + a / L + O(1/L^2)``, so the extrapolated ``2 f_2L - f_L`` is off by O(1/L^2): when a further
doubling moves it by less than rtol, the limit is reached.

**Width.** Outputs at width n are ``f + a/n`` in the mean, and the mean of R networks has noise of variance
``s^2/(nR)``. So its loss is too large by half the loss's curvature times that variance, which the jackknife removes,
and shifted by ``Loss'(f) a / n``, which a second ensemble, r times narrower, measures:

    bias = (loss(n/r) - loss(n)) / (r - 1),    loss(infinity) = loss(n) - bias.

The mean loss of single networks has the same limit, and the curvature's term R times as large.

Structured weights leave out what is shorter than a resolution, which moves losses by b. Pairs of narrow networks from
the same seeds, with it and without one, show b. (Pairs with it and with half of it would not: directions that matter
can be shorter than both.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.estimates import combined
from nfd.core.machine import memory_of
from nfd.core.names import NetworkWeights
from nfd.core.random import derive
from nfd.core.statistics import Magnitude, magnitude, rms, stderr
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.runs.sweep import Sweep
from nfd.runs.trial import Curves, Observation, Observer, Trial
from nfd.store import Record
from nfd.training.loop import Step
from nfd.training.task import Task

# ---- Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence, and plain words where it does not


_SHRINKS = 0.8  # a change that keeps this share when the depth doubles is not converging (1/L would keep 1/2)


@dataclass(frozen=True)
class Limit:
    """Which depths were trained, and whether the last two are extrapolated.

    Attributes:
        depths: ascending; the last is the deepest. extrapolated: whether values are ``2 f_2L - f_L``.
        converged: whether the limit was reached. growth: exponent g of the change from L to 2L. note: what to say.
    """

    depths: tuple[int, ...]
    extrapolated: bool
    converged: bool
    growth: float | None = None
    note: str = ""

    def of(self, value_at: Callable[[int], Tensor]) -> Tensor:
        """The limit of values at depths."""
        deep = value_at(self.depths[-1])
        return extrapolated(value_at(self.depths[-2]), deep) if self.extrapolated else deep

    def before(self, value_at: Callable[[int], Tensor]) -> Tensor | None:
        """The same one doubling ago, which shows the error of depth; None where nothing was extrapolated."""
        if not self.extrapolated:
            return None
        if len(self.depths) == 2:
            return value_at(self.depths[-1])
        return extrapolated(value_at(self.depths[-3]), value_at(self.depths[-2]))


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """``2 f_2L - f_L`` of anything at depths, or widths, L and 2L: its limit where it goes to it as 1/L."""
    return 2 * deep - shallow


def at_depth(here: Ensemble) -> Limit:
    """No extrapolation: the ensemble at this depth."""
    return Limit((here.depth,), False, here.diverged_at is None, note=divergence(here))


def to_infinity(ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float) -> Limit:
    """Double the depth until the extrapolation moves by less than rtol, or the changes do not shrink."""
    ensembles, changes = list[Ensemble](), list[Magnitude]()
    for depth in depths:
        ensembles.append(ensemble_at(depth))
        if ensembles[-1].diverged_at is not None:
            return _stopped(ensembles, changes, divergence(ensembles[-1]))
        if len(ensembles) > 1:
            changes.append(_change(ensembles[-1].losses - ensembles[-2].losses))
        if _does_not_shrink(changes):
            return _without_limit(ensembles, changes)
        if len(ensembles) > 2:
            a, b, c = (e.losses for e in ensembles[-3:])
            moved = _change(extrapolated(b, c) - extrapolated(a, b))
            wanted = rtol * rms(ensembles[-1].losses.mean(0))
            if moved.value <= wanted:
                resolved = moved.noise <= wanted
                return _limit(ensembles, changes, resolved, "" if resolved else _unresolved(moved))
    if changes[-1].value > max(_SHRINKS * changes[0].value, 2 * changes[-1].noise):
        return _without_limit(ensembles, changes)
    note = (
        f"The last doubling of the depth still changed the losses by {changes[-1].value:.3g} (RMS); {depths[-1]} is "
        "the deepest tried."
    )
    return _limit(ensembles, changes, False, note)


def divergence(here: Ensemble) -> str:
    """A sentence on a divergence; empty where there was none."""
    if here.diverged_at is None:
        return ""
    remedy = "Lower lr" if here.diverged_at else "Check the batches and the initial weights"
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. {remedy}."


def _change(samples: Tensor) -> Magnitude:
    return magnitude(samples.mean(0), stderr(samples))


def _does_not_shrink(changes: list[Magnitude]) -> bool:
    if len(changes) < 2:
        return False
    before, after = changes[-2:]
    return after.value > _SHRINKS * before.value and before.value > 2 * before.noise and after.value > 2 * after.noise


def _limit(ensembles: list[Ensemble], changes: list[Magnitude], converged: bool, note: str) -> Limit:
    return Limit(tuple(e.depth for e in ensembles), True, converged, _growth(changes), note)


def _stopped(ensembles: list[Ensemble], changes: list[Magnitude], note: str) -> Limit:
    return Limit(tuple(e.depth for e in ensembles), False, False, _growth(changes), note)


def _without_limit(ensembles: list[Ensemble], changes: list[Magnitude]) -> Limit:
    depths = ", ".join(str(e.depth) for e in ensembles)
    steps = ", ".join(f"{change.value:.3g}" for change in changes)
    note = (
        f"No limit in depth was found: doubling it through {depths} changed the losses by {steps} (RMS), growing as "
        f"L^{_growth(changes) or 0.0:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; these are the "
        f"losses at depth {ensembles[-1].depth}."
    )
    return _stopped(ensembles, changes, note)


def _unresolved(change: Magnitude) -> str:
    return (
        f"Noise hides whether the limit in depth was reached: the last doubling moved the extrapolation by less "
        f"than its noise, {change.noise:.2g} (RMS), which is above rtol. Raise replicates, width or rtol."
    )


def _growth(changes: list[Magnitude]) -> float | None:
    """Exponent g of the change ``~ L**g`` between the first and the last doubling."""
    if len(changes) < 2 or not min(changes[0].value, changes[-1].value) > 0:
        return None
    return math.log2(changes[-1].value / changes[0].value) / (len(changes) - 1)


# ---- The loss of the infinitely wide network, from ensembles of networks of two widths


Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LimitLosses:
    """Losses ``[K]`` of the infinite network, their intervals, and the biases of width (subtracted) and resolution.

    ``resolution_bias`` is not subtracted: the intervals include it. It is zero where weights have no resolution. So is
    ``depth_error``, how far the last doubling of the depth moved the losses. ``sampling_error`` is the standard error
    of the wide networks alone.
    """

    value: Tensor
    stderr: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor
    bias_stderr: Tensor
    resolution_bias: Tensor
    resolution_bias_stderr: Tensor
    sampling_error: Tensor
    depth_error: Tensor

    @staticmethod
    def names(prefix: str) -> tuple[str, ...]:
        """What they are called in a ``Prediction``."""
        return prefix, *(f"{prefix}_{part.name}" for part in fields(LimitLosses)[1:])

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The same under these names."""
        return dict(zip(self.names(prefix), (getattr(self, part.name) for part in fields(self)), strict=True))


def limit_losses(
    loss: Loss,
    wide: Tensor,
    narrow: Tensor | None,
    ratio: float,
    coarse: Tensor | None = None,
    exact: Tensor | None = None,
) -> LimitLosses:
    """The losses of the limit from outputs ``[R, ...]`` of wide networks and of others ``ratio`` times narrower.

    Where the narrow ones are missing or diverged, the loss is that of the wide ones, and its interval not-a-number.

    Args:
        loss: outputs ``[..., *shape]`` to losses ``[..., K]``.
        coarse: outputs of the same wide networks by the extrapolation in depth before the last one. How far the loss
            moved since then is an error beside the noise: the half-width is the root of the sum of both squares.
        exact: outputs of the first of the narrow networks without a resolution, whose bias is a third such error.
    """
    value, variance = _corrected(loss, wide)
    other, other_variance = (torch.full_like(value, math.nan),) * 2 if narrow is None else _corrected(loss, narrow)
    moved = torch.zeros_like(value) if coarse is None else value - _corrected(loss, coarse)[0]
    resolution = _resolution_bias(loss, value, narrow, exact)
    freedom = len(wide) - 1, len(wide if narrow is None else narrow) - 1
    unsampled = moved.hypot(resolution[0])
    steps = zip(*(x.tolist() for x in (value, variance, other, other_variance, unsampled)), strict=True)
    rows = [_estimate(v, var, o, o_var, freedom, ratio - 1, depth) for v, var, o, o_var, depth in steps]
    estimates = torch.tensor(rows, dtype=torch.float64, device=wide.device).T
    return LimitLosses(*torch.cat([estimates, torch.stack([*resolution, variance.sqrt(), moved.abs()])]))


def _resolution_bias(loss: Loss, like: Tensor, narrow: Tensor | None, exact: Tensor | None) -> tuple[Tensor, Tensor]:
    """b of the losses of single networks, from pairs, and its standard error; zeros without exact networks."""
    if narrow is None or exact is None:
        return torch.zeros_like(like), torch.zeros_like(like)
    apart = loss(narrow[: len(exact)]) - loss(exact)
    return apart.mean(0), stderr(apart)


def _estimate(
    value: float, variance: float, other: float, other_variance: float, freedom: tuple[int, int], lever: float,
    moved: float,
) -> tuple[float, ...]:  # fmt: skip
    """A row of ``LimitLosses``."""
    if not math.isfinite(other):
        return value, math.sqrt(variance), math.nan, math.nan, math.nan, math.nan
    bias = (other - value) / lever
    wide, narrow = variance * (1 + 1 / lever) ** 2, other_variance / lever**2
    limit = combined(value - bias, zip((wide, narrow), freedom, strict=True))
    half = math.hypot(limit.high - limit.value, moved)
    error = math.sqrt(variance + other_variance) / lever
    return limit.value, limit.stderr, limit.value - half, limit.value + half, bias, error


def replicate_losses(loss: Loss, wide: Tensor, narrow: Tensor | None, ratio: float) -> Tensor:
    """The losses of the limit by single replicates, [R, K]: jackknife pseudo-values, whose mean is the limit's loss.

    Not-a-number where there are no narrow ones. Arguments as of ``limit_losses``.
    """
    values = _pseudo_values(loss, wide)
    others = torch.full_like(values, math.nan) if narrow is None else _pseudo_values(loss, narrow)
    return values - (others - values) / (ratio - 1)


def _corrected(loss: Loss, samples: Tensor) -> tuple[Tensor, Tensor]:
    """The loss at the mean of samples ``[R, ...]`` without the bias of its noise, and its variance, by jackknife."""
    values = _pseudo_values(loss, samples)
    return values.mean(0), stderr(values).square()


def _pseudo_values(loss: Loss, samples: Tensor) -> Tensor:
    """``R loss(mean) - (R - 1) loss(mean without one)`` for every one of the samples ``[R, ...]``: [R, K]."""
    R, mean = len(samples), samples.mean(0)
    return R * loss(mean) - (R - 1) * loss(mean + (mean - samples) / (R - 1))


# ---- Networks of one width and depth, trained alike from seeds of their own: what the limits are made of


_SHARE = 0.8  # of the memory that networks may take


@dataclass(frozen=True)
class Outputs(Observer):
    """The outputs of every step, before its update."""

    def begin(self, member: Member, task: Task) -> Observation:
        return _Outputs()


class _Outputs(Observation):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def after(self, row: Step) -> None:
        self.seen.append(row.outputs.cpu())

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        return {}, {"outputs": torch.stack(self.seen).flatten()}, list(self.seen[0].shape)


@dataclass(frozen=True)
class Ensemble:
    """What R networks gave, not-a-number after a divergence.

    Attributes:
        losses: ``[R, steps]``, before each update. judged: evaluation losses ``[R, 1]``, or ``[R, 0]``.
        outputs: ``[R, steps, b, C]``, where they were asked for.
        diverged_at: the first step of a divergence, or None.
    """

    width: int
    depth: int
    losses: Tensor
    judged: Tensor
    outputs: Tensor | None
    diverged_at: int | None


class Networks:
    """The networks of a family at one rate; what a sweep holds is not trained again."""

    def __init__(
        self, family: Family, task: Task, lr: float, weights: NetworkWeights, sweep: Sweep, seed: int, outputs: bool
    ) -> None:
        self.family, self.task, self.lr, self.weights, self.sweep, self.seed = family, task, lr, weights, sweep, seed
        self.observe: tuple[Observer, ...] = (Outputs(),) if outputs else ()

    @property
    def resolution(self) -> float | None:
        """Of their structured layers; None where they drop nothing."""
        return self.family.resolution if self.weights == "structured" else None

    def train(self, width: int, depth: int, count: int, *, exact: bool = False) -> Ensemble:
        """The ensemble of the first so many seeds, or of others of these seeds without a resolution."""
        self._check_memory(width, depth)
        seeds = [derive(self.seed, "replicate", width, index) for index in range(count)]
        resolution = None if exact else self.resolution
        more: dict[str, Any] = {"weights": self.weights, "resolution": resolution, "observe": self.observe}
        trials = [Trial(self.family, self.task, width, depth, seed, self.lr, **more) for seed in seeds]
        label = f"width {width}, depth {depth}"
        records = self.sweep.run_all({label: trials}, label)[label]
        curves = [self.sweep.curves(trial) for trial in trials]
        losses = [own["loss"] for own in curves]
        if len(losses) > 1 and all(torch.equal(loss, losses[0]) for loss in losses[1:]):
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses from every seed, but intervals come from "
                "differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )
        ends = [int(record.metrics["diverged_at"]) for record in records if "diverged_at" in record.metrics]
        outputs = [self._outputs(record, own) for record, own in zip(records, curves, strict=True)]
        return Ensemble(
            width,
            depth,
            torch.stack([_padded(loss.double(), self.task.steps) for loss in losses]),
            torch.stack([_judged(record) for record in records]),
            torch.stack(outputs) if self.observe else None,
            min(ends, default=None),
        )

    def _outputs(self, record: Record, curves: dict[str, Tensor]) -> Tensor:
        if not self.observe:
            return torch.empty(0)
        return _padded(curves["outputs"].double().view(-1, *record.observed[0]), self.task.steps)

    def _check_memory(self, width: int, depth: int) -> None:
        """InputError where a network of this size would not fit into the memory of the machine."""
        needed = bytes_of(self.family, self.task, width, depth, self.weights)
        place = torch.device(self.sweep.device or self.task.device)
        there = _SHARE * memory_of(place)
        if needed > there:
            raise InputError(
                f"a network of width {width:,} and depth {depth} with {self.weights} weights needs "
                f"{needed / 2**30:.3g} GiB, and {there / 2**30:.3g} GiB may be used. Take a smaller width, depth or "
                "batch, or fewer steps."
            )


def bytes_of(family: Family, task: Task, width: int, depth: int, weights: NetworkWeights) -> float:
    """Bytes of the hidden matrices of a network in training, and of what passes keep.

    A matrix holds ``m n`` numbers, as many for its gradient and for each state of the optimizer; unstored, as many
    vectors of both sides as rows passed through it, twice for deferred weights.
    """
    small = family.member(max(family.base[0], 16), family.base[1])
    n, blocks = small.width or 1, max(len(small.blocks), 1)
    shapes = [small.module.get_parameter(name).shape for name in small.hidden]
    area = sum(math.prod(shape) for shape in shapes) / n**2 / blocks * width**2 * depth
    sides = sum(shape[0] + math.prod(shape[1:]) for shape in shapes) / n / blocks * width * depth
    rows = task.rows
    states = family.law.states
    held = {"dense": (2 + states) * area, "structured": sides * rows, "deferred": 2 * sides * rows}[weights]
    return 4 * (held + 2 * sides * rows / task.steps)


def _padded(values: Tensor, steps: int) -> Tensor:
    """Values ``[steps, ...]``, not-a-number from where training diverged."""
    finite = torch.where(values.isfinite(), values, math.nan)
    return torch.cat([finite, finite.new_full((steps - len(finite), *finite.shape[1:]), math.nan)])


def _judged(record: Record) -> Tensor:
    loss = record.metrics.get("test_loss")
    values = [] if loss is None else [loss if math.isfinite(loss) else math.nan]
    return torch.tensor(values, dtype=torch.float64)
