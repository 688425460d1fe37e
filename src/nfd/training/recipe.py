"""``Recipe``: how networks of every size are trained alike, and a fingerprint of each version of its code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, check_callable, check_takes, first_line
from nfd.core.random import global_streams
from nfd.families.family import Family
from nfd.families.fingerprint import digits, fingerprint_of, name_of
from nfd.families.member import Member, StackedMembers
from nfd.nets.module_stack import over_tensors
from nfd.scaling.calls import doubled, evaluating, shape_of
from nfd.scaling.grouping import Groups
from nfd.scaling.laws import OptimizerLaw, law_of, register_optimizer
from nfd.scaling.tensors import tensors
from nfd.training.loop import Around, Rates, Step, train
from nfd.training.losses import LOSSES
from nfd.training.optimizers import TABLE, optimizer_named, stacked_optimizer_named, stacked_options
from nfd.training.schedule import Schedule, factors_of, warmed
from nfd.training.task import Pair, Task

if TYPE_CHECKING:
    from nfd.training.together import Together

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

_FROM_GROUPS = (
    "It is a function from the parameter groups of a plan to an optimizer, such as lambda groups: "
    "torch.optim.AdamW(groups). The groups have the rates of the rule that is tested."
)
_LOOKS = 2  # updates whose numbers tell one version of an optimizer or a loss from another
_LOOK_RATE = 1e-3


@dataclass(frozen=True)
class Recipe:
    """A family, a task, and what steps the networks.

    Args:
        family: with its rule and optimizer.
        task: batches and loss.
        make_optimizer: from parameter groups to an optimizer, in place of the one that the family names.
        schedule: a function from the step to a factor on every rate, or from an optimizer to a scheduler of PyTorch.
        warmup: share of the steps over which rates rise linearly, on top of the schedule.
        init_scale: factor on the initial weights of every matrix that begins at random.
        version: of the loss and the optimizer where they are code of the user's, in place of a fingerprint.
    """

    family: Family
    task: Task
    make_optimizer: MakeOptimizer | None = None
    schedule: Schedule | None = None
    version: str | None = None
    warmup: float = 0.0
    init_scale: float = 1.0
    laws: tuple[OptimizerLaw, ...] = field(init=False, repr=False)
    together: dict[tuple[int, int], Together] = field(default_factory=dict, init=False, repr=False, compare=False)
    """How many networks of a size are trained as one, where that is decided (``nfd.training.together``)."""

    def __post_init__(self) -> None:
        law = law_of(self.family.optimizer)
        own = () if law in TABLE else (law,)
        object.__setattr__(self, "laws", own)
        if self.make_optimizer is None:
            law.check_made()
        else:
            check_callable("make_optimizer", self.make_optimizer, "a function of parameter groups")
            try:
                check_takes("make_optimizer", self.make_optimizer, "groups")
            except InputTypeError as error:
                raise InputTypeError(f"{error} {_FROM_GROUPS}") from None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, the optimizer that the user registered is known once a recipe arrives."""
        self.__dict__.update(state)
        for law in self.laws:
            register_optimizer(law, replace=True)

    @torch.no_grad()
    def begin_(self, member: Member) -> None:
        """Scale the initial weights of a member that its family built."""
        entries = member.plan.entries if self.init_scale != 1 else {}
        for name, tensor in tensors(member.module).items():
            if name in entries and not (tensor.is_vector or entries[name].start.kept):
                tensor.parameter.mul_(self.init_scale)

    def rows(
        self,
        member: Member,
        lr: float,
        weight_decay: float,
        pairs: Sequence[Pair],
        rates: Rates | None,
        around: Around | None = None,
        adamw_lr: float | None = None,
    ) -> Iterator[Step]:
        """Train a member on batches, one row per step.

        Args:
            lr, weight_decay, adamw_lr: those of the base. pairs: the batches, where the member is. rates: factors on
                every rate. around: as in ``nfd.training.loop.train``.
        """
        optimizer = self.optimizer(member.groups(lr, weight_decay, adamw_lr))
        return train(member, optimizer, pairs, self._loss, rates=rates, around=around)

    def rows_together(
        self, stack: StackedMembers, groups: Sequence[Groups], pairs: Sequence[Pair], rates: Rates | None
    ) -> Iterator[Step]:
        """The same of several members as one; ``groups`` are those that each of them has alone."""
        name, options = self.family.optimizer, dict[str, Any]()
        if self.make_optimizer is not None:
            made = [self.optimizer(own) for own in groups]
            options, groups = self.options_together(made), [optimizer.param_groups for optimizer in made]
        optimizer = stacked_optimizer_named(name, stack.groups(groups), **options)
        return train(stack, optimizer, pairs, self.losses_together, rates=rates)

    def options_together(self, made: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
        """The options of optimizers of single networks for one of all; ValueError where there is none."""
        first, *others = (stacked_options(self.family.optimizer, optimizer) for optimizer in made)
        if first is None or any(options != first for options in others):
            raise InputError("make_optimizer must make optimizers that a stack of networks has. Train them one by one.")
        return first

    def losses_together(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of every member, ``[R]``, from what a stack of them returns."""
        losses: Tensor = over_tensors(partial(self._loss, targets=targets), outputs)
        return losses

    def judged(self, member: Member, task: Task) -> float:
        """The mean loss of a trained member over the evaluation batches, over the last training batch without them."""
        (loss,) = _mean_losses(member, member.module, self._loss, task)
        return loss

    def judged_together(self, stack: StackedMembers, task: Task) -> list[float]:
        """The same of every member of a stack."""
        return _mean_losses(stack, stack.module, self.losses_together, task)

    def factors(self, lr: float) -> tuple[float, ...] | None:
        """The schedule and the warm-up as factors on the rates, one per step; None where there is neither."""
        steps = self.task.steps
        scheduled = None if self.schedule is None else factors_of(self.schedule, steps, lr)
        return warmed(scheduled, steps, self.warmup)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Plain data that names the recipe in a store, but for its schedule and warm-up, which a rate completes.

        Raises:
            ValueError: where changes of the user's code cannot be detected and it has no ``version``.
        """
        loss = self.task.loss if isinstance(self.task.loss, str) else "custom"
        about = {"task": self.task.fingerprint, "steps": self.task.steps, "loss": loss}
        about |= {} if self.init_scale == 1 else {"init_scale": self.init_scale}
        return {**self.family.identity, **about, "training_code": self._code}

    @property
    def _code(self) -> str | None:
        """Of what the user brings beside the model's outputs: None where the loss and the optimizer are ours."""
        if not self.laws and self.make_optimizer is None and self.task.loss in (*LOSSES,):
            return None
        if self.version is None:
            return fingerprint_of(f"the training of {self.family.name}", self._first_updates)
        return " ".join([self.version, *map(name_of, self._own)])

    @property
    def _own(self) -> list[Any]:
        """The loss, the optimizer and the makers of laws that are code of the user's."""
        given = [None if isinstance(self.task.loss, str) else self.task.loss, self.make_optimizer]
        return [code for code in (*given, *(law.make for law in self.laws)) if code is not None]

    def _first_updates(self) -> str:
        """Losses and updates of the base's network in double precision, and what the user's law says of other sizes."""
        place = self.task.device
        member = self.family.build(*self.family.base, 0, device=place)
        parameters = dict(member.module.double().train().named_parameters())
        before = {name: p.detach().clone() for name, p in parameters.items()}
        pairs = [doubled(pair) for pair in self.task.batches[:_LOOKS]]
        with global_streams(0, [] if place.type == "cpu" else [place]):
            losses = [row.losses for row in self.rows(member, _LOOK_RATE, 0.0, pairs, None)]
        moved = [f"{name} {digits(p.detach() - before[name])}" for name, p in parameters.items()]
        return "\n".join([digits(torch.stack(losses)), *moved, *map(_scaling, self.laws)])

    def optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer of parameter groups: the family's, or what ``make_optimizer`` makes.

        Raises:
            TypeError: where ``make_optimizer`` does not take groups, or makes no optimizer.
        """
        if self.make_optimizer is None:
            return optimizer_named(self.family.optimizer, groups)
        try:
            made = self.make_optimizer(groups)
        except (TypeError, AttributeError) as error:
            message = f"make_optimizer raised {type(error).__name__}: {first_line(error)}. {_FROM_GROUPS}"
            raise InputTypeError(message) from error
        if not hasattr(made, "param_groups"):
            raise InputTypeError(f"make_optimizer must return an optimizer; got {type(made).__name__}. {_FROM_GROUPS}")
        return made

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        loss = self.task.value(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim():
            raise InputTypeError(f"loss must return the mean over the batch, one number; got {shape_of(loss)}.")
        return loss


@torch.no_grad()
def _mean_losses(
    network: Callable[[Any], Any], module: nn.Module, loss: Callable[[Any, Any], Tensor], task: Task
) -> list[float]:
    pairs = task.eval_batches or task.batches[-1:]
    with evaluating(module):
        losses = [loss(network(x), y).flatten().tolist() for x, y in pairs]
    return [math.fsum(own) / len(pairs) for own in zip(*losses, strict=True)]


def _scaling(law: OptimizerLaw) -> str:
    """How rates under a law follow the size of a tensor."""
    norms = [f"{law.shape_norm(rows, columns):.6g}" for rows, columns in ((8, 8), (8, 32), (32, 8))]
    return f"{law.degree:g} {law.unit} {norms} {law.epsilon} {law.decoupled} {law.rest}"
