"""The table of a check: how every meter changes along one axis, its verdict, and what that means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.names import RuleName
from nfd.core.statistics import UNKNOWN, Interval, pooled_slope
from nfd.core.tables import Row
from nfd.meters.advice import ADVICE, cause
from nfd.meters.trend import Trend, trend
from nfd.meters.updates import ALIGNMENT, FIRST, UPDATES
from nfd.meters.verdict import Axis, Reason, Verdict, judged, seeds_needed, since, verdict

METERS = (FIRST, *UPDATES, ALIGNMENT, "gradient", "loss", "gia_gap")
_OF_ONE_AXIS: dict[str, Axis] = {"gradient": "depth", "gia_gap": "depth", ALIGNMENT: "width", FIRST: "width"}
_MOST = 20.0  # |log| of a factor that is worth a number
_FEW = 10  # steps after which a and b below are of one size
_MOVING = "inner_update", "activation_update", "stream_update", "function_update"
_EARLY: Row = {
    "verdict": "UNCERTAIN",
    "reason": "early",
    "since": None,
    "cause": "falls as n^-1/2 while features move, as in every network after few steps: take more steps (30), and "
    "widths of at least 32, 64 and 128.",
}
_FAR = 4  # from the smallest size to the largest, for a verdict against the rule in use
_SAME = 1e-6  # of a number: rounding in float32


@undisturbed()
def rows(runs: Sequence[Row], sizes: Mapping[str, list[int]], axis: Axis, seeds: int, rule: RuleName) -> list[Row]:
    """One row per meter: its trend along one axis, with a factor for every size of the other; all runs begin
    independently."""
    if len(sizes[axis]) < 2:
        return []
    other: Axis = "depth" if axis == "width" else "width"
    shown = [meter for meter in METERS if _OF_ONE_AXIS.get(meter, axis) == axis]
    table = []
    for meter in shown:
        unread = [r["unread"][meter] for r in runs if meter in r.get("unread", {})]
        points = _Points.of(runs, meter, axis, other)
        if unread:
            table.append(_row(meter, axis, Trend(UNKNOWN), "NOT MEASURED", "unread", unread[0]))
        elif points is not None:
            first = _Points.of(
                [r.get("first", {}) | {k: r[k] for k in (axis, other)} for r in runs], meter, axis, other
            )
            row = _judged(meter, axis, sizes[axis], points, first, len(runs), seeds, rule)
            row = _by_training(row, _start(runs, meter, axis, other), rule)
            table.append(_of_near_sizes(row, sizes[axis], rule))
    return table


def early(table: Sequence[Row], step: int) -> list[Row]:
    """The rows of one axis after a step; a fall that every sound network shows after few steps is no collapse.

    What inner updates do to the function is ``a^2 + b^2 / n`` in the mean square: b from directions that do not agree,
    which comes with the first steps, a from those that do, which grows with training. While b is the larger it falls as
    n^-1/2, although features move. In lazy training they do not: ``inner_update`` falls too.
    """
    moving = {(row["meter"], row["verdict"] == "COLLAPSES") for row in table if row["meter"] in _MOVING}
    moves = ("inner_update", False) in moving and not any(collapses for _, collapses in moving)
    return [row | _EARLY if step <= _FEW and moves and _is_incoherent(row) else row for row in table]


def _is_incoherent(row: Row) -> bool:
    """Whether a row may be what falls as n^-1/2."""
    place = row["meter"], row["axis"], row["verdict"]
    return place == ("function_update_inner", "width", "COLLAPSES") and row["high"] >= -0.5


def _start(runs: Sequence[Row], meter: str, axis: Axis, other: Axis) -> Trend | None:
    """How a meter that is read before training, too, changed with size there; None for others."""
    points = _Points.of([r.get("start", {}) | {k: r[k] for k in (axis, other)} for r in runs], meter, axis, other)
    return _trend(points) if points is not None and bool(points.usable.all()) else None


def _by_training(row: Row, start: Trend | None, rule: RuleName) -> Row:
    """A row that grows, with another cause where it does not grow at the start."""
    if row["verdict"] != "GROWS" or start is None or verdict(start.slope) == "GROWS":
        return row
    text = cause(row["meter"], row["axis"], "GROWS", rule, "training")
    return row | {"reason": "training", "cause": text}


def _of_near_sizes(row: Row, sizes: Sequence[int], rule: RuleName) -> Row:
    """A fault that the rule in use prevents needs sizes far apart: small networks differ from the limit by a / n."""
    known = ADVICE.get((row["meter"], row["axis"], row["verdict"]))
    if known is None or rule not in known.rules or sizes[-1] >= _FAR * sizes[0]:
        return row
    slope = Interval(row["slope"], math.nan, row["low"], row["high"])
    text = (
        f"{change(slope, row['axis'], sizes)}, though {rule!r} should keep it: "
        f"the sizes are too near each other for a verdict. Add a {row['axis']} of {_FAR * sizes[0]} or more."
    )
    return row | {"verdict": "UNCERTAIN", "reason": "near", "since": None, "cause": text}


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
    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        """Size, value and group of the usable ones."""
        return self.size[self.usable], self.value[self.usable], self.group[self.usable]

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
    first: _Points | None,
    runs: int,
    seeds: int,
    rule: RuleName,
) -> Row:
    """The row of a meter that some network has."""
    size, value, group = points.kept
    if bool((points.value == 0).all()):
        text = "exactly zero in every network: no training changes it."
        return _row(meter, axis, Trend(UNKNOWN), "NOT MEASURED", "zero", text)
    if len(value) == runs and _spread(value) <= _SAME:
        text = f"{float(value[0]):.3g} in every network, at every size and seed: no interval."
        return _row(meter, axis, Trend(UNKNOWN), "STABLE", "constant", text)
    if len(value) == runs and points.scatter() <= _SAME:
        text = "the seeds give the same number at every size: no interval."
        return _row(meter, axis, Trend(UNKNOWN), "NOT MEASURED", "same", text)
    if {int(s) for s in size} != set(sizes):
        slope = pooled_slope(size.log(), value.log(), group) if len(value) else UNKNOWN
        text = "zero or not finite in every network of some size."
        return _row(meter, axis, Trend(slope), "UNCERTAIN", "missing", text)
    now = _trend(points)
    word, reason = judged(now, None if first is None or not bool(first.usable.all()) else _trend(first))
    more = None
    if word == "UNCERTAIN" and len(value) < runs:
        reason = "broken"
    elif reason == "edge":
        more = seeds_needed(now.slope, seeds)
        reason = "noise" if more else "edge"
    changes = word in ("COLLAPSES", "GROWS")
    typical = [float(value[size == s].log().mean().exp()) for s in sizes]
    start = since(sizes, torch.tensor(typical, dtype=torch.float64)) if changes else None
    advised = (meter, axis, word) in ADVICE
    text = cause(meter, axis, word, rule) if advised else _in_words(reason, axis, sizes, now, more)
    return _row(meter, axis, now, word, reason, text, start, more)


def _trend(points: _Points) -> Trend:
    """The trend; the law with a limit is asked where the slope alone does not say that little changes."""
    size, value, group = points.kept
    slope = pooled_slope(size.log(), value.log(), group)
    return Trend(slope) if verdict(slope) == "STABLE" else trend(size, value, group)


def _in_words(reason: Reason, axis: Axis, sizes: Sequence[int], now: Trend, seeds: int | None) -> str:
    """What a verdict that has no advice means."""
    texts: dict[Reason, str] = {
        "flat": f"no significant trend with {axis}.",
        "little": f"depends little on {axis}: {change(now.slope, axis, sizes)}.",
        "limit": f"{change(now.slope, axis, sizes)} and tends to a limit: {_limit(now, axis, sizes)}.",
        "noise": f"about {seeds} seeds would settle it.",
        "edge": "close to the threshold of a verdict: add sizes to settle it.",
        "sizes": f"{change(now.slope, axis, sizes)}; a limit and a power law both fit: "
        "take more steps, sizes or seeds.",
        "steps": "tended to a limit after the first step, and falls no faster since: take more steps.",
        "broken": "zero or not finite in some networks.",
    }
    return texts[reason]


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


def _limit(now: Trend, axis: Axis, sizes: Sequence[int]) -> str:
    share = now.limit.root().scaled(100)
    return f"{share.value:.0f} % [{share.low:.0f}, {share.high:.0f}] of its value at {axis} {sizes[-1]}"


def _row(
    meter: str,
    axis: Axis,
    law: Trend,
    word: Verdict,
    reason: Reason,
    text: str,
    start: int | None = None,
    more: int | None = None,
) -> Row:
    limit = law.limit.root() if math.isfinite(law.limit.value) else UNKNOWN
    return {
        "meter": meter,
        "axis": axis,
        "value": law.slope.value,
        "slope": law.slope.value,
        "low": law.slope.low,
        "high": law.slope.high,
        "limit": limit.value,
        "limit_low": limit.low,
        "limit_high": limit.high,
        "verdict": word,
        "reason": reason,
        "cause": text,
        "since": start,
        "seeds_needed": more,
    }
