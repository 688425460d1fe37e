"""``Trial``: one network of a family, trained on a task. It is the only kind of run."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError, NetworkWeights, described, place_of, trace_of
from nfd.core.random import derive, global_streams
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.runs.loop import Step, judged, optimizer_of, train
from nfd.runs.task import Task
from nfd.scaling.model import tensors
from nfd.store import Record

NUMERICS = 3  # counts changes of what a trial computes beyond rounding

Curves = dict[str, Any]


class Observation:
    """What an observer sees of one training. Every method does nothing unless it is overridden."""

    def around(self, step: int) -> AbstractContextManager[object]:
        """A context for the forward and backward pass of a step."""
        return nullcontext()

    def after(self, row: Step) -> None:
        """Called after the update of every step."""

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        """Metrics by name, curves by name, and plain data (JSON), for the record of the trial."""
        return {}, {}, None


class Observer(ABC):
    """What is measured of a trial on the way: a frozen dataclass whose fields are plain data or tensors.

    Its name and ``settings`` are part of the trial's key. Numbers that it returns stand in the trial's record.
    """

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides its numbers, as plain data."""
        return {}

    @abstractmethod
    def begin(self, member: Member, task: Task) -> Observation:
        """Look at an untrained network on the device where it will be trained."""


@dataclass(frozen=True)
class Trial:
    """One network of a family, trained on a task from one seed at one rate.

    Its record holds ``first_loss``, ``highest_loss``, ``train_loss`` (the mean over the last tenth of the steps), where
    the task has ``eval_batches`` also ``test_loss``, and under cross-entropy ``test_accuracy``; and the curve ``loss``,
    before each update. A trial that stops early is a run of its own: no evaluation batch judges it.

    Args:
        family, task: what is trained, and on what.
        width, depth, seed: of the network, in the units of its family.
        lr: of the base.
        stop: after how many steps to stop; None for all.
        weights: how the network holds its wide matrices (``nfd.defer``). resolution: of structured ones, below which
            they leave out directions; None for none.
        every: steps between evaluations, which give the curves ``test_loss``, ``test_accuracy`` and ``tested_after``.
        observe: what is measured on the way.
    """

    family: Family = field(repr=False)
    task: Task = field(repr=False)
    width: int
    depth: int
    seed: int
    lr: float
    stop: int | None = None
    weights: NetworkWeights = "dense"
    resolution: float | None = None
    every: int | None = None
    observe: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family.under(sample=self.task.sample))  # to trace the model with

    @cached_property
    def key(self) -> str:
        """Its name in a store: a hash of all that decides its numbers."""
        return hashed(self.settings)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as plain data."""
        own = {name: getattr(self, name) for name in ("width", "depth", "seed", "lr", "stop", "weights", "resolution")}
        schedule = self.factors and hashed({"factors": list(self.factors)})
        seen = [[type(observer).__name__, dict(observer.settings)] for observer in self.observe]
        return {**self.experiment, **own, "every": self.every, "schedule": schedule, "observe": seen}

    @property
    def experiment(self) -> dict[str, Any]:
        """What it shares with the trials of other sizes, seeds and rates, and the version of our numerics."""
        return {**self.family.identity, **self.task.identity, "numerics": NUMERICS}

    @cached_property
    def factors(self) -> tuple[float, ...] | None:
        """Its schedule as factors on its rates, one per step; None where there is none."""
        return self.task.factors(self.lr)

    @property
    def steps(self) -> int:
        """How many it is trained for."""
        return self.stop or self.task.steps

    @property
    def cost(self) -> float:
        """Counted work, for the progress of a sweep: that of its hidden matrices, were each square."""
        rows = self.task.targets * self.steps / self.task.steps + self.task.eval_targets / 3
        return rows * self.depth * self.width * (self.width if self.weights == "dense" else rows)

    def build(self, place: torch.device | str = "cpu") -> Member:
        """Its network, to be trained."""
        member = self.family.member(self.width, self.depth, self.seed, self.weights, place, self.resolution)
        if self.task.init_scale != 1:
            _scale_(member, self.task.init_scale)
        member.module.train()
        return member

    def failed(self, error: str, trace: str | None = None) -> Record:
        """The record of a trial that could not be trained; ``trace`` where that is a mistake of ours."""
        return Record(self.key, "failed", self.settings, {}, error=error, trace=trace)

    def train(self, device: str | None = None) -> Record:
        """Train it, by default where its batches lie. If it cannot be trained, its record has the error."""
        try:
            with self.task.blaming(self.width, self.depth):
                return self._trained(self.task.device if device is None else torch.device(device))
        except Exception as error:  # of the input or ours: as the record says
            return self.failed(described(error) + place_of(error), trace_of(error))

    def _trained(self, place: torch.device) -> Record:
        start, task = time.perf_counter(), self.task.on(place)
        if self.stop is not None:
            task = task.first(self.stop).having(eval_batches=())
        looks = sorted({*(range(0, self.steps, self.every) if self.every else ()), self.steps})
        found = dict[int, tuple[float, float]]()  # loss and accuracy at looks
        seed = derive(self.seed, "training", self.width, self.depth)
        with global_streams(seed, [] if place.type == "cpu" else [place]):
            member = self.build(place)
            member.reserve(task.rows)
            seen = [observer.begin(member, task) for observer in self.observe]
            losses = list[Tensor]()
            if 0 in looks:
                found[0] = judged(member, task)
            groups = member.groups(self.lr, task.weight_decay, task.adamw_lr)
            optimizer = optimizer_of(task, member.plan.optimizer, groups)
            steps = train(member, optimizer, task.batches, task.value, rates=self.factors, around=_around(seen))
            for row in steps:
                losses.append(row.losses)
                for observation in seen:
                    observation.after(row)
                if row.step + 1 in looks and not row.diverged:
                    found[row.step + 1] = judged(member, task)
            if not losses[0].isfinite() and not self.observe:  # an observer says more
                raise InputError(
                    f"make_model({self.width}, {self.depth}) has a loss of {float(losses[0]):g} before it is trained, "
                    "so that no rate can help. Check its outputs and the loss on the first batch."
                )
            ends = [observation.end() for observation in seen]
        at_looks = torch.tensor([found.get(step, (math.nan, math.nan)) for step in looks], dtype=torch.float64)
        curves: Curves = {"loss": torch.stack(losses).double()}
        if self.every is not None:
            loss, accuracy = at_looks.float().unbind(1)
            curves |= {"test_loss": loss, "test_accuracy": accuracy, "tested_after": torch.tensor(looks).float()}
        metrics, observed = _metrics(curves["loss"], at_looks[-1].tolist(), bool(task.eval_batches)), []
        for own, drawn, said in ends:
            metrics |= own
            curves |= drawn
            observed += [] if said is None else [said]
        return Record(
            self.key,
            "diverged" if "diverged_at" in metrics else "done",
            self.settings,
            metrics,
            {name: torch.as_tensor(x).detach().cpu().numpy() for name, x in curves.items()},
            seconds=time.perf_counter() - start,
            observed=observed,
        )


@torch.no_grad()
def _scale_(member: Member, factor: float) -> None:
    """Scale the initial weights of every matrix that begins at random."""
    entries = member.plan.entries
    for name, tensor in tensors(member.module).items():
        if name in entries and not (tensor.is_vector or entries[name].start.kept):
            tensor.parameter.mul_(factor)


def _metrics(losses: Tensor, last: Sequence[float], is_judged: bool) -> dict[str, float]:
    """First and highest loss, the mean over the last tenth of the steps, and what judged the trained network.

    Args:
        losses: ``[steps]``, before each update. last: loss and accuracy after the last step; not a number where it was
            not reached, and an accuracy where there is none.

    Returns:
        Where training diverged the highest, the mean and the judged loss are infinite, and ``diverged_at`` is the step
        of the first loss that is not a number.
    """
    bad, (loss, accuracy) = (~losses.isfinite()).nonzero(), last
    metrics = {"first_loss": float(losses[0])}
    if diverged := bool(len(bad)) or not math.isfinite(loss):
        end = float(bad[0]) if len(bad) else float(len(losses))
        metrics |= {"highest_loss": math.inf, "train_loss": math.inf, "diverged_at": end}
    else:
        mean = losses[-max(1, len(losses) // 10) :].mean()
        metrics |= {"highest_loss": float(losses.max()), "train_loss": float(mean)}
    if is_judged:
        metrics["test_loss"] = math.inf if diverged else loss
        if not math.isnan(accuracy) or diverged:
            metrics["test_accuracy"] = 0.0 if diverged else accuracy
    return metrics


def hashed(content: Mapping[str, Any]) -> str:
    """A name for plain data."""
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()


def _around(seen: Sequence[Observation]) -> Callable[[int], AbstractContextManager[object]] | None:
    @contextmanager
    def around(step: int) -> Iterator[None]:
        with ExitStack() as stack:
            for observation in seen:
                stack.enter_context(observation.around(step))
            yield

    return around if seen else None
