"""Parameter groups of a plan: the settings of every tensor, and tensors with equal settings together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nfd.core.errors import InputError
from nfd.scaling.kept_rates import SCALE
from nfd.scaling.laws import law_of
from nfd.scaling.names import matches
from nfd.scaling.run_laws import Quantity

if TYPE_CHECKING:
    from nfd.scaling.held import Held
    from nfd.scaling.plan import Plan

Groups = list[dict[str, Any]]

VECTORS = "vectors"  # a word of no_decay


class Tuned(NamedTuple):
    """What was tuned at the base; ``adamw_lr`` is the rate of tensors that Muon leaves to AdamW.

    ``betas`` are Adam's; None where the optimizer's own stay.
    """

    lr: float
    weight_decay: float
    eps: float
    adamw_lr: float
    betas: tuple[float, float] | None


def groups_of(plan: Plan, named: Mapping[str, Held], tuned: Tuned, no_decay: Sequence[str]) -> Groups:
    """Groups of the parameters that train; ValueError when a pattern of ``no_decay`` fits no tensor."""
    spare_vectors, no_decay = VECTORS in no_decay, [pattern for pattern in no_decay if pattern != VECTORS]
    if unfit := [pattern for pattern in no_decay if not any(matches(name, pattern) for name in named)]:
        raise InputError(f"no_decay must name tensors of the model; no match for {', '.join(map(repr, unfit))}.")
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, held in named.items():
        if not held.is_trained:
            continue
        if not held.is_stored:
            plan.law_for(name).check_deferred(name)
        is_spared_vector = spare_vectors and plan.entries[name].is_vector
        spared = is_spared_vector or any(matches(name, pattern) for pattern in no_decay)
        settings = _settings(plan, name, tuned._replace(weight_decay=0.0) if spared else tuned)
        group = groups.setdefault(tuple(settings.items()), {"params": [], **settings, "roles": []})
        group["params"].extend(held.parameters)
        if plan.entries[name].role not in group["roles"]:
            group["roles"].append(plan.entries[name].role)
    return list(groups.values())


def _settings(plan: Plan, name: str, tuned: Tuned) -> dict[str, Any]:
    law, own = law_of(plan.optimizer), plan.law_for(name)
    lr = tuned.lr if own is law else tuned.adamw_lr
    decay = tuned.weight_decay * plan.weight_decay(name)
    if plan.decay == "independent" and tuned.weight_decay:
        if not lr:
            raise InputError("decay='independent' divides by the rate; got lr=0. Pass lr > 0.")
        decay = decay / lr
    scale, eps, betas = plan.rate(name), tuned.eps * plan.epsilon(name), tuned.betas
    if plan.run is not None:
        scale *= plan.run.factor(Quantity.RATE, own.name)
        decay *= plan.run.factor(Quantity.DECAY, own.name)
        eps *= plan.run.factor(Quantity.EPSILON, own.name)
        betas = betas and plan.run.betas(betas, own.name)
    settings: dict[str, Any] = {"lr": lr * scale, "weight_decay": decay, SCALE: scale}
    if own.epsilon:
        settings["eps"] = eps
        settings |= {} if betas is None else {"betas": betas}
    if law.rest is not None:
        settings["use_muon"] = own is law
    return settings
