"""How many networks of one size are trained as one: where that does not pay, or changes their numbers, one.

The time of a small network goes into calling operations. A stack calls each of them once for all of its networks.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.random import global_state, global_streams
from nfd.families.family import Family
from nfd.families.member import Member, StackedMembers
from nfd.nets.stacked_optimizers import STACKED
from nfd.scaling.model import batch_size
from nfd.scaling.optimizers import law_of
from nfd.training import driver
from nfd.training.task import Task

_TOGETHER = 16  # most networks
_WIDEST = 256  # wider ones are not even built to be asked
_WORK = 1e6  # floating-point operations of a product, beyond which little of its time is its call
_WORK_OF_MUON = 5e6  # whose own products are smaller
_STEPS = 2
_ROUNDING = 1e-5  # of a loss
_ROUNDING_OF_MUON = 1e-3  # whose products are in 16 bits
_DECIDED: dict[tuple[str, str, int, int], int] = {}  # by family, task and size: it takes two small trainings


def most_together(family: Family, task: Task, width: int, depth: int) -> int:
    """How many networks of a family and size are trained as one, at most.

    More than one where their products are small and no more than rounding changes their numbers: two of them are
    trained for two steps and judged, alone and together. Networks that cannot be computed as one, draw random numbers,
    change their buffers or hook into gradients are trained alone.
    """
    name = str(family.identity), str(task.identity), width, depth
    if name not in _DECIDED:
        small = width <= _WIDEST and family.optimizer in STACKED
        agree = small and _agree(family, task.on(torch.device("cpu")), width, depth)
        _DECIDED[name] = _TOGETHER if agree else 1
    return _DECIDED[name]


def work(member: Member, task: Task) -> float:
    """Floating-point operations of a product of a matrix, on average, in the first batch."""
    inputs, _ = task.batches[0]
    matrices = sum(p.dim() > 1 for p in member.module.parameters())
    return member.operations(inputs) * batch_size(inputs) / (3 * max(matrices, 1))


def _agree(family: Family, task: Task, width: int, depth: int) -> bool:
    """Whether two networks that differ lose together what they lose alone, and change only weights."""
    has_muon = family.law.rest is not None
    try:
        with warnings.catch_warnings(), global_streams(0):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "There is a performance drop")  # by vmap, of what it calls R times
            members = [family.member(width, depth, seed, device="cpu") for seed in (0, 1)]
            if work(members[0], task) > (_WORK_OF_MUON if has_muon else _WORK) or _is_hooked(members[0].module):
                return False
            buffers = [buffer for member in members for buffer in member.module.buffers()]
            before, streams = [buffer.clone() for buffer in buffers], global_state()
            with _RefusingHooks():
                alone, together = _losses(members, task.first(_STEPS))
            if global_state() != streams or not all(map(torch.equal, buffers, before)):
                return False
    except Exception:  # trained alone it says what is wrong
        return False
    rounding = _ROUNDING_OF_MUON if has_muon else _ROUNDING
    return not torch.equal(*alone.unbind(1)) and torch.allclose(together, alone, rtol=rounding, atol=0.0)


def _losses(members: list[Member], task: Task) -> tuple[Tensor, Tensor]:
    """Losses ``[steps + 1, R]`` before each step and after the last, of members that are trained alone and as one."""
    stack, law = StackedMembers(members), law_of(members[0].optimizer)
    groups = [member.groups(law.default_lr) for member in members]
    alone = []
    for member in members:
        member.module.train()
        rows = [row.losses for row in driver.rows(member, task, law.default_lr)]
        alone.append(torch.stack([*rows, torch.tensor(driver.judged(member, task)[0][0])]))
    together = [row.losses for row in driver.rows_together(stack, law.name, task, groups, None)]
    together.append(torch.tensor([loss for loss, _ in driver.judged_together(stack, task)]))
    return torch.stack(alone, 1).double(), torch.stack(together).double()


def _is_hooked(module: nn.Module) -> bool:
    """Whether gradients pass through hooks, which a stack of the weights does not have."""
    of_tensors = [hooks for p in module.parameters() for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)]
    of_modules = [hooks for part in module.modules() for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    return any(of_tensors) or any(of_modules)


class _RefusingHooks(TorchFunctionMode):
    """Raises where a forward pass hooks into the gradient of what it computes, which a stack would leave out."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.register_hook:
            raise NotImplementedError("hooks see the gradients of one network")
        return function(*args, **(kwargs or {}))
