"""Trials: one network of any family, trained by a recipe, as a run of a sweep."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch

from nfd.core.errors import InputError, described, trace_of
from nfd.core.names import NetworkWeights
from nfd.core.origin import place_in_code
from nfd.core.random import derive, global_streams
from nfd.families.member import Member
from nfd.runs.run import NUMERICS, Run, group_key, hashed, loss_metrics
from nfd.scaling.calls import evaluating
from nfd.store.rows import Record
from nfd.training.blame import blaming_the_model
from nfd.training.recipe import Recipe
from nfd.training.task import Task


@dataclass(frozen=True)
class Trial(Run):
    """One network of a recipe's family.

    Its record holds ``first_loss``, ``highest_loss``, ``train_loss`` (the mean over the last tenth of the steps), and
    ``test_loss`` where the task has ``eval_batches``; and the curve ``loss``, before each update.

    A trial that stops early is a run of its own: its curve is the beginning of the whole trial's, and no evaluation
    batch judges it.

    Args:
        recipe: family, task, optimizer and schedule.
        width, depth, seed: of the network, in the units of its family.
        lr, weight_decay: tuned at the family's base.
        adamw_lr: the same of what Muon leaves to AdamW; ``lr`` where None.
        stop: after how many steps to stop; None for all.
        weights: how the network holds its wide matrices (``nfd.defer``).
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

    ends_the_sweep: ClassVar[bool] = True

    @cached_property
    def key(self) -> str:
        return hashed({"trial": self.settings, "numerics": NUMERICS})

    @cached_property
    def settings(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("width", "depth", "seed", "lr", "weight_decay")}
        own |= {name: getattr(self, name) for name in ("adamw_lr", "stop") if getattr(self, name) is not None}
        own |= {} if self.weights == "dense" else {"weights": self.weights}
        return {**self.recipe.identity, **own, "schedule": self._factors and hashed({"factors": list(self._factors)})}

    @property
    def cost(self) -> float:
        """Multiply-adds of the blocks, up to one number."""
        return float((self.stop or self.recipe.task.steps) * self.depth * self.width**2)

    @classmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        return [run._record(torch.device(device)) for run in runs]

    @cached_property
    def _factors(self) -> tuple[float, ...] | None:
        return self.recipe.factors(self.lr)

    @property
    def _task(self) -> Task:
        """What is trained on and judged by; the whole task unless it stops early."""
        task = self.recipe.task
        return task if self.stop is None else replace(task.first(self.stop), eval_batches=())

    def _record(self, place: torch.device) -> Record:
        start, group = time.perf_counter(), group_key([self.key])
        try:
            with blaming_the_model(self.width, self.depth, self.recipe.task.batches[0]):
                metrics, losses = self._trained(place)
        except InputError as error:
            where = place_in_code(error)
            return self.failed(group, described(error) + (f" ({where})" if where else ""))
        except Exception as error:  # of the input or ours: as the record says
            return self.failed(group, described(error), trace_of(error))
        return Record(
            self.key,
            group,
            "diverged" if "diverged_at" in metrics else "done",
            self.settings,
            metrics,
            {"loss": losses.numpy()},
            seconds=time.perf_counter() - start,
        )

    def _trained(self, place: torch.device) -> tuple[dict[str, float], torch.Tensor]:
        task = self._task.on(place)
        devices = [] if place.type == "cpu" else [place]
        with global_streams(derive(self.seed, "training", self.width, self.depth), devices):
            member = self.recipe.family.build(self.width, self.depth, self.seed, self.weights, place)
            member.module.train()
            rows = self.recipe.rows(
                member, self.lr, self.weight_decay, list(task.batches), self._factors, adamw_lr=self.adamw_lr
            )
            losses = torch.tensor([row.loss for row in rows], dtype=torch.float64)
            judged = _mean_loss(member, task) if math.isfinite(float(losses[-1])) else math.nan
        metrics = loss_metrics(losses, math.isfinite(judged))
        if task.eval_batches:
            metrics["test_loss"] = math.inf if "diverged_at" in metrics else judged
        return metrics, losses


@torch.no_grad()
def _mean_loss(member: Member, task: Task) -> float:
    """The mean loss over the evaluation batches after training, over the last training batch where there are none."""
    pairs = task.eval_batches or task.batches[-1:]
    with evaluating(member.module):
        return math.fsum(float(task.value(member(x), y)) for x, y in pairs) / len(pairs)
