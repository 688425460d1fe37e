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

from nfd.core.activations import Activation, hermite_functions
from nfd.core.errors import InputError
from nfd.core.names import KernelKind

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
        state = torch.from_numpy(_solved(system, horizon))
        change = system.rate(state)
    else:
        state = system.start()
        for _ in range(int(depth)):
            state = state + (horizon / depth) * system.rate(state)
        change = torch.full_like(state, torch.nan)
    return system.value(state, kind), system.value(change, kind)


def _solved(system: _System, horizon: float) -> Array:
    """The state at T. Where phi has a kink the kernel of opposite inputs begins as ``t^(3/2)``: time is ``u^2``."""
    kinked = system.act.name == "relu"
    end = math.sqrt(horizon) if kinked else horizon

    def f(u: float, y: Array) -> Array:
        rate = system.rate(torch.from_numpy(y)).numpy()
        return 2 * u * rate if kinked else rate

    start, tolerance = system.start().numpy(), _ATOL * system.scale().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        orbit = solve_ivp(f, (0.0, end), start, method="DOP853", rtol=_RTOL, atol=tolerance, t_eval=[end])
    if not orbit.success or not np.isfinite(orbit.y).all():
        raise InputError(
            f"The kernel equations leave the range of numbers before T={horizon:g}, or change too fast to follow. "
            "Lower the horizon, or scale the inputs to norms near sqrt(d)."
        )
    return np.asarray(orbit.y[:, -1])


class _System:
    """The equations of all pairs at once; a state is ``[a of every norm, C of every pair, D of every pair]``.

    The variance of an input is its covariance with itself: the first pairs, ``left`` and ``right``, are those.
    """

    def __init__(self, act: Activation, pairs: Pairs, *, backward: bool) -> None:
        self.act, self.pairs, self.backward = act, pairs, backward
        self.count, self.own = len(pairs.norms) + pairs.cosine.numel(), len(pairs.norms)
        of_pairs = (index[:, None].expand_as(pairs.cosine).flatten() for index in (pairs.first, pairs.second))
        self.left, self.right = (torch.cat([torch.arange(self.own), index]) for index in of_pairs)
        self.nodes = _HermiteNodes() if act.name == "tanh" else None

    def start(self) -> Tensor:
        own = torch.ones(self.own, dtype=torch.float64)
        return self._state(self._sizes() * torch.cat([own, self.pairs.cosine.flatten()]))

    def scale(self) -> Tensor:
        """The size of every entry of a state at the start, ``sqrt(a b)`` for a pair."""
        return self._state(self._sizes())

    def value(self, state: Tensor, kind: str) -> Tensor:
        C, D = state[self.own : self.count], state[self.count :]
        return (C + D if kind == "ntk" else C).view(self.pairs.cosine.shape)

    def rate(self, state: Tensor) -> Tensor:
        a, C, D = state[: self.own], state[: self.count], state[self.count :]
        left, right = a[self.left], a[self.right]
        bound = (left * right).sqrt()
        C = torch.minimum(torch.maximum(C, -bound), bound)  # rounding must not leave the cone of covariances
        if self.nodes is not None:
            m, s = self._series(self.nodes.coefficients(self.act, a), a, C / bound.clamp_min(1e-300))
        else:
            m = self.act.moment(left, right, C)
            s = self.act.slope_moment(*(x[self.own :] for x in (left, right, C))) if self.backward else D
        return torch.cat([m, m[self.own :] + s * D]) if self.backward else m

    def _sizes(self) -> Tensor:
        return self.pairs.norms[self.left] * self.pairs.norms[self.right]

    def _state(self, covariance: Tensor) -> Tensor:
        return torch.cat([covariance, covariance[self.own :]]) if self.backward else covariance

    def _series(self, h: Tensor, a: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Mehler: m = sum_k h_k(a) h_k(b) rho^k, s = sum_k k h_k(a) h_k(b) rho^(k-1) / sqrt(a b)."""
        rho = rho[self.own :].view(self.pairs.cosine.shape)
        products = (h[self.pairs.first] * h[self.pairs.second]).T.contiguous()[:, :, None]
        m, s = torch.zeros_like(rho), torch.zeros_like(rho)
        for k in range(len(products) - 1, -1, -1):  # Horner, and its derivative
            if self.backward:
                s = s.mul_(rho).add_(m)
            m = m.mul_(rho).add_(products[k])
        scale = (a[self.pairs.first] * a[self.pairs.second]).sqrt().clamp_min(1e-300)[:, None]
        return torch.cat([h.square().sum(1), m.flatten()]), (s / scale).flatten()


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
                raise InputError(
                    f"The tanh kernel meets hidden variances of {float(a.max()):.3g}, where its Hermite series "
                    f"needs more than {_MOST_DEGREES} terms. Scale the inputs to norms near sqrt(d), lower the "
                    "horizon, or use 'erf'."
                )
            self._grow(2 * self.degree, self.variance)

    def _grow(self, degree: int, variance: float) -> None:
        self.degree, self.variance = degree, variance
        self.z, self.weights = hermite_functions(degree, variance)
