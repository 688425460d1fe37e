"""How the constant factors of a model's forward pass differ from those of its base: measured, or foreseen by powers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from nfd.core.errors import InputTypeError
from nfd.scaling.given_base import GivenBase
from nfd.scaling.model import Blocks, Where, block_of, blocks_of, in_base, on_device
from nfd.scaling.own_factors import Own, Seen, own_factors
from nfd.scaling.roles import Anatomy, trace

_DIGITS = 6  # of a power: what float32 holds of the factors of two models

_Found = tuple[dict[str, Own | None], str]  # by tensor, and why none could be found

_NO_SAMPLE = "pass sample=, an input to trace."
_NOT_TAKEN = "the base does not take the sample."
_NO_CONSTRUCTOR = "the model is on the meta device. Pass make_model=, or build the model."


def measured_factors(
    structure: Anatomy, base: nn.Module, as_deep: nn.Module | None, blocks: Where, sample: Any
) -> _Found:
    """From a trace of the model and one of its base.

    Args:
        as_deep: the base, or one as deep as the model where the factors of depth are to stay; None where these cannot
            be told from those of width.
        blocks: as ``blocks_of`` finds them in any instance.
    """
    if structure.factors is None:
        return {}, _NO_SAMPLE
    before = _seen(base if as_deep is None else as_deep, blocks, sample)
    if before is None:
        return {}, _NOT_TAKEN
    own = own_factors(Seen(structure.factors, structure.blocks), before)
    if as_deep is None:
        own |= dict.fromkeys(name for name in own if block_of(name, structure.blocks) is not None)
    return own, ""


def foreseen_factors(
    structure: Anatomy,
    given: GivenBase,
    ratios: tuple[Mapping[str, float], Mapping[str, float]],
    base: Blocks,
    blocks: Where,
    sample: Any,
) -> _Found:
    """Of a model on the meta device, whose ``structure.factors`` are those of the base: as the powers that two more
    models of the constructor show, twice as wide, and twice as deep.

    Args:
        ratios: of width and of depth, by tensor; none of depth where the factors of depth are to stay.
        base: blocks of the base. blocks: as ``blocks_of`` finds them in any instance.
    """
    if structure.factors is None:
        return {}, _NO_SAMPLE
    if given.make_model is None or given.depth is None:
        return {}, _NO_CONSTRUCTOR
    found: dict[str, Own | None] = {}
    sizes = {"depth": given.depth, "times": 2}, {"depth": 2 * given.depth}
    for grown, size in zip(ratios, sizes, strict=True):
        if all(ratio == 1 for ratio in grown.values()):
            continue
        larger = _seen(given.instance(**size), blocks, sample)
        if larger is None:
            return {}, _NOT_TAKEN
        doubled = own_factors(larger, Seen(structure.factors, base))
        for name in structure.tensors:
            other = in_base(name, structure.blocks, larger.blocks, larger.factors)
            if other in doubled:
                found[name] = _times(found.get(name, Own()), doubled[other], grown[name])
    return found, ""


def _times(own: Own | None, doubled: Own | None, ratio: float) -> Own | None:
    """Factors times what they are at this ratio of sizes, from what they are at two."""
    if own is None or doubled is None:
        return None
    return Own(*(now * ratio ** round(math.log2(more), _DIGITS) for now, more in zip(own, doubled, strict=True)))


def _seen(model: nn.Module, blocks: Where, sample: Any) -> Seen | None:
    """What a trace of an instance shows; None where it does not take the sample."""
    place = next((p.device for p in model.parameters()), None)
    try:
        traced = trace(model, on_device(sample, place))
    except InputTypeError:
        return None
    return None if traced is None else Seen(traced.factors, blocks_of(model, blocks))
