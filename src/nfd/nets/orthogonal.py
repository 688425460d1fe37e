"""Rank-revealing extension of an orthonormal frame by a block of vectors.

Given orthonormal ``Q`` and a block ``x``, find new orthonormal directions ``q`` and coefficients with

    x = Q c + q d        up to ``tolerance ||x||`` per vector.

Block classical Gram-Schmidt: project, factor the residual by pivoted Cholesky of its Gram matrix, and project and
factor once more where rounding could have spoiled the result ("twice is enough": Giraud, Langou & Rozloznik 2005).
The Gram matrix sees a direction only to the square root of precision, so each round accepts the well-conditioned
part alone; what remains is projected on that part and goes to the next round. Almost always one round is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf, dtrtri
from torch import Tensor

from nfd.nets.frame import Frame, add_combination, combination, inner

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_WELL_CONDITIONED = {torch.float32: 1e-2, torch.float64: 1e-4}  # smallest pivot a round accepts
_SAFE_PIVOT = 0.3  # a Gram matrix with smaller pivots is factored a second time
_ORTHOGONALITY = {torch.float32: 2e-6, torch.float64: 1e-14}  # overlap with earlier directions left as it is
_SHRUNK = 0.5  # a direction that loses half its length in the second projection was rounding noise

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Expansion:
    """A block in an orthonormal frame: ``x = known Q + fresh q``; ``directions`` q are tiled ``[p, k, width]``."""

    known: Tensor  # [b, rank]
    fresh: Tensor  # [b, k]
    directions: Tensor


def expand(frame: Frame, unit: Tensor, tolerance: float) -> Expansion:
    """Expand a tiled block of unit (or zero) vectors in ``frame`` and the directions it lacks; overwrites ``unit``."""
    known = inner(unit, frame.tiles)
    residual = add_combination(unit, known, frame.tiles, alpha=-1)
    directions = [frame.tiles]
    fresh: list[Matrix] = []
    while True:
        room = frame.n - sum(d.shape[1] for d in directions)
        found, coefficients, finished = _well_conditioned(residual, directions, room, tolerance)
        directions.append(found)
        fresh.append(coefficients)
        if finished:
            break
        _project_out(residual, found)
    new = directions[1:]
    return Expansion(
        known,
        torch.from_numpy(np.concatenate(fresh, 1)).to(unit),
        new[0] if len(new) == 1 else torch.cat(new, 1),
    )


def _well_conditioned(
    residual: Tensor, earlier: list[Tensor], room: int, tolerance: float
) -> tuple[Tensor, Matrix, bool]:
    """Orthonormal directions of the best-conditioned part of ``residual``, and its coefficients in them.

    The flag is True when nothing above ``tolerance`` is left.
    """
    gram = _gram(residual)
    length = np.sqrt(gram.diagonal())
    alive = np.flatnonzero(length > tolerance)
    if not alive.size or room <= 0:
        return residual[:, :0], np.zeros((len(gram), 0)), True
    scale = 1 / length[alive]
    threshold = _WELL_CONDITIONED[residual.dtype]
    factor, pivot = _whiten(gram[np.ix_(alive, alive)] * np.outer(scale, scale), threshold, room)
    transform = np.zeros((len(factor), len(gram)))
    transform[:, alive] = factor * scale
    directions = _apply(transform, residual)
    overlap = max(_project_out(directions, e) for e in earlier)
    if overlap > 1e-3 or pivot < _SAFE_PIVOT:
        polish, _ = _whiten(_gram(directions), _SHRUNK, room)
        directions = _apply(polish, directions)
        transform = polish @ transform
    return directions, gram @ transform.T, len(factor) == min(len(alive), room)


def _project_out(vectors: Tensor, directions: Tensor) -> float:
    """Make ``vectors`` orthogonal to ``directions``, in place where rounding left an overlap; returns the largest."""
    if not directions.shape[1]:
        return 0.0
    overlap = inner(vectors, directions)
    largest = float(overlap.abs().max())
    if largest > _ORTHOGONALITY[vectors.dtype]:
        add_combination(vectors, overlap, directions, alpha=-1)
    return largest


def _gram(tiles: Tensor) -> Matrix:
    return inner(tiles, tiles).double().cpu().numpy()


def _apply(transform: Matrix, tiles: Tensor) -> Tensor:
    return combination(torch.from_numpy(transform).to(tiles), tiles)


def _whiten(gram: Matrix, threshold: float, most: int) -> tuple[Matrix, float]:
    """``T`` [k, b] with ``T gram T' = I`` on the pivots above ``threshold``, and the smallest of them."""
    factor, order, k, _ = dpstrf(gram, tol=threshold**2)
    k = min(k, most)
    if k == 0:
        return np.zeros((0, len(gram))), 1.0
    inverse, _ = dtrtri(factor[:k, :k])
    transform = np.zeros((k, len(gram)))
    transform[:, order[:k] - 1] = np.triu(inverse).T
    return transform, float(factor[k - 1, k - 1])
