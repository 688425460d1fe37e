"""The standard network, the decoupled network, Definition 1 and Eq. 5 on one problem, as groups of outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from nfd import SGD, ResNet, solve_nfd
from nfd.core import Activation, Feedback, Weights, derive
from nfd.runs import train

HORIZON, ETA_C = 1.0, 0.3


def solutions(
    x: Tensor, y: Tensor, L: int, particles: int, count: int, *, eq5: bool, eta_c: float = ETA_C,
    horizon: float = HORIZON, activation: Activation = "relu", seed: int = 0,
) -> Tensor:  # fmt: skip
    """Outputs [count / 2, K] of independent solutions of Definition 1 or Eq. 5, two to a sample."""
    outputs = [
        solve_nfd(
            x, y, grid=L, horizon=horizon, activation=activation, eta_c=eta_c, particles=particles, replicates=2,
            eq5_term=eq5, seed=seed + index,
        ).outputs
        for index in range(count // 2)
    ]  # fmt: skip
    return torch.stack(outputs)


def networks(
    x: Tensor, y: Tensor, L: int, width: int, count: int, feedback: Feedback, weights: Weights, *, seed: int = 0,
    coupled: bool = False, eta_c: float = ETA_C, horizon: float = HORIZON, activation: Activation = "relu",
) -> Tensor:  # fmt: skip
    """Outputs [count, K] of networks, each before its update: online SGD on ``(f - y)^2 / 2``."""

    def outputs(index: int) -> Tensor:
        net = ResNet(
            x.shape[1], 1, width, L, horizon=horizon, activation=activation, feedback=feedback, weights=weights,
            coupled=coupled, seed=derive(seed, "replicate", width, index),
        )  # fmt: skip
        net.reserve(len(x))
        batches = zip(x.float()[:, None], y.float(), strict=True)
        steps = train(net, SGD(net.param_groups(eta_c)), batches, lambda out, target: (out - target).square().sum() / 2)
        return torch.stack([step.outputs[0, 0] for step in steps]).double()

    return torch.stack([outputs(index) for index in range(count)])


def first_step(
    x: Tensor, n: int, L: int, feedback: Feedback, seed: int, *, weights: Weights = "dense", horizon: float = HORIZON,
    activation: Activation = "relu", eta_c: float = 1e-3,
) -> Tensor:  # fmt: skip
    """``-(f^(1) - f^(0)) / (eta_c L')`` of one network on its own training input ``x`` [1, d]."""
    net = ResNet(
        x.shape[1], 1, n, L, horizon=horizon, activation=activation, seed=seed, feedback=feedback, weights=weights,
        dtype=torch.float64,
    )  # fmt: skip
    optimizer = SGD(net.param_groups(eta_c))
    before = net(x)
    before.sum().backward()  # a loss with L' = 1
    optimizer.step()
    with torch.no_grad():
        change: Tensor = (before.detach() - net(x)).sum() / eta_c
    return change
