"""ResNet and MLP: the equations, literal rates, streams against Eq. 3, decoupled gradients, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import nfd
from nfd.core.activations import activation

F64 = torch.float64
ROOT = math.sqrt(8)


def data(batch: int = 4, d: int = 5) -> Tensor:
    return torch.randn(batch, d, dtype=F64, generator=torch.Generator().manual_seed(0))


def test_forward_is_equation_1() -> None:
    net, x = nfd.ResNet(5, 3, 8, 4, horizon=2.0, activation="tanh", dtype=F64), data()
    h = x @ net.U.T / math.sqrt(5)
    for W in net.outer:
        h = h + math.sqrt(2 / (4 * 8)) * torch.tanh(h) @ W.weight.T
    torch.testing.assert_close(net(x), h @ net.V.T / 8)


def test_forward_is_equation_6_and_9_and_the_vanilla_network() -> None:
    x = data()
    two = nfd.ResNet(5, 3, 8, 4, block="two-layer", dtype=F64, regime="kernel")
    h = x @ two.U.T / math.sqrt(5)
    for W1, W2 in zip(two.inner, two.outer, strict=True):
        h = h + torch.relu(h @ W1.weight.T / ROOT) @ W2.weight.T / math.sqrt(4 * 8)
    torch.testing.assert_close(two(x), h @ two.V.T / ROOT)

    post = nfd.ResNet(5, 3, 8, 4, order="post", branch_exponent=1.0, horizon=3.0, dtype=F64)
    h = torch.relu(x @ post.U.T / math.sqrt(5))
    for W in post.outer:
        h = h + math.sqrt(3) / 4 * torch.relu(h @ W.weight.T / ROOT)
    torch.testing.assert_close(post(x), h @ post.V.T / 8)

    mlp = nfd.MLP(5, 3, 8, 4, activation="erf", dtype=F64)
    h = x @ mlp.U.T / math.sqrt(5)
    for W in mlp.hidden:
        h = torch.erf(h) @ W.weight.T / ROOT
    torch.testing.assert_close(mlp(x), h @ mlp.V.T / 8)


def backward_by_hand(net: Any, h: Tensor, x_inner: Tensor | None, weighted: Tensor) -> Tensor:
    """Eq. 3 (Eq. 24 for two-layer blocks) for delta = sum_c Lp_c g^(c); ``weighted`` [b, C] is dLoss/df."""
    slope, n, m = activation(net.activation.name).slope, net.width, net.branch
    g = [weighted @ net.V]
    for index in range(net.depth - 1, -1, -1):
        outer = net.outer[index]
        W = outer.weight if net.feedback == "shared" else outer.feedback_weight
        pulled = g[0] @ W
        if x_inner is None:
            step = slope(h[index]) * pulled * m / math.sqrt(n)
        else:
            inner = net.inner[index]
            W1 = inner.weight if net.feedback == "shared" else inner.feedback_weight
            step = m / n * (slope(x_inner[index]) * pulled) @ W1
        g.insert(0, g[0] + step)
    return torch.stack(g)


@pytest.mark.parametrize("block", ["one-layer", "two-layer"])
@pytest.mark.parametrize("feedback", ["shared", "independent", "static"])
@pytest.mark.parametrize("regime", ["feature", "kernel"])
def test_streams_are_equation_3(block: str, feedback: str, regime: str) -> None:
    net = nfd.ResNet(5, 3, 8, 4, activation="tanh", block=block, feedback=feedback, regime=regime, dtype=F64)
    target = torch.tensor([0, 1, 2, 0])
    s = net.streams(data())
    torch.nn.functional.cross_entropy(s.outputs, target).backward()
    weighted = (torch.softmax(s.outputs, 1) - torch.nn.functional.one_hot(target, 3)).detach() / 4
    assert s.h.shape == (5, 4, 8)
    assert (s.x_inner is None) == (block == "one-layer")
    expected = backward_by_hand(net, s.h, s.x_inner, weighted)
    torch.testing.assert_close(s.delta, expected.detach(), rtol=0, atol=1e-10)


RATES = {  # rule, network arguments -> literal factor of eta_c at n = 8, L = 16
    ("depth-mup", "one-layer", 0.5): {"input": 8, "outer": 8, "readout": 8},
    ("depth-mup", "two-layer", 0.5): {"input": 8, "outer": 8, "inner": 8, "readout": 8},
    ("depth-mup-inner", "two-layer", 0.5): {"input": 8, "outer": 8, "inner": 32, "readout": 8},
    ("complete-p", "one-layer", 1.0): {"input": 8, "outer": 128, "readout": 8},
    ("complete-p", "two-layer", 1.0): {"input": 8, "outer": 128, "inner": 128, "readout": 8},
    ("mup", "two-layer", 0.0): {"input": 8, "outer": 8, "inner": 8, "readout": 8},
    ("standard", "two-layer", 0.5): {"input": 1, "outer": 1, "inner": 1, "readout": 1},
}


@pytest.mark.parametrize(("rule", "block", "exponent"), list(RATES))
def test_rates_are_literally_these(rule: str, block: str, exponent: float) -> None:
    expected = RATES[rule, block, exponent]
    net = nfd.ResNet(2, 2, 8, 16, block=block, branch_exponent=exponent)
    rates = {group["role"]: group["lr"] for group in net.param_groups(0.5, rule)}
    assert rates == {role: 0.5 * factor for role, factor in expected.items()}
    kernel = nfd.ResNet(2, 2, 8, 16, block=block, branch_exponent=exponent, regime="kernel")
    rates = {group["role"]: group["lr"] for group in kernel.param_groups(0.5, rule)}
    assert rates == {role: 0.5 * (factor / 8 if rule != "standard" else 1) for role, factor in expected.items()}


def test_rules_that_do_not_fit_are_refused() -> None:
    net = nfd.ResNet(2, 2, 4, 2)
    with pytest.raises(ValueError, match="Did you mean 'depth-mup'"):
        net.param_groups(0.1, "depth-mupp")
    with pytest.raises(ValueError, match=r"branch_exponent=1; this network has 0\.5"):
        net.param_groups(0.1, "complete-p")
    with pytest.raises(ValueError, match=r"needs inner and outer roles; got \['input', 'outer', 'readout'\]"):
        net.param_groups(0.1, "depth-mup-inner")
    with pytest.raises(ValueError, match="regime='kernel'"):
        net.param_groups(0.1, "ntk")
    with pytest.raises(ValueError, match="lr must be finite"):
        net.param_groups(math.inf)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"width": 0}, ValueError, "width must be at least 1"),
    ({"depth": -3}, ValueError, "depth must be at least 1"),
    ({"depth": 1.5}, TypeError, "depth must be a whole number"),
    ({"horizon": 0.0}, ValueError, "horizon must be greater than 0"),
    ({"activation": "Relu"}, ValueError, "activation must be one of"),
    ({"block": "three-layer"}, ValueError, "block must be one of"),
    ({"weights": "defered"}, ValueError, "Did you mean 'deferred'"),
    ({"order": "post", "block": "two-layer"}, ValueError, "order='post' is defined for"),
    ({"dtype": torch.float16}, ValueError, "dtype must be"),
    ({"seed": -1}, ValueError, "seed must be at least 0"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nfd.ResNet(**({"in_features": 2, "out_features": 2, "width": 4, "depth": 2} | arguments))


class Subclass(nfd.ResNet):
    """Other arguments, another forward pass, and in the second test a parameter of its own."""

    def __init__(self, width: int, depth: int, gain: bool = False) -> None:
        super().__init__(5, 3, width, depth, dtype=F64)
        if gain:
            self.gain = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_streams_of_a_subclass_see_its_outputs() -> None:
    ours, theirs = Subclass(8, 4).streams(data()), nfd.ResNet(5, 3, 8, 4, dtype=F64).streams(data())
    for s in (ours, theirs):
        s.outputs.sum().backward()
    torch.testing.assert_close(ours.outputs, 2 * theirs.outputs)
    torch.testing.assert_close(ours.delta, 2 * theirs.delta)
    assert nfd.plan(Subclass(8, 4), base=Subclass(4, 2)).rate("outer.0.weight") == nfd.plan(
        nfd.ResNet(5, 3, 8, 4), base=nfd.ResNet(5, 3, 4, 2)
    ).rate("outer.0.weight")


def test_parameters_that_a_subclass_adds_are_refused_by_name_until_they_are_frozen() -> None:
    net = Subclass(8, 4, gain=True)
    for make in (net.param_groups, lambda lr: nfd.plan(torch.nn.DataParallel(net))):
        with pytest.raises(ValueError, match=r"Subclass has trainable parameters without a role.*'gain'"):
            make(0.1)
    net.gain.requires_grad_(False)
    assert sum(len(group["params"]) for group in net.param_groups(0.1)) == 2 + 4
    nfd.plan(net)
