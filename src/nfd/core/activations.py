"""The activations of the paper's networks, with their exact Gaussian moments.

For centred jointly Gaussian ``(h, hbar)`` with ``Var h = a``, ``Var hbar = b``, ``Cov = c`` each
activation gives

* ``moment(a, b, c) = E[phi(h) phi(hbar)]``, the diffusion of Prop. 2 and the integrand of Prop. 3,
* ``slope_moment(a, b, c) = E[phi'(h) phi'(hbar)]``, the backward rate of Prop. 6,
* ``hermite(degree, variance)``, the coefficients of ``phi(sqrt(variance) Z)`` in normalised Hermite
  polynomials.

relu, erf, gelu and identity use closed forms (arc-cosine and arc-sine kernels: Cho & Saul 2009,
Williams 1997; gelu by Gaussian integration by parts); tanh uses the trapezoidal rule below, whose
error is under 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.checks import check_choice

_Map = Callable[[Tensor], Tensor]
_Moment = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """A scalar function ``phi`` with its derivative ``slope`` and Gaussian moments.

    Attributes:
        scales: whether ``phi(s x) = s phi(x)`` for positive s.
        kinked: whether the slope jumps at zero.
    """

    name: str
    phi: _Map
    slope: _Map
    _moment: _Moment | None = None
    _slope_moment: _Moment | None = None
    scales: bool = False
    kinked: bool = False

    def __reduce__(self) -> tuple[Callable[[str], Activation], tuple[str]]:
        return activation, (self.name,)

    def moment(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """``E[phi(h) phi(hbar)]``, elementwise over broadcast float64 ``a, b, c``."""
        return self._product_mean(self._moment, self.phi, a, b, c)

    def slope_moment(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """``E[phi'(h) phi'(hbar)]``, elementwise over broadcast float64 ``a, b, c``."""
        return self._product_mean(self._slope_moment, self.slope, a, b, c)

    def hermite(self, degree: int, variance: float = 1.0) -> Tensor:
        """``[degree + 1]`` coefficients ``E[phi(sqrt(variance) Z) He_k(Z)] / sqrt(k!)``, float64.

        They satisfy ``sum_k coefficient_k^2 rho^k = moment(v, v, rho v)`` (Mehler).
        """
        if self.name == "relu":
            return math.sqrt(variance) * _relu_hermite(degree)
        scale = math.sqrt(variance)
        return gaussian_mean(
            lambda z: self.phi(scale * z) * hermite_polynomials(degree, z),
            variance,
            tail=2 * math.sqrt(degree),
        )

    @staticmethod
    def _product_mean(closed: _Moment | None, f: _Map, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        given = (torch.as_tensor(v, dtype=torch.float64) for v in (a, b, c))
        a, b, c = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
        if closed:
            return closed(a, b, c)
        return gaussian_product_mean(f, a, b, c)


def _cross(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the area between two vectors with squared norms ``a, b`` and product ``c``.

    Their angle is ``atan2(area, c)``.
    """
    return (a * b - c * c).clamp_min(0).sqrt()


def _relu_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    cross = _cross(a, b, c)
    angle = torch.atan2(cross, c)
    return (cross + (math.pi - angle) * c) / (2 * math.pi)


def _relu_slope_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    both_positive = (math.pi - torch.atan2(_cross(a, b, c), c)) / (2 * math.pi)
    return torch.where(a * b > 0, both_positive, 0.0)


def _erf_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (2 / math.pi) * torch.asin(2 * c / ((1 + 2 * a) * (1 + 2 * b)).sqrt())


def _erf_slope_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (4 / math.pi) / (1 + 2 * (a + b) + 4 * (a * b - c * c).clamp_min(0)).sqrt()


