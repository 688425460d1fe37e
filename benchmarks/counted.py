"""Operations and bytes of a training, counted from its sizes: what bounds its time on any machine.

Of n neurons, L matrices, batches of b rows in t steps, float32, at step k:

    deferred      2 L queries of rank r = k b:  6 r vectors read, 7 products of b rows with r vectors;
                  2 b vectors drawn and written by each, and as many recorded
    structured    4 L transforms of b rows: ceil(log2(n) / 4) products with 16 x 16 matrices, every one of which reads
                  and writes the rows, and 4 passes for signs, order and spectrum of both products;
                  9 L r vectors read or written, 6 products of b rows with r vectors, r = k b at most
    dense         6 L n^2 numbers read or written, 3 products of b rows with a matrix; n^2 L numbers drawn once

and for input and readout of d and C numbers, 6 n (d + C) numbers. Where r is at most what is given as the rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nfd.core.names import NetworkWeights
from nfd.nets.hadamard import padded_size

FLOAT = 4
_QUERIES, _TRANSFORMS = 2, 4  # of a matrix and step
_QUERY_PASSES, _QUERY_PRODUCTS = 6, 7
_UPDATE_PASSES, _UPDATE_PRODUCTS = 9, 6
_DENSE_PASSES, _DENSE_PRODUCTS = 6, 3
_END_PASSES = 6
_FACTOR_BITS, _OTHER_PASSES = 4, 4


@dataclass(frozen=True)
class Work:
    """Bytes that pass through memory, and operations of matrix products."""

    traffic: float
    operations: float

    def __add__(self, other: Work) -> Work:
        return Work(self.traffic + other.traffic, self.operations + other.operations)

    def times(self, factor: float) -> Work:
        """So much of it."""
        return Work(factor * self.traffic, factor * self.operations)


@dataclass(frozen=True)
class Training:
    """A network and the batches that it sees; ``depth`` counts hidden matrices, ``rank`` bounds directions."""

    weights: NetworkWeights
    width: int
    depth: int
    steps: int
    batch: int
    features: int = 64
    outputs: int = 10
    rank: float = math.inf

    @property
    def directions(self) -> list[float]:
        """How many there are at every step."""
        most = min(self.rank, self.width)
        return [min(step * self.batch, most) for step in range(self.steps)]

    @property
    def work(self) -> Work:
        """All that the training has to do at least."""
        layers = _COUNTED[self.weights](self)
        ends = _END_PASSES * self.width * (self.features + self.outputs)
        products = 3 * 2 * self.batch * self.width * (self.features + self.outputs)
        return layers + Work(FLOAT * ends, products).times(self.steps)


def query_work(width: int, rank: float, batch: int) -> Work:
    """One query of a deferred matrix: six passes over factors, the first with twice the rows."""
    numbers = width * rank
    return Work(_QUERY_PASSES * FLOAT * numbers, _QUERY_PRODUCTS * 2 * numbers * batch)


def _deferred(training: Training) -> Work:
    n, b = training.width, training.batch
    asked = query_work(n, sum(training.directions), b).times(_QUERIES)
    drawn = Work(FLOAT * 2 * 2 * n * b, 0.0).times(_QUERIES * training.steps)
    return (asked + drawn).times(training.depth)


def _structured(training: Training) -> Work:
    b, n = training.batch, training.width
    N = padded_size(n)
    factors = math.ceil(math.log2(N) / _FACTOR_BITS)
    passes = _TRANSFORMS * 2 * factors + 2 * _OTHER_PASSES
    rows = Work(FLOAT * passes * b * N, _TRANSFORMS * factors * 2 * b * N * 2**_FACTOR_BITS)
    numbers = n * sum(training.directions)
    update = Work(_UPDATE_PASSES * FLOAT * numbers, _UPDATE_PRODUCTS * 2 * numbers * b)
    return (rows.times(training.steps) + update).times(training.depth)


def _dense(training: Training) -> Work:
    numbers = training.width**2
    step = Work(_DENSE_PASSES * FLOAT * numbers, _DENSE_PRODUCTS * 2 * numbers * training.batch)
    return (step.times(training.steps) + Work(FLOAT * numbers, 0.0)).times(training.depth)


_COUNTED = {"deferred": _deferred, "structured": _structured, "dense": _dense}
