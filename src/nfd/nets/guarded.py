"""A parameter that refuses to be changed by optimizers that cannot be exact for it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nfd.core.errors import StateError


class Guarded(nn.Parameter):
    """A parameter that only ``nfd.SGD`` may step; ``accepted`` is the version of its last allowed state."""

    accepted: int = 0
    generation: int = 0  # moves when the state is replaced, and with it the meaning of every coordinate

    def __deepcopy__(self, memo: dict[int, Any]) -> Guarded:
        self.check()
        memo[id(self)] = copied = Guarded(self.data.clone(), self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.check()
        return _rebuilt, (self.data, self.requires_grad)

    def accept(self) -> None:
        """Declare the present value legitimate."""
        self.accepted = self._version

    def check(self) -> None:
        """Raise if something else changed the value."""
        if self._version != self.accepted:
            raise StateError(
                "The weights of a DeferredLinear were changed by something other than nfd.SGD. Its matrix exists "
                "only through the products it was asked for, so only rules that act on the matrix as a whole "
                "are exact; elementwise ones (Adam, sign) are not. Use nfd.SGD, which takes the options of "
                "torch.optim.SGD and knows how the layer grows, or dense weights for another optimizer."
            )


def _rebuilt(data: Tensor, requires_grad: bool) -> Guarded:
    parameter = Guarded(data, requires_grad)
    parameter.accept()
    return parameter
