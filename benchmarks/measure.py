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
from nfd.data.digits import digits
from nfd.nets.frame import Frame, add_combination, inner, tiled

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


def products(width: int, rank: int, batch: int) -> Row:
    """The two thin products that every pass over a factor is, against what bounds them."""
    frame = Frame(width, dtype=torch.float32, device=torch.device("cpu"))
    frame.append(tiled(torch.randn(rank, width)))
    x = tiled(torch.randn(batch, width)).contiguous()
    c = torch.randn(batch, rank)
    limits = machine()
    flop, size = 2.0 * width * rank * batch, 4.0 * width * rank
    bound = max(flop / limits["matmul_GFLOP_per_s"], size / limits["read_GB_per_s"]) / 1e9
    repeat = max(5, int(2e10 / flop))
    read, write = (
        best(lambda: inner(x, frame.tiles), repeat),
        best(lambda: add_combination(x, c, frame.tiles, alpha=1e-9), repeat),
    )
    return {
        "width": width,
        "rank": rank,
        "batch": batch,
        "inner_fraction_of_bound": bound / read,
        "combination_fraction_of_bound": bound / write,
        "bound": "matrix products" if bound == flop / limits["matmul_GFLOP_per_s"] / 1e9 else "memory",
    }


def alone(width: int, depth: int, steps: int, batch: int) -> Row:
    """Seconds and peak memory of one large run in a process of its own."""
    code = (
        "import json, resource; from benchmarks.measure import deferred_run; "
        f"s = deferred_run({width}, {depth}, {steps}, {batch}); "
        "print(json.dumps([s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))"
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
        return nfd.predict(
            x, y, depth=16, activation="tanh", eta_c=0.3, loss="mse", width=16384, replicates=8, memory="4 GiB"
        )

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

    def exponent(axis: str, sizes: tuple[int, int], run: Callable[[int], float]) -> float:
        small, large = (min(run(size) for _ in range(repeat)) for size in sizes)
        return math.log(large / small) / math.log(sizes[1] / sizes[0])

    return {
        "width": exponent("width", (16384, 65536), lambda n: deferred_run(n, 2, 10, 8)),
        "depth": exponent("depth", (8, 32), lambda L: deferred_run(4096, L, 5, 8)),
        "samples": exponent("samples", (800, 1600), lambda N: deferred_run(8192, 1, N // 16, 16)),
    }
