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

from nfd.core.estimates import LEVEL, UNKNOWN, Interval, log_slope, mean, pooled_slope
from nfd.core.modes import undisturbed
from nfd.core.names import AXES, RULE, Axis, RuleName
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
        direction: the part of the exponent that comes from how well updates align with what they
            act on, and not from their size; 0 where it is not known.
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


# The exponents of known mistakes are multiples of a half: a root of the size that is missing, or
# the size itself. An interval that excludes it leaves none of them.
_OF_MISTAKES = 0.5


def matters(row: Mapping[str, Any]) -> bool:
    """Whether an undecided row of the table may hide a fault.

    It may where the exponent itself is beyond the limit, or the interval holds the exponent of a
    mistake. A fall that sound networks show does not count.
    """
    if row["verdict"] != "UNCERTAIN":
        return False
    if not math.isfinite(row["slope"] + row["low"] + row["high"]):
        return True
    if row["slope"] > CLEAR_EXPONENT or row["high"] > _OF_MISTAKES:
        return True
    if any(natural.axis == row["axis"] for natural in METERS[row["meter"]].natural):
        return False
    return bool(row["slope"] < -CLEAR_EXPONENT or row["low"] < -_OF_MISTAKES)


def seeds_needed(row: Mapping[str, Any], seeds: int) -> float:
    """Estimate how many seeds of each network would decide an undecided row.

    Its interval shrinks as the root of their number. It is to end at four fifths of the way to the
    limit.
    """
    size = abs(float(row["slope"]))
    half = float(row["high"] - row["low"]) / 2
    space = CLEAR_EXPONENT - size
    if size > CLEAR_EXPONENT:
        space = size - SURE_EXPONENT
    if not math.isfinite(half) or space <= 0:
        return math.inf
    return seeds * (half / (0.8 * space)) ** 2


def since(sizes: Sequence[int], values: Tensor) -> int:
    """Find the size from which on ``values`` [sizes] change faster than is stable.

    At the latest it is the last size but one, as one pair of sizes has to show the fault.
    """
    logs = values.double().log()
    start = len(sizes) - 2
    while start > 0:
        change_of_log = abs(float(logs[start] - logs[start - 1]))
        stable_change = CLEAR_EXPONENT * math.log(sizes[start] / sizes[start - 1])
        # Written so that not-a-number ends the search too.
        if not change_of_log > stable_change:
            break
        start -= 1
    return sizes[start]


# ---- The cause of a fault, and its remedy

_NOTHING = Beside()


def cure_of_all(faults: Iterable[Mapping[str, Any]], rule: str) -> RuleName | None:
    """Find the rule that prevents these faults; None where no other rule does.

    A fault of which no cause is known does not decide.
    """
    prevented = []
    for row in faults:
        advice = _advice(row["meter"], row["axis"], row["verdict"])
        if advice is not None and advice.rules:
            prevented.append(advice.rules)
    shared = set(RULES).intersection(*prevented)
    if not prevented or not shared or rule in shared:
        return None
    # The rule that everybody else begins with, wherever it helps.
    return RULE if RULE in shared else next(name for name in reversed(RULES) if name in shared)


def cause(
    meter: str, axis: Axis, verdict: Verdict, rule: str | None = None, beside: Beside = _NOTHING
) -> str:
    """Say what was seen and its remedy; nothing where the meter has no advice for the verdict.

    Where the rule in use should have prevented the fault, something else is wrong, and no rule is
    advised. ``beside`` has conditions that defeat every rule: norms whose epsilon is too large,
    and updates lost in rounding.
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
    return f"{advice.seen}. Use {RULE!r}{advice.price}."


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
        # A fault that shows only from a larger size on says so.
        if row["since"] != smallest[row["axis"]]:
            name += f" since {row['axis']} {row['since']}"
        text = cause(row["meter"], row["axis"], row["verdict"], rule, beside)
        by_cause.setdefault((row["axis"], row["verdict"].lower(), text), []).append(name)

    # Verdicts in lower case are verbs in the singular: "grows", "collapses".
    for (axis, verb, text), names in by_cause.items():
        # A meter may show the same fault after several steps.
        different = list(dict.fromkeys(names))
        sentence = text or f"A meter {verb} with {axis}."
        if len(different) > 1:
            plural_verb = verb.removesuffix("s")
            sentence = f"{len(different)} meters {plural_verb} with {axis}. {sentence}"
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
# A meter without a bound does not show how its alignment changes with size. It is taken to change
# as that of this meter.
_MODEL_OF_DIRECTIONS = "inner_update"

# Size along the axis that is judged, size along the other axis, reading
_Point = tuple[int, int, float]


def networks(runs: Iterable[Row], step: int, stack: str = "") -> list[Row]:
    """List size, seed and meters of every network after a step.

    ``unread`` has the reason, by meter, why a meter could not be read. With the name of one of
    several stacks of blocks there are only the meters of this stack; without one, only the meters
    of the whole network.
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
    """List the stacks that any of the networks has, after ``""`` for the whole network."""
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
    level: float = LEVEL,
) -> list[Row]:
    """Judge every meter of ``networks`` along one axis, in one row each.

    The fit has one exponent for all sizes along the other axis, and a constant factor for each of
    them. It assumes that all networks are initialised independently. ``beside`` is as in ``cause``,
    ``level`` the probability beyond one end of an interval.
    """
    if len(sizes[axis]) < 2:
        return []
    directions = _directions(seen, axis, level)
    table = []
    for name, meter in METERS.items():
        if axis not in meter.axes:
            continue
        row: Row = {"meter": name, "axis": axis, "since": None}
        reasons = [run["unread"][name] for run in seen if name in run.get("unread", {})]
        points = _points(seen, name, axis)
        slope = UNKNOWN
        if reasons and reasons[0]:
            row |= {"verdict": "NOT MEASURED", "reason": "unread", "cause": reasons[0]}
        elif points:
            slope = _slope(points, level)
            direction = directions.get(name, directions[_MODEL_OF_DIRECTIONS])
            trend = _Trend(name, axis, sizes[axis], points, slope, direction)
            row |= _judgement(trend, len(seen), rule, beside)
        else:
            continue
        table.append(row | {"slope": slope.value} | slope.limits)
    return table


