"""Trials: one network of any family, trained by a recipe, as a run of a sweep."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch

from nfd.core.errors import InputError, StateError, described, trace_of
from nfd.core.names import NetworkWeights
from nfd.core.origin import place_in_code
from nfd.core.random import derive, global_state, global_streams
from nfd.families.member import Member
from nfd.nets.factored import FULL
from nfd.nets.matrix_cost import STORED_SECONDS, MatrixUse, training_seconds
from nfd.nets.structured import StructuredLinear
from nfd.runs.run import NUMERICS, Run, group_key, hashed, loss_metrics
from nfd.scaling.laws import law_of
from nfd.store.rows import Record, Status
from nfd.training.blame import blaming_the_model
from nfd.training.loop import Step
from nfd.training.recipe import Recipe
from nfd.training.task import Task
from nfd.training.together import together

DIRECTIONS, MOST_DIRECTIONS = "directions", "most_directions"  # of structured updates, in a record
TOGETHER = "together"  # in a record: trained with others as one, so that it differs by rounding from one trained alone
_FLOAT = 4  # bytes
_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Trial(Run):
    """One network of a recipe's family.

    Its record holds ``first_loss``, ``highest_loss``, ``train_loss`` (the mean over the last tenth of the steps), and
    ``test_loss`` where the task has ``eval_batches``; and the curve ``loss``, before each update. ``together`` is 1
    where it was trained with others as one, which changes its numbers by rounding, and is missing elsewhere.

    A trial that stops early is a run of its own: its curve is the beginning of the whole trial's, and no evaluation
    batch judges it.

    Args:
        recipe: family, task, optimizer and schedule.
        width, depth, seed: of the network, in the units of its family.
        lr, weight_decay: tuned at the family's base.
        adamw_lr: the same of what Muon leaves to AdamW; ``lr`` where None.
        stop: after how many steps to stop; None for all.
        weights: how the network holds its wide matrices (``nfd.defer``). Of structured ones the record has the
            ``directions`` of an update, the mean over matrices weighted by their longer sides, and ``most_directions``.
        resolution: of structured weights, below which they leave out directions; None for none.
        room: bytes that structured matrices may hold with what training adds to them; None for any. It is no part of
            the trial's name, as it changes no number.
    """

    recipe: Recipe = field(repr=False)
    width: int
    depth: int
    seed: int
    lr: float
    weight_decay: float = 0.0
    adamw_lr: float | None = None
    stop: int | None = None
    weights: NetworkWeights = "dense"
    resolution: float | None = None
    room: int | None = field(default=None, compare=False)

    ends_the_sweep: ClassVar[bool] = True

    @cached_property
    def key(self) -> str:
        return hashed({"trial": self.settings, "numerics": NUMERICS})

    @cached_property
    def settings(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("width", "depth", "seed", "lr", "weight_decay")}
        given = {name: getattr(self, name) for name in ("adamw_lr", "stop", "resolution")}
        own |= {name: value for name, value in given.items() if value is not None}
        own |= {} if self.weights == "dense" else {"weights": self.weights}
        return {**self.recipe.identity, **own, "schedule": self.factors and hashed({"factors": list(self.factors)})}

    @cached_property
    def factors(self) -> tuple[float, ...] | None:
        """Its schedule and warm-up as factors on its rates, one per step; None where there is neither."""
        return self.recipe.factors(self.lr)

    @property
    def steps(self) -> int:
        """How many it is trained for."""
        return self.stop or self.recipe.task.steps

    @property
    def task(self) -> Task:
        """What it is trained on and judged by; the whole task unless it stops early."""
        task = self.recipe.task
        return task if self.stop is None else replace(task.first(self.stop), eval_batches=())

    @property
    def cost(self) -> float:
        """As if a block were one square matrix, asked for every target; a target that judges costs a third."""
        task, law = self.recipe.task, law_of(self.recipe.family.optimizer)
        rows = max(task.targets // task.steps, 1)
        samples = rows * self.steps + (task.eval_targets // 3 if self.stop is None else 0)
        use = MatrixUse(self.width, self.width, rows, samples, law.states, law.rest is not None, _FLOAT)
        return self.depth * training_seconds(self.weights, use)

    @property
    def calls(self) -> float:
        return self.steps * self.depth * STORED_SECONDS

    def shortened(self, steps: int) -> Self:
        return replace(self, stop=min(steps, self.steps))

    @property
    def form(self) -> Hashable:
        size = self.width, self.depth, self.weights, self.stop
        return hashed(dict(self.recipe.identity)), *size, self.factors is None

    @property
    def most_together(self) -> int:
        return together(self.recipe, self.width, self.depth).most if self.weights == "dense" else 1

    @classmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        place, group = torch.device(device), group_key([run.key for run in runs])
        if len(runs) > 1:
            with suppress(Exception):  # of one of them: alone, each has a record of its own
                return _together(runs, group, place)
        return [run._alone(group, place) for run in runs]

    def build(self, place: torch.device) -> Member:
        """Its network, to be trained."""
        member = self.recipe.family.build(self.width, self.depth, self.seed, self.weights, place, self.resolution)
        self.recipe.begin_(member)
        member.module.train()
        return member

    def record(
        self, group: str, losses: torch.Tensor, judged: float, seconds: float, more: Mapping[str, float] = _NONE
    ) -> Record:
        """What is stored of it, from its losses ``[steps]``, its mean loss after training, and more metrics."""
        bad = (~losses.isfinite()).nonzero()
        losses = losses[: int(bad[0]) + 1] if len(bad) else losses  # as where it is trained alone
        metrics = loss_metrics(losses, math.isfinite(judged)) | dict(more)
        if self.task.eval_batches:
            metrics["test_loss"] = math.inf if "diverged_at" in metrics else judged
        status: Status = "diverged" if "diverged_at" in metrics else "done"
        return Record(self.key, group, status, self.settings, metrics, {"loss": losses.numpy()}, seconds=seconds)

    def _alone(self, group: str, place: torch.device) -> Record:
        start = time.perf_counter()
        try:
            with blaming_the_model(self.width, self.depth, self.recipe.task.batches[0]):
                losses, judged, ranks = self._trained(place)
        except InputError as error:
            where = place_in_code(error)
            return self.failed(group, described(error) + (f" ({where})" if where else ""))
        except Exception as error:  # of the input or ours: as the record says
            return self.failed(group, described(error), trace_of(error))
        return self.record(group, losses, judged, time.perf_counter() - start, ranks)

    def _trained(self, place: torch.device) -> tuple[torch.Tensor, float, dict[str, float]]:
        """Losses, the mean loss afterwards, not a number where the last loss was not one, and ranks."""
        task = self.task.on(place)
        with _streams(self, place), warnings.catch_warnings():
            warnings.filterwarnings("ignore", FULL)  # all networks of a prediction have one kind of weights
            member = self.build(place)
            rows = self.recipe.rows(
                member, self.lr, self.weight_decay, list(task.batches), self.factors, adamw_lr=self.adamw_lr
            )
            losses = torch.tensor([row.loss for row in self._within_room(rows, member)], dtype=torch.float64)
            if not losses[0].isfinite():
                raise InputError(
                    f"make_model({self.width}, {self.depth}) has a loss of {losses[0]:g} before it is trained, so that "
                    "no rate can help. Check its outputs and the loss on the first batch."
                )
            judged = self.recipe.judged(member, task) if losses[-1].isfinite() else math.nan
        return losses, judged, _ranks(member)

    def _within_room(self, rows: Iterable[Step], member: Member) -> Iterator[Step]:
        """The steps, ended by an InputError once structured matrices hold more than there is room for."""
        layers, states = _structured_layers(member), law_of(self.recipe.family.optimizer).states
        for row in rows:
            held = sum(layer.nbytes + states * layer.update.nbytes for layer in layers)
            if self.room is not None and held > self.room:
                raise InputError(
                    f"a network of width {self.width} and depth {self.depth} has outgrown its memory: after step "
                    f"{row.step} of {self.task.steps} its updates have {_ranks(member)[DIRECTIONS]:,.0f} directions a "
                    "matrix, more than predicted. Raise memory, or lower width, batch or steps"
                )
            yield row


def _structured_layers(member: Member) -> list[StructuredLinear]:
    return [layer for layer in member.module.modules() if isinstance(layer, StructuredLinear)]


def _ranks(member: Member) -> dict[str, float]:
    """The directions of structured updates: their mean, weighted by the longer sides, and the most; of others none."""
    layers = _structured_layers(member)
    if not layers:
        return {}
    lengths = [max(layer.in_features, layer.out_features) for layer in layers]
    total = sum(layer.rank * length for layer, length in zip(layers, lengths, strict=True))
    return {DIRECTIONS: total / sum(lengths), MOST_DIRECTIONS: float(max(layer.rank for layer in layers))}


def _together(runs: Sequence[Trial], group: str, place: torch.device) -> list[Record]:
    """The records of networks that are trained as one."""
    start = time.perf_counter()
    recipe, task = runs[0].recipe, runs[0].task.on(place)
    with _streams(runs[0], place):
        members = [run.build(place) for run in runs]
        streams = global_state()
        stack = type(members[0]).stacked(members)
        assert stack is not None
        tuned = [(run.lr, run.weight_decay, run.adamw_lr) for run in runs]
        groups = [member.groups(*own) for member, own in zip(members, tuned, strict=True)]
        rows = recipe.rows_together(stack, groups, task.batches, _factors(runs))
        losses = torch.stack([row.losses for row in rows], dim=1).double().cpu()
        judged = recipe.judged_together(stack, task)
        if global_state() != streams or not losses[:, 0].isfinite().all():
            raise StateError("networks that draw random numbers, or begin without a loss, are trained alone.")
    seconds = (time.perf_counter() - start) / len(runs)
    as_one = {TOGETHER: 1.0}
    return [
        run.record(group, own, value, seconds, as_one) for run, own, value in zip(runs, losses, judged, strict=True)
    ]


def _factors(runs: Sequence[Trial]) -> Callable[[int], torch.Tensor] | None:
    """The schedules of networks that are trained as one, ``[R]`` at a step."""
    factors = [run.factors for run in runs if run.factors is not None]
    return torch.tensor(factors, dtype=torch.float64).T.__getitem__ if factors else None


def _streams(run: Trial, place: torch.device) -> AbstractContextManager[None]:
    """The global random streams of a network, while it is trained."""
    return global_streams(derive(run.seed, "training", run.width, run.depth), [] if place.type == "cpu" else [place])
