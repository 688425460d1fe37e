"""Networks of one width and depth, trained alike from seeds of their own: what the limits are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.machine import memory_of
from nfd.core.names import NetworkWeights
from nfd.core.random import derive
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.runs.sweep import Sweep
from nfd.runs.trial import Curves, Observation, Observer, Trial
from nfd.store import Record
from nfd.training.loop import Step
from nfd.training.task import Task

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
