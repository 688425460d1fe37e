"""Parameters that stand for a matrix that is not stored, and notice what would not be exact.

Only our optimizers may step them, and their gradients may only be scaled. PyTorch counts writes to
a tensor (``_version``), and so shows what Adam, signs and averages of weights do in place. Writes
through ``.data`` go around the count; they are the user's responsibility. A gradient that changed
is compared with what the layer had added up: a multiple of that is exact for the dense matrix too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from nfd.core.errors import StateError
from nfd.wide.basis import LEAST_ROOM, SLOTS, padded, with_room

if TYPE_CHECKING:
    from nfd.wide.learned import RandomPlusLowRank

CHANGED = "were changed by something other than"
STORED = "stored weights (weights='dense' in a network of nfd, torch.nn.Linear elsewhere)"
# Where PyTorch keeps a gradient.
_GRADIENT: Any = torch.Tensor.grad
# Units of rounding that a gradient may be off by after it was scaled, several times and in parts.
_ROUNDINGS = 64.0


class Guarded(nn.Parameter):
    """A parameter of a ``FactoredLinear``: D of a deferred layer, or the scale s.

    s has no dimensions, and its gradient is zero.

    Attributes:
        factors: of the products ``left' right`` that backward passes added to the gradient; None
            without a gradient. The tensor that others read and scale is computed from them when it
            is asked for.
        owner: the kind of layer, for messages.
        stands_for: the sizes of W.
        resolution: below it the layer leaves out directions; rules that normalise warn of it.
        accepted: the version of the last allowed state.
        generation: moves when the state is replaced, and with it the meaning of every coordinate.
        made: the gradient as it was computed from its factors, and a copy of its numbers.
        pair: a number that only the two parameters of one layer share; 0 before there is a
            gradient.
    """

    factors: list[tuple[Tensor, Tensor]] | None = None
    owner: str = "DeferredLinear"
    stands_for: tuple[int, int] = (0, 0)
    resolution: float = 0.0
    accepted: int = 0
    generation: int = 0
    made: tuple[Tensor, Tensor] | None = None
    pair: int = 0

    def dim(self) -> int:
        """Return the dimensions of W: people choose by them what decays and what Muon steps.

        What the parameter holds has fewer.
        """
        return len(self.stands_for)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """Return the dimensions of W."""
        return self.dim()

    @property
    def is_scale(self) -> bool:
        """Whether it is the scale s."""
        return len(self.shape) == 0

    @property
    def grad(self) -> Tensor | None:
        """The gradient, of the size of the parameter.

        It is computed from its factors when it is first read.
        """
        stored = self._stored
        if stored is None and self.has_factors:
            stored = self._gradient()
            self._show(stored)
        return stored

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            self.made = None
            self._drop_gradient()
        self._put(value)

    @property
    def state(self) -> tuple[int, int, torch.dtype]:
        """What a forward pass and its backward pass must find alike."""
        return self._version, self.generation, self.dtype

    @property
    def has_factors(self) -> bool:
        """Whether the layer added up a gradient."""
        return self.factors is not None

    @property
    def has_gradient(self) -> bool:
        """Whether there is a gradient; it is not computed from its factors for that."""
        return self.has_factors or self._stored is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> Guarded:
        self.check()
        facts = copy.deepcopy(self._facts(), memo)
        copied = _rebuilt(type(self), self.data.clone(), facts)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.check()
        return _rebuilt, (type(self), self.data, self._facts())

    def __repr__(self) -> str:  # type: ignore[override]
        # PyTorch would print as many dimensions as ``dim()`` says.
        return f"{type(self).__name__}({self.data!r})"

    def replace(self, values: Tensor) -> None:
        """Hold a saved state.

        Gradient and momentum, in coordinates of the state before, do not outlive it.
        """
        self.grad = None
        self.data = values.to(self.data, copy=True)
        self.generation += 1
        self.accept()

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Hold the same value elsewhere, or in another precision; a gradient is not moved."""
        if self.has_gradient:
            raise StateError(
                f"A {self.owner} moves or converts no gradient. Call zero_grad() before .to()."
            )
        self.data = fn(self.data)
        self.accept()

    def accept(self) -> None:
        """Declare the present value legitimate."""
        self.accepted = self._version

    def check(self) -> None:
        """Raise StateError if something else changed the value."""
        if self._version != self.accepted:
            raise StateError(
                f"The weights of a {self.owner} {CHANGED} nfd.SGD and nfd.Muon. Its matrix is not "
                "stored, so only rules that act on the matrix as a whole are exact; Adam, signs "
                "and averages of weights are not. Use nfd.SGD or nfd.Muon, and load_state_dict to "
                f"set a state; or {STORED}."
            )

    def check_gradient(self) -> float:
        """Return c with ``grad = c`` times what the layer added up.

        Raises StateError where there is no such number.
        """
        stored = self._stored
        if stored is None or self._is_unchanged(stored):
            return 1.0
        factor = self._factor(stored)
        if factor is not None:
            return factor
        if self.is_scale:
            name = "scale"
            expected = "zero"
        else:
            name = "update"
            expected = "a multiple of what backward() left"
        raise StateError(
            f"{name}.grad of a {self.owner} was changed: it is not {expected}. It stands for the "
            "gradient of a matrix that is not stored, so what acts on its entries "
            "(clip_grad_value_, sign, noise, an average over processes) would do something else to "
            "the matrix. Scaling as a whole is exact: clip_grad_norm_, GradScaler, grad.mul_(c), "
            f"zero_grad, several calls of backward(). Use these, or {STORED}."
        )

    def settle(self) -> None:
        """Hold the gradient in factors only, scaled as others scaled it."""
        if self._stored is not None:
            factor = self.check_gradient()
            self._put(None)
            self.made = None
            self.begin_gradient()
            if factor != 1.0:
                self._scale_gradient(factor)

    def begin_gradient(self) -> None:
        """Let there be a gradient: zero, if there was none."""
        if not self.has_gradient:
            self.factors = []

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right``, of factors that nobody writes to, to the gradient of D."""
        self.settle()
        self.factors = [*(self.factors or []), (left, right)]

    def pad(self, rows: int, columns: int) -> None:
        """Give D at least these sizes, by zeros."""
        if rows > self.shape[0] or columns > self.shape[1]:
            self.settle()
            self.data = with_room(self.data, rows, columns)

    def enter_step(self) -> None:
        """Get ready for a step; the optimizer calls it before its rule."""

    def leave_step(self, momentum: Tensor | None) -> None:
        """Finish a step; the optimizer calls it after its rule, with its momentum."""

    @property
    def _stored(self) -> Tensor | None:
        """The gradient that PyTorch keeps; reading it computes none."""
        return cast("Tensor | None", _GRADIENT.__get__(self))

    def _put(self, grad: Tensor | None) -> None:
        _GRADIENT.__set__(self, grad)

    def _show(self, grad: Tensor) -> None:
        """Put this gradient, computed from the factors, where PyTorch keeps one."""
        self._put(grad)
        self.made = grad, grad.clone()

    def _is_unchanged(self, stored: Tensor) -> bool:
        """Whether a stored gradient is what was computed from the factors, not written to since."""
        if self.made is None:
            return False
        computed, numbers = self.made
        # PyTorch counts no version where GradScaler divides gradients.
        return stored is computed and torch.equal(stored, numbers)

    def _gradient(self) -> Tensor:
        """Compute the gradient that others see: ``left' right`` among zeros of the size of D."""
        product = torch.zeros_like(self.data)
        for left, right in self.factors or []:
            # D may have grown since.
            product[: left.shape[1], : right.shape[1]].addmm_(left.T, right)
        return product

    def _scale_gradient(self, factor: float) -> None:
        if factor:
            self.factors = [(left * factor, right) for left, right in self.factors or []]
        else:
            self.factors = []

    def _drop_gradient(self) -> None:
        self.factors = None

    def _factor(self, stored: Tensor) -> float | None:
        """The stored gradient over what was added up; None where it is not a multiple of that."""
        now = stored.double()
        then = self._gradient().double()
        if not bool(now.any()):
            return 1.0 if self.is_scale else 0.0
        # Training diverged: its gradient may be dropped, but not mended.
        if not bool(now.isfinite().all()):
            return 1.0 if self.is_scale else math.nan
        if not bool(then.isfinite().all()) or not bool(then.any()):
            return None
        factor = (now * then).sum() / then.square().sum()
        limits = torch.finfo(self.dtype)
        allowed = _ROUNDINGS * (limits.eps * now.norm() + limits.tiny * math.sqrt(now.numel()))
        is_multiple = bool((now - factor * then).norm() <= allowed)
        return float(factor) if is_multiple else None

    def _facts(self) -> dict[str, Any]:
        """What a copy has to share with the original, for a copied optimizer to fit it."""
        names = ("requires_grad", "generation", "owner", "stands_for", "resolution")
        return {name: getattr(self, name) for name in names}


