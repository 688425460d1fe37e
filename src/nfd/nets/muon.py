"""Muon for networks with layers without stored weights: an orthogonalised update of the matrix as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.errors import InputError, check_count, check_flag, check_real
from nfd.nets.factored_optimizer import FactoredOptimizer
from nfd.nets.guarded import Guarded
from nfd.scaling.rules import MAX_ETA_C

Shape = Literal["original", "match_rms_adamw"]
_NUMBERS = ("lr", "weight_decay", "momentum", "eps")
_MOST_STEPS = 100

# PyTorch's defaults
MOMENTUM, EPSILON, STEPS = 0.95, 1e-7, 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(FactoredOptimizer):
    """``torch.optim.Muon`` that also steps ``DeferredLinear`` and ``StructuredLinear``, whose parameters grow.

    With the momentum ``B <- mu B + (1 - mu) G`` and ``M = (1 - mu) G + mu B`` (Nesterov) or ``M = B``,

        W <- (1 - lr wd) W - lr c NS(M)

    where NS brings every singular value near 1 by Newton-Schulz steps, and c follows from the shape of W. NS is an odd
    polynomial of the singular values of ``M / |M|``, so that ``NS(P M Q') = P NS(M) Q'`` for orthonormal P and Q: it is
    exact on the small matrix of a layer without stored weights; decay acts on its scale too. Here NS runs on the
    smaller Gram matrix of M and in the precision of M. PyTorch's runs on M in bfloat16, which also turns rounding
    beside a gradient of low rank into a part of the step.

    Args:
        params: matrices, and all parameters of layers without stored weights except biases. The rest of a model needs
            another optimizer: ``plan.make_optimizer`` of a plan with ``optimizer="muon"`` makes one of both.
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as in ``torch.optim.Muon``.

    Raises:
        ValueError, TypeError: for parameters that are no matrices, and settings that are not Muon's.
        RuntimeError: by ``step``, as by ``nfd.SGD``.

    Source: Jordan et al. 2024, Muon; docs/mathematics/deferred-decisions.md.
    """

    kind = "nfd.Muon"
    options = frozenset({*_NUMBERS, "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn", "use_muon"})
    of_one_matrix = ("lr", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = MOMENTUM,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = EPSILON,
        ns_steps: int = STEPS,
        adjust_lr_fn: Shape | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        self.check_group(settings, "the options")
        super().__init__(self.check_params(params), settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add matrices with settings of their own; the others are the defaults."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dim() != 2 and not isinstance(p, Guarded):
                del self.param_groups[-1]
                raise InputError(
                    f"nfd.Muon steps matrices; params hold one of shape {list(p.shape)}. Give vectors, embeddings and "
                    "readouts to torch.optim.AdamW, or plan with optimizer='muon', which does."
                )

    def check_settings(self, settings: Mapping[str, Any], where: str) -> None:
        for name in _NUMBERS:
            if name in settings:
                check_real(f"{name} of {where}", settings[name], least=0.0, below=MAX_ETA_C)
        if "nesterov" in settings:
            check_flag(f"nesterov of {where}", settings["nesterov"])
        if "ns_steps" in settings:
            check_count(f"ns_steps of {where}", settings["ns_steps"], maximum=_MOST_STEPS - 1)
        coefficients = settings.get("ns_coefficients", (1, 1, 1))
        if not isinstance(coefficients, Sequence) or len(coefficients) != 3:
            raise InputError(f"ns_coefficients of {where} must be three numbers; got {coefficients!r}.")
        for coefficient in coefficients:
            check_real(f"ns_coefficients of {where}", coefficient)
        if settings.get("adjust_lr_fn") not in (None, "original", "match_rms_adamw"):
            raise InputError(
                f"adjust_lr_fn of {where} must be 'original' or 'match_rms_adamw'; got {settings['adjust_lr_fn']!r}."
            )

    def moves_scale(self, group: Mapping[str, Any]) -> bool:
        return bool(group["weight_decay"])

    def apply_rule(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - float(group["lr"]) * group["weight_decay"])
                    if p.dim() == 2 and p.numel():
                        self._turn(p, p.grad, group)

    def _turn(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        """Add the orthogonalised part of a step to a matrix."""
        state, momentum = self.state[p], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        average = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        M = grad.lerp(average, momentum) if group["nesterov"] else average
        shape = p.stands_for if isinstance(p, Guarded) else (p.shape[0], p.shape[1])
        update = orthogonalised(M, group["ns_coefficients"], group["ns_steps"], group["eps"])
        p.add_(update, alpha=-float(group["lr"]) * shape_factor(group["adjust_lr_fn"], *shape))


def orthogonalised(M: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """``X_k`` of ``X_0 = M / |M|`` and ``X <- a X + b A X + c A^2 X`` with ``A = X X'``, for a wide M.

    Every X is ``P M`` with P a polynomial of ``A_0``, and all these commute: the steps act on P and A alone.
    """
    a, b, c = coefficients
    size = torch.linalg.vector_norm(M).clamp_min(eps)
    is_wide = M.shape[0] <= M.shape[1]
    A = (M @ M.T if is_wide else M.T @ M) / size**2
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    P = identity / size
    for remaining in reversed(range(steps)):
        turn = a * identity + b * A + c * A @ A
        P = P @ turn
        if remaining:
            A = turn @ A @ turn
    return torch.matmul(P, M) if is_wide else torch.matmul(M, P)


def shape_factor(adjust: Shape | None, rows: int, columns: int) -> float:
    """What PyTorch multiplies the rate of a matrix by."""
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))
