"""Derive from the plan of one model the plan of the same model at another width or depth.

A plan holds numbers for one model, ``m`` times as wide and ``l`` times as deep as its base. Numbers
that follow from its rule are powers of ``m`` and ``l`` with known exponents. Other numbers, such as
factors of the model's own forward pass, have no known exponents: each is taken to be ``m^a l^b``,
with the simplest ``a`` and ``b`` that give it.
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

# The simplest first.
_EXPONENTS = (0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0)
# Tried along one axis at a time. Attention may divide queries and keys by d^(1/4) each; a factor of
# the forward pass changes the update of SGD by its square.
_QUARTERS = (0.25, -0.25, 0.75, -0.75)
# Logarithms of factors that differ by less than this count as equal. A plan takes factors for equal
# at 1e-4 (``nfd.scaling.forward_factors``).
_EXACT = 1e-3


def exponents(factor: float, wider: float, deeper: float) -> list[tuple[float, float]]:
    """Find the simplest ``(a, b)`` with ``factor = wider^a deeper^b``.

    The list has every pair of exponents that is equally simple. It is empty where no simple pair
    fits: then the factor is a constant, such as a learning rate of embeddings that differs by the
    same factor at every size.
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
    # An axis along which the model did not grow (logarithm 0) fits with any exponent: keep only 0.
    of_grown_axes = [(a, b) for a, b in fitting if (a == 0 or width) and (b == 0 or depth)]
    # An exponent 1/2 of one axis is simpler than 1/4 of the other.
    without_quarters = [pair for pair in of_grown_axes if not set(pair) & set(_QUARTERS)]
    of_grown_axes = without_quarters or of_grown_axes
    least = min((abs(a) + abs(b) for a, b in of_grown_axes), default=0.0)
    return [(a, b) for a, b in of_grown_axes if abs(a) + abs(b) == least]


