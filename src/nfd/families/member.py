"""One network of a family under its plan: any module, or one of the paper's, whose layers show their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nfd.core.errors import InputError, RuleName
from nfd.core.random import global_streams
from nfd.families.network import Network
from nfd.families.streams import StreamEnds
from nfd.scaling.model import block_of, modules, stacks_of
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan, told_by
from nfd.scaling.rules import Role, rule_named
from nfd.scaling.samples import as_written, batch_size, call_with, evaluating, outputs_of


class Member:
    """One network of a family: a module and the plan that scales its training.

    Args:
        module: the network.
        plan: of this module.
    """

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        self.module, self.plan = module, plan

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
        """The names of what is inside of blocks and trains at a rate of its own there: matrices, and their biases."""
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

    def reserve(self, samples: int) -> None:
        """Reserve memory for a training of this many samples; only layers without stored weights need it."""


# ---- A network of the paper under its plan: it has its scales in its forward pass, and streams that can be read


class PaperMember(Member):
    """A network of the paper: its base is the network of width 1 and depth 1.

    Args:
        module: the network, or what PyTorch wrapped it in. net: the network itself.
        rule, optimizer: which it is trained by. planned: its plan, where it is made already.
    """

    def __init__(
        self, module: nn.Module, net: Network, rule: RuleName, optimizer: str, planned: Plan | None = None
    ) -> None:
        self.module, self.net, self.rule, self._optimizer = module, net, rule, optimizer
        if planned is not None:
            self.plan = planned

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        return plan(self.module, rule=self.rule, optimizer=self.optimizer)

    @property
    def optimizer(self) -> str:
        return self._optimizer

    @property
    def roles(self) -> dict[str, Role]:
        return super().roles if self.net.weights == "dense" else self.net.named_roles()

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.net.block_names())

    def time_step(self, stack: str = "") -> float:
        return self.net.horizon / self.net.depth

    def multiplier(self, name: str) -> float:
        if name.endswith("feedback_weight"):
            return 0.0
        return self.net.scale(self.roles[name])

    def groups(self, lr: float, weight_decay: float = 0.0, adamw_lr: float | None = None) -> list[dict[str, Any]]:
        if self.net.weights != "dense" or rule_named(self.rule).regime == "kernel":  # which no plan is for
            if weight_decay or adamw_lr is not None:
                raise InputError(
                    "weight_decay and adamw_lr are for plans: weights that are not stored, and rule='ntk', have none. "
                    "Leave them out."
                )
            return self.net.param_groups(lr, self.rule, self.optimizer)
        return super().groups(lr, weight_decay, adamw_lr)

    def begin_(self, seed: int) -> None:
        self.plan.apply_(self.module, seed)  # its own start is that of its own seed, whatever the rule

    @cached_property
    def parameters(self) -> int:
        return sum(p.numel() for name, p in self.net.named_parameters() if not name.endswith("feedback_weight"))

    @contextmanager
    def stream(self) -> Iterator[StreamEnds]:
        ends = StreamEnds()
        with self.net.watched() as passes:
            yield ends
        ((layers, _),) = passes
        ends.first[""], ends.last[""] = layers[:1], layers[-1:]
        hidden = [h.detach() for h in layers]
        ends.before |= dict(zip(self.blocks, hidden, strict=False))
        ends.behind |= dict(zip(self.blocks, hidden[1:], strict=False))

    def reserve(self, samples: int) -> None:
        self.net.reserve(samples)


def member_of(module: nn.Module, planned: Plan) -> Member:
    """The member that a planned module is: the one place that looks at which kind it is."""
    net = told_by(module)
    if isinstance(net, Network):
        return PaperMember(module, net, planned.rule, planned.optimizer, planned)
    return Member(module, planned)
