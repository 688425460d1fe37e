"""What shows that a small matrix was changed by others: its products with two fixed random vectors.

``D``, the update of a deferred layer, and its gradient ``G`` stand for matrices ``P D Q'`` and ``P G Q'`` that nobody
stores. PyTorch counts writes to a tensor, but not those through ``.data``. So a tensor of ours that hands out its
memory (``Watched``) is noted before it does, and from then on compared by value: ``D v`` for a fixed random v. As
long as nobody asks, nothing is computed.

``G`` may be scaled by one number, which is exact for the dense matrix too. So when it was written to, it is compared
with what the layer had added to it, up to a factor: in ``G v``, and in one more product of its first row, since a
matrix of one row gives a single number and leaves nothing to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Self, cast
from weakref import ReferenceType, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nfd.core.random import generator

Array = NDArray[Any]

KEPT = 8  # pairs of factors: as many as a step of ordinary training adds up
_LARGE = 1 << 22  # numbers of a factor that is not kept on a CPU, whose memory it would hold until the next step
_BLOCK = 512  # entries of the fixed vectors that are drawn at a time
_SLACK = 64.0  # roundings of a sum of few terms; its root more for many
_LEAST = {torch.float32: 1e-36, torch.float64: 1e-150}  # below this, squares and ratios are no numbers
_ALIASES = """
    detach numpy data_ptr __dlpack__ __array__ storage untyped_storage __getitem__ adjoint as_strided chunk
    diagonal expand expand_as flatten hsplit moveaxis movedim narrow permute ravel reshape reshape_as select split
    split_with_sizes squeeze swapaxes swapdims t tensor_split transpose unbind unflatten unfold unsqueeze view
    unsafe_chunk unsafe_split unsafe_split_with_sizes view_as vsplit
"""  # methods whose result may be the same memory


class Watched(torch.Tensor):
    """A tensor that knows whether its memory was handed out, so that it may be written to unseen."""

    exposed: bool = False
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as nn.Parameter

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """The same memory, watched."""
        return torch.Tensor._make_subclass(cls, tensor)

    @property
    def numbers(self) -> Tensor:
        """What ``.data`` is elsewhere, for ourselves."""
        return cast(Tensor, torch.Tensor.data.__get__(self))  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copied = self.numbers.clone()  # an ordinary tensor: nobody watches a copy
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def expose(self) -> None:
        """Called before the memory is handed out."""
        self.exposed = True

    @property
    def data(self) -> Tensor:
        """The numbers, behind the back of autograd and of PyTorch's count of writes."""
        self.expose()
        return self.numbers

    @data.setter
    def data(self, tensor: Tensor) -> None:
        self.expose()
        torch.Tensor.data.__set__(self, tensor)  # type: ignore[attr-defined]


