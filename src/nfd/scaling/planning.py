"""``nfd.plan``: from a model and the small one that was tuned to a ``Plan``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from nfd.core.checks import check_choice, check_patterns
from nfd.core.errors import InputError, InputTypeError
from nfd.core.modes import gradients, plain
from nfd.core.names import OPTIMIZER, RULE, RuleName
from nfd.core.words import quoted
from nfd.scaling.base import (
    Base,
    Constructor,
    MakeModel,
    checked_size,
    depth_of,
    depths_of,
    grown_fans,
    start_of,
)
from nfd.scaling.constants import Factors, Logits, Own
from nfd.scaling.entries import Entry, Ratios, Start, layout_of
from nfd.scaling.model import (
    Blocks,
    Where,
    alike,
    block_of,
    blocks_of,
    check_plannable,
    container_of,
    in_any_block,
    modules,
    parametrized,
    places_of,
    repeated,
    tensors,
)
from nfd.scaling.optimizers import OptimizerLaw, law_of, notes_on
from nfd.scaling.plan import Plan
from nfd.scaling.roles import Anatomy, Scaling, anatomy, is_unbuilt, trace
from nfd.scaling.rules import ROLES, SPECTRAL, Power, Rule, rule_named
from nfd.scaling.samples import check_sample, mapped, on_device

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw

_CLIP = (
    "Folding moves gradient norms between tensors: a global clip acts on other tensors than in the "
    "base (Hugging Face's Trainer clips at 1.0). Clip by tensor, or raise max_grad_norm."
)
_HEADS = (
    "Attention heads are assumed to keep their size. If they grow with width, attention logits "
    "need 1/d instead of 1/sqrt(d)."
)
_GROWN_HEADS = (
    "Attention heads grow with width: the logits of {} are {:.3g} times as large as those of the "
    "base once queries fit keys. Divide them by the size of a head in place of its root "
    "(scale=c/d; c the root of the base's size)."
)
# A sound model of this shape exists, so that it is said and not refused.
_SWAPPED = (
    "The base is {} wide and {} deep, so that the model is x{:.4g} as wide and x{:.4g} as deep. "
    "base is (width, depth): if they are swapped, pass base={}."
)
_OWN_DEPTH = (
    "This rule does not scale with depth, and tensors begin as in the base. If your constructor "
    "lets a start depend on depth, as GPT-2 does by 1/sqrt(2L), pass make_model=, and that is kept."
)
_UNSCALED = (
    "No tensor scales some branches: wrap the modules that end them in nfd.Scaled, factors in "
    "plan.multipliers."
)
_UNSEEN = (
    "Whether the model's own forward pass has factors that depend on its size, as Gemma's, is not "
    "known: "
)


@gradients()
def plan(
    model: nn.Module,
    base: nn.Module | tuple[int | None, int | None] | None = None,
    *,
    make_model: MakeModel | None = None,
    rule: str | None = None,
    optimizer: str
    | OptimizerLaw
    | torch.optim.Optimizer
    | Callable[..., torch.optim.Optimizer]
    | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sample: Any = None,
    batch: Sequence[float] | None = None,
    tokens: Sequence[float] | None = None,
    law: RateLaw | None = None,
) -> Plan:
    """Plan a large model from a small, tuned one: initial scale, rate, decay and epsilon of every
    tensor.

    The small model is the base. Tune its rate, and pass it to the plan of the large one, which
    scales it for every tensor by the rule. Factors are folded into initial weights and rates, with
    few exceptions (``Plan.multipliers``).

    Example::

        model = make_model(256, 8)
        plan = nfd.plan(model, base=(64, 2), make_model=make_model, sample=x)
        print(plan)
        plan.apply_(model, seed=0)
        optimizer = plan.make_optimizer(model, lr=3e-3, weight_decay=0.1)

    Args:
        model: any module; the plan does not change it. On the meta device it needs a base.
        base: the tuned model itself, or its ``(width, depth)``, the arguments of ``make_model``;
            None in the pair: as that of the model.
        make_model: ``make_model(width, depth)``; it shows which dimensions grow.
        rule: ``"complete-p"``, the default, ``"standard"``, ``"mup"``, ``"depth-mup"`` (that of
            ``nfd.ResNet``) or ``"depth-mup-inner"`` (Eq. 8).
        optimizer: ``"adamw"``, the default, ``"sgd"``, ``"adam"``, ``"lion"``, ``"muon"`` (for
            matrices in blocks, AdamW for the rest), ``"muon-match-rms-adamw"``,
            ``"muon-spectral"``, ``"muon-unit"``, a law (``nfd.register_optimizer``), or an
            optimizer object, its class, or a function that makes it from groups. What is not known
            is measured: one like it steps matrices of its own (``nfd.testing.check_law``).
        blocks: pattern of the residual blocks, such as ``"transformer.h.*"``; None finds them.
        roles: pattern to role, for tensors that you know better: ``"input"``, ``"embedding"``,
            ``"tied"``, ``"vector"``, ``"hidden"``, ``"outer"``, ``"inner"``, ``"skip"``,
            ``"readout"``.
        sample: an input to trace the model with: a tensor, a tuple of arguments or a dict.
        batch, tokens, law: where the run has another batch or length than the small one: as in
            ``Plan.for_run``, which takes more.

    Returns:
        A ``Plan``: ``print`` shows it, ``apply_`` initialises the model, ``make_optimizer`` makes
        its optimizer.

    Raises:
        ValueError: naming every tensor that could not be decided; also if a depth rule meets a
            model without a pre-norm residual stream.

    Source: sections 2 and 4.2, Eq. 8; Yang et al., Tensor Programs V and VI; Dey et al.
    (CompleteP).
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    usual_rule, usual_optimizer = defaults_of(model)
    rule = usual_rule if rule is None else rule
    chosen = rule_named(rule)
    trains = law_of(usual_optimizer if optimizer is None else optimizer)
    check_plannable(model, scaled=chosen.scales_width)
    if chosen.regime == "kernel":
        raise InputError(
            f"Rule {rule!r} is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule."
        )
    width, depth = checked_size(base, make_model)
    blocks = check_patterns("blocks", blocks)
    roles = checked_roles(roles)
    if sample is not None:
        check_sample("sample", sample)
    sample = mapped(sample, lambda part: plain(part) if isinstance(part, Tensor) else part)
    tuned = base if isinstance(base, nn.Module) else None
    constructor: Constructor | None = None
    if (net := told_by(model)) is not None:
        if blocks or roles:
            raise InputError(
                f"blocks and roles are for other models than the paper's; got {blocks=}, {roles=}."
            )
        if make_model is not None and width is not None:
            tuned = Constructor(make_model, width, depth or net.depth).base(None)
        if tuned is not None:
            if (small := told_by(tuned)) is None:
                raise InputError(
                    f"The base is a {type(tuned).__name__}, the model one of the paper. Build both "
                    "alike."
                )
            width = small.width
            depth = small.depth
        elif width is None and depth is None:
            width = depth = 1  # the rate is the paper's
        made = net.own_plan(rule, trains.name, width, depth)
    elif tuned is None and make_model is None and chosen.scales_width:
        raise InputError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, the tuned "
            "model itself, or its (width, depth) with make_model=."
        )
    else:
        if make_model is not None and width is not None:
            constructor = Constructor(
                make_model, width, depth or depth_of(model, make_model, width, blocks)
            )
            tuned = constructor.base(blocks)
        started = Plan(cast(RuleName, rule), trains.name, 1.0, 1.0, {}, (), {}, ())
        made = _plan_of_any(started, model, tuned, constructor, blocks, roles, sample)
    notes = [*made.notes, *([_CLIP] if chosen.scales_width else [])]
    if constructor is not None and constructor.depth > constructor.width:
        swapped = (constructor.depth, constructor.width)
        notes.append(
            _SWAPPED.format(constructor.width, constructor.depth, made.width, made.depth, swapped)
        )
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        notes.append(
            "Tensors that do not train keep the start that they have, and have no rate: "
            f"{quoted(frozen)}."
        )
    notes += [*trains.notes, *notes_on(optimizer, trains)]
    notes += _rounded_away(made, model)
    if trains.rest is not None:
        matrices = [n for n, e in made.entries.items() if e.role in SPECTRAL and not e.is_vector]
        if left := dict.fromkeys(
            in_any_block(n, made.blocks) for n in matrices if not made.is_muon(n)
        ):
            kinds = "Convolutions, stacks, and matrices with a fixed side or outside of blocks"
            notes.append(f"{kinds} go to {trains.rest}: {', '.join(left)}.")
    made = replace(made, notes=tuple(notes))
    return (
        made
        if batch is None and tokens is None and law is None
        else made.for_run(batch, tokens, law=law)
    )


