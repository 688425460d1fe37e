"""Verdicts of a check: how every meter changes along an axis, and what that means.

A verdict is a word for the slope of a meter against width or depth, in logarithms. The row of the
meter in ``nfd.meters.meter`` says which slopes sound networks show, and what prevents the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.estimates import UNKNOWN, Interval, log_slope, mean, pooled_slope
from nfd.core.modes import undisturbed
from nfd.core.names import AXES, Axis, RuleName
from nfd.core.tables import Row
from nfd.meters.beside import Beside, beside_of
from nfd.meters.meter import (
    CLEAR_EXPONENT,
    EXPLANATIONS,
    INDEPENDENT_EXPONENT,
    METERS,
    SURE_EXPONENT,
    Advice,
    Verdict,
)
from nfd.scaling.rules import RULES

# ---- The word for a slope

# A change is worth a word from this factor on, between the smallest size and the largest. Without
# it, two sizes that are close raise twice as many alarms.
_LEAST_FACTOR = 1.2

THRESHOLDS = (
    f"STABLE: the interval lies within ±{CLEAR_EXPONENT}; COLLAPSES, GROWS: beyond "
    f"±{SURE_EXPONENT} and a factor of {_LEAST_FACTOR} over these sizes, the exponent beyond "
    f"±{CLEAR_EXPONENT}."
)
LIMITS = (
    f"LIMIT: falls no faster than by the power {INDEPENDENT_EXPONENT}, as in sound networks that "
    "are small: no fault."
)


def verdict_of(slope: Interval, span: float = math.inf) -> Verdict:
    """Name a slope, without regard to what it is a slope of.

    ``STABLE``: the 95 % interval lies within +-0.25. ``COLLAPSES``, ``GROWS``: it lies beyond -0.15
    or +0.15, and beyond a factor of 1.2 over sizes that span this factor, and the slope beyond
    -0.25 or +0.25. Otherwise ``UNCERTAIN``.
    """
    sure = max(SURE_EXPONENT, math.log(_LEAST_FACTOR) / math.log(span))
    if slope.low >= -CLEAR_EXPONENT and slope.high <= CLEAR_EXPONENT:
        return "STABLE"
    if slope.high < -sure and slope.value < -CLEAR_EXPONENT:
        return "COLLAPSES"
    if slope.low > sure and slope.value > CLEAR_EXPONENT:
        return "GROWS"
    return "UNCERTAIN"


def judged(
    meter: str, axis: Axis, slope: Interval, span: float = math.inf, direction: float = 0.0
) -> tuple[Verdict, str]:
    """Name the slope of a meter, and why: a trend that sound networks show is not a fault.

    Args:
        meter: a key of ``METERS``.
        axis: of the sizes.
        slope: the exponent with its interval.
        span: the largest size over the smallest.
        direction: the part of the exponent that belongs to directions of updates and not to sizes.
    """
    verdict = verdict_of(slope, span)
    if verdict == "STABLE":
        return verdict, "flat" if slope.low <= 0 <= slope.high else "little"
    if verdict == "UNCERTAIN":
        return verdict, "edge"
    if verdict == "COLLAPSES":
        for natural in METERS[meter].natural:
            if natural.axis == axis and natural.explains(slope, direction):
                return natural.verdict, natural.reason
    return verdict, "trend"


def is_fault(row: Mapping[str, Any]) -> bool:
    """Whether a row of the table says that something scales wrongly."""
    return row.get("verdict") in ("GROWS", "COLLAPSES")


def since(sizes: Sequence[int], values: Tensor) -> int:
    """Find the size from which on ``values`` [sizes] change faster than is stable.

    At the latest it is the last size but one, as one pair of sizes has to show the fault.
    """
    logs = values.double().log()
    start = len(sizes) - 2
    while start > 0:
        change_of_log = abs(float(logs[start] - logs[start - 1]))
        stable_change = CLEAR_EXPONENT * math.log(sizes[start] / sizes[start - 1])
        if not change_of_log > stable_change:
            break
        start -= 1
    return sizes[start]


# ---- What it means

_NOTHING = Beside()


def cure_of_all(faults: Iterable[Mapping[str, Any]], rule: str) -> RuleName | None:
    """Find the rule that prevents every one of these rows; None where there is none."""
    prevented = []
    for row in faults:
        advice = _advice(row["meter"], row["axis"], row["verdict"])
        prevented.append(advice.rules if advice else ())
    shared = set(RULES).intersection(*prevented)
    if not shared or rule in shared:
        return None
    return next(name for name in reversed(RULES) if name in shared)


def cause(
    meter: str, axis: Axis, verdict: Verdict, rule: str | None = None, beside: Beside = _NOTHING
) -> str:
    """Say what was seen and its remedy; nothing where the name of the meter says it all.

    Where the rule in use should prevent it, it is not named as the cure: something else is wrong.
    ``beside`` is what is known to keep any rule from preventing it.
    """
    advice = _advice(meter, axis, verdict)
    if advice is None:
        return ""
    if beside.rounding and advice.rounds_away:
        return f"{beside.rounding}."
    if rule in advice.rules and beside.norms:
        return f"{advice.seen}. {rule!r} would prevent it, but {beside.norms}"
    if rule in advice.rules:
        return (
            f"{advice.seen}. {rule!r} should prevent it: check roles, base and rate, and take more "
            "steps or larger sizes."
        )
    if not advice.rules:
        return f"{advice.seen}."
    return f"{advice.seen}. Use 'complete-p'{advice.price}."


def _advice(meter: str, axis: Axis, verdict: Verdict) -> Advice | None:
    return METERS[meter].advice.get((axis, verdict))


def causes(faults: Iterable[Mapping[str, Any]], rule: str, runs: Sequence[Row]) -> Iterator[str]:
    """Put the faults in sentences, one for all meters that share a cause."""
    smallest = dict[str, int]()
    for along in AXES:
        smallest[along] = min(run[along] for run in runs)
    beside = beside_of(runs)
    by_cause: dict[tuple[str, str, str], list[str]] = {}
    for row in faults:
        name = row_name(row)
        if row["since"] != smallest[row["axis"]]:
            name += f" since {row['axis']} {row['since']}"
        text = cause(row["meter"], row["axis"], row["verdict"], rule, beside)
        by_cause.setdefault((row["axis"], row["verdict"].lower(), text), []).append(name)

    for (axis, verb, text), names in by_cause.items():
        # A meter may show the same fault after several steps.
        different = list(dict.fromkeys(names))
        sentence = text or f"A meter {verb} with {axis}."
        if len(different) > 1:
            sentence = f"{len(different)} meters {verb[:-1]} with {axis}. {sentence}"
        yield f"{sentence} ({', '.join(different)})"


def row_name(row: Mapping[str, Any]) -> str:
    """The meter of a row, and its stack of blocks."""
    stack = row.get("stack")
    if stack:
        return f"{row['meter']} of {stack}"
    return str(row["meter"])


# ---- The table

# The logarithm of a factor that is too large to be worth a number
_UNKNOWN_CHANGE = 20.0
# A meter without a bound is taken to lose by directions what this one loses.
_MODEL_OF_DIRECTIONS = "inner_update"

# Size, size along the other axis, reading
_Point = tuple[int, int, float]


def networks(runs: Iterable[Row], step: int, stack: str = "") -> list[Row]:
    """List the networks as they were after a step: size, meters, and what is ``unread``.

    With the name of one of several stacks of blocks, they have only the meters of this stack;
    without one, only the meters of the whole network.
    """
    looks = []
    for run in runs:
        holder = run
        if stack:
            holder = run.get("stacks", {}).get(stack, {})
        size = {name: run[name] for name in ("width", "depth", "seed")}
        looks.append(size | {"unread": holder.get("unread", {})} | _meters_at(run, step, stack))
    return looks


def _meters_at(run: Row, step: int, stack: str) -> Row:
    """The row of a network's stack after a step; empty where it was not looked at."""
    for row in run["rows"]:
        is_network = not row["matrix"]
        if is_network and row["step"] == step and row.get("stack", "") == stack:
            look: Row = row
            return look
    return {}


