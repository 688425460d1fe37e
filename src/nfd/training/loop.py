"""Training: one pass over batches, one row per step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nfd.training.losses import Loss


@dataclass(frozen=True)
class Row:
    """What one step saw, before its update: the outputs [b, C] and the batch-mean loss."""

    step: int
    loss: float
    outputs: Tensor = field(repr=False)

    @property
    def diverged(self) -> bool:
        """Whether the loss left the range of floating-point numbers; training stops at such a row."""
        return not math.isfinite(self.loss)


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    rates: Sequence[float] | None = None,
) -> Iterator[Row]:
    """Step once per batch, then yield what the step saw; end at the first row that diverged.

    Args:
        net: any module from ``[b, d]`` to ``[b, C]``.
        optimizer: its optimizer.
        batches: pairs (inputs, targets).
        loss: from (outputs, targets) to a scalar, a batch mean.
        rates: factors on every group's learning rate, one per step, undone at the end; None to leave rates alone.
    """
    base = [group["lr"] for group in optimizer.param_groups]
    try:
        for step, (inputs, targets) in enumerate(batches):
            if rates is not None:
                for group, lr in zip(optimizer.param_groups, base, strict=True):
                    group["lr"] = lr * rates[step]
            optimizer.zero_grad()
            outputs = net(inputs)
            value = loss(outputs, targets)
            row = Row(step, float(value.detach()), outputs.detach())
            if not row.diverged:
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            yield row
            if row.diverged:
                return
    finally:
        if rates is not None:
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr
