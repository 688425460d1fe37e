"""Linear maps in a model: which tensors are their weights, and the layers that replace them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from nfd.nets.attention import DeferredAttention, projections, without_reading
from nfd.nets.convolution import DeferredConv
from nfd.nets.factored import FactoredLinear
from nfd.nets.unstored import Unstored
from nfd.scaling.model import is_conv1d

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_FORWARDS = [kind.forward for kind in _CONVOLUTIONS]


@dataclass(frozen=True)
class LinearMap:
    """A module that maps its inputs, or their patches, by ``W`` [out_features, in_features], its parameter ``key``."""

    module: nn.Module
    key: str = "weight"

    @property
    def weight(self) -> nn.Parameter:
        """W as the module stores it."""
        return cast(nn.Parameter, getattr(self.module, self.key))

    @property
    def features(self) -> tuple[int, int]:
        """``in_features, out_features``."""
        sizes = tuple(self.weight.shape)
        return (sizes[0], sizes[1]) if is_conv1d(self.module) else (self.weight[0].numel(), sizes[0])

    @property
    def matrix(self) -> Tensor:
        """W as it is now, ``[out_features, in_features]``."""
        weight = self.weight.detach()
        return weight.T if is_conv1d(self.module) else weight.flatten(1)

    def stand_in(self, layer: FactoredLinear) -> nn.Module:
        """What takes the place of the module: the layer, with the module's own bias; on patches of a convolution.

        An attention takes the layer in place of its parameter and stays what it is otherwise.
        """
        layer.train(self.module.training)
        if isinstance(self.module, nn.MultiheadAttention):
            return DeferredAttention.with_layer(self.module, self.key, layer)
        layer.bias = cast("nn.Parameter | None", self.module.bias)
        layer.__dict__["original"] = self._without_numbers()  # beside the model, not in it
        layer.__dict__["weight"] = Unstored(layer)
        if is_conv1d(self.module):  # rules that look at the shape of a matrix see it as it was stored
            layer.update.stands_for = layer.scale.stands_for = self.features
        return DeferredConv(layer) if isinstance(self.module, _CONVOLUTIONS) else layer

    def store(self, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
        """The module with these weights [out_features, in_features], and this bias."""
        stored = copy.copy(self.module)
        laid = weight.T if is_conv1d(stored) else weight
        stored._parameters = {"weight": nn.Parameter(laid.reshape(self.weight.shape).contiguous()), "bias": bias}
        return stored

    def _without_numbers(self) -> nn.Module:
        twin = copy.copy(self.module)
        twin._parameters = {
            name: None if p is None else nn.Parameter(torch.empty_like(p, device="meta"))
            for name, p in self.module._parameters.items()
        }
        return twin


def linear_maps(module: nn.Module | None) -> list[LinearMap]:
    """The linear maps whose weights a module holds itself; none where layers cannot stand in for them."""
    forward = getattr(type(module), "forward", None)
    if isinstance(module, nn.MultiheadAttention):
        return [LinearMap(module, key) for key in projections(module)]
    if isinstance(module, _CONVOLUTIONS):
        return [LinearMap(module)] if module.groups == 1 and forward in _FORWARDS else []
    return [LinearMap(module)] if module is not None and (forward is nn.Linear.forward or is_conv1d(module)) else []


def replaced(
    model: nn.Module, maps: Mapping[str, LinearMap], layer_for: Callable[[str, LinearMap], FactoredLinear]
) -> nn.Module:
    """The model with a layer in place of each of these maps, made by ``layer_for`` of its name and the map."""
    places = {id(module): name for name, module in model.named_modules()}  # with the names of wrappers
    for name, linear in maps.items():
        model = placed(model, places[id(linear.module)], linear.stand_in(layer_for(name, linear)))
    return model


def placed(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with this module in a place of it; an attention around it reads no weights from then on."""
    if not name:
        return module
    model.set_submodule(name, module)
    around = model.get_submodule(name.rpartition(".")[0])
    if isinstance(around, nn.MultiheadAttention):
        without_reading(around)
    return model
