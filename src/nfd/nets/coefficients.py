"""``Coefficients``: the parameter of a structured layer, a number for each block and each sample of its update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nfd.nets.frame import LEAST_ROOM, padded
from nfd.nets.guarded import Guarded
from nfd.nets.learned import SLOTS, LearnedMatrix


class Coefficients(Guarded):
    """The column of W in its blocks and samples (``nfd.nets.learned``), padded with zeros.

    ``weights`` is the column of the gradient: 1 for every sample of the batch. Optimizers that are linear step the
    first by the second. What others see as the gradient is a fixed vector times the Frobenius norm of the dense
    gradient, so that clipping by norm is that of W, and an edit by entries is no multiple.
    """

    matrix: LearnedMatrix
    weights: Tensor | None = None
    unused: bool = True  # whether no step saw the block of the gradient

    @property
    def has_factors(self) -> bool:
        return self.weights is not None

    @property
    def held(self) -> list[Tensor]:
        return [tensor for tensor in (self.data, self._stored, self.weights) if tensor is not None]

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Record the rows of a batch, gradients and inputs."""
        self.settle()
        first = SLOTS + self.matrix.count
        self.matrix.record(right, left)
        last = SLOTS + self.matrix.count
        if last > len(self):
            room = max(last, len(self) + max(len(self) // 2, LEAST_ROOM))
            self.data = padded(self.data, room)
            self.weights = None if self.weights is None else padded(self.weights, room)
        if self.weights is None:
            self.weights = torch.zeros_like(self.data)
        self.weights[first:last] = 1.0

    def begin_gradient(self) -> None:
        if not self.has_gradient:
            self.weights = torch.zeros_like(self.data)

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        self.settle()
        weights = self.weights
        self.data = fn(self.data)
        self.weights = None if weights is None else fn(weights)
        self.accept()

    def descend(self, rate: float) -> bool:
        if not self.in_factors or self.weights is None:
            return False
        self.add_(self.weights, alpha=-rate)
        return True

    def enter_step(self) -> None:
        """Have the column of the gradient where optimizers of PyTorch look for it."""
        self.settle()
        self.unused = False
        if self.weights is not None:
            self._put(self.weights)
            self.made = self.weights, self.weights._version

    def leave_step(self, momentum: Tensor | None) -> None:
        """Have all samples stepped; compress them where they are many."""
        self.made = None
        self._put(None)
        if self.weights is None:
            return
        self.matrix.stepped = self.matrix.count
        if self.matrix.is_long:
            self.compress(momentum)

    def compress(self, momentum: Tensor | None) -> list[Tensor]:
        """Move all samples into the basis, and return its blocks: of W, of the momentum and of the gradient, if any."""
        columns = [self.data, momentum, self.weights]
        self.matrix.compress(columns)
        self.unused = True
        for slot, column in enumerate(columns):
            if column is not None:
                column.zero_()
                column[slot] = 1.0
        return [block[: self.matrix.basis.rank] for block in self.matrix.blocks if block is not None]

    def _gradient(self) -> Tensor:
        pattern = torch.arange(1, len(self) + 1, dtype=torch.float64, device=self.device).sin_()
        if self.weights is None or not len(self):
            return torch.zeros_like(self.data)
        shown: Tensor = pattern * (self.matrix.gradient_size(self.weights) / pattern.norm())
        return shown.to(self.dtype)

    def _scale_gradient(self, factor: float) -> None:
        if self.weights is not None:
            self.weights.mul_(factor) if factor else self.weights.zero_()

    def _drop_gradient(self) -> None:
        if self.weights is not None:
            self.weights = None
            self.matrix.forget()
            if self.unused:
                self.matrix.blocks[-1] = None

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"matrix": self.matrix}
