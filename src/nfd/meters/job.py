"""``Meters``: what a check reads of a network while it is trained."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.random import global_state
from nfd.families.member import Member
from nfd.families.streams import StreamEnds
from nfd.meters.batch_noise import noise_of, noise_rows
from nfd.meters.event import Event, EventKind
from nfd.meters.health import dead_units, first_bad, gradient_events
from nfd.meters.readings import readings
from nfd.meters.updates import HIDDEN, NO_BLOCKS, Baseline
from nfd.runs.trial import Observation, Observer
from nfd.scaling.model import outputs_of
from nfd.training.loop import Step
from nfd.training.task import Task

_ROSE = 2.0  # times the first loss: no rate that is meant does this


@dataclass(frozen=True)
class Meters(Observer):
    """The meters of a check, read after the last step, or after each of ``at``.

    It returns one row of plain data: the meters after the last step, ``events``, ``unread``, those of the ``start``,
    ``rows``, the meters of the network and of its matrices after every step that is looked at,
    ``readings``, the same with those of its blocks, as (step, *``nfd.meters.readings.Reading``), ``noise``, that of its
    gradients, if asked for, ``draws``, whether it drew random numbers, and ``print``, a hash of its initial weights.
    """

    at: tuple[int, ...] | None = None
    noise: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"at": None if self.at is None else list(self.at), "noise": self.noise}

    def begin(self, member: Member, task: Task) -> Observation:
        return _Measurement(self, member, task)


class _Measurement(Observation):
    """The training of one member, and what was read of it so far."""

    def __init__(self, asked: Meters, member: Member, task: Task) -> None:
        self.asked, self.member, self.task = asked, member, task
        self.looks = asked.at or (task.steps,)
        self.print = print_of(member.module)
        self.start = Baseline(member, task.sample)
        self.events: list[Event] = []
        self.meters: dict[str, dict[str, float]] = {stack: {} for stack in self.start.unread}
        self.previous: dict[str, Tensor] | None = None
        self.rows: list[dict[str, Any]] = []
        self.readings: list[tuple[Any, ...]] = []
        self.losses: list[float] = []
        self.streams = global_state()

    def after(self, row: Step) -> None:
        self.losses.append(row.loss)
        self.meters[""]["loss"] = row.loss
        self._look(row)

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        """Measure what the last step left."""
        losses, noises = self.losses, {}
        if math.isfinite(losses[-1]) and losses[-1] > _ROSE * losses[0] > 0:
            self.events.append(Event(EventKind.LOSS_ROSE, len(losses) - 1, size=losses[-1] / losses[0]))
        if math.isfinite(losses[-1]) and self.stays_finite():
            self.meters = self.measure(len(losses))
            if self.asked.noise:
                noises = noise_of(self.member.module, self.member, self.task.value, self.task.batches)
        read = {"rows": self.rows, "readings": self.readings, "noise": noise_rows({}, noises)}
        start = self.start.stream()
        stacks = {
            stack: {"unread": self.start.unread[stack], "start": start.get(stack, {})} | meters
            for stack, meters in self.meters.items()
        }
        network = stacks.pop("")
        told: dict[str, Any] = {"events": [asdict(event) for event in self.events]}
        told |= {"draws": global_state() != self.streams, "print": self.print}
        return {}, {}, told | read | network | ({"stacks": stacks} if stacks else {})

    def measure(self, step: int) -> dict[str, dict[str, float]]:
        """Read the network and every matrix of it, after so many updates; returns the meters by stack."""
        look = self.start.look(self.previous)
        seen = {"": look.network, **look.stacks}
        meters = {stack: known | seen.get(stack, {}) for stack, known in self.meters.items()}
        for stack, own in meters.items():
            self.rows.append({"step": step, "matrix": "", "role": ""} | ({"stack": stack} if stack else {}) | own)
        self.readings += [(step, *reading) for reading in readings(self.member, look)]
        for name, of_matrix in look.matrices.items():
            self.rows.append({"step": step, "matrix": name, "role": self.member.roles[name]} | of_matrix)
        return meters

    def stays_finite(self) -> bool:
        """Whether the last update left a network that still answers."""
        steps = self.task.steps
        x = self.task.batches[-1][0]
        with torch.no_grad():
            finite = bool(outputs_of(self.member(x)).isfinite().all())
        if not finite:
            self._break(steps, x)
        return finite

    def _look(self, row: Step) -> None:
        """Read the network after a step, or name the layer that broke it."""
        steps, x = self.task.steps, self.task.batches[row.step][0]
        if not math.isfinite(row.loss):
            self._break(row.step, x)
            return
        if row.step + 1 in self.looks and row.step + 1 < steps:
            self.measure(row.step + 1)
        if row.step.bit_count() <= 1 or row.step == steps - 1:  # after steps 1, 2, 3, 5, 9, ... and the last
            dead = dead_units(self.member.module, partial(self.member, x), row.step + 1)
            if dead is not None and all(event.kind != dead.kind for event in self.events):
                self.events.append(dead)

    def _break(self, step: int, x: Any) -> None:
        layer = first_bad(self.member.module, partial(self.member, x))
        self.events.append(Event(EventKind.NOT_FINITE, step, layer))

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Reads the gradient of the stream at the start, or before every look that was asked for, and then keeps the
        matrices that the update will change."""
        asked = self.asked.at is not None
        if step + 1 not in self.looks if asked else step > 0:
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


def print_of(model: nn.Module) -> int:
    """A hash of the numbers of all parameters, to tell seeds that give the same network."""
    found = 0
    for parameter in model.parameters():
        found = zlib.crc32(parameter.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), found)
    return found
