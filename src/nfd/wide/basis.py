"""Growing stacks of vectors in R^n: any vectors, and orthonormal ones.

Every cost of a layer without stored weights is a product of a few vectors with all the vectors held
so far. Stored as one ``[rank, n]`` matrix such a product is too thin for a BLAS to use the machine
well. Here the coordinate axis is cut into ``p`` tiles of about five hundred: ``[p, capacity,
n/p]``. A product is then ``p`` small ones that stay in cache and run in parallel (1.5 to 3 times
the speed of the flat layout on a CPU; split-K on a GPU).

Given orthonormal ``Q`` and a block ``x``, new orthonormal directions ``q`` and coefficients are
such that

    x = Q c + q d        up to ``tolerance ||x||`` per vector.

Block classical Gram-Schmidt: project, and factor the residual by pivoted Cholesky of its Gram
matrix. Rounding leaves an overlap ``Q'q`` of a few units; it is not removed but known: the product
that gives ``Q'x`` for the next block also gives it for the last directions (delayed as in Bielich
et al. 2022), and ``c = (2 I - Q'Q) Q'x`` accounts for it to second order, so that nothing
accumulates. Only where normalising magnifies rounding beyond that is a block projected a second
time ("twice is enough": Giraud, Langou & Rozloznik 2005). The Gram matrix sees a direction only to
the square root of precision, so each round accepts only the well-conditioned part; what remains is
projected on that part and goes to the next round. Almost always one round, two passes over ``Q``,
is enough.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpstrf, dtrtri
from torch import Tensor
from torch.nn.functional import pad

from nfd.core.machine import threads

_TILE = 512
# Of fewer rows the left factor of an inner product is faster, of more the right one: with 16 rows
# 15 GFLOP/s in the one order and 30 in the other, with 12 rows 34 and 28 (MKL, AVX-512).
_SOME_ROWS = 16
# Numbers in a stack of vectors: below it, copying to grow costs more than the memory.
_LARGE = 1 << 22
# Bytes of an array from which on the C library maps it anew each time.
_MAPPED = 1 << 25
BLOCKS = ("update", "momentum", "gradient")
# The first entries of a column: its coefficients of the blocks. Coefficients of the samples follow.
SLOTS = len(BLOCKS)
LEAST_ROOM = 32


class _Buffers(threading.local):
    """Memory that products of this thread write into, by its purpose and dtype.

    The next query writes over it.
    """

    def __init__(self) -> None:
        self.by_purpose: dict[tuple[str, torch.dtype], Tensor] = {}


_BUFFERS = _Buffers()


def scratch(purpose: str, like: Tensor, *shape: int) -> Tensor:
    """Return memory for an intermediate result that nobody keeps, not initialised.

    The C library maps an array of this size anew each time, and clearing its pages took as long as
    the products. Smaller arrays, and arrays of a GPU, come from a pool already.
    """
    count = math.prod(shape)
    if count * like.element_size() < _MAPPED or like.device.type != "cpu":
        return like.new_empty(shape)
    buffer = _BUFFERS.by_purpose.get((purpose, like.dtype))
    if buffer is None or buffer.numel() < count:
        buffer = like.new_empty(count)
        _BUFFERS.by_purpose[purpose, like.dtype] = buffer
    return buffer[:count].view(shape)


def tile_shape(n: int) -> tuple[int, int]:
    """``(p, width)`` of the tiles of R^n, with ``n <= p width < n + p``."""
    p = max(1, round(n / _TILE))
    return p, math.ceil(n / p)


def tiled(x: Tensor) -> Tensor:
    """Lay ``[b, n]`` out as tiles ``[p, b, width]``, padded with zeros.

    It is a view when no padding is needed.
    """
    b, n = x.shape
    p, width = tile_shape(n)
    if p * width != n:
        x = pad(x, (0, p * width - n))
    return x.view(b, p, width).transpose(0, 1)


def untiled(tiles: Tensor, n: int) -> Tensor:
    """The inverse of ``tiled``: ``[b, n]``, contiguous and always a copy."""
    p, b, width = tiles.shape
    rows = tiles.new_empty(b, p * width)
    rows.view(b, p, width).copy_(tiles.transpose(0, 1))
    return rows[:, :n].contiguous()


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products ``[b, k]`` of two tiled blocks of vectors."""
    if _SOME_ROWS <= x.shape[1] < y.shape[1]:
        return torch.bmm(y, x.mT).sum(0).T.contiguous()
    return torch.bmm(x, y.mT).sum(0)


def combination(coefficients: Tensor, tiles: Tensor, out: Tensor | None = None) -> Tensor:
    """``coefficients @ vectors`` for a tiled block; coefficients ``[b, k]``."""
    return torch.bmm(coefficients.expand(tiles.shape[0], -1, -1), tiles, out=out)