def stacks_of(runs: Sequence[Row]) -> list[str]:
    """The names of the stacks of some network, after ``""`` for the network itself."""
    names = [""]
    for run in runs:
        names += run.get("stacks", ())
    return list(dict.fromkeys(names))


@undisturbed()
def rows(
    seen: Sequence[Row],
    sizes: Mapping[str, list[int]],
    axis: Axis,
    rule: RuleName,
    beside: Beside = _NOTHING,
) -> list[Row]:
    """Judge every meter of ``networks`` along one axis, in one row each.

    A trend has one exponent, and a factor of its own for every size of the other axis. All networks
    are initialised independently. ``beside`` is as in ``cause``.
    """
    if len(sizes[axis]) < 2:
        return []
    directions = _directions(seen, axis)
    table = []
    for name, meter in METERS.items():
        if axis not in meter.axes:
            continue
        row: Row = {"meter": name, "axis": axis, "since": None}
        unread = [run["unread"][name] for run in seen if name in run.get("unread", {})]
        points = _points(seen, name, axis)
        slope = UNKNOWN
        if unread and unread[0]:
            row |= {"verdict": "NOT MEASURED", "reason": "unread", "cause": unread[0]}
        elif points:
            slope = _slope(points)
            direction = directions.get(name, directions[_MODEL_OF_DIRECTIONS])
            trend = _Trend(name, axis, sizes[axis], points, slope, direction)
            row |= _judgement(trend, len(seen), rule, beside)
        else:
            continue
        table.append(row | {"slope": slope.value} | slope.limits)
    return table


