"""How many networks of a recipe are trained together: one, where that does not pay or changes their numbers.

The time of a small network goes into calling operations. A stack calls each of them once for all of its networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.errors import InputError, first_line
from nfd.core.random import global_state, global_streams
from nfd.families.family import Family
from nfd.families.member import Member, StackedMembers
from nfd.scaling.calls import batch_size
from nfd.scaling.laws import law_of
from nfd.training import driver
from nfd.training.task import Task

_TOGETHER = 16  # most networks
_WIDEST = 256  # wider ones are not even built to be asked
_WORK = 1e6  # floating-point operations of a product, beyond which little of its time is its call
_WORK_OF_MUON = 5e6  # whose own products are smaller
_STEPS = 2
_ROUNDING = 1e-5  # of a loss
_ROUNDING_OF_MUON = 1e-3  # whose products are in 16 bits
_DECIDED: dict[tuple[str, str, int, int], Together] = {}  # by family, task and size: it takes two small trainings


class Alone(Enum):
    """Why networks of one size are trained one after another."""

    WIDTH = "they are too wide to gain"
    PRODUCTS = "their products have too many operations to gain"
    OPTIMIZER = "their optimizer has no form for several networks"
    PRECISION = "they hold fewer bits than 32"
    HOOKS = "hooks of gradients see those of one network"
    RANDOM = "they draw random numbers"
    BUFFERS = "they change their buffers"
    EQUAL = "two seeds give the same losses"
    DIFFERENT = "together they have other losses than alone"
    REFUSED = "they cannot be computed together"

    @property
    def by_size(self) -> bool:
        """Whether smaller networks of the same code may be trained together."""
        return self in (Alone.WIDTH, Alone.PRODUCTS)


class AloneError(Exception):
    """Networks must be trained one after another, and why."""

    def __init__(self, reason: Alone) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Together:
    """How many networks of a size are trained as one, at most; where that is one, why, and what PyTorch said."""

    most: int
    reason: Alone | None = None
    detail: str = ""

    def __str__(self) -> str:
        if self.reason is None:
            return f"up to {self.most} networks are trained as one"
        return f"networks are trained one after another: {self.reason.value}" + (self.detail and f" ({self.detail})")


def together(family: Family, task: Task, width: int, depth: int) -> Together:
    """How many networks of a family and size are trained as one, at most, and why they are not.

    They are few operations and no more than rounding changes their numbers: two of them are trained for two steps and
    judged, alone and together. A model that refuses, draws random numbers, changes its buffers, hooks into gradients or
    holds fewer bits than 32 is trained alone.
    """
    name = str(family.identity), str(task.identity), width, depth
    if name not in _DECIDED:
        _DECIDED[name] = _decided(family, task.on(torch.device("cpu")), width, depth)
    return _DECIDED[name]


def _decided(family: Family, task: Task, width: int, depth: int) -> Together:
    if width > _WIDEST:
        return Together(1, Alone.WIDTH)
    law = family.law
    if law.make_stacked is None:
        return Together(1, Alone.OPTIMIZER)
    try:
        with warnings.catch_warnings(), global_streams(0):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "There is a performance drop")  # by vmap, of what it calls R times
            members = [family.member(width, depth, seed, device="cpu") for seed in (0, 1)]
            _check_members(members, task, _WORK if law.rest is None else _WORK_OF_MUON)
            _check_optimizer(task, members)
            _check_losses(members, task)
    except AloneError as error:
        return Together(1, error.reason)
    except Exception as error:  # trained alone it says what is wrong
        return Together(1, Alone.REFUSED, f"{type(error).__name__}: {first_line(error)}")
    return Together(_TOGETHER)


def _check_members(members: list[Member], task: Task, most_work: float) -> None:
    """Raise AloneError where a look at networks tells."""
    module = members[0].module
    if work(members[0], task) > most_work:
        raise AloneError(Alone.PRODUCTS)
    if _hooked(module):
        raise AloneError(Alone.HOOKS)
    if any(p.dtype not in (torch.float32, torch.float64) for p in module.parameters()):
        raise AloneError(Alone.PRECISION)


def _check_optimizer(task: Task, members: list[Member]) -> None:
    """Raise AloneError where the optimizer is one of the user's that a stack does not have."""
    if task.make_optimizer is None:
        return
    name = members[0].optimizer
    rate = law_of(name).check_rate
    try:
        made = [driver.optimizer_of(task, name, member.groups(rate)) for member in members]
        driver.options_together(name, made)
    except InputError:
        raise AloneError(Alone.OPTIMIZER) from None


def _hooked(module: nn.Module) -> bool:
    """Whether gradients pass through hooks, which a stack of the weights does not have."""
    of_tensors = [hooks for p in module.parameters() for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)]
    of_modules = [hooks for part in module.modules() for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    return any(of_tensors) or any(of_modules)


class _RefusingHooks(TorchFunctionMode):
    """Raises where a forward pass hooks into the gradient of what it computes, which a stack would leave out."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.register_hook:
            raise AloneError(Alone.HOOKS)
        return function(*args, **(kwargs or {}))


def work(member: Member, task: Task) -> float:
    """Floating-point operations of a product of a matrix, on average, in the first batch."""
    inputs, _ = task.batches[0]
    matrices = sum(p.dim() > 1 for p in member.module.parameters())
    return member.operations(inputs) * batch_size(inputs) / (3 * max(matrices, 1))


def _check_losses(members: list[Member], task: Task) -> None:
    """Raise AloneError unless two networks that differ lose together what they lose alone, and change only weights."""
    law, task = law_of(members[0].optimizer), task.first(_STEPS)
    stack = StackedMembers(members)
    for member in members:
        member.module.train()
    groups = [member.groups(law.check_rate) for member in members]
    with _RefusingHooks():
        with _changing_only_weights(members):
            alone = [_losses(member, task) for member in members]
        with _changing_only_weights(members):
            losses = [row.losses for row in driver.rows_together(stack, law.name, task, groups, None)]
            losses.append(torch.tensor([loss for loss, _ in driver.judged_together(stack, task)]))
    if torch.equal(*alone):
        raise AloneError(Alone.EQUAL)
    rounding = _ROUNDING if law.rest is None else _ROUNDING_OF_MUON
    if not torch.allclose(torch.stack(losses).double(), torch.stack(alone, 1).double(), rtol=rounding, atol=0.0):
        raise AloneError(Alone.DIFFERENT)


@contextmanager
def _changing_only_weights(members: Sequence[Member]) -> Iterator[None]:
    buffers = [b for member in members for b in member.module.buffers()]
    before, streams = [b.clone() for b in buffers], global_state()
    yield
    if global_state() != streams:
        raise AloneError(Alone.RANDOM)
    if not all(map(torch.equal, buffers, before)):
        raise AloneError(Alone.BUFFERS)


def _losses(member: Member, task: Task) -> Tensor:
    """Of a network that is trained and judged alone."""
    losses = [row.losses for row in driver.rows(member, task, law_of(member.optimizer).check_rate)]
    return torch.stack([*losses, torch.tensor(driver.judged(member, task)[0][0])])


def notes_on(family: Family, tasks: Iterable[Task], sizes: Iterable[tuple[int, int]]) -> list[str]:
    """Why networks of these sizes were trained one after another, where their code is the reason."""
    names = [(str(family.identity), str(task.identity), *size) for task in tasks for size in sizes]
    decided = [_DECIDED[name] for name in names if name in _DECIDED]
    of_code = [own for own in decided if own.reason is not None and not own.reason.by_size]
    return list(dict.fromkeys(f"Small {own}." for own in of_code))