def add_combination(
    onto: Tensor, coefficients: Tensor, tiles: Tensor, alpha: float = 1.0
) -> Tensor:
    """``onto + alpha coefficients @ vectors`` in place on the tiled block ``onto``."""
    return onto.baddbmm_(coefficients.expand(tiles.shape[0], -1, -1), tiles, alpha=alpha)


def add_rows(onto: Tensor, coefficients: Tensor, tiles: Tensor) -> None:
    """Add ``coefficients @ vectors`` in place to rows ``[b, n]``, contiguous, for a tiled block.

    The product stands apart from the sum, since PyTorch uses one thread where a product is to be
    added to rows that are not contiguous within a tile.
    """
    p, _, width = tiles.shape
    b, n = onto.shape
    products = combination(coefficients, tiles, scratch("rows", tiles, p, b, width))
    if p * width == n:
        tiled(onto).add_(products)
    else:
        onto.add_(untiled(products, n))


def padded(tensor: Tensor, *sizes: int) -> Tensor:
    """``tensor`` with zeros appended to every axis, up to these sizes."""
    if tensor.shape == sizes:
        return tensor
    larger = tensor.new_zeros(sizes)
    larger[tuple(map(slice, tensor.shape))] = tensor
    return larger


def with_room(matrix: Tensor, *needed: int) -> Tensor:
    """``matrix`` padded with zeros to at least these sizes.

    A side that grows is at least doubled.
    """
    sizes = []
    for size, need in zip(matrix.shape, needed, strict=True):
        sizes.append(max(need, 2 * size, LEAST_ROOM) if need > size else size)
    return padded(matrix, *sizes)


