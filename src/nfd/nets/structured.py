"""``StructuredLinear``: a linear layer of any width with the limit of a Gaussian one, at O(n log n) a product."""

from __future__ import annotations

from typing import cast, get_args

import torch
from torch import Tensor

from nfd.core.ambient import gradients
from nfd.core.errors import check_choice, check_count
from nfd.core.names import BasisName, Feedback, Space
from nfd.core.random import Increment
from nfd.nets.factored import FactoredLinear, Kept
from nfd.nets.learned import LearnedMatrix, room_for
from nfd.nets.matrix import source_of


class StructuredLinear(FactoredLinear):
    """A linear layer with fast products, whose training has the same limit of width as that of Gaussian weights.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features]. The trained matrix is

        W = s W_0 + U'B'    or    W = s W_0 + B U

    where W_0 is made of random signs and fast transforms (``nfd.nets.rotated``): its entries have mean 0 and variance
    1, and a product takes O(n log n). ``scale`` is s, which begins at ``std`` and moves only by weight decay.
    ``update`` is U, in units of W and padded with zeros. B is an orthonormal basis of the inputs seen in training, or
    of the gradients. So the layer replaces an ``nn.Linear`` that starts with this ``std``, at the same rate, weight
    decay, momentum and norm clipping.

    Given W_0, the layer is a dense one that learns only in the directions of B: all that it has met, unless a
    ``resolution`` leaves out the short ones. The part of an input outside of B is multiplied by W_0 and learns nothing.
    With r directions in B, a step of b samples costs O(n r b + n log n b), and the state takes O(n r).

    As the width grows, training has the limit of Gaussian weights, by universality of first-order methods. At finite
    width its distribution is another; ``DeferredLinear`` has exactly that of a Gaussian matrix.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], an ordinary parameter that starts as in ``nn.Linear``.
        std: standard deviation of the entries of ``W`` at the start, at least 0.
        feedback: ``"shared"``, ``"independent"`` or ``"static"``, as in ``DeferredLinear``; the latter two draw a
            second matrix.
        basis: of ``"inputs"``, of ``"gradients"``, or ``"auto"`` for the one of smaller rank in the first batch. In a
            Transformer, vectors of the residual stream have fewer directions than vectors inside of a branch.
        resolution: a vector whose remainder outside of B is shorter than this adds no direction; at least 0, below 1.
            Relative to the vector, or to the root mean square of its batch where that is longer. None, or 0, leaves out
            what rounding would: the layer is then a dense one. What is left out never learns, however long training
            takes; and rules that normalise, such as ``nfd.Muon``, would have given it full strength, and warn.
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

    @property
    def basis(self) -> Space | None:
        """Of which vectors the update has a basis; None before the first batch settles it."""
        return self.matrix.space if self.matrix.settled else None

    @property
    def rank(self) -> int:
        """How many directions the update has."""
        return self.matrix.basis.rank

    @property
    def directions(self) -> int:
        """The same."""
        return self.rank

    def reserve(self, samples: int) -> None:
        """Make room for this many directions at once, so that growing never copies the basis."""
        self.matrix.basis.reserve(min(check_count("samples", samples, minimum=0), self.matrix.basis.n))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Kept]:
        """``x W'``, x itself, and its products with B where that is a basis of inputs."""
        value = self.matrix.forward.product(x, self.scale.data)
        products = self.matrix.add_learned(value, x, "inputs", self.update.data) if self.rank else None
        return value, (x, products)

    def ask_backward(self, g: Tensor, kept: Kept, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of U."""
        static = self.feedback == "static"
        value = self.matrix.backward.transposed_product(g, self.std if static else self.scale.data)
        x, products = kept
        if self.rank and not static:
            of_gradients = self.matrix.add_learned(value, g, "gradients", self.update.data)
            products = products if of_gradients is None else of_gradients
        left, right = self.matrix.factors(x, g, products, record)
        rows, columns = self.matrix.shape
        self._grow(max(len(self.update), room_for(rows, self.matrix.basis.n)), columns)
        return value, left, right
