"""``nfd.plan``: from a model, and the small one that was tuned, to a ``Plan``.

Five steps lead there. Each takes the values that the earlier ones returned and returns its own:

1. ``Pair``              the model beside its base, which is built where the user gave its size;
2. ``compare``           what the model is made of (``Anatomy``), and which dimensions grow;
3. ``initial_entries``   how the base initialises every tensor, and how much each has grown;
4. ``forward_factors``   the factors of the model's own forward pass, over those of the base;
5. ``fold``              these factors and the rule's, folded into the entries where they can be.

A network of the paper knows its plan (``PlansItself``) and needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from nfd.core.checks import check_choice, check_patterns
from nfd.core.errors import InputError, InputTypeError
from nfd.core.modes import gradients, plain
from nfd.core.names import RuleName
from nfd.scaling.base import (
    Constructor,
    MakeModel,
    check_constructor,
    checked_size,
    depth_of,
    shapes_of,
)
from nfd.scaling.comparison import Pair, Request, compare
from nfd.scaling.find_law import law_of
from nfd.scaling.folding import fold, unscaled
from nfd.scaling.forward_factors import forward_factors
from nfd.scaling.initial_entries import initial_entries
from nfd.scaling.model import check_plannable, check_written
from nfd.scaling.optimizers import OptimizerLaw
from nfd.scaling.plan import Plan
from nfd.scaling.plans_itself import PlansItself, defaults_of, told_by
from nfd.scaling.rules import ROLES, rule_named
from nfd.scaling.samples import check_sample, mapped
from nfd.scaling.training_notes import training_notes

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw

Size = tuple[int | None, int | None]


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
    """Plan a large model from a small, tuned one.

    A plan holds the initial scale, learning rate, decay and epsilon of every tensor. The small
    model is the base. Tune its learning rate, and pass it to the plan of the large one, which
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
            None in the pair: as in the model.
        make_model: ``make_model(width, depth)``; it shows which dimensions grow.
        rule: ``"complete-p"``, the default, ``"standard"``, ``"mup"``, ``"depth-mup"`` (the
            rule of ``nfd.ResNet``) or ``"depth-mup-inner"`` (Eq. 8).
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
    check_written("model", model)
    if isinstance(base, nn.Module):
        check_written("base", base)
    default_rule, default_optimizer = defaults_of(model)
    rule_name = default_rule if rule is None else rule
    chosen_rule = rule_named(rule_name)
    optimizer_law = law_of(default_optimizer if optimizer is None else optimizer)
    check_plannable(model, scaled=chosen_rule.scales_width)
    if chosen_rule.regime == "kernel":
        raise InputError(
            f"Rule {rule_name!r} is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule."
        )
    size = checked_size(base, make_model)
    blocks = check_patterns("blocks", blocks)
    roles = checked_roles(roles)
    if sample is not None:
        check_sample("sample", sample)

    tuned = base if isinstance(base, nn.Module) else None
    request = Request(
        rule_name=cast(RuleName, rule_name),
        optimizer=optimizer_law,
        blocks=blocks,
        roles=roles,
        sample=mapped(sample, lambda part: plain(part) if isinstance(part, Tensor) else part),
    )
    network = told_by(model)
    if network is None:
        pair = _pair_of(model, tuned, make_model, size, request)
        planned = _plan_of_pair(pair)
    elif blocks or roles:
        raise InputError(
            f"blocks and roles are for other models than the paper's; got {blocks=}, {roles=}."
        )
    else:
        planned = _plan_of_network(network, tuned, make_model, size, request)

    notes = training_notes(model, planned, optimizer, optimizer_law)
    planned = replace(planned, notes=(*planned.notes, *notes))
    if batch is None and tokens is None and law is None:
        return planned
    return planned.for_run(batch, tokens, law=law)


def checked_roles(roles: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the roles that a caller gave, none where None.

    Raises:
        TypeError: where they are not a dict.
        ValueError: for a name that is not a role.
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


def _plan_of_network(
    network: PlansItself,
    base: nn.Module | None,
    make_model: MakeModel | None,
    size: Size,
    request: Request,
) -> Plan:
    """Ask a network of the paper for its plan; ``size`` is the base's where the user gave it."""
    width, depth = size
    if make_model is not None and width is not None:
        base = Constructor(make_model, width, depth or network.depth).base(None)
    if base is not None:
        small = told_by(base)
        if small is None:
            raise InputError(
                f"The base is a {type(base).__name__}, the model one of the paper. Build both "
                "alike."
            )
        width = small.width
        depth = small.depth
    elif width is None and depth is None:
        # Learning rates are then the paper's.
        width = 1
        depth = 1
    return network.own_plan(request.rule_name, request.optimizer.name, width, depth)


def _pair_of(
    model: nn.Module,
    base: nn.Module | None,
    make_model: MakeModel | None,
    size: Size,
    request: Request,
) -> Pair:
    """Build the base where the user gave its size.

    Raises:
        ValueError: where the rule needs a base and there is none.
    """
    if base is None and make_model is None and rule_named(request.rule_name).scales_width:
        raise InputError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, the tuned "
            "model itself, or its (width, depth) with make_model=."
        )
    width, depth = size
    if make_model is None or width is None:
        return Pair(model, base, None, request)
    if not depth:
        depth = depth_of(model, make_model, width, request.blocks)
    constructor = Constructor(make_model, width, depth)
    base = constructor.base(request.blocks)
    if shapes_of(base) == shapes_of(model):
        # Either the model is as large as its base, or the constructor does not use the width.
        check_constructor(make_model, [width, 2 * width], [depth])
    return Pair(model, base, constructor, request)


def _plan_of_pair(pair: Pair) -> Plan:
    """Take steps 2 to 5, and make the plan of what they return."""
    comparison = compare(pair)
    if comparison.base is None or not pair.rule.scales_width:
        draft = unscaled(pair, comparison)
    else:
        initial = initial_entries(pair, comparison, comparison.base)
        factors = forward_factors(pair, comparison, initial)
        draft = fold(pair, comparison, initial, factors)
    return Plan(
        rule=pair.request.rule_name,
        optimizer=pair.request.optimizer.name,
        width=draft.width,
        depth=draft.depth,
        entries=draft.entries,
        blocks=tuple(comparison.structure.blocks),
        multipliers=draft.multipliers,
        notes=draft.notes,
        base=pair.base_size,
        logits=draft.logits,
    )
