"""The matrices of a structured layer, and the basis of inputs in which it learns: ``W = s W_0 + M Q'``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nfd.core.random import Increment
from nfd.nets.frame import combination, inner, tiled, untiled
from nfd.nets.orthogonal import TOLERANCE, Basis, expand
from nfd.nets.revealed import unit_rows
from nfd.nets.rotated import RotatedMatrix


class LearnedMatrix:
    """W_0 for both passes, one matrix or two independent ones, and Q, an orthonormal basis of the inputs."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        shared: bool,
        source: Increment,
        resolution: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.n_out, self.shared, self.resolution = n_out, shared, resolution
        self.basis = Basis(n_in, dtype=dtype, device=device)
        self.draw(source)

    def draw(self, source: Increment) -> None:
        """Hold the matrices of this seed."""
        self.source = source
        like = self.basis.tiles

        def drawn(name: str) -> RotatedMatrix:
            return RotatedMatrix(
                self.basis.n, self.n_out, seed=source.seed, name=name, dtype=like.dtype, device=like.device
            )

        self.forward = drawn("forward")
        self.backward = self.forward if self.shared else drawn("backward")

    def coordinates(self, x: Tensor, record: bool) -> Tensor:
        """``Q'x`` of rows ``[b, n_in]``, [b, rank]; recorded, Q grows by what it lacks by more than the resolution."""
        if not record:
            return inner(tiled(x), self.basis.tiles)
        unit, length, _ = unit_rows(x)
        expansion = expand(self.basis, unit, max(self.resolution, TOLERANCE[x.dtype]))
        self.basis.extend(expansion.directions)
        return torch.cat([expansion.products, expansion.fresh], 1).mul_(length)

    def combined(self, coordinates: Tensor) -> Tensor:
        """The vectors ``[b, n_in]`` with these coordinates, ``Q c``."""
        return untiled(combination(coordinates, self.basis.tiles), self.basis.n)

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
        return {"directions": self.basis.rows, "gram": self.basis.gram.clone()}

    def misfit(self, state: dict[str, Tensor]) -> str | None:
        """The first tensor of a saved layer whose shape contradicts the others."""
        directions, update = state["directions"], state["update"]
        if directions.dim() != 2 or directions.shape[1] != self.basis.n:
            return "directions"
        fits = update.dim() == 2 and len(update) >= self.n_out and update.shape[1] >= len(directions)
        return None if fits else "update"

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, of this source."""
        self.basis.restore(state["directions"], state["gram"])
        self.draw(source)