# of a last place, over a number, between 1 and 2 of them
_HALVES = {torch.bfloat16: 2**-8.5, torch.float16: 2**-11.5}
_MEDIAN = 0.6745  # of the size of a normal number, in standard deviations
_SHOWN_RATE = 1e-3


def _rounded_away(made: Plan, model: nn.Module) -> list[str]:
    """What to say of weights in 16 bits, of which a step changes none that it moves by less than
    half a last place.

    Adam moves every entry by its rate, which falls as 1/n, where the entries of a matrix fall as
    n^-1/2: wide matrices stand still first. The width is that at which half of the entries of the
    first one do.
    """
    tensors_of = {name: t for name, t in tensors(model).items() if t.parameter.dtype in _HALVES}
    trained = [name for name, t in tensors_of.items() if t.parameter.requires_grad]
    if not trained:
        return []
    kind = str(tensors_of[trained[0]].parameter.dtype).removeprefix("torch.")
    begins = (
        f"Weights that train are in {kind}, and what a step moves by less than half a last place "
        "is rounded away"
    )
    ends = "Keep weights in float32, and compute in 16 bits under autocast."
    widest = dict[str, float]()
    for name in trained:
        entry = made.entries[name]
        std = made.std(name)
        if (
            entry.role in SPECTRAL
            and not entry.is_vector
            and std > 0
            and made.law_for(name).degree == 0
        ):
            smallest = _HALVES[tensors_of[name].parameter.dtype] * _MEDIAN * std
            if not made.is_muon(name):
                widest[name] = made.width * (_SHOWN_RATE * made.rate(name) / smallest) ** 2
    if not widest:
        return [f"{begins}: small rates, which fall with width, change nothing. {ends}"]
    name = min(widest, key=lambda n: widest[n])
    width = f"{widest[name]:.3g} times the width of the base"
    if made.base is not None:
        width = f"width {widest[name] * made.base[0]:.0f}"
    where = in_any_block(name, made.blocks)
    return [
        f"{begins}. At a learning rate of {_SHOWN_RATE:g} at the base these are more than half of "
        f"the entries of {where!r} from {width} on; that width goes with the square of the rate. "
        f"{ends}"
    ]


