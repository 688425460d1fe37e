"""The matrices of a structured layer, and what they learn: ``W = s W_0 + U'B'`` or ``W = s W_0 + B U``.

B is an orthonormal basis of the layer's inputs in the first form, of its gradients in the second. For every direction
of B, U holds a vector of the other space: it is [rank, n]. Both forms are exact; the basis of smaller rank is cheaper.
The gradient of U is ``c'o``, a sum over the batch: c are coordinates in B, of inputs in the first form, and o the
vectors of the other space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from nfd.core.names import Space
from nfd.core.random import Increment
from nfd.nets.frame import LEAST_ROOM, add_rows
from nfd.nets.orthogonal import TOLERANCE, Basis, Matrix, lacking
from nfd.nets.revealed import unit_rows
from nfd.nets.rotated import RotatedMatrix

SPACES: tuple[Space, ...] = get_args(Space)
_UNSETTLED = -1


class LearnedMatrix:
    """W_0 for both passes, one matrix or two independent ones, and B, a basis of inputs or of gradients.

    Where ``space`` is None, the first batch settles it, by the smaller of its two ranks.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        shared: bool,
        space: Space | None,
        source: Increment,
        resolution: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.sizes: dict[Space, int] = {"inputs": n_in, "gradients": n_out}
        self.shared, self.resolution = shared, resolution
        self.settled = space is not None
        self._use(space or "inputs", torch.empty(0, dtype=dtype, device=device))
        self.draw(source)

    def draw(self, source: Increment) -> None:
        """Hold the matrices of this seed."""
        self.source = source
        n_in, n_out = self.sizes.values()
        like = self.basis.tiles

        def drawn(name: str) -> RotatedMatrix:
            return RotatedMatrix(n_in, n_out, source=source, name=name, dtype=like.dtype, device=like.device)

        self.forward = drawn("forward")
        self.backward = self.forward if self.shared else drawn("backward")

    @property
    def shape(self) -> tuple[int, int]:
        """Of U; nothing before the space is settled."""
        other = self.sizes["gradients" if self.space == "inputs" else "inputs"]
        return (self.basis.rank, other) if self.settled else (0, 0)

    def add_learned(self, value: Tensor, v: Tensor, space: Space, U: Tensor) -> Tensor | None:
        """Add the update's answer to rows v of this space: ``v B U`` where B is a basis of it, ``v U'B'`` elsewhere.

        Returns ``v B`` where it needed that.
        """
        U = U[: self.basis.rank]
        if space == self.space:
            products = self.basis.products(v)
            value.addmm_(products, U)
            return products
        add_rows(value, v @ U.T, self.basis.tiles)
        return None

    def factors(self, x: Tensor, g: Tensor, products: Tensor | None, record: bool) -> tuple[Tensor, Tensor]:
        """c and o of a batch of inputs and gradients; recorded, B grows by what it lacks beyond the resolution.

        ``products`` are those of the vectors that B is a basis of, where the answers to them needed these.
        """
        if record and not self.settled:
            self._settle(x, g)
        if not self.settled:
            return x[:, :0], g[:, :0]
        own, other = (x, g) if self.space == "inputs" else (g, x.clone())  # others may write to x before the step
        if products is None or products.shape[1] < self.basis.rank:  # B may have grown since
            products = self.basis.products(own)
        if not record:
            return products, other
        unit, length, shortest = _measured(own, self._tolerance)
        fresh, directions = lacking(self.basis, unit, (products / length).nan_to_num(0.0, 0.0, 0.0), shortest)
        self.basis.reserve(room_for(self.basis.rank + fresh.shape[1], self.basis.n))
        self.basis.extend(directions)
        return torch.cat([products, fresh * length], 1), other

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Dense W_0 of the forward and of the backward pass; it follows from the layer's own seed alone."""
        identity = torch.eye(self.sizes["inputs"], dtype=self.basis.tiles.dtype, device=self.basis.tiles.device)
        forward = self.forward.product(identity).T
        return forward, forward if self.shared else self.backward.product(identity).T

    def dense_update(self, update: Tensor) -> Tensor:
        """``U'B'`` or ``B U``."""
        B, U = self.basis.rows, update[: self.basis.rank]
        if not self.basis.rank:
            return B.new_zeros(self.sizes["gradients"], self.sizes["inputs"])
        return U.T @ B if self.space == "inputs" else B.T @ U

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices and the basis."""
        return self.basis.nbytes + sum(matrix.nbytes for matrix in {self.forward, self.backward})

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device."""
        self.basis.map(fn)
        for matrix in {self.forward, self.backward}:
            matrix.map(fn)

    def state(self) -> dict[str, Tensor]:
        """Copies of what was recorded; the matrices follow from the seed."""
        space = SPACES.index(self.space) if self.settled else _UNSETTLED
        return {
            "space": torch.tensor(space, device="cpu"),
            "directions": self.basis.rows,
            "gram": self.basis.gram.clone(),
        }

    def misfit(self, state: dict[str, Tensor]) -> str | None:
        """The first tensor of a saved layer whose shape contradicts the others."""
        space, directions, update = state["space"], state["directions"], state["update"]
        if space.dim() or not _UNSETTLED <= int(space) < len(SPACES):
            return "space"
        if space == _UNSETTLED:
            return "update" if update.numel() else None
        n, other = self.sizes[SPACES[space]], self.sizes[SPACES[1 - space]]
        if directions.dim() != 2 or directions.shape[1] != n:
            return "directions"
        fits = update.dim() == 2 and len(update) >= len(directions) and update.shape[1] in (0, other)
        return None if fits else "update"

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, of this source."""
        space = int(state["space"])
        self.settled = space != _UNSETTLED
        self._use(SPACES[max(space, 0)], self.basis.tiles)
        if self.settled:
            self.basis.restore(state["directions"], state["gram"])
        self.draw(source)

    @property
    def _tolerance(self) -> float:
        return max(self.resolution, TOLERANCE[self.basis.tiles.dtype])

    def _use(self, space: Space, like: Tensor) -> None:
        self.space = space
        self.basis = Basis(self.sizes[space], dtype=like.dtype, device=like.device)

    def _settle(self, x: Tensor, g: Tensor) -> None:
        """Take the space in which this batch has fewer directions; none while it teaches nothing."""
        ranks = [self._rank_of(v) for v in (x, g)]
        if all(ranks):
            self.settled = True
            self._use(SPACES[ranks.index(min(ranks))], self.basis.tiles)

    def _rank_of(self, v: Tensor) -> int:
        """How many directions these rows have beyond the resolution."""
        empty = Basis(v.shape[1], dtype=v.dtype, device=v.device)
        unit, _, shortest = _measured(v, self._tolerance)
        return lacking(empty, unit, empty.products(unit), shortest)[0].shape[1]


def room_for(rank: int, most: int) -> int:
    """How many directions to have room for: an eighth more than there are, or a few, and no more than there can be."""
    room = 0
    while room < rank:
        room += max(LEAST_ROOM, room // 8)
    return min(room, most)


def _measured(x: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Matrix]:
    """Rows of length one, their lengths ``[b, 1]``, and beyond which remainder each of them adds a direction, ``[b]``.

    That is ``tolerance`` of the row or, where that is more, of the root mean square of the batch: the remainder of a
    row that hardly counts is short. Rows that are not finite become zero and have length NaN.
    """
    unit, length, _ = unit_rows(x)
    lengths = np.nan_to_num(length.flatten().double().cpu().numpy())
    longest = max(float(lengths.max()), float(np.finfo(float).tiny))
    typical = longest * np.sqrt(np.square(lengths / longest).mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        return unit, length, tolerance * np.fmax(typical / lengths, 1.0)
