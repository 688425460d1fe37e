"""``Member``: one network of a family, under its plan. This is the member for any module; others know more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nfd.core.errors import InputError
from nfd.core.random import global_streams
from nfd.families.streams import StreamEnds
from nfd.nets.module_stack import ModuleStack
from nfd.nets.stacked_optimizers import by_name, stacked_group
from nfd.scaling.model import as_written, batch_size, block_of, call_with, evaluating, modules, outputs_of, stacks_of
from nfd.scaling.plan import Groups, Plan
from nfd.scaling.rules import Role, rule_named

if TYPE_CHECKING:
    from nfd.nets.network import Network


class StackedMembers:
    """Members of one shape that are trained as one: outputs of ``module`` are ``[R, ...]``."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.modules = [member.module for member in members]
        self.module = ModuleStack(self.modules)

    def __call__(self, sample: Any) -> Any:
        """What the members return for a tensor, a tuple of arguments, or a dict of keyword arguments."""
        return call_with(self.module, sample)

    def groups(self, alone: Sequence[Groups]) -> Groups:
        """Parameter groups with a rate for every member, from the groups that each has alone."""
        settings = [by_name(*of_one) for of_one in zip(self.modules, alone, strict=True)]
        return [stacked_group(self.module.weights[name], [own[name] for own in settings]) for name in settings[0]]


class Member:
    """One network of a family: a module and the plan that scales its training.

    Args:
        module: the network.
        plan: of this module.
        width, depth: the size that it was built with; None if that is not known.
    """

    def __init__(self, module: nn.Module, plan: Plan, width: int | None = None, depth: int | None = None) -> None:
        self.module, self.plan, self.width, self.depth = module, plan, width, depth

    def __call__(self, sample: Any) -> Any:
        """The output of the module for a tensor, a tuple of arguments, or a dict of keyword arguments."""
        return call_with(self.module, sample)

    # ---- how it is scaled ------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> str:
        """The name of the optimizer that trains it."""
        return self.plan.optimizer

    @property
    def roles(self) -> dict[str, Role]:
        """The role of every tensor, by name."""
        return self.plan.roles

    @property
    def hidden(self) -> list[str]:
        """The names of the matrices inside of blocks."""
        return [name for name, role in self.roles.items() if role in ("hidden", "inner", "outer")]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the residual blocks."""
        return self.plan.blocks

    @property
    def stacks(self) -> dict[str, tuple[str, ...]]:
        """The blocks of every stack by its name; of one stack alone, or none, under no name."""
        return stacks_of(self.blocks)

    def time_step(self, stack: str = "") -> float:
        """The step tau of one block along the depth of a stack, ``T / L``."""
        return 1 / max(len(self.stacks.get(stack, ())), 1)

    def multiplier(self, name: str) -> float:
        """The factor by which the forward pass multiplies a stored matrix, over that of the base where the model has
        such factors of its own; 0 if only gradients pass through it."""
        return self.plan.own_factor(name)

    def groups(self, lr: float, weight_decay: float = 0.0, adamw_lr: float | None = None) -> list[dict[str, Any]]:
        """Parameter groups for the plan's optimizer.

        Args:
            lr, weight_decay: of the base, at least 0; the plan scales them.
            adamw_lr: under Muon, the base's rate of the tensors that AdamW trains; ``lr`` if None.
        """
        return self.plan.param_groups(self.module, lr=lr, weight_decay=weight_decay, adamw_lr=adamw_lr)

    def begin_(self, seed: int) -> None:
        """Draw the initial weights of the rule in place, and insert its forward multipliers.

        Rules that do not scale width, such as ``"standard"``, leave the module's own weights.
        """
        if rule_named(self.plan.rule).scales_width:
            self.plan.apply_(self.module, seed)

    # ---- what it costs ---------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> int:
        """The number of stored parameters; a shared tensor counts once."""
        return sum(p.numel() for p in self.module.parameters())

    def operations(self, sample: Any) -> float:
        """Floating-point operations of a forward and a backward pass, per input of ``sample``, as PyTorch counts them.

        A multiply-add counts as two; entrywise functions and norms are not counted. The module does not change.
        """
        trained = [p for p in self.module.parameters() if p.requires_grad]
        counter = FlopCounterMode(display=False)  # attention by its products: PyTorch has no count for the fused one
        with evaluating(self.module), global_streams(), sdpa_kernel(SDPBackend.MATH), counter:
            torch.autograd.grad(outputs_of(self(sample)).sum(), trained, allow_unused=True)
        return counter.get_total_flops() / batch_size(sample)

    # ---- what it shows ---------------------------------------------------------------------------------------

    @contextmanager
    def stream(self) -> Iterator[StreamEnds]:
        """A context that records the residual streams of one forward pass, and their gradients in the backward pass."""
        ends, parts = StreamEnds(), modules(self.module)

        def meet(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ends.meet((*args, *kwargs.values()))

        def leave(stack: str, block: str) -> Callable[..., None]:
            own = self.stacks[stack]
            is_first, is_last = block == own[0], block == own[-1]

            def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
                ends.leave(stack, block, (*args, *kwargs.values()), out, is_first=is_first, is_last=is_last)

            return note

        with as_written(), ExitStack() as hooks:
            for name, part in parts.items():
                if block_of(name, self.blocks) is None or name in self.blocks:
                    hooks.enter_context(part.register_forward_pre_hook(meet, with_kwargs=True))
            for stack, blocks in self.stacks.items():
                for block in blocks:
                    if block in parts:
                        hooks.enter_context(parts[block].register_forward_hook(leave(stack, block), with_kwargs=True))
            yield ends

    def network(self) -> Network:
        """The network of ``nfd.nets``, whose h and g can be read layer by layer.

        Raises:
            ValueError: if the module is not such a network.
        """
        raise InputError(
            f"{type(self.module).__name__} does not show h and g of every layer: only networks of nfd.nets do. Choose "
            "another meter."
        )

    # ---- its relatives ---------------------------------------------------------------------------------------

    def reserve(self, samples: int) -> None:
        """Reserve memory for a training of this many samples; only layers without stored weights need it."""
