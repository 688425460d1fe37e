"""One network of a family, trained on a task by the one loop: one pass over batches, one row per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputTypeError, first_line
from nfd.families.member import Member
from nfd.runs.losses import classes_last
from nfd.runs.task import FROM_GROUPS, Task
from nfd.scaling.optimizers import law_of
from nfd.scaling.optimizers import optimizer_of as optimizer_by
from nfd.scaling.samples import evaluating

Around = Callable[[int], AbstractContextManager[object]]


def optimizer_of(task: Task, name: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of parameter groups: the one of this name, or what the task's ``make_optimizer`` makes.

    Raises:
        TypeError: where ``make_optimizer`` does not take groups, or makes no optimizer.
    """
    if task.make_optimizer is None:
        law = law_of(name)
        # The loop of Adam over tensors takes longer than the passes of a small network: fused it takes a sixth.
        adam = law if law.rest is None else law_of(law.rest)
        options = {"fused": True} if adam.options >= {"betas", "fused"} else {}
        return optimizer_by(law, [{"weight_decay": 0.0} | group for group in groups], options)
    try:
        made = task.make_optimizer(groups)
    except (TypeError, AttributeError) as error:
        message = f"make_optimizer raised {type(error).__name__}: {first_line(error)}. {FROM_GROUPS}"
        raise InputTypeError(message) from error
    if not hasattr(made, "param_groups"):
        raise InputTypeError(f"make_optimizer must return an optimizer; got {type(made).__name__}. {FROM_GROUPS}")
    return made


@torch.no_grad()
def judged(member: Member, task: Task) -> tuple[float, float]:
    """Mean loss and accuracy on the evaluation batches, on the last training batch without them.

    The accuracy is not a number where there is none.
    """
    pairs = task.eval_batches or task.batches[-1:]
    losses, right = list[float](), list[Tensor]()
    with evaluating(member.module):
        for x, y in pairs:
            outputs = member(x)
            losses.append(float(task.value(outputs, y)))
            if task.loss == "cross-entropy" and task.eval_batches:
                right.append((classes_last(outputs, y).argmax(-1) == y).flatten())
    return math.fsum(losses) / len(pairs), float(torch.cat(right).float().mean()) if right else math.nan


@dataclass(frozen=True)
class Step:
    """What one step saw before its update: the outputs ``[b, C]`` and the batch-mean loss, a number or not one."""

    step: int
    losses: Tensor
    outputs: Any = field(repr=False)
    diverged: bool

    @property
    def loss(self) -> float:
        """The loss as a float."""
        return float(self.losses)


def train(
    net: Callable[[Any], Any],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Any, Any]],
    loss: Callable[[Any, Any], Tensor],
    *,
    rates: Sequence[float] | None = None,
    around: Around | None = None,
) -> Iterator[Step]:
    """Train on one batch after the other, and yield a ``Step`` after every update. A divergence ends the training.

    The caller's code runs between two updates.

    Args:
        net: a module, or any function, from the inputs of a batch to outputs.
        optimizer: its optimizer.
        batches: pairs (inputs, targets).
        loss: from (outputs, targets) to a batch mean.
        rates: factors on every group's learning rate, one per step.
        around: gives a context for the forward and backward pass of a step; the update comes after it.
    """
    base = [group["lr"] for group in optimizer.param_groups]
    for step, (inputs, targets) in enumerate(batches):
        if rates is not None:
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * rates[step]
        optimizer.zero_grad()
        with around(step) if around else nullcontext():
            outputs = net(inputs)
            value = loss(outputs, targets)
            losses, seen = value.detach(), outputs.detach() if isinstance(outputs, Tensor) else outputs
            row = Step(step, losses, seen, diverged=not bool(losses.isfinite()))  # the one wait for a device
            if not row.diverged:
                value.backward()  # type: ignore[no-untyped-call]
        if not row.diverged:
            optimizer.step()
        yield row
        if row.diverged:
            return
