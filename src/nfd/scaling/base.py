"""The small model that was tuned: what the user said of it, and how it differs from the large one beside its size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast, runtime_checkable

from torch import nn

from nfd.core.errors import MOST, WIDEST, InputError, InputTypeError, check_callable, check_choice, check_count
from nfd.core.names import OPTIMIZER, RULE
from nfd.scaling.entries import (
    Base,
    Entry,
    MakeModel,
    Parts,
    Ratios,
    Start,
    check_constructor,
    instance,
    layout_of,
    made_again,
    ratios_by_role,
    start_of,
)
from nfd.scaling.forward import Own, Seen, own_factors
from nfd.scaling.model import (
    Blocks,
    Where,
    block_of,
    blocks_of,
    check_stored,
    in_base,
    listed,
    modules,
    on_device,
    tensors,
)
from nfd.scaling.roles import Anatomy, trace
from nfd.scaling.rules import ROLES, Power, Role

# ---- ``GivenBase``: what the user said of the smaller model that was tuned


@dataclass(frozen=True)
class GivenBase:
    """The arguments ``base`` and ``make_model`` of ``nfd.plan``."""

    model: nn.Module | None = None
    width: int | None = None
    depth: int | None = None
    make_model: MakeModel | None = None

    @classmethod
    def checked(cls, base: nn.Module | tuple[int | None, int | None] | None, make_model: MakeModel | None) -> Self:
        """From the arguments; ValueError or TypeError where they are none of these or say it twice."""
        if isinstance(base, nn.Module):
            if make_model is not None:
                raise InputError("base is the tuned model itself: pass it alone, without make_model.")
            check_stored(base)
            return cls(base)
        if base is not None and (not isinstance(base, tuple) or len(base) != 2):
            raise InputTypeError(
                f"base must be the tuned model, or its size as a pair (width, depth); got {base!r} of "
                f"{type(base).__name__}."
            )
        width, depth = (
            None if size is None else check_count(f"the {axis} of base", size, maximum=most)
            for size, axis, most in zip(base or (None, None), ("width", "depth"), (WIDEST, MOST), strict=True)
        )
        if make_model is not None:
            check_callable("make_model", make_model, "a function of (width, depth)")
            if width is None:
                raise InputError("make_model needs base=(width, depth), the size at which you tuned.")
        return cls(None, width, depth, make_model)

    @property
    def is_open(self) -> bool:
        """Whether nothing was said."""
        return self.model is None and self.width is None and self.depth is None

    @property
    def size(self) -> tuple[int, int] | None:
        """The arguments of the constructor that build the base; None without one."""
        return None if self.make_model is None or self.width is None or self.depth is None else (self.width, self.depth)

    def instance(self, *, depth: int, times: int = 1, seed: int = 0) -> nn.Module:
        """What the constructor builds at so many times the base's width."""
        assert self.make_model is not None
        assert self.width is not None
        return instance(self.make_model, times * self.width, depth, seed=seed)

    def as_deep(self, ratio: float) -> nn.Module | None:
        """An instance as wide as the base, so many times as deep; None where nothing builds it."""
        if self.make_model is None or self.depth is None:
            return None
        return self.instance(depth=round(ratio * self.depth))

    def completed(self, model: nn.Module, where: Where) -> Self:
        """With the depth at which the constructor builds as many tensors as the model has, where none was said.

        Raises:
            ValueError: where there is no such depth.
        """
        if self.make_model is None or self.depth is not None:
            return self
        depth = max(len(blocks_of(model, where)), 1)  # a unit of depth may be two blocks, or none that is found
        lacking, one_more = (len(tensors(model)) - len(tensors(self.instance(depth=depth + k))) for k in (0, 1))
        if lacking and lacking != one_more:
            more, rest = divmod(lacking, lacking - one_more)
            if rest or depth + more < 1:
                raise InputError(
                    f"make_model({self.width}, depth) has as many tensors as the model at no depth. Pass "
                    "base=(width, depth), the size at which you tuned."
                )
            depth += more
        return replace(self, depth=depth)

    def built(self, where: Where) -> nn.Module | None:
        """The base: itself, or from the constructor; None without either.

        Raises:
            ValueError: where arguments of the constructor seem to be (depth, width).
        """
        if self.make_model is None or self.width is None or self.depth is None:
            return self.model
        base = self.instance(depth=self.depth)
        if len(blocks_of(base, where)) != self.depth or self.depth == self.width:  # else it is as deep as was asked for
            check_constructor(self.make_model, [self.width, 2 * self.width], [self.depth])
        return base

    def begun(self, base: nn.Module, where: Where) -> Base:
        """What is known of the base's start; with a constructor also which of its tensors another seed builds alike."""
        own = tensors(base)
        again = (
            made_again(own, tensors(self.instance(depth=self.depth, seed=1))) if self.depth and self.make_model else {}
        )
        return Base(own, blocks_of(base, where), again)

    def growing(self, model: nn.Module, base: nn.Module, where: Where) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of the model's tensors grow with width, from two instances."""
        own, blocks = tensors(model), blocks_of(model, where)
        grows = Base(tensors(base), blocks_of(base, where)).differing(own, blocks)
        if self.make_model is not None and not any(any(dims) for dims in grows.values()):
            assert self.depth is not None
            wide = self.instance(depth=self.depth, times=2)
            grows = Base(tensors(wide), blocks_of(wide, where)).differing(own, blocks)
        return grows


