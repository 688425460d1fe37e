"""A parameter that refuses what cannot be exact for the matrix that it stands for."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from nfd.nets.fingerprint import Ledger, Note

STORED = "stored weights (weights='dense' in a network of nfd, torch.nn.Linear elsewhere)"


class Guarded(nn.Parameter):
    """A parameter of a ``DeferredLinear`` that only ``nfd.SGD`` may step, by a multiple of its own gradient.

    It is D (two dimensions) or the scale s (none), whose gradient is always zero. ``accepted`` is the version of its last
    allowed state and ``noted`` what that state was; ``ledger`` is what the layer added to the gradient of D, and
    ``scale`` the other parameter of the same layer, both None before there is a gradient.
    """

    accepted: int = 0
    generation: int = 0  # moves when the state is replaced, and with it the meaning of every coordinate
    live: tuple[int, int] = (0, 0)  # rows and columns of D in use; the rest is room to grow
    noted: Note | float | None = None
    ledger: Ledger | None = None
    scale: Guarded | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Guarded:
        self.check()
        memo[id(self)] = copied = _rebuilt(self.data.clone(), self.requires_grad, self.live)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.check()
        return _rebuilt, (self.data, self.requires_grad, self.live)

    def register_hook(self, hook: Any) -> NoReturn:
        """Refused: D grows while its gradient is computed, so the layer adds it up outside of autograd."""
        raise RuntimeError(
            "A DeferredLinear adds up the gradient of its parameters by itself, so a hook on them would never be called. "
            "Change the gradient as a whole after backward(), as torch.nn.utils.clip_grad_norm_ does, or register the "
            "hook on the outputs of the layer."
        )

    def register_post_accumulate_grad_hook(self, hook: Any) -> NoReturn:
        """Refused, for the same reason."""
        self.register_hook(hook)

    @property
    def held(self) -> int:
        """Bytes of the numbers, of their gradient, and of what is noted of both."""
        noted = self.noted.product if isinstance(self.noted, Note) else None
        return sum(held.nbytes for held in (self.data, self.grad, noted, self.ledger) if held is not None)

    def accept(self) -> None:
        """Declare the present value legitimate."""
        self.accepted = self._version
        self.noted = float(self.data) if self.dim() == 0 else Note.of(self._in_use(self.data))

    def check(self) -> None:
        """Raise if something else changed the value."""
        if self._version == self.accepted and self._as_noted():
            return
        raise RuntimeError(
            "The weights of a DeferredLinear were changed by something other than nfd.SGD. Its matrix exists "
            "only through the products it was asked for, so only rules that act on the matrix as a whole "
            "are exact; elementwise ones (Adam, sign), averages of weights and writes through .data are not. Use "
            "nfd.SGD, which takes the options of torch.optim.SGD and knows how the layer grows, and load_state_dict to "
            f"set a state; or {STORED}."
        )

    def check_gradient(self) -> float:
        """The number c with ``grad = c`` times what the layer added up; raise where there is none."""
        factor = 1.0 if self.grad is None else self._factor(self.grad)
        if factor is not None:
            return factor
        name, expected = ("scale", "zero") if self.dim() == 0 else ("update", "one number times what backward() made")
        raise RuntimeError(
            f"{name}.grad of a DeferredLinear was changed: it is not {expected}. It stands for the gradient of a matrix "
            "that is not stored, in coordinates of the layer's own, so what acts on its entries (clip_grad_value_, sign, "
            "noise, a tensor put in its place, an average over processes) does something else than it would to the "
            "matrix. Scaling as a whole is exact: torch.nn.utils.clip_grad_norm_, GradScaler, grad.mul_(c), zero_grad, "
            f"several calls of backward(). Use these, or {STORED}."
        )

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right`` to the gradient of D, and note it."""
        if self.grad is None:
            self.grad, self.ledger = torch.zeros_like(self.data), None
        if self.ledger is None or not self.ledger.is_current(self.grad):
            factor = self.check_gradient()
            self.ledger = self.ledger or Ledger(self.data)
            self.ledger.scale(factor)
        self.grad[: left.shape[1], : right.shape[1]].addmm_(left.T, right)
        self.ledger.add(left, right, self.grad)

    def _factor(self, grad: Tensor) -> float | None:
        if self.dim() and self.ledger is not None:
            return self.ledger.factor(self._in_use(grad))
        edited = bool((grad.isfinite() & (grad != 0)).any())
        return None if edited else 1.0

    def _as_noted(self) -> bool:
        if isinstance(self.noted, Note):
            return self.noted.fits(self._in_use(self.data))
        value = float(self.data)
        return value == self.noted or (self.noted is not None and math.isnan(value) and math.isnan(self.noted))

    def _in_use(self, matrix: Tensor) -> Tensor:
        rows, columns = self.live
        return matrix[:rows, :columns]


def _rebuilt(data: Tensor, requires_grad: bool, live: tuple[int, int]) -> Guarded:
    parameter = Guarded(data, requires_grad)
    parameter.live = live
    parameter.accept()
    return parameter
