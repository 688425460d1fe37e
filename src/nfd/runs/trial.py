"""``Trial``: one network of a family, trained on a task. It is the only kind of run.

Small trials of one size that differ in seed and rate alone are trained as one where that changes their numbers by
rounding alone (``nfd.training.together``); a group is the unit of commit and of repetition.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError, StateError, described, place_of, trace_of
from nfd.core.names import NetworkWeights
from nfd.core.random import derive, global_state, global_streams
from nfd.families.family import Family
from nfd.families.member import Member, StackedMembers
from nfd.scaling.model import tensors
from nfd.store import Record, Status
from nfd.training import driver
from nfd.training.loop import Step
from nfd.training.task import Task
from nfd.training.together import most_together
from nfd.wide.linear import FULL

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
        observe: what is measured on the way; such a trial is trained alone.
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
        """Its schedule and warm-up as factors on its rates, one per step; None where there is neither."""
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

    @property
    def form(self) -> Hashable:
        """What the trials of a group have in common."""
        return hashed(self.experiment), self.width, self.depth, self.stop, self.every, self.factors is None

    @property
    def most_together(self) -> int:
        """How many trials of its form make a group at most."""
        alone = self.weights != "dense" or bool(self.observe)
        return 1 if alone else most_together(self.family, self.task, self.width, self.depth)

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

    def train(self, place: torch.device) -> Record:
        """Train it alone; a trial that cannot be trained is a record with its error."""
        try:
            with self.task.blaming(self.width, self.depth):
                return self._trained(place)
        except Exception as error:  # of the input or ours: as the record says
            return self.failed(described(error) + place_of(error), trace_of(error))

    def _trained(self, place: torch.device) -> Record:
        start, task = time.perf_counter(), self._task(place)
        with streams(self, place), warnings.catch_warnings():
            warnings.filterwarnings("ignore", FULL)  # all networks of a prediction have one kind of weights
            member = self.build(place)
            member.reserve(task.rows)
            seen = [observer.begin(member, task) for observer in self.observe]
            evaluation = Evaluation(task, self.every, self.steps)
            losses = list[Tensor]()
            evaluation.look(0, lambda: driver.judged(member, task))
            for row in driver.rows(member, task, self.lr, self.factors, _around(seen)):
                losses.append(row.losses)
                for observation in seen:
                    observation.after(row)
                if not row.diverged:
                    evaluation.look(row.step + 1, lambda: driver.judged(member, task))
            if not losses[0].isfinite() and not self.observe:  # an observer says more
                raise InputError(
                    f"make_model({self.width}, {self.depth}) has a loss of {float(losses[0]):g} before it is trained, "
                    "so that no rate can help. Check its outputs and the loss on the first batch."
                )
            ends = [observation.end() for observation in seen]
        record = self.record(torch.stack(losses).double().cpu(), evaluation, time.perf_counter() - start)
        for metrics, curves, observed in ends:
            record.metrics.update(metrics)
            record.curves.update({name: torch.as_tensor(x).detach().cpu().numpy() for name, x in curves.items()})
            if observed is not None:
                record.observed.append(observed)
        return record

    def _task(self, place: torch.device) -> Task:
        """What it is trained on and judged by; the whole task unless it stops early."""
        task = self.task.on(place)
        return task if self.stop is None else task.first(self.stop).having(eval_batches=())

    def record(self, losses: Tensor, judged: Evaluation, seconds: float, place: int = 0) -> Record:
        """What is stored of it, from its losses ``[steps]`` and what its evaluations gave."""
        bad = (~losses.isfinite()).nonzero()
        losses = losses[: int(bad[0]) + 1] if len(bad) else losses  # as where it is trained alone
        loss, accuracy = judged.last(place)
        metrics = loss_metrics(losses, math.isfinite(loss))
        diverged = "diverged_at" in metrics
        if judged.task.eval_batches:
            metrics["test_loss"] = math.inf if diverged else loss
            if not math.isnan(accuracy) or diverged:
                metrics["test_accuracy"] = 0.0 if diverged else accuracy
        status: Status = "diverged" if diverged else "done"
        curves = {"loss": losses.numpy(), **judged.curves(place)}
        return Record(self.key, status, self.settings, metrics, curves, seconds=seconds)


class Evaluation:
    """Mean loss and accuracy of one network, or of several as one, at the looks of a training."""

    def __init__(self, task: Task, every: int | None, steps: int) -> None:
        self.task, self.steps = task, steps
        self.moments = sorted({*(range(0, steps, every) if every else ()), steps})
        self.keeps_curves = every is not None
        self.seen: dict[int, driver.Judged] = {}

    def look(self, step: int, judge: Callable[[], driver.Judged]) -> None:
        """Judge the networks, if this is the moment."""
        if step in self.moments:
            self.seen[step] = judge()

    def last(self, place: int) -> tuple[float, float]:
        """Loss and accuracy of a network after the last step; not a number where it was not reached."""
        return self.seen[self.steps][place] if self.steps in self.seen else (math.nan, math.nan)

    def curves(self, place: int) -> Curves:
        """Loss and accuracy of a network at every look."""
        if not self.keeps_curves:
            return {}
        rows = [self.seen[step][place] if step in self.seen else (math.nan, math.nan) for step in self.moments]
        loss, accuracy = torch.tensor(rows, dtype=torch.float32).unbind(1)
        after = torch.tensor(self.moments, dtype=torch.float32)
        return {
            name: x.numpy() for name, x in (("test_loss", loss), ("test_accuracy", accuracy), ("tested_after", after))
        }


@dataclass(frozen=True)
class Group:
    """Trials that are trained together."""

    trials: tuple[Trial, ...]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names of its trials."""
        return tuple(trial.key for trial in self.trials)

    @cached_property
    def cost(self) -> float:
        """The work of its trials."""
        return sum(trial.cost for trial in self.trials)

    def train(self, device: str | None = None) -> list[Record]:
        """Train them, by default where their batches lie; what a worker does."""
        place = self.trials[0].task.device if device is None else torch.device(device)
        if len(self.trials) > 1:
            with suppress(Exception):  # of one of them: alone, each has a record of its own
                return self._as_one(place)
        return [trial.train(place) for trial in self.trials]

    def failed(self, error: str) -> list[Record]:
        """The records of its trials where it could not be trained."""
        return [trial.failed(error) for trial in self.trials]

    def _as_one(self, place: torch.device) -> list[Record]:
        start, first = time.perf_counter(), self.trials[0]
        task = first._task(place)
        with streams(first, place):
            members = [trial.build(place) for trial in self.trials]
            before = global_state()
            stack = StackedMembers(members)
            groups = [
                m.groups(t.lr, task.weight_decay, task.adamw_lr) for m, t in zip(members, self.trials, strict=True)
            ]
            evaluation = Evaluation(task, first.every, first.steps)
            evaluation.look(0, lambda: driver.judged_together(stack, task))
            losses = list[Tensor]()
            for row in driver.rows_together(stack, first.family.optimizer, task, groups, _factors(self.trials)):
                losses.append(row.losses)
                evaluation.look(row.step + 1, lambda: driver.judged_together(stack, task))
            curves = torch.stack(losses, dim=1).double().cpu()
            if global_state() != before or not curves[:, 0].isfinite().all():
                raise StateError("networks that draw random numbers, or begin without a loss, are trained alone.")
        seconds = (time.perf_counter() - start) / len(self.trials)
        return [
            trial.record(own, evaluation, seconds, place)
            for place, (trial, own) in enumerate(zip(self.trials, curves, strict=True))
        ]


