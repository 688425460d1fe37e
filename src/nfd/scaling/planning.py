"""``nfd.plan``: from a model and the small one that was tuned to a ``Plan``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, cast, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from nfd.core.errors import (
    MOST,
    OPTIMIZER,
    RULE,
    WIDEST,
    Decay,
    InputError,
    InputTypeError,
    RuleName,
    check_callable,
    check_choice,
    check_count,
    check_patterns,
)
from nfd.core.machine import gradients, plain
from nfd.scaling.entries import (
    Base,
    Entry,
    MakeModel,
    Parts,
    Ratios,
    Start,
    check_constructor,
    depths_of,
    entries_of,
    instance,
    layout_of,
    notes_on_matrices,
    with_multipliers,
    with_own_constants,
    with_own_factors,
)
from nfd.scaling.graph import Factors, Own
from nfd.scaling.model import (
    Blocks,
    Where,
    alike,
    block_of,
    blocks_of,
    check_not_complex,
    check_not_parametrized,
    check_stored,
    in_any_block,
    listed,
    modules,
    parametrized,
    places_of,
    repeated,
    tensors,
)
from nfd.scaling.optimizers import OptimizerLaw, law_of
from nfd.scaling.plan import Plan
from nfd.scaling.roles import Anatomy, anatomy, is_unbuilt, settled_roles, trace
from nfd.scaling.rules import ROLES, Power, Role, rule_named
from nfd.scaling.samples import check_input, mapped, on_device

_CLIP = (
    "Folding moves gradient norms between tensors: a global clip acts on other tensors than in the base (Hugging "
    "Face's Trainer clips at 1.0). Clip by tensor, or raise max_grad_norm."
)
_HEADS = (
    "Attention heads are assumed to keep their size. If they grow with width, attention logits need 1/d instead of "
    "1/sqrt(d)."
)
_OWN_DEPTH = (
    "This rule does not scale with depth, and tensors begin as in the base. If your constructor lets a start depend on "
    "depth, as GPT-2 does by 1/sqrt(2L), pass make_model=, and that is kept."
)
_UNSCALED = "No tensor scales some branches: wrap the modules that end them in nfd.Scaled, factors in plan.multipliers."
_UNSEEN = "Whether the model's own forward pass has factors that depend on its size, as Gemma's, is not known: "


@gradients()
def plan(
    model: nn.Module,
    base: nn.Module | tuple[int | None, int | None] | None = None,
    *,
    make_model: MakeModel | None = None,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | torch.optim.Optimizer | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    decay: str = "constant-product",
    sample: Any = None,
) -> Plan:
    """Plan a large model from a small, tuned one: initial scale, rate, decay and epsilon of every tensor.

    The small model is the base. Tune its rate, and pass it to the plan of the large one, which scales it for every
    tensor by the rule. Factors are folded into initial weights and rates, with few exceptions
    (``Plan.multipliers``).

    Example::

        model = make_model(256, 8)
        plan = nfd.plan(model, base=(64, 2), make_model=make_model, sample=x)
        print(plan)
        plan.apply_(model, seed=0)
        optimizer = plan.make_optimizer(model, lr=3e-3, weight_decay=0.1)

    Args:
        model: any module; the plan does not change it. On the meta device it needs a base.
        base: the tuned model itself, or its ``(width, depth)``, the arguments of ``make_model``; None in the pair: as
            that of the model.
        make_model: ``make_model(width, depth)``; it shows which dimensions grow.
        rule: ``"complete-p"``, the default, ``"standard"``, ``"mup"``, ``"depth-mup"`` (that of ``nfd.ResNet``) or
            ``"depth-mup-inner"`` (Eq. 8).
        optimizer: ``"adamw"``, the default, ``"sgd"``, ``"adam"``, ``"lion"``, ``"muon"`` (for matrices in blocks,
            AdamW for the rest), ``"muon-match-rms-adamw"``, ``"muon-spectral"``, ``"muon-unit"``, a law
            (``nfd.register_optimizer``), or an optimizer object whose class has one law.
        blocks: pattern of the residual blocks, such as ``"transformer.h.*"``; None finds them.
        roles: pattern to role, for tensors that you know better: ``"input"``, ``"embedding"``, ``"tied"``,
            ``"vector"``, ``"hidden"``, ``"outer"``, ``"inner"``, ``"readout"``.
        decay: ``"constant-product"`` keeps rate times decay constant, ``"independent"`` the shrinkage per step,
            ``"raw"`` the decay.
        sample: an input to trace the model with: a tensor, a tuple of arguments or a dict.

    Returns:
        A ``Plan``: ``print`` shows it, ``apply_`` initialises the model, ``make_optimizer`` makes its optimizer, and
        ``for_run`` scales it to another batch and length.

    Raises:
        ValueError: naming every tensor that could not be decided; also if a depth rule meets a model without a pre-norm
            residual stream.

    Source: sections 2 and 4.2, Eq. 8; Yang et al., Tensor Programs V and VI; Dey et al. (CompleteP).
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    check_stored(model)
    check_not_complex(model)
    usual_rule, usual_optimizer = defaults_of(model)
    rule = usual_rule if rule is None else rule
    chosen, law = rule_named(rule), law_of(usual_optimizer if optimizer is None else optimizer)
    if chosen.scales_width:
        check_not_parametrized(model)
    if chosen.regime == "kernel":
        raise InputError(f"Rule {rule!r} is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule.")
    decay = check_choice("decay", decay, get_args(Decay))
    given = GivenBase.checked(base, make_model)
    blocks, roles = check_patterns("blocks", blocks), checked_roles(roles)
    if sample is not None:
        check_input(sample)
    sample = mapped(sample, lambda part: plain(part) if isinstance(part, Tensor) else part)
    if (net := told_by(model)) is not None:
        if blocks or roles:
            raise InputError(f"blocks and roles are for other models than the paper's; got {blocks=}, {roles=}.")
        parts = _told_parts(model, net, rule, given)
    elif given.model is None and given.make_model is None and chosen.scales_width:
        raise InputError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, the tuned model itself, or its "
            "(width, depth) with make_model=."
        )
    else:
        given = given.completed(model, blocks)
        parts = _parts_of_any(model, rule, given, blocks, roles, sample)
    notes = [*parts.notes, *([_CLIP] if chosen.scales_width else [])]
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        notes.append(f"Tensors that do not train keep the start that they have, and have no rate: {listed(frozen)}.")
    if law.rest is not None:
        notes += notes_on_matrices(parts.entries, parts.blocks, law.rest)
    size, names = given.size if net is None else None, (cast(RuleName, rule), law.name, cast(Decay, decay))
    return Plan(*names, parts.width, parts.depth, parts.entries, tuple(parts.blocks), parts.multipliers, tuple(notes),
                base=size)  # fmt: skip


