"""Training a stack of networks: every network sees the same batches, and one that diverges ends alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nfd.core.names import Optimizer
from nfd.nets.stack import Stack
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import stacked_optimizer_named


def train_stack(
    stack: Stack,
    groups: Sequence[dict[str, Any]],
    optimizer: Optimizer,
    momentum: float,
    inputs: Tensor,
    labels: Tensor,
    order: Tensor,
    before: Callable[[int], None] = lambda step: None,
) -> Tensor:
    """Step once per row of ``order``; returns the losses ``[R, steps]`` before each update, not finite once diverged.

    Args:
        stack: R networks. groups: its ``param_groups``. optimizer: ``"sgd"`` or ``"adam"``; momentum: of SGD.
        inputs, labels: ``[N, d]`` and ``[N]``. order: ``[steps, b]``, the samples of each step.
        before: called with the number of each step before it is made.
    """
    stacked_optimizer_named(optimizer, groups, momentum=momentum)
    losses = []
    for step, samples in enumerate(order):
        before(step)
        loss = cross_entropy(stack(inputs[samples]), labels[samples])
        losses.append(loss.detach())
        loss.sum().backward()  # type: ignore[no-untyped-call]
        if not bool(loss.isfinite().any()):
            losses += [loss.detach()] * (len(order) - len(losses))
            break
    return torch.stack(losses, dim=1)