def groups(trials: Iterable[Trial], done: Container[str] = ()) -> list[Group]:
    """What is to be trained, in groups that the trials alone decide; the costliest groups first.

    A trial whose key is ``done`` is left out of its group: what is left of a plan is trained in the plan's groups,
    whenever it was stopped.
    """
    alike: dict[Hashable, dict[str, Trial]] = {}
    for trial in trials:
        alike.setdefault(trial.form, {})[trial.key] = trial
    missing = []
    for members in map(list, map(dict.values, alike.values())):
        if all(trial.key in done for trial in members):
            continue
        size = members[0].most_together
        for first in range(0, len(members), size):
            left = tuple(trial for trial in members[first : first + size] if trial.key not in done)
            missing += [Group(left)] if left else []
    return sorted(missing, key=lambda group: -group.cost)


@torch.no_grad()
def _scale_(member: Member, factor: float) -> None:
    """Scale the initial weights of every matrix that begins at random."""
    entries = member.plan.entries
    for name, tensor in tensors(member.module).items():
        if name in entries and not (tensor.is_vector or entries[name].start.kept):
            tensor.parameter.mul_(factor)


def loss_metrics(losses: Tensor, answers: bool) -> dict[str, float]:
    """First and highest loss, and the mean over the last tenth of the steps.

    Args:
        losses: ``[steps]``, before each update. answers: whether the network gives finite outputs after the last one.

    Returns:
        ``first_loss``, ``highest_loss`` and ``train_loss``; where training diverged the last two are infinite, and
        ``diverged_at`` is the step of the first loss that is not a number.
    """
    bad = (~losses.isfinite()).nonzero()
    if not answers or len(bad):
        end = float(bad[0]) if len(bad) else float(len(losses))
        return {"first_loss": float(losses[0]), "highest_loss": math.inf, "train_loss": math.inf, "diverged_at": end}
    last = losses[-max(1, len(losses) // 10) :]
    return {"first_loss": float(losses[0]), "highest_loss": float(losses.max()), "train_loss": float(last.mean())}


def hashed(content: Mapping[str, Any]) -> str:
    """A name for plain data."""
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()


def streams(trial: Trial, place: torch.device) -> AbstractContextManager[None]:
    """The global random streams of a trial, while it is trained."""
    seed = derive(trial.seed, "training", trial.width, trial.depth)
    return global_streams(seed, [] if place.type == "cpu" else [place])


def _around(seen: Sequence[Observation]) -> Callable[[int], AbstractContextManager[object]] | None:
    @contextmanager
    def around(step: int) -> Iterator[None]:
        with ExitStack() as stack:
            for observation in seen:
                stack.enter_context(observation.around(step))
            yield

    return around if seen else None


def _factors(trials: Sequence[Trial]) -> Callable[[int], Tensor] | None:
    """The schedules of trials that are trained as one, ``[R]`` at a step."""
    factors = [trial.factors for trial in trials if trial.factors is not None]
    return torch.tensor(factors, dtype=torch.float64).T.__getitem__ if factors else None
