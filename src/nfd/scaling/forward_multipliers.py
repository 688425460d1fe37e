"""Networks that tell the multipliers of their forward pass and their roles, and how they are planned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

from torch import nn

from nfd.core.errors import InputError, check_choice
from nfd.core.names import OPTIMIZER, RULE
from nfd.scaling.entries import Entry, Parts, Ratios, Start, layout_of, ratios_by_role, start_of
from nfd.scaling.given_base import GivenBase
from nfd.scaling.model import listed, modules, tensors
from nfd.scaling.rules import ROLES, Power, Role


@runtime_checkable
class TellsMultipliers(Protocol):
    """A network that tells the constants of its forward pass, so that a plan need not measure them.

    Weights that it names in ``forward_multipliers`` begin as N(0, 1). Every other parameter is a plain one: nothing
    multiplies it, and it begins as the network begins it.
    """

    width: int
    depth: int
    default_rule: str
    default_optimizer: str

    def forward_multipliers(self) -> Mapping[str, Power]:
        """How the constant that the forward pass multiplies a parameter with scales with width and depth, by name."""

    def named_roles(self) -> Mapping[str, Role]:
        """The role of every trainable parameter, by its name."""

    def block_names(self) -> list[str]:
        """The names of the modules that write the residual stream, one per block; none without one."""

    def check_rule(self, rule: str) -> None:
        """ValueError when a rule is made for another network."""


def roles_of(net: TellsMultipliers) -> dict[str, Role]:
    """``named_roles``, complete: a feedback matrix has the role of the matrix that it stands for.

    Raises:
        ValueError: naming the trainable parameters without a role, and what has a role and is no parameter.
    """
    kind, module = type(net).__name__, cast(nn.Module, net)
    names = dict(module.named_parameters(remove_duplicate=False))
    given = {name: check_choice(f"named_roles()[{name!r}]", r, ROLES) for name, r in net.named_roles().items()}
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InputError(
            f"named_roles() must name parameters of the network; {kind} has no {', '.join(map(repr, unknown))}."
        )
    of = {id(names[name]): role for name, role in given.items()}
    roles: dict[str, Role] = {}
    for name, p in module.named_parameters():
        role = of.get(id(p)) or (given.get(name.replace("feedback_weight", "weight")) if p.requires_grad else None)
        if role is not None:
            roles[name] = cast(Role, role)
    missing = [name for name, p in module.named_parameters() if p.requires_grad and name not in roles]
    if missing:
        raise InputError(_no_role(kind, missing))
    return roles


def told_by(model: nn.Module) -> TellsMultipliers | None:
    """The network that tells its multipliers, where a model is one, also inside of wrappers; None for others.

    Raises:
        ValueError: where such a network is only a part of the model.
    """
    for name, module in modules(model).items():
        if isinstance(module, TellsMultipliers):
            if name:
                raise InputError(f"A network of nfd.nets must be the whole model; got one inside, as {name!r}.")
            return module
    return None


def defaults_of(model: nn.Module) -> tuple[str, str]:
    """The rule and the optimizer of a model where nobody chose others."""
    net = told_by(model)
    return (RULE, OPTIMIZER) if net is None else (net.default_rule, net.default_optimizer)


def check_nothing_said(blocks: str | Sequence[str] | None, roles: Mapping[str, str]) -> None:
    for name, value in (("blocks", blocks), ("roles", roles)):
        if value:
            raise InputError(
                f"{name} are for other models: a network of nfd.nets knows its own; got {name}={value!r}. Drop it, or "
                "override named_roles() in a subclass."
            )


def told_parts(model: nn.Module, net: TellsMultipliers, rule: str, given: GivenBase) -> Parts:
    """The parts of the plan of a network of nfd.nets: it knows its roles, its size and its multipliers."""
    net.check_rule(rule)
    width, depth = given.width, given.depth
    if given.make_model is not None:
        wanted = width, depth or net.depth
        made = _told_base(given.instance(depth=wanted[1]), "make_model makes")
        if (made.depth, made.width) == wanted and made.width != made.depth:
            raise InputError(
                f"make_model{wanted} has width {made.width} and depth {made.depth}: its arguments must be "
                "(width, depth), in this order."
            )
        width, depth = made.width, None if depth is None else made.depth
    if given.model is not None:
        small = _told_base(given.model, "base is")
        width, depth = small.width, small.depth
    if width is None and depth is None:
        width = depth = 1
    m = net.width / (width or net.width)
    return Parts(told_entries(model, net, m), m, net.depth / (depth or net.depth), net.block_names())


def _told_base(base: nn.Module, who: str) -> TellsMultipliers:
    net = told_by(base)
    if net is None:
        raise InputError(
            f"{who} a {type(base).__name__}, whose scales are others than those of the model, a network of nfd.nets. "
            "Build both alike."
        )
    return net


def told_entries(model: nn.Module, net: TellsMultipliers, m: float) -> dict[str, Entry]:
    """The entries of a network that is ``m`` times as wide as its base: N(0, 1) weights behind multipliers.

    What a subclass adds is behind none, and begins as the subclass begins it.
    """
    entries, roles, told, source = {}, roles_of(net), net.forward_multipliers(), type(net).__name__
    for name, t in tensors(model).items():
        role = roles.get(name, "vector")
        if name in roles and name not in told:
            grown, begins = ratios_by_role(t, role, m), replace(start_of([t.drawn()]), std=0.0, kept=True)
            entries[name] = Entry(t.shape, role, source, t.fan_in(), grown, begins)
            continue
        grown = Ratios(1.0, m) if role == "input" else Ratios(m, 1.0) if role == "readout" else Ratios(m, m)
        why, multiplier = (source, told[name]) if name in roles else ("fixed", Power())
        entries[name] = Entry(
            t.shape, role, why, math.prod(t.shape[1:]), grown, Start(1.0, None), multiplier, layout_of(t)
        )
    return entries


def _no_role(kind: str, names: list[str]) -> str:
    return (
        f"{kind} has trainable parameters without a role, so that nothing decides their rate: {listed(names, 6)}. "
        f"Override named_roles() to return {{**super().named_roles(), {names[0]!r}: ROLE, ...}} with roles among "
        f"{', '.join(map(repr, ROLES))}, or freeze them with requires_grad_(False)."
    )