def checked_roles(roles: Mapping[str, str] | None) -> Mapping[str, str]:
    """The roles that a caller gave, none where None; TypeError where they are no dict, ValueError
    for no role.
    """
    if not isinstance(roles, Mapping | None):
        raise InputTypeError(
            "roles must be a dict from pattern to role, such as {'head.*': 'readout'}; got "
            f"{roles!r}."
        )
    return {
        str(pattern): check_choice(f"roles[{pattern!r}]", role, ROLES)
        for pattern, role in (roles or {}).items()
    }


def _plan_of_any(
    started: Plan,
    model: nn.Module,
    base: nn.Module | None,
    constructor: Constructor | None,
    blocks: Where,
    roles: Mapping[str, str],
    sample: Any,
) -> Plan:
    """The plan of a module that tells nothing of itself."""
    rule = rule_named(started.rule)
    if blocks is None and base is not None:  # two instances of which one has more blocks show them
        blocks = repeated(model, base) or None
        if blocks is None and constructor is not None and (rule.scales_depth or repeated(base)):
            blocks = repeated(base, constructor.at(deeper=2)) or None
    tuned = None if base is None else Base.of(base, blocks)
    grows = dict[str, tuple[bool, ...]]()
    if tuned is not None:
        here = Base.of(model, blocks)
        grows = tuned.differing(here)
        # the model is as wide as its base
        if constructor is not None and not any(map(any, grows.values())):
            grows = Base.of(constructor.at(wider=2), blocks).differing(here)
    structure = anatomy(
        model, base, started.rule, blocks=blocks, roles=roles, sample=sample, scaling=grows
    )
    traced = structure.traced
    size = None if constructor is None else (constructor.width, constructor.depth)
    started = replace(started, blocks=tuple(structure.blocks), base=size)
    # the model's own start is that of the rule
    if base is None or tuned is None or not rule.scales_width:
        entries = entries_of(structure, grows, None, {"": 1.0})
        entries |= {
            n: replace(entries[n], start=replace(entries[n].start, kept=True))
            for n in parametrized(model)
        }
        return replace(started, entries=entries)
    if constructor is not None:
        tuned = tuned.beside(constructor.at(seed=1))
    if rule.scales_depth:
        _check_numbers(started, structure)
    depths = depths_of(structure.blocks, tuned.blocks)
    notes = list[str]()
    if rule.scales_depth and (uses := _uses_over_base(structure, base, blocks, sample)):
        _check_shared(started, uses)
        depths = {
            block: depth * uses.get(block, max(uses.values())) for block, depth in depths.items()
        }
        notes.append(
            "Blocks that the forward pass applies again and again count as often as it does: "
            f"{max(uses.values()):.4g} times as often as in the base."
        )
    depth = depths[""]
    entries = entries_of(structure, grows, tuned, depths)
    m = max(
        (e.ratios.fan_out for e in entries.values() if e.role != "readout"),
        default=1.0,
        key=lambda r: abs(r - 1),
    )
    compared: nn.Module | None = base
    # what depends on depth is to stay: it is compared at one depth
    if depth != 1 and not rule.scales_depth:
        compared = None if constructor is None else constructor.at(deeper=depth)
        if compared is None:
            notes.append(_OWN_DEPTH)
        elif deep := _starts_by_depth(structure, tuned, Base.of(compared, blocks)):
            entries |= {name: replace(entries[name], start=start) for name, start in deep.items()}
            notes.append(
                f"The constructor begins {quoted([*deep])} by depth; they begin as in a model of "
                "this depth."
            )
    made = replace(started, width=m, depth=depth, entries=entries)
    found, unseen, logits = _factors_over_base(
        made, structure, model, compared, constructor, blocks, sample
    )
    notes += [_UNSEEN + unseen] if unseen else []
    entries, of_own = with_own_factors(entries, found, structure.blocks)
    entries, factors, of_head = with_head(structure, entries, found)
    entries = with_own_constants(structure, entries, rule)
    notes += [*of_own, *of_head]
    if kept := dict.fromkeys(
        in_any_block(n, structure.blocks) for n, e in entries.items() if e.start.kept
    ):
        notes.append(
            f"Kept as the constructor makes them, and not drawn anew: {quoted([*kept], 4)}."
        )
    if rule.scales_depth:
        own = {
            n: depths[block_of(f"{n}.", structure.blocks) or ""] for n in sorted(traced.unscaled)
        }
        branches = {
            name: rule.std("outer").at(1.0, 1.0, ratio) for name, ratio in own.items() if ratio != 1
        }
        factors |= branches
        notes += [_UNSCALED] if branches else []
    if logits:
        notes.append(
            _GROWN_HEADS.format(
                quoted([*dict.fromkeys(in_any_block(n, structure.blocks) for n in logits)]),
                max(logits.values()),
            )
        )
    elif traced.attends and logits is None:
        notes.append(_HEADS)
    return replace(
        made, entries=entries, multipliers=factors, notes=tuple(notes), logits=logits or {}
    )


