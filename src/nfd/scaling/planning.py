"""``nfd.plan``: from a model and its base to a ``Plan``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from nfd.core.errors import check_choice, check_count
from nfd.core.names import Decay, Optimizer, RuleName
from nfd.scaling.blocks import blocks_found, blocks_named
from nfd.scaling.families import Known, known
from nfd.scaling.plan import DECAYS, Entry, Plan
from nfd.scaling.roles import Anatomy, Decision, anatomy
from nfd.scaling.rules import OPTIMIZERS, Power, Role, Rule, exponent_of, rule_named
from nfd.scaling.sizes import Base, MakeModel, Ratios, Start, growing, instance, ratios, ratios_by_role
from nfd.scaling.tensors import tensors

_CLIP = (
    "Folding moves gradient norms between tensors: a global clip acts on other tensors than in the base (Hugging "
    "Face's Trainer clips at 1.0). Clip by tensor, or raise max_grad_norm."
)
_LAW = (
    "No base instance was given: matrices are taken to follow fan_in^-1/2 as they stand. Pass base= or make_model= to "
    "take the base's own scale."
)


def plan(
    model: nn.Module,
    *,
    rule: str = "depth-mup",
    base: nn.Module | None = None,
    base_width: int | None = None,
    base_depth: int | None = None,
    make_model: MakeModel | None = None,
    optimizer: str = "adamw",
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    decay: str = "constant-product",
    sample: Any = None,
) -> Plan:
    """How every tensor of a model should begin and learn, given a smaller one, the base, that was tuned.

    The table is that of ``nfd.scaling.rules``, folded: the model needs no forward multipliers. Where the base is as
    wide and deep as the model, every factor is 1.

    Args:
        model: any module; nothing is attached to it, and its numbers are left alone.
        rule: ``"standard"``, ``"mup"``, ``"depth-mup"``, ``"depth-mup-inner"`` (Eq. 8) or ``"complete-p"``.
        base: the tuned model itself, or
        base_width, base_depth: its width and depth, in the units of ``make_model`` where that is given, otherwise as
            sizes of the residual stream and numbers of blocks. One of them alone means that only it differs. Networks
            of ``nfd.nets`` have their own base, width 1 and depth 1, where nothing is given.
        make_model: ``make_model(width, depth)`` builds the base, and a second instance that reveals which dimensions
            grow.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, ``"lion"`` (sign-type) or ``"muon"`` (updates of unit spectral
            norm for matrices in blocks, AdamW for the rest).
        blocks: pattern of the residual blocks, such as ``"transformer.h.*"``, one ``*`` per part of a name; found where
            None.
        roles: pattern to role, for what you know better: ``"input"``, ``"embedding"``, ``"tied"``, ``"vector"``,
            ``"hidden"``, ``"outer"``, ``"inner"``, ``"readout"``. In patterns a last ``**`` stands for the rest.
        decay: ``"constant-product"`` keeps rate times decay, ``"independent"`` keeps the shrinkage of a step whatever
            the rate, ``"raw"`` passes the number on.
        sample: an input (tensor, tuple of arguments, or dict of keyword arguments), to measure which matrices write the
            residual stream where the model's family is not known.

    Raises:
        ValueError: naming every tensor that could not be decided and what would decide it; also when a depth rule
            meets a network without a pre-norm residual stream.

    Source: sections 2 and 4.2, Eq. 8; Yang et al., Tensor Programs V and VI; Dey et al. (CompleteP).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    chosen = rule_named(rule)
    optimizer = check_choice("optimizer", optimizer, OPTIMIZERS)
    decay = check_choice("decay", decay, DECAYS)
    if rule == "ntk":
        raise ValueError("Rule 'ntk' is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule.")
    base_width = None if base_width is None else check_count("base_width", base_width)
    base_depth = None if base_depth is None else check_count("base_depth", base_depth)
    family = known(model)
    _check_sizes(family, rule, base, base_width, base_depth, make_model)
    if family.width is not None:  # nfd.nets: everything is known
        entries, width, depth = _own_network(model, family, rule, base, base_width, base_depth)
        multipliers: dict[str, float] = {}
        notes: list[str] = []
        names = family.blocks
    else:
        if base is None and make_model is not None and base_width is not None:
            base = instance(make_model, base_width, base_depth or max(len(_blocks(model, blocks)), 1))
        if blocks is None and base is not None:  # a single block is found through the instance that has more
            blocks = _containers(max(_blocks(model, None), _blocks(base, None), key=len)) or None
        scaling = _scaling(model, base, make_model, base_width, base_depth)
        found = anatomy(model, blocks=blocks, roles=roles, sample=sample, scaling=scaling, width=None)
        decisions = _settled(found, chosen, rule)
        names = found.blocks
        depth = _depth_ratio(found, base, blocks, base_depth)
        entries, width, notes = _entries(found, decisions, base, blocks, base_width, rule)
        multipliers, more = _multipliers(found, entries, base, chosen)
        notes += more
    if chosen.scales_width and optimizer in ("sgd", "adam", "adamw"):
        notes.append(_CLIP)
    return Plan(
        cast(RuleName, rule),
        cast(Optimizer, optimizer),
        cast(Decay, decay),
        width,
        depth,
        entries,
        tuple(names),
        multipliers,
        tuple(notes),
    )


