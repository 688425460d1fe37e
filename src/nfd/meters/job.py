"""One network of a check: built by its family, trained by the one loop, and measured on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nfd.core.tables import Row
from nfd.families.member import Member
from nfd.families.streams import StreamEnds
from nfd.meters.batch_noise import noise_of, noise_rows
from nfd.meters.event import Event, EventKind
from nfd.meters.health import dead_units, first_bad, gradient_events
from nfd.meters.noise import GradientNoise
from nfd.meters.readings import readings
from nfd.meters.updates import HIDDEN, NO_BLOCKS, Baseline
from nfd.scaling.calls import outputs_of
from nfd.training.loop import Around, Step
from nfd.training.recipe import Recipe
from nfd.training.task import Pair

_ROSE = 2.0  # times the first loss: no rate that is meant does this


@dataclass(frozen=True)
class Built:
    """A network that is ready to be trained, and its decoupled twin where one was asked for."""

    member: Member
    seed: int
    twin: Member | None


@dataclass(frozen=True)
class Job:
    """What every network is built, trained and measured by."""

    recipe: Recipe
    lr: float
    weight_decay: float
    gia: bool
    device: torch.device | None
    rates: tuple[float, ...] | None = None
    at: tuple[int, ...] | None = None
    adamw_lr: float | None = None
    noise: bool = False

    @property
    def batches(self) -> Sequence[Pair]:
        """What every network is trained on, where it is trained."""
        return self.recipe.task.batches

    @property
    def looks(self) -> tuple[int, ...]:
        """The steps after which networks are measured: those that were asked for, or the last."""
        return self.at or (len(self.batches),)

    @property
    def devices(self) -> list[torch.device]:
        """Beside the CPU, where random numbers are drawn."""
        return [self.device] if self.device is not None and self.device.type != "cpu" else []

    def built(self, width: int, depth: int, seed: int) -> Built:
        """A network before training, and its decoupled twin if asked for; moves no random stream."""
        member = self.recipe.family.build(width, depth, seed, device=self.device)
        member.module.train()
        return Built(member, seed, member.twin() if self.gia else None)

    def run(self, built: Built) -> Row:
        """Train it and measure it: its size and seed, its meters, ``events``, ``unread``, those of the ``start``,
        ``rows``, the meters of the network and of its matrices after every step that is looked at, ``readings``, the
        same with those of its blocks, as (step, *``nfd.meters.readings.Reading``), ``noise``, that of its gradients,
        if asked for, and where it has several stacks of blocks ``stacks``, the meters, ``unread`` and ``start`` of
        every one, by its name."""
        trial, noises = _Measurement(self, built.member), dict[str, GradientNoise]()
        losses = trial.trained()
        if math.isfinite(losses[-1]) and trial.stays_finite():
            twin = built.twin
            gap = {} if twin is None else {"gia_gap": self._gap(built.member, twin, losses[0])}
            trial.meters = trial.measure(len(losses), **gap)
            if self.noise:
                noises = noise_of(built.member.module, built.member, self.recipe.task.value, self.batches)
        size = {"width": built.member.width, "depth": built.member.depth, "seed": built.seed}
        start = trial.start.stream()
        stacks = {
            stack: {"unread": trial.start.unread[stack], "start": start.get(stack, {})} | meters
            for stack, meters in trial.meters.items()
        }
        network, rows = stacks.pop(""), [size | row for row in trial.rows]
        read = {"rows": rows, "readings": trial.readings, "noise": noise_rows(size, noises)}
        return size | {"events": trial.events} | read | network | ({"stacks": stacks} if stacks else {})

    def rows(self, member: Member, around: Around | None = None) -> Iterator[Step]:
        """Train a member: one row per step."""
        return self.recipe.rows(
            member, self.lr, self.weight_decay, self.batches, self.rates, around, adamw_lr=self.adamw_lr
        )

    def _gap(self, member: Member, twin: Member, start: float) -> float:
        """How far apart standard and decoupled training end on the first batch, over the standard one's progress."""
        for _ in self.rows(twin):
            pass
        x, y = self.batches[0]
        with torch.no_grad():
            standard, decoupled = (float(self.recipe.task.value(net(x), y)) for net in (member, twin))
        return abs(standard - decoupled) / (start - standard) if start > standard else math.nan


