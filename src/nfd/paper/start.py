"""Networks before training: the sizes of their streams, and how far their neurons are from those of the limit.

The streams of one sample are compared with *particles* driven by the same noise (synchronous coupling, Props. 2 and
6). With ``tau = m^2``, T / L under depth-muP, ``s_l = |phi(h_{l-1})| / sqrt(n)`` and ``b_l = W_l' g_l``, W_l the matrix
that carries gradients, a pre-activation network has

    h_l     = h_{l-1} + sqrt(tau) s_l dw_l,                      dw_l  = W_l phi(h_{l-1}) / |phi(h_{l-1})|
    g_{l-1} = g_l + sqrt(tau) phi'(h_{l-1}) r_l dw~_l,           dw~_l = b_l / |g_l|,  r_l = |g_l| / sqrt(n)

and its particles, at infinite width and the same depth, the same with the deterministic ``s_l^2 = E phi^2(h_{l-1})``,
``r_l^2 = E g_l^2`` and with phi' at the particle.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from nfd import ResNet
from nfd.core import rms, stream_variances
from nfd.families import Network
from nfd.paper.spectra import first_gradient


def at_start(net: Network, x: Tensor) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Numbers and vectors of an untrained network on inputs ``[P, d]``.

    Vectors: ``h_rms``, ``h_mean`` and ``g_rms`` by layer ``[L+1]``, with g the gradient of the first output (Eq. 3);
    ``h_end`` = h_L and ``g_start`` = g_0, ``[P n]``. Numbers, for pre-activation one-layer networks: ``h_particles``
    and ``g_particles``, mean squares of h_L and of g_0 minus their particles.
    """
    h, g = _streams(net, x)
    vectors = {
        "h_rms": h.square().mean((1, 2)).sqrt(),
        "h_mean": h.mean((1, 2)),
        "g_rms": g.square().mean((1, 2)).sqrt(),
        "h_end": h[-1].flatten(),
        "g_start": g[0].flatten(),
    }
    if not (isinstance(net, ResNet) and net.order == "pre" and net.inner is None):
        return {}, vectors
    q, P = stream_variances(net.activation, x.double().square().mean(1), net.depth, net.branch**2 * net.depth)
    forward = _forward_particles(net, h, q)
    backward = _backward_particles(net, g, forward, P)
    return {"h_particles": rms(h[-1] - forward[-1]) ** 2, "g_particles": rms(g[0] - backward) ** 2}, vectors


def _streams(net: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """h and g, ``[L+1, P, n]``, of the first output."""
    layers, _ = net.run(x)
    return torch.stack([h.detach() for h in layers]), first_gradient(net, layers, net.read(layers[-1]))


@torch.no_grad()
def _forward_particles(net: ResNet, h: Tensor, q: Tensor) -> list[Tensor]:
    """The particles of every layer ``[P, n]``, with variances q ``[L+1, P]``."""
    tau, phi = net.branch**2, net.activation
    particles = [h[0]]
    for index, before in enumerate(h[:-1]):
        features = phi.phi(before)
        dead = (features == 0).all(1, keepdim=True)  # no direction is theirs: any one gives normal noise
        direction = nn.functional.normalize(torch.where(dead, 1.0, features), dim=1)
        noise = direction @ cast(Tensor, net.outer[index].weight).T
        size = (tau * phi.moment(q[index], q[index], q[index])).sqrt()
        particles.append(particles[-1] + size[:, None].to(h) * noise)
    return particles


@torch.no_grad()
def _backward_particles(net: ResNet, g: Tensor, forward: list[Tensor], P: Tensor) -> Tensor:
    """The particles of g_0, ``[P, n]``, with variances P ``[L+1, P]``."""
    tau, phi, particle = net.branch**2, net.activation, g[-1]
    for index in reversed(range(net.depth)):
        above, layer = g[index + 1], net.outer[index]
        backward = cast(Tensor, layer.weight if net.feedback == "shared" else layer.feedback_weight)
        noise = above @ backward / above.norm(dim=1, keepdim=True)
        size = (tau * P[index + 1]).sqrt()[:, None].to(g)
        particle = particle + size * phi.slope(forward[index]) * noise
    return particle
