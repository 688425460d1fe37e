"""What one pass of a network shows, and the products that its recursion is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

from nfd.core.errors import StateError


@dataclass
class Streams:
    """The vectors of one pass: outputs [b, C], h [L+1, b, n], x_inner [L, b, n] (two-layer blocks), delta.

    ``delta`` = sqrt(n)/alpha dLoss/dh, [L+1, b, n], does not scale with the width: it is the paper's g (Eq. 3) weighted
    by dLoss/df and summed over outputs. It exists after ``loss.backward()``.
    """

    outputs: Tensor
    gradient_scale: float
    layers: list[Tensor] = field(repr=False)
    inner: list[Tensor] = field(repr=False)

    @property
    def h(self) -> Tensor:
        """The residual stream after every block, [L+1, b, n]."""
        return torch.stack([h.detach() for h in self.layers])

    @property
    def x_inner(self) -> Tensor | None:
        """The pre-activation inside every two-layer block, [L, b, n]; None for other networks."""
        return torch.stack([x.detach() for x in self.inner]) if self.inner else None

    @property
    def delta(self) -> Tensor:
        """sqrt(n)/alpha dLoss/dh, [L+1, b, n]."""
        if any(h.grad is None for h in self.layers):
            raise StateError("delta exists after loss.backward() on a loss of these outputs; it was not called yet.")
        return self.gradient_scale * torch.stack([cast(Tensor, h.grad) for h in self.layers])


class Arithmetic(Protocol):
    """The products of a network's recursion: with the weights of one network, or of a stack of them."""

    @property
    def branch(self) -> float | Tensor:
        """m, the residual multiplier."""

    def embed(self, x: Tensor) -> Tensor:
        """``U x / sqrt(d)``."""

    def product(self, layer: str, index: int, x: Tensor) -> Tensor:
        """``W x / sqrt(n)``."""

    def add(self, h: Tensor, layer: str, index: int, x: Tensor) -> Tensor:
        """``h + m W phi(x) / sqrt(n)``."""

    def read(self, h: Tensor) -> Tensor:
        """``alpha / sqrt(n) V h``."""
