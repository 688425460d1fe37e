"""What a run costs before it is made: memory, seconds, and whether deferred or dense weights are cheaper.

Deferred weights hold four vectors of size n per layer and direction, dense ones n^2 numbers (and as many for the
gradient). The seconds are a model of a two-core CPU, on every device; only their ratio decides anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nfd.core.errors import WIDEST, InputError
from nfd.core.names import NetworkWeights
from nfd.limits.problem import Problem
from nfd.nets.frame import predicted_bytes

_FLOAT = 4
PRODUCT_RATE = 5e10  # multiply-adds of thin products, flop/s
MATRIX_RATE = 1.2e10  # bytes/s of passes over a dense matrix and its gradient
_DRAW_RATE = 2.5e8  # normal numbers/s
_QUERY_SECONDS = 3e-4  # one query of one layer, apart from its products
_PASSES = 7  # thin products of a query: six passes over the factors, the first with twice the rows
LEVER = 4  # how many times narrower the networks are that show the bias of width: fewer add noise, more bend 1/n
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def bytes_of(memory: str | int | float) -> int:
    """``"4 GiB"``, ``"500 MB"`` or a number of bytes, as bytes."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", str(memory))
    if not match or match[2].upper() not in _UNITS or match[1].count(".") > 1 or match[1] == ".":
        raise InputError(f"memory must be like '4 GiB' or '500 MB'; got {memory!r}.")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size < 2**63:
        raise InputError(f"memory must be between 1 byte and 8 EiB; got {memory!r}.")
    return int(size)


@dataclass(frozen=True)
class Storage:
    """A way to hold the weights of a run, its peak bytes and its predicted seconds."""

    weights: NetworkWeights
    bytes: int
    seconds: float


def within(problem: Problem, width: int, depth: int, memory: int) -> Storage | None:
    """The cheaper way that fits into ``memory`` bytes, or None."""
    return cheapest(ways(problem, width, depth), memory)


def ways(problem: Problem, width: int, depth: int) -> list[Storage]:
    """Both ways to hold the weights of a run."""
    return [_deferred(problem, width, depth), _dense(problem, width, depth)]


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
    rank = min(N, n)
    size = layers * predicted_bytes(n, n, N, _FLOAT) + _shared_bytes(problem, n, depth)
    growing = 0.5 * rank * rank / batch + max(0, N - n) / batch * rank  # sum over steps of the rank
    products = 2 * 2 * _PASSES * n * batch * growing
    draws = 2 * rank * n
    seconds = products / PRODUCT_RATE + draws / _DRAW_RATE + 2 * N / batch * _QUERY_SECONDS
    return Storage("deferred", size, layers * seconds)


def _dense(problem: Problem, n: int, depth: int) -> Storage:
    layers, steps = depth * problem.layers_per_block, problem.task.steps
    copies = 1 if problem.feedback == "shared" else 2
    trained = 2 if problem.feedback == "independent" else 1
    matrices = copies + trained * (2 if problem.momentum > 0 else 1)  # weights, gradients, momentum
    size = layers * matrices * n * n * _FLOAT + _shared_bytes(problem, n, depth)
    passes = 2 * matrices + 2
    flops = 3 * 2 * n * n * problem.task.batch
    step = passes * n * n * _FLOAT / MATRIX_RATE + flops / (3 * PRODUCT_RATE) + 1e-4
    return Storage("dense", size, layers * (steps * step + copies * n * n / _DRAW_RATE))


def power_of_two(at_least: float) -> int:
    """The smallest power of two that is at least this."""
    return 1 << max(0, math.ceil(math.log2(max(at_least, 1.0))))
