"""Untrained networks against their limits, coupled so that single coordinates converge (Props. 2, 3, 6, 9, 11, 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nfd.core.activations import Activation, activation
from nfd.core.names import Activation as Name
from nfd.core.random import generator
from nfd.limits.kernel import kernel
from nfd.nets.resnet import ResNet


def errors_in_depth(
    x: Tensor, name: Name, n: int, seed: int, depths: Sequence[int], deepest: int, horizon: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean squares [depths] of ``h_L`` and of ``g_0`` against the deepest network of the same Brownian path."""
    ends = [endpoints(x, name, n, L, seed, horizon) for L in (*depths, deepest)]
    (h, g) = ends[-1]
    return (
        torch.stack([(a - h).square().mean() for a, _ in ends[:-1]]),
        torch.stack([(b - g).square().mean() for _, b in ends[:-1]]),
    )


def endpoints(x: Tensor, name: Name, n: int, L: int, seed: int, horizon: float = 1.0) -> tuple[Tensor, Tensor]:
    """``h_L`` and ``g_0`` of one untrained network with one output, its layers cut from one path."""
    net = ResNet(x.shape[1], 1, n, L, horizon=horizon, activation=name, seed=seed, coupled=True, dtype=x.dtype)
    streams = net.streams(x)
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    return streams.h[-1].double(), streams.delta[0].double()


def errors_in_width(x: Tensor, name: Name, L: int, seed: int, widths: Sequence[int], horizon: float = 1.0) -> Tensor:
    """Mean squares [2, widths] of ``h_L.h_L / n`` and ``g_0.g_0 / n`` minus their limits at the same depth."""
    C, P = moments(x, name, L, horizon)
    found = []
    for n in widths:
        net = ResNet(x.shape[1], 1, n, L, horizon=horizon, activation=name, seed=seed, dtype=torch.float64)
        streams = net.streams(x.double())
        streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
        h, g = streams.h[-1], streams.delta[0]
        found.append(torch.stack([(h @ h.T / n - C).square().mean(), (g @ g.T / n - P).square().mean()]))
    return torch.stack(found, 1)


def moments(x: Tensor, name: Name, L: int, horizon: float = 1.0) -> tuple[Tensor, Tensor]:
    """``C_L`` and ``P_0 = prod (1 + tau E[phi' phibar'])`` of networks of depth L."""
    act, tau = activation(name), horizon / L
    P = torch.ones(len(x), len(x), dtype=torch.float64)
    C = x.double() @ x.double().T / x.shape[1]
    for level in range(L):
        a = C.diagonal()
        P = P * (1 + tau * act.slope_moment(a[:, None], a[None], C))
        C = kernel(x.double(), activation=name, horizon=tau * (level + 1), depth=level + 1)
    return C, P


def variances(act: Activation, start: float, L: int, horizon: float = 1.0) -> tuple[Tensor, Tensor]:
    """``E h_l^2`` and ``E g_l^2`` [L+1] of the infinitely wide network of depth L, ``E h_0^2 = start``.

    ``q_l = q_{l-1} + tau E phi^2(h_{l-1})`` and ``P_{l-1} = P_l (1 + tau E phi'^2(h_{l-1}))`` from ``P_L = 1``.
    """
    tau, q, rates = horizon / L, torch.tensor([start], dtype=torch.float64), []
    for _ in range(L):
        rates.append(1 + tau * act.slope_moment(q[-1:], q[-1:], q[-1:]))
        q = torch.cat([q, q[-1:] + tau * act.moment(q[-1:], q[-1:], q[-1:])])
    backward = torch.cat([*rates, torch.ones(1, dtype=torch.float64)]).flip(0).cumprod(0).flip(0)
    return q, backward


def errors_of_coordinates(x: Tensor, name: Name, n: int, L: int, seed: int, horizon: float = 1.0) -> Tensor:
    """Mean squares [2] of ``h_L`` and ``g_0`` minus their mean-field copies driven by the same Gaussians.

    The copies are those of Appendix C: ``h_l = h_{l-1} + sqrt(tau E phi^2) z_l`` with ``z_l = W_l phi / |phi|`` of the
    network, and ``g_{l-1} = g_l + sqrt(tau E g_l^2) phi'(h_{l-1}) z~_l`` with ``z~_l = W_l' g_l / |g_l|``, for ``x``
    [1, d].
    """
    net = ResNet(x.shape[1], 1, n, L, horizon=horizon, activation=name, seed=seed, dtype=torch.float64)
    streams = net.streams(x.double())
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    h, g, act = streams.h[:, 0], streams.delta[:, 0], net.activation
    q, P = variances(act, float(x.double().square().mean()), L, horizon)
    copy, slopes = h[0], []
    for level in range(L):
        slopes.append(act.slope(copy))
        spread = act.moment(q[level], q[level], q[level]).sqrt()
        actual = act.phi(h[level]).square().mean().sqrt()
        copy = copy + spread / actual * (h[level + 1] - h[level])
    back = g[L]
    for level in range(L, 0, -1):
        z = net.outer[level - 1].weight.detach().T @ g[level] / g[level].norm()  # type: ignore[operator]
        back = back + math.sqrt(horizon / L * float(P[level])) * slopes[level - 1] * z
    return torch.stack([(h[L] - copy).square().mean(), (g[0] - back).square().mean()])


def covariances(x: Tensor, name: Name, n: int, L: int, count: int, seed: int, horizon: float = 1.0) -> Tensor:
    """``h_L.hbar_L / n`` [count, b, b] of untrained networks, in law exactly, all at once.

    Given ``phi(h_{l-1})``, the b vectors ``W_l phi / sqrt(n)`` are Gaussian with covariance ``phi.phibar / n``.
    """
    act, stream = activation(name), generator(seed, "claim", "covariances")

    def drawn(gram: Tensor) -> Tensor:
        z = torch.randn(count, len(x), n, generator=stream, dtype=torch.float64)
        vectors: Tensor = torch.linalg.cholesky(gram) @ z
        return vectors

    h = drawn((x.double() @ x.double().T / x.shape[1]).expand(count, -1, -1))
    for _ in range(L):
        a = act.phi(h)
        h = h + math.sqrt(horizon / L) * drawn(a @ a.mT / n)
    return h @ h.mT / n
