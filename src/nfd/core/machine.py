"""The process and the machine: memory, cores, and how many threads PyTorch takes."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # what Linux lets a container have
_SMALL = 2**23  # multiplications, 1 ms of one core; 2**22 took twice as long beside busy processes


def peak_memory() -> float:
    """Return the largest resident size of this process so far in bytes.

    It is not a number on Windows, which does not show it.

    On Linux from /proc, because there getrusage also counts what the parent held before it started
    this process.
    """
    status = Path("/proc/self/status")
    if status.exists() and (
        peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
    ):
        return 1024.0 * int(peak[1])
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def memory_of(device: torch.device) -> int:
    """Return the bytes that a GPU has, or the machine or container of this process.

    On Windows the number is ``sys.maxsize``.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    most = sys.maxsize
    # Windows has no sysconf.
    if hasattr(os, "sysconf"):
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not _CONTAINER.exists():
        return most
    # A container without a limit says "max".
    allowed = _CONTAINER.read_text(encoding="ascii").strip()
    return min(most, int(allowed)) if allowed.isdigit() else most


def cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch computes with this many threads in the block, and with as many as before after it.

    Where PyTorch is not loaded yet nothing happens: a worker's environment has the number that it
    reads when it is loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(multiplications: float) -> AbstractContextManager[None]:
    """One thread for a block of so few multiplications; those that there are for more.

    A second thread saves a fraction of a millisecond of a small block where cores are idle. Where
    they are busy each operation waits, spinning, until the second thread has its turn: that took 50
    ms a block.
    """
    if multiplications < _SMALL:
        return threads(1)
    return nullcontext()