def _directions(seen: Sequence[Row], axis: Axis, level: float) -> dict[str, float]:
    """Find how much of an exponent comes from alignment, for every meter that has a bound.

    The bound is what the meter would be if updates were aligned perfectly. Where it is stable in
    size, the learning rates are right. If the meter falls faster, the alignment falls, by the
    difference of the two exponents. Elsewhere the part is 0.
    """
    directions = {}
    for name, meter in METERS.items():
        if meter.bound is None:
            continue
        slope = _slope(_points(seen, name, axis), level)
        slope_of_bound = _slope(_points(seen, meter.bound.name, axis), level)
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
        direction: the part of the exponent that comes from alignment, as in ``judged``.
    """

    meter: str
    axis: Axis
    sizes: list[int]
    points: list[_Point]
    slope: Interval
    direction: float


def _judgement(trend: _Trend, count: int, rule: RuleName, beside: Beside) -> Row:
    """Judge a trend over ``count`` networks: verdict, reason and cause of its row."""
    axis = trend.axis
    sizes = trend.sizes
    if all(value == 0 for _, _, value in trend.points):
        text = "exactly zero in every network: no training changes it."
        return {"verdict": "NOT MEASURED", "reason": "zero", "cause": text}
    positive = _positive(trend.points)
    if {size for size, _, _ in positive} != set(sizes):
        text = "zero, negative or not finite in every network of some size."
        return {"verdict": "UNCERTAIN", "reason": "missing", "cause": text}

    span = sizes[-1] / sizes[0]
    verdict, reason = judged(trend.meter, axis, trend.slope, span, trend.direction)
    if verdict == "LIMIT" and beside.rounding and axis == "width":
        # Rounding explains the fall. It is a fault, and not the limit of a sound network.
        verdict = "COLLAPSES"
        reason = "trend"
    changed = change(trend.slope, axis, sizes)
    if reason == "trend":
        text = f"{changed}. {cause(trend.meter, axis, verdict, rule, beside)}".strip()
        start = since(sizes, _typical(positive, sizes))
        return {"verdict": verdict, "reason": reason, "cause": text, "since": start}
    if verdict == "UNCERTAIN" and len(positive) < count:
        reason = "broken"
    texts = {
        "flat": f"no significant trend with {axis}.",
        "little": f"depends little on {axis}: {changed}.",
        "edge": f"undecided: {changed}. More seeds or larger sizes would settle it.",
        "broken": "zero, negative or not finite in some networks.",
    }
    text = texts.get(reason) or EXPLANATIONS[reason].format(change=changed)
    return {"verdict": verdict, "reason": reason, "cause": text}


def _points(seen: Iterable[Row], meter: str, axis: Axis) -> list[_Point]:
    other: Axis = "depth" if axis == "width" else "width"
    return [(run[axis], run[other], run[meter]) for run in seen if meter in run]


def _positive(points: Iterable[_Point]) -> list[_Point]:
    return [point for point in points if 0 < point[2] < math.inf]


def _slope(points: Iterable[_Point], level: float) -> Interval:
    """Fit ``reading ~ size^p``, with one p for all sizes along the other axis."""
    size, group, value = torch.tensor(_positive(points), dtype=torch.float64).view(-1, 3).T
    if not len(value):
        return UNKNOWN
    return pooled_slope(size.log(), value.log(), group, level)


def _typical(points: Iterable[_Point], sizes: Sequence[int]) -> Tensor:
    """The geometric mean of a reading at every size ``[sizes]``."""
    size, _, value = torch.tensor(list(points), dtype=torch.float64).view(-1, 3).T
    return torch.stack([value[size == s].log().mean().exp() for s in sizes])


def change(slope: Interval, axis: Axis | Literal["step"], sizes: Sequence[int]) -> str:
    """Word a slope as a change over these sizes: ``falls by 18 % [12, 24] from depth 4 to 32``."""
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
    """Fit ``meter ~ step^p`` in every network, and give one row per meter and stack.

    A row has the mean of p over networks. The steps of one network depend on each other, so that
    the interval comes only from how p differs between networks, by Student's t.
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
