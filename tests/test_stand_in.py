"""Layers without stored weights stand in for nn.Linear: standard deviations of weights and of their feedback."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nfd

F64 = torch.float64


LAYERS = {
    "deferred": nfd.DeferredLinear,
    "structured": partial(nfd.StructuredLinear, resolution=1e-10, basis="inputs"),
    "structured-gradients": partial(nfd.StructuredLinear, resolution=1e-10, basis="gradients"),
}
every_layer = pytest.mark.parametrize("layer_of", LAYERS.values(), ids=LAYERS.keys())
Layer = Callable[..., Any]  # a DeferredLinear or a StructuredLinear, which is alike


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
                dense.bias = nn.Parameter(start[index].bias.detach().clone())
            twin[index] = dense
    return twin


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
