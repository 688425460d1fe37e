"""The user's networks for a limit: each a trial, of a width and a depth, whose losses are the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.names import NetworkWeights
from nfd.core.random import derive
from nfd.limits.cost import LEVER, Storage
from nfd.limits.ensemble import Ensemble
from nfd.limits.model_cost import ModelCosts
from nfd.limits.networks import Words
from nfd.limits.ranks import MARGIN, Ranks
from nfd.runs.sweep import Sweep
from nfd.runs.trials import DIRECTIONS, MOST_DIRECTIONS, Trial
from nfd.store.rows import Record
from nfd.training.recipe import Recipe

_DOUBLINGS = 6  # of the depth, at most


@dataclass(frozen=True)
class ModelNetworks:
    """Networks of a recipe at one rate. Widths are multiples of the base's; depths double from the base's.

    Args:
        lr, weight_decay, adamw_lr: of the base, as in ``Trial``. kinds: the ways to hold weights that are allowed.
        resolution: of structured weights where none is given; 0 where nothing is dropped.
        memory: bytes that one network may take.
    """

    recipe: Recipe
    lr: float
    weight_decay: float
    adamw_lr: float | None
    seed: int
    kinds: Sequence[NetworkWeights]
    costs: ModelCosts
    resolution: float
    memory: int
    sweep: Sweep

    words: ClassVar[Words] = Words("losses", "lr", "Check the batches and the initial weights of the model", "Lower lr")
    amplification: ClassVar[float] = math.sqrt(5.0)  # of networks that share nothing

    @property
    def unit(self) -> int:
        """The width of the base."""
        return self.recipe.family.base[0]

    @property
    def pilot_width(self) -> int:
        """That of the base."""
        return self.unit

    @property
    def least_width(self) -> int:
        """The next one."""
        return 2 * self.unit

    @property
    def depths(self) -> Sequence[int]:
        """From that of the base."""
        return [self.recipe.family.base[1] * 2**k for k in range(_DOUBLINGS + 1)]

    def narrower(self, width: int) -> int:
        """A quarter, as a multiple of the base's width, and at least that."""
        return min(width, max(self.unit, width // LEVER // self.unit * self.unit))

    def ways(self, width: int, depth: int) -> Sequence[Storage]:
        """Those that are allowed."""
        return [self.costs.of(kind, width, depth) for kind in self.kinds]

    def cost(self, weights: NetworkWeights, width: int, depth: int, rank: float | None) -> Storage:
        """Of one network."""
        return self.costs.of(weights, width, depth, None if rank is None else math.ceil(rank))

    def least(self, width: int, depth: int) -> Storage:
        """With updates of a single direction, unless it is known how many they need."""
        rank = 1 if self.costs.rank is None else None
        return min((self.costs.of(kind, width, depth, rank) for kind in self.kinds), key=lambda way: way.bytes)

    def foresight(self) -> str:
        """The ranks that narrower networks reached."""
        if self.costs.rank is not None or not self.costs.reached:
            return ""
        ranks = sorted(self.costs.reached.items())
        reached = ", ".join(f"{rank.mean:,.0f} at width {width:,}" for width, rank in ranks)
        return (
            "Memory was predicted from the mean rank of the updates of trained networks: "
            f"{reached}; {MARGIN - 1:.0%} is added. Set rank= to override it."
        )

    def train(
        self,
        width: int,
        depth: int,
        weights: NetworkWeights,
        indices: range,
        label: str,
        resolution: float | None = None,
    ) -> Ensemble:
        """Their losses ``[R, steps]``, and evaluation losses ``[R, 1]`` where there are batches for them."""
        if weights == "structured" and resolution is None:
            resolution = self.resolution
        seeds = [derive(self.seed, "replicate", width, index) for index in indices]
        rates = (self.lr, self.weight_decay, self.adamw_lr)
        room = None if weights == "dense" else self.memory - self.costs.of(weights, width, depth, rank=0).bytes
        held: dict[str, Any] = {"weights": weights, "resolution": resolution, "room": room}
        trials = [Trial(self.recipe, width, depth, seed, *rates, **held) for seed in seeds]
        records = self.sweep.run_all({label: trials}, label)[label]
        for record in records:
            if DIRECTIONS in record.metrics and bool(resolution) == bool(self.resolution):  # others need more, or fewer
                self.costs.learn(width, Ranks(record.metrics[DIRECTIONS], record.metrics[MOST_DIRECTIONS]))
        curves = [self.sweep.store.curves(record.key)["loss"] for record in records]
        if len(curves) > 1 and all(torch.equal(curve, curves[0]) for curve in curves[1:]):
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses from every seed, but intervals come from "
                "differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )
        steps = self.recipe.task.steps
        ranks = [record.metrics[DIRECTIONS] for record in records if DIRECTIONS in record.metrics]
        ends = [int(record.metrics["diverged_at"]) for record in records if "diverged_at" in record.metrics]
        return Ensemble(
            width,
            depth,
            weights,
            torch.stack([_padded(curve, steps) for curve in curves]),
            torch.stack([_judged(record) for record in records]),
            min(ends, default=None),
            max(ranks, default=None),
        )


def _padded(losses: Tensor, steps: int) -> Tensor:
    """Losses ``[steps]``, not-a-number from where training diverged."""
    finite = torch.where(losses.isfinite(), losses, math.nan).double()
    return torch.cat([finite, finite.new_full((steps - len(finite),), math.nan)])


def _judged(record: Record) -> Tensor:
    loss = record.metrics.get("test_loss")
    values = [] if loss is None else [loss if math.isfinite(loss) else math.nan]
    return torch.tensor(values, dtype=torch.float64)
