"""Step 5 of ``nfd.plan``: factors folded into initial weights and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nfd.core.errors import InputError
from nfd.core.words import quoted
from nfd.scaling.base import start_of
from nfd.scaling.comparison import Comparison, Pair
from nfd.scaling.constants import FactorRatios
from nfd.scaling.entries import Entry
from nfd.scaling.forward_factors import ForwardFactors
from nfd.scaling.initial_entries import Initial, entries_of
from nfd.scaling.model import Blocks, block_of, container_of, in_any_block, parametrized
from nfd.scaling.roles import Anatomy
from nfd.scaling.rules import Power, Rule

_HEADS = (
    "Attention heads are assumed to keep their size. If they grow with width, attention logits "
    "need 1/d instead of 1/sqrt(d)."
)
_GROWN_HEADS = (
    "Attention heads grow with width: the logits of {} are {:.3g} times as large as those of the "
    "base once queries fit keys. Divide them by the size of a head in place of its root "
    "(scale=c/d; c the root of the base's size)."
)
_UNSCALED = (
    "No tensor scales some branches: wrap the modules that end them in nfd.Scaled, factors in "
    "plan.multipliers."
)


@dataclass(frozen=True)
class Draft:
    """What a plan says of the tensors, before it has a rule and an optimizer; as in ``Plan``."""

    entries: dict[str, Entry]
    width: float = 1.0
    depth: float = 1.0
    multipliers: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    logits: dict[str, float] = field(default_factory=dict)


def unscaled(pair: Pair, comparison: Comparison) -> Draft:
    """Keep the model's own initial weights, which are the rule's where nothing scales."""
    entries = entries_of(comparison.structure, comparison.growing, None, {"": 1.0})
    for name in parametrized(pair.model):
        # It is computed from other tensors: drawing it anew would undo that.
        start = replace(entries[name].start, kept=True)
        entries[name] = replace(entries[name], start=start)
    return Draft(entries)


def fold(pair: Pair, comparison: Comparison, initial: Initial, factors: ForwardFactors) -> Draft:
    """Fold factors into initial weights and rates; those that cannot be become multipliers."""
    structure = comparison.structure
    entries, factor_notes = _with_factors(initial.entries, factors.over_base, structure.blocks)
    entries, multipliers, head_notes = _with_heads(structure, entries, factors.over_base)
    entries = _with_constants(structure, entries, pair.rule)
    notes = [*initial.notes, *factors.notes, *factor_notes, *head_notes]

    kept = {
        in_any_block(name, structure.blocks): None
        for name, entry in entries.items()
        if entry.start.kept and not entry.is_frozen
    }
    if kept:
        notes.append(
            f"Kept as the constructor makes them, and not drawn anew: {quoted([*kept], 4)}."
        )
    if pair.rule.scales_depth:
        branches = _branch_multipliers(pair.rule, structure, initial.depths)
        multipliers |= branches
        if branches:
            notes.append(_UNSCALED)
    notes += _attention_notes(structure, factors.logits)
    return Draft(
        entries=entries,
        width=initial.width,
        depth=initial.depths[""],
        multipliers=multipliers,
        notes=tuple(notes),
        logits=factors.logits or {},
    )


def _with_factors(
    entries: Mapping[str, Entry],
    factors: Mapping[str, FactorRatios | None],
    blocks: Blocks,
) -> tuple[dict[str, Entry], list[str]]:
    """Put the factors of the model's forward pass into its entries; and what to say of them."""
    with_factors = dict(entries)
    # Names in order, once for all blocks.
    folded: dict[str, None] = {}
    ambiguous: dict[str, None] = {}
    for name, ratios in factors.items():
        if ratios is None:
            ambiguous[in_any_block(name, blocks)] = None
            continue
        # A tied embedding is looked up and applied: ``_with_heads`` sees to the second factor.
        is_looked_up = ratios.looked_up != 1 or entries[name].role == "tied"
        factor = ratios.looked_up if is_looked_up else ratios.applied
        with_factors[name] = replace(entries[name], own_factor=factor)
        folded[in_any_block(name, blocks)] = None
    notes = []
    if folded:
        notes.append(
            f"The model's own forward pass multiplies {quoted([*folded], 8)} by factors that "
            "change with size: starts and rates make up for that."
        )
    if ambiguous:
        notes.append(
            f"The forward pass multiplies {quoted([*ambiguous])} by factors that change with size "
            "in more than one way; the plan does not make up for them. Give each one factor, and "
            "pass make_model=."
        )
    return with_factors, notes


