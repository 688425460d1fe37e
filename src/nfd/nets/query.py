"""A query of a matrix that is not stored, as an operation of autograd: of W forward, of its transpose backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nfd.core.errors import StateError
from nfd.core.machine import threads_for
from nfd.nets.guarded import Guarded
from nfd.nets.refusals import STORED, refuse_second_derivatives, refuse_tracing

if TYPE_CHECKING:
    from nfd.nets.factored import FactoredLinear

Kept = tuple[Tensor, Tensor | None]  # of a forward pass, for the backward pass of the same rows


class Query(torch.autograd.Function):
    """``W x`` for the rows of ``x``; the gradient of D is accumulated by hand.

    D grows between the two passes, so autograd could not check the shape of a returned gradient; adding to ``D.grad``
    directly survives any number of passes before a step. D is an argument only so that the output requires grad.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Guarded, layer: FactoredLinear, record: bool) -> Tensor:
        with threads_for(layer.multiplications(len(x))):
            value, kept = layer.ask_forward(x.detach(), record)
        ctx.layer, ctx.record, ctx.state = layer, record, _state(update)
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise StateError(f"{ctx.layer.kind} has no derivatives in forward mode. Use backward(), or {STORED}.")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        (g,) = grads
        layer: FactoredLinear = ctx.layer
        refuse_tracing(layer)
        refuse_second_derivatives(layer)
        if _state(layer.update) != ctx.state:
            raise StateError(
                f"The weights of a {layer.kind} were stepped, loaded or converted between a forward pass and its "
                "backward pass. Call backward() before optimizer.step(), or run the forward pass again."
            )
        with threads_for(layer.multiplications(len(g))):
            value, left, right = layer.ask_backward(g.contiguous(), ctx.saved_tensors, ctx.record)
        if _asked(ctx.next_functions[1][0], layer.kind):
            layer.accumulate(left, right)
        return value if ctx.needs_input_grad[0] else None, None, None, None


def _asked(accumulator: Any, kind: str) -> bool:
    """Whether this backward pass is to add to the gradient of D."""
    if accumulator is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(accumulator))
    except RuntimeError:  # PyTorch's, of a leaf among what torch.autograd.grad is asked for
        raise StateError(
            f"{kind} gives no gradient of its update to torch.autograd.grad: D grows while it is computed. Call "
            "backward(), which adds it to .grad, or leave the update out of what you ask for."
        ) from None


def _state(update: Guarded) -> tuple[int, int, torch.dtype]:
    return update._version, update.generation, update.dtype
