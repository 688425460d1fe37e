"""A stack of networks computes what each of them computes alone, and one that diverges ends alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import nfd
from nfd.nets.network import Network
from nfd.nets.stack import Stack
from nfd.training.loop import train
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import stacked_optimizer_named

HORIZONS, EXPONENTS = (1.0, 2.0, 0.5, 1.0), (0.5, 0.5, 1.0, 0.0)
RULES, RATES = ("depth-mup", "depth-mup", "complete-p", "mup"), (0.1, 0.2, 0.3, 0.05)
STEPS, BATCH, D, C = 6, 10, 8, 3


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, D, generator=stream, dtype=dtype)
    return x, torch.randint(0, C, (len(x),), generator=stream), torch.arange(len(x)).view(STEPS, BATCH)


def alone(net: Network, rule: str, eta_c: float, optimizer: Any, momentum: float) -> tuple[Tensor, Tensor]:
    """The plain loop: losses and the outputs after training."""
    x, y, order = data(net.U.dtype)
    groups = net.param_groups(eta_c, rule, optimizer)
    stepper = torch.optim.SGD(groups, momentum=momentum) if optimizer == "sgd" else torch.optim.Adam(groups)
    losses = []
    for samples in order:
        stepper.zero_grad()
        loss = cross_entropy(net(x[samples]), y[samples])
        loss.backward()
        stepper.step()
        losses.append(loss.detach())
    return torch.stack(losses), net(x).detach()


def together(stack: Stack, groups: list[dict[str, Any]], optimizer: Any = "sgd", momentum: float = 0.0) -> Tensor:
    """The one loop, of the whole stack: losses ``[R, steps]``."""
    x, y, order = data(next(stack.parameters()).dtype)
    batches = [(x[samples], y[samples]) for samples in order]
    rows = train(stack, stacked_optimizer_named(optimizer, groups, momentum=momentum), batches, cross_entropy)
    return torch.stack([row.losses for row in rows], dim=1)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"block": "two-layer"},
    {"order": "post"},
    {"feedback": "independent"},
    {"feedback": "static", "block": "two-layer"},
    {"activation": "tanh"},
    {"activation": "gelu", "block": "two-layer"},
    {"regime": "kernel"},
]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_stack_is_its_networks(variant: dict[str, Any], optimizer: Any) -> None:
    rates = [eta / (1 if optimizer == "sgd" else 10) for eta in RATES]
    momentum = 0.5 if optimizer == "sgd" else 0.0
    nets: list[Network] = [
        nfd.ResNet(D, C, 16, 5, seed=r, horizon=T, branch_exponent=a, dtype=torch.float64, **variant)
        for r, (T, a) in enumerate(zip(HORIZONS, EXPONENTS, strict=True))
    ]
    stack = Stack(copy.deepcopy(nets))
    x, _, _ = data(torch.float64)
    losses = together(stack, stack.param_groups(rates, RULES, optimizer), optimizer, momentum)
    outputs = stack(x).detach()
    for r, net in enumerate(nets):
        expected, final = alone(net, RULES[r], rates[r], optimizer, momentum)
        torch.testing.assert_close(losses[r], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(outputs[r], final, rtol=0, atol=1e-12)


def test_one_that_diverges_leaves_the_rest_bit_for_bit() -> None:
    def losses(second: float) -> Tensor:
        stack = Stack([nfd.ResNet(D, C, 16, 4, seed=r) for r in range(3)])
        groups = stack.param_groups([0.1, second, 0.3], ["depth-mup"] * 3)
        return together(stack, groups)

    calm, wild = losses(0.2), losses(1e15)
    assert not wild[1].isfinite().all()
    assert torch.equal(calm[[0, 2]], wild[[0, 2]])