def _check_sizes(
    family: Known,
    rule: str,
    base: nn.Module | None,
    base_width: int | None,
    base_depth: int | None,
    make_model: MakeModel | None,
) -> None:
    if base is not None and not isinstance(base, nn.Module):
        raise TypeError(f"base must be a torch.nn.Module; got {type(base).__name__}.")
    if base is not None and (base_width, base_depth, make_model) != (None, None, None):
        raise ValueError("base is the tuned model itself: pass it alone, without base_width, base_depth or make_model.")
    if make_model is not None and base_width is None:
        raise ValueError("make_model needs base_width, the width at which you tuned (and base_depth, its depth).")
    nothing = base is None and base_width is None and base_depth is None
    if nothing and family.width is None and rule != "standard":
        raise ValueError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, or base_width= and base_depth=, "
            "with make_model= where you have a constructor."
        )


def _own_network(
    model: nn.Module,
    family: Known,
    rule: str,
    base: nn.Module | None,
    base_width: int | None,
    base_depth: int | None,
) -> tuple[dict[str, Entry], float, float]:
    """A network of nfd.nets: it knows its roles, its size and its multipliers."""
    net = cast(Any, model)
    if family.blocks and rule_named(rule).exponent not in (None, net.branch_exponent):
        raise ValueError(
            f"Rule {rule!r} is made for branch_exponent={exponent_of(rule):g}; this network has "
            f"{net.branch_exponent:g}. Build it with branch_exponent={exponent_of(rule):g} or choose another rule."
        )
    if rule_named(rule).boosts_inner and "inner" not in family.roles.values():
        raise ValueError(f"Rule {rule!r} needs inner and outer roles; build the network with block='two-layer'.")
    if base is not None:
        small = known(base)
        base_width, base_depth = small.width, small.depth
    m, depth = net.width / (base_width or 1), net.depth / (base_depth or 1)
    entries = {}
    for name, t in tensors(model).items():
        role = family.roles.get(name, "vector")
        ratio = Ratios(1.0, m) if role == "input" else Ratios(m, 1.0) if role == "readout" else Ratios(m, m)
        why, multiplier = family.sources.get(name, "fixed"), family.multipliers.get(name, Power())
        entries[name] = Entry(t.shape, role, why, t.shape[-1], ratio, Start(1.0, None), multiplier)
    return entries, m, depth


def _blocks(model: nn.Module, blocks: str | Sequence[str] | None) -> list[str]:
    return blocks_named(model, blocks) if blocks else (known(model).blocks or blocks_found(model))


def _containers(blocks: Sequence[str]) -> list[str]:
    return [f"{c}.*".lstrip(".") for c in dict.fromkeys(block.rpartition(".")[0] for block in blocks)]


def _scaling(
    model: nn.Module,
    base: nn.Module | None,
    make_model: MakeModel | None,
    base_width: int | None,
    base_depth: int | None,
) -> dict[str, tuple[bool, ...]] | None:
    """Which dimensions grow, from two instances; None where there is only one."""
    if base is None:
        return None
    grows = growing(base, model)
    if make_model is not None and base_width is not None and not any(any(dims) for dims in grows.values()):
        grows = growing(base, instance(make_model, 2 * base_width, base_depth or 2))
    return {name: grows.get(name, (False,) * len(t.shape)) for name, t in tensors(model).items()}


def _settled(found: Anatomy, chosen: Rule, rule: str) -> dict[str, tuple[Role, str]]:
    """Every tensor's role, or one error that lists what is open."""
    decisions = dict(found.decisions)
    if not chosen.scales_width:  # every factor is 1, whatever the role
        decisions = {n: d if d.role else Decision("vector", d.why) for n, d in decisions.items()}
    elif not chosen.scales_depth:
        inside = tuple(f"{block}." for block in found.blocks)
        decisions = {
            n: Decision("hidden", "in a block; this rule treats inner and outer alike")
            if d.role is None and n.startswith(inside) and len(found.tensors[n].names) == 1
            else d
            for n, d in decisions.items()
        }
    if chosen.scales_depth and found.known.post_norm:
        raise ValueError(
            f"Rule {rule!r} needs a pre-norm residual stream; {found.known.post_norm[0]} normalises after adding. Use "
            "rule='mup', or build the model with norm_first=True."
        )
    open_ones = {n: d.why for n, d in decisions.items() if d.role is None}
    if open_ones:
        raise ValueError(_open_question(open_ones))
    if chosen.scales_depth and not found.blocks:
        raise ValueError(f"Rule {rule!r} needs residual blocks; none were found. Pass blocks='path.to.blocks.*'.")
    return {name: (d.role, d.why) for name, d in decisions.items() if d.role is not None}