# ---- embeddings that are the head as well


def _with_heads(
    structure: Anatomy, entries: Mapping[str, Entry], factors: Mapping[str, FactorRatios | None]
) -> tuple[dict[str, Entry], dict[str, float], list[str]]:
    """Give the factor 1/m of an embedding that is the head as well to a norm or to a module.

    The initial weights of the embedding cannot have it. The norm that only feeds the head takes it
    in gain and bias; else it is a multiplier, by the name of the module that is the head. Third,
    what to say of it.
    """
    with_heads = dict(entries)
    multipliers: dict[str, float] = {}
    notes = []
    for name, head in entries.items():
        # A frozen head is trained already: a factor would undo that.
        if head.role != "tied" or head.is_frozen:
            continue
        # The model itself multiplies the head by this much.
        applied = (factors.get(name) or FactorRatios()).applied
        factor = head.own_factor / (head.ratios.fan_out * applied)
        if math.isclose(factor, 1, rel_tol=1e-4):
            continue

        norm = _norm_before_head(structure, entries, name)
        if norm:
            for part in norm:
                with_heads[part] = replace(
                    entries[part],
                    multiplier=Power(fan_out=1.0),
                    own_factor=applied / head.own_factor,
                )
            notes.append(
                f"{name} is the head as well: {' and '.join(sorted(norm))} take its factor "
                f"{factor:.4g}."
            )
            continue

        heads = [container_of(reader) for reader in structure.tensors[name].readers]
        if not heads:
            raise InputError(
                f"{name!r} is the head as well, and nothing can take the head's factor "
                f"{factor:.4g}: no affine norm feeds it alone, and no module applies it. Make the "
                "head an nn.Linear whose weight is the embedding's, divide its output by the width "
                "in forward, or give the two ends weights of their own."
            )
        multipliers |= dict.fromkeys(heads, factor)
        notes.append(
            f"{name} is the head as well, and no affine norm is seen to feed it alone (sample= may "
            f"show one): plan.apply_ wraps {', '.join(heads)} in nfd.Scaled, which renames its "
            "entries of the state_dict; the factor is in plan.multipliers."
        )
    return with_heads, multipliers, notes


def _norm_before_head(
    structure: Anatomy, entries: Mapping[str, Entry], head: str
) -> frozenset[str]:
    """Name gain and bias of the norm that only feeds a head and can take its factor, or nothing."""
    shown = structure.traced.tensors.get(head)
    if shown is None:
        return frozenset()
    for name in shown.norm:
        entry = entries[name]
        trains = structure.tensors[name].parameter.requires_grad
        if entry.ratios != entries[head].ratios or entry.start.constant is None or not trains:
            return frozenset()
    return shown.norm


# ---- what is left as the model has it


def _with_constants(
    structure: Anatomy, entries: Mapping[str, Entry], rule: Rule
) -> dict[str, Entry]:
    """Take initial constants from the model where the rule does not scale them.

    The constructor may let them depend on width, depth or place.
    """
    with_constants = dict(entries)
    for name, tensor in structure.tensors.items():
        entry = entries[name]
        power = rule.std(entry.role) * entry.multiplier**-1
        if tensor.is_vector:
            power = power.of_vector()
        is_scaled = power != Power() or entry.own_factor != 1
        parameter = tensor.parameter
        if entry.start.constant is None or is_scaled:
            continue
        if parameter.is_meta or not parameter.requires_grad:
            continue
        start = start_of(tensor.drawn())
        if start.constant is not None:
            with_constants[name] = replace(entry, start=start)
    return with_constants


def _branch_multipliers(
    rule: Rule, structure: Anatomy, depths: Mapping[str, float]
) -> dict[str, float]:
    """Find the factors of branches that no tensor scales, by the module that ends the branch."""
    multipliers = {}
    for module in sorted(structure.traced.unscaled):
        block = block_of(f"{module}.", structure.blocks) or ""
        if depths[block] != 1:
            multipliers[module] = rule.std("outer").at(1.0, 1.0, depths[block])
    return multipliers


def _attention_notes(structure: Anatomy, logits: Mapping[str, float] | None) -> list[str]:
    """Remark on attention whose heads grow, or may; ``logits`` as in ``ForwardFactors``."""
    if logits:
        names = dict.fromkeys(in_any_block(name, structure.blocks) for name in logits)
        return [_GROWN_HEADS.format(quoted([*names]), max(logits.values()))]
    if logits is None and structure.traced.attends:
        return [_HEADS]
    return []
