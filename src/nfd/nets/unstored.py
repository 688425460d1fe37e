"""What a module shows in place of a weight that it does not store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from nfd.core.errors import StateError

if TYPE_CHECKING:
    from nfd.nets.factored import FactoredLinear


class Unstored:
    """The shape, type and device of a weight without numbers; code that computes with it is refused in words.

    PyTorch's own fast paths, such as that of ``nn.TransformerEncoder``, see from it that they must not be taken.
    """

    def __init__(self, layer: FactoredLinear) -> None:
        self._layer = layer

    @property
    def shape(self) -> torch.Size:
        """Of the weight, as the module that was replaced would store it."""
        return torch.Size(self._layer.weight_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of what the layer computes with."""
        return self._layer.update.dtype

    @property
    def device(self) -> torch.device:
        """Where the layer lives."""
        return self._layer.update.device

    @property
    def requires_grad(self) -> bool:
        """Whether the layer trains."""
        return self._layer.update.requires_grad

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        raise StateError(
            f"{name} was given a weight that is not stored: some module reads the weight of a layer that nfd.defer "
            "replaced, instead of calling the layer. Keep that layer dense, by where= of nfd.defer, or call it."
        )