def _open_question(open_ones: Mapping[str, str]) -> str:
    alike = {(re.sub(r"\.\d+\.", ".*.", name), why): None for name, why in open_ones.items()}
    lines = [f"  {name}: {why}" for name, why in list(alike)[:12]]
    if len(alike) > 12:
        lines.append(f"  and {len(alike) - 12} more")
    hint = {
        "no sample": "sample=, an input to measure with",
        "outside blocks": "make_model= or base= of another width",
    }
    ways = [way for said, way in hint.items() if any(said in why for why in open_ones.values())]
    ways.append("roles={'pattern': 'inner', ...}")
    tensors_ = "1 tensor" if len(open_ones) == 1 else f"{len(open_ones)} tensors"
    return "\n".join([f"The plan cannot decide {tensors_}:", *lines, f"Pass {', or '.join(ways)}."])


def _depth_ratio(
    found: Anatomy, base: nn.Module | None, blocks: str | Sequence[str] | None, base_depth: int | None
) -> float:
    depth = len(found.blocks)
    if base is not None and depth:
        return depth / len(_blocks(base, blocks))
    return depth / base_depth if base_depth and depth else 1.0


def _entries(
    found: Anatomy,
    decisions: Mapping[str, tuple[Role, str]],
    base: nn.Module | None,
    blocks: str | Sequence[str] | None,
    base_width: int | None,
    rule: str,
) -> tuple[dict[str, Entry], float, list[str]]:
    if base is not None:
        return _entries_of_base(found, decisions, Base(tensors(base), _blocks(base, blocks)))
    m = 1.0
    if base_width is not None and rule != "standard":
        stream = _width_of(found, decisions)
        m = stream / base_width
    entries, own = {}, Base(found.tensors, found.blocks)
    for name, t in found.tensors.items():
        role, why = decisions[name]
        grown, begins = ratios_by_role(t, role, m), own.start(t, found.blocks)
        law = Power() if t.is_vector or role not in ("hidden", "inner", "outer", "readout") else Power(fan_in=0.5)
        begins = Start(begins.std * law.at(grown.fan_in, 1.0, 1.0), begins.constant)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, begins)
    return entries, m, [] if m == 1 else [_LAW]


def _entries_of_base(
    found: Anatomy, decisions: Mapping[str, tuple[Role, str]], base: Base
) -> tuple[dict[str, Entry], float, list[str]]:
    entries = {}
    for name, t in found.tensors.items():
        role, why = decisions[name]
        grown = ratios(t, base.of(t, found.blocks), role)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, base.start(t, found.blocks))
    grown_by = [e.ratios.fan_out for e in entries.values() if e.role != "readout"]
    return entries, max(grown_by, default=1.0, key=lambda r: abs(r - 1)), []


def _width_of(found: Anatomy, decisions: Mapping[str, tuple[Role, str]]) -> int:
    """The size of the stream."""
    for wanted in ("outer", "embedding", "tied", "input"):
        sizes = {
            t.shape[t.outs[0]]
            for name, t in found.tensors.items()
            if decisions[name][0] == wanted and t.outs and not t.is_vector
        }
        if len(sizes) == 1:
            return sizes.pop()
    raise ValueError(
        "The width of the model could not be found, to compare with base_width. Pass make_model=, or base=, the tuned "
        "model itself."
    )


def _multipliers(
    found: Anatomy, entries: Mapping[str, Entry], base: nn.Module | None, chosen: Rule
) -> tuple[dict[str, float], list[str]]:
    """Forward factors that no initialisation can stand for."""
    factors: dict[str, float] = {}
    notes: list[str] = []
    if not chosen.scales_width:
        return factors, notes
    for name, entry in entries.items():
        if entry.role == "tied" and entry.ratios.fan_out != 1:
            heads = [n.rpartition(".")[0] for n in found.tensors[name].names if n != name]
            factors.update(dict.fromkeys(heads, 1 / entry.ratios.fan_out))
            notes.append(
                f"{name} is the head as well: insert nfd.Scaled at {', '.join(heads)} as plan.multipliers has it."
            )
    small = known(base).attention if base is not None else {}
    for module, size in found.known.attention.items():
        before = next(iter(small.values()), size)
        if size != before:
            factors[module] = (before / size) ** 0.5
    if any(size != next(iter(small.values()), size) for size in found.known.attention.values()):
        notes.append(
            "Heads grew: attention logits need 1/d instead of 1/sqrt(d). Multiply them (or the queries) by the factor "
            "that plan.multipliers has for each attention module; at a fixed head size this is not needed."
        )
    return factors, notes
