"""How the covariance of two inputs, and the kernel of gradient descent, flow with depth.

With ``a, b`` the variances of ``h_t`` for two inputs, ``C`` their covariance, ``m = E[phi(h) phi(hbar)]`` and
``s = E[phi'(h) phi'(hbar)]`` (Gaussian moments at ``a, b, C``), the infinite-depth kernels solve

    a' = m(a, a, a),   C' = m(a, b, C)                    NNGP, Props. 2 and 3, from |x|^2/d and x.xbar/d
    D' = m + s D,      D_0 = x.xbar / d                   NTK = C + D

and a network of depth L takes L Euler steps of size T / L of the same equations. The first step of the decoupled
network has ``D' = m`` instead, so its kernel is ``2 C``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor

from nfd.core.activations import Activation
from nfd.core.errors import RangeError
from nfd.core.names import KernelKind
from nfd.core.quadrature import hermite_functions

KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
_RTOL, _ATOL = 1e-12, 1e-15
_MOST_DEGREES = 2048
_SERIES_TAIL = 1e-11  # of the variance: what the last of the Hermite coefficients may hold

Array = NDArray[np.float64]
Moments = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Pairs:
    """Pairs of inputs: the standard deviation at t = 0 of ``norms`` [A], and for each pair the indices of its two
    norms, [P], and their cosine, [P, R] (several cosines per pair of norms)."""

    norms: Tensor
    first: Tensor
    second: Tensor
    cosine: Tensor


def kernel_of_pairs(act: Activation, kind: str, pairs: Pairs, horizon: float, depth: float) -> tuple[Tensor, Tensor]:
    """The kernel of the pairs, [P, R], and its derivative in T (not-a-number for a finite depth)."""
    system = _System(act, pairs, backward=kind == "ntk")
    if depth == math.inf:
        state = torch.from_numpy(_solved(system.rate, system.start().numpy(), system.scale().numpy(), horizon))
        change = system.rate(state)
    else:
        state = system.start()
        for _ in range(int(depth)):
            state = state + (horizon / depth) * system.rate(state)
        change = torch.full_like(state, torch.nan)
    return system.value(state, kind), system.value(change, kind)


def _solved(rate: Callable[[Tensor], Tensor], start: Array, scale: Array, horizon: float) -> Array:
    def f(_: float, y: Array) -> Array:
        return rate(torch.from_numpy(y)).numpy()

    with np.errstate(over="ignore", invalid="ignore"):
        orbit = solve_ivp(f, (0.0, horizon), start, method="DOP853", rtol=_RTOL, atol=_ATOL * scale, t_eval=[horizon])
    if not orbit.success or not np.isfinite(orbit.y).all():
        raise RangeError(
            f"The kernel equations leave the range of numbers before T={horizon:g}, or change too fast to follow. "
            "Lower the horizon, or scale the inputs to norms near sqrt(d)."
        )
    return np.asarray(orbit.y[:, -1])


class _System:
    """The equations of all pairs at once; a state is ``[a of every norm, C of every pair, D of every pair]``."""

    def __init__(self, act: Activation, pairs: Pairs, *, backward: bool) -> None:
        self.act, self.pairs, self.backward = act, pairs, backward
        self.nodes = _HermiteNodes() if act.name == "tanh" else None

    def start(self) -> Tensor:
        p, s = self.pairs, self.pairs.norms
        covariance = ((s[p.first] * s[p.second])[:, None] * p.cosine).flatten()
        return torch.cat([s * s, covariance, *([covariance] if self.backward else [])])

    def scale(self) -> Tensor:
        """The size of every entry of a state at the start, ``sqrt(a b)`` for a pair."""
        p, s = self.pairs, self.pairs.norms
        pair = (s[p.first] * s[p.second])[:, None].expand_as(p.cosine).flatten()
        return torch.cat([s * s, pair, *([pair] if self.backward else [])])

    def value(self, state: Tensor, kind: str) -> Tensor:
        _, C, D = self._parts(state)
        return C + D if kind == "ntk" else C

    def rate(self, state: Tensor) -> Tensor:
        a, C, D = self._parts(state)
        own, m, s = self._moments(a, C)
        return torch.cat([own, m.flatten(), *([(m + s * D).flatten()] if self.backward else [])])

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        A, shape = len(self.pairs.norms), self.pairs.cosine.shape
        C = state[A : A + shape.numel()].view(shape)
        return state[:A], C, state[A + shape.numel() :].view(shape) if self.backward else torch.zeros(())

    def _moments(self, a: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E phi^2 [A], and the moments m, s of every pair [P, R]."""
        first, second = a[self.pairs.first, None], a[self.pairs.second, None]
        bound = (first * second).sqrt()
        C = torch.minimum(torch.maximum(C, -bound), bound)  # rounding must not leave the cone of covariances
        if self.nodes is not None:
            return self._series(self.nodes.coefficients(self.act, a), a, C / bound.clamp_min(1e-300))
        slope = self.act.slope_moment(first, second, C) if self.backward else torch.zeros(())
        return self.act.moment(a, a, a), self.act.moment(first, second, C), slope

    def _series(self, h: Tensor, a: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mehler: m = sum_k h_k(a) h_k(b) rho^k, s = sum_k k h_k(a) h_k(b) rho^(k-1) / sqrt(a b)."""
        products = (h[self.pairs.first] * h[self.pairs.second]).T.contiguous()[:, :, None]
        m, s = torch.zeros_like(rho), torch.zeros_like(rho)
        for k in range(len(products) - 1, -1, -1):  # Horner, and its derivative
            if self.backward:
                s = s.mul_(rho).add_(m)
            m = m.mul_(rho).add_(products[k])
        scale = (a[self.pairs.first] * a[self.pairs.second]).sqrt().clamp_min(1e-300)[:, None]
        return h.square().sum(1), m, s / scale


class _HermiteNodes:
    """Hermite coefficients of ``phi(sqrt(a) z)`` for many variances, by one quadrature that grows as they do."""

    def __init__(self) -> None:
        self.degree, self.variance = 0, 0.0
        self.z, self.weights = torch.zeros(0), torch.zeros(0, 0)

    def coefficients(self, act: Activation, a: Tensor) -> Tensor:
        """``[A, degree + 1]``: enough that the last eight hold less than ``_SERIES_TAIL`` of the variance."""
        while True:
            if float(a.max()) > self.variance or not self.degree:
                self._grow(max(32, self.degree), 1.5 * max(float(a.max()), 0.1))
            h = act.phi(a.clamp_min(0).sqrt()[:, None] * self.z) @ self.weights
            tail = h[:, -8:].square().sum(1)
            if bool((tail <= _SERIES_TAIL * h.square().sum(1)).all()):
                return h
            if self.degree >= _MOST_DEGREES:
                raise RangeError(
                    f"The tanh kernel meets hidden variances of {float(a.max()):.3g}, where its Hermite series "
                    f"needs more than {_MOST_DEGREES} terms. Scale the inputs to norms near sqrt(d), lower the "
                    "horizon, or use 'erf'."
                )
            self._grow(2 * self.degree, self.variance)

    def _grow(self, degree: int, variance: float) -> None:
        self.degree, self.variance = degree, variance
        self.z, self.weights = hermite_functions(degree, variance)
