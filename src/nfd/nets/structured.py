"""``StructuredLinear``: a linear layer of any width with the limit of a Gaussian one, at O(n log n) a product."""

from __future__ import annotations

import torch
from torch import Tensor

from nfd.core.ambient import gradients
from nfd.core.errors import InputError, check_count, check_real
from nfd.core.names import Feedback
from nfd.core.random import Increment
from nfd.nets.factored import FactoredLinear, source_of
from nfd.nets.learned import LearnedMatrix


class StructuredLinear(FactoredLinear):
    """``y = x W' + b`` with ``W`` [out_features, in_features] that acts as a Gaussian matrix in the limit of width.

    The trained matrix is

        W = s W_0 + M Q'

    with W_0 of structured randomness (``nfd.nets.rotated``): entries of mean 0 and variance 1, products in O(n log n),
    nothing recorded. ``scale`` is s, which begins at ``std`` and moves by weight decay alone. ``update`` is M
    [out_features, rank], in units of W, beside an orthonormal basis Q of the inputs seen in training. So the layer
    stands in for an ``nn.Linear`` that starts with this ``std``, at the same rate, weight decay, momentum and norm
    clipping.

    Given W_0, the layer is a dense one whose gradients see inputs up to ``resolution``: what an input has outside of Q
    is answered by W_0 and learns nothing. A step costs O(n r b + n log n b), the state O(n r), r being the directions
    of the inputs that are longer than ``resolution``; two frames of n numbers a direction, where ``DeferredLinear`` has
    four, and an update that does not grow with inputs that repeat themselves.

    Training has the limit of Gaussian weights as the width grows, by universality of first-order methods; at finite
    width its law is not that of a Gaussian matrix. ``DeferredLinear`` has that law.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], an ordinary parameter that starts as in ``nn.Linear``.
        std: standard deviation of the entries of ``W`` at the start, at least 0.
        feedback: ``"shared"``, ``"independent"`` or ``"static"``, as in ``DeferredLinear``; the latter two draw a
            second matrix.
        resolution: a direction shorter than this, relative to its input, is not added to Q; above 0, below 1.
        seed: of W_0 and the bias. None draws one from PyTorch's generator of the CPU, as in ``DeferredLinear``.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where everything lives.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: as ``DeferredLinear`` does.

    Source: docs/mathematics/structured.md; the layer is no object of the paper.
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
        resolution: float = 0.1,
        seed: int | Increment | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        source = source_of(seed)
        if source.count != 1:
            raise InputError(
                "A StructuredLinear is no increment of a path: it is not Gaussian, so that halves of it do not add up. "
                "Give it a whole number as seed, or use DeferredLinear."
            )
        super().__init__(
            in_features,
            out_features,
            bias=bias,
            std=std,
            feedback=feedback,
            source=source,
            dtype=dtype,
            device=device,
        )
        self.matrix = LearnedMatrix(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            source=source,
            resolution=check_real("resolution", resolution, above=0.0, below=1.0),
            dtype=dtype,
            device=self.update.device,
        )
        self._grow(self.out_features, 0)

    @torch.no_grad()
    def complete(self) -> Tensor | tuple[Tensor, Tensor]:
        """The dense weights ``std W_0`` [out_features, in_features] of the start; with another feedback matrix, a pair.

        Training a dense layer from them repeats this layer's outputs, to rounding where the resolution drops nothing.
        Memory is O(out_features in_features).
        """
        identity = torch.eye(self.in_features, dtype=self.update.dtype, device=self.update.device)
        forward = self.matrix.forward.product(identity).T.mul_(self.std)
        if self.feedback == "shared":
            return forward
        return forward, self.matrix.backward.product(identity).T.mul_(self.std)

    @property
    def rank(self) -> int:
        """How many directions the update has."""
        return self.matrix.basis.rank

    def reserve(self, samples: int) -> None:
        """Make room for this many directions at once, so that growing never copies the basis."""
        self.matrix.basis.reserve(min(check_count("samples", samples, minimum=0), self.in_features))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, resolution={self.matrix.resolution:g}, rank={self.rank}"

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and ``Q'x``, with Q grown by the directions that x adds where it is recorded."""
        coordinates = self.matrix.coordinates(x, record)
        self._grow(self.out_features, self.rank)
        value = self.matrix.forward.product(x).mul_(self.scale.numbers)
        return value.addmm_(coordinates, self._learned().T), coordinates

    def ask_backward(self, g: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``g W`` and g itself, whose product with ``Q'x`` is the gradient of M."""
        static = self.feedback == "static"
        value = self.matrix.backward.transposed_product(g).mul_(self.std if static else self.scale.numbers)
        if not static:
            value.add_(self.matrix.combined(g @ self._learned()))
        return value, g

    def _learned(self) -> Tensor:
        """M ``[out_features, rank]``."""
        return self.update.numbers[: self.out_features, : self.rank]

    def _is_full(self) -> bool:
        return self.rank >= self.in_features
