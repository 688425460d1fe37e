"""Readings of the paper's networks: streams before training, and the covariances of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd import ResNet
from nfd.core import rms, stream_variances
from nfd.families import Network, Streams


def at_start(net: Network, x: Tensor) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return numbers and vectors of an untrained network on inputs ``[P, d]``.

    The streams of one sample are compared with *particles* driven by the same noise (synchronous
    coupling, Props. 2 and 6). With ``tau = m^2``, T / L under depth-muP, ``s_l = |phi(h_{l-1})| /
    sqrt(n)`` and ``b_l = W_l' g_l``, W_l the matrix that carries gradients, a pre-activation
    network has

        h_l     = h_{l-1} + sqrt(tau) s_l dw_l,
        dw_l    = W_l phi(h_{l-1}) / |phi(h_{l-1})|,
        g_{l-1} = g_l + sqrt(tau) phi'(h_{l-1}) r_l dw~_l,
        dw~_l   = b_l / |g_l|,  r_l = |g_l| / sqrt(n)

    and its particles, at infinite width and the same depth, follow these equations with the
    deterministic ``s_l^2 = E phi^2(h_{l-1})``, ``r_l^2 = E g_l^2`` and with phi' at the particle.

    Vectors: ``h_rms``, ``h_mean`` and ``g_rms`` by layer ``[L+1]``, with g the gradient of the
    first output (Eq. 3); ``h_end`` = h_L and ``g_start`` = g_0, ``[P n]``. Numbers, for
    pre-activation one-layer networks: ``h_particles`` and ``g_particles``, mean squares of h_L and
    of g_0 minus their particles.
    """
    h, g = _streams(net, x)
    vectors = {
        "h_rms": h.square().mean((1, 2)).sqrt(),
        "h_mean": h.mean((1, 2)),
        "g_rms": g.square().mean((1, 2)).sqrt(),
        "h_end": h[-1].flatten(),
        "g_start": g[0].flatten(),
    }
    if not isinstance(net, ResNet) or net.order != "pre" or net.inner is not None:
        return {}, vectors
    horizon = net.branch**2 * net.depth
    q, P = stream_variances(net.activation, x.double().square().mean(1), net.depth, horizon)
    forward = _forward_particles(net, h, q)
    backward = _backward_particles(net, g, forward, P)
    numbers = {
        "h_particles": rms(h[-1] - forward[-1]) ** 2,
        "g_particles": rms(g[0] - backward) ** 2,
    }
    return numbers, vectors


