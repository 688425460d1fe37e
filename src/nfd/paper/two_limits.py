"""Groups of networks and their limits, and distances between groups.

Networks are trained, after one step, or untrained.
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
    """Return outputs [count / 2, K] of independent solutions of Definition 1 or Eq. 5.

    Each sample is made by two solutions.
    """

    def outputs(index: int) -> Tensor:
        solution = solve_nfd(
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
        )
        return solution.outputs

    return torch.stack([outputs(index) for index in range(count // 2)])


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
    """Return outputs [count, K] of networks, each before its update.

    They are trained by online SGD on ``(f - y)^2 / 2``.
    """

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum() / 2

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
        steps = train(net, SGD(net.param_groups(eta_c)), batches, loss)
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
    """Return ``-(f^(1) - f^(0)) / (eta_c L')`` of one network on its training input [1, d]."""
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
    # The output itself is the loss, so L' = 1.
    before.sum().backward()
    optimizer.step()
    with torch.no_grad():
        change: Tensor = (before.detach() - net(x)).sum() / eta_c
    return change


# ---- Untrained networks of horizon 1 against their limits (Props. 2, 3, 6)


def flows(net: Network, x: Tensor) -> Streams:
    """Pass over ``x`` [b, d], and back from the sum of the outputs.

    ``delta`` is then g of Eq. 3.
    """
    streams = net.streams(x)
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    return streams


def errors_in_depth(
    x: Tensor, name: Activation, n: int, seed: int, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return how far ``h_L`` and ``g_0`` are from ``h_L`` and ``g_0`` of a network twice as deep.

    These are mean squares [depths], on one Brownian path. Where the distance from the limit falls
    as a power of L so does this one; the distance from one network of depth M goes as ``1/L - 1/M``
    and seems to fall faster.
    """
    all_depths = sorted({*depths, *(2 * L for L in depths)})
    ends = {L: endpoints(x, name, n, L, seed) for L in all_depths}
    of_h: list[Tensor] = []
    of_g: list[Tensor] = []
    for L in depths:
        h, g = ends[L]
        h_of_double, g_of_double = ends[2 * L]
        of_h.append((h - h_of_double).square().mean())
        of_g.append((g - g_of_double).square().mean())
    return torch.stack(of_h), torch.stack(of_g)


def endpoints(x: Tensor, name: Activation, n: int, L: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ``h_L`` and ``g_0`` of one untrained network with one output.

    Its layers are cut from one Brownian path.
    """
    net = ResNet(x.shape[1], 1, n, L, activation=name, seed=seed, coupled=True, dtype=x.dtype)
    streams = flows(net, x)
    return streams.h[-1].double(), streams.delta[0].double()


def covariances(x: Tensor, name: Activation, n: int, L: int, count: int, seed: int) -> Tensor:
    """Draw ``h_L.hbar_L / n`` [count, b, b] of untrained networks, in law exactly, all at once.

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
    """Return ``squared_size`` of the difference of the means of two independent groups."""
    error = (stderr(first).square() + stderr(second).square()).sqrt()
    return squared_size(first.mean(0) - second.mean(0), error)


def systematic(differences: Tensor) -> Tensor:
    """Return the RMS [points] of mean differences [R, points, ...], noise subtracted."""
    return systematic_squares(differences).clamp_min(1e-12).sqrt()


def distance(first: Tensor, second: Tensor) -> Interval:
    """Return the RMS distance of the means of two groups [R, K], over the RMS of the second mean.

    The RMS is over entries, with noise subtracted. The interval is the root of the square's
    interval, cut off at zero.
    """
    square = interval(lambda a, b: squared_apart(a, b) / _scale(b), first, second)
    return beyond(square, float(_scale(second)), first, second)


def relative(differences: Tensor, outputs: Tensor) -> Interval:
    """Return the RMS of mean paired differences [R, K], over the RMS of mean outputs [R, K].

    The RMS is over entries, with noise subtracted; differences and outputs are of the same runs.
    """

    def square(pairs: Tensor) -> Tensor:
        difference, output = pairs.unbind(1)
        return squared_size(difference.mean(0), stderr(difference)) / _scale(output)

    both = torch.stack([differences, outputs], 1)
    return beyond(interval(square, both), float(_scale(outputs)), differences)


def _scale(outputs: Tensor) -> Tensor:
    """Return the mean square of mean outputs [R, K]."""
    return outputs.mean(0).square().mean()


def beyond(square: Interval, scale: float, *samples: Tensor) -> Interval:
    """Return the root of a mean square over a scale, cut off at zero.

    The noise of the samples [R, K] was subtracted from the square. The jackknife sees what is
    linear in the noise; what is quadratic, ``sqrt(2) noise`` if all entries err together, counts
    besides, so that a difference of nothing is not known better than its noise.
    """
    noise, freedom = satterthwaite(
        (float(stderr(s).square().mean()) / scale, len(s) - 1) for s in samples
    )
    quadratic = math.sqrt(2) * noise
    half = standard_errors(freedom) * quadratic
    below = math.hypot(square.low - square.value, half)
    above = math.hypot(square.high - square.value, half)
    error = math.hypot(square.stderr, quadratic)
    return Interval(square.value, error, square.value - below, square.value + above).root()