# ---- Starts that a constructor itself lets depend on depth, as GPT-2 does by 1/sqrt(2L): kept where the rule has none


_BEYOND_CHANCE = 6.0  # standard errors
_LEAST = math.log(1.05)


def with_own_depth(
    entries: Mapping[str, Entry], structure: Anatomy, base: Base, as_deep: Base
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that begin as in ``as_deep``, an instance as wide as the base and as deep as the model; and a note."""
    kept = {}
    for name, t in structure.tensors.items():
        shallow, deep = (instance.start(t, structure.blocks) for instance in (base, as_deep))
        if _differ(shallow, deep, base.of(t, structure.blocks).parameter.numel()):
            kept[name] = replace(entries[name], start=deep)
    notes = [f"The constructor begins {listed([*kept], 3)} by depth; they begin as in a model of this depth."]
    return {**entries, **kept}, notes if kept else []


def _differ(shallow: Start, deep: Start, numbers: int) -> bool:
    """Whether two starts differ by more than chance, each measured in so many numbers or more."""
    if shallow.kept or deep.kept:
        return False
    if shallow.constant is not None or deep.constant is not None:
        return shallow.constant != deep.constant
    error = 1 / math.sqrt(numbers)  # of the logarithm of the ratio of two standard deviations
    return abs(math.log(deep.std / shallow.std)) > max(_BEYOND_CHANCE * error, _LEAST)


# ---- How the constant factors of a model's forward pass differ from those of its base: measured, or foreseen by powers


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
    if not structure.traced.seen:
        return {}, _NO_SAMPLE
    before = _seen(base if as_deep is None else as_deep, blocks, sample)
    if before is None:
        return {}, _NOT_TAKEN
    own = own_factors(Seen(structure.traced.factors, structure.blocks), before)
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
    """Of a model on the meta device, whose trace is that of the base: as the powers that two more models of the
    constructor show, twice as wide, and twice as deep.

    Args:
        ratios: of width and of depth, by tensor; none of depth where the factors of depth are to stay.
        base: blocks of the base. blocks: as ``blocks_of`` finds them in any instance.
    """
    if not structure.traced.seen:
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
        doubled = own_factors(larger, Seen(structure.traced.factors, base))
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
    return None if not traced.seen else Seen(traced.factors, blocks_of(model, blocks))


# ---- Networks that tell the multipliers of their forward pass and their roles, and how they are planned


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
                raise InputError(f"A network of the paper must be the whole model; got one inside, as {name!r}.")
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
                f"{name} are for other models: a network of the paper knows its own; got {name}={value!r}. Drop it, or "
                "override named_roles() in a subclass."
            )


def told_parts(model: nn.Module, net: TellsMultipliers, rule: str, given: GivenBase) -> Parts:
    """The parts of the plan of a network of the paper: it knows its roles, its size and its multipliers."""
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
            f"{who} a {type(base).__name__}, whose scales are others than those of the model, a network of the paper. "
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
            grown, begins = ratios_by_role(t, role, m), replace(start_of(t.drawn()), std=0.0, kept=True)
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