def _rebuilt(kind: type[Guarded], data: Tensor, facts: dict[str, Any]) -> Guarded:
    """Build a copy of a parameter from its numbers and its ``_facts``."""
    parameter = kind(data, facts["requires_grad"])
    for name, value in facts.items():
        setattr(parameter, name, value)
    parameter.accept()
    return parameter


class Coefficients(Guarded):
    """The parameter of a structured layer: the column of W, padded with zeros.

    See ``nfd.wide.learned`` for the columns. Optimizers that are linear step this column by the
    column of the gradient. What others see as the gradient is a fixed vector times the Frobenius
    norm of the dense gradient, so that clipping by norm clips as it would for W, and an edit by
    entries gives no multiple.

    Attributes:
        weights: the column of the gradient, 1 for every sample of the batch; None without one.
        unused: whether no step saw the block of the gradient.
    """

    matrix: RandomPlusLowRank
    weights: Tensor | None = None
    unused: bool = True

    @property
    def has_factors(self) -> bool:
        return self.weights is not None

    def add_gradient(self, left: Tensor, right: Tensor) -> None:
        """Record the rows of a batch: gradients (``left``) and inputs (``right``)."""
        self.settle()
        first = SLOTS + self.matrix.count
        self.matrix.record(right, left)
        last = SLOTS + self.matrix.count
        size = self.shape[0]
        if last > size:
            room = max(last, size + max(size // 2, LEAST_ROOM))
            self.data = padded(self.data, room)
            self.weights = None if self.weights is None else padded(self.weights, room)
        if self.weights is None:
            self.weights = torch.zeros_like(self.data)
        self.weights[first:last] = 1.0

    def begin_gradient(self) -> None:
        if not self.has_gradient:
            self.weights = torch.zeros_like(self.data)

    def enter_step(self) -> None:
        """Put the column of the gradient where optimizers of PyTorch look for it."""
        self.settle()
        self.unused = False
        if self.weights is not None:
            self._show(self.weights)

    def leave_step(self, momentum: Tensor | None) -> None:
        """Count all samples as stepped, and compress them where they are many."""
        self.made = None
        self._put(None)
        if self.weights is None:
            return
        self.matrix.stepped = self.matrix.count
        if self.matrix.is_long:
            self.compress(momentum)

    def compress(self, momentum: Tensor | None) -> list[Tensor]:
        """Move all samples into the basis, and return the blocks that there are.

        They are the blocks of W, of the momentum and of the gradient.
        """
        columns = [self.data, momentum, self.weights]
        self.matrix.compress(columns)
        self.unused = True
        for slot, column in enumerate(columns):
            if column is not None:
                column.zero_()
                column[slot] = 1.0
        rank = self.matrix.basis.rank
        return [block[:rank] for block in self.matrix.blocks if block is not None]

    def _gradient(self) -> Tensor:
        pattern = torch.arange(1, len(self) + 1, dtype=torch.float64, device=self.device).sin_()
        if self.weights is None or not len(self):
            return torch.zeros_like(self.data)
        shown: Tensor = pattern * (self.matrix.gradient_size(self.weights) / pattern.norm())
        return shown.to(self.dtype)

    def _scale_gradient(self, factor: float) -> None:
        if self.weights is None:
            return
        if factor:
            self.weights.mul_(factor)
        else:
            self.weights.zero_()

    def _drop_gradient(self) -> None:
        if self.weights is not None:
            self.weights = None
            self.matrix.forget()
            if self.unused:
                self.matrix.blocks[-1] = None

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"matrix": self.matrix}