def room_for(rank: int, n: int) -> int:
    """How many vectors to have room for, where ``rank`` are needed.

    Twice as many as there are, or, where they are large, a few more; at most n, unless more are
    needed, as no more directions can be orthonormal.
    """
    room = 0
    while room < rank:
        room += max(LEAST_ROOM, room if room * n < _LARGE else room // 8)
    return max(rank, min(room, n))


class Frame:
    """``rank`` vectors in R^n that can be appended to; ``append`` is amortised O(n) per vector."""

    def __init__(self, n: int, *, dtype: torch.dtype, device: torch.device) -> None:
        p, width = tile_shape(n)
        self.n = n
        self.rank = 0
        self._store = torch.empty(p, 0, width, dtype=dtype, device=device)

    @property
    def tiles(self) -> Tensor:
        """``[p, rank, width]``, a view of the storage."""
        return self._store[:, : self.rank]

    @property
    def rows(self) -> Tensor:
        """The vectors as ``[rank, n]``, a copy."""
        return untiled(self.tiles, self.n)

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` vectors in all."""
        p, capacity_now, width = self._store.shape
        if capacity > capacity_now:
            larger = self._store.new_empty(p, capacity, width)
            larger[:, : self.rank] = self.tiles
            self._store = larger

    def append(self, tiles: Tensor) -> None:
        """Add the vectors of a tiled block ``[p, k, width]``."""
        rank = self.rank + tiles.shape[1]
        if rank > self._store.shape[1]:
            self.reserve(room_for(rank, self.n))
        self._store[:, self.rank : rank] = tiles
        self.rank = rank

    def replace(self, rows: Tensor) -> None:
        """Hold exactly these ``[rank, n]`` vectors, copied.

        A copy, since rounding may depend on where in memory numbers lie.
        """
        self._store = tiled(rows).clone(memory_format=torch.contiguous_format)
        self.rank = len(rows)

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device to the storage."""
        self._store = fn(self._store)


# ---- orthonormal vectors, and what rows have beyond them


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# The smallest pivot that a round accepts.
_WELL_CONDITIONED = {torch.float32: 1e-2, torch.float64: 1e-4}
# A Gram matrix with smaller pivots is factored a second time.
_SAFE_PIVOT = 0.3
# Directions that magnify rounding more than this are projected a second time.
_SAFE_GAIN = 20.0
# Share of a square length; rounding is far less than the rest.
_NEARLY = 0.99
# A direction that loses half its length in the second projection was rounding noise.
_SHRUNK = 0.5

Matrix = NDArray[np.float64]


class Basis(Frame):
    """A frame of orthonormal vectors Q that measures its Gram matrix.

    The Gram matrix lacks the vectors appended last until the next ``products``.
    """

    def __init__(self, n: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(n, dtype=dtype, device=device)
        self.measured = 0
        self._gram = torch.zeros(0, 0, dtype=dtype, device=device)

    @property
    def gram(self) -> Tensor:
        """``Q'Q`` of the measured vectors."""
        return self._gram[: self.measured, : self.measured]

    def products(self, x: Tensor) -> Tensor:
        """``Q'x`` of rows: one pass over Q.

        It also measures ``Q'Q`` for the vectors appended last; ``measured`` moves when more are
        appended.
        """
        Q = self.tiles
        rank = self.rank
        measured = self.measured
        p = len(Q)
        late = rank - measured
        width = Q.shape[2]
        block = scratch("block", x, p, late + len(x), width)
        block[:, :late] = Q[:, measured:]
        block[:, late:] = tiled(x)
        overlap, products = torch.split(inner(block, Q), [late, len(x)])
        self._gram = with_room(self._gram, rank, rank)
        self._gram[measured:rank, :rank] = overlap
        self._gram[:rank, measured:rank] = overlap.T
        return products

    def coordinates(self, products: Tensor) -> Tensor:
        """``c = (2 I - Q'Q) Q'x``, from the last result of ``products``."""
        return torch.addmm(
            products, products, self._gram[: self.rank, : self.rank], beta=2, alpha=-1
        )

    def extend(self, tiles: Tensor) -> None:
        """Append the orthonormal directions that ``expand`` returned last.

        All earlier ones count as measured from now on.
        """
        self.measured = self.rank
        self.append(tiles)

    def restore(self, rows: Tensor, gram: Tensor) -> None:
        """Hold exactly these vectors, the first of them with this Gram matrix.

        A Gram matrix of another precision is measured afresh.
        """
        self.replace(rows.to(self._gram))
        self.measured = len(gram) if gram.dtype == self._gram.dtype else 0
        self._gram = gram.to(self._gram, copy=True)

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device.

        In another precision the Gram matrix is measured afresh.
        """
        dtype_before = self._gram.dtype
        super().map(fn)
        self._gram = fn(self._gram)
        if self._gram.dtype != dtype_before:
            self.measured = 0


def expand(basis: Basis, unit: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Expand rows x of length one or zero as ``x = Q c + q d``, with q what ``basis`` lacks.

    Returns ``Q'x`` [b, rank], c [b, rank], d [b, k], and q tiled [p, k, width].
    """
    products = basis.products(unit)
    inside = basis.coordinates(products)
    fresh, directions = _directions(basis, _residual(basis, unit, inside), tolerance)
    return products, inside, fresh, directions


def lacking(
    basis: Basis, unit: Tensor, products: Tensor, shortest: Matrix
) -> tuple[Tensor, Tensor]:
    """Find the directions that ``basis`` lacks for unit rows with these ``products`` Q'x.

    Returns the coefficients of the rows in the directions [b, k], and the directions, tiled. A row
    adds a direction where it is longer than ``shortest`` [b] outside of the basis. Where that is
    far above rounding, one round is enough, and rows that are shorter cost nothing.
    """
    coordinates = basis.coordinates(products)
    if shortest.min() < _WELL_CONDITIONED[unit.dtype]:
        return _directions(basis, _residual(basis, unit, coordinates), shortest)
    length_inside = torch.linalg.vector_norm(products, dim=1).double().cpu().numpy()
    beyond = np.flatnonzero(1 - length_inside**2 > _NEARLY * shortest**2)
    rows = slice(None) if len(beyond) == len(unit) else torch.from_numpy(beyond).to(unit.device)
    residual = _residual(basis, unit[rows], coordinates[rows])
    scale = shortest.min() / shortest[beyond]
    transform, _ = _factored(
        _gram(residual) * scale * scale[:, None], shortest.min(), basis.n - basis.rank
    )
    directions = _apply(transform * scale, residual, "directions")
    return inner(tiled(unit), directions), directions


def _residual(basis: Basis, unit: Tensor, coordinates: Tensor) -> Tensor:
    """``u - Q c``, tiled."""
    Q = basis.tiles
    rows = tiled(unit)
    c = coordinates.expand(len(Q), -1, -1)
    return torch.baddbmm(rows, c, Q, alpha=-1, out=scratch("residual", Q, *rows.shape))


def _directions(basis: Basis, residual: Tensor, shortest: Matrix | float) -> tuple[Tensor, Tensor]:
    """Find the directions that ``basis`` lacks for residual rows, round by round.

    Returns the coefficients of the rows in the directions [b, k], and the directions, tiled.
    """
    directions: list[Tensor] = []
    fresh: list[Matrix] = []
    while True:
        room = basis.n - basis.rank - sum(d.shape[1] for d in directions)
        accepted, coefficients, finished = _well_conditioned(
            residual, [basis.tiles, *directions], room, shortest
        )
        directions.append(accepted)
        fresh.append(coefficients)
        if finished or not accepted.shape[1]:
            break
        # The next round needs the scratch memory in which it lies.
        directions[-1] = accepted.clone()
        _project_out(residual, accepted)
    all_directions = directions[0] if len(directions) == 1 else torch.cat(directions, 1)
    return torch.from_numpy(np.concatenate(fresh, 1)).to(residual), all_directions


def _well_conditioned(
    residual: Tensor, earlier: list[Tensor], room: int, shortest: Matrix | float
) -> tuple[Tensor, Matrix, bool]:
    """Find orthonormal directions of the best-conditioned part of ``residual``.

    Returns the directions, tiled, the coefficients of the rows in them [b, k], and whether every
    row has less than ``shortest`` left.
    """
    gram = _gram(residual)
    length = np.sqrt(gram.diagonal())
    alive = length > shortest
    most = min(int(alive.sum()), room)
    if most <= 0:
        return residual[:, :0], np.zeros((len(gram), 0)), True
    scale = np.divide(1, length, out=np.zeros_like(length), where=alive)
    factor, pivot = _whiten(gram * scale * scale[:, None], _WELL_CONDITIONED[residual.dtype], most)
    transform = factor * scale
    directions = _apply(transform, residual, "directions")
    magnified = np.abs(transform).sum(1).max() > _SAFE_GAIN
    if magnified:
        for vectors in earlier:
            _project_out(directions, vectors)
    if magnified or pivot < _SAFE_PIVOT:
        polish, _ = _whiten(_gram(directions), _SHRUNK, most)
        directions = _apply(polish, directions, "polished")
        transform = polish @ transform
    return directions, gram @ transform.T, len(factor) == most


def _project_out(x: Tensor, directions: Tensor) -> None:
    """Subtract ``Q Q'x`` in place from a tiled block x."""
    add_combination(x, inner(x, directions), directions, alpha=-1)


def _gram(tiles: Tensor) -> Matrix:
    return inner(tiles, tiles).double().cpu().numpy()


def _apply(transform: Matrix, tiles: Tensor, purpose: str) -> Tensor:
    """``transform @ vectors`` for a tiled block, in scratch memory."""
    p, _, width = tiles.shape
    out = scratch(purpose, tiles, p, len(transform), width)
    return combination(torch.from_numpy(transform).to(tiles), tiles, out)


def _whiten(gram: Matrix, threshold: float, most: int) -> tuple[Matrix, float]:
    """Find ``T`` [k, b] with ``T gram T' = I`` on the pivots above ``threshold``.

    Also returns a lower bound of these pivots. Coefficients are triangular in the order of the
    vectors, not of the pivots: the directions, and what is drawn for them, then change continuously
    with the vectors. So a plain Cholesky factorisation is enough where no pivot can be small;
    elsewhere T is turned.
    """
    factor, singular = dpotrf(gram, lower=1)
    if not singular:
        transform, _ = dtrtri(factor, lower=1)
        # No pivot is smaller than this.
        least = 1 / math.sqrt(np.linalg.norm(transform, 1) * np.linalg.norm(transform, np.inf))
        if least > max(threshold, _SAFE_PIVOT):
            return transform, least
    transform, pivot = _factored(gram, threshold, most)
    turn, triangle = _qr(transform @ gram)
    signs = np.where(triangle.diagonal() < 0, -1.0, 1.0)
    return (turn * signs).T @ transform, pivot


def _qr(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """QR by one thread of PyTorch.

    Threads of NumPy would wait for those of PyTorch, which spin: 39 ms for 300 rows, not 3.
    """
    with threads(1):
        turn, triangle = torch.linalg.qr(torch.from_numpy(matrix))
    return turn.numpy(), triangle.numpy()


def _factored(gram: Matrix, threshold: float, most: int) -> tuple[Matrix, float]:
    """Find such a ``T`` by pivoted Cholesky: triangular in the order of the pivots."""
    # LAPACK tests every pivot but the first.
    if gram.diagonal().max(initial=0.0) <= threshold**2:
        return np.zeros((0, len(gram))), 1.0
    factor, order, k, _ = dpstrf(gram, tol=threshold**2)
    k = min(k, most)
    inverse, _ = dtrtri(factor[:k, :k])
    transform = np.zeros((k, len(gram)))
    transform[:, order[:k] - 1] = np.triu(inverse).T
    return transform, float(factor[k - 1, k - 1])


def unit_rows(x: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Rows of length one, or zero, the lengths ``[b, 1]``, and whether any is not finite.

    Rows that are not finite become zero and have length NaN, so that their answer is NaN.
    """
    # In float32 the squares of small numbers would underflow. A few rows at a time, as PyTorch
    # copies them to float64.
    parts = [
        torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        for rows in torch.split(x, _SOME_ROWS)
    ]
    length = torch.cat(parts).to(x.dtype)
    divisor = length.clamp_min(torch.finfo(x.dtype).tiny)
    unit = torch.div(x, divisor, out=scratch("unit", x, *x.shape))
    finite = length.isfinite()
    if bool(finite.all()):
        return unit, length, False
    return torch.where(finite, unit, 0.0), torch.where(finite, length, torch.nan), True
