"""What a check saw at several steps: the networks after each of them, and how meters grow from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.statistics import log_slope
from nfd.core.tables import Row
from nfd.meters.table import METERS, change

_SIZE = ("width", "depth", "seed")


def after(runs: Sequence[Row], step: int) -> list[Row]:
    """The networks as they were after a step: their size, their meters, and what is unread."""
    known = (*_SIZE, "unread", "start")
    return [{name: run[name] for name in known if name in run} | _meters(run, step) for run in runs]


def of_stack(runs: Sequence[Row], stack: str) -> list[Row]:
    """The networks as if this stack of their blocks were all of them; of several, ``""`` has what is of no stack."""
    seen = []
    for run in runs:
        own = run if not stack else {k: run[k] for k in _SIZE} | run.get("stacks", {}).get(stack, {})
        seen.append(own | {"rows": [row for row in run["rows"] if row.get("stack", "") == stack]})
    return seen


def stacks_of(runs: Sequence[Row]) -> list[str]:
    """The names of the stacks of some network, after ``""`` for the network itself."""
    return list(dict.fromkeys(["", *(stack for run in runs for stack in run.get("stacks", ()))]))


def growth(runs: Sequence[Row], steps: Sequence[int]) -> list[Row]:
    """One row per meter and stack: the exponent p of ``meter ~ step^p``, averaged over networks in logarithms.

    The steps of one network depend on each other, so that each network gives one slope; the interval comes from how
    they differ, by Student's t.
    """
    if len(steps) < 2:
        return []
    rows = []
    for stack in stacks_of(runs):
        slopes = {meter: list(_slopes(of_stack(runs, stack), steps, meter)) for meter in METERS}
        rows += [
            _row(meter, steps, mean(torch.tensor(own))) | ({"stack": stack} if stack else {})
            for meter, own in slopes.items()
            if len(own) > 1
        ]
    return rows


def _meters(run: Row, step: int) -> dict[str, Any]:
    return next((row for row in run["rows"] if row["step"] == step and not row["matrix"]), {})


def _slopes(runs: Sequence[Row], steps: Sequence[int], meter: str) -> Iterator[float]:
    for run in runs:
        values = [_meters(run, step).get(meter, math.nan) for step in steps]
        if all(math.isfinite(value) and value > 0 for value in values):
            yield float(log_slope(steps, torch.tensor(values, dtype=torch.float64)))


def _row(meter: str, steps: Sequence[int], slope: Interval) -> Row:
    known = slope if math.isfinite(slope.stderr) else UNKNOWN
    text = f"{change(slope, 'step', steps)}."
    return {"meter": meter, "axis": "step", "slope": known.value} | known.limits | {"cause": text}
