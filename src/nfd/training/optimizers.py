"""What steps a network, or a stack of networks, by the law of its optimizer (``nfd.scaling.optimizers``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nfd.scaling.optimizers import check_optimizer, law_of

if TYPE_CHECKING:
    import torch

    from nfd.nets.stacked_optimizers import StackedOptimizer

Groups = Sequence[dict[str, Any]]


_OF_A_STACK = {
    "sgd": frozenset({"momentum", "nesterov"}),
    "adam": frozenset({"betas"}),
    "adamw": frozenset({"betas"}),
}  # the options of PyTorch's optimizers that those of a stack have
_OF_GROUPS = frozenset({"lr", "eps", "weight_decay"})  # a number for every parameter and network
_WITHOUT_EFFECT = frozenset({"foreach", "capturable", "fused", "differentiable"})  # but rounding


def optimizer_named(name: str, groups: Groups, *, momentum: float = 0.0) -> torch.optim.Optimizer:
    """The optimizer of one network, dense or deferred.

    Args:
        name: of a registered law.
        groups: parameters with their ``lr`` and, where it applies, ``eps`` and ``weight_decay``, which is 0 where a
            group has none, also where PyTorch's default is another.
        momentum: where the optimizer has one.

    Raises:
        ValueError: for another name, and for what the optimizer cannot do exactly.
    """
    from nfd.scaling.optimizers import optimizer_of
    from nfd.wide.optimizers import is_factored

    groups = [{"weight_decay": 0.0} | group for group in groups]
    check_optimizer(name, momentum=momentum, weights="deferred" if is_factored(groups) else "dense")
    return optimizer_of(law_of(name), groups, {"momentum": momentum} if momentum else {})


def stacked_optimizer_named(name: str, groups: Groups, *, momentum: float = 0.0, **more: Any) -> StackedOptimizer:
    """The optimizer of networks that are trained together, which steps during backward; otherwise as above.

    ``more``: as ``stacked_options`` has them.
    """
    from nfd.nets.stacked_optimizers import STACKED, StackedParts
    from nfd.scaling.optimizers import by_law

    check_optimizer(name, momentum=momentum)
    options = more | ({"momentum": momentum} if momentum else {})
    parts = [STACKED[law.name](own, **options) for law, own in by_law(law_of(name), groups)]
    return parts[0] if len(parts) == 1 else StackedParts(parts)


def stacked_options(name: str, made: torch.optim.Optimizer) -> dict[str, Any] | None:
    """The options by which ``stacked_optimizer_named`` steps a stack as an optimizer of PyTorch steps one network.

    None where it cannot: of another class than the law's, with step hooks, with options that differ between groups or
    that a stack does not have.
    """
    import torch

    options = _OF_A_STACK.get(name)
    if options is None or type(made) is not getattr(torch.optim, law_of(name).classes[0]):
        return None
    if made._optimizer_step_pre_hooks or made._optimizer_step_post_hooks or "step" in vars(made):
        return None
    usual = type(made)([torch.zeros(1)]).defaults  # type: ignore[call-arg]
    first, *others = made.param_groups
    fixed = usual.keys() - options - _OF_GROUPS - _WITHOUT_EFFECT
    known = all(group[key] == usual[key] for group in made.param_groups for key in fixed)
    alike = all(group[key] == first[key] for group in others for key in options)
    return {key: first[key] for key in options} if known and alike else None
