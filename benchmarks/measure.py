"""Tools of every part: the shortest of some timings, the machine's limits, a fresh process."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nfd
from benchmarks.counted import Limits, Work
from benchmarks.ratio import Ratio
from nfd.core.machine import cores

# In a row texts and whole numbers say what was measured, floats are measured, and a Ratio compares.
Row = dict[str, Any]

# float32 numbers, 256 MiB: more than a cache holds.
_READ = 1 << 26
# Numbers of a row that a cache holds with others.
_CACHED = 1 << 13
# Vectors of a thin product, their numbers, and the numbers of a tile.
_VECTORS = 64
_SHORT = 1 << 11
_TILE = 512
# Calls in one timing.
_CALLS = 10
# The sides of the square matrices whose product is timed.
_SIDES = {torch.float32: 1200, torch.float64: 900}


SHARE = "share of the bound"
AT_LARGE = "share at large products"
OF_THE_WORLD = "of the world"
# The variable of the environment that says that others use the machine.
ON_SHARED = "NFD_BENCHMARKS_ON_SHARED_MACHINE"


# Bytes that no cache holds: what a network passes over between two visits of a layer.
COLD = 1 << 27


class UnavailableError(Exception):
    """What a part needs is not on this machine; the row says so, and the rest goes on."""


@dataclass(frozen=True)
class Round:
    """One pass over the parts.

    Attributes:
        number: seeds what may differ between rounds.
        quick: whether only small sizes are wanted.
    """

    number: int
    quick: bool


def best(f: Callable[[], object], repeat: int = 3) -> float:
    """The shortest of some timings, in seconds: other users of the machine disturb it least."""
    return min(seconds(f) for _ in range(repeat))


def cold(calls: Sequence[Callable[[], object]], repeat: int = 3) -> float:
    """The seconds of one of these calls, made in turn: each finds its operands out of the cache."""

    def all_of_them() -> None:
        for call in calls:
            call()

    all_of_them()
    return best(all_of_them, repeat) / len(calls)


def copies(bytes_of_one: float) -> int:
    """How many operands of this size are too large together for a cache."""
    return max(1, math.ceil(COLD / bytes_of_one))


def seconds(f: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = clock()
    f()
    return clock() - start


def clock() -> float:
    """Seconds since some moment: of the world, or of this process where others use the machine."""
    return time.process_time() if ON_SHARED in os.environ else time.perf_counter()


def shares(
    now: Limits, work: Work, took: float, dtype: torch.dtype = torch.float32
) -> dict[str, Ratio]:
    """The share of the bound that was reached, and what large products would allow beyond it."""
    bounds = {SHARE: now.bound(work, dtype)}
    if work.thin:
        bounds[AT_LARGE] = now.of_large_products(work, dtype)
    return {name: Ratio.of(bound / took) for name, bound in bounds.items()}


def limits(batch: int = 8, size: int = 4096) -> Limits:
    """Measure the limits now: a share of the bound compares two numbers of one moment.

    Args:
        batch: the rows of thin products and of transforms.
        size: of transforms, a power of two.
    """
    x, squares = _operands()
    rates = {dtype: 2 * len(A) ** 3 / best(partial(torch.mm, A, A)) for dtype, A in squares.items()}
    small = torch.rand(_CACHED, dtype=torch.float64)
    other = torch.rand(_CACHED, dtype=torch.float64)
    normals = torch.empty(batch, _CACHED)
    return Limits(
        read=4 * _READ / best(x.sum),
        products=rates,
        thin=_thin_rate(batch),
        normals=normals.numel() / _each(normals.normal_),
        transform=_transform(batch, size),
        arccosines=_CACHED / _each(small.acos),
        additions=_CACHED / _each(partial(torch.addcmul, small, other, other, out=small)),
    )


def _thin_rate(batch: int) -> float:
    """Operations per second of products of ``batch`` rows with vectors that are in cache.

    The fastest of inner products and of linear combinations, each as one product and as one for
    each tile of the vectors.
    """
    x = torch.randn(batch, _SHORT)
    coefficients = torch.randn(batch, _VECTORS)
    vectors = torch.randn(_VECTORS, _SHORT)
    tiles = vectors.view(_VECTORS, -1, _TILE).transpose(0, 1).contiguous()
    x_tiles = x.view(batch, -1, _TILE).transpose(0, 1).contiguous()
    for_tiles = coefficients.expand(len(tiles), -1, -1)
    ways = (
        partial(torch.mm, x, vectors.T),
        partial(torch.bmm, x_tiles, tiles.mT),
        partial(torch.mm, coefficients, vectors),
        partial(torch.bmm, for_tiles, tiles),
    )
    return 2 * batch * vectors.numel() / min(_each(way) for way in ways)


def _transform(batch: int, size: int) -> float:
    """Seconds of a fast transform of a batch: a real FFT, or its additions one by one."""
    x = torch.randn(batch, size)
    part = torch.ones(2 * _CACHED)
    addition = _each(partial(part.add_, part)) / part.numel()
    return min(_each(partial(torch.fft.rfft, x)), addition * x.numel() * math.log2(size))


def _each(f: Callable[[], object]) -> float:
    """The shortest mean of some timings of a call that is too short for one."""

    def several() -> None:
        for _ in range(_CALLS):
            f()

    several()
    return best(several, 5) / _CALLS


@lru_cache
def _operands() -> tuple[Tensor, dict[torch.dtype, Tensor]]:
    """What is read, and the squares whose products are timed."""
    squares = {dtype: torch.randn(n, n, dtype=dtype) for dtype, n in _SIDES.items()}
    return torch.randn(_READ), squares


def machine() -> Row:
    """What ran, where and when."""
    speeds = limits()
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory, GiB": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "nfd": nfd.__version__,
        "clock": "of the process" if ON_SHARED in os.environ else OF_THE_WORLD,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "read, GB/s": speeds.read / 1e9,
        "float32 products, GFLOP/s": speeds.products[torch.float32] / 1e9,
        "float64 products, GFLOP/s": speeds.products[torch.float64] / 1e9,
    }


def _processor() -> str:
    """The model of the processor where the system says it; in a virtual machine maybe a family."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict[str, str]()
    for line in lines:
        key, separator, value = line.replace("\t\t:", "\t:").partition("\t: ")
        if separator:
            facts[key] = value
    name = facts.get("model name", platform.machine())
    return f"{name} (family {facts.get('cpu family')}, model {facts.get('model')})"


def apart(call: str, **environment: str) -> Any:
    """The value of ``module:function(arguments)``, plain data, in a fresh process.

    Peaks of memory and cold starts need one. What it prints on the way is not seen.
    """
    module, _, expression = call.partition(":")
    code = (
        f"import json, {module}; value = {module}.{expression}; print(); print(json.dumps(value))"
    )
    env = os.environ | environment
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{call} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
