"""Untrained networks of horizon 1 against their limits (Props. 2, 3, 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nfd import ResNet, kernel
from nfd.core import Activation, activation, generator
from nfd.families import Network, Streams


def flows(net: Network, x: Tensor) -> Streams:
    """One pass over ``x`` [b, d] and the backward pass of the sum of the outputs: ``delta`` is then g of Eq. 3."""
    streams = net.streams(x)
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    return streams


def errors_in_depth(x: Tensor, name: Activation, n: int, seed: int, depths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean squares [depths] of ``h_L`` and of ``g_0`` minus those of the network twice as deep on one Brownian path.

    Where the distance from the limit falls as a power of L so does this one; that from one network of depth M, which
    goes as ``1/L - 1/M``, seems to fall faster.
    """
    both = {L: endpoints(x, name, n, L, seed) for L in sorted({M for L in depths for M in (L, 2 * L)})}
    h, g = (torch.stack([(both[L][end] - both[2 * L][end]).square().mean() for L in depths]) for end in (0, 1))
    return h, g


def endpoints(x: Tensor, name: Activation, n: int, L: int, seed: int) -> tuple[Tensor, Tensor]:
    """``h_L`` and ``g_0`` of one untrained network with one output, its layers cut from one path."""
    net = ResNet(x.shape[1], 1, n, L, activation=name, seed=seed, coupled=True, dtype=x.dtype)
    streams = flows(net, x)
    return streams.h[-1].double(), streams.delta[0].double()


def errors_in_width(x: Tensor, name: Activation, L: int, seed: int, widths: Sequence[int]) -> Tensor:
    """Mean squares [2, widths] of ``h_L.h_L / n`` and ``g_0.g_0 / n`` minus their limits at the same depth."""
    C, P = moments(x, name, L)
    errors = []
    for n in widths:
        net = ResNet(x.shape[1], 1, n, L, activation=name, seed=seed, dtype=torch.float64)
        streams = flows(net, x.double())
        h, g = streams.h[-1], streams.delta[0]
        errors.append(torch.stack([(h @ h.T / n - C).square().mean(), (g @ g.T / n - P).square().mean()]))
    return torch.stack(errors, 1)


def moments(x: Tensor, name: Activation, L: int) -> tuple[Tensor, Tensor]:
    """``C_L`` and ``P_0 = prod (1 + tau E[phi' phibar'])`` of networks of depth L."""
    act, tau = activation(name), 1.0 / L
    P = torch.ones(len(x), len(x), dtype=torch.float64)
    C = x.double() @ x.double().T / x.shape[1]
    for level in range(L):
        a = C.diagonal()
        P = P * (1 + tau * act.slope_moment(a[:, None], a[None], C))
        C = kernel(x.double(), activation=name, horizon=tau * (level + 1), depth=level + 1)
    return C, P


def covariances(x: Tensor, name: Activation, n: int, L: int, count: int, seed: int) -> Tensor:
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
        h = h + math.sqrt(1.0 / L) * drawn(a @ a.mT / n)
    return h @ h.mT / n
