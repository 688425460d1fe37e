"""What training one of the user's networks takes, before it is trained: bytes and seconds, by how it holds its weights.

Four small networks, of the base and of twice its width or depth, show the shapes of all tensors, what a pass keeps for
its gradient, and how many rows each wide matrix is asked for. Shapes are affine in the width, sums over a network
affine in the depth, so every size follows. Structured weights hold r vectors of both sides of a matrix, r being the
rows seen in training or the smaller side, whichever is less: that bounds them. At the resolution of the layers they
mostly need less, as networks show once they are trained (``nfd.limits.ranks``). The seconds are a model of a two-core
CPU, on every device; only their ratio decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.names import NetworkWeights
from nfd.core.random import global_streams
from nfd.families.constructed import ConstructedFamily
from nfd.families.member import Member
from nfd.limits.cost import Storage
from nfd.limits.ranks import Ranks, foreseen
from nfd.nets.asked import rows_asked
from nfd.nets.hadamard import padded_size
from nfd.nets.matrix_cost import SPARE, MatrixUse, stored_cost, structured_cost
from nfd.nets.unstored import WeightError
from nfd.nets.wide import wide_maps
from nfd.scaling.calls import batch_size, call_with, tensors_in
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.training.task import Task


@dataclass(frozen=True)
class Seen:
    """What one dense network showed: sizes of its tensors that stay dense and of its wide matrices, in their order.

    Attributes:
        rest: numbers of every other tensor. wide: (in_features, out_features). saved: bytes kept for the gradient.
        rows: how often a batch asks the wide matrix that it asks most.
    """

    rest: Sequence[int]
    wide: Sequence[tuple[int, int]]
    saved: int
    rows: int


@dataclass(frozen=True)
class ModelCosts:
    """Predicted costs of the networks of a family on a task.

    Args:
        rank: directions that the update of a matrix needs at most, where that is known; None for the rows of training.
    """

    family: ConstructedFamily
    task: Task
    rank: int | None = None
    reached: dict[int, Ranks] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By width, the ranks that networks reached which were trained."""
    _sizes: dict[tuple[int, int], Seen] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def obstacle(self) -> str | None:
        """Why wide matrices must be stored; None where they need not."""
        if not law_of(self.family.optimizer).equivariant:
            return f"optimizer={self.family.optimizer!r} acts on every entry of a matrix by itself."
        try:
            law_of(self.family.optimizer).check_structured()
            n, L = self.family.base
            module, planned = self.family.outline(2 * n, L)  # where what grows can be seen
            wide_maps(module, planned, ["**"])
            with global_streams(0):
                _rows(self.family.build(n, L, 0, device=self.task.device), self._largest[0])  # does it read weights?
        except (InputError, WeightError) as error:
            return str(error)
        return None

    def of(self, weights: NetworkWeights, width: int, depth: int, rank: int | None = None) -> Storage:
        """Of a network of any size, dense or structured; with ``rank`` in place of the predicted rank."""
        (n, L), law = self.family.base, law_of(self.family.optimizer)
        ranks = self._foreseen(width) if rank is None else Ranks(*[min(rank, self._rows)] * 2)
        parts = []
        for deep in (L, 2 * L):
            small, large = self._seen(n, deep), self._seen(2 * n, deep)
            seen = _at(small, large, width / n)
            parts.append(self._dense(seen, law) if weights == "dense" else self._structured(seen, law, ranks))
        (bytes_1, seconds_1), (bytes_2, seconds_2) = parts
        step = depth / L - 1
        return Storage(weights, round(bytes_1 + step * (bytes_2 - bytes_1)), seconds_1 + step * (seconds_2 - seconds_1))

    def learn(self, width: int, ranks: Ranks) -> None:
        """Foresee ranks from what a network of this width reached."""
        self.reached[width] = ranks.joined(self.reached.get(width, ranks))

    def _foreseen(self, width: int) -> Ranks:
        """Those that are given, else the rows of training, or less where trained networks show that less will do."""
        if self.rank is not None:
            return Ranks(self.rank, self.rank)
        ranks, rows = foreseen(self.reached, width), self._rows
        return Ranks(rows, rows) if ranks is None else Ranks(min(ranks.mean, rows), min(ranks.most, rows))

    @cached_property
    def _rows(self) -> int:
        """That the most asked matrix sees in training."""
        return self._seen(*self.family.base).rows * self.task.steps

    def _dense(self, seen: Seen, law: OptimizerLaw) -> tuple[float, float]:
        costs = [stored_cost(self._use(sides, seen.rows, law)) for sides in seen.wide]
        largest = max((n_in * n_out for n_in, n_out in seen.wide), default=0)
        held = self._shared_bytes(seen) + 3 * self._itemsize * largest + sum(cost.bytes for cost in costs)
        return held, self.task.steps * sum(cost.seconds for cost in costs)

    def _structured(self, seen: Seen, law: OptimizerLaw, ranks: Ranks) -> tuple[float, float]:
        costs = [structured_cost(self._use(sides, seen.rows, law, math.ceil(ranks.mean))) for sides in seen.wide]
        widest = max((max(sides) for sides in seen.wide), default=0)
        transient = 4 * seen.rows * padded_size(max(widest, 1)) + 2 * SPARE * min(ranks.most, widest) * widest
        if not self._on_meta:  # it is made with numbers, which are then replaced
            transient += sum(n_in * n_out for n_in, n_out in seen.wide)
        held = self._shared_bytes(seen) + self._itemsize * transient + sum(cost.bytes for cost in costs)
        return held, self.task.steps * sum(cost.seconds for cost in costs)

    def _use(self, sides: tuple[int, int], rows: int, law: OptimizerLaw, rank: int = 0) -> MatrixUse:
        return MatrixUse(*sides, rows, rank, law.states, law.rest is not None, self._itemsize)

    def _shared_bytes(self, seen: Seen) -> float:
        """Of what both ways hold: all other tensors, with gradients and states, and what a pass keeps."""
        law = law_of(self.family.optimizer)
        rest = law if law.rest is None else law_of(law.rest)
        return self._itemsize * (3 + rest.states) * sum(seen.rest) + 2 * seen.saved

    @cached_property
    def _on_meta(self) -> bool:
        return any(p.is_meta for p in self.family.outline(*self.family.base)[0].parameters())

    @cached_property
    def _itemsize(self) -> int:
        return max(p.element_size() for p in self.family.build(*self.family.base, 0).module.parameters())

    @cached_property
    def _largest(self) -> tuple[Any, Any]:
        return max(self.task.batches, key=lambda pair: batch_size(pair[0]))

    def _seen(self, width: int, depth: int) -> Seen:
        if (width, depth) not in self._sizes:
            self._sizes[width, depth] = self._looked_at(width, depth)
        return self._sizes[width, depth]

    def _looked_at(self, width: int, depth: int) -> Seen:
        with global_streams(0):
            member = self.family.build(width, depth, 0, device=self.task.device)
            batch = self._largest
            wide = {} if self.obstacle else wide_maps(member.module, member.plan, ["**"])
            features = {name: linear.features for name, linear in wide.items()}
            rows = _rows(member, batch[0]) if wide else batch_size(batch[0])
            saved = _saved(member, self.task, batch)
        rest = [math.prod(entry.shape) for name, entry in member.plan.entries.items() if name not in features]
        return Seen(rest, list(features.values()), saved, rows)


