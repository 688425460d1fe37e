"""Steps 1 and 2 of ``nfd.plan``: the model beside its base, and which dimensions grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from nfd.core.errors import InputError
from nfd.core.names import RuleName
from nfd.scaling.base import Base, Constructor
from nfd.scaling.model import Where, matches, repeated
from nfd.scaling.optimizers import OptimizerLaw
from nfd.scaling.roles import Anatomy, Scaling, anatomy
from nfd.scaling.rules import Rule, rule_named

# ---- step 1: the model beside its base


@dataclass(frozen=True)
class Request:
    """What the user chose, and said of the model.

    Attributes:
        rule_name: a key of ``RULES``.
        optimizer: the law of the optimizer that trains.
        blocks: where the residual blocks are; None to find them.
        roles: from pattern to role.
        sample: an input to trace with, or None.
    """

    rule_name: RuleName
    optimizer: OptimizerLaw
    blocks: Where
    roles: Mapping[str, str]
    sample: Any


@dataclass(frozen=True)
class Pair:
    """A model and the small one that was tuned.

    Attributes:
        model: what is planned.
        base: the tuned model; None where the rule does not scale and nobody gave one.
        constructor: what builds the base, and others like it; None where the user passed the base
            itself.
        request: what the user chose.
    """

    model: nn.Module
    base: nn.Module | None
    constructor: Constructor | None
    request: Request

    @property
    def rule(self) -> Rule:
        """The rule of the request."""
        return rule_named(self.request.rule_name)

    @property
    def base_size(self) -> tuple[int, int] | None:
        """Width and depth of the base, as arguments of the constructor."""
        if self.constructor is None:
            return None
        return self.constructor.width, self.constructor.depth


# ---- step 2: what the model is made of, and what grows


@dataclass(frozen=True)
class Comparison:
    """What a model is made of, beside its base.

    Attributes:
        structure: tensors, roles and blocks of the model.
        base: tensors and blocks of the base; None where there is no base.
        growing: which dimensions of each tensor grow with width.
        blocks: where blocks are, as the user says or as two sizes show.
    """

    structure: Anatomy
    base: Base | None
    growing: Scaling
    blocks: Where


def compare(pair: Pair) -> Comparison:
    """Find the parts of a model, and which of their dimensions grow with width."""
    request = pair.request
    blocks = _blocks_by_growth(pair) if request.blocks is None else request.blocks
    base = None
    growing: Scaling = {}
    if pair.base is not None:
        base = Base.of(pair.base, blocks)
        growing = _growing_dimensions(pair, base, blocks)
    structure = anatomy(
        pair.model,
        pair.base,
        request.rule_name,
        blocks=blocks,
        roles=request.roles,
        sample=request.sample,
        scaling=growing,
    )
    if base is not None and pair.rule.scales_width:
        _check_made(structure, base, request.roles)
    return Comparison(structure, base, growing, blocks)


def _check_made(structure: Anatomy, base: Base, roles: Mapping[str, str]) -> None:
    """Raise ValueError for parameters of which a matrix is made that no factor of them scales."""
    grown = dict[str, list[float]]()
    for name, tensor in structure.tensors.items():
        other = base.counterpart(tensor, structure.blocks)
        grown[name] = [a / b for a, b in zip(tensor.shape, other.shape, strict=True)]
    ratios = {ratio for of_tensor in grown.values() for ratio in of_tensor if ratio != 1}
    for name, shown in structure.traced.tensors.items():
        made = shown.made
        tensor = structure.tensors[name]
        is_by_user = any(matches(n, pattern) for pattern in roles for n in tensor.names)
        if made is None or is_by_user or not tensor.parameter.requires_grad:
            continue
        if made.how == "flat" and grown[name] != [1]:
            raise InputError(
                f"{name!r} is kept as {list(tensor.shape)} and applied as a matrix, which no rule "
                "can tell from a vector. Keep it as that matrix, such as an nn.Linear, and flatten "
                "it where you need it flat."
            )
        if made.how == "gain" and any(ratio != 1 for ratio in grown[name]):
            raise InputError(
                "A plan scales the start and the rate of matrices; this one is computed from other "
                f"parameters: {made.other!r} over the norms of its rows, times {name!r}. Hold the "
                "matrix itself before planning and training, or freeze the gains. rule='standard' "
                "leaves them as they are."
            )
        is_square = any(math.isclose(a, b * b) for a in grown[name] for b in ratios)
        if made.how == "generated" and is_square:
            raise InputError(
                f"The outputs of {name!r} are the entries of a matrix, and so grow as the square "
                "of the width: no rule scales a generated matrix. Let it give gains or a factor of "
                "fixed rank for a matrix that is a parameter, or take rule='standard'."
            )


def _blocks_by_growth(pair: Pair) -> Where:
    """Find the blocks as what a deeper instance has more of; None where none shows it."""
    if pair.base is None:
        return None
    blocks = repeated(pair.model, pair.base)
    if blocks or pair.constructor is None:
        return blocks or None
    # Model and base are equally deep. A deeper model costs time: build it only where blocks matter.
    if pair.rule.scales_depth or repeated(pair.base):
        deeper = pair.constructor.built_as(deeper=2)
        return repeated(pair.base, deeper) or None
    return None


def _growing_dimensions(pair: Pair, base: Base, blocks: Where) -> Scaling:
    """Find which dimensions of each tensor grow with width."""
    here = Base.of(pair.model, blocks)
    growing = base.differing(here)
    is_wider = any(any(dimensions) for dimensions in growing.values())
    if is_wider or pair.constructor is None:
        return growing
    # The model is as wide as its base: a wider model shows which dimensions would grow.
    wider = pair.constructor.built_as(wider=2)
    return Base.of(wider, blocks).differing(here)