class _Measurement:
    """The training of one member, and what was read of it so far."""

    def __init__(self, job: Job, member: Member) -> None:
        self.job, self.member = job, member
        self.start = Baseline(member, job.batches[0][0])
        self.events: list[Event] = []
        self.meters: dict[str, dict[str, float]] = {stack: {} for stack in self.start.unread}
        self.previous: dict[str, Tensor] | None = None
        self.rows: list[dict[str, Any]] = []
        self.readings: list[tuple[Any, ...]] = []

    def trained(self) -> list[float]:
        """Train it on every batch; returns the losses."""
        losses: list[float] = []
        for row in self.job.rows(self.member, self._around):
            losses.append(row.loss)
            self.meters[""]["loss"] = row.loss
            self._look(row)
        if math.isfinite(losses[-1]) and losses[-1] > _ROSE * losses[0] > 0:
            self.events.append(Event(EventKind.LOSS_ROSE, len(losses) - 1, size=losses[-1] / losses[0]))
        return losses

    def measure(self, step: int, **more: float) -> dict[str, dict[str, float]]:
        """Read the network and every matrix of it, after so many updates; returns the meters by stack."""
        look = self.start.look(self.previous)
        seen = {"": look.network | more, **look.stacks}
        meters = {stack: known | seen.get(stack, {}) for stack, known in self.meters.items()}
        for stack, own in meters.items():
            self.rows.append({"step": step, "matrix": "", "role": ""} | ({"stack": stack} if stack else {}) | own)
        self.readings += [(step, *reading) for reading in readings(self.member, look)]
        for name, of_matrix in look.matrices.items():
            self.rows.append({"step": step, "matrix": name, "role": self.member.roles[name]} | of_matrix)
        return meters

    def stays_finite(self) -> bool:
        """Whether the last update left a network that still answers."""
        steps = len(self.job.batches)
        x = self.job.batches[-1][0]
        with torch.no_grad():
            finite = bool(outputs_of(self.member(x)).isfinite().all())
        if not finite:
            self._break(steps, x)
        return finite

    def _look(self, row: Step) -> None:
        """Read the network after a step, or name the layer that broke it."""
        steps, x = len(self.job.batches), self.job.batches[row.step][0]
        if not math.isfinite(row.loss):
            self._break(row.step, x)
            return
        if row.step + 1 in self.job.looks and row.step + 1 < steps:
            self.measure(row.step + 1)
        if row.step.bit_count() <= 1 or row.step == steps - 1:  # after steps 1, 2, 3, 5, 9, ... and the last
            dead = dead_units(self.member.module, partial(self.member, x), row.step + 1)
            if dead is not None and all(event.kind != dead.kind for event in self.events):
                self.events.append(dead)

    def _break(self, step: int, x: Any) -> None:
        layer = first_bad(self.member.module, partial(self.member, x))
        self.events.append(Event(EventKind.NOT_FINITE, step, layer))

    @contextmanager
    def _around(self, step: int) -> Iterator[None]:
        """Reads the gradient of the stream at the start, or before every look that was asked for, and then keeps the
        matrices that the update will change."""
        asked = self.job.at is not None
        if step + 1 not in self.job.looks if asked else step > 0:
            yield
            return
        with self.member.stream() as ends:
            yield
        self._read_gradient(ends, step)
        self.previous = self.start.weights() if asked else None

    def _read_gradient(self, ends: StreamEnds, step: int) -> None:
        for stack in self.member.stacks:
            sizes, unread = ends.gradients(stack), self.start.unread[stack]
            if sizes is not None and sizes.last != 0:
                self.meters[stack]["gradient"] = sizes.first / sizes.last
                self.events += gradient_events(sizes, stack, step)
                unread.pop("gradient", None)
            elif sizes is None:
                unread["gradient"] = HIDDEN if self.member.blocks else NO_BLOCKS
            else:
                unread["gradient"] = "the readout starts at zero, so that no gradient flows back."
