"""Bounds: the least time in which a job can be done, from what it does, counted from its sizes.

``Work`` counts what a job must do, whoever writes it; ``Limits`` (``benchmarks.measure``) has the
rates of the machine at that moment, each measured with an operation of PyTorch and none with ours.
The least time of a job is

    max(bytes / bandwidth, products / rate + thin products / rate of thin products)
        + normal numbers / rate + transforms * time of one
        + arccosines / rate + multiplications with an addition / rate.

Bytes move while products are computed, so that the longer one counts; the rest needs the same units
of the processor, so that it adds up. A product of few rows cannot reach the rate of a large one: it
has a rate of its own, in cache, by the fastest of four layouts. ``of_large_products`` counts it at
the rate of large ones all the same. A transform takes as long as a real FFT of this size, or as its
additions one by one, whichever is less.

A *share of the bound* is the least time over the measured one. Both are of one moment and one
machine, so that shares of two machines can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import torch

FLOAT = 4
DOUBLE = 8
# Passes of a query over the factors: Q twice, as its coefficients need all of it before a residual
# can be, Y and P for the response, Z and P for the answer.
_PASSES = 6
# Products with them, the first with twice the rows.
_PRODUCTS = 7
# An iteration of Muon: A^2, P turn, turn A and (turn A) turn. The last one needs two of them.
_MUONS_PRODUCTS = 4
_MUONS_STEPS = 5
# Multiplications and additions of a number in one evaluation of a Dormand-Prince method of order 8
# with 12 stages: stage k adds up k of them, 78 over 12.
_STAGE = 6.5
# Iterations of the power method that give the largest singular value of a meter, and its last pass.
_POWER_ITERATIONS = 16


@dataclass(frozen=True)
class Work:
    """What a job must do at least.

    Attributes:
        traffic: bytes that pass through memory.
        products: operations of products of large matrices.
        thin: operations of products of as few rows as a batch has.
        normals: normal numbers that are drawn.
        transforms: fast transforms of a batch.
        arccosines: of double precision; any function of the kind stands for one.
        additions: multiplications with an addition, number by number, in double precision.
    """

    traffic: float = 0.0
    products: float = 0.0
    thin: float = 0.0
    normals: float = 0.0
    transforms: float = 0.0
    arccosines: float = 0.0
    additions: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> Work:
        return Work(*(times * getattr(self, f.name) for f in fields(self)))

    @classmethod
    def sum(cls, works: list[Work]) -> Self:
        """The work of all."""
        return cls(*(math.fsum(getattr(w, f.name) for w in works) for f in fields(cls)))


@dataclass(frozen=True)
class Limits:
    """What this machine can do at this moment, as PyTorch does it.

    Attributes:
        read: bytes read per second.
        products: operations of products of large matrices per second.
        thin: operations per second of products of as many rows as a batch has, in cache, float32.
        normals: normal numbers per second, float32.
        transform: seconds of one fast transform of a batch, float32.
        arccosines, additions: numbers per second, in cache, float64.
    """

    read: float
    products: dict[torch.dtype, float]
    thin: float = math.nan
    normals: float = math.nan
    transform: float = math.nan
    arccosines: float = math.nan
    additions: float = math.nan

    def bound(self, work: Work, dtype: torch.dtype = torch.float32) -> float:
        """The least seconds for a job."""
        return self._least(work, dtype, self.thin)

    def of_large_products(self, work: Work, dtype: torch.dtype = torch.float32) -> float:
        """The least seconds if thin products had the rate of large ones."""
        return self._least(work, dtype, self.products[dtype])

    def _least(self, work: Work, dtype: torch.dtype, thin: float) -> float:
        seconds = max(
            work.traffic / self.read,
            _over(work.products, self.products[dtype]) + _over(work.thin, thin),
        )
        seconds += _over(work.normals, self.normals)
        seconds += _over(work.arccosines, self.arccosines)
        seconds += _over(work.additions, self.additions)
        if work.transforms:
            seconds += work.transforms * self.transform
        return seconds


def _over(count: float, rate: float) -> float:
    """Seconds; none where nothing is done, and the rate was not measured."""
    return count / rate if count else 0.0


# ---- deferred weights


def query_work(width: int, rank: float, batch: int) -> Work:
    """One query of ``batch`` rows of a float32 matrix of which ``rank`` directions are known.

    ``_PASSES`` passes over factors of ``width * rank`` numbers, ``_PRODUCTS`` products of ``2 width
    rank batch`` operations, and a normal number for every new one.
    """
    numbers = width * rank
    return Work(
        traffic=_PASSES * FLOAT * numbers,
        thin=_PRODUCTS * 2 * numbers * batch,
        normals=width * batch,
    )


def deferred_work(width: int, depth: int, steps: int, batch: int, *, is_muon: bool = False) -> Work:
    """All queries of a training run: a forward and a backward one for each layer and step.

    Muon turns a matrix of the rank of what is known, ``rank x rank``.
    """
    works = []
    for step in range(steps):
        works.append(query_work(width, step * batch, batch) * (2 * depth))
        if is_muon:
            rank = (step + 1) * batch
            works.append(Work(products=2 * rank**3 * _MUONS_PRODUCTS * _MUONS_STEPS) * depth)
    return Work.sum(works)


# ---- structured weights


def recorded_work(width: int, samples: float, batch: int) -> Work:
    """What recorded samples add to one query: ``G' diag(c) X`` of a batch, a pass over each."""
    numbers = width * samples
    return Work(traffic=2 * FLOAT * numbers, thin=4 * numbers * batch)


