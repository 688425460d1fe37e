"""The entries of a plan: every tensor's ratios to the base and how it begins, from what is known of the base."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.blocks import block_of, in_any_block, stacks_of
from nfd.scaling.entry import Entry
from nfd.scaling.names import listed
from nfd.scaling.own_factors import Own
from nfd.scaling.roles import Anatomy
from nfd.scaling.rules import INPUT_LIKE, Power, Role, Rule
from nfd.scaling.self_describing import head_sizes
from nfd.scaling.sizes import Base, ratios, ratios_by_role, start_of

_SHOWN = 4  # tensors, by name
_ROUNDED = 0.01  # of a constant that is stored in 16 bits
_NO_NORM = {  # whether an input was followed
    True: "no affine norm feeds it alone",
    False: "without sample= it is not known whether an affine norm feeds it alone",
}

Settled = Mapping[str, tuple[Role, str]]  # every tensor's role, and why


@dataclass(frozen=True)
class Parts:
    """What a plan is made of beside its choices."""

    entries: dict[str, Entry]
    width: float
    depth: float
    blocks: list[str]
    multipliers: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def entries_of_base(structure: Anatomy, settled: Settled, base: Base) -> dict[str, Entry]:
    """Ratios from the shapes of the base's tensors, and their scale."""
    entries, depths = {}, depths_of(structure.blocks, base.blocks)
    for name, t in structure.tensors.items():
        role, why = settled[name]
        grown, depth = ratios(t, base.of(t, structure.blocks), role), depths.get(block_of(name, structure.blocks) or "")
        begins = base.start(t, structure.blocks)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, begins, depth=depth)
    return entries


def depths_of(blocks: Iterable[str], base: Iterable[str]) -> dict[str, float]:
    """How much deeper than in the base the stack of every block is, where stacks grow by different factors; else
    none."""
    tuned, depths = stacks_of(base), dict[str, float]()
    for stack, own in stacks_of(blocks).items():
        depths |= dict.fromkeys(own, len(own) / len(tuned[stack]) if tuned.get(stack) else 1.0)
    return depths if len(set(depths.values())) > 1 else {}


def entries_of_ratio(structure: Anatomy, settled: Settled, m: float) -> dict[str, Entry]:
    """Where only the ratio ``m`` of widths is known: matrices follow ``fan_in^-1/2`` from the base to the model."""
    entries, own = {}, Base(structure.tensors, structure.blocks)
    for name, t in structure.tensors.items():
        role, why = settled[name]
        grown, begins = ratios_by_role(t, role, m), own.start(t, structure.blocks)
        if not t.is_vector and role not in INPUT_LIKE:
            begins = replace(begins, std=begins.std * grown.fan_in**0.5)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, begins)
    return entries


def stream_width(structure: Anatomy, settled: Settled) -> int:
    """The size of the stream, as fan-out of what writes it."""
    for wanted in ("outer", "embedding", "tied", "input"):
        writers = [t for name, t in structure.tensors.items() if settled[name][0] == wanted and not t.is_vector]
        sizes = {t.shape[axis] for t in writers for axis in (t.outs or ())[:1]}
        if len(sizes) == 1:
            return sizes.pop()
    raise InputError(
        "The width of the model could not be found, to compare with that of the base. Pass make_model=, or the tuned "
        "model itself as base=."
    )


def widest(entries: Mapping[str, Entry]) -> float:
    """The ratio of widths that a plan reports: the one furthest from 1."""
    grown = [e.ratios.fan_out for e in entries.values() if e.role != "readout"]
    return max(grown, default=1.0, key=lambda r: abs(r - 1))


