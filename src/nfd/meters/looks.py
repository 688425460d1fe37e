"""What a check saw at several steps: the networks after each of them, and how meters grow from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nfd.core.statistics import UNKNOWN, Interval, log_slope, mean
from nfd.core.tables import Row
from nfd.meters.table import METERS, change

_SIZE = ("width", "depth", "seed")


def after(runs: Sequence[Row], step: int) -> list[Row]:
    """The networks as they were after a step: their size, their meters, those of the first step, and what is unread."""
    seen = []
    for run in runs:
        first = {"first": run["first"]} if "first" in run and step > 1 else {}
        known = {name: run[name] for name in (*_SIZE, "unread", "start") if name in run}
        seen.append(known | first | _meters(run, step))
    return seen


def growth(runs: Sequence[Row], steps: Sequence[int]) -> list[Row]:
    """One row per meter: the exponent p of ``meter ~ step^p``, the mean over networks of their slopes in logarithms.

    The steps of one network depend on each other, so that each network gives one slope; the interval comes from how
    they differ, by Student's t.
    """
    if len(steps) < 2:
        return []
    slopes = {meter: list(_slopes(runs, steps, meter)) for meter in METERS}
    return [_row(meter, steps, mean(torch.tensor(own))) for meter, own in slopes.items() if len(own) > 1]


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
