"""The process around a call of ours: modes of PyTorch, threads, memory."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


# ---- The modes of PyTorch around a call of ours, and how our computations stay as they are


_AUTOCASTS = ("cpu", "cuda", "mps", "xpu")
_TOLD: ContextVar[torch.dtype | None] = ContextVar("told", default=None)  # PyTorch's default type outside of our calls


@contextmanager
def undisturbed() -> Iterator[None]:
    """No autocast, no inference mode, gradients, tensors on the CPU and in single precision unless said otherwise.

    Also a decorator: ``@undisturbed()``.
    """
    import torch  # the command line looks at its options before it loads PyTorch

    with ExitStack() as stack:
        _enter_gradients(stack)
        if torch.get_default_dtype() != torch.float32:
            stack.enter_context(told_type(torch.get_default_dtype()))
            stack.enter_context(default_type(torch.float32))
        if torch.get_default_device() != torch.device("cpu"):
            stack.enter_context(torch.device("cpu"))
        yield


def users_type() -> torch.dtype:
    """PyTorch's default type as the caller of the outermost call of ours has set it: for models of others."""
    import torch

    return _TOLD.get() or torch.get_default_dtype()


@contextmanager
def told_type(dtype: torch.dtype) -> Iterator[None]:
    """What ``users_type`` says inside, also where our own computations have another default."""
    token = _TOLD.set(dtype)
    try:
        yield
    finally:
        _TOLD.reset(token)


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Another default type of PyTorch."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def gradients() -> Iterator[None]:
    """No autocast, no inference mode, gradients: for models of others, which may want a default device or type.

    Also a decorator: ``@gradients()``.
    """
    with ExitStack() as stack:
        _enter_gradients(stack)
        yield


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where it was made in inference mode a copy, which may be trained on."""
    return tensor.clone() if tensor.is_inference() else tensor


def _enter_gradients(stack: ExitStack) -> None:
    import torch

    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    for kind in _AUTOCASTS:
        with suppress(RuntimeError):  # a kind of device that this PyTorch does not know
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))


# ---- The process and the machine: memory, cores, and how many threads PyTorch takes


_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # what Linux lets a container have
_SMALL = 2**23  # multiplications, 1 ms of one core; 2**22 took twice as long beside busy processes


def peak_memory() -> float:
    """Largest resident size of this process so far in bytes; not a number on Windows, which does not tell.

    On Linux from /proc, because there getrusage also counts what the parent held before it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))):
        return 1024.0 * int(peak[1])
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def memory_of(device: torch.device) -> int:
    """Bytes that a GPU has, or the machine, or the container that this process runs in; on Windows no bound."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    known = hasattr(os, "sysconf")  # not on Windows
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else sys.maxsize
    allowed = _CONTAINER.read_text(encoding="ascii").strip() if _CONTAINER.exists() else ""
    return min(most, int(allowed)) if allowed.isdigit() else most


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch computes with this many threads in the block, and with as many as before after it.

    Where it is not loaded yet nothing happens: the environment of a worker has the number for when it is.
    """
    torch = sys.modules.get("torch")
    before = count if torch is None else torch.get_num_threads()
    if torch is None or before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(multiplications: float) -> AbstractContextManager[None]:
    """One thread for a block of so few multiplications; those that there are for more.

    A second thread saves a fraction of a millisecond of a small block where cores are idle. Where they are busy each
    operation waits, spinning, until the second thread has its turn: that took 50 ms a block.
    """
    return threads(1) if multiplications < _SMALL else nullcontext()