def _directions(seen: Sequence[Row], axis: Axis) -> dict[str, float]:
    """The part of an exponent that belongs to directions, for every meter that has a bound.

    Where the bound is stable the learning rates are right, and what falls is how well directions
    fit.
    """
    directions = {}
    for name, meter in METERS.items():
        if meter.bound is None:
            continue
        slope = _slope(_points(seen, name, axis))
        slope_of_bound = _slope(_points(seen, meter.bound.name, axis))
        fall = slope.value - slope_of_bound.value
        directions[name] = 0.0
        if verdict_of(slope_of_bound) == "STABLE" and fall < -meter.bound.least_fall:
            directions[name] = fall
    return directions


@dataclass(frozen=True)
class _Trend:
    """A meter along one axis.

    Attributes:
        points: the readings of every network.
        slope: the exponent fitted to them.
        direction: the part of it that belongs to directions of updates and not to sizes.
    """

    meter: str
    axis: Axis
    sizes: list[int]
    points: list[_Point]
    slope: Interval
    direction: float


def _judgement(trend: _Trend, count: int, rule: RuleName, beside: Beside) -> Row:
    """The verdict, reason and cause of a row over so many networks."""
    axis = trend.axis
    sizes = trend.sizes
    if all(value == 0 for _, _, value in trend.points):
        text = "exactly zero in every network: no training changes it."
        return {"verdict": "NOT MEASURED", "reason": "zero", "cause": text}
    kept = _positive(trend.points)
    if {size for size, _, _ in kept} != set(sizes):
        text = "zero or not finite in every network of some size."
        return {"verdict": "UNCERTAIN", "reason": "missing", "cause": text}

    span = sizes[-1] / sizes[0]
    verdict, reason = judged(trend.meter, axis, trend.slope, span, trend.direction)
    if verdict == "LIMIT" and beside.rounding and axis == "width":
        # A cause is known, so that no limit has to explain the trend.
        verdict = "COLLAPSES"
        reason = "trend"
    changed = change(trend.slope, axis, sizes)
    if reason == "trend":
        text = f"{changed}. {cause(trend.meter, axis, verdict, rule, beside)}".strip()
        start = since(sizes, _typical(kept, sizes))
        return {"verdict": verdict, "reason": reason, "cause": text, "since": start}
    if verdict == "UNCERTAIN" and len(kept) < count:
        reason = "broken"
    texts = {
        "flat": f"no significant trend with {axis}.",
        "little": f"depends little on {axis}: {changed}.",
        "edge": f"undecided: {changed}. More seeds or larger sizes would settle it.",
        "broken": "zero or not finite in some networks.",
    }
    text = texts.get(reason) or EXPLANATIONS[reason].format(change=changed)
    return {"verdict": verdict, "reason": reason, "cause": text}