def _uses_over_base(
    structure: Anatomy, base: nn.Module, blocks: Where, sample: Any
) -> dict[str, float]:
    """How many times as often as in the base every block acts, by its name; none where all act as
    often.
    """
    shown = structure.traced.tensors
    if all(shown[name].uses <= 1 for name in shown if block_of(name, structure.blocks) is not None):
        return {}
    place = next((p.device for p in base.parameters()), None)
    there = trace(base, on_device(sample, place)).tensors
    of_base = blocks_of(base, blocks)
    places = places_of(there, of_base)
    uses: dict[str, float] = {}
    for name, seen in shown.items():
        block = block_of(name, structure.blocks)
        other = alike(name, structure.blocks, places)
        if block is not None and other is not None and there[other].uses > 0 and seen.uses > 0:
            uses[block] = max(uses.get(block, 0.0), seen.uses / there[other].uses)
    return uses if any(ratio != 1 for ratio in uses.values()) else {}


def _check_shared(started: Plan, uses: Mapping[str, float]) -> None:
    """Raise ValueError for a rule, or an optimizer, under which blocks that are applied again have
    no limit of depth.

    One matrix at every step of depth adds up coherently, as L and not as its root; and its gradient
    is a sum over its uses, which Adam's updates do not depend on, and those of SGD do.
    """
    block = next(iter(uses))
    rule = rule_named(started.rule)
    law = law_of(started.optimizer)
    if rule.exponent != 1:
        raise InputError(
            f"Rule {started.rule!r} is for blocks with weights of their own; {block!r} is applied "
            "again and again, so that its branches add up. Use rule='complete-p', or 'mup', which "
            "keeps depth out."
        )
    if law.degree != 0:
        raise InputError(
            f"{block!r} is applied again and again, and its gradient adds up over its uses, which "
            f"rates of {started.optimizer!r} do not make up for. Use optimizer='adamw', or "
            "rule='mup', which keeps depth out."
        )


