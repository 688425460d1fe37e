"""How many rows the layers of a deferred model are asked for, counted before there is one: tokens, patches, inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.nets.factored import FactoredLinear
from nfd.nets.linear_map import LinearMap, replaced


class CountedLinear(nn.Module):
    """``y = x W' + b`` in place of a layer without stored weights, with the weights stored; it counts its rows."""

    suffix = ".weight"

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.update = self.scale = weight  # which hold nothing else here
        self.bias, self.rows, self.weight_shape = None, 0, tuple(weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        self.rows += x.numel() // x.shape[-1]
        return nn.functional.linear(x, self.update, self.bias)


def rows_asked(
    model: nn.Module, maps_of: Callable[[nn.Module], Mapping[str, LinearMap]], run: Callable[[nn.Module], Any]
) -> dict[str, int]:
    """Rows that each linear map is asked for, by name.

    Args:
        model: is left as it is; a copy runs, with the same numbers.
        maps_of: the maps of the model, or of a copy of it.
        run: asks a model.
    """
    counted: dict[str, CountedLinear] = {}

    def layer_for(name: str, linear: LinearMap) -> FactoredLinear:
        counted[name] = CountedLinear(linear.matrix)
        return cast(FactoredLinear, counted[name])

    twin = copy.deepcopy(model)
    twin = replaced(twin, maps_of(twin), layer_for)
    with torch.no_grad():
        run(twin)
    return {name: layer.rows for name, layer in counted.items()}
