"""Shampoo for networks with layers without stored weights: gradients between roots of their own covariances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from nfd.core.errors import check_real
from nfd.nets.equivariant import EquivariantOptimizer
from nfd.nets.factored_optimizer import SIDES


class Shampoo(EquivariantOptimizer):
    """Shampoo for matrices, stored or of ``DeferredLinear``: preconditioned by roots of their gradients' covariances.

    Every matrix is preconditioned as a whole, without blocks and without grafting.

    With ``L <- L + G G'``, ``R <- R + G'G`` and the momentum ``B <- mu B + (1 - mu) G``,

        W <- (1 - lr wd) W - lr (L + eps l(L) I)^-1/4 B (R + eps l(R) I)^-1/4

    where G is the gradient and ``l(L)`` the largest eigenvalue of L, so that the size of the gradients does not matter.
    Without momentum no singular value of an update (at rate 1) is above 1, and in the first step all are near 1, as
    those of Muon. A ``StructuredLinear`` is refused: L or R would be as large as its W.

    Args:
        params: matrices, and all parameters of deferred layers except biases.
        lr: the rate, at least 0. weight_decay: decoupled, at least 0.
        momentum: mu, from 0 to below 1.
        eps: the number added to all eigenvalues, relative to the largest; above 0.

    Raises:
        ValueError, TypeError, RuntimeError: as ``nfd.EquivariantOptimizer``.

    Source: Gupta, Koren and Singer 2018; relative eps: Anil et al. 2020; docs/mathematics/deferred-decisions.md.

    Example::

        layer = nfd.DeferredLinear(4096, 4096)
        optimizer = nfd.Shampoo([layer.update, layer.scale], lr=0.02)
    """

    kind = "nfd.Shampoo"
    is_proved = True
    states: ClassVar = {"momentum_buffer": SIDES, "left": ("rows", "rows"), "right": ("columns", "columns")}
    numbers = ("lr", "weight_decay", "momentum", "eps")

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, momentum: float = 0.0, eps: float = 1e-6
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, eps=eps)

    def check_settings(self, settings: Mapping[str, Any], where: str) -> None:
        super().check_settings(settings, where)
        if "momentum" in settings:
            check_real(f"momentum of {where}", settings["momentum"], below=1.0)

    def direction(self, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> Tensor:
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        left = state["left"].addmm_(gradient, gradient.T)
        right = state["right"].addmm_(gradient.T, gradient)
        return power(left, -0.25, group["eps"]) @ average @ power(right, -0.25, group["eps"])


def power(A: Tensor, exponent: float, eps: float) -> Tensor:
    """``(A + eps |A| I)^exponent`` of a covariance A, and NaN where A is not finite, as after a run that diverged."""
    if not A.isfinite().all():
        return torch.full_like(A, torch.nan)
    values, vectors = torch.linalg.eigh(A)
    values = (values.clamp_min(0) + eps * values[-1]).clamp_min(torch.finfo(A.dtype).tiny)
    return torch.matmul(vectors * values**exponent, vectors.T)
