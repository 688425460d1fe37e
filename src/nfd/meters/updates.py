"""How much training changed a two-layer residual network, layer by layer and as a function."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.statistics import rms
from nfd.nets.resnet import ResNet


@dataclass(frozen=True)
class Updates:
    """RMS over samples and coordinates (and blocks) of what training changed; all Theta(1) in width.

    Attributes:
        inner: ``x_l - W_{l,1}^(0) h_{l-1} / sqrt(n)``, the part of the inner features that training made (Eq. 27).
        stream: ``sqrt(L / (T n)) (W_{l,2} - W_{l,2}^(0)) phi(x_l)``, the part of dh/dt that training made (Eqs. 33,
            34).
        function: ``f - f^(0)``.
        function_inner: ``f`` minus ``f`` with the inner weights reset to their start.
    """

    inner: float
    stream: float
    function: float
    function_inner: float


@torch.no_grad()
def updates(net: ResNet, start: ResNet, x: Tensor) -> Updates:
    """Compare ``net`` with ``start``, its copy from before training, on inputs ``x`` [batch, in_features].

    Raises:
        ValueError: unless both are two-layer networks with dense weights.
    """
    if net.inner is None or start.inner is None or "deferred" in (net.weights, start.weights):
        raise ValueError(
            f"Updates are measured for block='two-layer' and weights='dense'; got {net.block!r} and {net.weights!r}."
        )
    seen, root = net.streams(x), math.sqrt(net.width)
    rate = net.branch / root * net.depth / net.horizon
    inner, stream = [], []
    for h, x_l, W1, W2, W2_now in zip(seen.layers[:-1], seen.inner, start.inner, start.outer, net.outer, strict=True):
        inner.append(x_l - W1(h) / root)  # Eq. 27
        phi = net.activation.phi(x_l)
        stream.append(rate * (W2_now(phi) - W2(phi)))  # Eqs. 33, 34
    reset = copy.deepcopy(net)
    reset.inner = copy.deepcopy(start.inner)
    return Updates(
        rms(torch.stack(inner)),
        rms(torch.stack(stream)),
        rms(seen.outputs - start(x)),
        rms(seen.outputs - reset(x)),
    )
