"""Step 4 of ``nfd.plan``: the factors of the model's own forward pass, over those of the base.

Gemma multiplies its embeddings by the root of the width, T5 divides what its tied head reads by it,
and other models carry a parametrisation of their own. With a factor s, the effective weights are
``s W``. The rules are for effective weights, so a plan divides initial weights and learning rates
by s over the s of the base: the model then trains as one that has the factor of the base at every
size. A factor that is the same at every size changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from nfd.core.errors import InputTypeError
from nfd.scaling.comparison import Comparison, Pair
from nfd.scaling.constants import FactorRatios, Factors, Logits
from nfd.scaling.initial_entries import Initial
from nfd.scaling.model import Blocks, Where, alike, blocks_of, places_of
from nfd.scaling.roles import is_unbuilt, trace
from nfd.scaling.samples import on_device

_UNSEEN = (
    "Whether the model's own forward pass has factors that depend on its size, as Gemma's, is not "
    "known: "
)
# The logarithm of the ratio of two factors that are the same, but for rounding.
_SAME = 1e-4
# Digits of a power: what float32 holds of the factors of two models.
_DIGITS = 6


class Seen(NamedTuple):
    """The factors of a model, by tensor, its blocks, and its attention logits."""

    factors: Mapping[str, Factors]
    blocks: Blocks
    logits: Mapping[str, Logits]


@dataclass(frozen=True)
class ForwardFactors:
    """The factors of the model's own forward pass, over those of its base.

    Attributes:
        over_base: by tensor, for those that differ; None where uses have different ones.
        logits: by how much attention logits grow, by the matrix of their queries; None where that
            is not seen.
        unknown: why nothing is known of the factors; empty where it is.
    """

    over_base: Mapping[str, FactorRatios | None] = field(default_factory=dict)
    logits: dict[str, float] | None = None
    unknown: str = ""

    @property
    def notes(self) -> list[str]:
        """Say why the factors are not known, if they are not."""
        return [_UNSEEN + self.unknown] if self.unknown else []


def forward_factors(pair: Pair, comparison: Comparison, initial: Initial) -> ForwardFactors:
    """Compare the factors of the model's forward pass with the factors of its reference."""
    traced = comparison.structure.traced
    is_as_deep = all(entry.ratios.depth == 1 for entry in initial.entries.values())
    if initial.width == 1 and is_as_deep:
        return ForwardFactors(logits={})
    if not traced.tensors:
        return ForwardFactors(unknown="pass sample=, an input to trace.")
    if is_unbuilt(pair.model):
        return _factors_by_powers(pair, comparison, initial)

    reference = _look(initial.reference, pair, comparison)
    if reference is None:
        return ForwardFactors(
            unknown="the base has another depth, or does not take the sample. Pass make_model=."
        )
    model = Seen(traced.factors, comparison.structure.blocks, traced.logits)
    return ForwardFactors(factors_over_base(model, reference), logits_over_base(model, reference))


def _look(instance: nn.Module | None, pair: Pair, comparison: Comparison) -> Seen | None:
    """Trace an instance; None where there is none, or it does not take the sample."""
    if instance is None:
        return None
    return seen_in(instance, pair.request.sample, comparison.blocks)


def seen_in(instance: nn.Module, sample: Any, blocks: Where) -> Seen | None:
    """Trace a model; None where it does not take the sample, or nothing is seen."""
    device = next((p.device for p in instance.parameters()), None)
    try:
        traced = trace(instance, on_device(sample, device))
    except InputTypeError:
        return None
    if not traced.tensors:
        return None
    return Seen(traced.factors, blocks_of(instance, blocks), traced.logits)


# ---- a model on the meta device, in which nothing can be traced


def _factors_by_powers(pair: Pair, comparison: Comparison, initial: Initial) -> ForwardFactors:
    """Take the factors of a model on the meta device to be powers of width and depth.

    Two more models of the constructor show the powers: one twice as wide as the base, one twice as
    deep.
    """
    unknown = ForwardFactors(
        unknown="the model is on the meta device. Pass make_model= that takes the sample, or build "
        "the model."
    )
    if pair.constructor is None:
        return unknown
    base = _look(pair.base, pair, comparison)
    if base is None:
        return unknown

    blocks = comparison.structure.blocks
    over_base: dict[str, FactorRatios | None] = {}
    logits: dict[str, float] | None = None
    widths = dict.fromkeys(initial.entries, initial.width)
    depths = {}
    if pair.rule.scales_depth:
        depths = {name: entry.ratios.depth for name, entry in initial.entries.items()}
    for ratios, larger in ((widths, {"wider": 2}), (depths, {"deeper": 2})):
        if all(ratio == 1 for ratio in ratios.values()):
            continue
        instance = _look(pair.constructor.built_as(**larger), pair, comparison)
        if instance is None:
            return unknown
        doubled = factors_over_base(instance, base)
        if ratios is widths:
            doubled_logits = logits_over_base(instance, base)
            logits = _logits_at(doubled_logits, instance, comparison, initial.width)
        places = places_of(instance.factors, instance.blocks)
        for name in comparison.structure.tensors:
            counterpart = alike(name, blocks, places)
            if counterpart is not None and counterpart in doubled:
                so_far = over_base.get(name, FactorRatios())
                over_base[name] = _at_ratio(so_far, doubled[counterpart], ratios[name])
    return ForwardFactors(over_base, logits)