def _points(seen: Iterable[Row], meter: str, axis: Axis) -> list[_Point]:
    other: Axis = "depth" if axis == "width" else "width"
    return [(run[axis], run[other], run[meter]) for run in seen if meter in run]


def _positive(points: Iterable[_Point]) -> list[_Point]:
    return [point for point in points if 0 < point[2] < math.inf]


def _slope(points: Iterable[_Point]) -> Interval:
    """The exponent of a reading in the size, pooled over sizes along the other axis."""
    size, group, value = torch.tensor(_positive(points), dtype=torch.float64).view(-1, 3).T
    if not len(value):
        return UNKNOWN
    return pooled_slope(size.log(), value.log(), group)


def _typical(points: Iterable[_Point], sizes: Sequence[int]) -> Tensor:
    """The geometric mean of a reading at every size ``[sizes]``."""
    size, _, value = torch.tensor(list(points), dtype=torch.float64).view(-1, 3).T
    return torch.stack([value[size == s].log().mean().exp() for s in sizes])


def change(slope: Interval, axis: Axis | Literal["step"], sizes: Sequence[int]) -> str:
    """Say a slope over the tested range: ``falls by 18 % [12, 24] from depth 4 to 32``."""
    span = f"from {axis} {sizes[0]} to {sizes[-1]}"
    change_of_log = slope.scaled(math.log(sizes[-1] / sizes[0]))
    largest = max(abs(change_of_log.low), abs(change_of_log.high))
    # Written so that not-a-number is unknown too.
    if not largest < _UNKNOWN_CHANGE:
        return f"changes by an unknown amount {span}"
    factor = change_of_log.exp()
    verb = "rises"
    sign = 1
    if factor.value < 1:
        verb = "falls"
        sign = -1
    percent = round(100 * sign * (factor.value - 1))
    low, high = sorted(100 * sign * (end - 1) for end in (factor.low, factor.high))
    return f"{verb} by {percent} % [{round(low)}, {round(high)}] {span}"


def growth(runs: Sequence[Row], steps: Sequence[int]) -> list[Row]:
    """Fit ``meter ~ step^p`` in every network; one row per meter and stack, averaged in logarithms.

    The steps of one network depend on each other, so that each network gives one slope; the
    interval comes from how they differ, by Student's t.
    """
    if len(steps) < 2:
        return []
    table: list[Row] = []
    for stack in stacks_of(runs):
        looks = [networks(runs, step, stack) for step in steps]
        for name, meter in METERS.items():
            if meter.is_of_one_step:
                continue
            curves = _positive_curves(looks, name)
            if len(curves) < 2:
                continue
            slope = mean(log_slope(steps, curves))
            row: Row = {"meter": name, "axis": "step", "slope": slope.value} | slope.limits
            row["cause"] = f"{change(slope, 'step', steps)}."
            if stack:
                row["stack"] = stack
            table.append(row)
    return table


def _positive_curves(looks: Sequence[Sequence[Row]], meter: str) -> Tensor:
    """Readings ``[networks, steps]`` of networks where none is zero, missing or infinite."""
    rows_of_steps = []
    for look in looks:
        rows_of_steps.append([network.get(meter, 0.0) for network in look])
    curves = torch.tensor(rows_of_steps, dtype=torch.float64).T
    is_positive = curves.isfinite() & (curves > 0)
    return curves[is_positive.all(1)]
