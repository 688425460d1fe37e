"""The standard network, the decoupled network, Definition 1 and Eq. 5 on one problem, as groups of outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from nfd.core.names import Activation, Feedback, Weights
from nfd.limits.ensemble import ensemble
from nfd.limits.particles import solve_nfd
from nfd.limits.problem import Problem, problem
from nfd.nets.resnet import ResNet
from nfd.training.optimizers import optimizer_named

HORIZON, ETA_C = 1.0, 0.3


def solutions(
    x: Tensor, y: Tensor, L: int, particles: int, count: int, *, eq5: bool, eta_c: float = ETA_C,
    horizon: float = HORIZON, activation: Activation = "relu", seed: int = 0,
) -> Tensor:  # fmt: skip
    """Outputs [count / 2, K] of independent solutions of Definition 1 or Eq. 5, two to a sample."""
    found = [
        solve_nfd(
            x, y, grid=L, horizon=horizon, activation=activation, eta_c=eta_c, particles=particles, replicates=2,
            eq5_term=eq5, seed=seed + index,
        ).outputs
        for index in range(count // 2)
    ]  # fmt: skip
    return torch.stack(found)


def one_output(
    x: Tensor, y: Tensor, feedback: Feedback, *, coupled: bool = False, eta_c: float = ETA_C, horizon: float = HORIZON,
    activation: Activation = "relu",
) -> Problem:  # fmt: skip
    """Online SGD on ``(f - y)^2 / 2``: the problem that all of them solve."""
    return problem(
        x, y, loss="mse", classes=None, horizon=horizon, activation=activation, block="one-layer", eta_c=eta_c,
        momentum=0.0, feedback=feedback, rule="depth-mup", device="cpu", coupled=coupled,
    )  # fmt: skip


def networks(
    x: Tensor, y: Tensor, L: int, width: int, count: int, feedback: Feedback, weights: Weights, *, seed: int = 0,
    coupled: bool = False, eta_c: float = ETA_C, horizon: float = HORIZON, activation: Activation = "relu",
) -> Tensor:  # fmt: skip
    """Outputs [count, K] of networks."""
    given = one_output(x, y, feedback, coupled=coupled, eta_c=eta_c, horizon=horizon, activation=activation)
    return ensemble(given, width, L, weights, range(count), seed, lambda: None).outputs[:, :, 0, 0]


def first_step(
    x: Tensor, n: int, L: int, feedback: Feedback, seed: int, *, weights: Weights = "dense", horizon: float = HORIZON,
    activation: Activation = "relu", eta_c: float = 1e-3,
) -> Tensor:  # fmt: skip
    """``-(f^(1) - f^(0)) / (eta_c L')`` of one network on its own training input ``x`` [1, d]."""
    net = ResNet(
        x.shape[1], 1, n, L, horizon=horizon, activation=activation, seed=seed, feedback=feedback, weights=weights,
        dtype=torch.float64,
    )  # fmt: skip
    optimizer = optimizer_named("sgd", net.param_groups(eta_c))
    before = net(x)
    before.sum().backward()  # a loss with L' = 1
    optimizer.step()
    with torch.no_grad():
        change: Tensor = (before.detach() - net(x)).sum() / eta_c
    return change