def _logits_at(
    doubled: Mapping[str, float] | None, instance: Seen, comparison: Comparison, width: float
) -> dict[str, float] | None:
    """Return by how much logits grow at a ratio of widths, from an instance of twice the width."""
    if doubled is None:
        return None
    places = places_of(instance.logits, instance.blocks)
    grown: dict[str, float] = {}
    for name in comparison.structure.tensors:
        counterpart = alike(name, comparison.structure.blocks, places)
        if counterpart is not None and counterpart in doubled:
            power = round(math.log2(doubled[counterpart]), _DIGITS)
            grown[name] = width**power
    return grown


def _at_ratio(
    so_far: FactorRatios | None, at_two: FactorRatios | None, ratio: float
) -> FactorRatios | None:
    """Multiply factors by their values at a ratio of sizes, from their values at the ratio 2."""
    if so_far is None or at_two is None:
        return None
    looked_up_power = round(math.log2(at_two.looked_up), _DIGITS)
    applied_power = round(math.log2(at_two.applied), _DIGITS)
    return FactorRatios(
        so_far.looked_up * ratio**looked_up_power,
        so_far.applied * ratio**applied_power,
    )


# ---- two instances


def factors_over_base(model: Seen, base: Seen) -> dict[str, FactorRatios | None]:
    """Divide the factors of a model by those of its base, by tensor, and return what differs.

    Blocks are compared where both have them, and others of their kind have the same ratios. None
    where uses, or blocks, have different ones.
    """
    over_base: dict[str, FactorRatios | None] = {}
    base_places = places_of(base.factors, base.blocks)
    for place, names in places_of(model.factors, model.blocks).items():
        # One of the two may be deeper.
        pairs = zip(names, base_places.get(place, ()), strict=False)
        ratios = {_ratios_of(model, name, base, counterpart) for name, counterpart in pairs}
        if ratios - {FactorRatios()}:
            over_base |= dict.fromkeys(names, ratios.pop() if len(ratios) == 1 else None)
    return over_base


def _ratios_of(model: Seen, name: str, base: Seen, counterpart: str) -> FactorRatios | None:
    """Divide the factors of one tensor by those of its counterpart; None where uses differ."""
    looked_up = _ratio(model.factors[name].looked_up, base.factors[counterpart].looked_up)
    applied = _ratio(model.factors[name].applied, base.factors[counterpart].applied)
    here = model.logits.get(name)
    there = base.logits.get(counterpart)
    if here and there and here.size != there.size:
        # What scales the logits of growing heads is not a factor of their matrices.
        applied = 1.0 if applied is None else applied * there.inside / here.inside
    if looked_up is None or applied is None:
        return None
    return FactorRatios(looked_up, applied)


def _ratio(here: frozenset[float], there: frozenset[float]) -> float | None:
    """Divide factors: 1 where they are the same, None where several stand against others."""
    if len(here) != len(there):
        return None
    ratios = [a / b for a, b in zip(sorted(here), sorted(there), strict=True)]
    if all(abs(math.log(ratio)) < _SAME for ratio in ratios):
        return 1.0
    return ratios[0] if len(ratios) == 1 else None


def logits_over_base(model: Seen, base: Seen) -> dict[str, float] | None:
    """Divide the attention logits of a model by those of its base, and return what differs.

    Keys are the matrices of their queries. None where one of the two shows no logits.
    """
    places = places_of(base.logits, base.blocks)
    if not model.logits or not places:
        return None
    over_base: dict[str, float] = {}
    for name, here in model.logits.items():
        counterpart = alike(name, model.blocks, places)
        if not here.is_query or counterpart is None:
            continue
        there = base.logits[counterpart]
        ratio = here.size * here.outside / (there.size * there.outside)
        if here.size != there.size:
            ratio *= here.both / there.both
        if abs(math.log(ratio)) > _SAME:
            over_base[name] = ratio
    return over_base
