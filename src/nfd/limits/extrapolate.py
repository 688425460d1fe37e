"""The limits of width and depth, from ensembles of networks of finite size.

**Depth.** ``f_L = f + a / L + O(1/L^2)``, so the extrapolated ``2 f_2L - f_L`` is off by O(1/L^2): when a further
doubling moves it by less than rtol, the limit is reached.

**Width.** The losses of R networks of width n have the mean ``loss + a/n``. A second ensemble, r times narrower,
measures a:

    bias = (loss(n/r) - loss(n)) / (r - 1),    loss(infinity) = loss(n) - bias.

Structured weights leave out what is shorter than a resolution, which moves losses by b. Pairs of narrow networks from
the same seeds, with it and without one, show b. (Pairs with it and with half of it would not: directions that matter
can be shorter than both.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError, NetworkWeights
from nfd.core.estimates import Magnitude, combined, magnitude, rms, stderr
from nfd.core.machine import memory_of
from nfd.core.random import derive
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.runs.loop import Step
from nfd.runs.sweep import Sweep
from nfd.runs.task import Task
from nfd.runs.trial import Curves, Observation, Observer, Trial
from nfd.store import Record

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
        """The limit of values one doubling ago, which shows the error of depth; None where nothing was extrapolated."""
        if not self.extrapolated:
            return None
        if len(self.depths) == 2:
            return value_at(self.depths[-1])
        return extrapolated(value_at(self.depths[-3]), value_at(self.depths[-2]))


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """``2 f_2L - f_L`` of anything at depths, or widths, L and 2L: its limit where it goes to it as 1/L."""
    return 2 * deep - shallow


def to_infinity(ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float) -> Limit:
    """Double the depth until the extrapolation moves by less than rtol, or the changes do not shrink."""
    ensembles, changes = list[Ensemble](), list[Magnitude]()

    def ended(extrapolates: bool, converged: bool, note: str) -> Limit:
        return Limit(tuple(e.depth for e in ensembles), extrapolates, converged, _growth(changes), note)

    for depth in depths:
        ensembles.append(ensemble_at(depth))
        if ensembles[-1].diverged_at is not None:
            return ended(False, False, divergence(ensembles[-1]))
        if len(ensembles) > 1:
            changes.append(_change(ensembles[-1].losses - ensembles[-2].losses))
        if _does_not_shrink(changes):
            return ended(False, False, _without_limit(ensembles, changes))
        if len(ensembles) > 2:
            a, b, c = (e.losses for e in ensembles[-3:])
            moved = _change(extrapolated(b, c) - extrapolated(a, b))
            wanted = rtol * rms(ensembles[-1].losses.mean(0))
            if moved.value <= wanted:
                unresolved = (
                    "Noise hides whether the limit in depth was reached: the last doubling moved the extrapolation by "
                    f"less than its noise, {moved.noise:.2g} (RMS), which is above rtol. Raise replicates, width or "
                    "rtol."
                )
                return ended(True, moved.noise <= wanted, "" if moved.noise <= wanted else unresolved)
    if changes[-1].value > max(_SHRINKS * changes[0].value, 2 * changes[-1].noise):
        return ended(False, False, _without_limit(ensembles, changes))
    note = (
        f"The last doubling of the depth still changed the losses by {changes[-1].value:.3g} (RMS); {depths[-1]} is "
        "the deepest tried."
    )
    return ended(True, False, note)


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


def _without_limit(ensembles: list[Ensemble], changes: list[Magnitude]) -> str:
    depths = ", ".join(str(e.depth) for e in ensembles)
    steps = ", ".join(f"{change.value:.3g}" for change in changes)
    return (
        f"No limit in depth was found: doubling it through {depths} changed the losses by {steps} (RMS), growing as "
        f"L^{_growth(changes) or 0.0:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; these are the "
        f"losses at depth {ensembles[-1].depth}."
    )


def _growth(changes: list[Magnitude]) -> float | None:
    """Exponent g of the change ``~ L**g`` between the first and the last doubling."""
    if len(changes) < 2 or not min(changes[0].value, changes[-1].value) > 0:
        return None
    return math.log2(changes[-1].value / changes[0].value) / (len(changes) - 1)


# ---- The loss of the infinitely wide network, from ensembles of networks of two widths


PARTS = (
    "value", "stderr", "low", "high", "bias", "bias_stderr", "resolution_bias", "resolution_bias_stderr",
    "sampling_error", "depth_error",
)  # fmt: skip


def limit_losses(
    wide: Tensor,
    narrow: Tensor,
    ratio: float,
    coarse: Tensor | None = None,
    exact: Tensor | None = None,
    bend: float = 0.0,
) -> dict[str, Tensor]:
    """The losses of the limit from losses ``[R, K]`` of wide networks and of others ``ratio`` times narrower.

    Where the narrow ones diverged, the loss is that of the wide ones, and its interval not-a-number.

    Args:
        coarse: losses of the same wide networks by the extrapolation in depth before the last one. How far they moved
            since then is an error beside the noise: the half-width is the root of the sum of both squares.
        exact: losses of the first of the narrow networks without a resolution, whose bias is a third such error.
        bend: the share of the bias by which it may be wrong, as the mean loss is not ``loss + a/n`` alone.

    Returns:
        By the names in ``PARTS`` ``[K]`` each: of ``width`` the bias, which is subtracted, of the resolution the one
        that is not; ``sampling_error`` is the standard error of the wide networks alone, ``depth_error`` how far the
        last doubling of the depth moved the losses. As ``replicates`` the losses by single replicates, ``[R, K]``.
    """
    value, variance, lever = wide.mean(0), stderr(wide).square(), ratio - 1
    other, other_variance = narrow.mean(0), stderr(narrow).square()
    moved = torch.zeros_like(value) if coarse is None else value - coarse.mean(0)
    shortened = torch.zeros_like(narrow[:2]) if exact is None else narrow[: len(exact)] - exact
    resolution = shortened.mean(0), stderr(shortened)
    rows = []
    for v, var, o, o_var, unsampled in zip(
        *(x.tolist() for x in (value, variance, other, other_variance, moved.hypot(resolution[0]))), strict=True
    ):
        if not math.isfinite(o):
            rows.append((v, math.sqrt(var), math.nan, math.nan, math.nan, math.nan))
            continue
        bias, variances = (o - v) / lever, (var * (1 + 1 / lever) ** 2, o_var / lever**2)
        limit = combined(v - bias, zip(variances, (len(wide) - 1, len(narrow) - 1), strict=True))
        half = math.hypot(limit.high - limit.value, unsampled, bend * bias)
        error = math.sqrt(var + o_var) / lever
        rows.append((limit.value, limit.stderr, limit.value - half, limit.value + half, bias, error))
    estimates = torch.tensor(rows, dtype=torch.float64, device=wide.device).T
    parts = [*estimates, *resolution, variance.sqrt(), moved.abs()]
    return dict(zip(PARTS, parts, strict=True)) | {"replicates": wide - (narrow - wide) / lever}


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


class Ensembles:
    """The networks of a family at one rate; what a sweep holds is not trained again."""

    def __init__(
        self, family: Family, task: Task, lr: float, weights: NetworkWeights, sweep: Sweep, *, outputs: bool
    ) -> None:
        self.family, self.task, self.lr, self.weights, self.sweep = family, task, lr, weights, sweep
        self.observe: tuple[Observer, ...] = (Outputs(),) if outputs else ()
        self.resolution = family.resolution if weights == "structured" else None  # None where they drop nothing

    def train(self, width: int, depth: int, count: int, *, exact: bool = False) -> Ensemble:
        """The ensemble of the first so many seeds, or of others of these seeds without a resolution."""
        self._check_memory(width, depth)
        seeds = [derive(0, "replicate", width, index) for index in range(count)]
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
        shapes = [record.observed[0] if self.observe else () for record in records]
        outputs = [own["outputs"].double().view(-1, *s) for own, s in zip(curves, shapes, strict=True) if self.observe]
        steps = self.task.steps
        return Ensemble(
            width,
            depth,
            torch.stack([_padded(loss.double(), steps) for loss in losses]),
            torch.stack([_judged(record) for record in records]),
            torch.stack([_padded(own, steps) for own in outputs]) if outputs else None,
            min(ends, default=None),
        )

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
    n = max(family.base[0], 16)
    small = family.member(n, family.base[1])
    blocks = max(len(small.blocks), 1)
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
