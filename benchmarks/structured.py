"""Networks with structured weights: against dense and deferred ones, and as they grow."""

from __future__ import annotations

from benchmarks.measure import Round, Row, apart
from benchmarks.networks import dense_run, large_run, unstored_run
from benchmarks.ratio import Ratio


def structured_run(width: int, depth: int, steps: int, batch: int) -> float:
    """Seconds to build and train a network with structured weights."""
    return unstored_run(width, depth, steps, batch, "structured")


def against_dense(turn: Round) -> list[Row]:
    """L = 16, 25 steps of 8, float32, initialisation included."""
    structured_run(256, 2, 2, 8)
    sizes = [4096] if turn.quick else [4096, 8192]
    return [_against_dense(n, 16, 5 if turn.quick else 25, 8) for n in sizes]


def _against_dense(width: int, depth: int, steps: int, batch: int) -> Row:
    ours, dense = (run(width, depth, steps, batch) for run in (structured_run, dense_run))
    return {
        "width": width,
        "depth": depth,
        "steps": steps,
        "batch": batch,
        "structured, s": ours,
        "dense, s": dense,
        "dense / structured": Ratio.of(dense / ours),
    }


def large(turn: Round) -> list[Row]:
    """Networks whose dense weights would not fit, each in a process of its own."""
    if turn.quick:
        return [_large(65536, 4, 8, 8)]
    return [_large(65536, 8, 25, 8), _large(1048576, 4, 12, 8)]


def _large(width: int, depth: int, steps: int, batch: int) -> Row:
    took, peak = apart(f"{large_run.__module__}:large_run({width}, {depth}, {steps}, {batch}, 'structured')")
    row: Row = {
        "width": width,
        "depth": depth,
        "samples": steps * batch,
        "seconds": took,
        "peak memory, GiB": peak / 2**30,
    }
    if width > 2**16:  # deferred weights are measured at this size among the large networks, once
        return row
    deferred, _ = apart(f"{large_run.__module__}:large_run({width}, {depth}, {steps}, {batch}, 'deferred')")
    return row | {"deferred / structured": Ratio.of(deferred / took)}


def growth(turn: Round) -> list[Row]:
    """Time at twice the samples over that at the first: linear while the transforms outweigh the directions."""
    width, steps = (16384, 5) if turn.quick else (65536, 6)
    small, large = (min(structured_run(width, 2, k, 8) for _ in range(2)) for k in (steps, 2 * steps))
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
