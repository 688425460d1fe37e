"""``nfd.plan``: from a model and its base to a ``Plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, check_choice, check_patterns
from nfd.core.machine import gradients, plain
from nfd.core.names import Decay, RuleName
from nfd.scaling.entries import (
    Base,
    MakeModel,
    Parts,
    anatomy_by_base,
    depths_of,
    entries_of_base,
    entries_of_ratio,
    is_unbuilt,
    multipliers,
    note_on_kept,
    notes_on_matrices,
    stream_width,
    widest,
    with_layouts,
    with_own_constants,
    with_own_factors,
    with_tied_heads,
)
from nfd.scaling.forward_multipliers import check_nothing_said, defaults_of, told_by, told_parts
from nfd.scaling.given_base import GivenBase
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.measured_factors import foreseen_factors, measured_factors
from nfd.scaling.model import (
    Repeated,
    Where,
    block_of,
    blocks_of,
    check_input,
    check_not_complex,
    check_not_parametrized,
    check_stored,
    mapped,
    parametrized,
    repeated,
    tensors,
)
from nfd.scaling.own_depth import with_own_depth
from nfd.scaling.own_factors import Own
from nfd.scaling.plan import DECAYS, Plan
from nfd.scaling.roles import settled_roles
from nfd.scaling.rules import ROLES, Rule, rule_named
from nfd.scaling.self_describing import head_sizes

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
_UNSCALED = (
    "No tensor scales some branches (gains stored as 1 + g, standardised weights): wrap the modules that end them in "
    "nfd.Scaled, factors in plan.multipliers."
)
_SHOWN = 4  # frozen tensors, by name
_LAW = (
    "No base model was given, so the plan assumes: initial weights follow fan_in^-1/2 and do not depend on depth, "
    "every dimension inside blocks grows with width, heads keep their size, and the forward pass has no factors that "
    "depend on size. Pass base= or make_model= to read this from the base itself."
)
_UNSEEN = (
    "Whether the model's own forward pass has factors that depend on its size, as Gemma's on embeddings, is not known: "
)


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
        base: the tuned model itself, or its ``(width, depth)``: arguments of ``make_model``, or without one the size of
            the residual stream and the number of blocks. None in the pair: as that of the model.
        make_model: ``make_model(width, depth)``; it shows which dimensions grow.
        rule: ``"complete-p"``, the default, ``"standard"``, ``"mup"``, ``"depth-mup"`` (that of ``nfd.ResNet``) or
            ``"depth-mup-inner"`` (Eq. 8).
        optimizer: ``"adamw"``, the default, ``"sgd"``, ``"adam"``, ``"lion"``, ``"muon"`` (for matrices in blocks,
            AdamW for the rest), ``"muon-match-rms-adamw"``, ``"muon-spectral"``, ``"muon-unit"``, a law
            (``nfd.register_optimizer``), or an optimizer object, whose law is read from it.
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
    decay = check_choice("decay", decay, DECAYS)
    if chosen.regime == "kernel":
        raise InputError(f"Rule {rule!r} is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule.")
    given = GivenBase.checked(base, make_model)
    blocks, roles = check_patterns("blocks", blocks), checked_roles(roles)
    if sample is not None:
        check_input(sample)
    sample = mapped(sample, lambda part: plain(part) if isinstance(part, Tensor) else part)
    net = told_by(model)
    if net is not None:
        check_nothing_said(blocks, roles)
        parts = told_parts(model, net, rule, given)
    elif given.is_open and chosen.scales_width:
        raise InputError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, it or its (width, depth), "
            "with make_model= where you have a constructor."
        )
    else:
        given = given.completed(model, blocks)
        parts = _parts_of_any(model, rule, given, blocks, roles, sample)
    notes = [*parts.notes, *_of_frozen(model), *([_CLIP] if chosen.scales_width else [])]
    if law.rest is not None:
        notes += notes_on_matrices(parts.entries, parts.blocks, law.rest)
    return Plan(
        cast(RuleName, rule),
        law.name,
        cast(Decay, decay),
        parts.width,
        parts.depth,
        parts.entries,
        tuple(parts.blocks),
        parts.multipliers,
        tuple(notes),
        None,
        given.size if net is None else None,
    )


def _of_frozen(model: nn.Module) -> list[str]:
    """A note on the tensors that do not train; none where all do."""
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if not frozen:
        return []
    shown = ", ".join(frozen[:_SHOWN]) + (f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else "")
    return [f"Tensors that do not train keep the start that they have, and have no rate: {shown}."]


def _parts_of_any(
    model: nn.Module,
    rule: str,
    given: GivenBase,
    blocks: Where,
    roles: Mapping[str, str],
    sample: Any,
) -> Parts:
    """The parts of the plan of a module."""
    chosen, base = rule_named(rule), given.built(blocks)
    if blocks is None and base is not None:
        blocks = _shown_blocks(model, base, given, chosen)
    grows = None if base is None else given.growing(model, base, blocks)
    structure = anatomy_by_base(model, base, blocks=blocks, roles=roles, sample=sample, scaling=grows)
    settled = settled_roles(structure, chosen, rule, model)
    if not chosen.scales_width:  # the model's own start is that of the rule
        entries = with_layouts(entries_of_ratio(structure, settled, 1.0), structure, grows)
        entries |= {n: replace(entries[n], start=replace(entries[n].start, kept=True)) for n in parametrized(model)}
        return Parts(entries, 1.0, 1.0, [*structure.blocks])
    notes, found = [], dict[str, Own | None]()
    if base is not None:
        tuned = given.begun(base, blocks)
        entries = entries_of_base(structure, settled, tuned)
        m, depth = widest(entries), len(structure.blocks) / len(tuned.blocks) if tuned.blocks else 1.0
        as_deep: nn.Module | None = base
        if depth != 1 and not chosen.scales_depth:
            as_deep = given.as_deep(depth)
            if as_deep is None:
                notes.append(_OWN_DEPTH)
            else:
                deep = Base(tensors(as_deep), blocks_of(as_deep, blocks))
                entries, notes = with_own_depth(entries, structure, tuned, deep)
        unseen = ""
        if m == depth == 1 and all(e.depth is None for e in entries.values()):
            pass  # it is as large as the base
        elif is_unbuilt(model):
            deeper = {n: e.depth or depth for n, e in entries.items()} if chosen.scales_depth else {}
            ratios = dict.fromkeys(entries, m), deeper
            found, unseen = foreseen_factors(structure, given, ratios, tuned.blocks, blocks, sample)
        else:
            found, unseen = measured_factors(structure, base, as_deep, blocks, sample)
        entries, of_own = with_own_factors(entries, found, structure.blocks)
        notes += [*of_own, *([_UNSEEN + unseen] if unseen else [])]
    else:
        m = 1.0 if given.width is None else stream_width(structure, settled) / given.width
        depth = len(structure.blocks) / given.depth if given.depth and structure.blocks else 1.0
        entries = entries_of_ratio(structure, settled, m)
        notes = [] if m == 1 and depth == 1 else [_LAW]
    entries = with_layouts(entries, structure, grows)
    factors, of_factors = multipliers(model, structure, entries, found, base)
    entries, of_heads = with_tied_heads(structure, entries, found)
    entries, of_constants = with_own_constants(structure, entries, chosen)
    depths = {} if base is None else depths_of(structure.blocks, tuned.blocks)
    own = {name: depths.get(block_of(f"{name}.", structure.blocks) or "", depth) for name in structure.unscaled}
    branches = {name: chosen.std("outer").at(1.0, 1.0, deeper) for name, deeper in own.items() if deeper != 1}
    if chosen.scales_depth and branches:
        factors |= branches
        notes.append(_UNSCALED)
    knows_heads = base is not None and bool(head_sizes(model))
    notes += [*of_heads, *of_factors, *of_constants, *note_on_kept(entries, structure.blocks)]
    notes += [*([] if knows_heads or not structure.attends else [_HEADS])]
    return Parts(entries, m, depth, [*structure.blocks], factors, notes)


def _shown_blocks(model: nn.Module, base: nn.Module, given: GivenBase, chosen: Rule) -> Repeated | None:
    """The blocks, from two instances of which one has more; None where there are none such."""
    shown = repeated(model, base)
    if shown is None and given.make_model is not None and given.depth is not None and chosen.scales_depth:
        shown = repeated(base, given.instance(depth=2 * given.depth))
    return shown


def checked_roles(roles: Mapping[str, str] | None) -> Mapping[str, str]:
    """The roles that a caller gave, none where None; TypeError where they are no dict, ValueError for no role."""
    if roles is None:
        return {}
    if not isinstance(roles, Mapping) or not all(isinstance(pattern, str) for pattern in roles):
        raise InputTypeError(
            f"roles must be a dict from pattern to role, such as {{'head.*': 'readout'}}; got {roles!r}."
        )
    for pattern, role in roles.items():
        check_choice(f"roles[{pattern!r}]", role, ROLES)
    return roles