def _check_numbers(started: Plan, structure: Anatomy) -> None:
    """Raise ValueError where one learned number acts on the stream at every block, and the
    optimizer's updates follow its gradient, which is a sum over all of them."""
    if law_of(started.optimizer).degree == 0:
        return
    for name, shown in structure.traced.tensors.items():
        t = structure.tensors[name]
        is_number = structure.roles[name][0] == "skip" or (
            shown.uses > 1 and structure.roles[name][0] == "outer"
        )
        if is_number and t.parameter.numel() == 1 and block_of(name, structure.blocks) is None:
            raise InputError(
                f"{name!r} multiplies the stream at every block, and its gradient adds up over "
                f"these, which rates of {started.optimizer!r} do not make up for. Use "
                "optimizer='adamw', or a number for each block."
            )


def entries_of(
    structure: Anatomy, scaling: Scaling, base: Base | None, depths: Mapping[str, float]
) -> dict[str, Entry]:
    """How every tensor begins, and its ratios to its counterpart in the base.

    Args:
        scaling: which dimensions grow with width; a matrix with a side that does not, such as a
            router, has no layout.
        depths: as ``depths_of`` finds them.
    """
    entries = {}
    blocks = structure.blocks
    begun = Base(structure.tensors, blocks) if base is None else base
    one_sided = {
        in_any_block(n, blocks) for n, grows in scaling.items() if any(grows) and not all(grows)
    }
    for name, t in structure.tensors.items():
        role, why = structure.roles[name]
        fans = (1.0, 1.0) if base is None else grown_fans(t, base.counterpart(t, blocks), role)
        grown = Ratios(*fans, depths.get(block_of(name, blocks) or "", depths[""]))
        matrix = None if in_any_block(name, blocks) in one_sided else layout_of(t)
        start = begun.start(t, blocks)
        if role == "skip" and start.constant is None:
            # Pairs of numbers, such as 1 for the stream and 0 for what is added to it, are not
            # drawn.
            start = replace(start, kept=True)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, start, matrix=matrix)
    return entries


