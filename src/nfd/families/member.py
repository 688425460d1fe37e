"""One network of a family under its plan: any module, or a network of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nfd.core.errors import InputError
from nfd.core.random import global_streams
from nfd.families.network import Network
from nfd.families.streams import StreamEnds
from nfd.scaling.base_group import BaseGroup
from nfd.scaling.model import block_of, modules
from nfd.scaling.plan import Plan
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import rule_named
from nfd.scaling.samples import as_written, batch_size, call_with, evaluating, outputs_of

NO_DECAY = (
    "weight_decay and adamw_lr are for plans: weights that are not stored, and rule='ntk', have "
    "none. Leave them out."
)


class Member:
    """One network of a family: a module and the plan that scales its training.

    Args:
        module: the network, which PyTorch may have wrapped.
        plan: of this module.

    Attributes:
        net: the network of the paper that the module is; None for others.
    """

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        self.module = module
        self.plan = plan
        # The network that plans itself, without what wraps it; None for any other module.
        network = told_by(module)
        self.net: Network | None = None
        if isinstance(network, Network):
            self.net = network

    def __call__(self, sample: Any) -> Any:
        """Call the module with a tensor, a tuple of arguments, or a dict of keyword arguments."""
        return call_with(self.module, sample)

    # ---- how it is scaled

    @cached_property
    def stacks(self) -> dict[str, tuple[str, ...]]:
        """The blocks of every stack by its name; a single stack has an empty name."""
        return self.plan.stacks

    @cached_property
    def numbers(self) -> dict[str, dict[str, int]]:
        """The number of each block in its stack, by stack."""
        return {
            stack: {block: number for number, block in enumerate(blocks)}
            for stack, blocks in self.stacks.items()
        }

    def time_step(self, stack: str = "") -> float:
        """Return the step tau of one block along the depth of a stack, ``T / L``."""
        if self.net is not None:
            return self.net.horizon / self.net.depth
        return 1 / max(len(self.stacks.get(stack, ())), 1)

    def multiplier(self, name: str) -> float:
        """Return the factor by which the forward pass multiplies a stored matrix.

        For a network of the paper it is the factor itself, and 0 if only gradients pass through the
        matrix. For any other module it is the factor of the model's own code as a multiple of the
        base's.
        """
        if self.net is None:
            return self.plan.own_factor(name)
        if name.endswith("feedback_weight"):
            return 0.0
        return self.net.scale(self.plan.entries[name].role)

    @property
    def is_planned(self) -> bool:
        """Whether the plan makes its parameter groups.

        Where weights are not stored, and under rule='ntk', the network makes them.
        """
        if self.net is None:
            return True
        return self.net.weights == "dense" and rule_named(self.plan.rule).regime != "kernel"

    def groups(
        self, lr: float, weight_decay: float | None = None, adamw_lr: float | None = None
    ) -> list[dict[str, Any]]:
        """Make parameter groups for the plan's optimizer.

        Args:
            lr, weight_decay: of the base, at least 0; the plan scales them.
            adamw_lr: under Muon, the base's learning rate of the tensors that AdamW trains; by
                default ``lr``.
        """
        return [group.public() for group in self.base_groups(lr, weight_decay, adamw_lr)]

    def base_groups(
        self, lr: float, weight_decay: float | None = None, adamw_lr: float | None = None
    ) -> list[BaseGroup]:
        """Group the parameters that have the same settings, which are those of the base.

        Arguments are as in ``groups``.
        """
        if self.is_planned:
            return self.plan.base_groups(
                self.module, lr, {"weight_decay": weight_decay}, adamw_lr=adamw_lr
            )
        if weight_decay or adamw_lr is not None:
            raise InputError(NO_DECAY)
        assert self.net is not None
        return self.net.base_groups(lr, self.plan.rule, self.plan.optimizer)

    # ---- what it costs

    @cached_property
    def parameters(self) -> int:
        """The number of stored parameters.

        A shared tensor counts once, and copies that carry gradients back do not count.
        """
        return sum(
            p.numel()
            for name, p in self.module.named_parameters()
            if not name.endswith("feedback_weight")
        )

    def operations(self, sample: Any) -> float:
        """Count floating-point operations of a forward and a backward pass, per input.

        PyTorch counts them for the inputs of ``sample``. A multiply-add counts as two; entrywise
        functions and norms are not counted. The module does not change.
        """
        trained = [p for p in self.module.parameters() if p.requires_grad]
        # PyTorch does not count every fused attention: take the one made of matrix products.
        counter = FlopCounterMode(display=False)
        with evaluating(self.module), global_streams(), sdpa_kernel(SDPBackend.MATH), counter:
            torch.autograd.grad(outputs_of(self(sample)).sum(), trained, allow_unused=True)
        return counter.get_total_flops() / batch_size(sample)

    # ---- what it shows

    @contextmanager
    def stream(self) -> Iterator[StreamEnds]:
        """A context that records the residual streams of one forward pass.

        After a backward pass the streams have gradients too.
        """
        ends = StreamEnds()
        if self.net is not None:
            with self.net.watched() as passes:
                yield ends
            # The context is for one pass, whose layers are h_0 .. h_L.
            [(layers, _)] = passes
            ends.show(layers, self.plan.blocks)
            return

        def note_inputs(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ends.meet((*args, *kwargs.values()))

        def hook_of(stack: str, block: str) -> Callable[..., None]:
            is_first = block == self.stacks[stack][0]
            is_last = block == self.stacks[stack][-1]

            def note_call(
                _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
            ) -> None:
                inputs = (*args, *kwargs.values())
                ends.leave(stack, block, inputs, out, is_first=is_first, is_last=is_last)

            return note_call

        parts = modules(self.module)
        blocks = frozenset(self.plan.blocks)
        with as_written(), ExitStack() as hooks:
            # Blocks, and modules outside of blocks, may take the stream as input. Modules inside of
            # blocks are not looked at.
            for name, part in parts.items():
                is_inside = block_of(name, blocks) is not None
                if not is_inside or name in blocks:
                    hooks.enter_context(
                        part.register_forward_pre_hook(note_inputs, with_kwargs=True)
                    )
            for stack, of_stack in self.stacks.items():
                for block in of_stack:
                    if block in parts:
                        hook = hook_of(stack, block)
                        hooks.enter_context(
                            parts[block].register_forward_hook(hook, with_kwargs=True)
                        )
            yield ends

    def reserve(self, samples: int) -> None:
        """Reserve memory for a training run of this many samples.

        Only layers without stored weights need it.
        """
        if self.net is not None:
            self.net.reserve(samples)