def _gelu_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    # E[X Phi(X) Y Phi(Y)] by Stein's identity in X and in Y; F = E[Phi Phi], D = E[Phi' Phi'].
    area = (a * b - c * c).clamp_min(0)
    F, D = _normal_cdf_moments(a, b, c, area)
    return c * F + D * (area + c * c / (1 + a) + c * c / (1 + b))


def _gelu_slope_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    area = (a * b - c * c).clamp_min(0)
    F, D = _normal_cdf_moments(a, b, c, area)
    return F + c * D * (1 / (1 + a) + 1 / (1 + b) + 1 / (1 + a + b + area))


def _normal_cdf_moments(a: Tensor, b: Tensor, c: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``E[Phi(h) Phi(hbar)]`` and ``E[Phi'(h) Phi'(hbar)]``.

    Phi is the normal distribution function.

    ``area`` is ``a b - c^2``, whose rounding cancels from gelu's moment where both have the same
    root: with an arc sine of ``c / sqrt((1 + a)(1 + b))`` a moment of parallel inputs of variance
    1e20 was known to 1e-8.
    """
    root = (1 + a + b + area).sqrt()  # of (1 + a)(1 + b) - c^2, without its cancellation
    return 0.25 + torch.atan2(c, root) / (2 * math.pi), 1 / (2 * math.pi * root)


def _relu_hermite(degree: int) -> Tensor:
    # E[relu(Z) He_k] = He_{k-2}(0) / sqrt(2 pi) for k >= 2, by parts; He_{2m}(0) = (-1)^m (2m)! /
    # (2^m m!).
    def coefficient(k: int) -> float:
        if k < 2:
            return (1 / math.sqrt(2 * math.pi), 0.5)[k]
        if k % 2:
            return 0.0
        m = (k - 2) // 2
        log = (
            math.lgamma(2 * m + 1) - m * math.log(2) - math.lgamma(m + 1) - 0.5 * math.lgamma(k + 1)
        )
        return (-1.0) ** m * math.exp(log) / math.sqrt(2 * math.pi)

    return torch.tensor([coefficient(k) for k in range(degree + 1)], dtype=torch.float64)


def _normal_pdf(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        Activation(
            "relu",
            torch.relu,
            lambda x: (x > 0).to(x.dtype),
            _relu_moment,
            _relu_slope_moment,
            scales=True,
            kinked=True,
        ),
        Activation("tanh", torch.tanh, lambda x: 1 - torch.tanh(x) ** 2),
        Activation(
            "erf",
            torch.erf,
            lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
            _erf_moment,
            _erf_slope_moment,
        ),
        Activation(
            "gelu",
            torch.nn.functional.gelu,
            lambda x: torch.special.ndtr(x) + x * _normal_pdf(x),
            _gelu_moment,
            _gelu_slope_moment,
        ),
        Activation(
            "identity",
            lambda x: x,
            torch.ones_like,
            lambda a, b, c: c,
            lambda a, b, c: torch.ones_like(c),
            scales=True,
        ),
    )
}


def activation(name: str) -> Activation:
    """The activation called ``name``; ValueError with the nearest name when there is none."""
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS)]


# ---- Gaussian expectations of analytic functions by the trapezoidal rule


_WINDOW = 9.0  # the normal density there is 1e-18
_CHUNK = 2**21  # evaluations held at a time


def _nodes(variance: float, tail: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for integrands ``f(sqrt(variance) z)``.

    Their poles are at a distance of at least pi/2 from the axis.
    """
    z, step = _places(variance, tail)
    return z, step * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def _places(variance: float, tail: float, most: float = 0.25) -> tuple[Tensor, float]:
    """Nodes at multiples of a step, of ``most`` at most, and the step."""
    step = min(most, 0.27 / math.sqrt(max(variance, 1e-300)))
    half = math.ceil((_WINDOW + tail) / step)
    return step * torch.arange(-half, half + 1, dtype=torch.float64), step


def gaussian_mean(f: Callable[[Tensor], Tensor], variance: float, tail: float = 0.0) -> Tensor:
    """Return ``E f(Z)`` over the last axis of ``f``'s value.

    ``f`` takes ``[m]`` and returns ``[..., m]``.
    """
    z, weights = _nodes(variance, tail)
    return f(z) @ weights


def gaussian_product_mean(f: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return ``E[f(h) f(hbar)]``, elementwise.

    ``a, b`` are the variances and ``c`` is the covariance, of one shape in float64.
    """
    if not a.numel():
        return a.clone()
    largest = float(torch.maximum(a.max(), b.max()))
    z, weights = (v.to(a.device) for v in _nodes(largest))
    # h = sqrt(a) z, hbar = slope z + spread z': the two-dimensional rule on independent z, z'.
    slope = torch.where(a > 0, c / a.clamp_min(1e-300).sqrt(), 0.0)
    spread = (b - slope * slope).clamp_min(0).sqrt()

    def pairs(sd: Tensor, slope: Tensor, spread: Tensor) -> Tensor:
        inner = f(slope[:, None, None] * z[:, None] + spread[:, None, None] * z) @ weights
        return (f(sd[:, None] * z) * inner) @ weights

    size = max(1, _CHUNK // len(z) ** 2)
    parts = zip(*(torch.split(v.flatten(), size) for v in (a.sqrt(), slope, spread)), strict=True)
    return torch.cat([pairs(*part) for part in parts]).reshape(a.shape)


def hermite_polynomials(degree: int, z: Tensor) -> Tensor:
    """``[degree + 1, m]`` normalised probabilists' Hermite polynomials ``He_k(z) / sqrt(k!)``."""
    return torch.stack(_hermite(degree, z, torch.ones_like(z)))


def _hermite(degree: int, z: Tensor, first: Tensor) -> list[Tensor]:
    """``first`` times every polynomial up to the degree."""
    rows = [first, z * first]
    for k in range(1, degree):
        rows.append((z * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return rows[: degree + 1]


def hermite_functions(degree: int, variance: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the Hermite coefficients of a function.

    With nodes ``z [m]`` and weights ``[m, degree + 1]``, ``f(z) @ weights`` are ``E[f(Z) He_k(Z)] /
    sqrt(k!)``.

    For ``f = phi(sqrt(v) z)`` with v up to ``variance``. The polynomials are carried with half of
    the Gaussian, which keeps them within range at any degree.
    """
    z, step = _places(variance, 2 * math.sqrt(degree), min(0.25, 2.0 / math.sqrt(degree + 1)))
    root = torch.exp(-0.25 * z * z)
    rows = _hermite(degree, z, root)
    return z, torch.stack([row * root for row in rows], 1) * (step / math.sqrt(2 * math.pi))


# ---- Variances of the streams of infinitely wide networks of finite depth, before training (Props.
# 2 and 6)


def stream_variances(
    act: Activation | str, start: Tensor | float, L: int, horizon: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return ``q_l = E h_l^2`` and ``P_l = E g_l^2``, ``[L + 1, ...]`` each.

    They are for inputs with ``E h_0^2 = start``.

    With ``tau = T / L``: ``q_l = q_{l-1} + tau E phi^2(h_{l-1})`` and ``P_{l-1} = P_l (1 + tau E
    phi'^2(h_{l-1}))`` from ``P_L = 1``. ``act``: an activation or its name, such as ``"relu"``.
    """
    act = activation(act) if isinstance(act, str) else act
    tau = horizon / L
    q = [torch.as_tensor(start, dtype=torch.float64)]
    rates = list[Tensor]()
    for _ in range(L):
        rates.append(1 + tau * act.slope_moment(q[-1], q[-1], q[-1]))
        q.append(q[-1] + tau * act.moment(q[-1], q[-1], q[-1]))
    backward = torch.stack([*rates, torch.ones_like(q[0])]).flip(0).cumprod(0).flip(0)
    return torch.stack(q), backward
