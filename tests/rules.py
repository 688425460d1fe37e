"""Rules for one matrix that tests declare: equivariant ones, and others that look like them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

import nfd
from nfd.nets.muon import orthogonalised

BOTH = ("rows", "columns")
State = dict[str, Tensor]
Group = Mapping[str, Any]


class Polynomial(nfd.EquivariantOptimizer):
    """An odd polynomial of ``M / |M|`` with an average M: coefficients of its powers 1, 3, 5, ..."""

    states: ClassVar = {"average": BOTH}

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        weight_decay: float = 0.0,
        momentum: float = 0.5,
        coefficients: tuple[float, ...] = (1.5, -0.5),
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, coefficients=coefficients)

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        average = state["average"].lerp_(gradient, 1 - group["momentum"])
        term = average / average.norm().clamp_min(1e-300)
        square = term.T @ term
        total = torch.zeros_like(term)
        for coefficient in group["coefficients"]:
            total, term = total + coefficient * term, term @ square
        return total


class Averaged(nfd.EquivariantOptimizer):
    """Between roots of averaged covariances, without the bias of the first steps."""

    states: ClassVar = {"left": ("rows", "rows"), "right": ("columns", "columns"), "weight": ()}

    def __init__(
        self, params: Any, lr: float = 0.1, weight_decay: float = 0.0, beta: float = 0.8, powers: Any = (-0.3, -0.2)
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, beta=beta, powers=powers)

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        beta = group["beta"]
        weight = state["weight"].mul_(beta).add_(1 - beta)
        for name, G in (("left", gradient), ("right", gradient.T)):
            state[name].mul_(beta).add_((1 - beta) * G @ G.T)
        left, right = (
            _power(state[name] / weight, p) for name, p in zip(("left", "right"), group["powers"], strict=True)
        )
        return left @ gradient @ right


def _power(A: Tensor, power: float) -> Tensor:
    ridge = 1e-3 * A.trace().clamp_min(1e-300) * torch.eye(len(A), dtype=A.dtype)
    values, vectors = torch.linalg.eigh(A + ridge)
    return (vectors * values**power) @ vectors.T


class Mixture(nfd.Shampoo):
    """So much of the average over its norm, of Muon's direction, and of Shampoo's."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        weight_decay: float = 0.0,
        momentum: float = 0.5,
        parts: tuple[float, float, float] = (0.3, 0.3, 0.4),
    ) -> None:
        nfd.EquivariantOptimizer.__init__(
            self, params, lr=lr, weight_decay=weight_decay, momentum=momentum, eps=1e-3, parts=parts
        )

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        plain, muon, shampoo = group["parts"]
        preconditioned = super().direction(gradient, state, group)
        average = state["momentum_buffer"]
        linear = average / average.norm().clamp_min(1e-300)
        return plain * linear + muon * orthogonalised(average, (1.5, -0.5, 0.0), 4, 1e-300) + shampoo * preconditioned


class Sided(nfd.EquivariantOptimizer):
    """Equivariant, and another rule for the transpose."""

    states: ClassVar = {"last": BOTH}

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        G = gradient / gradient.norm()
        turned = G + state["last"] @ state["last"].T @ G
        state["last"].copy_(G)
        return turned


class Sign(nfd.EquivariantOptimizer):
    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        return gradient.sign()


class Clipped(nfd.EquivariantOptimizer):
    """SGD, except where an entry of the gradient is large."""

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        return gradient.clamp(-5, 5)


class Adam(nfd.EquivariantOptimizer):
    states: ClassVar = {"mean": BOTH, "square": BOTH}

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        mean = state["mean"].lerp_(gradient, 0.1)
        return mean / state["square"].lerp_(gradient**2, 0.001).sqrt().add_(1e-8)


class Adafactor(nfd.EquivariantOptimizer):
    states: ClassVar = {"of_rows": ("rows",), "of_columns": ("columns",)}

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        rows, columns = (state["of_rows"].add_((gradient**2).sum(1)), state["of_columns"].add_((gradient**2).sum(0)))
        return gradient / (rows[:, None] * columns / columns.sum() + 1e-12).sqrt()


class OfUnitEntries(nfd.EquivariantOptimizer):
    """Over the root mean square of the entries, which counts the zeros of the basis."""

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        return gradient / gradient.square().mean().sqrt()


class Noisy(nfd.EquivariantOptimizer):
    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        return gradient + torch.randn_like(gradient)


class Soap(nfd.EquivariantOptimizer):
    """Adam in the eigenbases of averaged covariances: those of the step before, or of this step where ``refreshed``."""

    states: ClassVar = {
        "mean": BOTH,
        "square": BOTH,
        "left": ("rows", "rows"),
        "right": ("columns", "columns"),
        "left_basis": ("rows", "rows"),
        "right_basis": ("columns", "columns"),
    }

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0, refreshed: bool = True) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, refreshed=refreshed)

    def direction(self, gradient: Tensor, state: State, group: Group) -> Tensor:
        state["left"].lerp_(gradient @ gradient.T, 0.1)
        state["right"].lerp_(gradient.T @ gradient, 0.1)
        mean = state["mean"].lerp_(gradient, 0.1)
        fresh = [torch.linalg.eigh(state[name]).eigenvectors.flip(1) for name in ("left", "right")]
        held = [state["left_basis"], state["right_basis"]]
        started = bool(held[0].any())
        left, right = fresh if group["refreshed"] or not started else (basis.clone() for basis in held)
        for basis, new in zip(held, fresh, strict=True):
            basis.copy_(new)
        square = state["square"].lerp_((left.T @ gradient @ right) ** 2, 0.05)
        return left @ ((left.T @ mean @ right) / square.sqrt().add_(1e-8)) @ right.T
