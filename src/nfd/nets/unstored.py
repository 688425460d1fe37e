"""What a module shows in place of a weight that it does not store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from nfd.core.errors import StateError

if TYPE_CHECKING:
    from nfd.nets.factored import FactoredLinear


_OPERATORS = (  # which Python looks up on the class
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "pow",
    "rpow", "matmul", "rmatmul", "neg", "abs", "lt", "le", "gt", "ge", "getitem", "setitem", "len", "iter",
)  # fmt: skip


class WeightError(StateError, AttributeError):
    """A weight was read that is not stored; to ``hasattr`` it has no such attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was asked of a weight that is not stored: some code reads the weight of a layer that nfd.defer "
            "replaced, instead of calling the layer. Call it, keep that layer dense, by where= of nfd.defer, or use "
            "weights='dense'."
        )


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
        raise WeightError(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> NoReturn:
        raise WeightError(name)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Unstored, *args: Any) -> NoReturn:
        raise WeightError(name)

    return refuse


for _name in _OPERATORS:
    setattr(Unstored, f"__{_name}__", _refused(_name))