def checked_roles(roles: Mapping[str, str] | None) -> Mapping[str, str]:
    """The roles that a caller gave, none where None; TypeError where they are no dict, ValueError for no role."""
    if not isinstance(roles, Mapping | None):
        raise InputTypeError(
            f"roles must be a dict from pattern to role, such as {{'head.*': 'readout'}}; got {roles!r}."
        )
    return {str(pattern): check_choice(f"roles[{pattern!r}]", role, ROLES) for pattern, role in (roles or {}).items()}


def _parts_of_any(
    model: nn.Module, rule: str, given: GivenBase, blocks: Where, roles: Mapping[str, str], sample: Any
) -> Parts:
    """The parts of the plan of a module that tells nothing of itself."""
    chosen, base = rule_named(rule), given.built(blocks)
    if blocks is None and base is not None:  # two instances of which one has more blocks show them
        blocks = repeated(model, base) or None
        if blocks is None and given.size is not None and chosen.scales_depth:
            blocks = repeated(base, given.instance(depth=2 * given.size[1])) or None
    grows = {} if base is None else given.growing(model, base, blocks)
    structure = anatomy(model, base, blocks=blocks, roles=roles, sample=sample, scaling=grows)
    settled, traced = settled_roles(structure, chosen, rule), structure.traced
    if base is None or not chosen.scales_width:  # the model's own start is that of the rule
        entries = entries_of(structure, settled, grows)
        entries |= {n: replace(entries[n], start=replace(entries[n].start, kept=True)) for n in parametrized(model)}
        return Parts(entries, 1.0, 1.0, [*structure.blocks])
    tuned, found, notes = given.begun(base, blocks), dict[str, Own | None](), list[str]()
    depths = depths_of(structure.blocks, tuned.blocks)
    entries = entries_of(structure, settled, grows, tuned, depths)
    grown = [e.ratios.fan_out for e in entries.values() if e.role != "readout"]
    m = max(grown, default=1.0, key=lambda r: abs(r - 1))
    depth = len(structure.blocks) / len(tuned.blocks) if tuned.blocks else 1.0
    before: nn.Module | None = base
    if depth != 1 and not chosen.scales_depth:  # what depends on depth is to stay: it is compared at one depth
        before = None if given.size is None else given.instance(depth=round(depth * given.size[1]))
        deep = None if before is None else Base(tensors(before), blocks_of(before, blocks))
        entries, notes = (entries, [_OWN_DEPTH]) if deep is None else _own_depth(entries, structure, tuned, deep)
    if not m == depth == 1 or depths:
        look, unseen = partial(_seen, blocks=blocks, sample=sample), "pass sample=, an input to trace."
        if traced.seen and is_unbuilt(model):
            deeper = {n: e.depth or depth for n, e in entries.items()} if chosen.scales_depth else {}
            ratios = dict.fromkeys(entries, m), deeper
            found, unseen = _foreseen_factors(structure, tuned.blocks, ratios, given, look)
        elif traced.seen and (other := look(before or base)) is not None:
            found, unseen = own_factors(Seen(traced.factors, structure.blocks), other), ""
            if before is None:  # in blocks, factors of depth cannot be told from those of width
                found |= {name: None for name in found if block_of(name, structure.blocks) is not None}
        elif traced.seen:
            unseen = _NOT_TAKEN
        entries, of_own = with_own_factors(entries, found, structure.blocks)
        notes += [*of_own, *([_UNSEEN + unseen] if unseen else [])]
    entries, factors, of_factors = with_multipliers(structure, entries, found)
    entries = with_own_constants(structure, entries, chosen)
    notes += of_factors
    if kept := dict.fromkeys(in_any_block(n, structure.blocks) for n, e in entries.items() if e.start.kept):
        notes.append(f"Kept as the constructor makes them, and not drawn anew: {listed([*kept], 4)}.")
    if chosen.scales_depth:
        own = {n: depths.get(block_of(f"{n}.", structure.blocks) or "", depth) for n in sorted(traced.unscaled)}
        branches = {name: chosen.std("outer").at(1.0, 1.0, ratio) for name, ratio in own.items() if ratio != 1}
        factors |= branches
        notes += [_UNSCALED] if branches else []
    if traced.attends:
        notes.append(_HEADS)
    return Parts(entries, m, depth, [*structure.blocks], factors, notes)


