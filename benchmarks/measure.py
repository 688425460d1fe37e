"""What is measured, each part a function from nothing to rows."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import nfd
from benchmarks.dense import DenseBaseline
from nfd.core.random import Increment
from nfd.data.digits import digits
from nfd.nets.revealed import RevealedMatrix

Row = dict[str, Any]
ETA_C = 0.1


def best(f: Callable[[], object], repeat: int = 3) -> float:
    """The shortest of some timings, in seconds: the one least disturbed by other users of the machine."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def machine() -> Row:
    """Measured limits: read bandwidth of the memory and float32 matrix-product rate."""
    x = torch.randn(100_000_000)
    A = torch.randn(3000, 3000)
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "read_GB_per_s": 4 * x.numel() / best(x.sum, 5) / 1e9,
        "matmul_GFLOP_per_s": 2 * 3000**3 / best(lambda: A @ A, 5) / 1e9,
    }


def deferred_run(width: int, depth: int, steps: int, batch: int, feedback: str = "shared") -> float:
    """Seconds to build and train a network with deferred weights."""
    x, y = digits().batches(batch, steps, 0)
    start = time.perf_counter()
    net = nfd.ResNet(64, 10, width, depth, weights="deferred", feedback=feedback)  # type: ignore[arg-type]
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


def against_dense(width: int, repeat: int) -> Row:
    """Deferred against dense, L = 16, 25 steps of 8, float32, initialisation included; runs alternate."""
    deferred_run(256, 2, 2, 8)
    pairs = [(deferred_run(width, 16, 25, 8), dense_run(width, 16, 25, 8)) for _ in range(repeat)]
    deferred, dense = (min(column) for column in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    return {"width": width, "deferred_s": deferred, "dense_s": dense, "ratio": dense / deferred, "ratios": ratios}


def query(width: int, rank: int, batch: int) -> Row:
    """One whole query at a given rank against what bounds its passes over the factors.

    A query passes six times over factors of ``4 n r`` bytes, ``2 n r b`` operations each, the first with twice the
    rows. The bound is the larger of the bytes at the measured bandwidth and the operations at the measured rate.
    """
    matrix = RevealedMatrix(
        width, width, shared=True, source=Increment(0), tolerance=1e-5, dtype=torch.float32, device=torch.device("cpu")
    )
    while min(matrix.ranks) < rank:
        for side in (matrix.forward, matrix.backward):
            matrix.ask(side, torch.randn(batch, width), scale=1.0, update=None, record=True)
    x = torch.randn(batch, width)
    limits = machine()
    memory = 6 * 4e-9 * width * rank / limits["read_GB_per_s"]
    products = 7 * 2e-9 * width * rank * batch / limits["matmul_GFLOP_per_s"]
    repeat = max(5, int(1e10 / (width * rank * batch)))
    seconds = best(lambda: matrix.ask(matrix.forward, x, scale=1.0, update=None, record=False), repeat)
    return {
        "width": width,
        "rank": rank,
        "batch": batch,
        "milliseconds": 1e3 * seconds,
        "bound_ms": 1e3 * max(memory, products),
        "fraction_of_bound": max(memory, products) / seconds,
        "bound_by": "matrix products" if products > memory else "memory",
    }


def alone(width: int, depth: int, steps: int, batch: int) -> Row:
    """Seconds and peak memory of one large run in a process of its own."""
    code = (
        "import json; from benchmarks.measure import deferred_run; from nfd.core.machine import peak_memory; "
        f"s = deferred_run({width}, {depth}, {steps}, {batch}); print(json.dumps([s, peak_memory() / 2**30]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, peak = json.loads(done.stdout)
    return {
        "width": width,
        "depth": depth,
        "samples": steps * batch,
        "seconds": seconds,
        "peak_GiB": peak,
        "dense_weights_GB": 4e-9 * width**2 * depth,
    }


def reference_problem() -> Row:
    """Problem A of the tests to a standard error of 0.004 on every output."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x, y = raw.data[:12] / 8 - 1, np.where(raw.target[:12] % 2 == 0, 1.0, -1.0)

    def solve() -> nfd.Prediction:
        return nfd.predict(x, y, depth=16, activation="tanh", eta_c=0.3, loss="mse", width=32768, replicates=4)

    solve()
    runs = [solve() for _ in range(3)]
    fastest = min(runs, key=lambda p: p.seconds)
    return {
        "seconds": fastest.seconds,
        "largest_stderr": float(fastest.outputs_stderr.max()),
        "width": fastest.width,
        "replicates": fastest.replicates,
    }


def growth(repeat: int = 3) -> Row:
    """Exponents of the time in width, depth and samples seen, from the two largest sizes of each."""

    def exponent(sizes: tuple[int, int], run: Callable[[int], float]) -> float:
        small, large = (min(run(size) for _ in range(repeat)) for size in sizes)
        return math.log(large / small) / math.log(sizes[1] / sizes[0])

    return {
        "width": exponent((16384, 65536), lambda n: deferred_run(n, 2, 10, 8)),
        "depth": exponent((8, 32), lambda L: deferred_run(4096, L, 5, 8)),
        "samples": exponent((800, 1600), lambda N: deferred_run(8192, 1, N // 16, 16)),
    }
