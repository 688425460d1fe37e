"""Whether an optimizer still has the ratios of learning rates that a plan gave it.

Schedulers that multiply rates keep the ratios. What sets one rate for all groups, such as
``OneCycleLR(max_lr=0.1)`` or a loop with ``group["lr"] = lr``, or adds to rates, such as
``eta_min``, does not. Nor does a scheduler of timm, which multiplies every rate by ``lr_scale``
itself, once more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch

from nfd.core.errors import InputError
from nfd.scaling.base_group import OF_MATRICES, SCALE

ALIKE = 1e-4  # relative; schedulers multiply rates anew at every step
# What schedulers of PyTorch write into groups: OneCycleLR its peak, all of them the first rate
PEAK = "max_lr"
FIRST = "initial_lr"


def adds_to_rates(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a scheduler began at the plan's ratios and left them, as by ``eta_min``."""
    if any(PEAK in group or FIRST not in group or SCALE not in group for group in groups):
        return False
    return _has_ratios(groups, FIRST) and not _has_ratios(groups, "lr")


def remedy_of(groups: Sequence[Mapping[str, Any]]) -> str:
    """Say how to keep the ratios, by what is seen to change the rates of these groups."""
    if any(PEAK in group for group in groups):
        return 'Pass max_lr=[group["lr"] for group in optimizer.param_groups] to OneCycleLR.'
    if _has_ratios(groups, "lr", power=2):
        return (
            "The scheduler multiplies by lr_scale, as those of timm do, and the rates have it "
            'already. Before you make the scheduler, set group["lr"] /= group["lr_scale"] in every '
            "group."
        )
    if adds_to_rates(groups):
        return "Let the scheduler multiply rates alone: leave eta_min at 0."
    return 'Where you set rates, set group["lr"] = lr * group["lr_scale"].'


def _has_ratios(groups: Sequence[Mapping[str, Any]], key: str, power: int = 1) -> bool:
    """Whether the rates under a key have a power of the plan's ratios; a rate of zero has none."""
    for is_of_matrices in (True, False):
        rates = [
            float(group[key]) / float(group[SCALE]) ** power
            for group in groups
            if group.get(OF_MATRICES, True) == is_of_matrices and float(group[key])
        ]
        if rates and not math.isclose(min(rates), max(rates), rel_tol=ALIKE):
            return False
    return True


def check_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless an optimizer has the groups of a plan, with rates in the plan's ratios.

    Call it after the first step of a scheduler, or before the training in another library's
    trainer.

    Raises:
        ValueError: naming two groups and their rates, or if the groups are not from a plan.
    """
    groups = optimizer.param_groups
    if any(SCALE not in group for group in groups):
        raise InputError(
            f"The {type(optimizer).__name__} does not have the groups of a plan, so that every "
            "tensor has one rate. Make it by plan.make_optimizer(model, lr=...), or of "
            "plan.param_groups(model, lr=...)."
        )
    # Matrices under Muon have a tuned rate of their own, beside that of all other tensors.
    for is_of_matrices in (True, False):
        alike = [
            place
            for place, group in enumerate(groups)
            if group.get(OF_MATRICES, True) == is_of_matrices
        ]
        # A rate of zero, as before a warm-up, has no ratio.
        stepped = [place for place in alike if float(groups[place]["lr"])]
        for place in stepped[1:]:
            _check_ratio(groups, stepped[0], place)


def _check_ratio(groups: list[dict[str, Any]], first: int, second: int) -> None:
    """Raise unless the rates of two groups have the ratio that the plan gave them."""
    ratio = float(groups[second]["lr"]) / float(groups[first]["lr"])
    planned = float(groups[second][SCALE]) / float(groups[first][SCALE])
    if not math.isclose(ratio, planned, rel_tol=ALIKE):
        raise InputError(
            f"The rates are no longer the plan's: groups {first} and {second} of the optimizer "
            f"have rates in a ratio of {ratio:.4g}; the plan's is {planned:.4g}. "
            f"{remedy_of(groups)}"
        )


def warn_of_lost_ratios(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer warn once, at the first step whose rates are not in the plan's ratios."""
    # Wrappers that are not optimizers have no hooks.
    if optimizer in _warning or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return
    _warning.add(optimizer)

    def look(stepped: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        try:
            check_rates(stepped)
        except InputError as lost:
            hook.remove()
            warnings.warn(str(lost), RuntimeWarning, stacklevel=3)

    hook = optimizer.register_step_pre_hook(look)


_warning: WeakSet[torch.optim.Optimizer] = WeakSet()
