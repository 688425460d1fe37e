"""The one training loop, of one module or of a stack: one pass over batches, one row per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

Rates = Sequence[float] | Callable[[int], float | Tensor]
Around = Callable[[int], AbstractContextManager[object]]


class Optimizer(Protocol):
    """What the loop asks of an optimizer, of one network or of a stack."""

    param_groups: list[dict[str, Any]]

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""

    def step(self) -> Any:
        """Update the weights, unless the backward pass has done so."""


@dataclass(frozen=True)
class Step:
    """What one step saw before its update: the outputs and the batch-mean loss, ``[b, C]`` and ``[]``.

    Those of a stack of R networks are ``[R, b, C]`` and ``[R]``.
    """

    step: int
    losses: Tensor
    outputs: Any = field(repr=False)
    diverged: bool
    """Whether the loss left the range of floating-point numbers, in a stack that of every network."""

    @property
    def loss(self) -> float:
        """The loss of a single network."""
        return float(self.losses)


def train(
    net: Callable[[Any], Any],
    optimizer: Optimizer,
    batches: Iterable[tuple[Any, Any]],
    loss: Callable[[Any, Any], Tensor],
    *,
    rates: Rates | None = None,
    around: Around | None = None,
    updates: int | None = None,
) -> Iterator[Step]:
    """Train on one batch after the other, and yield a ``Step`` after every update. A divergence ends the training.

    The caller's code runs between two updates. If one network of a stack diverges, its losses are not-a-number from
    then on, and the others continue.

    Args:
        net: a module, or any function, from the inputs of a batch to outputs.
        optimizer: its optimizer.
        batches: pairs (inputs, targets).
        loss: from (outputs, targets) to a batch mean, a scalar; of a stack ``[R]``.
        rates: factors on every group's learning rate, one per step or a function of the step, of a stack ``[R]``;
            undone at the end.
        around: gives a context for the forward and backward pass of a step; the update comes after it.
        updates: how many batches are followed by an update, if not all: the last is of no use where only rows are read.
    """
    with _scheduled(optimizer, rates) as set_rates:
        for step, (inputs, targets) in enumerate(batches):
            set_rates(step)
            optimizer.zero_grad()
            with around(step) if around else nullcontext():
                outputs = net(inputs)
                value = loss(outputs, targets)
                losses, seen = value.detach(), outputs.detach() if isinstance(outputs, Tensor) else outputs
                row = Step(step, losses, seen, diverged=not bool(losses.isfinite().any()))  # the one wait for a device
                is_followed = not row.diverged and (updates is None or step < updates)
                if is_followed:
                    value.sum().backward()  # type: ignore[no-untyped-call]
            if is_followed:
                optimizer.step()
            yield row
            if row.diverged:
                return


@contextmanager
def _scheduled(optimizer: Optimizer, rates: Rates | None) -> Iterator[Callable[[int], None]]:
    """Sets the learning rates of a step; those from before are back at the end."""
    if rates is None:
        yield lambda step: None
        return
    factor = rates if callable(rates) else rates.__getitem__
    base = [group["lr"] for group in optimizer.param_groups]

    def set_rates(step: int) -> None:
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * factor(step)

    try:
        yield set_rates
    finally:
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr
