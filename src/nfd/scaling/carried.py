"""A plan at another size: what its numbers say of the same model wider or deeper, read as powers.

A plan holds numbers for one model, ``m`` times as wide and ``l`` times as deep as its base. Those
of its rule are powers of known exponents. What the plan holds beside them, such as factors of the
model's own forward pass, is one number for each tensor, and is read as ``m^a l^b`` with the
simplest ``a`` and ``b`` that give it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Literal

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.base import Base, Constructor, MakeModel, depths_of
from nfd.scaling.entries import Entry, Ratios, Start
from nfd.scaling.model import (
    Blocks,
    TensorInfo,
    Where,
    alike,
    block_of,
    blocks_of,
    container_of,
    in_any_block,
    modules,
    places_of,
    repeated,
    tensors,
)
from nfd.scaling.rules import rule_named

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

Axis = Literal["width", "depth"]

_EXPONENTS = (0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0)  # the simplest first
# Along one axis: attention may divide queries and keys by d^(1/4) each, and SGD feels a factor
# twice.
_QUARTERS = (0.25, -0.25, 0.75, -0.75)
_EXACT = 1e-3  # of the logarithm of a factor: twice the width of what a plan takes for the same


def exponents(factor: float, wider: float, deeper: float) -> list[tuple[float, float]]:
    """Find the simplest ``(a, b)`` with ``factor = wider^a deeper^b``.

    There are several where they are equally simple. None where no simple ones fit: then the factor
    is a constant, such as another learning rate for embeddings at every size.
    """
    goal = math.log(factor)
    width = math.log(wider)
    depth = math.log(deeper)
    if abs(goal) < _EXACT:
        return [(0.0, 0.0)]
    candidates = [
        *product(_EXPONENTS, _EXPONENTS),
        *((a, 0.0) for a in _QUARTERS),
        *((0.0, b) for b in _QUARTERS),
    ]
    fitting = [(a, b) for a, b in candidates if abs(a * width + b * depth - goal) < _EXACT]
    of_grown_axes = [(a, b) for a, b in fitting if (a == 0 or width) and (b == 0 or depth)]
    # A half of one axis is simpler than a quarter of the other.
    halves = [pair for pair in of_grown_axes if not set(pair) & set(_QUARTERS)]
    of_grown_axes = halves or of_grown_axes
    least = min((abs(a) + abs(b) for a, b in of_grown_axes), default=0.0)
    return [(a, b) for a, b in of_grown_axes if abs(a) + abs(b) == least]


def share(
    factor: float, plan: Plan, depth: float, axis: Axis, ratio: float, *, is_of_depth: bool
) -> float:
    """A factor of a plan at a model that is ``ratio`` times as large as the base along one axis.

    Args:
        depth: of the tensor's stack, as a multiple of the base's.
        is_of_depth: the axis of a factor that may be of either, as of a plan that is as much wider
            as it is deeper.
    """
    if factor <= 0 or not math.isfinite(factor):
        return factor
    candidates = exponents(factor, plan.width, depth)
    if not candidates:
        return 1.0
    a, b = max(candidates, key=lambda pair: abs(pair[1] if is_of_depth else pair[0]))
    return math.pow(ratio, a if axis == "width" else b)


@dataclass(frozen=True)
class Carrier:
    """Takes a plan to other sizes of its model.

    Args:
        make_model: builds the model at a width and a depth.
        size: width and depth of the smallest model.
    """

    plan: Plan
    make_model: MakeModel
    size: tuple[int, int]

    @cached_property
    def constructor(self) -> Constructor:
        """Builds the smallest model and others by their ratios to it."""
        return Constructor(self.make_model, *self.size)

    @cached_property
    def where(self) -> Where:
        """Where blocks are in models of every size: where the plan has them."""
        single = [block for block in self.plan.blocks if not _is_numbered(block)]
        if single:
            # A module of a name of its own, which the forward pass applies again and again.
            lists = {container_of(block) for block in self.plan.blocks if _is_numbered(block)}
            return [*single, *(f"{container}.*" for container in sorted(lists))]
        planned = {container_of(block) for block in self.plan.blocks}
        if not planned:
            return {}
        shown = repeated(self.constructor.at(), self.constructor.at(deeper=2))
        if planned <= set(shown):
            return {container: kinds for container, kinds in shown.items() if container in planned}
        parts = modules(self.constructor.at())
        return [
            f"{container}.*".lstrip(".") for container in sorted(planned) if container in parts
        ] or {}

    @property
    def is_shared(self) -> bool:
        """Whether a deeper model has no more tensors, as where blocks are applied again.

        No plan sees the depth of such a model.
        """
        deep = self.constructor.at(deeper=2)
        return tensors(deep).keys() == self.base.tensors.keys()

    @cached_property
    def base(self) -> Base:
        """The smallest model."""
        return Base.of(self.constructor.at(), self.where)

    @cached_property
    def _sources(self) -> list[Base]:
        """The models from which the plan may have taken initial weights.

        They are its base, and under muP a model of its own depth.
        """
        if self.plan.depth == 1 or rule_named(self.plan.rule).scales_depth:
            return [self.base]
        return [self.base, Base.of(self.constructor.at(deeper=self.plan.depth), self.where)]

    @cached_property
    def _planned(self) -> Blocks:
        return dict.fromkeys(self.plan.blocks, "")

    @cached_property
    def _multiplied(self) -> Mapping[str, float]:
        """The factors of the forward pass by module, with ``*`` for its block."""
        return {
            self._kind(name, self._planned): factor
            for name, factor in self.plan.multipliers.items()
        }

    @staticmethod
    def _kind(name: str, blocks: Blocks) -> str:
        return in_any_block(f"{name}.", blocks).rstrip(".")

    def at(self, model: nn.Module, axis: Axis, ratio: float) -> Plan:
        """The plan of a model that is ``ratio`` times as large as the smallest along one axis.

        Raises:
            ValueError: if the model has a tensor that the plan has not.
        """
        blocks = blocks_of(model, self.where)
        depths = depths_of(blocks, self.base.blocks)
        names = self._names(model, blocks)
        entries = {}
        for name, t in tensors(model).items():
            depth = depths.get(block_of(name, blocks) or "", depths[""])
            entries[name] = self._entry(names[name], t, blocks, depth, axis, ratio)
        multipliers = {}
        for name in modules(model):
            kind = self._kind(name, blocks)
            if name and kind in self._multiplied:
                is_of_depth = block_of(f"{name}.", blocks) is not None
                factor = self._multiplied[kind]
                multipliers[name] = share(
                    factor, self.plan, self.plan.depth, axis, ratio, is_of_depth=is_of_depth
                )
        multipliers = {name: factor for name, factor in multipliers.items() if factor != 1}
        size = {axis: ratio}
        return replace(
            self.plan,
            width=size.get("width", 1.0),
            depth=size.get("depth", 1.0),
            entries=entries,
            blocks=tuple(blocks),
            multipliers=multipliers,
            notes=(),
            run=None,
            base=self.size,
            logits={},
        )

    def _names(self, model: nn.Module, blocks: Blocks) -> dict[str, str]:
        """The planned tensor that stands for each of a model."""
        here: Blocks = dict.fromkeys(blocks, "")
        places = places_of(self.plan.entries, self._planned)
        names = dict[str, str]()
        for name in tensors(model):
            planned = alike(name, here, places)
            if planned is None:
                raise InputError(
                    f"the plan has no tensor like {name!r} of make_model{self.size}. Pass the "
                    "make_model and base= of the plan, or plan the model again."
                )
            names[name] = planned
        return names

    def _entry(
        self, planned: str, t: TensorInfo, blocks: Blocks, depth: float, axis: Axis, ratio: float
    ) -> Entry:
        entry = self.plan.entries[planned]
        deeper = self._deeper(planned)
        if deeper != 1:
            depth = math.pow(depth, math.log(entry.ratios.depth) / math.log(deeper))
        elif axis == "depth" and self.plan.depth != 1:
            # Blocks that the forward pass applies again and again have no number that grows.
            depth = math.pow(ratio, math.log(entry.ratios.depth) / math.log(self.plan.depth))
        fan_in = self._grown(entry.ratios.fan_in, axis, ratio)
        fan_out = self._grown(entry.ratios.fan_out, axis, ratio)
        ratios = Ratios(fan_in, fan_out, depth)
        is_inside = entry.role in ("outer", "inner")
        own = share(entry.own_factor, self.plan, deeper, axis, ratio, is_of_depth=is_inside)
        start = self._start(planned, t, blocks, axis, ratio)
        return replace(
            entry, shape=t.shape, fan_in=t.fan_in(), ratios=ratios, own_factor=own, start=start
        )

    def _deeper(self, planned: str) -> float:
        """Divide the number of blocks in the stack of a planned tensor by that of the base."""
        return self._planned_depths.get(
            block_of(planned, self.plan.blocks) or "", self._planned_depths[""]
        )

    @cached_property
    def _planned_depths(self) -> Mapping[str, float]:
        if self.plan.base != self.size:
            return {"": self.plan.depth}
        return depths_of(self._planned, self.base.blocks)

    def _grown(self, fan: float, axis: Axis, ratio: float) -> float:
        """A ratio of fans at another width, as a power of the width."""
        if axis == "depth" or fan == 1 or self.plan.width == 1:
            return 1.0
        return math.pow(ratio, math.log(fan) / math.log(self.plan.width))

    def _start(
        self, planned: str, t: TensorInfo, blocks: Blocks, axis: Axis, ratio: float
    ) -> Start:
        """Say how a tensor of another size is initialised.

        It is as in the smallest model, times what the plan has beyond its base.
        """
        entry = self.plan.entries[planned]
        start = self.base.start(t, blocks)
        if (start.constant is None) != (entry.start.constant is None):
            return entry.start
        initial_size = _size(start)
        planned_size = _size(entry.start)
        if self.plan.base == self.size and planned_size and not entry.start.kept:
            more = self._beyond_base(planned, planned_size)
            is_of_depth = entry.role == "outer"
            initial_size *= share(
                more, self.plan, self._deeper(planned), axis, ratio, is_of_depth=is_of_depth
            )
        if start.constant is not None:
            return replace(start, constant=initial_size, kept=entry.start.kept)
        return replace(start, std=initial_size, kept=entry.start.kept)

    def _beyond_base(self, planned: str, initial_size: float) -> float:
        """Divide initial weights of a plan by those of the model from which it took them."""
        more = 1.0
        for source in reversed(self._sources):
            places = places_of(source.tensors, dict.fromkeys(source.blocks, ""))
            name = alike(planned, self._planned, places)
            size = 0.0 if name is None else _size(source.start(source.tensors[name], source.blocks))
            if size:
                more = initial_size / size
            if abs(more - 1) < _EXACT:
                return 1.0
        return more if more > 0 else 1.0


def _is_numbered(block: str) -> bool:
    """Whether a block is one of a list, and has a number there."""
    return block.rpartition(".")[2].isdecimal()


def _size(start: Start) -> float:
    """Return the constant or the standard deviation of initial weights."""
    return start.std if start.constant is None else start.constant