def _streams(net: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and g of the first output, ``[L+1, P, n]``."""
    layers, _ = net.run(x)
    g = first_gradient(net, layers, net.read(layers[-1]))
    return torch.stack([h.detach() for h in layers]), g


@torch.no_grad()
def _forward_particles(net: ResNet, h: Tensor, q: Tensor) -> list[Tensor]:
    """Return the particles of every layer ``[P, n]``, with variances q ``[L+1, P]``."""
    tau = net.branch**2
    phi = net.activation
    particles = [h[0]]
    for index, before in enumerate(h[:-1]):
        features = phi.phi(before)
        # Features that are all zero have no direction; any one gives normal noise.
        dead = (features == 0).all(1, keepdim=True)
        direction = nn.functional.normalize(torch.where(dead, 1.0, features), dim=1)
        noise = direction @ cast(Tensor, net.outer[index].weight).T
        size = (tau * phi.moment(q[index], q[index], q[index])).sqrt()
        particles.append(particles[-1] + size[:, None].to(h) * noise)
    return particles


@torch.no_grad()
def _backward_particles(net: ResNet, g: Tensor, forward: list[Tensor], P: Tensor) -> Tensor:
    """Return the particles of g_0, ``[P, n]``, with variances P ``[L+1, P]``."""
    tau = net.branch**2
    phi = net.activation
    particle = g[-1]
    for index in reversed(range(net.depth)):
        above = g[index + 1]
        layer = net.outer[index]
        backward = cast(Tensor, layer.weight if net.feedback == "shared" else layer.feedback_weight)
        noise = above @ backward / above.norm(dim=1, keepdim=True)
        size = (tau * P[index + 1]).sqrt()[:, None].to(g)
        particle = particle + size * phi.slope(forward[index]) * noise
    return particle


@dataclass
class Seen:
    """The streams of one pass, and the gradient of its first output ``[L+1, b, n]``."""

    streams: Streams
    g: Tensor


class Spectra:
    """Smallest eigenvalues ``[L]`` of the covariances of online steps (Assumption 1, Fig. 6).

    After k steps of one sample each, with ``phi(h_{l-1}^(i))`` and the gradient ``g_l^(i)`` of the
    first output (Eq. 3) of step i, before its update,

        Sigma_l[i, j] = phi(h_{l-1}^(i)) . phi(h_{l-1}^(j)) / n,
        Theta_l[i, j] = g_l^(i) . g_l^(j) / n,

    and ``Delta_l`` are the inner products of the loss-weighted ``delta_l^(i)``, which
    backpropagation carries. Nothing is added to the diagonal.
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.seen: Seen | None = None
        self._kept: dict[str, list[Tensor]] = {"sigma": [], "theta": [], "delta": []}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what the passes within show."""
        net = self.net

        def look(_module: nn.Module, _args: Any, outputs: Tensor) -> None:
            layers, inner = passes[-1]
            streams = Streams(outputs, math.sqrt(net.width) / net.alpha, layers, inner)
            self.seen = Seen(streams, first_gradient(net, layers, outputs))
            # The gradient of the first output goes, so that the loss's is all that is kept there.
            for h in layers:
                h.grad = None

        with net.watched() as passes, net.register_forward_hook(look):
            yield

    def gather(self) -> None:
        """Keep the vectors of a step, after its backward pass.

        They are ``phi(h_0) .. phi(h_{L-1})``, ``g_1 .. g_L`` and ``delta_1 .. delta_L``.
        """
        assert self.seen is not None
        self._kept["sigma"].append(self.net.activation.phi(self.seen.streams.h[:-1, 0]))
        self._kept["theta"].append(self.seen.g[1:, 0])
        self._kept["delta"].append(self.seen.streams.delta[1:, 0])

    def smallest(self) -> dict[str, Tensor]:
        """Return ``sigma``, ``theta`` and ``delta``, ``[L]`` each.

        With ``_relative`` they are of the correlations. They are not-a-number before the first
        step, and where vectors left the range of floating-point numbers.
        """
        smallest: dict[str, Tensor] = {}
        for name, vectors in self._kept.items():
            if not vectors:
                blank = torch.full((self.net.depth,), torch.nan, dtype=torch.float64)
                smallest |= {name: blank, f"{name}_relative": blank}
                continue
            # [L, k, n] after k steps.
            matrix = torch.stack(vectors, 1).double()
            gram = matrix @ matrix.mT / matrix.shape[-1]
            scale = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
            smallest[name] = _lowest(gram)
            smallest[f"{name}_relative"] = _lowest(scale[:, :, None] * gram * scale[:, None, :])
        return smallest


def first_gradient(net: Network, layers: Sequence[Tensor], outputs: Tensor) -> Tensor:
    """Return g of Eq. 3 for the first output, ``sqrt(n) / alpha df_1 / dh_l``, ``[L+1, b, n]``."""
    gradients = torch.autograd.grad(outputs[:, 0].sum(), list(layers), retain_graph=True)
    return math.sqrt(net.width) / net.alpha * torch.stack(gradients)


def _lowest(matrices: Tensor) -> Tensor:
    """Return the smallest eigenvalues [L] of matrices, not-a-number where one is not finite."""
    is_finite = matrices.isfinite().all(-1).all(-1)
    # The solver refuses matrices that are not finite.
    finite = torch.where(is_finite[:, None, None], matrices, 0.0)
    lowest = torch.linalg.eigvalsh(finite)[:, 0]
    return torch.where(is_finite, lowest, torch.nan)
