"""The matrices of a structured layer, and the samples that they learn from.

    W = s W_0 + G' diag(c) X + U'B        or        W = s W_0 + G' diag(c) X + B'U

X and G ``[N, n]`` are the inputs of the layer and the gradients of its outputs, sample by sample.
SGD subtracts ``lr g'x`` for every sample, so that a sample enters with ``c = -lr``; momentum,
schedules and weight decay are linear and act on c as they act on W. When samples are some hundreds
more than the directions of the basis, one factorization moves them all: ``X = R B`` with B
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
# Stands for no space in a saved state.
_UNSETTLED = -1
# Samples beyond the rank of the basis: a factorization of fewer costs more than it saves.
_MOST_SAMPLES = 256


class RandomPlusLowRank:
    """W_0 for both passes, the samples of the update, and its compressed part.

    W_0 is one matrix (``shared``) or two independent ones. Where ``space`` is None, the first
    compression settles it, by the smaller of its two ranks.
    """

    space: Space
    basis: Basis
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
        # Samples that a step has seen. The coefficients of later ones are zero.
        self.stepped = 0
        # So many samples are not compressed: all of a short run, where somebody announced one.
        self.uncompressed = 0
        self._use(space or "inputs", torch.empty(0, dtype=dtype, device=device))
        self.draw(source)

    def draw(self, source: Increment) -> None:
        """Draw the matrices of this seed."""
        self.source = source
        n_in, n_out = self.sizes.values()
        like = self.basis.tiles

        def matrix(name: str) -> RotatedMatrix:
            return RotatedMatrix(
                n_in, n_out, source=source, name=name, dtype=like.dtype, device=like.device
            )

        self.forward = matrix("forward")
        self.backward = self.forward if self.shared else matrix("backward")

    @property
    def count(self) -> int:
        """How many samples are held that were not compressed yet."""
        return self.samples["inputs"].rank

    # ---- products

    def add_update(self, value: Tensor, v: Tensor, space: Space, column: Tensor) -> None:
        """Add the update's answer to rows v of this space, with the coefficients of W."""
        if self.basis.rank:
            if space == self.space:
                self._add_blocks_of_basis(value, v, column)
            else:
                self._add_blocks(value, v, column)
        if self.stepped:
            asked = self.samples[space].tiles[:, : self.stepped]
            answers = self.samples[_opposite(space)].tiles[:, : self.stepped]
            products = inner(tiled(v), asked).mul_(column[SLOTS : SLOTS + self.stepped])
            add_rows(value, products, answers)

    def _add_blocks_of_basis(self, value: Tensor, v: Tensor, column: Tensor) -> None:
        """Add ``U'B v`` for every block, with rows v in the space of the basis B."""
        products = inner(tiled(v), self.basis.tiles)
        for weight, U in self._weighted_blocks(column):
            value.addmm_(products, U, alpha=weight)

    def _add_blocks(self, value: Tensor, v: Tensor, column: Tensor) -> None:
        """Add ``B'U v`` for every block, with rows v in the space of the blocks."""
        along: Tensor | None = None
        for weight, U in self._weighted_blocks(column):
            if along is None:
                along = weight * (v @ U.T)
            else:
                along.addmm_(v, U.T, alpha=weight)
        if along is not None:
            add_rows(value, along, self.basis.tiles)

    def _weighted_blocks(self, column: Tensor) -> list[tuple[float, Tensor]]:
        """The blocks ``[rank, n]`` that a column has a part of, with its coefficients."""
        weighted = []
        for weight, block in zip(column[:SLOTS].tolist(), self.blocks, strict=True):
            if weight and block is not None:
                weighted.append((weight, block[: self.basis.rank]))
        return weighted

    def gradient_size(self, column: Tensor) -> Tensor:
        """The Frobenius norm of the matrix with this column, in double precision.

        It comes from Gram matrices of the samples.
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
            samples = X if self.space == "inputs" else G
            partners = self.samples[_opposite(self.space)].rows[rows].double()
            along_block = (partners @ E.T) * weights[:, None]
            along_basis = inner(samples, self.basis.tiles.double())
            mixed = 2 * share * (along_block * along_basis).sum()
            square += share**2 * E.square().sum() + mixed
        return square.clamp_min(0).sqrt()

    # ---- samples and their compression

    def record(self, x: Tensor, g: Tensor) -> None:
        """Keep a batch."""
        for name, rows in zip(SPACES, (x, g), strict=True):
            self.samples[name].append(tiled(rows))

    def reserve(self, samples: int) -> None:
        """Make room for the samples of a training run, where it is short.

        A run that ends soon after a factorization does not earn its cost: 30 steps of 16 samples
        took 1.5 to 2 times as long with one, at widths 512 and 2048.
        """
        if samples > 2 * min(_MOST_SAMPLES, *self.sizes.values()):
            return
        self.uncompressed = samples
        for frame in self.samples.values():
            frame.reserve(samples)

    def forget(self) -> None:
        """Drop the samples that no step has seen."""
        for frame in self.samples.values():
            frame.rank = self.stepped

    @property
    def is_long(self) -> bool:
        """Whether it is cheaper to compress the samples."""
        most = min(_MOST_SAMPLES, *self.sizes.values())
        return self.count > self.basis.rank + max(most, self.uncompressed)

    def compress(self, columns: Sequence[Tensor | None]) -> None:
        """Move all samples into the basis.

        Each of ``columns``, of W, the momentum and the gradient, then is only its block.
        """
        rows = {name: self.samples[name].rows for name in SPACES}
        samples = rows[self.space]
        if not self.settled and self.count:
            coordinates = self._settled(rows)
        elif len(samples):
            coordinates = self._coordinates(samples)
        else:
            coordinates = samples.new_zeros(0, self.basis.rank)
        self.blocks = self._blocks(columns, coordinates, rows[_opposite(self.space)])
        self.stepped = 0
        self.forget()

    def _settled(self, rows: dict[Space, Tensor]) -> Tensor:
        """Use the space in which the samples have the smaller rank; return their coordinates."""
        tried = dict[Space, tuple[Basis, Tensor]]()
        for space in SPACES:
            self._use(space, rows[space])
            coordinates = self._coordinates(rows[space])
            tried[space] = self.basis, coordinates
        smaller = min(SPACES, key=lambda space: tried[space][0].rank)
        self._use(smaller, rows[smaller])
        self.basis, coordinates = tried[smaller]
        self.settled = self.basis.rank > 0
        return coordinates

    def _coordinates(self, rows: Tensor) -> Tensor:
        """Return coordinates of rows in the basis, extended by what it lacks of them.

        It is not extended by what is below the resolution.
        """
        products = self.basis.products(rows)
        unit, length, shortest = _measured(rows, self._tolerance)
        unit_products = (products / length).nan_to_num(0.0, 0.0, 0.0)
        fresh, directions = lacking(self.basis, unit, unit_products, shortest)
        self.basis.extend(directions)
        return torch.cat([products, fresh * length], 1)

    def _blocks(
        self, columns: Sequence[Tensor | None], coordinates: Tensor, partners: Tensor
    ) -> list[Tensor | None]:
        """Compute the block of each column from the blocks so far and from the samples.

        ``coordinates`` are the coordinates of the samples in the basis; ``partners`` are the same
        samples in the other space.
        """
        room = room_for(self.basis.rank, self.basis.n)
        mixing = np.zeros((SLOTS, SLOTS))
        for j, column in enumerate(columns):
            if column is not None:
                mixing[j] = column[:SLOTS].tolist()
        is_diagonal = not mixing[~np.eye(SLOTS, dtype=bool)].any()
        blocks: list[Tensor | None] = []
        for j, column in enumerate(columns):
            if column is None:
                blocks.append(None)
                continue
            weight = float(mixing[j, j])
            before = self.blocks[j]
            weights = column[SLOTS : SLOTS + len(partners)]
            # A gradient has weights in one batch only, and W in what was stepped.
            rows = weights.nonzero().flatten().tolist()
            some = slice(rows[0], rows[-1] + 1) if rows else slice(0)
            weighted = coordinates[some] * weights[some, None]
            if rows and not mixing[j].any():
                # Of samples only, like a gradient: nothing has to be cleared before.
                blocks.append(weighted.T @ partners[some])
                continue
            if is_diagonal and before is not None and weight:
                # No other column needs this block, so that its memory can be used again.
                block = padded(before, max(room, len(before)), partners.shape[1])
                if weight != 1.0:
                    block.mul_(weight)
            else:
                block = self._mixed(mixing[j].tolist(), partners.new_zeros(room, partners.shape[1]))
            if rows:
                block[: self.basis.rank].addmm_(weighted.T, partners[some])
            blocks.append(block)
        return blocks

    def _mixed(self, weights: Sequence[float], block: Tensor) -> Tensor:
        """Add all blocks, with these weights, to ``block``, and return it."""
        for weight, part in zip(weights, self.blocks, strict=True):
            if weight and part is not None:
                block[: len(part)].add_(part, alpha=weight)
        return block

    @property
    def _tolerance(self) -> float:
        return max(self.resolution, TOLERANCE[self.basis.tiles.dtype])

    def _use(self, space: Space, like: Tensor) -> None:
        self.space = space
        self.basis = Basis(self.sizes[space], dtype=like.dtype, device=like.device)
        self.blocks = [None] * SLOTS

    # ---- what a layer asks of its matrix

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Dense W_0 of the forward and of the backward pass.

        They follow from the layer's seed; ``seed`` has no effect.
        """
        like = self.basis.tiles
        identity = torch.eye(self.sizes["inputs"], dtype=like.dtype, device=like.device)
        forward = self.forward.product(identity).T
        return forward, forward if self.shared else self.backward.product(identity).T

    def dense_update(self, update: Tensor) -> Tensor:
        """What the column of W adds to ``s W_0``."""
        like = self.basis.tiles
        identity = torch.eye(self.sizes["gradients"], dtype=like.dtype, device=like.device)
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
        """Copy what was learned.

        The matrices follow from the seed, and a gradient is not saved.
        """
        rank = self.basis.rank
        nothing = self.basis.tiles.new_zeros(0, self.sizes[_opposite(self.space)])
        blocks = [nothing if block is None else block[:rank].clone() for block in self.blocks[:-1]]
        space = SPACES.index(self.space) if self.settled else _UNSETTLED
        return {
            "space": torch.tensor(space, device="cpu"),
            "directions": self.basis.rows,
            "gram": self.basis.gram.clone(),
            **{f"blocks.{name}": block for name, block in zip(BLOCKS, blocks, strict=False)},
            **{f"samples.{name}": self.samples[name].rows[: self.stepped] for name in SPACES},
        }

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, and draw the matrices of this source."""
        like = self.basis.tiles
        space = int(state["space"])
        self.settled = space != _UNSETTLED
        self._use(SPACES[space] if self.settled else "inputs", like)
        self.basis.restore(state["directions"], state["gram"])
        saved = [state[f"blocks.{name}"] for name in BLOCKS[:-1]]
        blocks = [block.to(like, copy=True) if len(block) else None for block in saved]
        # A gradient is not saved.
        self.blocks = [*blocks, None]
        for name, frame in self.samples.items():
            frame.replace(state[f"samples.{name}"].to(like))
        self.stepped = self.count
        self.draw(source)


def _opposite(space: Space) -> Space:
    return "gradients" if space == "inputs" else "inputs"


def _measured(x: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Matrix]:
    """Rows of length one, their lengths ``[b, 1]``, and the shortest remainders ``[b]``.

    A row adds a direction to a basis where its remainder is longer than that: ``tolerance`` of the
    row or, where that is more, of the root mean square of the batch. For a row that hardly counts
    has a short remainder. Rows that are not finite become zero and have length NaN.
    """
    unit, length, _ = unit_rows(x)
    lengths = np.nan_to_num(length.flatten().double().cpu().numpy())
    typical = np.sqrt(np.square(lengths).mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        return unit, length, tolerance * np.fmax(typical / lengths, 1.0)
