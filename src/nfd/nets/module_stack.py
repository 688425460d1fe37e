"""``ModuleStack``: modules of one shape as one, by ``torch.func``.

``vmap`` runs the forward pass of the first module on the tensors of all, ``[R, ...]``, so that every operation is one
call for R networks. What differs between them must be in their parameters and buffers: a caller that does not know
compares with the modules themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten


class ModuleStack(nn.Module):
    """R modules that take the same inputs; outputs are ``[R, ...]``, equal to those of each to rounding.

    Args:
        modules: with tensors of the same names and shapes, of which the stack has copies.

    Raises:
        ValueError, RuntimeError: where their tensors differ in shape; and by ``forward``, what ``vmap`` raises of
            random numbers, of control flow that depends on data, and of buffers that change.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.first = modules[0]
        self.weights = _together([dict(module.named_parameters()) for module in modules])
        for name, p in self.first.named_parameters():
            self.weights[name].requires_grad_(p.requires_grad)
        buffers = _together([dict(module.named_buffers()) for module in modules])
        self.buffers_apart = {name: b for name, b in buffers.items() if bool((b != b[0]).any())}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What each of the modules returns, its tensors as ``[R, ...]``, and all else as the first returns it."""

        def of_one(tensors: dict[str, Tensor]) -> Any:
            return functional_call(self.first, tensors, args, kwargs)

        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused attention, and would call it R times
            return over_tensors(of_one, {**self.weights, **self.buffers_apart})


def over_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """``vmap`` of a function over the tensors in a value; what else is in the value, or in the result, stays."""
    tensors, rebuilt = _taken_apart(value)
    rebuild: list[Callable[[Sequence[Tensor]], Any]] = []

    def of_one(own: list[Tensor]) -> list[Tensor]:
        made, made_rebuilt = _taken_apart(function(rebuilt(own)))
        rebuild.append(made_rebuilt)
        return made

    mapped = vmap(of_one)(tensors)
    return rebuild[-1](mapped)


def _taken_apart(value: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors in a value, and what puts others in their places."""
    leaves, structure = tree_flatten(value)

    def rebuilt(tensors: Sequence[Tensor]) -> Any:
        others = iter(tensors)
        return tree_unflatten([next(others) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)

    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], rebuilt


def _together(alone: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Every tensor of all modules, ``[R, ...]``."""
    return {name: torch.stack([own[name].detach() for own in alone]) for name in alone[0]}