_CHANCE = 6.0  # standard errors
_LEAST = math.log(1.05)


def _starts_by_depth(structure: Anatomy, base: Base, as_deep: Base) -> dict[str, Start]:
    """How tensors begin that a constructor begins otherwise, beyond chance, in an instance as wide
    as the base and as deep as the model."""
    found = {}
    for name, t in structure.tensors.items():
        shallow, deep = (instance.start(t, structure.blocks) for instance in (base, as_deep))
        if shallow.kept or deep.kept:
            continue
        differs = shallow.constant != deep.constant
        if shallow.constant is None and deep.constant is None:
            numbers = base.counterpart(t, structure.blocks).parameter.numel()
            error = numbers**-0.5  # of the logarithm of the ratio of two standard deviations
            differs = abs(math.log(deep.std / shallow.std)) > max(_CHANCE * error, _LEAST)
        if differs:
            found[name] = deep
    return found


# ---- constant factors of the model's own forward pass, over those of the base
#
# Gemma multiplies its embeddings by the root of the width, T5 divides what its tied head reads by
# it, and other models carry a parametrisation of their own. With a factor s, the effective weights
# are ``s W``. The rules are for effective weights, so a plan divides starts and rates by s over
# that of the base: the model then trains as one that has the factor of the base at every size. A
# factor that is the same at every size changes nothing.

_SAME = 1e-4  # of the logarithm of a ratio: the same factor, rounded
_DIGITS = 6  # of a power: what float32 holds of the factors of two models


class Seen(NamedTuple):
    """The factors of a model, by tensor, its blocks, and its attention logits."""

    factors: Mapping[str, Factors]
    blocks: Blocks
    logits: Mapping[str, Logits]


def _factors_over_base(
    made: Plan,
    structure: Anatomy,
    model: nn.Module,
    compared: nn.Module | None,
    constructor: Constructor | None,
    blocks: Where,
    sample: Any,
) -> tuple[dict[str, Own | None], str, dict[str, float] | None]:
    """The model's own factors over those of its base, by tensor, and why they are not known, if
    they are not; and by how much its attention logits grow, None where that is not seen.

    ``compared``: the base, at the depth of the model under a rule that leaves factors of depth as
    they are; None where nothing builds that. Of a model on the meta device, in which nothing can be
    traced, factors follow from the powers that two more models of the constructor show, twice as
    wide, and twice as deep.
    """

    def look(instance: nn.Module) -> Seen | None:
        place = next((p.device for p in instance.parameters()), None)
        try:
            traced = trace(instance, on_device(sample, place))
        except InputTypeError:  # it does not take the sample
            return None
        return (
            Seen(traced.factors, blocks_of(instance, blocks), traced.logits)
            if traced.tensors
            else None
        )

    entries = made.entries
    if made.width == 1 and all(entry.ratios.depth == 1 for entry in entries.values()):
        return {}, "", {}
    if not structure.traced.tensors:
        return {}, "pass sample=, an input to trace.", None
    if not is_unbuilt(model):
        if compared is None or (small := look(compared)) is None:
            return (
                {},
                "the base has another depth, or does not take the sample. Pass make_model=.",
                None,
            )
        here = Seen(structure.traced.factors, structure.blocks, structure.traced.logits)
        return own_factors(here, small), "", grown_logits(here, small)
    unknown = (
        "the model is on the meta device. Pass make_model= that takes the sample, or build the "
        "model."
    )
    if constructor is None or (small := look(constructor.at())) is None:
        return {}, unknown, None
    found = dict[str, Own | None]()
    depths = (
        {n: e.ratios.depth for n, e in entries.items()}
        if rule_named(made.rule).scales_depth
        else {}
    )
    for grown, larger in (
        (dict.fromkeys(entries, made.width), {"wider": 2}),
        (depths, {"deeper": 2}),
    ):
        if all(ratio == 1 for ratio in grown.values()):
            continue
        if (seen := look(constructor.at(**larger))) is None:
            return {}, unknown, None
        doubled = own_factors(seen, small)
        places = places_of(seen.factors, seen.blocks)
        for name in structure.tensors:
            other = alike(name, structure.blocks, places)
            if other in doubled:
                own = found.get(name, Own())
                of_two = doubled[other]
                powers = [grown[name] ** round(math.log2(more), _DIGITS) for more in of_two or ()]
                found[name] = (
                    own and of_two and Own(own.looked_up * powers[0], own.applied * powers[1])
                )
    return found, "", None


