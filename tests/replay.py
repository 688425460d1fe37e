"""The proof of the engine: train a deferred network, complete its weights, train the dense network
from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.families.network import Network
from nfd.wide.layers import FactoredLinear

Program = Callable[[nn.Module, torch.optim.Optimizer], list[Tensor]]


def completed(
    deferred: Network, start: dict[str, Tensor], build: Callable[[str], Network]
) -> Network:
    """The dense twin of a trained deferred network, with the weights that its answers came from."""
    dense = build("dense")
    with torch.no_grad():
        dense.U.copy_(start["U"])
        dense.V.copy_(start["V"])
        for name, layer in deferred.named_modules():
            if isinstance(layer, FactoredLinear):
                W = layer.complete(seed=7)
                twin: Any = dense.get_submodule(name)
                if isinstance(W, tuple):
                    twin.weight.copy_(W[0])
                    twin.feedback_weight.copy_(W[1])
                else:
                    twin.weight.copy_(W)
    return dense


def gap(
    build: Callable[[str], Network],
    program: Program,
    eta_c: float,
    rule: str,
    weights: str = "deferred",
    **options: Any,
) -> float:
    """Largest difference between the deferred outputs and those of the dense twin, relative to
    their scale.
    """
    deferred = build(weights)
    start = {"U": deferred.U.detach().clone(), "V": deferred.V.detach().clone()}
    seen = program(deferred, nfd.SGD(deferred.param_groups(eta_c, rule), **options))
    dense = completed(deferred, start, build)
    again = program(dense, torch.optim.SGD(dense.param_groups(eta_c, rule), **options))
    scale = torch.cat([y.flatten() for y in seen]).abs().max()
    return max(float((a - b).abs().max() / scale) for a, b in zip(seen, again, strict=True))