# ---- what the user said of the smaller model -----------------------------------------------------------------------


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
            raise InputTypeError(f"base must be the tuned model, or its size as a pair (width, depth); got {base!r}.")
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
    def size(self) -> tuple[int, int] | None:
        """The arguments of the constructor that build the base; None without one."""
        return None if self.make_model is None or self.width is None or self.depth is None else (self.width, self.depth)

    def instance(self, *, depth: int, times: int = 1, seed: int = 0) -> nn.Module:
        """What the constructor builds at so many times the base's width."""
        return instance(cast(MakeModel, self.make_model), times * cast(int, self.width), depth, seed=seed)

    def completed(self, model: nn.Module, where: Where) -> Self:
        """With the depth at which the constructor builds as many tensors as the model has, where none was said;
        ValueError where there is none."""
        if self.make_model is None or self.depth is not None:
            return self
        depth = max(len(blocks_of(model, where)), 1)  # a unit of depth may be two blocks, or none that is found
        at, above = (len(tensors(self.instance(depth=depth + k))) for k in (0, 1))
        more, rest = divmod(len(tensors(model)) - at, above - at) if above != at else (0, 0)  # no depth: see ``built``
        if rest or depth + more < 1:
            raise InputError(
                f"make_model({self.width}, depth) has as many tensors as the model at no depth. Pass both."
            )
        return replace(self, depth=depth + more)

    def built(self, where: Where) -> nn.Module | None:
        """The base: itself, or from the constructor; None without either. ValueError where the arguments of the
        constructor seem to be (depth, width)."""
        if self.make_model is None or self.size is None:
            return self.model
        width, depth = self.size
        base = self.instance(depth=depth)
        if len(blocks_of(base, where)) != depth or depth == width:  # else it is as deep as was asked for
            check_constructor(self.make_model, [width, 2 * width], [depth])
        return base

    def begun(self, base: nn.Module, where: Where) -> Base:
        """What is known of the base's start; with a constructor also which of its tensors another seed builds alike."""
        own, size = tensors(base), self.size
        second = {} if size is None else tensors(self.instance(depth=size[1], seed=1))
        again = {name: t.drawn() for name, t in second.items()}
        if all(t.drawn().equal(again[name]) for name, t in own.items() if name in again):
            again = {}  # the constructor sets a seed itself, which says nothing of a structure
        return Base(own, blocks_of(base, where), again)

    def growing(self, model: nn.Module, base: nn.Module, where: Where) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of the model's tensors grow with width, from two instances."""
        own, blocks = tensors(model), blocks_of(model, where)
        grows = Base(tensors(base), blocks_of(base, where)).differing(own, blocks)
        if self.size is not None and not any(any(dims) for dims in grows.values()):
            wide = self.instance(depth=self.size[1], times=2)
            grows = Base(tensors(wide), blocks_of(wide, where)).differing(own, blocks)
        return grows


