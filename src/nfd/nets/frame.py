"""A growing stack of vectors in R^n, laid out so that products with it run at the speed of the memory.

Every cost of a deferred network is a product of a few vectors with all the vectors revealed so far. Stored as one
``[rank, n]`` matrix such a product is too thin for a BLAS to use the machine well. Here the coordinate axis is cut
into ``p`` tiles of about five hundred: ``[p, capacity, n/p]``. A product is then ``p`` small ones that stay in cache
and run in parallel (1.5 to 3 times the speed of the flat layout on a CPU; split-K on a GPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

_TILE = 512
LEAST_ROOM = 32


def tile_shape(n: int) -> tuple[int, int]:
    """``(p, width)`` of the tiles of R^n, with ``n <= p width < n + p``."""
    p = max(1, round(n / _TILE))
    return p, math.ceil(n / p)


def tiled(x: Tensor) -> Tensor:
    """``[b, n]`` as tiles ``[p, b, width]``, padded with zeros; a view when no padding is needed."""
    b, n = x.shape
    p, width = tile_shape(n)
    if p * width != n:
        x = pad(x, (0, p * width - n))
    return x.view(b, p, width).transpose(0, 1)


def untiled(tiles: Tensor, n: int) -> Tensor:
    """The inverse of ``tiled``: ``[b, n]``, contiguous."""
    p, b, width = tiles.shape
    return tiles.transpose(0, 1).reshape(b, p * width)[:, :n].contiguous()


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products ``[b, k]`` of two tiled blocks of vectors."""
    return torch.bmm(x, y.transpose(1, 2)).sum(0)


def combination(coefficients: Tensor, tiles: Tensor) -> Tensor:
    """``coefficients @ vectors`` for a tiled block; coefficients ``[b, k]``."""
    return torch.bmm(coefficients.expand(tiles.shape[0], -1, -1), tiles)


def add_combination(onto: Tensor, coefficients: Tensor, tiles: Tensor, alpha: float = 1.0) -> Tensor:
    """``onto + alpha coefficients @ vectors`` in place on the tiled block ``onto``."""
    return onto.baddbmm_(coefficients.expand(tiles.shape[0], -1, -1), tiles, alpha=alpha)


def add_rows(onto: Tensor, coefficients: Tensor, tiles: Tensor) -> None:
    """Add ``coefficients @ vectors`` in place to rows ``[b, n]``, contiguous, for a tiled block."""
    p, _, width = tiles.shape
    if p * width == onto.shape[1]:
        add_combination(tiled(onto), coefficients, tiles)
    else:
        onto.add_(untiled(combination(coefficients, tiles), onto.shape[1]))


def padded(tensor: Tensor, *sizes: int) -> Tensor:
    """``tensor`` with zeros appended to every axis, up to these sizes."""
    if tensor.shape == sizes:
        return tensor
    grown = tensor.new_zeros(sizes)
    grown[tuple(map(slice, tensor.shape))] = tensor
    return grown


def roomy(held: Sequence[int], needed: Sequence[int]) -> tuple[int, int]:
    """Sizes of a matrix that has this room and needs that, each side at least doubled when it grows."""
    rows, columns = (
        max(need, 2 * have, LEAST_ROOM) if need > have else have for have, need in zip(held, needed, strict=True)
    )
    return rows, columns


def with_room(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """``matrix`` padded with zeros to at least ``[rows, columns]``, with room to grow."""
    return padded(matrix, *roomy(matrix.shape, (rows, columns)))


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

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return self._store.nbytes

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` vectors in all."""
        p, held, width = self._store.shape
        if capacity > held:
            grown = self._store.new_empty(p, capacity, width)
            grown[:, : self.rank] = self.tiles
            self._store = grown

    def append(self, tiles: Tensor) -> None:
        """Add the vectors of a tiled block ``[p, k, width]``."""
        rank = self.rank + tiles.shape[1]
        if rank > self._store.shape[1]:
            wanted = max(2 * self._store.shape[1], LEAST_ROOM)
            self.reserve(max(rank, min(wanted, self.n)))  # there are no more than n orthonormal vectors
        self._store[:, self.rank : rank] = tiles
        self.rank = rank

    def replace(self, rows: Tensor) -> None:
        """Hold exactly these ``[rank, n]`` vectors, in memory of its own: rounding may depend on where numbers lie."""
        self._store = tiled(rows).clone(memory_format=torch.contiguous_format)
        self.rank = len(rows)

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device to the storage."""
        self._store = fn(self._store)


def predicted_bytes(n_in: int, n_out: int, samples: int, itemsize: int) -> int:
    """What a layer holds, with momentum, when it has seen ``samples`` and room was reserved for them; at most.

    ``(r + s)(n_in + n_out)`` numbers in vectors, r and s being the directions of the two sides and sizes those of whole
    tiles; seven small matrices (D, its gradient and momentum, two responses, two Gram matrices), whose sides double as
    they grow; and the scale with its gradient and momentum.
    """
    r, s = min(samples, n_in), min(samples, n_out)
    wide, high = max(2 * r, LEAST_ROOM), max(2 * s, LEAST_ROOM)
    tiles = math.prod(tile_shape(n_in)) + math.prod(tile_shape(n_out))
    return itemsize * ((r + s) * tiles + 5 * wide * high + wide**2 + high**2 + 3)
