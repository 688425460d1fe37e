"""One network of a family, or several as one, trained on a task by the one loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, first_line
from nfd.families.member import Member, StackedMembers
from nfd.nets.module_stack import over_tensors
from nfd.scaling.model import evaluating, outputs_of, shape_of
from nfd.scaling.plan import Groups
from nfd.training.loop import Around, Rates, Step, train
from nfd.training.optimizers import optimizer_named, stacked_optimizer_named, stacked_options
from nfd.training.task import FROM_GROUPS, Task

Judged = list[tuple[float, float]]
"""Mean loss and accuracy of one network, or of each of several; an accuracy is not a number where there is none."""


def rows(
    member: Member, task: Task, lr: float, rates: Rates | None = None, around: Around | None = None
) -> Iterator[Step]:
    """Train a member on a task, one row per step.

    Args:
        lr: of the base. rates: factors on every rate, one per step. around: as in ``nfd.training.loop.train``.
    """
    groups = member.groups(lr, task.weight_decay, task.adamw_lr)
    return train(
        member,
        optimizer_of(task, member.optimizer, groups),
        task.batches,
        partial(loss_of, task),
        rates=rates,
        around=around,
    )


def rows_together(
    stack: StackedMembers, name: str, task: Task, groups: Sequence[Groups], rates: Rates | None
) -> Iterator[Step]:
    """The same of several members as one, under an optimizer; ``groups`` are those that each of them has alone."""
    options = dict[str, Any]()
    if task.make_optimizer is not None:
        made = [optimizer_of(task, name, own) for own in groups]
        options, groups = options_together(name, made), [optimizer.param_groups for optimizer in made]
    optimizer = stacked_optimizer_named(name, stack.groups(groups), **options)
    return train(stack, optimizer, task.batches, partial(losses_together, task), rates=rates)


def judged(member: Member, task: Task) -> Judged:
    """Mean loss and accuracy of a trained member on the evaluation batches, on the last training batch without them."""
    return _judged(member, member.module, partial(loss_of, task), task)


def judged_together(stack: StackedMembers, task: Task) -> Judged:
    """The same of every member of a stack."""
    return _judged(stack, stack.module, partial(losses_together, task), task)


def optimizer_of(task: Task, name: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of parameter groups: the one of this name, or what the task's ``make_optimizer`` makes.

    Raises:
        TypeError: where ``make_optimizer`` does not take groups, or makes no optimizer.
    """
    if task.make_optimizer is None:
        return optimizer_named(name, groups)
    try:
        made = task.make_optimizer(groups)
    except (TypeError, AttributeError) as error:
        message = f"make_optimizer raised {type(error).__name__}: {first_line(error)}. {FROM_GROUPS}"
        raise InputTypeError(message) from error
    if not hasattr(made, "param_groups"):
        raise InputTypeError(f"make_optimizer must return an optimizer; got {type(made).__name__}. {FROM_GROUPS}")
    return made


def options_together(name: str, made: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """The options of optimizers of single networks for one of all; ValueError where there is none."""
    first, *others = (stacked_options(name, optimizer) for optimizer in made)
    if first is None or any(options != first for options in others):
        raise InputError("make_optimizer must make optimizers that a stack of networks has. Train them one by one.")
    return first


def losses_together(task: Task, outputs: Any, targets: Any) -> Tensor:
    """The loss of every member, ``[R]``, from what a stack of them returns."""
    losses: Tensor = over_tensors(partial(loss_of, task, targets=targets), outputs)
    return losses


def loss_of(task: Task, outputs: Any, targets: Any) -> Tensor:
    """The loss of a task, checked to be one number."""
    loss = task.value(outputs, targets)
    if not isinstance(loss, Tensor) or loss.dim():
        raise InputTypeError(f"loss must return the mean over the batch, one number; got {shape_of(loss)}.")
    return loss


@torch.no_grad()
def _judged(network: Callable[[Any], Any], module: nn.Module, loss: Callable[[Any, Any], Tensor], task: Task) -> Judged:
    pairs = task.eval_batches or task.batches[-1:]
    losses, right = list[list[float]](), list[Tensor]()
    with evaluating(module):
        for x, y in pairs:
            outputs = network(x)
            losses.append(loss(outputs, y).flatten().tolist())
            if task.loss == "cross-entropy" and task.eval_batches:
                right.append(_right(outputs, y))
    means = [math.fsum(own) / len(pairs) for own in zip(*losses, strict=True)]
    shares = torch.cat(right, -1).float().mean(-1).flatten().tolist() if right else [math.nan] * len(means)
    return list(zip(means, shares, strict=True))


def _right(outputs: Any, targets: Tensor) -> Tensor:
    """Whether the largest logit is that of the target, ``[..., samples]``: of one network or of a stack of them."""
    logits = outputs_of(outputs)
    lead = logits.dim() - targets.dim() - 1  # 1 of a stack
    classes_last = logits if logits.shape[lead:-1] == targets.shape else logits.movedim(lead + 1, -1)
    return (classes_last.argmax(-1) == targets).flatten(-targets.dim())
