"""``InFactors``: a matrix whose gradient stays in factors until somebody reads it."""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

GRADIENT: Any = torch.Tensor.grad  # where PyTorch keeps one


class InFactors(nn.Parameter):
    """A matrix whose gradient is a sum of products ``left' right`` over the rows of batches.

    As long as nobody reads it, it stays in these ``factors``, which are smaller and which ``descend`` needs alone; None
    where there are none.
    """

    factors: list[tuple[Tensor, Tensor]] | None = None

    @property
    def grad(self) -> Tensor | None:
        """The gradient, of the size of the parameter; it is made of its factors when it is first read."""
        if self.factors is not None:
            self._multiply()
        return self._stored

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.factors = None
        GRADIENT.__set__(self, value)

    @property
    def has_gradient(self) -> bool:
        """Whether there is a gradient; asking makes none of its factors."""
        return self.factors is not None or self._stored is not None

    @property
    def in_factors(self) -> bool:
        """Whether the whole gradient is in factors: autograd may have stored another one beside them."""
        return self.factors is not None and self._stored is None

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right``, of factors that nobody writes to, to the gradient."""
        self.factors = [*(self.factors or []), (left, right)]

    def descend(self, rate: float) -> bool:
        """Subtract ``rate`` times the gradient if that is in factors still; whether it was."""
        if not self.in_factors:
            return False
        for left, right in self.factors or []:
            torch.Tensor.__getitem__(self, block(left, right)).addmm_(left.T, right, alpha=-rate)
        return True

    def _multiply(self) -> None:
        """Have the gradient that is in factors as a tensor."""
        products = [left.T @ right for left, right in self.factors or []]
        beside = [] if self._stored is None else [self._stored]
        self.grad = reduce(torch.add, products + beside)

    @property
    def _stored(self) -> Tensor | None:
        """The gradient where PyTorch keeps it, for ourselves."""
        return cast("Tensor | None", GRADIENT.__get__(self))


def block(left: Tensor, right: Tensor) -> tuple[slice, slice]:
    """Where ``left' right`` lies in a matrix that may have grown since."""
    return slice(left.shape[1]), slice(right.shape[1])
