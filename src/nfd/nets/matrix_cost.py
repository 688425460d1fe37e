"""What one wide matrix takes in training, by how it holds its weights: bytes, and seconds of a step.

Stored weights hold n_in n_out numbers, as many for the gradient and for each state of the optimizer. Structured ones
hold r vectors of both sides, r being the directions of the update; deferred ones four vectors for every row that was
asked. The seconds are a model of a two-core CPU, on every device and every machine. Their ratios decide which weights,
widths and replicates are taken. So the constants are fixed numbers: no answer depends on how busy a machine was.
Version 0.2.0 measured them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nfd.core.names import NetworkWeights
from nfd.nets.frame import LEAST_ROOM, predicted_bytes
from nfd.nets.hadamard import padded_size

PRODUCT_RATE = 1.3e11  # multiply-adds of thin products, flop/s
MATRIX_RATE = 5.3e10  # bytes/s of passes over a dense matrix and its gradient
DRAW_RATE = 3e8  # normal numbers/s
SPARE = 9 / 8  # room that bases grow by
_FULL_RATE = 3 * PRODUCT_RATE  # of products of square matrices
_QUERY_SECONDS = 7.5e-4  # one query of a deferred layer, apart from its products
_PASSES = 7  # thin products of a query: six passes over the factors, the first with twice the rows
_TRANSFORM_SECONDS = 1.6e-9  # of a number in one Hadamard transform
_TERM_SECONDS = 9.5e-5  # of a structured W_0 and step, apart from its transforms
_LAYER_SECONDS = 9.5e-4  # of a structured layer and step, apart from its products
_RECORDED_SECONDS = 4e-4  # the same of one whose update is recorded sample by sample
_ROW_SECONDS = 1.5e-6  # the same of every row
STORED_SECONDS = 1e-4  # of a stored matrix and step, apart from its products
_NEWTON_SCHULZ = 5  # iterations of an optimizer that normalises a matrix as a whole


@dataclass(frozen=True)
class MatrixUse:
    """How a matrix ``[n_out, n_in]`` is trained.

    Args:
        rows: how many rows a batch asks it for. samples: the rows of the whole training.
        states: numbers that the optimizer keeps for each weight.
        whole: whether it normalises the matrix as a whole, by Newton-Schulz.
        itemsize: bytes of a number.
        terms: how many structured matrices its W_0 is a sum of.
    """

    n_in: int
    n_out: int
    rows: int
    samples: int
    states: int
    whole: bool
    itemsize: int
    terms: int = 1

    @property
    def rank(self) -> int:
        """Directions that its update has at most."""
        return min(self.samples, self.n_in, self.n_out)


@dataclass(frozen=True)
class MatrixCost:
    """Bytes held at the end of training, and the mean seconds of a step."""

    bytes: float
    seconds: float


def stored_cost(use: MatrixUse) -> MatrixCost:
    """Of stored weights."""
    weights, copies = use.n_in * use.n_out, 2 + use.states
    flops = 6 * use.rows * weights + (_orthogonalising(use.n_in, use.n_out) if use.whole else 0.0)
    seconds = flops / _FULL_RATE + 2 * copies * weights * use.itemsize / MATRIX_RATE
    return MatrixCost(use.itemsize * copies * weights, seconds)


def structured_cost(use: MatrixUse) -> MatrixCost:
    """Of structured weights whose update has as many directions as there are rows: a bound, mostly far above."""
    r, longest = use.rank, max(use.n_in, use.n_out)
    N = padded_size(longest)
    room = min(max(SPARE * r, LEAST_ROOM), longest) if r else 0
    numbers = room * (3 + use.states) * longest + 6 * use.terms * N + r * r
    typical = r / 2  # directions are added as training goes
    thin = 6 * use.rows * typical * (use.n_in + use.n_out) / PRODUCT_RATE
    full = _orthogonalising_gram(typical, longest) / _FULL_RATE if use.whole else 0.0
    seconds = _transforms(use) + thin + full + use.rows * _ROW_SECONDS + _LAYER_SECONDS
    return MatrixCost(use.itemsize * numbers, seconds)


def recorded_cost(use: MatrixUse) -> MatrixCost:
    """Of structured weights whose update is the samples that made it (``nfd.nets.recorded``), under SGD."""
    both, longest = use.n_in + use.n_out, max(use.n_in, use.n_out)
    numbers = use.samples * (both + 2 + use.states) + 6 * use.terms * padded_size(longest)
    thin = 4 * use.rows * use.samples / 2 * both / PRODUCT_RATE  # half of the samples are there in the mean
    return MatrixCost(use.itemsize * numbers, _transforms(use) + thin + _RECORDED_SECONDS)


def _transforms(use: MatrixUse) -> float:
    """Seconds of the products with a structured W_0 in a step."""
    N = padded_size(max(use.n_in, use.n_out))
    return use.terms * 4 * use.rows * N * _TRANSFORM_SECONDS + _TERM_SECONDS  # of all terms at once


def deferred_cost(use: MatrixUse) -> MatrixCost:
    """Of deferred weights."""
    total = deferred_seconds(use.n_in, use.n_out, use.samples, use.rows) if use.rows else 0.0
    steps = max(use.samples / use.rows, 1.0) if use.rows else 1.0
    return MatrixCost(predicted_bytes(use.n_in, use.n_out, use.samples, use.itemsize), total / steps)


def deferred_seconds(n_in: int, n_out: int, samples: int, rows: int) -> float:
    """Of a training that asks a deferred layer for so many rows in all, and so many in a batch."""
    n, rank = (n_in + n_out) / 2, min(samples, n_in, n_out)
    growing = 0.5 * rank * rank / rows + max(0, samples - rank) / rows * rank  # sum over steps of the rank
    products = 2 * 2 * _PASSES * n * rows * growing
    return products / PRODUCT_RATE + 2 * rank * n / DRAW_RATE + 2 * samples / rows * _QUERY_SECONDS


def training_seconds(weights: NetworkWeights, use: MatrixUse) -> float:
    """Of a training that shows a matrix of these weights all samples, apart from calling its operations."""
    return _COSTS[weights](use).seconds * use.samples / max(use.rows, 1)


def _orthogonalising(rows: float, columns: float) -> float:
    """Operations of making all singular values of a matrix one."""
    m, M = min(rows, columns), max(rows, columns)
    return _NEWTON_SCHULZ * (4 * m * m * M + 2 * m**3)


def _orthogonalising_gram(rows: float, columns: float) -> float:
    """The same on the Gram matrix of the rows, as ``nfd.Muon`` does it."""
    return 4 * rows * rows * columns + _NEWTON_SCHULZ * 8 * rows**3


_COSTS: dict[NetworkWeights, Callable[[MatrixUse], MatrixCost]] = {
    "dense": stored_cost,
    "deferred": deferred_cost,
    "structured": structured_cost,
}
