"""``DenseLinear``: the same layer as ``DeferredLinear`` with its weights stored."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.core.names import Feedback
from nfd.core.random import Increment
from nfd.wide.parameters import InFactors

_WIDE = 512  # from here on a pass over W takes longer than the calls that save it


class DenseLinear(nn.Module):
    """``y = x W'`` with ``W`` [out_features, in_features], i.i.d. N(0, 1) at the start.

    ``feedback`` says which matrix carries gradients backward: W itself (``"shared"``), an independent initial copy
    that receives the same gradient, so under any optimizer the same data updates (``"independent"``), or a copy
    that is never updated (``"static"``).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        feedback: Feedback = "shared",
        seed: int | Increment = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.feedback = feedback
        source = seed if isinstance(seed, Increment) else Increment(seed)

        def gaussian(name: str) -> Tensor:
            empty = torch.empty(out_features, in_features, dtype=dtype, device="cpu")
            drawn = source.normal_(empty, "init", name)
            return drawn.to(device)  # drawn on the CPU, so that a network begins alike on every device

        self.weight = nn.Parameter(gaussian("forward"))
        if feedback != "shared":
            self.feedback_weight = nn.Parameter(gaussian("backward"), requires_grad=feedback == "independent")

    def decouple_(self, seed: int | Increment) -> None:
        """Give a shared layer an independent feedback matrix; what it computes forward stays."""
        source = seed if isinstance(seed, Increment) else Increment(seed)
        self.feedback = "independent"
        empty = torch.empty_like(self.weight, device="cpu")
        self.feedback_weight = nn.Parameter(source.normal_(empty, "init", "backward").to(self.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        if isinstance(self.weight, InFactors):
            feedback_weight = self.weight if self.feedback == "shared" else self.feedback_weight
            return cast(Tensor, _InFactors.apply(x, self.weight, feedback_weight))  # type: ignore[no-untyped-call]
        if self.feedback == "shared":
            return nn.functional.linear(x, self.weight)
        return decoupled_product(x, self.weight, self.feedback_weight)


def factor_gradients_(net: nn.Module) -> None:
    """Have every wide dense layer keep its gradients in factors: a step of plain SGD then reads and writes W alone.

    For networks that are given matrices ``[b, in_features]``, which nobody writes to, and stepped by ``nfd.SGD``.
    """
    for layer in net.modules():
        if isinstance(layer, DenseLinear) and layer.weight.shape[1] >= _WIDE:
            for name, weight in layer.named_parameters():
                setattr(layer, name, InFactors(weight.data, weight.requires_grad))


def decoupled_product(x: Tensor, weight: Tensor, feedback_weight: Tensor) -> Tensor:
    """``x W'`` forward, the feedback matrix backward; weights [out, in], or stacks of them for stacks of x."""
    return cast(Tensor, _Decoupled.apply(x, weight, feedback_weight))  # type: ignore[no-untyped-call]


class _Decoupled(torch.autograd.Function):
    """``x W'`` whose input gradient goes through another matrix; both matrices get the gradient of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, feedback_weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, feedback_weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        x, feedback_weight = ctx.saved_tensors
        _, weight_needs, feedback_needs = ctx.needs_input_grad
        update = None
        if weight_needs or feedback_needs:
            single = feedback_weight.dim() == 2
            update = g.flatten(0, -2).T @ x.flatten(0, -2) if single else g.mT @ x
        return g @ feedback_weight, update, update if feedback_needs else None


class _InFactors(torch.autograd.Function):
    """``x W'``, whose input gradient goes through W or its feedback copy, and whose gradients of both are factors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: InFactors, feedback_weight: InFactors) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weights = weight, feedback_weight
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (g,), (x,) = grads, ctx.saved_tensors
        for weight in dict.fromkeys(ctx.weights):
            if weight.requires_grad:
                weight.add_gradient(g, x)
        return g @ ctx.weights[-1], None, None
