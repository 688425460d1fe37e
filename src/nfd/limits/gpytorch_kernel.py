"""The infinite-depth kernels for GPyTorch, with a horizon that learns (``pip install 'nfd[gpytorch]'``)."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import torch
from torch import Tensor

from nfd.core.errors import check_real
from nfd.limits.kernel import gram_matrix


class InfiniteDepthKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """Kernel of the infinitely wide and deep residual network with a learnable positive horizon.

    Gradients flow to the horizon, through dK/dT of ``nfd.limits.flow``, and not to the inputs. Computed in float64.

    Args:
        kind, activation: as in ``nfd.kernel``.
        horizon: T at the start.

    Source: Props. 3 and 5.
    """

    has_lengthscale = False

    def __init__(self, kind: str = "nngp", activation: str = "relu", horizon: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind, self.activation = kind, activation
        self.register_parameter("raw_horizon", torch.nn.Parameter(torch.zeros(())))
        self.register_constraint("raw_horizon", gpytorch.constraints.Positive())
        self.initialize(raw_horizon=self.raw_horizon_constraint.inverse_transform(
            torch.tensor(check_real("horizon", horizon, above=0.0))
        ))  # fmt: skip

    @property
    def horizon(self) -> Tensor:
        """T."""
        transformed: Tensor = self.raw_horizon_constraint.transform(self.raw_horizon)
        return transformed

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """``[N, M]``, or ``[N]`` for the diagonal of equal inputs."""
        if x1.dim() != 2:
            raise ValueError(f"inputs must be [N, d], without batches; got shape {list(x1.shape)}.")
        K: Tensor = _Gram.apply(self.horizon, x1, None if x1 is x2 or torch.equal(x1, x2) else x2, self)  # type: ignore[no-untyped-call]
        if not diag:
            return K
        return K.diagonal()

    def value(self, x1: Tensor, x2: Tensor | None, horizon: float) -> tuple[Tensor, Tensor]:
        """The Gram matrix and its derivative in T."""
        K, slope, _ = gram_matrix(
            x1.double(),
            None if x2 is None else x2.double(),
            kind=self.kind,
            activation=self.activation,
            horizon=horizon,
            depth=math.inf,
            slopes=True,
        )
        assert slope is not None
        return K, slope


class _Gram(torch.autograd.Function):
    """The Gram matrix as a function of the horizon."""

    @staticmethod
    def forward(ctx: Any, horizon: Tensor, x1: Tensor, x2: Tensor | None, kernel: InfiniteDepthKernel) -> Tensor:
        K, slope = kernel.value(x1.detach(), None if x2 is None else x2.detach(), float(horizon))
        ctx.save_for_backward(slope)
        ctx.like = horizon
        return K.to(x1.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return (grads[0].double() * slope).sum().to(ctx.like.dtype).view_as(ctx.like), None, None, None
