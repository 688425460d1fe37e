"""Muon for networks with layers without stored weights: an orthogonalised update of the matrix as a whole."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.errors import InputError, check_choice, check_count, check_flag, check_real
from nfd.nets.coefficients import Coefficients
from nfd.nets.factored_optimizer import FactoredOptimizer, is_factored
from nfd.nets.guarded import Guarded
from nfd.nets.orthogonal import TOLERANCE

Shape = Literal["original", "match_rms_adamw"]
_MOST_STEPS = 100

# PyTorch's defaults
MOMENTUM, EPSILON, STEPS = 0.95, 1e-7, 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(FactoredOptimizer):
    """``torch.optim.Muon`` for models with ``DeferredLinear`` or ``StructuredLinear``, whose parameters grow.

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
        ValueError, TypeError: if a parameter is not a matrix, and for settings that Muon does not have.
        RuntimeError: by ``step``, as by ``nfd.SGD``.

    Source: Jordan et al. 2024, Muon; docs/mathematics/deferred-decisions.md.

    Example::

        layer = nfd.DeferredLinear(4096, 4096)
        optimizer = nfd.Muon([layer.update, layer.scale], lr=0.02)
    """

    kind = "nfd.Muon"
    numbers = ("lr", "weight_decay", "momentum", "eps")

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
        self.check_settings(settings, "the options")
        super().__init__(self.check_params(params), settings)

    @property
    def options(self) -> frozenset[str]:
        return frozenset({*self.defaults, "use_muon"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices; settings that it does not have are the defaults."""
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        vectors = [list(p.shape) for p in params if not isinstance(p, Guarded) and p.dim() != 2]
        if vectors:
            del self.param_groups[-1]
            raise InputError(
                f"{self.kind} steps matrices; params hold one of shape {vectors[0]}. Give vectors, embeddings and "
                "readouts to torch.optim.AdamW, or plan with optimizer='muon', which does."
            )
        coarsest = max((p.resolution for p in params if isinstance(p, Guarded)), default=0.0)
        if coarsest > max(TOLERANCE.values()):
            warnings.warn(
                f"Layers with resolution={coarsest:g} leave out short directions, but {self.kind} steps these as far "
                "as long ones, so that nothing bounds the difference: inputs with a large common offset differ in "
                "short directions alone. Leave resolution out, or compare with a narrower network without one.",
                stacklevel=4,
            )

    def check_settings(self, settings: Mapping[str, Any], where: str) -> None:
        super().check_settings(settings, where)
        if "nesterov" in settings:
            check_flag(f"nesterov of {where}", settings["nesterov"])
        if "ns_steps" in settings:
            check_count(f"ns_steps of {where}", settings["ns_steps"], maximum=_MOST_STEPS - 1)
        coefficients = settings.get("ns_coefficients", (1, 1, 1))
        if not isinstance(coefficients, Sequence) or len(coefficients) != 3:
            raise InputError(f"ns_coefficients of {where} must be three numbers; got {coefficients!r}.")
        for coefficient in coefficients:
            check_real(f"ns_coefficients of {where}", coefficient)
        if settings.get("adjust_lr_fn") is not None:
            check_choice(f"adjust_lr_fn of {where}", settings["adjust_lr_fn"], ("original", "match_rms_adamw"))

    def apply_rule(self) -> None:
        """Update all parameters that have a gradient; ``step`` calls it."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - float(group["lr"]) * group["weight_decay"])
                    if p.dim() and p.numel():
                        self._move(p, p.grad, group)

    def _move(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        """Add the part of a step that comes from the gradient."""
        state, momentum = self.state[p], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        W, average, G = p, state["momentum_buffer"], grad
        if isinstance(p, Coefficients):  # in their basis, whose rows are orthonormal
            W, average, G = p.compress(average)
        average.lerp_(G, 1 - momentum)
        M = G.lerp(average, momentum) if group["nesterov"] else average
        update = orthogonalised(M, group["ns_coefficients"], group["ns_steps"], group["eps"])
        shape = p.stands_for if isinstance(p, Guarded) else p.shape
        W.add_(update, alpha=-float(group["lr"]) * shape_factor(group["adjust_lr_fn"], shape[0], shape[1]))


def orthogonalised(M: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """``X_k`` of ``X_0 = M / |M|`` and ``X <- a X + b A X + c A^2 X`` with ``A = X X'``, for a wide M."""
    size = torch.linalg.vector_norm(M).clamp_min(eps)
    for done in range(0, steps, STEPS):
        M = _turned(M, size, coefficients, min(STEPS, steps - done))
        size = torch.ones_like(size)
    return M


def _turned(M: Tensor, size: Tensor, coefficients: Sequence[float], steps: int) -> Tensor:
    """These steps from ``X_0 = M / size``.

    Every X is ``P M`` with P a polynomial of ``A_0``, and all these commute: the steps act on P and A alone. Rounding
    in the null space of A grows from step to step, so that few steps can be taken at once.
    """
    a, b, c = coefficients
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


def make_muon(groups: Sequence[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """PyTorch's Muon, and ours where layers have no stored weights."""
    return Muon(groups, **options) if is_factored(groups) else torch.optim.Muon(groups, **options)


def make_muon_of_adamws_size(groups: Sequence[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """The same, with updates as large as those of AdamW."""
    return make_muon(groups, adjust_lr_fn="match_rms_adamw", **options)
