"""The matrices of a structured layer, and what they learn: samples as they come, compressed into a
basis in blocks.

    W = s W_0 + G' diag(c) X + U'B        or        W = s W_0 + G' diag(c) X + B'U

X and G ``[N, n]`` are the inputs of the layer and the gradients of its outputs, sample by sample.
SGD subtracts ``lr g'x`` for every sample, so that a sample enters with ``c = -lr``; momentum,
schedules and weight decay are linear and act on c as they act on W. When samples are some hundreds
more than the directions known before, one factorization moves them all: ``X = R B`` with B
orthonormal, so that ``G' diag(c) X = (R' diag(c) G)' B = U'B``. Directions below the resolution are
dropped there. The second form has a basis of G; the basis of smaller rank is cheaper.

The momentum V and a gradient E that nobody cleared are such matrices too. So three *blocks* U, V
and E ``[r, n]`` stand beside B, and every one of W, the momentum and the gradient is a *column*: a
coefficient for each block and each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from nfd.core.names import Space
from nfd.core.random import Increment
from nfd.wide.basis import (
    BLOCKS,
    SLOTS,
    TOLERANCE,
    Basis,
    Frame,
    Matrix,
    add_rows,
    inner,
    lacking,
    padded,
    room_for,
    tiled,
    unit_rows,
)
from nfd.wide.rotated import RotatedMatrix

SPACES: tuple[Space, ...] = get_args(Space)
_UNSETTLED = -1
# beyond the directions that are known: a factorization of fewer costs more than it saves
_MOST_SAMPLES = 256


class RandomPlusLowRank:
    """W_0 for both passes, one matrix or two independent ones, the samples of the update, and its
    compressed part.

    Where ``space`` is None, the first compression settles it, by the smaller of its two ranks.
    """

    space: Space
    blocks: list[Tensor | None]

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
        self.shared = shared
        self.resolution = resolution
        self.settled = space is not None
        self.samples = {
            name: Frame(n, dtype=dtype, device=device) for name, n in self.sizes.items()
        }
        self.stepped = 0  # samples that a step has seen; the coefficients of later ones are zero
        self._use(space or "inputs", torch.empty(0, dtype=dtype, device=device))
        self.draw(source)

    def draw(self, source: Increment) -> None:
        """Hold the matrices of this seed."""
        self.source = source
        n_in, n_out = self.sizes.values()
        like = self.basis.tiles

        def drawn(name: str) -> RotatedMatrix:
            return RotatedMatrix(
                n_in, n_out, source=source, name=name, dtype=like.dtype, device=like.device
            )

        self.forward = drawn("forward")
        self.backward = self.forward if self.shared else drawn("backward")

    @property
    def count(self) -> int:
        """Samples that are held as they came."""
        return self.samples["inputs"].rank

    # ---- products

    def add_update(self, value: Tensor, v: Tensor, space: Space, column: Tensor) -> None:
        """Add the update's answer to rows v of this space, with the coefficients of W."""
        if self.basis.rank:
            products = inner(tiled(v), self.basis.tiles) if space == self.space else None
            along: Tensor | None = None
            for weight, block in zip(column[:SLOTS].tolist(), self.blocks, strict=True):
                if not weight or block is None:
                    continue
                U = block[: self.basis.rank]
                if products is not None:
                    value.addmm_(products, U, alpha=weight)
                else:
                    along = (
                        weight * (v @ U.T) if along is None else along.addmm_(v, U.T, alpha=weight)
                    )
            if along is not None:
                add_rows(value, along, self.basis.tiles)
        if self.stepped:
            own, other = (
                self.samples[name].tiles[:, : self.stepped] for name in (space, _opposite(space))
            )
            products = inner(tiled(v), own).mul_(column[SLOTS : SLOTS + self.stepped])
            add_rows(value, products, other)

    def gradient_size(self, column: Tensor) -> Tensor:
        """The Frobenius norm of the matrix with this column, in double precision, from Gram
        matrices of its samples.
        """
        weights = column[SLOTS : SLOTS + self.count].double()
        rows = weights.nonzero().flatten()
        weights = weights[rows]
        X, G = (self.samples[name].tiles[:, rows].double() for name in SPACES)
        square = (weights * weights[:, None] * inner(X, X) * inner(G, G)).sum()
        E = self.blocks[-1]
        share = float(column[SLOTS - 1])
        if E is not None and share:
            E = E[: self.basis.rank].double()
            own = X if self.space == "inputs" else G
            others = (self.samples[_opposite(self.space)].rows[rows].double() @ E.T) * weights[
                :, None
            ]
            square += (
                share**2 * E.square().sum()
                + 2 * share * (others * inner(own, self.basis.tiles.double())).sum()
            )
        return square.clamp_min(0).sqrt()

    # ---- samples and their compression

    def record(self, x: Tensor, g: Tensor) -> None:
        """Keep a batch."""
        for name, rows in zip(SPACES, (x, g), strict=True):
            self.samples[name].append(tiled(rows))

    def forget(self) -> None:
        """Drop the samples that no step has seen."""
        for frame in self.samples.values():
            frame.rank = self.stepped

    @property
    def is_long(self) -> bool:
        """Whether it is cheaper to compress the samples."""
        return self.count > self.basis.rank + min(_MOST_SAMPLES, *self.sizes.values())

    def compress(self, columns: Sequence[Tensor | None]) -> None:
        """Move all samples into the basis; of the columns of W, momentum and gradient each becomes
        its own block.
        """
        own, other = (self.samples[name].rows for name in SPACES)
        if not self.settled and len(own):
            ranks = [self._rank_of(v) for v in (own, other)]
            self._use(SPACES[ranks.index(min(ranks))], own)
            self.settled = bool(min(ranks))
        if self.space == "gradients":
            own, other = other, own
        coordinates = self._coordinates(own) if len(own) else own.new_zeros(0, self.basis.rank)
        self.blocks = self._blocks(columns, coordinates, other)
        self.stepped = 0
        self.forget()

    def _coordinates(self, rows: Tensor) -> Tensor:
        """Coordinates of rows in the basis, which gets what it lacks of them beyond the
        resolution.
        """
        products = self.basis.products(rows)
        unit, length, shortest = _measured(rows, self._tolerance)
        fresh, directions = lacking(
            self.basis, unit, (products / length).nan_to_num(0.0, 0.0, 0.0), shortest
        )
        self.basis.extend(directions)
        return torch.cat([products, fresh * length], 1)

    def _blocks(
        self, columns: Sequence[Tensor | None], coordinates: Tensor, other: Tensor
    ) -> list[Tensor | None]:
        """What each column makes of the blocks so far and of the samples, with room to grow."""
        room = room_for(self.basis.rank, self.basis.n)
        mixing = [
            [0.0] * SLOTS if column is None else column[:SLOTS].tolist() for column in columns
        ]
        apart = all(
            not weight for j, row in enumerate(mixing) for i, weight in enumerate(row) if i != j
        )
        made: list[Tensor | None] = []
        for j, column in enumerate(columns):
            if column is None:
                made.append(None)
                continue
            before = self.blocks[j]
            # nobody else needs it: the same memory
            if apart and before is not None and mixing[j][j]:
                block = padded(before, max(room, len(before)), other.shape[1])
                if mixing[j][j] != 1.0:
                    block.mul_(mixing[j][j])
            else:
                block = other.new_zeros(room, other.shape[1])
                for weight, part in zip(mixing[j], self.blocks, strict=True):
                    if weight and part is not None:
                        block[: len(part)].add_(part, alpha=weight)
            weights = column[SLOTS : SLOTS + len(other)]
            # of a gradient those of one batch, of W what was stepped
            rows = weights.nonzero().flatten().tolist()
            if rows:
                some = slice(rows[0], rows[-1] + 1)
                block[: self.basis.rank].addmm_(
                    (coordinates[some] * weights[some, None]).T, other[some]
                )
            made.append(block)
        return made

    @property
    def _tolerance(self) -> float:
        return max(self.resolution, TOLERANCE[self.basis.tiles.dtype])

    def _use(self, space: Space, like: Tensor) -> None:
        self.space = space
        self.basis = Basis(self.sizes[space], dtype=like.dtype, device=like.device)
        self.blocks = [None] * SLOTS

    def _rank_of(self, v: Tensor) -> int:
        """How many directions these rows have beyond the resolution."""
        empty = Basis(v.shape[1], dtype=v.dtype, device=v.device)
        unit, _, shortest = _measured(v, self._tolerance)
        return lacking(empty, unit, empty.products(unit), shortest)[0].shape[1]

    # ---- what a layer asks of its matrix

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Dense W_0 of the forward and of the backward pass; it follows from the layer's own seed
        alone.
        """
        identity = torch.eye(
            self.sizes["inputs"], dtype=self.basis.tiles.dtype, device=self.basis.tiles.device
        )
        forward = self.forward.product(identity).T
        return forward, forward if self.shared else self.backward.product(identity).T

    def dense_update(self, update: Tensor) -> Tensor:
        """What the column of W adds to ``s W_0``."""
        identity = torch.eye(
            self.sizes["gradients"], dtype=self.basis.tiles.dtype, device=self.basis.tiles.device
        )
        value = identity.new_zeros(self.sizes["gradients"], self.sizes["inputs"])
        self.add_update(value, identity, "gradients", update)
        return value

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device."""
        for frame in (self.basis, *self.samples.values()):
            frame.map(fn)
        self.blocks = [None if block is None else fn(block) for block in self.blocks]
        for matrix in {self.forward, self.backward}:
            matrix.map(fn)

    def state(self) -> dict[str, Tensor]:
        """Copies of what was learned; the matrices follow from the seed, and a gradient is not
        saved.
        """
        rank = self.basis.rank
        nothing = self.basis.tiles.new_zeros(0, self.sizes[_opposite(self.space)])
        blocks = [nothing if block is None else block[:rank].clone() for block in self.blocks[:-1]]
        return {
            "space": torch.tensor(
                SPACES.index(self.space) if self.settled else _UNSETTLED, device="cpu"
            ),
            "directions": self.basis.rows,
            "gram": self.basis.gram.clone(),
            **{f"blocks.{name}": block for name, block in zip(BLOCKS, blocks, strict=False)},
            **{f"samples.{name}": self.samples[name].rows[: self.stepped] for name in SPACES},
        }

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, of this source."""
        like = self.basis.tiles
        space = int(state["space"])
        self.settled = space != _UNSETTLED
        self._use(SPACES[max(space, 0)], like)
        self.basis.restore(state["directions"], state["gram"])
        saved = [state[f"blocks.{name}"] for name in BLOCKS[:-1]]
        self.blocks = [
            *(block.to(like, copy=True) if len(block) else None for block in saved),
            None,
        ]
        for name, frame in self.samples.items():
            frame.replace(state[f"samples.{name}"].to(like))
        self.stepped = self.count
        self.draw(source)


def _opposite(space: Space) -> Space:
    return "gradients" if space == "inputs" else "inputs"


def _measured(x: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Matrix]:
    """Rows of length one, their lengths ``[b, 1]``, and beyond which remainder each of them adds a
    direction, ``[b]``.

    That is ``tolerance`` of the row or, where that is more, of the root mean square of the batch:
    the remainder of a row that hardly counts is short. Rows that are not finite become zero and
    have length NaN.
    """
    unit, length, _ = unit_rows(x)
    lengths = np.nan_to_num(length.flatten().double().cpu().numpy())
    typical = np.sqrt(np.square(lengths).mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        return unit, length, tolerance * np.fmax(typical / lengths, 1.0)