def grown_logits(model: Seen, base: Seen) -> dict[str, float] | None:
    """By how much the attention logits of a model are larger than those of its base, by the matrix
    of their queries.
    """
    places = places_of(base.logits, base.blocks)
    grown = dict[str, float]()
    for name, here in model.logits.items():
        if here.is_query and (other := alike(name, model.blocks, places)) is not None:
            there = base.logits[other]
            ratio = here.size * here.outside / (there.size * there.outside)
            ratio *= here.both / there.both if here.size != there.size else 1.0
            if abs(math.log(ratio)) > _SAME:
                grown[name] = ratio
    return grown if model.logits and places else None


def own_factors(model: Seen, base: Seen) -> dict[str, Own | None]:
    """What the factors of a model are over those of its base, by tensor, for those that differ.

    Blocks are compared where both have them, and others of their kind have what these have. None:
    where uses, or blocks, have different ones.
    """
    found = dict[str, Own | None]()
    there = places_of(base.factors, base.blocks)
    for place, names in places_of(model.factors, model.blocks).items():
        own = set[Own | None]()
        # one of them may be deeper
        for name, other in zip(names, there.get(place, ()), strict=False):
            pairs = zip(model.factors[name], base.factors[other], strict=True)
            looked_up, applied = (_ratio(*pair) for pair in pairs)
            here = model.logits.get(name)
            at_base = base.logits.get(other)
            # what scales the logits of growing heads is no factor
            if here and at_base and here.size != at_base.size:
                applied = 1.0 if applied is None else applied * at_base.inside / here.inside
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


