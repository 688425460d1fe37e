"""The losses of the project, by name, with the checks of their targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nfd.core.errors import MOST, InputError, InputTypeError, check_choice, check_finite

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch of the cross-entropy of ``[..., b, C]`` logits and ``[b]`` class ids, in nats."""
    chosen = outputs.gather(-1, targets.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return (outputs.logsumexp(-1) - chosen).mean(-1)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """``mean (f - y)^2 / 2`` for ``[..., b, 1]`` outputs and ``[b]`` real targets, so that dLoss/df = f - y."""
    return 0.5 * (outputs.squeeze(-1) - targets).square().mean(-1)


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "mse": mse}


def loss_named(name: str) -> Loss:
    """The loss called ``name``; ValueError with the nearest name when there is none."""
    return LOSSES[check_choice("loss", name, LOSSES)]


def outputs_needed(name: str, targets: Tensor, classes: int | None) -> int:
    """How many outputs C this loss needs for these targets; checks that the targets fit it."""
    loss_named(name)
    if name == "mse":
        if not targets.dtype.is_floating_point:
            raise InputTypeError(f"targets for loss='mse' must be floats; got {targets.dtype}. Call targets.float().")
        if classes not in (None, 1):
            raise InputError(f"classes must be None or 1 for loss='mse' (one real output); got {classes}.")
        check_finite("targets", targets)
        return 1
    if targets.dtype.is_floating_point or targets.dtype == torch.bool:
        raise InputTypeError(
            f"targets for loss='cross-entropy' must be integer class ids; got {targets.dtype}. "
            "Call targets.long(), or use loss='mse' for real targets."
        )
    if classes is not None and classes < 2:
        raise InputError(f"classes must be at least 2 for loss='cross-entropy'; got {classes}.")
    low, high = int(targets.min()), int(targets.max())
    needed = high + 1 if classes is None else classes
    if low < 0 or high >= needed:
        raise InputError(f"targets must be class ids in 0..{needed - 1}; got values from {low} to {high}.")
    if needed > MOST:
        raise InputError(f"targets must be class ids in 0..C-1 with C at most {MOST}; got {high}.")
    return max(needed, 2)
