"""Jobs for several parts: networks that are built and trained, and a matrix that is revealed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import nfd
from benchmarks.dense import DenseBaseline
from benchmarks.measure import clock
from nfd.core.machine import peak_memory
from nfd.core.random import Increment
from nfd.data import digits
from nfd.wide.lazy_gaussian import LazyGaussian
from nfd.wide.learned import RandomPlusLowRank

if TYPE_CHECKING:
    from nfd.core.names import NetworkWeights

ETA_C = 0.1
_MUONS_RATE = 1e-3


def unstored_run(
    width: int,
    depth: int,
    steps: int,
    batch: int,
    weights: NetworkWeights = "deferred",
    *,
    by_muon: bool = False,
) -> float:
    """Seconds to build and train a network without stored weights, by SGD or by Muon."""
    x, y = digits().batches(batch, steps, 0)
    start = clock()
    net = nfd.ResNet(64, 10, width, depth, weights=weights)
    net.reserve(steps * batch)
    if by_muon:
        # Of every matrix of the network, at a rate at which it stays finite.
        optimizer: torch.optim.Optimizer = nfd.Muon(net.parameters(), lr=_MUONS_RATE)
    else:
        optimizer = nfd.SGD(net.param_groups(ETA_C))
    for inputs, targets in zip(x, y, strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return clock() - start


def dense_run(width: int, depth: int, steps: int, batch: int) -> float:
    """Seconds to build and train the plain dense network on the same batches."""
    x, y = digits().batches(batch, steps, 0)
    start = clock()
    net = DenseBaseline.random(64, 10, width, depth, ETA_C)
    for inputs, targets in zip(x, y, strict=True):
        net.step(inputs, targets)
    return clock() - start


def large_run(
    width: int, depth: int, steps: int, batch: int, weights: NetworkWeights = "deferred"
) -> tuple[float, float]:
    """Seconds and peak memory in bytes, of a process that does nothing else."""
    return unstored_run(width, depth, steps, batch, weights), peak_memory()


def revealed(width: int, rank: int, batch: int) -> LazyGaussian:
    """A matrix of which this many directions are known on each side."""
    matrix = LazyGaussian(
        width,
        width,
        shared=True,
        source=Increment(0),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    matrix.reserve(rank + batch)
    while min(matrix.ranks) < rank:
        for side in (matrix.forward, matrix.backward):
            matrix.ask(side, torch.randn(batch, width), scale=1.0, update=None, record=True)
    return matrix


def recorded(width: int, samples: int) -> RandomPlusLowRank:
    """The matrices of a structured layer with this many samples, none compressed."""
    matrix = RandomPlusLowRank(
        width,
        width,
        shared=True,
        space=None,
        source=Increment(0),
        resolution=0.0,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    stream = torch.Generator().manual_seed(0)
    matrix.record(*torch.randn(2, samples, width, generator=stream).unbind())
    matrix.stepped = samples
    return matrix