def with_own_factors(
    entries: Mapping[str, Entry], own: Mapping[str, Own | None], blocks: Blocks
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that know the model's own factors; and what to say of them."""
    made = dict(entries)
    met = dict[str, None]()
    left = dict[str, None]()
    for name, factors in own.items():
        if factors is None:
            left[in_any_block(name, blocks)] = None
            continue
        # with_head sees the other of a tied head
        first = factors.looked_up != 1 or entries[name].role == "tied"
        made[name] = replace(
            entries[name], own_factor=factors.looked_up if first else factors.applied
        )
        met[in_any_block(name, blocks)] = None
    notes = []
    if met:
        notes.append(
            f"The model's own forward pass multiplies {quoted([*met], 8)} by factors that change "
            "with size: starts and rates make up for that."
        )
    if left:
        notes.append(
            f"The forward pass multiplies {quoted([*left])} by factors that change with size in "
            "more than one way; the plan does not make up for them. Give each one factor, and pass "
            "make_model=."
        )
    return made, notes


def with_head(
    structure: Anatomy, entries: Mapping[str, Entry], own: Mapping[str, Own | None]
) -> tuple[dict[str, Entry], dict[str, float], list[str]]:
    """The factor 1/m of an embedding that is the head as well, for which no start can stand: as a
    forward factor by module name, or in gain and bias of the norm that alone feeds the head; and
    what to say of it."""
    made = dict(entries)
    factors = dict[str, float]()
    notes = list[str]()
    for name, head in entries.items():
        # what the model multiplies the head by is in it already
        applied = (own.get(name) or Own()).applied
        factor = head.own_factor / (head.ratios.fan_out * applied)
        if head.role != "tied" or math.isclose(factor, 1, rel_tol=1e-4):
            continue
        norm = shown.norm if (shown := structure.traced.tensors.get(name)) else frozenset()
        if norm and all(
            entries[n].ratios == head.ratios
            and entries[n].start.constant is not None
            and structure.tensors[n].parameter.requires_grad
            for n in norm
        ):
            more = applied / head.own_factor
            made |= {
                n: replace(entries[n], multiplier=Power(fan_out=1.0), own_factor=more) for n in norm
            }
            notes.append(
                f"{name} is the head as well: {' and '.join(sorted(norm))} take its factor "
                f"{factor:.4g}."
            )
            continue
        heads = [container_of(n) for n in structure.tensors[name].readers]
        if not heads:
            raise InputError(
                f"{name!r} is the head as well, and nothing can take the head's factor "
                f"{factor:.4g}: no affine norm feeds it alone, and no module applies it. Make the "
                "head an nn.Linear whose weight is the embedding's, divide its output by the width "
                "in forward, or give the two ends weights of their own."
            )
        factors |= dict.fromkeys(heads, factor)
        notes.append(
            f"{name} is the head as well, and no affine norm is seen to feed it alone (sample= may "
            f"show one): plan.apply_ wraps {', '.join(heads)} in nfd.Scaled, which renames its "
            "entries of the state_dict; the factor is in plan.multipliers."
        )
    return made, factors, notes


def with_own_constants(
    structure: Anatomy, entries: Mapping[str, Entry], chosen: Rule
) -> dict[str, Entry]:
    """Constants as the model has them where the rule does not scale them: its constructor may let
    them depend on width, depth or place."""
    made = dict(entries)
    for name, t in structure.tensors.items():
        entry = entries[name]
        power = chosen.std(entries[name].role) * entries[name].multiplier ** -1
        scales = (power.of_vector() if t.is_vector else power) != Power() or entry.own_factor != 1
        if (
            entry.start.constant is not None
            and not scales
            and not t.parameter.is_meta
            and t.parameter.requires_grad
        ):
            begins = start_of(t.drawn())
            made[name] = entry if begins.constant is None else replace(entry, start=begins)
    return made


# ---- networks that plan themselves


@runtime_checkable
class PlansItself(Protocol):
    """A network that knows its roles and the constants of its forward pass, so that nobody needs to
    find them.
    """

    width: int
    depth: int
    default_rule: str
    default_optimizer: str

    def own_plan(self, rule: str, optimizer: str, width: int | None, depth: int | None) -> Plan:
        """Its plan from a base of this width and depth, its own where None."""


def told_by(model: nn.Module) -> PlansItself | None:
    """The network that plans itself, where a model is one, also inside of wrappers; None for
    others. ValueError where such a network is only a part of the model."""
    told = {
        name: module for name, module in modules(model).items() if isinstance(module, PlansItself)
    }
    if told and "" not in told:
        raise InputError(
            "A network of the paper must be the whole model; got one inside, as "
            f"{next(iter(told))!r}."
        )
    return cast("PlansItself | None", told.get(""))


def defaults_of(model: nn.Module) -> tuple[str, str]:
    """The rule and the optimizer of a model where nobody chose others."""
    net = told_by(model)
    return (RULE, OPTIMIZER) if net is None else (net.default_rule, net.default_optimizer)
