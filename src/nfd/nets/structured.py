"""``StructuredLinear``: a linear layer of any width with the limit of a Gaussian one, at O(n log n) a product."""

from __future__ import annotations

import math
from typing import cast, get_args

import torch
from torch import Tensor

from nfd.core.errors import check_choice, check_count
from nfd.core.machine import gradients
from nfd.core.names import BasisName, Feedback, Space
from nfd.core.random import Increment
from nfd.nets.coefficients import Coefficients
from nfd.nets.factored import FactoredLinear, Kept
from nfd.nets.guarded import Guarded
from nfd.nets.learned import LearnedMatrix
from nfd.nets.matrix import source_of


class StructuredLinear(FactoredLinear):
    """A linear layer with fast products, whose training has the same limit of width as that of Gaussian weights.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features]. The trained matrix is

        W = s W_0 + G' C X + U'B    or    W = s W_0 + G' C X + B'U

    where W_0 is made of random signs and fast transforms (``nfd.nets.rotated``): its entries have mean 0 and variance
    1, and a product takes O(n log n). ``scale`` is s, which begins at ``std`` and moves only by weight decay. X and G
    are the inputs of the layer and the gradients of its outputs, sample by sample. When samples are many, they are
    compressed: B is an orthonormal basis of the inputs seen in training, or of the gradients. ``update`` holds a
    coefficient of every sample, and its gradient has the norm of that of W. So the layer replaces an ``nn.Linear`` that
    starts with this ``std``, at the same rate, weight decay, momentum and norm clipping.

    Given W_0, the layer is a dense one, unless a ``resolution`` leaves out short directions. With r samples, or
    directions of B, a step of b samples costs O(n r b + n log n b), and the state takes O(n r).

    As the width grows, training has the limit of Gaussian weights, by universality of first-order methods. At finite
    width its distribution is another; ``DeferredLinear`` has exactly that of a Gaussian matrix.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], an ordinary parameter that starts as in ``nn.Linear``.
        std: standard deviation of the entries of ``W`` at the start, at least 0.
        feedback: ``"shared"``, ``"independent"`` or ``"static"``, as in ``DeferredLinear``; the latter two draw a
            second matrix.
        basis: of ``"inputs"``, of ``"gradients"``, or ``"auto"`` for the one of smaller rank in the first samples. In a
            Transformer, vectors of the residual stream have fewer directions than vectors inside of a branch.
        resolution: when samples are compressed, a vector whose remainder outside of B is shorter than this adds no
            direction; at least 0, below 1. Relative to the vector, or to the root mean square of the samples where that
            is longer. None, or 0, leaves out what rounding would: the layer is then a dense one. What is left out is
            not learned; rules that normalise, such as ``nfd.Muon``, would have given it full strength, and warn.
        seed: of W_0 and the bias. None draws one from PyTorch's generator of the CPU, as in ``DeferredLinear``. With an
            ``nfd.core.random.Increment`` W_0 is a sum of independent matrices, as many as the path was halved to it.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where everything lives.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: as ``DeferredLinear`` does.

    Source: docs/mathematics/structured.md; the paper has no such layer.

    Example::

        layer = nfd.StructuredLinear(2**16, 2**16, std=2**-8)
        layer(torch.randn(2, 2**16))
    """

    matrix: LearnedMatrix
    update: Coefficients

    @gradients()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        std: float = 1.0,
        feedback: Feedback = "shared",
        basis: BasisName = "auto",
        resolution: float | None = None,
        seed: int | Increment | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        source = source_of(seed)
        basis = cast(BasisName, check_choice("basis", basis, get_args(BasisName)))
        super().__init__(
            in_features,
            out_features,
            bias=bias,
            std=std,
            feedback=feedback,
            source=source,
            resolution=resolution,
            dtype=dtype,
            device=device,
        )
        self.matrix = LearnedMatrix(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            space=None if basis == "auto" else basis,
            source=source,
            resolution=self.update.resolution,
            dtype=dtype,
            device=self.update.device,
        )
        self.update.matrix = self.matrix

    def _begun(self, dtype: torch.dtype, device: torch.device) -> Guarded:
        return Coefficients(torch.zeros(0, dtype=dtype, device=device))

    @property
    def basis(self) -> Space | None:
        """Of which vectors the update has a basis; None before it has one."""
        return self.matrix.space if self.matrix.settled else None

    @property
    def rank(self) -> int:
        """How many vectors of each side the update has: directions of its basis, and samples beside."""
        return self.matrix.basis.rank + self.matrix.count

    @property
    def directions(self) -> int:
        """Those of the basis."""
        return self.matrix.basis.rank

    def multiplications(self, rows: int) -> float:
        size = max(self.in_features, self.out_features)
        return rows * size * (self.rank + math.log2(size + 1))

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, or for those that are kept before they are compressed."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Kept]:
        """``x W'``, and x itself."""
        value = self.matrix.forward.product(x, self.scale.data)
        self.matrix.add_update(value, x, "inputs", self.update.data)
        return value, (x, None)

    def ask_backward(self, g: Tensor, kept: Kept, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of W."""
        static = self.feedback == "static"
        value = self.matrix.backward.transposed_product(g, self.std if static else self.scale.data)
        if not static:
            self.matrix.add_update(value, g, "gradients", self.update.data)
        self._warn_if_full()
        return value, g, kept[0]
