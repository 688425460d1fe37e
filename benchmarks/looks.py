"""What a look at the meters of a network costs, against what it has to read."""

from __future__ import annotations

from functools import partial

import torch

import nfd
from benchmarks.counted import look_work
from benchmarks.measure import Round, Row, best, limits, shares
from nfd.meters.updates import Baseline

DEPTH = 4


def looks(turn: Round) -> list[Row]:
    """Time looks at networks of two-layer blocks, after their weights moved."""
    widths = (1024,) if turn.quick else (1024, 4096)
    return [_look(width, DEPTH, 64) for width in widths]


def _look(width: int, depth: int, rows: int) -> Row:
    now = limits()
    family = nfd.resnets(64, 10, block="two-layer")
    member = family.member(width, depth)
    sample = torch.randn(rows, 64)
    baseline = Baseline(member, sample)
    with torch.no_grad():
        for parameter in member.module.parameters():
            parameter.mul_(1.01)
    took = best(partial(baseline.look), 2)
    work = look_work(width, len(baseline.inner) + len(baseline.outer), len(baseline.inner), rows)
    row: Row = {"width": width, "depth": depth, "rows": rows, "seconds": took}
    return row | shares(now, work, took)