def compression_work(width: int, samples: int) -> Work:
    """Samples become a basis ``X = R B`` and a block ``R' diag(c) G``, float32.

    The Gram matrices of both sides (symmetric: half a product each) tell the ranks; a triangular
    matrix makes the basis, and another the block (half a product each). All are read once more for
    that, and both results are written.
    """
    product = 2 * samples**2 * width
    numbers = width * samples
    return Work(traffic=6 * FLOAT * numbers, products=4 * product / 2)


def structured_work(width: int, depth: int, steps: int, batch: int) -> Work:
    """A training run by SGD of so few samples that none is compressed.

    A query has two transforms of the batch; samples are recorded by one pass of writing.
    """
    works = []
    for step in range(steps):
        works.append(recorded_work(width, step * batch, batch) * (2 * depth))
    ends = Work(transforms=4, traffic=2 * FLOAT * width * batch) * (depth * steps)
    return Work.sum([*works, ends])


def structured_muon_work(width: int, depth: int, steps: int, batch: int) -> Work:
    """A training run by Muon, which needs the basis after every step.

    A query is as with samples. A step projects the batch on the basis and takes the residual (two
    passes); reads and writes the momentum and the block of W, and reads the momentum again for the
    update: its Gram matrix is half a product, the update a whole one.
    """
    works = []
    for step in range(steps):
        before = step * batch
        rank = before + batch
        works.append(recorded_work(width, before, batch) * (2 * depth))
        basis = Work(traffic=2 * FLOAT * width * before, thin=4 * width * before * batch)
        turn = Work(
            traffic=5 * FLOAT * width * rank,
            products=3 * width * rank**2 + 2 * rank**3 * _MUONS_PRODUCTS * _MUONS_STEPS,
        )
        works.append((basis + turn + Work(transforms=4)) * depth)
    return Work.sum(works)


# ---- kernels


def gram_work(count: int, features: int, coefficients: int, norms: int) -> Work:
    """A symmetric Gram matrix from a table, float64: half of the pairs are computed.

    A pair is a product of inputs, one arccosine and a multiplication and addition for every
    coefficient. Coefficients at several norms are first interpolated: ``norms`` products each. The
    matrix is written once.
    """
    pairs = count * (count + 1) / 2
    interpolated = 2 * norms * coefficients if norms > 1 else 0
    return Work(
        traffic=DOUBLE * count**2,
        products=pairs * (2 * features + interpolated),
        arccosines=pairs,
        additions=pairs * coefficients,
    )


def table_work(nodes: int, kernels: int, evaluations: float) -> Work:
    """The solution of the equations at every node of a table, float64.

    An evaluation has at least one function of the kind of an arccosine for each of the ``kernels``
    numbers of a node, and the method's own sums.
    """
    numbers = nodes * kernels * evaluations
    return Work(arccosines=numbers, additions=_STAGE * numbers)


# ---- meters


def look_work(width: int, matrices: int, hidden: int, rows: int) -> Work:
    """A look at square float32 matrices, of which ``hidden`` have a largest singular value.

    Each is read beside its initial numbers, for the norms and the change of its output, and three
    times in forward passes: of the trained network, with the initial inner matrices, and with the
    initial outer ones. The power method reads the change once in each iteration, for a row can be
    multiplied from both sides while it is in the processor, and it is written before that.
    """
    numbers = width * width
    plain = Work(traffic=5 * FLOAT * numbers, products=4 * 2 * numbers * rows)
    power = Work(traffic=(_POWER_ITERATIONS + 2) * FLOAT * numbers)
    return plain * matrices + power * hidden