def _at(small: Seen, large: Seen, ratio: float) -> Seen:
    """A network ``ratio`` times as wide as ``small``, where ``large`` is twice as wide."""

    def grown(one: float, two: float) -> int:
        return round(one + (two - one) * (ratio - 1))

    wide = [(grown(a, c), grown(b, d)) for (a, b), (c, d) in zip(small.wide, large.wide, strict=True)]
    rest = [math.ceil(one * (two / one) ** math.log2(ratio)) for one, two in zip(small.rest, large.rest, strict=True)]
    return Seen(rest, wide, grown(small.saved, large.saved), max(small.rows, large.rows))


def _rows(member: Member, inputs: Any) -> int:
    """The rows of the wide matrix that is asked most."""
    asked = rows_asked(
        member.module, lambda twin: wide_maps(twin, member.plan, ["**"]), lambda twin: call_with(twin, inputs)
    )
    return max(asked.values()) or batch_size(inputs)


def _saved(member: Member, task: Task, batch: tuple[Any, Any]) -> int:
    """Bytes that a forward pass keeps beside parameters, and those of the batch."""
    own = {p.untyped_storage().data_ptr() for p in member.module.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = task.value(member(batch[0]), batch[1])
    del value
    inputs = sum(tensor.nbytes for tensor in tensors_in(batch))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) + inputs
