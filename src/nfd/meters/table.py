"""The table of a check: how every meter changes along one axis, its verdict, and what that means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from nfd.core.estimates import UNKNOWN, Interval
from nfd.core.machine import undisturbed
from nfd.core.names import Axis, RuleName
from nfd.core.statistics import pooled_slope
from nfd.core.tables import Row
from nfd.meters.advice import cause
from nfd.meters.updates import ALIGNMENT, FIRST, UPDATES
from nfd.meters.verdict import Reason, Verdict, judged, seeds_needed, since, verdict

METERS = (FIRST, *UPDATES, ALIGNMENT, "gradient", "loss")
_OF_ONE_AXIS: dict[str, Axis] = {"gradient": "depth", ALIGNMENT: "width", FIRST: "width"}
_MOST = 20.0  # |log| of a factor that is worth a number
_SAME = 1e-6  # of a number: rounding in float32


@undisturbed()
def rows(runs: Sequence[Row], sizes: Mapping[str, list[int]], axis: Axis, seeds: int, rule: RuleName) -> list[Row]:
    """One row per meter: its trend along one axis, with a factor for every size of the other; all runs begin
    independently."""
    if len(sizes[axis]) < 2:
        return []
    other: Axis = "depth" if axis == "width" else "width"
    shown = [meter for meter in METERS if _OF_ONE_AXIS.get(meter, axis) == axis]
    begun = [run.get("start", {}) | {name: run[name] for name in (axis, other)} for run in runs]
    table = []
    for meter in shown:
        unread = [r["unread"][meter] for r in runs if meter in r.get("unread", {})]
        points = _Points.of(runs, meter, axis, other)
        if unread:
            table.append(_row(meter, axis, UNKNOWN, "NOT MEASURED", "unread", unread[0]))
        elif points is not None:
            before = _Points.of(begun, meter, axis, other)
            table.append(_judged(meter, axis, sizes[axis], points, before, len(runs), seeds, rule))
    return table


class _Points:
    """A meter of every network that has it: sizes, groups and values [N]; ``usable`` are those with a logarithm."""

    def __init__(self, size: Tensor, group: Tensor, value: Tensor) -> None:
        self.size, self.group, self.value = size, group, value
        self.usable = value.isfinite() & (value > 0)

    @classmethod
    def of(cls, runs: Sequence[Row], meter: str, axis: Axis, other: Axis) -> _Points | None:
        points = [(r[axis], r[other], r[meter]) for r in runs if meter in r]
        return cls(*torch.tensor(points, dtype=torch.float64).T) if points else None

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """Size and value of the usable ones."""
        return self.size[self.usable], self.value[self.usable]

    def slope(self) -> Interval:
        """The exponent of the usable ones in their size."""
        size, value = self.kept
        return pooled_slope(size.log(), value.log(), self.group[self.usable]) if len(value) else UNKNOWN

    def scatter(self) -> float:
        """The widest range of seeds of one size, relative to their largest value."""
        cells = {
            (int(n), int(g)): (self.size == n) & (self.group == g) for n, g in zip(self.size, self.group, strict=True)
        }
        return max(_spread(self.value[own]) for own in cells.values())


def _spread(values: Tensor) -> float:
    return float((values.max() - values.min()) / values.abs().max().clamp_min(torch.finfo(values.dtype).tiny))


def _judged(
    meter: str,
    axis: Axis,
    sizes: list[int],
    points: _Points,
    before: _Points | None,
    runs: int,
    seeds: int,
    rule: RuleName,
) -> Row:
    """The row of a meter that some network has; ``before`` is the same before training, where it is read there."""
    size, value = points.kept
    if bool((points.value == 0).all()):
        text = "exactly zero in every network: no training changes it."
        return _row(meter, axis, UNKNOWN, "NOT MEASURED", "zero", text)
    if len(value) == runs and _spread(value) <= _SAME:
        text = f"{float(value[0]):.3g} in every network, at every size and seed: no interval."
        return _row(meter, axis, UNKNOWN, "STABLE", "constant", text)
    if len(value) == runs and points.scatter() <= _SAME:
        text = "the seeds give the same number at every size: no interval."
        return _row(meter, axis, UNKNOWN, "NOT MEASURED", "same", text)
    slope = points.slope()
    if {int(s) for s in size} != set(sizes):
        text = "zero or not finite in every network of some size."
        return _row(meter, axis, slope, "UNCERTAIN", "missing", text)
    span, more = sizes[-1] / sizes[0], None
    word, reason = judged(meter, axis, slope, span)
    if word == "UNCERTAIN" and len(value) < runs:
        reason = "broken"
    elif reason == "edge":
        more = seeds_needed(slope, seeds, span)
        reason = "noise" if more else "edge"
    if (
        word == "GROWS"
        and before is not None
        and bool(before.usable.all())
        and verdict(before.slope(), span) != "GROWS"
    ):
        reason = "training"
    start = None
    if word in ("COLLAPSES", "GROWS"):
        typical = [float(value[size == s].log().mean().exp()) for s in sizes]
        start = since(sizes, torch.tensor(typical, dtype=torch.float64))
    changed, advice = change(slope, axis, sizes), cause(meter, axis, word, rule, reason)
    texts: dict[Reason, str] = {
        "flat": f"no significant trend with {axis}.",
        "little": f"depends little on {axis}: {changed}.",
        "limit": f"{changed}, as in small sound networks, whose independent parts add up as width^-1/2: no fault "
        "unless inner_update collapses, too.",
        "noise": f"{changed}: about {more} seeds would settle it.",
        "edge": f"{changed}, close to the threshold of a verdict: add sizes to settle it.",
        "broken": "zero or not finite in some networks.",
    }
    text = (f"{changed}; {advice}" if start else advice) or texts[reason]
    return _row(meter, axis, slope, word, reason, text, start, more)


def change(slope: Interval, axis: Axis | Literal["step"], sizes: Sequence[int]) -> str:
    """``falls by 18 % [12, 24] from depth 4 to 32``: a slope over the range of sizes that was tested."""
    change_of_log = slope.scaled(math.log(sizes[-1] / sizes[0]))
    if not max(abs(change_of_log.low), abs(change_of_log.high)) < _MOST:  # not-a-number too
        return f"changes by an unknown amount from {axis} {sizes[0]} to {sizes[-1]}"
    factor = change_of_log.exp()
    ends = sorted(100 * (v - 1) * (1 if factor.value >= 1 else -1) for v in (factor.low, factor.high))
    verb, size = ("rises", factor.value - 1) if factor.value >= 1 else ("falls", 1 - factor.value)
    low, high = (f"{round(v) + 0:d}" for v in ends)
    return f"{verb} by {round(100 * size)} % [{low}, {high}] from {axis} {sizes[0]} to {sizes[-1]}"


def _row(
    meter: str,
    axis: Axis,
    slope: Interval,
    word: Verdict,
    reason: Reason,
    text: str,
    start: int | None = None,
    more: int | None = None,
) -> Row:
    return {
        "meter": meter,
        "axis": axis,
        "value": slope.value,
        "slope": slope.value,
        "low": slope.low,
        "high": slope.high,
        "verdict": word,
        "reason": reason,
        "cause": text,
        "since": start,
        "seeds_needed": more,
    }
