"""From a plan to groups of parameters with settings of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from nfd.core.checks import check_patterns, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.scaling.base_group import BaseGroup, mark_of
from nfd.scaling.find_law import law_of
from nfd.scaling.held import Held, held_as_planned
from nfd.scaling.model import PATTERNS, matches, wider_pattern
from nfd.scaling.optimizers import BETAS, EPS, WEIGHT_DECAY, Hyperparameter, OptimizerLaw, Scale
from nfd.scaling.rules import ADAM_EPSILON, MAX_RATE, rule_named

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

VECTORS = "vectors"  # a word of no_decay


def groups_of(
    plan: Plan,
    model: nn.Module,
    lr: float,
    chosen: Mapping[str, Any],
    no_decay: str | Sequence[str],
    adamw_lr: float | None,
) -> list[BaseGroup]:
    """Group the parameters that are stepped alike: ``Plan.base_groups``."""
    law = law_of(plan.optimizer)
    rest_lr = law.check_rest_rate(adamw_lr)
    lr = check_real("lr", lr, least=0.0, below=MAX_RATE)
    settings = _checked_settings(plan, law, chosen)
    held = held_as_planned(model, plan.entries)
    spared = _spared(plan, held, no_decay)

    groups: dict[tuple[Any, ...], BaseGroup] = {}
    for name, tensor in held.items():
        if not tensor.is_trained:
            continue
        law_of_tensor = plan.law_for(name)
        if tensor.std is not None:
            law_of_tensor.check_unstored(repr(name))
        is_first = law.rest is None or law_of_tensor.name == law.name
        tuned = lr if rest_lr is None or is_first else rest_lr
        rate = plan.rate(name) * run_factor(plan, "rate", law_of_tensor)
        scale = partial(scale_of, plan, name, is_spared=name in spared)
        scales = tuple(scale(setting) for setting in law_of_tensor.settings)
        # Rules of users, such as no decay for tensors of one dimension, are for whole groups.
        is_vector = len(plan.entries[name].shape) < 2
        key = (tuned, rate, law_of_tensor.name, scales, is_vector)
        if key not in groups:
            settings_of_group = {
                setting: value
                for setting, value in settings.items()
                if law_of_tensor.setting(setting) is not None
            }
            groups[key] = BaseGroup(
                parameters=[],
                roles=[],
                lr=tuned,
                lr_scale=rate,
                law=law_of_tensor,
                scale=scale,
                chosen=settings_of_group,
                mark=mark_of(law, is_first),
            )
        group = groups[key]
        group.parameters.extend(tensor.parameters)
        role = plan.entries[name].role
        if role not in group.roles:
            group.roles.append(role)
    return list(groups.values())


def _spared(plan: Plan, held: Mapping[str, Held], no_decay: str | Sequence[str]) -> set[str]:
    """Find the tensors without weight decay; raise ValueError for a pattern that fits none."""
    given = check_patterns("no_decay", no_decay) or []
    patterns = [given] if isinstance(given, str) else given
    spared = set()
    unfit = []
    for pattern in patterns:
        if pattern == VECTORS:
            spared |= {name for name in held if len(plan.entries[name].shape) < 2}
            continue
        names = {name for name in held if matches(name, pattern)}
        if not names:
            unfit.append(pattern)
        spared |= names
    if unfit:
        hints = "".join(wider_pattern(pattern, held) for pattern in unfit)
        raise InputError(
            f"no_decay must name tensors of the model; no match for {', '.join(map(repr, unfit))}."
            f"{hints} {PATTERNS} no_decay={VECTORS!r} is all biases and gains."
        )
    return spared


def _checked_settings(plan: Plan, law: OptimizerLaw, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that the caller chose; betas become tuples."""
    settings = {name: value for name, value in chosen.items() if value is not None}
    if EPS.name in settings:
        eps = check_real("eps", settings["eps"], above=0.0, below=MAX_RATE)
        is_taken = any(plan.law_for(name).setting("eps") for name in plan.entries)
        if not is_taken and eps != ADAM_EPSILON:
            raise InputError(
                f"eps is Adam's; got eps={eps:g} for optimizer={plan.optimizer!r}. Leave it out."
            )
        settings["eps"] = eps
    if WEIGHT_DECAY.name in settings:
        decay = check_real("weight_decay", settings["weight_decay"], least=0.0, below=MAX_RATE)
        law.check_decay(decay)
        settings["weight_decay"] = decay
    if BETAS.name in settings:
        betas = settings["betas"]
        if not isinstance(betas, tuple | list) or len(betas) < 2:
            raise InputTypeError(
                f"betas must be two numbers from 0 to below 1, or more; got {betas!r}."
            )
        settings["betas"] = tuple(betas)
    return settings


def scale_of(plan: Plan, name: str, setting: Hyperparameter, is_spared: bool = False) -> Scale:
    """Say how a setting of the group of a tensor follows from its value at the base.

    Args:
        is_spared: whether the tensor has no weight decay.
    """
    law = plan.law_for(name)
    follows = setting.follows
    factor = run_factor(plan, setting.quantity, law)
    if rule_named(plan.rule).scales_width:
        factor *= plan.factor(name, setting.size)
    if follows == "epsilon":
        return Scale(factor * plan.epsilon(name) * run_factor(plan, "epsilon", law))
    if setting.name == WEIGHT_DECAY.name and is_spared:
        return Scale(0.0)
    if follows == "weight decay":
        return Scale(factor * plan.weight_decay(name) * run_factor(plan, "weight decay", law))
    if follows is None:
        return Scale(factor)
    averages = follows if isinstance(follows, tuple) else (follows,)
    half_lives = []
    for average in averages:
        quantity = f"half-life of {average}, in steps"
        half_lives.append(1.0 if average is None else run_factor(plan, quantity, law))
    is_kept = all(half_life == 1 for half_life in half_lives)
    return Scale(1.0, () if is_kept else tuple(half_lives))


def run_factor(plan: Plan, quantity: str, law: OptimizerLaw) -> float:
    """The factor of batch and length for a quantity."""
    return 1.0 if plan.run is None else plan.run.factor(quantity, law.name)
