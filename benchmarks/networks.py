"""Networks with deferred weights, against dense ones, against a bound, and as they grow."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import nfd
from benchmarks.counted import (
    FLOAT,
    Work,
    deferred_work,
    query_work,
    structured_muon_work,
    structured_work,
)
from benchmarks.jobs import dense_run, revealed, unstored_run
from benchmarks.measure import Round, Row, apart, cold, copies, limits, seconds, shares
from benchmarks.ratio import Ratio
from nfd.core.names import NetworkWeights
from nfd.wide.lazy_gaussian import LazyGaussian

_MUONS_WORK: dict[NetworkWeights, Callable[[int, int, int, int], Work]] = {
    "deferred": partial(deferred_work, is_muon=True),
    "structured": structured_muon_work,
}


def against_dense(turn: Round, weights: NetworkWeights = "deferred") -> list[Row]:
    """Time networks of depth 16 over 25 steps of 8, float32, initialisation included."""
    unstored_run(256, 2, 2, 8, weights)
    sizes = [4096] if turn.quick else [4096, 8192]
    steps = 5 if turn.quick else 25
    return [_against_dense(n, 16, steps, 8, weights) for n in sizes]


def _against_dense(width: int, depth: int, steps: int, batch: int, weights: NetworkWeights) -> Row:
    now = limits(batch, width)
    ours = unstored_run(width, depth, steps, batch, weights)
    dense = dense_run(width, depth, steps, batch)
    row: Row = {
        "width": width,
        "depth": depth,
        "steps": steps,
        "batch": batch,
        f"{weights}, s": ours,
        "dense, s": dense,
        f"dense / {weights}": Ratio.of(dense / ours),
    }
    work_of = deferred_work if weights == "deferred" else structured_work
    return row | shares(now, work_of(width, depth, steps, batch), ours)


def by_muon(turn: Round) -> list[Row]:
    """Time the same networks trained by Muon, with deferred and with structured weights."""
    for weights in _MUONS_WORK:
        unstored_run(256, 2, 2, 8, weights, by_muon=True)
    sizes = [4096] if turn.quick else [4096, 8192]
    steps = 5 if turn.quick else 25
    return [_by_muon(n, 16, steps, 8, weights) for n in sizes for weights in _MUONS_WORK]


def _by_muon(width: int, depth: int, steps: int, batch: int, weights: NetworkWeights) -> Row:
    now = limits(batch, width)
    took = unstored_run(width, depth, steps, batch, weights, by_muon=True)
    row: Row = {
        "weights": weights,
        "width": width,
        "depth": depth,
        "steps": steps,
        "batch": batch,
        "seconds": took,
    }
    return row | shares(now, _MUONS_WORK[weights](width, depth, steps, batch), took)


def queries(turn: Round) -> list[Row]:
    """Time one whole query of some ranks, nothing recorded."""
    return [
        _query(width, rank, batch)
        for width, rank, batch in ((4096, 104, 8), (65536, 104, 8), (65536, 96, 32))
    ]


def _query(width: int, rank: int, batch: int) -> Row:
    matrices = [revealed(width, rank, batch) for _ in range(copies(4 * FLOAT * width * rank))]
    x = torch.randn(batch, width)
    now = limits(batch)
    work = query_work(width, rank, batch)
    ask = partial(LazyGaussian.ask, x=x, scale=1.0, update=None, record=False)
    took = cold([partial(ask, matrix, matrix.forward) for matrix in matrices], 7)
    row = {
        "width": width,
        "directions": rank,
        "batch": batch,
        "query, ms": 1e3 * took,
        "bytes at the measured rate, ms": 1e3 * work.traffic / now.read,
        "products at the measured rate, ms": 1e3 * work.thin / now.thin,
        "normal numbers at the measured rate, ms": 1e3 * work.normals / now.normals,
    }
    return row | shares(now, work, took)


def large(turn: Round) -> list[Row]:
    """Time networks whose dense weights would not fit, each in a fresh process."""
    if turn.quick:
        return [_large(65536, 4, 8, 8)]
    rows = [_large(65536, 8, 25, 8)]
    # The largest one takes long: once.
    if turn.number == 0:
        rows.append(_large(1048576, 4, 12, 8))
    return rows


def _large(width: int, depth: int, steps: int, batch: int) -> Row:
    now = limits(batch)
    took, peak = apart(f"benchmarks.jobs:large_run({width}, {depth}, {steps}, {batch})")
    # Four vectors per layer and sample.
    factors = 4 * 4 * width * depth * steps * batch
    row = {
        "width": width,
        "depth": depth,
        "samples": steps * batch,
        "seconds": took,
        "peak memory, GiB": peak / 2**30,
        "dense weights, GB": 4e-9 * width**2 * depth,
        "factors / peak memory": Ratio.of(factors / peak),
    }
    return row | shares(now, deferred_work(width, depth, steps, batch), took)


def reference_problem(turn: Round) -> list[Row]:
    """Problem A of the tests by wide networks, against dense ones of an eighth of their width.

    Eight times as many of those are needed for the same standard error, since variances fall as one
    over the width; their bias, eight times as large, is not counted.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.from_numpy(raw.data[:12] / 8 - 1).float()
    y = torch.from_numpy(np.where(raw.target[:12] % 2 == 0, 1.0, -1.0)).float()
    width, replicates, small = (8192, 2, 2048) if turn.quick else (32768, 4, 4096)
    now = limits(1)
    family = nfd.resnets(64, 1, activation="tanh")
    task = nfd.Task(list(zip(x[:, None], y[:, None], strict=True)), loss="mse")
    predictions = list[Any]()

    def predict() -> None:
        predictions.append(
            nfd.predict(
                family,
                task,
                0.3,
                depth=16,
                width=width,
                replicates=replicates,
                weights="deferred",
                outputs=True,
            )
        )

    took = seconds(predict)
    dense = seconds(lambda: _plain_tanh(x, y, small))
    return [
        {
            "width": width,
            "replicates": replicates,
            "steps": 12,
            "seconds": took,
            "largest standard error": float(predictions[0].outputs_stderr.max()),
            f"one dense network of width {small:,}, s": dense,
            "dense networks for that error / ours": Ratio.of(
                dense * replicates * width / small / took
            ),
        }
        | shares(now, deferred_work(width, 16, 12, 1) * replicates, took)
    ]