# ---- starts that a constructor itself lets depend on depth, as GPT-2 does by 1/sqrt(2L) ----------------------------

_CHANCE = 6.0  # standard errors
_LEAST = math.log(1.05)


def _own_depth(
    entries: Mapping[str, Entry], structure: Anatomy, base: Base, as_deep: Base
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that begin as in ``as_deep``, an instance as wide as the base and as deep as the model; and a note."""
    kept = {}
    for name, t in structure.tensors.items():
        shallow, deep = (instance.start(t, structure.blocks) for instance in (base, as_deep))
        if shallow.kept or deep.kept:
            continue
        differs = shallow.constant != deep.constant
        if shallow.constant is None and deep.constant is None:
            error = base.of(t, structure.blocks).parameter.numel() ** -0.5  # of the logarithm of the ratio of two stds
            differs = abs(math.log(deep.std / shallow.std)) > max(_CHANCE * error, _LEAST)
        if differs:
            kept[name] = replace(entries[name], start=deep)
    notes = [f"The constructor begins {listed([*kept])} by depth; they begin as in a model of this depth."]
    return {**entries, **kept}, notes if kept else []


# ---- constant factors of the model's own forward pass, over those of the base --------------------------------------
#
# Gemma multiplies its embeddings by the root of the width, T5 divides what its tied head reads by it, and other models
# carry a parametrisation of their own. With a factor s, the effective weights are ``s W``. The rules are for effective
# weights, so a plan divides starts and rates by s over that of the base: the model then trains as one that has the
# factor of the base at every size. A factor that is the same at every size changes nothing.

_SAME = 1e-4  # of the logarithm of a ratio: the same factor, rounded
_DIGITS = 6  # of a power: what float32 holds of the factors of two models


class Seen(NamedTuple):
    """The factors of a model, by tensor, and its blocks."""

    factors: Mapping[str, Factors]
    blocks: Blocks


Look = Callable[[nn.Module], Seen | None]
Found = tuple[dict[str, Own | None], str]  # by tensor, and why none could be found
_NOT_TAKEN = "the base does not take the sample."


def _seen(model: nn.Module, blocks: Where, sample: Any) -> Seen | None:
    """What a trace of an instance shows; None where it does not take the sample."""
    place = next((p.device for p in model.parameters()), None)
    try:
        traced = trace(model, on_device(sample, place))
    except InputTypeError:
        return None
    return None if not traced.seen else Seen(traced.factors, blocks_of(model, blocks))


def _foreseen_factors(
    structure: Anatomy,
    base: Blocks,
    ratios: tuple[Mapping[str, float], Mapping[str, float]],
    given: GivenBase,
    look: Look,
) -> Found:
    """Of a model on the meta device, whose trace is that of its base: by the powers that two more models of the
    constructor show, twice as wide, and twice as deep.

    ``ratios`` are those of width and depth, by tensor; none of depth where the factors of depth are to stay.
    """
    if given.size is None:
        return {}, "the model is on the meta device. Pass make_model=, or build the model."
    found: dict[str, Own | None] = {}
    for grown, times in zip(ratios, ((2, 1), (1, 2)), strict=True):
        if all(ratio == 1 for ratio in grown.values()):
            continue
        larger = look(given.instance(times=times[0], depth=times[1] * given.size[1]))
        if larger is None:
            return {}, _NOT_TAKEN
        doubled = own_factors(larger, Seen(structure.traced.factors, base))
        places = places_of(larger.factors, larger.blocks)
        for name in structure.tensors:
            other = alike(name, structure.blocks, places)
            if other in doubled:
                own, of_two = found.get(name, Own()), doubled[other]
                powers = [round(math.log2(more), _DIGITS) for more in of_two or ()]
                more = [grown[name] ** power for power in powers]
                found[name] = own and of_two and Own(own.looked_up * more[0], own.applied * more[1])
    return found, ""


def own_factors(model: Seen, base: Seen) -> dict[str, Own | None]:
    """What the factors of a model are over those of its base, by tensor, for those that differ.

    Blocks are compared where both have them, and others of their kind have what these have. None: where uses, or
    blocks, have different ones.
    """
    found, there = dict[str, Own | None](), places_of(base.factors, base.blocks)
    for place, names in places_of(model.factors, model.blocks).items():
        own = set[Own | None]()
        for name, other in zip(names, there.get(place, ()), strict=False):  # one of them may be deeper
            pairs = zip(model.factors[name], base.factors[other], strict=True)
            looked_up, applied = (_ratio(*pair) for pair in pairs)
            own.add(None if looked_up is None or applied is None else Own(looked_up, applied))
        if own - {Own()}:
            found |= dict.fromkeys(names, own.pop() if len(own) == 1 else None)
    return found


def _ratio(now: frozenset[float], before: frozenset[float]) -> float | None:
    """One for factors that are the same; None where no single one stands against another."""
    ratios = [a / b for a, b in zip(sorted(now), sorted(before), strict=False)]
    if len(now) == len(before) and all(abs(math.log(ratio)) < _SAME for ratio in ratios):
        return 1.0
    return ratios[0] if len(now) == len(before) == 1 else None


# ---- networks that tell the multipliers of their forward pass ------------------------------------------------------


@runtime_checkable
class TellsMultipliers(Protocol):
    """A network that tells the constants of its forward pass, so that a plan need not measure them: its trainable
    weights begin as N(0, 1)."""

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


def told_by(model: nn.Module) -> TellsMultipliers | None:
    """The network that tells its multipliers, where a model is one, also inside of wrappers; None for others.
    ValueError where such a network is only a part of the model."""
    told = {name: module for name, module in modules(model).items() if isinstance(module, TellsMultipliers)}
    if told and "" not in told:
        raise InputError(f"A network of the paper must be the whole model; got one inside, as {next(iter(told))!r}.")
    return cast("TellsMultipliers | None", told.get(""))


def defaults_of(model: nn.Module) -> tuple[str, str]:
    """The rule and the optimizer of a model where nobody chose others."""
    net = told_by(model)
    return (RULE, OPTIMIZER) if net is None else (net.default_rule, net.default_optimizer)


def told_entries(model: nn.Module, net: TellsMultipliers, m: float) -> dict[str, Entry]:
    """The entries of a network that is ``m`` times as wide as its base: N(0, 1) weights behind multipliers."""
    entries, roles, told, source = {}, net.named_roles(), net.forward_multipliers(), type(net).__name__
    for name, t in tensors(model).items():
        role = roles.get(name, "vector")
        grown = Ratios(1.0 if role == "input" else m, 1.0 if role == "readout" else m)
        why, multiplier = (source, told[name]) if name in roles else ("fixed", Power())
        fan_in, begins = math.prod(t.shape[1:]), Start(1.0, None)
        entries[name] = Entry(t.shape, role, why, fan_in, grown, begins, multiplier, layout_of(t))
    return entries


def _told_parts(model: nn.Module, net: TellsMultipliers, rule: str, given: GivenBase) -> Parts:
    """The parts of the plan of a network that knows its roles, its size and its multipliers."""
    net.check_rule(rule)
    width, depth = given.width, given.depth
    small = given.instance(depth=depth or net.depth) if given.make_model is not None else given.model
    if small is not None:
        base = told_by(small)
        if base is None:
            raise InputError(f"The base is a {type(small).__name__}, the model one of the paper. Build both alike.")
        if (base.depth, base.width) == (width, depth or net.depth) and base.width != base.depth:
            raise InputError(
                f"make_model{width, depth} has width {base.width} and depth {base.depth}: its arguments must be "
                "(width, depth), in this order."
            )
        width, depth = base.width, base.depth if given.make_model is None or depth is not None else None
    if width is None and depth is None:
        width = depth = 1
    m = net.width / (width or net.width)
    return Parts(told_entries(model, net, m), m, net.depth / (depth or net.depth), net.block_names())