def factor_at(
    factor: float, plan: Plan, depth: float, axis: Axis, ratio: float, *, is_of_depth: bool
) -> float:
    """Scale a factor of a plan to a model ``ratio`` times as large as the base along one axis.

    Args:
        depth: of the tensor's stack, as a multiple of the base's.
        is_of_depth: whether to read the factor as a power of the depth, not of the width, where
            both fit, as in a plan that is 4 times as wide and 4 times as deep.
    """
    # Such a number is not a power: it stays as it is.
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
        """What finds, in a model of any size, the blocks that correspond to the plan's."""
        # Modules outside of a list, such as one block that the forward pass applies repeatedly.
        single = [block for block in self.plan.blocks if not _is_numbered(block)]
        if single:
            lists = {container_of(block) for block in self.plan.blocks if _is_numbered(block)}
            return [*single, *(f"{container}.*" for container in sorted(lists))]
        planned = {container_of(block) for block in self.plan.blocks}
        if not planned:
            return {}
        shown = repeated(self.constructor.at(), self.constructor.at(deeper=2))
        if planned <= set(shown):
            return {container: kinds for container, kinds in shown.items() if container in planned}
        # Two depths do not show these containers as stacks, so that patterns name them.
        parts = modules(self.constructor.at())
        patterns = [f"{name}.*".lstrip(".") for name in sorted(planned) if name in parts]
        return patterns or {}

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

        They are the smallest model, and under a rule that scales width only (muP), a model that is
        as narrow as the smallest and as deep as the planned one.
        """
        if self.plan.depth == 1 or rule_named(self.plan.rule).scales_depth:
            return [self.base]
        return [self.base, Base.of(self.constructor.at(deeper=self.plan.depth), self.where)]

    @cached_property
    def _planned(self) -> Blocks:
        return Blocks(dict.fromkeys(self.plan.blocks, ""))

    @cached_property
    def _multiplied(self) -> Mapping[str, float]:
        """The factors of the forward pass, by the names of modules with ``*`` for their block."""
        return {
            self._kind(name, self._planned): factor
            for name, factor in self.plan.multipliers.items()
        }

    @staticmethod
    def _kind(name: str, blocks: Blocks) -> str:
        """Replace the block in a module's name by ``*``."""
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
                multipliers[name] = factor_at(
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
        """Map every tensor of a model to the tensor of the plan in the same place."""
        here = Blocks(dict.fromkeys(blocks, ""))
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
        """Scale the entry ``planned`` to the tensor ``t`` of a model in whose stack it stands.

        Args:
            depth: of the stack of ``t``, as a multiple of the base's.
        """
        entry = self.plan.entries[planned]
        deeper = self._deeper(planned)
        # The entry's ratio of depths is a power of how much deeper the plan is: keep its exponent.
        if deeper != 1:
            depth = math.pow(depth, math.log(entry.ratios.depth) / math.log(deeper))
        elif axis == "depth" and self.plan.depth != 1:
            # One block that the forward pass applies repeatedly: the number of blocks stays 1, so
            # that only the depth that was asked for says how much deeper the model is.
            depth = math.pow(ratio, math.log(entry.ratios.depth) / math.log(self.plan.depth))
        uses = 1.0
        if entry.uses != 1 and entry.ratios.depth != 1:
            uses = math.pow(depth, math.log(entry.uses) / math.log(entry.ratios.depth))
        fan_in = self._grown(entry.ratios.fan_in, axis, ratio)
        fan_out = self._grown(entry.ratios.fan_out, axis, ratio)
        ratios = Ratios(fan_in, fan_out, depth)
        is_inside = entry.role in ("outer", "inner")
        own_factor = factor_at(
            entry.own_factor, self.plan, deeper, axis, ratio, is_of_depth=is_inside
        )
        start = self._start(planned, t, blocks, axis, ratio)
        return replace(
            entry,
            shape=t.shape,
            fan_in=t.fan_in(),
            ratios=ratios,
            own_factor=own_factor,
            uses=uses,
            start=start,
        )

    def _deeper(self, planned: str) -> float:
        """Divide the number of blocks in the stack of a planned tensor by that of the base."""
        return self._planned_depths.get(
            block_of(planned, self._planned) or "", self._planned_depths[""]
        )

    @cached_property
    def _planned_depths(self) -> Mapping[str, float]:
        """The depth of every planned block's stack over the base's; under ``""``, of all blocks."""
        # Another base than the smallest model: its blocks are not at hand.
        if self.plan.base != self.size:
            return {"": self.plan.depth}
        return depths_of(self._planned, self.base.blocks)

    def _grown(self, fan: float, axis: Axis, ratio: float) -> float:
        """Scale a ratio of fans to another width: it is a power of the width, or stays 1."""
        if axis == "depth" or fan == 1 or self.plan.width == 1:
            return 1.0
        return math.pow(ratio, math.log(fan) / math.log(self.plan.width))

    def _start(
        self, planned: str, t: TensorInfo, blocks: Blocks, axis: Axis, ratio: float
    ) -> Start:
        """Say how a tensor of another size is initialised.

        Its initial weights are those of the smallest model times a power of the size. This power
        comes from the ratio of the plan's initial weights to those of its base.
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
            initial_size *= factor_at(
                more, self.plan, self._deeper(planned), axis, ratio, is_of_depth=is_of_depth
            )
        if start.constant is not None:
            return replace(start, constant=initial_size, kept=entry.start.kept)
        return replace(start, std=initial_size, kept=entry.start.kept)

    def _beyond_base(self, planned: str, initial_size: float) -> float:
        """Divide initial weights of a plan by those of the model from which it took them.

        The plan does not say which model that was: it is one of ``_sources``. Where one has equal
        initial weights the ratio is 1; else it is the ratio to the smallest model.
        """
        more = 1.0
        for source in reversed(self._sources):
            name = alike(planned, self._planned, source.places_of_any_kind)
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