def _plain_tanh(
    x: torch.Tensor, y: torch.Tensor, n: int, depth: int = 16, eta_c: float = 0.3
) -> None:
    """Problem A in plain PyTorch: autograd and ``torch.optim.SGD``."""
    net = nfd.ResNet(x.shape[1], 1, n, depth, activation="tanh")
    optimizer = torch.optim.SGD(net.param_groups(eta_c))
    for inputs, target in zip(x, y, strict=True):
        optimizer.zero_grad()
        (0.5 * (net(inputs[None]).squeeze() - target).square()).backward()
        optimizer.step()


def growth(turn: Round) -> list[Row]:
    """Compare the time at a larger size with the time at a smaller one."""
    steps = 5 if turn.quick else 10
    samples = (400, 800) if turn.quick else (800, 1600)
    return [
        _growth("width", (16384, 65536), lambda n: unstored_run(n, 2, steps, 8), steps),
        _growth("depth", (8, 32), lambda L: unstored_run(4096, L, 5, 8), 5),
        _growth("samples", samples, lambda N: unstored_run(8192, 1, N // 16, 16), 0),
    ]


def _growth(axis: str, sizes: tuple[int, int], run: Callable[[int], float], steps: int) -> Row:
    small, large = (min(run(size), run(size)) for size in sizes)
    return {
        "size": axis,
        "from": sizes[0],
        "to": sizes[1],
        "steps": steps or f"{sizes[0] // 16} and {sizes[1] // 16}",
        "from, s": small,
        "to, s": large,
        "time / time": Ratio.of(large / small, less_is_better=True),
        "exponent": math.log(large / small) / math.log(sizes[1] / sizes[0]),
    }
