"""A parameter that refuses what cannot be exact for the matrix that it stands for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from nfd.core.errors import StateError
from nfd.nets.fingerprint import KEPT, Ledger, Note, Watched
from nfd.nets.frame import padded
from nfd.nets.in_factors import InFactors, block
from nfd.nets.refusals import STORED


class Guarded(Watched, InFactors):
    """A parameter of a ``FactoredLinear`` that only an optimizer of the library may step.

    It is D or U (two dimensions) or the scale s (none), whose gradient is always zero. ``accepted`` is the version of
    its last allowed state and ``noted`` what that state was, once the memory was handed out; ``ledger`` is what the
    layer added to the gradient, and ``scale`` the other parameter of the same layer, both None before there is one.
    """

    owner: str = "DeferredLinear"  # the kind of layer, for messages
    stands_for: tuple[int, int] = (0, 0)  # sizes of W
    has_two_bases: bool = True  # whether both sides of D are coordinates; one side of U is the whole space
    resolution: float = 0.0  # below which the layer leaves out directions; rules that normalise warn of it
    accepted: int = 0
    generation: int = 0  # moves when the state is replaced, and with it the meaning of every coordinate
    noted: Note | float | None = None
    ledger: Ledger | None = None
    scale: Guarded | None = None

    @property
    def held(self) -> list[Tensor]:
        """The tensors that it holds: its numbers, and its gradient or the factors of that."""
        grad = self._stored
        factors = [factor for pair in self.factors or [] for factor in pair]
        return [self.numbers, *factors] if grad is None else [self.numbers, *factors, grad]

    def __deepcopy__(self, memo: dict[int, Any]) -> Guarded:
        self.check()
        memo[id(self)] = copied = _rebuilt(self.numbers.clone(), *self._facts())
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.check()
        return _rebuilt, (self.numbers, *self._facts())

    def expose(self) -> None:
        """Note the value before its memory is handed out."""
        if not self.exposed:
            self.exposed = True
            self.noted = self._note()

    def hold(self, values: Tensor) -> None:
        """Hold these numbers, as the layer itself may tell it to."""
        torch.Tensor.data.__set__(self, values)  # type: ignore[attr-defined]

    def replace(self, values: Tensor) -> None:
        """Hold a saved state; gradient and momentum, in coordinates of the state before, do not outlive it."""
        self.grad = None
        self.hold(values.to(self.numbers, copy=True))
        self.generation += 1
        self.accept()

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Hold the same value and the same gradient elsewhere, or in another precision."""
        grad = self.grad
        values, converted = fn(self.numbers), None if grad is None else fn(grad)
        if grad is None or converted is grad:
            self.hold(values)
        else:
            intact = self.ledger is not None and self.ledger.is_signed(grad)
            if self.ledger is not None:
                self.ledger.rounded(values.dtype)
            self.grad = None
            self.hold(values)
            self._put(cast(Tensor, converted), intact)
        self.accept()

    def register_hook(self, hook: Any) -> NoReturn:
        """Refused: D grows while its gradient is computed, so the layer adds it up outside of autograd."""
        raise StateError(
            f"A {self.owner} adds up the gradient of its parameters by itself, so a hook on them is never called. "
            "Change the gradient as a whole after backward(), as torch.nn.utils.clip_grad_norm_ does, or register the "
            "hook on the outputs of the layer."
        )

    def register_post_accumulate_grad_hook(self, hook: Any) -> NoReturn:
        """Refused, for the same reason."""
        self.register_hook(hook)

    def accept(self) -> None:
        """Declare the present value legitimate."""
        self.accepted = self._version
        if self.exposed:
            self.noted = self._note()

    def check(self) -> None:
        """Raise if something else changed the value."""
        if self._version == self.accepted and (not self.exposed or self._is_as_noted()):
            return
        raise StateError(
            f"The weights of a {self.owner} were changed by something other than nfd.SGD and nfd.Muon. Its "
            "matrix is known only through its products so far, so only rules that act on the matrix as a whole "
            "are exact; elementwise ones (Adam, sign), averages of weights and writes through .data are not. Use "
            "nfd.SGD or nfd.Muon, which know how the layer "
            f"grows, and load_state_dict to set a state; or {STORED}."
        )

    def check_gradient(self) -> float:
        """The number c with ``grad = c`` times what the layer added up; raise where there is none."""
        factor = 1.0 if self.in_factors or self.grad is None else self._factor(self.grad)
        if factor is not None:
            return factor
        name, expected = ("scale", "zero") if self.dim() == 0 else ("update", "a multiple of what backward() left")
        raise StateError(
            f"{name}.grad of a {self.owner} was changed: it is not {expected}. It stands for the gradient of a "
            "matrix that is not stored, in the layer's own coordinates, so what acts on its entries (clip_grad_value_, "
            "sign, noise, a tensor put in its place, an average over processes) does something else than it would to "
            "the matrix. Scaling as a whole is exact: torch.nn.utils.clip_grad_norm_, GradScaler, grad.mul_(c), "
            f"zero_grad, several calls of backward(). Use these, or {STORED}."
        )

    def begin_gradient(self) -> None:
        """Have a gradient: zero, if there is none."""
        if not self.has_gradient:
            self.factors = []

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right``, of factors that nobody writes to, to the gradient of D, and note it."""
        self.begin_gradient()
        if self.factors is not None:
            self.factors.append((left, right))
            if len(self.factors) > KEPT:
                self._multiply()
            return
        grad, ledger = cast(Watched, self.grad), self.ledger or Ledger()
        if not ledger.is_signed(grad):
            factor, handed_out = self.check_gradient(), getattr(grad, "exposed", True)
            grad, self.ledger = Watched.of(grad), ledger
            grad.exposed = handed_out  # whoever holds the memory can still write to it
            ledger.scale(factor)
            self.grad = grad
        grad.numbers[block(left, right)].addmm_(left.T, right)
        ledger.add(left, right)
        ledger.sign(grad)

    def pad(self, rows: int, columns: int) -> None:
        """Give D and its gradient these sizes, which are no smaller than theirs, by zeros."""
        values = self.numbers
        if values.shape == (rows, columns):
            return
        if self.exposed:
            self.check()
        grad = None if self.in_factors else self.grad
        if grad is not None:
            self.grad = None
        self.hold(padded(values, rows, columns))
        self.exposed = False  # what was handed out is memory of the past
        if grad is not None:
            intact = self.ledger is not None and self.ledger.is_signed(grad)
            self._put(padded(grad, rows, columns), intact)

    def _multiply(self) -> None:
        """Have the gradient that is in factors as a tensor."""
        factors, beside = self.factors or [], self._stored
        grad, self.ledger = _padded_product(factors[:1], self.numbers), Ledger()
        for left, right in factors[1:]:
            grad[block(left, right)].addmm_(left.T, right)
        for left, right in factors:
            self.ledger.add(left, right)
        self._put(grad, True)
        if beside is not None:
            cast(Tensor, self.grad).add_(beside)  # which a check will see

    def _put(self, grad: Tensor, intact: bool) -> None:
        """Have this gradient, in memory that nobody else has; intact if it holds what the layer added up."""
        self.grad = Watched.of(grad)
        if intact and self.ledger is not None:
            self.ledger.sign(self.grad)

    def _factor(self, grad: Tensor) -> float | None:
        if self.ledger is not None and self.ledger.is_signed(grad):
            return 1.0
        if self.dim() == 0:
            value = grad.item()
            return None if value and math.isfinite(value) else 1.0
        if self.ledger is None:
            return None if bool(grad.any()) else 1.0
        return self.ledger.factor(grad)

    def _facts(self) -> tuple[bool, int, str, tuple[int, int], bool, float]:
        return self.requires_grad, self.generation, self.owner, self.stands_for, self.has_two_bases, self.resolution

    def _note(self) -> Note | float:
        return float(self.numbers.item()) if self.dim() == 0 else Note.of(self.numbers)

    def _is_as_noted(self) -> bool:
        if isinstance(self.noted, Note):
            return self.noted.fits(self.numbers)
        now, then = self._note(), self.noted
        return now == then or (now != now and then != then)  # not-a-number both


def _padded_product(factors: list[tuple[Tensor, Tensor]], like: Tensor) -> Tensor:
    """``left' right`` among zeros, of the shape of another matrix; zeros of no factors."""
    if not factors:
        return torch.zeros_like(like)
    left, right = factors[0]
    rows, columns = left.shape[1], right.shape[1]
    product = torch.empty_like(like)
    torch.mm(left.T, right, out=product[:rows, :columns])
    product[rows:].zero_()
    product[:rows, columns:].zero_()
    return product


def _rebuilt(
    data: Tensor,
    requires_grad: bool,
    generation: int = 0,
    owner: str = "DeferredLinear",
    stands_for: tuple[int, int] = (0, 0),
    has_two_bases: bool = True,
    resolution: float = 0.0,
) -> Guarded:
    parameter = Guarded(data, requires_grad)
    parameter.generation = generation  # a copied optimizer knows it
    parameter.owner, parameter.stands_for, parameter.has_two_bases = owner, stands_for, has_two_bases
    parameter.resolution = resolution
    parameter.accept()
    return parameter
