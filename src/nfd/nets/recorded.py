"""``RecordedLinear``: a structured layer whose update is kept as the samples that made it, for training by SGD.

    W = s W_0 + G' diag(c) X

X and G ``[N, n]`` hold the inputs of the layer and the gradients of its outputs, sample by sample, as they came. SGD
subtracts ``lr g'x`` for every sample, so that a sample that is new in a step enters with ``c = -lr``: of all samples of
the step, ``dLoss/dc`` is 1. Momentum and schedules are linear, and so act on c as they act on W. Weight decay would
have to act on s too, which is a number here: train without it.

Nothing is orthogonalised and nothing is dropped, and X and G are read once in each direction. ``StructuredLinear``
holds fewer directions than samples where the layer sees many samples that are alike; it is cheaper for those.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.nets.frame import Frame, add_rows, inner, tiled
from nfd.nets.structured import StructuredLinear


class RecordedLinear(nn.Module):
    """``y = x W'`` of ``[b, n_in]`` with the W_0, the start and the feedback of an untrained structured layer.

    Args:
        layer: whose matrices are used. samples: how many the training has.
    """

    def __init__(self, layer: StructuredLinear, samples: int) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.matrix, self.std, self.feedback = layer.matrix, layer.std, layer.feedback
        like = layer.scale.data
        self.inputs = Frame(layer.in_features, dtype=like.dtype, device=like.device)
        self.gradients = Frame(layer.out_features, dtype=like.dtype, device=like.device)
        for frame in (self.inputs, self.gradients):
            frame.reserve(samples)
        self.coefficients = nn.Parameter(like.new_zeros(samples))

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n_in]`` to ``[b, n_out]``; the samples of a pass are recorded by its backward pass."""
        return cast(Tensor, _Product.apply(x, self.coefficients, self))  # type: ignore[no-untyped-call]

    def record(self, x: Tensor, g: Tensor) -> Tensor:
        """Keep a batch; ``dLoss/dc``, 1 for its samples."""
        first = self.inputs.rank
        self.inputs.append(tiled(x))
        self.gradients.append(tiled(g))
        of_batch = torch.zeros_like(self.coefficients)
        of_batch[first : self.inputs.rank] = 1.0
        return of_batch

    def add_update(self, y: Tensor, x: Tensor, frames: tuple[Frame, Frame]) -> None:
        """Add ``x A' diag(c) B`` to rows y, with A and B the samples of these two frames."""
        A, B = frames
        if A.rank:
            products = inner(tiled(x), A.tiles) * self.coefficients.detach()[: A.rank]
            add_rows(y, products, B.tiles)


def record_updates_(net: nn.Module, samples: int) -> None:
    """Replace every structured layer of an untrained network by a ``RecordedLinear``."""
    for parent in list(net.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, StructuredLinear):
                setattr(parent, name, RecordedLinear(layer, samples))


class _Product(torch.autograd.Function):
    """``x W'``, and ``g W`` or its feedback copy backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficients: Tensor, layer: RecordedLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        y = layer.matrix.forward.product(x, layer.std)
        layer.add_update(y, x, (layer.inputs, layer.gradients))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        g, (x,) = grads[0].contiguous(), ctx.saved_tensors
        layer: RecordedLinear = ctx.layer
        back = layer.matrix.backward.transposed_product(g, layer.std)
        if layer.feedback != "static":
            layer.add_update(back, g, (layer.gradients, layer.inputs))
        return back, layer.record(x, g), None
