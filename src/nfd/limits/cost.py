"""What a run costs before it is made: memory, seconds, and which way to hold its weights is the cheapest.

Deferred weights hold four vectors of size n per layer and direction, dense ones n^2 numbers (and as many for the
gradient), structured ones two vectors per layer and sample, or three per direction at a resolution. The seconds are a
model of a two-core CPU, on every device; only their ratio decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nfd.core.errors import WIDEST
from nfd.core.names import NetworkWeights
from nfd.core.random import Increment
from nfd.limits.problem import Problem
from nfd.nets.frame import predicted_bytes
from nfd.nets.matrix_cost import (
    DRAW_RATE,
    MATRIX_RATE,
    PRODUCT_RATE,
    STORED_SECONDS,
    MatrixUse,
    deferred_seconds,
    recorded_cost,
    structured_cost,
)

_FLOAT = 4
GAUSSIAN: tuple[NetworkWeights, ...] = ("deferred", "dense")
LEVER = 4  # how many times narrower the networks are that show the bias of width: fewer add noise, more bend 1/n


@dataclass(frozen=True)
class Storage:
    """A way to hold the weights of a run, its peak bytes and its predicted seconds."""

    weights: NetworkWeights
    bytes: int
    seconds: float

    @property
    def is_gaussian(self) -> bool:
        """Whether the weights have the law of a Gaussian matrix at finite width too; structured ones have their own."""
        return self.weights != "structured"


def within(
    problem: Problem, width: int, depth: int, memory: int, kinds: Sequence[NetworkWeights] = GAUSSIAN
) -> Storage | None:
    """The cheapest of these ways, by default those of Gaussian weights, that fits into ``memory`` bytes, or None."""
    return cheapest([way_of(kind, problem, width, depth) for kind in kinds], memory)


def way_of(weights: NetworkWeights, problem: Problem, width: int, depth: int, rank: float | None = None) -> Storage:
    """What a run takes with weights of this kind; ``rank``: directions of a structured update at a resolution.

    Without it nothing of the update is dropped.
    """
    if weights == "structured" and rank is not None:
        return _structured(problem, width, depth, min(math.ceil(rank), problem.task.samples))
    return _WAYS[weights](problem, width, depth)


def cheapest(ways: Sequence[Storage], memory: int) -> Storage | None:
    """The fastest way that fits into ``memory`` bytes, or None."""
    fitting = [way for way in ways if way.bytes <= memory]
    return min(fitting, key=lambda way: way.seconds) if fitting else None


def widest(fits: Callable[[int], bool], unit: int = 1) -> int:
    """The largest of ``unit`` times a power of two that fits, at least ``unit``."""
    width = unit
    while 2 * width <= WIDEST and fits(2 * width):
        width *= 2
    return width


def _shared_bytes(problem: Problem, n: int, depth: int) -> int:
    task, batch = problem.task, max(problem.task.batch, 16)
    ends = 3 * n * (task.features + task.outputs)
    stream = n * batch * (3 * depth * problem.layers_per_block + 12)
    return _FLOAT * (ends + stream)


def _deferred(problem: Problem, n: int, depth: int) -> Storage:
    layers, N, batch = depth * problem.layers_per_block, problem.task.samples, problem.task.batch
    size = layers * predicted_bytes(n, n, N, _FLOAT) + _shared_bytes(problem, n, depth)
    return Storage("deferred", size, layers * deferred_seconds(n, n, N, batch))


def _dense(problem: Problem, n: int, depth: int) -> Storage:
    layers, steps = depth * problem.layers_per_block, problem.task.steps
    copies = 1 if problem.feedback == "shared" else 2
    trained = 2 if problem.feedback == "independent" else 1
    matrices = copies + trained * (2 if problem.momentum > 0 else 1)  # weights, gradients, momentum
    size = layers * matrices * n * n * _FLOAT + _shared_bytes(problem, n, depth)
    passes = 2 * matrices + 2
    flops = 3 * 2 * n * n * problem.task.batch
    step = passes * n * n * _FLOAT / MATRIX_RATE + flops / (3 * PRODUCT_RATE) + STORED_SECONDS
    return Storage("dense", size, layers * (steps * step + copies * n * n / DRAW_RATE))


def _structured(problem: Problem, n: int, depth: int, rank: int | None = None) -> Storage:
    layers, task = depth * problem.layers_per_block, problem.task
    terms = len(Increment(0, 0, depth, problem.coupled).terms) if problem.coupled else 1
    states = 1 if problem.momentum > 0 else 0
    use = MatrixUse(n, n, task.batch, task.samples if rank is None else rank, states, False, _FLOAT, terms)
    cost = recorded_cost(use) if rank is None else structured_cost(use)
    size = round(layers * cost.bytes) + _shared_bytes(problem, n, depth)
    return Storage("structured", size, task.steps * layers * cost.seconds)


_WAYS: dict[NetworkWeights, Callable[[Problem, int, int], Storage]] = {
    "deferred": _deferred,
    "dense": _dense,
    "structured": _structured,
}


def power_of_two(at_least: float) -> int:
    """The smallest power of two that is at least this."""
    return 1 << max(0, math.ceil(math.log2(max(at_least, 1.0))))
