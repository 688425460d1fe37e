"""SGD and Muon for networks with layers without stored weights."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.checks import check_choice, check_count, check_real
from nfd.core.errors import InputError, StateError
from nfd.wide.basis import TOLERANCE, padded
from nfd.wide.parameters import Coefficients, Guarded

Shape = Literal["original", "match_rms_adamw"]
# PyTorch's name of the momentum in the states of its optimizers.
_BUFFER = "momentum_buffer"
_MOST_STEPS = 100

# PyTorch's defaults of Muon.
MOMENTUM = 0.95
EPSILON = 1e-7
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class FactoredOptimizer(torch.optim.Optimizer):
    """An optimizer of ordinary parameters and of layers without stored weights alike."""

    def moves_scale(self, group: Mapping[str, Any]) -> bool:
        """Whether a layer's ``scale`` changes under these settings, as by weight decay.

        Its gradient is zero.
        """
        return bool(group["weight_decay"])

    def apply_rule(self) -> None:
        """Update all parameters that have a gradient; ``step`` calls it."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings that it does not have are the defaults."""
        _uncompiled(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients: None by default, zeros with ``set_to_none=False``."""
        if set_to_none:
            for p in self._guarded():
                # PyTorch would read the gradient first, which computes it from its factors.
                p.grad = None
        _uncompiled(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters once, and return the loss of ``closure``.

        ``closure`` computes the loss and its gradients again.

        Raises:
            RuntimeError: before anything changes, if the gradient of a layer was edited in another
                way than scaling, or if its two parameters would be updated differently.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        guarded = self._guarded()
        for p in guarded:
            p.check()
            p.check_gradient()
        self._check_layers(guarded)
        for p in guarded:
            self._pad_momentum(p)
        with torch.no_grad():
            for p in guarded:
                p.enter_step()
            try:
                self.apply_rule()
            finally:
                for p in guarded:
                    p.leave_step(self.state[p].get(_BUFFER))
        for p in guarded:
            if p.has_gradient:
                p.accept()
            self.state[p]["generation"] = p.generation
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the result of ``state_dict()``.

        Load the state of the model first: both must be of the same step.
        """
        super().load_state_dict(state_dict)
        for p, state in self.state.items():
            if isinstance(p, Guarded):
                state["generation"] = p.generation

    def _guarded(self) -> dict[Guarded, dict[str, Any]]:
        """The parameters of layers without stored weights, and the group of each."""
        groups: dict[Guarded, dict[str, Any]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if isinstance(p, Guarded):
                    groups[p] = group
        return groups

    def _pad_momentum(self, p: Guarded) -> None:
        """Give the momentum the size of its parameter, which may have grown."""
        state = self.state.get(p, {})
        momentum = state.get(_BUFFER)
        if momentum is None:
            return
        larger = any(a > b for a, b in zip(momentum.shape, p.shape, strict=True))
        if larger or state["generation"] != p.generation:
            raise StateError(
                f"The momentum of this optimizer is not that of its {p.owner}, which was loaded or "
                "converted since, or is of another step. Load the layers first, then the "
                "optimizer; or build a new one."
            )
        state[_BUFFER] = padded(momentum, *p.shape)

    def _check_layers(self, guarded: Mapping[Guarded, Mapping[str, Any]]) -> None:
        """Raise StateError unless the update and the scale of every layer are stepped alike.

        They are two parts of one matrix.
        """
        moving = {(p.pair, p.is_scale): group for p, group in guarded.items() if p.has_gradient}
        for p, group in guarded.items():
            if not p.has_gradient or not self.moves_scale(group):
                continue
            other = moving.get((p.pair, not p.is_scale)) if p.pair else None
            is_apart = other is not group
            if is_apart and (other is not None or group["weight_decay"]):
                raise StateError(
                    "update and scale of a layer without stored weights are two parts of one "
                    "matrix, and this step could give them different rates, momentum or weight "
                    "decay, or a gradient to one of them alone. Put both in one group, scale too "
                    "though it is one number, and clear their gradients together."
                )


def _uncompiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of PyTorch, without its guard against the compiler where none is loaded.

    PyTorch would import its compiler for the guard, which takes longer than many training runs do.
    """
    return method if "torch._dynamo" in sys.modules else inspect.unwrap(method)


class SGD(FactoredOptimizer, torch.optim.SGD):
    """``torch.optim.SGD`` for models with ``DeferredLinear`` or ``StructuredLinear``.

    It lets their parameters grow. SGD is linear in the weights, so on ``W = s W_0 + P D Q'`` it
    acts on ``s`` and ``D`` separately and exactly as it would on ``W``: weight decay, momentum,
    dampening, Nesterov and maximize included. ``foreach`` and ``fused`` change the speed, not the
    result.

    Args:
        params: usually ``net.param_groups(lr=..., rule=...)``, each group with its own learning
            rate. Groups may have options of ``torch.optim.SGD``, entries of PyTorch's schedulers,
            and ``name``, ``role`` or ``roles``.
        **options: ``momentum``, ``weight_decay``, ``nesterov``, ...

    Raises:
        ValueError, TypeError: for options that ``torch.optim.SGD`` does not take.
        RuntimeError: by ``step``, before any parameter moves, if the gradient of a deferred layer
            was edited in another way than scaling, or if D and s of one layer are in different
            groups.

    Source: docs/mathematics/deferred-decisions.md.

    Example::

        net = nfd.ResNet(64, 10, width=4096, depth=2, weights="deferred")
        optimizer = nfd.SGD(net.param_groups(lr=0.3), momentum=0.9)
    """

    def moves_scale(self, group: Mapping[str, Any]) -> bool:
        return bool(group["weight_decay"] or group["momentum"])

    def apply_rule(self) -> None:
        """Update all parameters by PyTorch's rule."""
        # Unwrapped, as PyTorch runs hooks around our step already.
        inspect.unwrap(torch.optim.SGD.step)(self)


class Muon(FactoredOptimizer):
    """``torch.optim.Muon`` for models with ``DeferredLinear`` or ``StructuredLinear``.

    It lets their parameters grow. With the momentum ``B <- mu B + (1 - mu) G`` and ``M = (1 - mu) G
    + mu B`` (Nesterov) or ``M = B``,

        W <- (1 - lr wd) W - lr c NS(M)

    where NS brings every singular value near 1 by Newton-Schulz steps, and c follows from the shape
    of W. NS is an odd polynomial of the singular values of ``M / |M|``, so that ``NS(P M Q') = P
    NS(M) Q'`` for orthonormal P and Q: it is exact on the small matrix of a layer without stored
    weights; decay acts on its scale too. Here NS runs on the smaller Gram matrix of M and in the
    precision of M. PyTorch's runs on M in bfloat16, which also turns rounding beside a gradient of
    low rank into a part of the step.

    Args:
        params: matrices, and all parameters of layers without stored weights except biases. The
            rest of a model needs another optimizer: ``plan.make_optimizer`` of a plan with
            ``optimizer="muon"`` makes one of both.
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as in
            ``torch.optim.Muon``.

    Raises:
        ValueError, TypeError: if a parameter is not a matrix, and for settings out of their ranges.
        RuntimeError: by ``step``, as by ``nfd.SGD``.

    Source: Jordan et al. 2024, Muon; docs/mathematics/deferred-decisions.md.

    Example::

        layer = nfd.DeferredLinear(4096, 4096)
        optimizer = nfd.Muon([layer.update, layer.scale], lr=0.02)
    """

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
        numbers = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "eps": eps}
        settings: dict[str, Any] = {
            name: check_real(name, value, least=0.0) for name, value in numbers.items()
        }
        settings |= {
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "adjust_lr_fn": adjust_lr_fn,
        }
        settings["ns_steps"] = check_count("ns_steps", ns_steps, maximum=_MOST_STEPS - 1)
        if len(ns_coefficients) != 3:
            raise InputError(f"ns_coefficients must be three numbers; got {ns_coefficients!r}.")
        if adjust_lr_fn is not None:
            check_choice("adjust_lr_fn", adjust_lr_fn, ("original", "match_rms_adamw"))
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices; settings that it does not have are the defaults."""
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        vectors = [list(p.shape) for p in params if not isinstance(p, Guarded) and p.dim() != 2]
        if vectors:
            del self.param_groups[-1]
            raise InputError(
                f"nfd.Muon steps matrices; params hold one of shape {vectors[0]}. Give vectors, "
                "embeddings and readouts to torch.optim.AdamW, or plan with optimizer='muon', "
                "which does."
            )
        coarsest = max((p.resolution for p in params if isinstance(p, Guarded)), default=0.0)
        if coarsest > max(TOLERANCE.values()):
            warnings.warn(
                f"Layers with resolution={coarsest:g} leave out short directions, but nfd.Muon "
                "steps these as far as long ones, so that nothing bounds the difference. Leave "
                "resolution out, or compare with a narrower network without one.",
                stacklevel=4,
            )

    def apply_rule(self) -> None:
        """Update all parameters that have a gradient; ``step`` calls it."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(1 - float(group["lr"]) * group["weight_decay"])
                is_scale = isinstance(p, Guarded) and p.is_scale
                if not is_scale and p.numel():
                    self._move(p, p.grad, group)

    def _move(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        """Add the part of a step that comes from the gradient."""
        state = self.state[p]
        momentum = group["momentum"]
        if _BUFFER not in state:
            state[_BUFFER] = torch.zeros_like(grad)
        W = p
        average = state[_BUFFER]
        G = grad
        if isinstance(p, Coefficients):
            # Muon acts in their basis, whose rows are orthonormal.
            W, average, G = p.compress(average)
        average.lerp_(G, 1 - momentum)
        M = G.lerp(average, momentum) if group["nesterov"] else average
        update = orthogonalised(M, group["ns_coefficients"], group["ns_steps"], group["eps"])
        shape = p.stands_for if isinstance(p, Guarded) else p.shape
        factor = shape_factor(group["adjust_lr_fn"], shape[0], shape[1])
        W.add_(update, alpha=-float(group["lr"]) * factor)


def orthogonalised(M: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """Bring the singular values of a matrix M near 1 by Newton-Schulz steps.

    They are ``X <- a X + b A X + c A^2 X`` with ``A = X X'`` from ``X_0 = M / |M|``, for a wide M.
    """
    size = torch.linalg.vector_norm(M).clamp_min(eps)
    for first in range(0, steps, STEPS):
        M = _turned(M, size, coefficients, min(STEPS, steps - first))
        size = torch.ones_like(size)
    return M


def _turned(M: Tensor, size: Tensor, coefficients: Sequence[float], steps: int) -> Tensor:
    """Take a few Newton-Schulz steps from ``X_0 = M / size``.

    Every X is ``P M`` with P a polynomial of ``A_0``, and all these commute: the steps act only on
    P and A. Rounding in the null space of A grows from step to step, so that few steps can be taken
    at once.
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
    """The factor by which PyTorch multiplies the learning rate of a matrix."""
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def make_muon(groups: Sequence[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """Make PyTorch's Muon, or ours where layers have no stored weights."""
    for group in groups:
        if any(isinstance(p, Guarded) for p in group["params"]):
            return Muon(groups, **options)
    return torch.optim.Muon(groups, **options)


def make_muon_of_adamws_size(
    groups: Sequence[dict[str, Any]], **options: Any
) -> torch.optim.Optimizer:
    """Make a Muon with updates as large as updates of AdamW."""
    return make_muon(groups, adjust_lr_fn="match_rms_adamw", **options)
