"""The laws of the library's optimizers, and what makes each: from parameter groups to what steps a network or a stack.

A new optimizer is one more law here, or one that a user gives to ``nfd.register_optimizer``. PyTorch is imported when
an optimizer is made, so that settings can be checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nfd.core.errors import InputError
from nfd.scaling.laws import WHOLE_MATRIX, OptimizerLaw, any_shape, check_optimizer, law_of, register_optimizer

if TYPE_CHECKING:
    import torch

    from nfd.nets.stacked_optimizers import StackedOptimizer

Groups = Sequence[dict[str, Any]]


def _sgd(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    from nfd.nets.sgd import SGD

    return SGD(groups, **options)


def _stacked_sgd(groups: Groups, **options: Any) -> StackedOptimizer:
    from nfd.nets.stacked_optimizers import StackedSGD

    return StackedSGD(groups, **options)


def _stacked_adam(groups: Groups, **options: Any) -> StackedOptimizer:
    from nfd.nets.stacked_optimizers import StackedAdam

    return StackedAdam(groups, **options)


def _stacked_adamw(groups: Groups, **options: Any) -> StackedOptimizer:
    from nfd.nets.stacked_optimizers import StackedAdamW

    return StackedAdamW(groups, **options)


def _stacked_muon(groups: Groups, **options: Any) -> StackedOptimizer:
    from nfd.nets.stacked_optimizers import StackedMuon

    return StackedMuon(groups, **options)


def _adam(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    import torch

    return torch.optim.Adam(groups, **options)


def _adamw(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(groups, **options)


def _muon(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    import torch

    from nfd.nets.factored_optimizer import is_factored
    from nfd.nets.muon import Muon

    return Muon(groups, **options) if is_factored(groups) else torch.optim.Muon(groups, **options)


def _muon_of_adamws_size(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    return _muon(groups, adjust_lr_fn="match_rms_adamw", **options)


def _stacked_muon_of_adamws_size(groups: Groups, **options: Any) -> StackedOptimizer:
    return _stacked_muon(groups, adjust_lr_fn="match_rms_adamw", **options)


def _shampoo(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    from nfd.nets.shampoo import Shampoo

    return Shampoo(groups, **options)


_OF_ADAM = frozenset({"betas", "amsgrad", "maximize", "foreach", "capturable", "fused"})
_OF_SGD = frozenset({"momentum", "dampening", "nesterov", "maximize", "foreach", "fused"})

_OF_A_STACK = {
    "sgd": frozenset({"momentum", "nesterov"}),
    "adam": frozenset({"betas"}),
    "adamw": frozenset({"betas"}),
}  # the options of PyTorch's optimizers that those of a stack have
_OF_GROUPS = frozenset({"lr", "eps", "weight_decay"})  # a number for every parameter and network
_WITHOUT_EFFECT = frozenset({"foreach", "capturable", "fused", "differentiable"})  # but rounding

_MUON = OptimizerLaw(
    "muon",
    _muon,
    unit=WHOLE_MATRIX,
    shape_norm=lambda rows, columns: math.sqrt(max(1.0, rows / columns)),  # PyTorch's "original", and Keller Jordan's
    classes=("Muon", "SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam"),
    states=1,
    rest="adamw",
    equivariant=True,
    options=frozenset({"momentum", "nesterov", "ns_coefficients", "ns_steps"}),
    make_stacked=_stacked_muon,
)
_NOT_MADE = replace(_MUON, make=None, make_stacked=None)
TABLE = (
    OptimizerLaw(
        "sgd",
        _sgd,
        degree=1.0,
        classes=("SGD",),
        decoupled=False,
        equivariant=True,
        options=_OF_SGD,
        check_rate=0.1,
        make_stacked=_stacked_sgd,
    ),
    OptimizerLaw(
        "adam",
        _adam,
        classes=("Adam",),
        epsilon=True,
        decoupled=False,
        states=2,
        options=_OF_ADAM,
        make_stacked=_stacked_adam,
    ),
    OptimizerLaw(
        "adamw",
        _adamw,
        classes=("AdamW",),
        epsilon=True,
        states=2,
        options=_OF_ADAM,
        make_stacked=_stacked_adamw,
    ),
    OptimizerLaw("lion", classes=("Lion",), states=1, options=frozenset({"betas"})),
    _MUON,
    replace(
        _MUON,
        name="muon-match-rms-adamw",
        make=_muon_of_adamws_size,
        make_stacked=_stacked_muon_of_adamws_size,
        shape_norm=lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # PyTorch's, and Moonlight's
    ),
    replace(_NOT_MADE, name="muon-spectral", shape_norm=lambda rows, columns: math.sqrt(rows / columns)),
    replace(_NOT_MADE, name="muon-unit", shape_norm=any_shape),
    OptimizerLaw(
        "shampoo",
        _shampoo,
        unit=WHOLE_MATRIX,
        states=3,
        rest="adamw",
        equivariant=True,
        two_sided=True,
        options=frozenset({"momentum"}),
    ),
)
for law in TABLE:
    register_optimizer(law)


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
    from nfd.nets.factored_optimizer import is_factored
    from nfd.scaling.combined import optimizer_of

    groups = [{"weight_decay": 0.0} | group for group in groups]
    check_optimizer(name, momentum=momentum, weights="deferred" if is_factored(groups) else "dense")
    return optimizer_of(law_of(name), groups, {"momentum": momentum} if momentum else {})


def stacked_optimizer_named(name: str, groups: Groups, *, momentum: float = 0.0, **more: Any) -> StackedOptimizer:
    """The optimizer of networks that are trained together, which steps during backward; otherwise as above.

    ``more``: as ``stacked_options`` has them.
    """
    from nfd.nets.stacked_optimizers import StackedParts
    from nfd.scaling.combined import by_law

    check_optimizer(name, momentum=momentum)
    options = more | ({"momentum": momentum} if momentum else {})
    parts = [_make_stacked(law)(own, **options) for law, own in by_law(law_of(name), groups)]
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


def _make_stacked(law: OptimizerLaw) -> Callable[..., StackedOptimizer]:
    if law.make_stacked is None:
        raise InputError(f"optimizer={law.name!r} has no form for a stack of networks. Train them one by one.")
    return law.make_stacked
