"""Where the time of one piece of work goes: matrix products, other operations, page faults, and what lies between.

Every operation that PyTorch runs is recorded with its arguments. The products alone, and the rest alone, are then run
again in their order, one after the other; what their times leave of the whole is spent outside operations: Python,
autograd, NumPy. A page fault is timed by touching fresh memory twice.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import Row, best, limits
from benchmarks.ratio import Ratio

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
_FREE = ("detach", "lift_fresh", "empty", "new_empty", "_local_scalar_dense")
_MAPPED = 1 << 26


@dataclass(frozen=True)
class Call:
    """One operation: what ran, on what, and the bytes that it read and wrote."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traffic: int

    @property
    def operations(self) -> int:
        """Of a matrix product: two per multiply-add; 0 for anything else."""
        if not self.is_product:
            return 0
        a, b = [x for x in self.args if isinstance(x, Tensor)][-2:]
        return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices or vectors."""
        return _name(self.func) in _PRODUCTS

    def again(self) -> None:
        """Run it once more on the same tensors."""
        self.func(*self.args, **self.kwargs)


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation but views, while it is entered; ``keep=False`` holds sums and no tensors."""

    def __init__(self, keep: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep, self.calls, self.count, self.products = keep, list[Call](), 0, dict[torch.dtype, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and record it."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view and _name(func) not in _FREE:
            self._record(func, args, kwargs or {}, out)
        return out

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        tensors = {id(x): x for x in (*_tensors(args), *_tensors((out,)))}
        call = Call(func, args, kwargs, sum(x.numel() * x.element_size() for x in tensors.values()))
        self.count += 1
        if call.is_product:
            dtype = next(iter(_tensors(args))).dtype
            self.products[dtype] = self.products.get(dtype, 0) + call.operations
        if self.keep:
            self.calls.append(call)


def account(path: str, work: Callable[[], object], repeat: int = 5) -> Row:
    """The accounts of ``work``, which can be done again and again."""
    work()
    ledger = Ledger()
    with ledger:
        work()
    now, took = limits(), best(work, repeat)
    products = [call for call in ledger.calls if call.is_product]
    others = [call for call in ledger.calls if not call.is_product]
    alone, rest = (best(lambda c=calls: _again(c), repeat) for calls in (products, others))  # type: ignore[misc]
    faults = _faults(work)
    least = sum(operations / now.products[dtype] for dtype, operations in ledger.products.items())
    return {
        "path": path,
        "ms": 1e3 * took,
        "operations": float(ledger.count),
        "products": float(len(products)),
        "GFLOP": sum(ledger.products.values()) / 1e9,
        "GB": sum(call.traffic for call in ledger.calls) / 1e9,
        "products alone": alone / took,
        "other operations alone": rest / took,
        "outside operations": 1 - (alone + rest) / took,
        "page faults": faults,
        "their share": faults * fault_seconds() / took,
        "products at the measured rate": Ratio.of(least / took),
    }


def count(work: Callable[[], object]) -> dict[torch.dtype, int]:
    """Operations of the matrix products of ``work``, by type of number."""
    ledger = Ledger(keep=False)
    with ledger:
        work()
    return ledger.products


def fault_seconds() -> float:
    """Seconds of one page fault: the first touch of fresh memory against the second."""
    with mmap.mmap(-1, _MAPPED) as fresh:
        held = np.frombuffer(fresh, np.uint8)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        times = []
        for _ in range(2):
            start = time.perf_counter()
            held[:] = 1
            times.append(time.perf_counter() - start)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del held
    return max(0.0, times[0] - times[1]) / max(1, faults)


def _faults(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@torch.no_grad()
def _again(calls: Sequence[Call]) -> None:
    for call in calls:
        call.again()


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__).rstrip("_")


def _tensors(values: Any) -> list[Tensor]:
    found = list[Tensor]()
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found