def with_own_factors(
    entries: Mapping[str, Entry], own: Mapping[str, Own | None], blocks: Collection[str]
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that know the model's own factors; and what to say of them."""
    made, left = dict[str, Entry](), dict[str, None]()
    said: dict[tuple[str, float], dict[str, None]] = {}
    for name, factors in own.items():
        generic = in_any_block(name, blocks)
        if factors is None:
            left[generic] = None
            continue
        places = [("", factors.looked_up), (" as the head", factors.applied)]
        if entries[name].role != "tied":
            places = [("", factors.looked_up if factors.looked_up != 1 else factors.applied)]
        made[name] = replace(entries[name], own_factor=places[0][1])
        for place, factor in places:
            if factor != 1:
                said.setdefault((place, round(factor, 6)), {})[generic] = None
    notes = [
        f"The model's own forward pass multiplies {listed([*names])}{place} by {factor:.4g} times the factor that it "
        "has in the base: starts and rates make up for that."
        for (place, factor), names in said.items()
    ]
    if left:
        notes.append(
            f"The forward pass multiplies {listed([*left])} by factors that change with size in more than one way; "
            "the plan does not make up for them. Give each one factor, and pass make_model=."
        )
    return {**entries, **made}, notes


def with_tied_heads(
    structure: Anatomy, entries: Mapping[str, Entry], own: Mapping[str, Own | None]
) -> tuple[dict[str, Entry], list[str]]:
    """Gains and biases of norms take the factor of the tied heads that they alone feed; and what to say of it."""
    folded, notes = dict(entries), []
    for name, factor in _grown_heads(entries, own).items():
        if norm := _folding(structure, entries, name):
            more = (own.get(name) or Own()).applied / entries[name].own_factor
            folded |= {n: replace(entries[n], multiplier=Power(fan_out=1.0), own_factor=more) for n in norm}
            notes.append(f"{name} is the head as well: {' and '.join(sorted(norm))} take its factor {factor:.4g}.")
    return folded, notes


def with_own_constants(
    structure: Anatomy, entries: Mapping[str, Entry], chosen: Rule
) -> tuple[dict[str, Entry], list[str]]:
    """Constants as the model has them where the rule does not scale them, as its constructor may let them depend on
    width, depth or place; and what to say of it."""
    own, said = {}, []
    for name, t in structure.tensors.items():
        entry = entries[name]
        planned, power = entry.start.constant, chosen.std(entry.role) * entry.multiplier**-1
        power = power.of_vector() if t.is_vector else power
        scales = power != Power() or entry.own_factor != 1
        if planned is None or scales or t.parameter.is_meta or not t.parameter.requires_grad:
            continue
        begins = start_of([t.drawn()])
        if begins.constant is not None and not math.isclose(begins.constant, planned, rel_tol=_ROUNDED):
            own[name] = replace(entry, start=begins)
            said.append(f"{name} at {begins.constant:.4g} ({planned:.4g})")
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    note = f"Constants that begin as the model has them, not as in the base: {', '.join(said[:_SHOWN])}{more}."
    return {**entries, **own}, [note] if own else []


def note_on_kept(entries: Mapping[str, Entry], blocks: Collection[str]) -> list[str]:
    """What is not drawn anew, as its constructor builds it with a structure, or by a law that is not known."""
    kept = list(dict.fromkeys(in_any_block(name, blocks) for name, e in entries.items() if e.start.kept))
    if not kept:
        return []
    return [f"Kept as the constructor makes them, and not drawn anew: {listed(kept, _SHOWN)}."]


def multipliers(
    model: nn.Module,
    structure: Anatomy,
    entries: Mapping[str, Entry],
    own: Mapping[str, Own | None],
    base: nn.Module | None,
) -> tuple[dict[str, float], list[str]]:
    """Forward factors that no initialisation can stand for, by module name, and what to say of them."""
    tied, notes = _wrapped_heads(structure, entries, own)
    before = next(iter(head_sizes(base).values()), None) if base is not None else None
    grown = {} if before is None else {n: (before / d) ** 0.5 for n, d in head_sizes(model).items() if d != before}
    if grown:
        notes.append(
            "Heads grew: attention logits need 1/d instead of 1/sqrt(d). plan.apply_ wraps what makes the queries in "
            "nfd.Scaled, by the factor in plan.multipliers: do not scale the logits again. Heads of a fixed size, and "
            "more of them, need no factor."
        )
    return tied | grown, notes


def _grown_heads(entries: Mapping[str, Entry], own: Mapping[str, Own | None]) -> dict[str, float]:
    """Embeddings that are heads as well, and the factor 1/m that each lacks as a head: what the model multiplies the
    head by is in it already, and its start makes up for what the model multiplies the embedding by."""
    factors = {
        name: entry.own_factor / (entry.ratios.fan_out * (own.get(name) or Own()).applied)
        for name, entry in entries.items()
        if entry.role == "tied"
    }
    return {name: factor for name, factor in factors.items() if not math.isclose(factor, 1, rel_tol=1e-4)}


def _folding(structure: Anatomy, entries: Mapping[str, Entry], head: str) -> frozenset[str]:
    """The parameters of a norm that can stand for the factor of a tied head; none where the head must be wrapped."""
    norm = structure.norms.get(head, frozenset())
    can = (
        entries[n].ratios == entries[head].ratios
        and entries[n].start.constant is not None
        and structure.tensors[n].parameter.requires_grad
        for n in norm
    )
    return norm if all(can) else frozenset()


def _wrapped_heads(
    structure: Anatomy, entries: Mapping[str, Entry], own: Mapping[str, Own | None]
) -> tuple[dict[str, float], list[str]]:
    factors: dict[str, float] = {}
    notes = []
    for name, factor in _grown_heads(entries, own).items():
        if not _folding(structure, entries, name):
            heads = [n.rpartition(".")[0] for n in structure.tensors[name].readers]
            factors |= dict.fromkeys(heads, factor)
            notes.append(
                f"{name} is the head as well, and {_NO_NORM[structure.followed]}: plan.apply_ wraps {', '.join(heads)} "
                "in nfd.Scaled, which renames its entries of the state_dict; the factor is in plan.multipliers."
            )
    return factors, notes