def _exposing(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a tensor that hands out its memory, with a note before it does."""

    @wraps(method)
    def noted(self: Watched, *args: Any, **options: Any) -> Any:
        self.expose()
        return method(self, *args, **options)

    return noted


for _name in _ALIASES.split():
    setattr(Watched, _name, _exposing(getattr(torch.Tensor, _name)))
for _name in ("T", "mT", "H", "mH"):
    setattr(Watched, _name, property(_exposing(getattr(torch.Tensor, _name).__get__)))


@dataclass(frozen=True)
class Note:
    """``D v`` of a matrix when it had this shape."""

    shape: torch.Size
    product: Array

    @classmethod
    def of(cls, D: Tensor) -> Note:
        """The note of a matrix as it is."""
        return cls(D.shape, _product(D))

    def fits(self, D: Tensor) -> bool:
        """Whether D still is that matrix, as far as rounding lets one tell."""
        if D.shape != self.shape:
            return False
        now = _product(D)
        if np.array_equal(now, self.product):
            return True
        if not np.isfinite(self.product).all():  # it diverged, and still has
            return not np.isfinite(now).all()
        apart, size = _norm(now - self.product), _norm(self.product)
        return apart <= _rounding(self.shape[1], torch.finfo(D.dtype).eps) * size + _LEAST[D.dtype]


class Ledger:
    """What a layer has added to the gradient G of D since it was last empty.

    The factors of what was added last are kept as they are, and turned into a product when that is asked for; large
    ones at once.
    """

    def __init__(self) -> None:
        self._product: Array = np.zeros((0,))
        self._size = 0.0
        self._eps = 0.0  # of the coarsest precision so far
        self._factors: list[tuple[Tensor, Tensor]] = []
        self._written: tuple[ReferenceType[Tensor], int] | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Note that ``left' right``, of factors ``[b, s]`` and ``[b, r]``, was added."""
        if len(self._factors) == KEPT:
            self._fold()
        self._factors.append((left, right))
        if right.device.type == "cpu" and max(left.numel(), right.numel()) > _LARGE:
            self._fold()

    def sign(self, G: Tensor) -> None:
        """Note that G, as it is now, holds what was added."""
        self._written = ref(G), G._version

    def rounded(self, dtype: torch.dtype) -> None:
        """Note that the gradient went through this precision."""
        self._eps = max(self._eps, torch.finfo(dtype).eps)

    def is_signed(self, G: Tensor) -> bool:
        """Whether G is the tensor of the last ``sign``, and nobody wrote to it."""
        if self._written is None or self._written[0]() is not G:
            return False
        return G._version == self._written[1] and not cast(Watched, G).exposed

    def scale(self, factor: float) -> None:
        """Note that everything so far was multiplied by a number."""
        if factor != 1.0:
            self._fold()
            self._product = self._product * factor if factor else np.zeros_like(self._product)
            self._size = self._size * abs(factor) if factor else 0.0
            self._eps = self._eps if factor else 0.0

    def factor(self, G: Tensor) -> float | None:
        """The number c with ``G = c`` times what was added; None where there is none."""
        self._fold()
        now = _product(G)
        then = _longer(self._product, len(now))
        self.rounded(G.dtype)
        allowed = _rounding(G.shape[1], self._eps) * self._size
        if _norm(now - then) <= allowed + _LEAST[G.dtype]:
            return 1.0
        if not np.isfinite(then).all():  # training diverged; its gradient may be dropped, but not mended
            return math.nan if not np.isfinite(now).all() else None if bool(G.any()) else 0.0
        if not np.isfinite(now).all():
            return math.nan
        peak = float(max(np.abs(now).max(), np.abs(then).max()))
        now, then = now.astype(float) / peak, then.astype(float) / peak
        factor = float(np.vdot(now, then) / np.vdot(then, then)) if then.any() else 0.0
        return factor if _norm(now - factor * then) <= (allowed * abs(factor) + _LEAST[G.dtype]) / peak else None

    def _fold(self) -> None:
        """Turn the factors that are kept into products."""
        for left, right in self._factors:
            a, b = _array(left), _array(right)
            v, w = _probes(b.shape[1], right.dtype)
            with np.errstate(all="ignore"):
                added = np.append((b @ w) @ a[:, :1], (b @ v) @ a)
                self._product = _longer(self._product, len(added)) + added
                self._size += _norm(a) * _norm(b)
                self.rounded(right.dtype)
        self._factors.clear()


def _longer(product: Array, count: int) -> Array:
    return np.append(product, np.zeros(count - len(product), product.dtype))


def _product(matrix: Tensor) -> Array:
    """``w'M_1``, of the first row, and ``M v``: ``[1 + rows]``."""
    if not matrix.numel():
        return np.zeros(1)
    v, w = _probes(matrix.shape[1], matrix.dtype)
    matrix = torch.Tensor.data.__get__(matrix)  # type: ignore[attr-defined]  # without a note that it was handed out
    with np.errstate(all="ignore"):
        if matrix.device.type == "cpu":
            M = matrix.numpy()
            return np.append(M[0] @ w, M @ v)
        vectors = torch.from_numpy(np.stack([v, w])).to(matrix)
        return _array(torch.cat([matrix[:1] @ vectors[1], matrix @ vectors[0]]))


def _probes(count: int, dtype: torch.dtype) -> Array:
    """Two fixed random vectors, ``[2, count]``; longer ones begin with the shorter ones."""
    return _drawn(1 << max(0, (count - 1) // _BLOCK).bit_length(), dtype)[:, :count]


@lru_cache(maxsize=8)
def _drawn(blocks: int, dtype: torch.dtype) -> Array:
    drawn = [
        torch.randn(2, _BLOCK, generator=generator(0, "fingerprint", k), dtype=torch.float64, device="cpu")
        for k in range(blocks)
    ]
    return _array(torch.cat(drawn, 1).to(dtype))


def _array(tensor: Tensor) -> Array:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


def _norm(x: Array) -> float:
    """The root of the sum of squares, which single precision might not hold."""
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(x.astype(float)))


def _rounding(terms: int, eps: float) -> float:
    """What a sum of this many terms may be off by, over the root of the sum of their squares."""
    return (_SLACK + math.sqrt(terms)) * eps
