"""Layers without stored weights stand in for nn.Linear: standard deviation, bias, rate, decay, momentum, clipping."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import nfd

F64 = torch.float64
WIDTHS = (44, 50, 46)  # more than the samples seen


LAYERS = {
    "deferred": nfd.DeferredLinear,
    "structured": partial(nfd.StructuredLinear, resolution=1e-10, basis="inputs"),
    "structured-gradients": partial(nfd.StructuredLinear, resolution=1e-10, basis="gradients"),
}
every_layer = pytest.mark.parametrize("layer_of", LAYERS.values(), ids=LAYERS.keys())
Layer = Callable[..., nfd.DeferredLinear]  # or StructuredLinear, which is alike


def replaced(layer_of: Layer, **options: object) -> nn.Sequential:
    """A model of a user's, its two wide matrices replaced and started as the user likes."""
    torch.manual_seed(0)
    n, m, k = WIDTHS
    return nn.Sequential(
        nn.Linear(5, n, dtype=F64),
        nn.Tanh(),
        layer_of(n, m, std=1 / math.sqrt(n), seed=1, dtype=F64, **options),
        nn.Tanh(),
        layer_of(m, k, std=1 / math.sqrt(3 * m), seed=2, dtype=F64, **options),
        nn.Tanh(),
        nn.Linear(k, 3, dtype=F64),
    )


def stored(trained: nn.Sequential, start: nn.Sequential) -> nn.Sequential:
    """The start of a model with the completed weights of its trained copy in layers of PyTorch."""
    twin = copy.deepcopy(start)
    for index, layer in enumerate(trained):
        if isinstance(layer, nfd.DeferredLinear | nfd.StructuredLinear):
            W = layer.complete()
            assert isinstance(W, Tensor)
            dense = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=F64)
            dense.weight = nn.Parameter(W)
            if layer.bias is not None:
                dense.bias = nn.Parameter(start[index].bias.detach().clone())  # type: ignore[union-attr, operator]
            twin[index] = dense
    return twin


def train(net: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> list[Tensor]:
    stream = torch.Generator().manual_seed(1)
    outputs = []
    for _ in range(12):
        x = torch.randn(3, 5, generator=stream, dtype=F64)
        y = net(x)
        outputs.append(y.detach())
        optimizer.zero_grad()
        (3 * (y - 1)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return outputs


OPTIONS = [
    {"momentum": 0.9, "weight_decay": 0.05},
    {"momentum": 0.9, "weight_decay": 0.05, "nesterov": True},
    {"momentum": 0.5, "dampening": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [False, True])
@every_layer
def test_a_model_of_linear_layers_is_repeated_by_the_same_call_of_the_optimizer(
    layer_of: Layer, bias: bool, options: dict[str, float]
) -> None:
    net = replaced(layer_of, bias=bias)
    start = copy.deepcopy(net)
    outputs = train(net, nfd.SGD(net.parameters(), lr=0.1, **options), clip=0.7)
    twin = stored(net, start)
    again = train(twin, torch.optim.SGD(twin.parameters(), lr=0.1, **options), clip=0.7)
    for y, z in zip(outputs, again, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)
    assert float((outputs[-1] - outputs[0]).abs().max()) > 0.1
    if bias:
        torch.testing.assert_close(net[2].bias, twin[2].bias, rtol=1e-12, atol=1e-12)


@every_layer
def test_a_standard_deviation_is_a_factor_and_nothing_else(layer_of: Layer) -> None:
    """Bit for bit where the factor is a power of two; so one alone, the default, changes nothing."""
    one, four = (layer_of(40, 30, std=std, seed=5) for std in (1.0, 4.0))
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y, z = one(x), four(x)
    assert torch.equal(4 * y, z)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] * f for out, f in ((y, 4), (z, 1))))
    assert torch.equal(layer_of(40, 30, seed=5)(x), y)


@pytest.mark.parametrize("feedback", ["independent", "static"])
@every_layer
def test_the_feedback_matrix_has_the_same_standard_deviation(layer_of: Layer, feedback: str) -> None:
    layer = layer_of(30, 20, bias=True, std=0.1, feedback=feedback, seed=0, dtype=F64)
    x = torch.randn(3, 30, dtype=F64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = layer(x)
    y.sum().backward()
    W, B = layer.complete()
    torch.testing.assert_close(y, x @ W.T + layer.bias)
    torch.testing.assert_close(x.grad, torch.ones(3, 20, dtype=F64) @ B)


def trained(layer_of: Layer) -> tuple[nfd.DeferredLinear, nfd.SGD, Tensor]:
    layer = layer_of(30, 20, bias=True, std=0.2, seed=4)
    optimizer = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)
    x = torch.randn(3, 30, dtype=layer.update.dtype, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    return layer, optimizer, x


@every_layer
def test_a_matrix_that_starts_at_zero_learns(layer_of: Layer) -> None:
    layer = layer_of(30, 20, std=0.0, seed=0)
    x = torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    assert not layer(x).any()
    (layer(x) - 1).square().mean().backward()
    nfd.SGD(layer.parameters(), lr=0.1).step()
    assert layer(x).all()


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf, 1e13])
@every_layer
def test_an_impossible_standard_deviation_is_refused(layer_of: Layer, std: float) -> None:
    with pytest.raises(ValueError, match="std must be"):
        layer_of(3, 3, std=std)
