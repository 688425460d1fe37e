"""How many networks of a recipe are trained together: one, where that does not pay or changes their numbers.

The time of a small network goes into calling operations. A stack calls each of them once for all of its networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.random import global_state, global_streams
from nfd.families.member import Member
from nfd.scaling.calls import batch_size
from nfd.scaling.laws import law_of
from nfd.training.recipe import Recipe
from nfd.training.task import Task

_TOGETHER = 16  # most networks
_WIDEST = 256  # wider ones are not even built to be asked
_WORK = 1e6  # floating-point operations of a product, beyond which little of its time is its call
_STEPS = 2
_ROUNDING = 1e-5  # of a loss
_ROUNDING_OF_MUON = 1e-3  # whose products are in 16 bits


def most_together(recipe: Recipe, width: int, depth: int) -> int:
    """How many networks of a size are trained as one, at most.

    They are few operations and no more than rounding changes their numbers: two of them are trained for two steps and
    judged, alone and together. A model that refuses, draws random numbers, changes its buffers, hooks into gradients or
    holds fewer bits than 32 is trained alone.
    """
    if (width, depth) not in recipe.together:
        recipe.together[width, depth] = _TOGETHER if _fits(recipe, width, depth) else 1
    return recipe.together[width, depth]


def _fits(recipe: Recipe, width: int, depth: int) -> bool:
    if width > _WIDEST or recipe.make_optimizer is not None or law_of(recipe.family.optimizer).make_stacked is None:
        return False
    task = recipe.task.on(torch.device("cpu"))
    with suppress(Exception), warnings.catch_warnings(), global_streams(0):  # trained alone it says what is wrong
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "There is a performance drop")  # by vmap, of what it calls R times
        members = [recipe.family.build(width, depth, seed, device="cpu") for seed in (0, 1)]
        few = work(members[0], task) <= _WORK
        return few and not _hooked(members[0].module) and _is_exact(members[0].module) and _agree(recipe, members, task)
    return False


def _hooked(module: nn.Module) -> bool:
    """Whether gradients pass through hooks, which a stack of the weights does not have."""
    of_tensors = [hooks for p in module.parameters() for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)]
    of_modules = [hooks for part in module.modules() for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    return any(of_tensors) or any(of_modules)


def _is_exact(module: nn.Module) -> bool:
    """Whether rounding of its numbers is too small to be seen."""
    return all(p.dtype in (torch.float32, torch.float64) for p in module.parameters())


class _RefusingHooks(TorchFunctionMode):
    """Raises where a forward pass hooks into the gradient of what it computes, which a stack would leave out."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.register_hook:
            raise RuntimeError("hooks of gradients see those of one network alone.")
        return function(*args, **(kwargs or {}))


def work(member: Member, task: Task) -> float:
    """Floating-point operations of a product of a matrix, on average, in the first batch."""
    inputs, _ = task.batches[0]
    matrices = sum(p.dim() > 1 for p in member.module.parameters())
    return member.operations(inputs) * batch_size(inputs) / (3 * max(matrices, 1))


def _agree(recipe: Recipe, members: list[Member], task: Task) -> bool:
    """Whether two networks that differ lose together what they lose alone, and change nothing but their weights."""
    law, pairs = law_of(recipe.family.optimizer), task.batches[:_STEPS]
    stack = type(members[0]).stacked(members)
    if stack is None:
        return False
    for member in members:
        member.module.train()
    buffers = [b for member in members for b in member.module.buffers()]
    before, start = [b.clone() for b in buffers], global_state()
    groups = [member.groups(law.check_rate) for member in members]
    expected = []
    with _RefusingHooks():
        together = [row.losses for row in recipe.rows_together(stack, groups, pairs, None)]
        together.append(torch.tensor(recipe.judged_together(stack, task)))
        for member in members:
            alone = [row.losses for row in recipe.rows(member, law.check_rate, 0.0, pairs, None)]
            expected.append(torch.stack([*alone, torch.tensor(recipe.judged(member, task))]))
    unchanged = start == global_state() and all(map(torch.equal, buffers, before))
    rounding = _ROUNDING if law.rest is None else _ROUNDING_OF_MUON
    differ = not torch.equal(expected[0], expected[1])
    same = torch.allclose(torch.stack(together).double(), torch.stack(expected, 1).double(), rtol=rounding, atol=0.0)
    return unchanged and differ and same
