"""Groups of networks and their limits: trained, after one step, and untrained; and distances
between groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nfd import SGD, ResNet, solve_nfd
from nfd.core import (
    Activation,
    Feedback,
    Interval,
    Weights,
    activation,
    derive,
    generator,
    interval,
    satterthwaite,
    squared_size,
    standard_errors,
    stderr,
    systematic_squares,
)
from nfd.families import Network, Streams
from nfd.runs import train

HORIZON = 1.0
ETA_C = 0.3


def solutions(
    x: Tensor,
    y: Tensor,
    L: int,
    particles: int,
    count: int,
    *,
    eq5: bool,
    eta_c: float = ETA_C,
    horizon: float = HORIZON,
    activation: Activation = "relu",
    seed: int = 0,
) -> Tensor:
    """Outputs [count / 2, K] of independent solutions of Definition 1 or Eq. 5, two to a sample."""
    outputs = [
        solve_nfd(
            x,
            y,
            grid=L,
            horizon=horizon,
            activation=activation,
            eta_c=eta_c,
            particles=particles,
            replicates=2,
            eq5_term=eq5,
            seed=seed + index,
        ).outputs
        for index in range(count // 2)
    ]
    return torch.stack(outputs)


def networks(
    x: Tensor,
    y: Tensor,
    L: int,
    width: int,
    count: int,
    feedback: Feedback,
    weights: Weights,
    *,
    seed: int = 0,
    coupled: bool = False,
    eta_c: float = ETA_C,
    horizon: float = HORIZON,
    activation: Activation = "relu",
) -> Tensor:
    """Outputs [count, K] of networks, each before its update: online SGD on ``(f - y)^2 / 2``."""

    def outputs(index: int) -> Tensor:
        net = ResNet(
            x.shape[1],
            1,
            width,
            L,
            horizon=horizon,
            activation=activation,
            feedback=feedback,
            weights=weights,
            coupled=coupled,
            seed=derive(seed, "replicate", width, index),
        )
        net.reserve(len(x))
        batches = zip(x.float()[:, None], y.float(), strict=True)
        steps = train(
            net,
            SGD(net.param_groups(eta_c)),
            batches,
            lambda out, target: (out - target).square().sum() / 2,
        )
        return torch.stack([step.outputs[0, 0] for step in steps]).double()

    return torch.stack([outputs(index) for index in range(count)])


def first_step(
    x: Tensor,
    n: int,
    L: int,
    feedback: Feedback,
    seed: int,
    *,
    weights: Weights = "dense",
    horizon: float = HORIZON,
    activation: Activation = "relu",
    eta_c: float = 1e-3,
) -> Tensor:
    """``-(f^(1) - f^(0)) / (eta_c L')`` of one network on its own training input ``x`` [1, d]."""
    net = ResNet(
        x.shape[1],
        1,
        n,
        L,
        horizon=horizon,
        activation=activation,
        seed=seed,
        feedback=feedback,
        weights=weights,
        dtype=torch.float64,
    )
    optimizer = SGD(net.param_groups(eta_c))
    before = net(x)
    before.sum().backward()  # a loss with L' = 1
    optimizer.step()
    with torch.no_grad():
        change: Tensor = (before.detach() - net(x)).sum() / eta_c
    return change


# ---- Untrained networks of horizon 1 against their limits (Props. 2, 3, 6)


def flows(net: Network, x: Tensor) -> Streams:
    """One pass over ``x`` [b, d] and the backward pass of the sum of the outputs: ``delta`` is then
    g of Eq. 3.
    """
    streams = net.streams(x)
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    return streams


def errors_in_depth(
    x: Tensor, name: Activation, n: int, seed: int, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Mean squares [depths] of ``h_L`` and of ``g_0`` minus those of the network twice as deep on
    one Brownian path.

    Where the distance from the limit falls as a power of L so does this one; that from one network
    of depth M, which goes as ``1/L - 1/M``, seems to fall faster.
    """
    both = {
        L: endpoints(x, name, n, L, seed) for L in sorted({M for L in depths for M in (L, 2 * L)})
    }
    h, g = (
        torch.stack([(both[L][end] - both[2 * L][end]).square().mean() for L in depths])
        for end in (0, 1)
    )
    return h, g


def endpoints(x: Tensor, name: Activation, n: int, L: int, seed: int) -> tuple[Tensor, Tensor]:
    """``h_L`` and ``g_0`` of one untrained network with one output, its layers cut from one
    path.
    """
    net = ResNet(x.shape[1], 1, n, L, activation=name, seed=seed, coupled=True, dtype=x.dtype)
    streams = flows(net, x)
    return streams.h[-1].double(), streams.delta[0].double()


def covariances(x: Tensor, name: Activation, n: int, L: int, count: int, seed: int) -> Tensor:
    """``h_L.hbar_L / n`` [count, b, b] of untrained networks, in law exactly, all at once.

    Given ``phi(h_{l-1})``, the b vectors ``W_l phi / sqrt(n)`` are Gaussian with covariance
    ``phi.phibar / n``.
    """
    act = activation(name)
    stream = generator(seed, "claim", "covariances")

    def drawn(gram: Tensor) -> Tensor:
        z = torch.randn(count, len(x), n, generator=stream, dtype=torch.float64)
        vectors: Tensor = torch.linalg.cholesky(gram) @ z
        return vectors

    h = drawn((x.double() @ x.double().T / x.shape[1]).expand(count, -1, -1))
    for _ in range(L):
        a = act.phi(h)
        h = h + math.sqrt(1.0 / L) * drawn(a @ a.mT / n)
    return h @ h.mT / n


# ---- Distances between groups of networks, without what the noise of their means adds


def squared_apart(first: Tensor, second: Tensor) -> Tensor:
    """``squared_size`` of the difference of the means of two independent groups of replicates."""
    error = (stderr(first).square() + stderr(second).square()).sqrt()
    return squared_size(first.mean(0) - second.mean(0), error)


def systematic(differences: Tensor) -> Tensor:
    """RMS [points] of mean differences [R, points, ...], noise subtracted."""
    return systematic_squares(differences).clamp_min(1e-12).sqrt()


def distance(first: Tensor, second: Tensor) -> Interval:
    """RMS over entries of the difference of two groups [R, K] of means, noise subtracted, over the
    RMS of the second.

    The interval is that of the square, cut off at zero.
    """
    square = interval(lambda a, b: squared_apart(a, b) / _scale(b), first, second)
    return beyond(square, float(_scale(second)), first, second)


def relative(differences: Tensor, outputs: Tensor) -> Interval:
    """RMS over entries of mean paired differences [R, K], noise subtracted, over the RMS of the
    outputs [R, K] of the same runs."""

    def square(pairs: Tensor) -> Tensor:
        difference, output = pairs.unbind(1)
        return squared_size(difference.mean(0), stderr(difference)) / _scale(output)

    both = torch.stack([differences, outputs], 1)
    return beyond(interval(square, both), float(_scale(outputs)), differences)


def _scale(outputs: Tensor) -> Tensor:
    """Mean square of mean outputs [R, K]."""
    return outputs.mean(0).square().mean()


def beyond(square: Interval, scale: float, *samples: Tensor) -> Interval:
    """The root of a mean square over a scale, from which the noise of the samples [R, K] was taken,
    cut off at zero.

    The jackknife sees what is linear in the noise; what is quadratic, ``sqrt(2) noise`` if all
    entries err together, counts besides, so that a difference of nothing is not known better than
    its noise.
    """
    noise, freedom = satterthwaite(
        (float(stderr(s).square().mean()) / scale, len(s) - 1) for s in samples
    )
    error = math.sqrt(2) * noise
    more = standard_errors(freedom) * error
    low, high = (math.hypot(limit - square.value, more) for limit in (square.low, square.high))
    error = math.hypot(square.stderr, error)
    return Interval(square.value, error, square.value - low, square.value + high).root()
