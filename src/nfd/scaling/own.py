"""Plans of the networks of ``nfd.nets``, which know their roles, their size and their multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.entries import Parts
from nfd.scaling.families import Known, known
from nfd.scaling.matrices import layout_of
from nfd.scaling.plan import Entry
from nfd.scaling.rules import Power
from nfd.scaling.self_scaled import SelfScaled
from nfd.scaling.sizes import MakeModel, Ratios, Start, instance, ratios_by_role, start_of
from nfd.scaling.tensors import tensors


def check_nothing_said(blocks: str | Sequence[str] | None, roles: Mapping[str, str]) -> None:
    for name, value in (("blocks", blocks), ("roles", roles)):
        if value:
            raise InputError(
                f"{name} are for other models: a network of nfd.nets knows its own; got {name}={value!r}. Drop it, or "
                "override named_roles() in a subclass."
            )


def parts_of_own(
    model: nn.Module,
    family: Known,
    net: SelfScaled,
    rule: str,
    base: nn.Module | None,
    base_width: int | None,
    base_depth: int | None,
    make_model: MakeModel | None,
) -> Parts:
    """A network of nfd.nets: it knows its roles, its size and its multipliers."""
    net.check_rule(rule)
    if make_model is not None and base_width is not None:
        wanted = base_width, base_depth or net.depth
        made = _own_base(instance(make_model, *wanted, seed=0), "make_model makes")
        if (made.depth, made.width) == wanted and made.width != made.depth:
            raise InputError(
                f"make_model{wanted} has width {made.width} and depth {made.depth}: its arguments must be "
                "(width, depth), in this order."
            )
        base_width, base_depth = made.width, None if base_depth is None else made.depth
    if base is not None:
        small = _own_base(base, "base is")
        base_width, base_depth = small.width, small.depth
    if base_width is None and base_depth is None:
        base_width = base_depth = 1
    m, depth = net.width / (base_width or net.width), net.depth / (base_depth or net.depth)
    return Parts(_entries(model, family, m), m, depth, family.blocks)


def _own_base(base: nn.Module, who: str) -> SelfScaled:
    found = known(base).network
    if found is None:
        raise InputError(
            f"{who} a {type(base).__name__}, whose scales are others than those of the model, a network of nfd.nets. "
            "Build both alike."
        )
    return found


def _entries(model: nn.Module, family: Known, m: float) -> dict[str, Entry]:
    """A network of nfd.nets, ``m`` times as wide as its base: N(0, 1) weights behind multipliers.

    What a subclass adds is behind none, and begins as the subclass begins it.
    """
    entries = {}
    for name, t in tensors(model).items():
        role = family.roles.get(name, "vector")
        if name in family.roles and name not in family.multipliers:
            grown, begins = ratios_by_role(t, role, m), replace(start_of([t.drawn()]), kept=True)
            entries[name] = Entry(t.shape, role, family.sources[name], t.fan_in(), grown, begins)
            continue
        grown = Ratios(1.0, m) if role == "input" else Ratios(m, 1.0) if role == "readout" else Ratios(m, m)
        why, multiplier = family.sources.get(name, "fixed"), family.multipliers.get(name, Power())
        entries[name] = Entry(t.shape, role, why, t.shape[-1], grown, Start(1.0, None), multiplier, layout_of(t))
    return entries
