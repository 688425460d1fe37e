"""Networks with structured weights: large ones, against deferred ones, and as they grow."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import nfd
from benchmarks.counted import FLOAT, compression_work, recorded_work, structured_work
from benchmarks.jobs import recorded, unstored_run
from benchmarks.measure import Round, Row, apart, cold, copies, limits, seconds, shares
from benchmarks.ratio import Ratio
from nfd.wide.basis import SLOTS


def large(turn: Round) -> list[Row]:
    """Time networks whose dense weights would not fit, each in a fresh process."""
    if turn.quick:
        return [_large(65536, 4, 8, 8)]
    return [_large(65536, 8, 25, 8), _large(1048576, 4, 12, 8)]


def _large(width: int, depth: int, steps: int, batch: int) -> Row:
    now = limits(batch, width)
    took, peak = apart(
        f"benchmarks.jobs:large_run({width}, {depth}, {steps}, {batch}, 'structured')"
    )
    row: Row = {
        "width": width,
        "depth": depth,
        "samples": steps * batch,
        "seconds": took,
        "peak memory, GiB": peak / 2**30,
    }
    row |= shares(now, structured_work(width, depth, steps, batch), took)
    # Deferred weights are measured at this size among the large networks, once.
    if width > 2**16:
        return row
    deferred, _ = apart(
        f"benchmarks.jobs:large_run({width}, {depth}, {steps}, {batch}, 'deferred')"
    )
    return row | {"deferred / structured": Ratio.of(deferred / took)}


def updates(turn: Round) -> list[Row]:
    """Time what recorded samples add to a query, and the compression of them into a basis."""
    rows = list[Row]()
    for width in (4096,) if turn.quick else (4096, 8192, 65536):
        rows += [_recorded(width, 200, 8), _compressed(width, 300)]
    return rows


def _recorded(width: int, samples: int, batch: int) -> Row:
    now = limits(batch)
    matrices = [recorded(width, samples) for _ in range(copies(2 * FLOAT * width * samples))]
    x, value = torch.randn(2, batch, width).unbind()
    column = torch.full((SLOTS + samples,), 1e-6)
    took = cold([partial(m.add_update, value, x, "inputs", column) for m in matrices], 5)
    row: Row = {"update": "recorded", "width": width, "samples": samples, "batch": batch}
    return row | {"ms": 1e3 * took} | shares(now, recorded_work(width, samples, batch), took)


def _compressed(width: int, samples: int) -> Row:
    now = limits()
    column = torch.ones(SLOTS + samples)
    column[:SLOTS] = 0.0
    took = math.inf
    for _ in range(3):
        matrix = recorded(width, samples)
        took = min(took, seconds(partial(matrix.compress, [column, None, None])))
    row: Row = {"update": "compression", "width": width, "samples": samples}
    return row | {"ms": 1e3 * took} | shares(now, compression_work(width, samples), took)


def growth(turn: Round) -> list[Row]:
    """Compare the time for twice the samples with the time for the first ones.

    It is linear while the transforms outweigh the directions.
    """
    width = 16384 if turn.quick else 65536
    steps = 5 if turn.quick else 6

    def fastest(count: int) -> float:
        return min(unstored_run(width, 2, count, 8, "structured") for _ in range(2))

    small = fastest(steps)
    large = fastest(2 * steps)
    return [
        {
            "width": width,
            "from, samples": 8 * steps,
            "to, samples": 16 * steps,
            "from, s": small,
            "to, s": large,
            "time / time": Ratio.of(large / small, less_is_better=True),
        }
    ]


def calls(turn: Round) -> list[Row]:
    """Count calls into PyTorch of one step of one layer, as Python sees them.

    A step is a forward pass, a backward pass and plain SGD.
    """
    row: Row = {
        "calls of a structured layer": _calls(nfd.StructuredLinear),
        "deferred": _calls(nfd.DeferredLinear),
    }
    return [row]


def _calls(layer_of: Callable[..., Any], width: int = 4096, batch: int = 8) -> int:
    layer = layer_of(width, width, std=width**-0.5, seed=0)
    optimizer = nfd.SGD(layer.parameters(), lr=0.01)
    seen = 0

    def count(frame: Any, event: str, called: Any) -> None:
        nonlocal seen
        seen += event == "c_call" and _is_torchs(called)

    for k in range(9):
        x, g = torch.randn(2, batch, width, generator=torch.Generator().manual_seed(k)).unbind()
        x.requires_grad_()
        # The first steps make room.
        sys.setprofile(count if k == 8 else None)
        layer(x).backward(g)
        optimizer.step()
        optimizer.zero_grad()
        sys.setprofile(None)
    return seen


def _is_torchs(called: Any) -> bool:
    """Whether a function in C is PyTorch's: of its modules, of a tensor or of its classes."""
    owner = getattr(called, "__self__", None)
    module = str(getattr(called, "__module__", "") or getattr(type(owner), "__module__", ""))
    return isinstance(owner, torch.Tensor) or module.startswith("torch") or "torch" in repr(owner)
