"""Whether an optimizer still has the ratios of rates that a plan gave it.

A group of a plan has ``lr_scale``, its rate over the tuned one. Schedulers that multiply rates keep the ratios; what
sets one rate for all groups (``OneCycleLR(max_lr=0.1)``, a loop with ``group["lr"] = lr``) or adds to them
(``eta_min``) does not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from nfd.core.errors import InputError, InputTypeError

SCALE = "lr_scale"
ALIKE = 1e-4  # relative; schedulers multiply rates anew at every step

REMEDY = (
    'Set group["lr"] = lr * group["lr_scale"] in your own loop, pass '
    'max_lr=[group["lr"] for group in optimizer.param_groups] to OneCycleLR, and leave eta_min at 0; LambdaLR and '
    "other schedulers that multiply keep the ratios."
)


class LostRatio(NamedTuple):
    """Two groups whose rates have another ratio than the plan's: indices, rates, and the plan's scales."""

    groups: tuple[int, int]
    rates: tuple[float, float]
    scales: tuple[float, float]

    def __str__(self) -> str:
        (a, b), (rate_a, rate_b), (scale_a, scale_b) = self
        return (
            f"groups {a} and {b} of the optimizer have rates {rate_a:.4g} and {rate_b:.4g}, in a ratio of "
            f"{rate_b / rate_a:.4g}; the plan's is {scale_b / scale_a:.4g}. {REMEDY}"
        )


def lost_ratio(groups: Sequence[Mapping[str, Any]]) -> LostRatio | None:
    """The first two groups whose ratio of rates is no longer the plan's; None where all are.

    Muon and the AdamW beside it have tuned rates of their own. Rates of zero, as before a warm-up, tell nothing.
    """
    for of_muon in (True, False):
        own = [k for k, group in enumerate(groups) if group.get("use_muon", True) == of_muon and float(group["lr"])]
        for k in own[1:]:
            pair = own[0], k
            rates, scales = (tuple(float(groups[i][key]) for i in pair) for key in ("lr", SCALE))
            if not math.isclose(rates[1] * scales[0], rates[0] * scales[1], rel_tol=ALIKE):
                return LostRatio(pair, (rates[0], rates[1]), (scales[0], scales[1]))
    return None


def check_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless an optimizer has the groups of a plan, with rates in the plan's ratios.

    Raises:
        TypeError: if it is not an optimizer of PyTorch.
        ValueError: naming two groups and their rates, or that the groups are not a plan's.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputTypeError(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
    if any(SCALE not in group for group in optimizer.param_groups):
        raise InputError(
            f"The {type(optimizer).__name__} does not have the groups of a plan, so that every tensor has one rate. "
            "Make it by plan.make_optimizer(model, lr=...), or of plan.param_groups(model, lr=...)."
        )
    if lost := lost_ratio(optimizer.param_groups):
        raise InputError(f"The rates are no longer the plan's: {lost}")


_warning: WeakSet[torch.optim.Optimizer] = WeakSet()


def warn_of_lost_ratios(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer warn, once, at the first step at which its rates are no longer in the plan's ratios."""
    if optimizer in _warning:
        return
    _warning.add(optimizer)
    remove: list[Callable[[], None]] = []

    def look(stepped: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        if lost := lost_ratio(stepped.param_groups):
            remove.pop()()
            warnings.warn(f"The rates are no longer the plan's: {lost}", RuntimeWarning, stacklevel=3)

    remove.append(optimizer.register_step_pre_hook(look).remove)
