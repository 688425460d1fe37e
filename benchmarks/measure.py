"""Tools of every part: the shortest of some timings, the machine's limits, a fresh process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nfd
from nfd.core.machine import cores

# In a row texts and whole numbers say what was measured, floats are measured, and a Ratio compares.
Row = dict[str, Any]

# float32 numbers, 256 MiB: more than a cache holds.
_READ = 1 << 26
# The sides of the square matrices whose product is timed.
_SIDES = {torch.float32: 1200, torch.float64: 900}


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


def seconds(f: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Limits:
    """What this machine can do at this moment.

    Attributes:
        read: bytes read per second.
        products: operations of matrix products per second.
    """

    read: float
    products: dict[torch.dtype, float]

    def bound(self, traffic: float, operations: float, dtype: torch.dtype = torch.float32) -> float:
        """The least seconds for so many bytes from memory and operations of matrix products."""
        return max(traffic / self.read, operations / self.products[dtype])


def limits() -> Limits:
    """Measure the limits now: a share of the bound compares two numbers of one moment."""
    x, squares = _operands()
    rates = {dtype: 2 * len(A) ** 3 / best(partial(torch.mm, A, A)) for dtype, A in squares.items()}
    return Limits(4 * _READ / best(x.sum), rates)


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
