"""Kernels and Definition 1: seconds, memory, and variance for the same work."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor

import nfd
from nfd.core.statistics import interval
from nfd.data.digits import digits

Row = dict[str, Any]
_STEPS = (1, 2, 4, 8, 12, 23)

_GRAM = """
import time, torch, nfd
from nfd.core.machine import peak_memory
g = torch.Generator().manual_seed(0)
x = torch.randn({count}, 64, generator=g, dtype=torch.float64) * (0.3 + torch.rand({count}, 1, generator=g))
nfd.kernel(x[:8], activation="{name}", kind="{kind}", horizon=0.9)
before, start = peak_memory(), time.perf_counter()
_, error = nfd.kernel(x, activation="{name}", kind="{kind}", return_error=True)
print(time.perf_counter() - start, (peak_memory() - before) / (8 * {count} ** 2), error)
"""


def gram(name: str, kind: str, count: int) -> Row:
    """One Gram matrix of inputs of different norms in a fresh process, its table included."""
    code = _GRAM.format(name=name, kind=kind, count=count)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, memory, error = map(float, done.stdout.split())
    return {"kernel": f"{kind} {name}", "inputs": count, "seconds": seconds, "memory / result": memory, "error": error}


def sampling(activation: str, eta_c: float, solutions: int) -> list[Row]:
    """Variance of the outputs by plain sampling over that by each other, with 95 % intervals (jackknife)."""
    x, y = _problem(24)
    found = {
        kind: torch.stack([_solution(x, y, activation, eta_c, kind, seed) for seed in range(solutions)])
        for kind in ("plain", "antithetic", "sobol")
    }

    def gain(k: int | slice) -> Any:
        return lambda a, b: (a[:, k].var(0).mean() / b[:, k].var(0).mean()).log()

    rows = []
    for kind in ("antithetic", "sobol"):
        row: Row = {"activation, eta_c": f"{activation}, {eta_c:g}", "sampling": kind}
        steps: dict[str, int | slice] = {**{str(s): s for s in _STEPS}, "1 to 23 together": slice(1, None)}
        for name, k in steps.items():
            ratio = interval(gain(k), found["plain"], found[kind])
            row[name] = f"{math.exp(ratio.value):.2f} [{math.exp(ratio.low):.2f}, {math.exp(ratio.high):.2f}]"
        rows.append(row)
    return rows


def definition_1(activation: str = "relu", eta_c: float = 0.1) -> Row:
    """Time of ``solve_nfd`` over that of deferred networks with independent feedback, for one standard error."""
    x, y = _problem(24)
    start = time.perf_counter()
    solved = nfd.solve_nfd(x, y, grid=16, activation=activation, eta_c=eta_c, particles=4096, replicates=16)
    particles = time.perf_counter() - start
    start = time.perf_counter()
    networks = nfd.predict(
        x, y, depth=16, activation=activation, eta_c=eta_c, loss="mse", feedback="independent", width=4096,
        replicates=16,
    )  # fmt: skip
    deferred = time.perf_counter() - start
    errors = float(solved.outputs_stderr.square().mean()), float(networks.outputs_stderr.square().mean())
    return {
        "particles, seconds": particles,
        "its stderr": math.sqrt(errors[0]),
        "deferred, seconds": deferred,
        "its stderr ": math.sqrt(errors[1]),
        "time ratio at one stderr": particles * errors[0] / (deferred * errors[1]),
    }


def many_samples() -> Row:
    """400 samples, the most that particles are made for."""
    x, y = _problem(400)
    start = time.perf_counter()
    nfd.solve_nfd(x, y, grid=8, activation="relu", particles=1024, replicates=2)
    return {"samples": 400, "grid": 8, "particles": 1024, "replicates": 2, "seconds": time.perf_counter() - start}


def _problem(count: int) -> tuple[Tensor, Tensor]:
    data = digits()
    return data.inputs[:count].double(), torch.where(data.labels[:count] % 2 == 0, 1.0, -1.0).double()


def _solution(x: Tensor, y: Tensor, activation: str, eta_c: float, kind: str, seed: int) -> Tensor:
    return nfd.solve_nfd(
        x, y, grid=16, activation=activation, eta_c=eta_c, particles=2048, replicates=2, seed=seed, sampling=kind
    ).outputs
