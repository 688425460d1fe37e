"""Work that two versions of the library can be timed at: ``python -m benchmarks.jobs NAME`` prints its cost as JSON.

A job runs in a process of its own, on the ``nfd`` that the process finds first. It uses only what version 0.1.0 has
too, so that ``benchmarks.against`` can run it on both sides. Where a version lacks a job, its process fails.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

import nfd
from benchmarks.dense import DenseBaseline
from nfd.core.machine import peak_memory
from nfd.core.random import Increment
from nfd.data import digits
from nfd.wide.lazy_gaussian import LazyGaussian

if TYPE_CHECKING:
    from nfd.core.errors import NetworkWeights

ETA_C = 0.1
Cost = Mapping[str, float]  # "seconds" and, where memory counts, "peak memory, GiB"


def unstored_run(width: int, depth: int, steps: int, batch: int, weights: NetworkWeights = "deferred") -> float:
    """Seconds to build and train a network without stored weights."""
    x, y = digits().batches(batch, steps, 0)
    start = time.perf_counter()
    net = nfd.ResNet(64, 10, width, depth, weights=weights)
    net.reserve(steps * batch)
    optimizer = nfd.SGD(net.param_groups(ETA_C))
    for inputs, targets in zip(x, y, strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.perf_counter() - start


def dense_run(width: int, depth: int, steps: int, batch: int) -> float:
    """Seconds to build and train the plain dense network on the same batches."""
    x, y = digits().batches(batch, steps, 0)
    start = time.perf_counter()
    net = DenseBaseline.random(64, 10, width, depth, ETA_C)
    for inputs, targets in zip(x, y, strict=True):
        net.step(inputs, targets)
    return time.perf_counter() - start


def large_run(
    width: int, depth: int, steps: int, batch: int, weights: NetworkWeights = "deferred"
) -> tuple[float, float]:
    """Seconds and peak memory in bytes, of a process that does nothing else."""
    return unstored_run(width, depth, steps, batch, weights), peak_memory()


def revealed(width: int, rank: int, batch: int) -> LazyGaussian:
    """A matrix of which this many directions are known on each side."""
    matrix = LazyGaussian(
        width, width, shared=True, source=Increment(0), dtype=torch.float32, device=torch.device("cpu")
    )
    matrix.reserve(rank + batch)
    while min(matrix.ranks) < rank:
        for side in (matrix.forward, matrix.backward):
            matrix.ask(side, torch.randn(batch, width), scale=1.0, update=None, record=True)
    return matrix


# ---- costs of whole jobs --------------------------------------------------------------------------------------


def _training(run: Callable[..., float], width: int, *weights: str) -> Cost:
    """Sixteen layers, 25 steps of 8, after a small network has loaded what there is to load."""
    run(256, 2, 2, 8, *weights)
    return {"seconds": run(width, 16, 25, 8, *weights)}


def _large() -> Cost:
    took, peak = large_run(2**20, 4, 12, 8)
    return {"seconds": took, "peak memory, GiB": peak / 2**30}


def _query(repeat: int = 300) -> Cost:
    matrix, x = revealed(4096, 104, 8), torch.randn(8, 4096)
    took = []
    for _ in range(repeat):
        start = time.perf_counter()
        matrix.ask(matrix.forward, x, scale=1.0, update=None, record=False)
        took.append(time.perf_counter() - start)
    return {"seconds": min(took)}


def _gram(count: int) -> Cost:
    """The NTK of ReLU at infinite depth, its table included, of inputs of different norms."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(count, 64, generator=stream, dtype=torch.float64)
    nfd.kernel(x[:8], kind="ntk", horizon=0.9)
    start = time.perf_counter()
    nfd.kernel(x, kind="ntk")
    return {"seconds": time.perf_counter() - start}


JOBS: Mapping[str, Callable[[], Cost]] = {
    "deferred-4096": partial(_training, unstored_run, 4096),
    "deferred-8192": partial(_training, unstored_run, 8192),
    "structured-4096": partial(_training, unstored_run, 4096, "structured"),
    "structured-8192": partial(_training, unstored_run, 8192, "structured"),
    "dense-4096": partial(_training, dense_run, 4096),
    "dense-8192": partial(_training, dense_run, 8192),
    "query": _query,
    "large": _large,
    "ntk-1000": partial(_gram, 1000),
    "ntk-4000": partial(_gram, 4000),
}


def main() -> None:
    """One line: the cost, and where the library came from."""
    print(json.dumps({"source": nfd.__file__, "cost": JOBS[sys.argv[1]]()}))


if __name__ == "__main__":
    main()
