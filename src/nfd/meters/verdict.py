"""The table of a check: how every meter changes along one axis, its verdict, and what that means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.machine import undisturbed
from nfd.core.names import Axis, RuleName
from nfd.core.statistics import log_slope, pooled_slope
from nfd.core.tables import Row
from nfd.meters.updates import ALIGNMENT, FIRST, UPDATES
from nfd.scaling.rules import RULES

# ---- A word for how a quantity changes along an axis: does it stay, fall to a limit, collapse or grow?


_SMALL, _CLEAR = 0.15, 0.25  # chosen by both errors of a check, docs/verdicts.md
_LEAST = 1.2  # a factor from the smallest size to the largest; without it, two near sizes raise twice as many alarms
_ROOT = -0.5  # the exponent of what adds up as independent parts do
_OF_THE_FUNCTION = "function_update", "function_update_inner"
THRESHOLDS = (
    f"STABLE: the interval lies within ±{_CLEAR}; COLLAPSES, GROWS: beyond ±{_SMALL} and a factor of {_LEAST} over "
    f"these sizes, the exponent beyond ±{_CLEAR}."
)
LIMITS = (
    f"LIMIT: the update of the function falls no faster than width^{_ROOT}, as in sound networks that are small: "
    "no fault."
)
_MANY = 100  # seeds: beyond it more sizes help sooner

Verdict = Literal["STABLE", "LIMIT", "COLLAPSES", "GROWS", "UNCERTAIN", "NOT MEASURED"]
Reason = Literal[
    "trend",  # it collapses or grows
    "training",  # it does not at the start, and does by training
    "flat",  # the interval holds zero
    "little",  # it does not, and is small
    "limit",  # it falls no faster than what does not add up coherently
    "constant",  # one number in every network
    "noise",  # more seeds would settle it
    "edge",  # near the edge of a verdict
    "broken",  # zero or not finite in some networks
    "missing",  # in every network of some size
    "unread",  # the model does not show it
    "zero",  # nothing moves it
    "same",  # the seeds do not differ
]


def verdict_of(slope: Interval, span: float = math.inf) -> Verdict:
    """``STABLE``: the 95 % interval lies within +-0.25. ``COLLAPSES``, ``GROWS``: it lies beyond -0.15 or +0.15, and
    beyond a factor of 1.2 over sizes that span this factor, and the slope beyond -0.25 or +0.25. Otherwise
    ``UNCERTAIN``."""
    small = _resolved(span)
    if slope.low >= -_CLEAR and slope.high <= _CLEAR:
        return "STABLE"
    if slope.high < -small and slope.value < -_CLEAR:
        return "COLLAPSES"
    if slope.low > small and slope.value > _CLEAR:
        return "GROWS"
    return "UNCERTAIN"


def _resolved(span: float) -> float:
    """The exponent beyond which the nearer end of an interval must lie."""
    return max(_SMALL, math.log(_LEAST) / math.log(span))


def judged(meter: str, axis: Axis, slope: Interval, span: float = math.inf) -> tuple[Verdict, Reason]:
    """The word for a meter's slope, and why.

    The update of the function is ``v^2 = a^2 + b^2 / width``: a from what moves it alike, b from independent parts.
    Small networks have the larger b, so that sound ones show exponents down to -1/2. A collapse of this update alone
    would look alike over the sizes of a check; where features stop moving, ``inner_update`` tells.
    """
    word = verdict_of(slope, span)
    if word == "STABLE":
        return word, "flat" if slope.low <= 0 <= slope.high else "little"
    if word == "COLLAPSES" and meter in _OF_THE_FUNCTION and axis == "width" and slope.high >= _ROOT:
        return "LIMIT", "limit"
    return word, "edge" if word == "UNCERTAIN" else "trend"


def since(sizes: Sequence[int], values: Tensor) -> int:
    """The size from which every later local slope of ``values`` [sizes] is beyond 0.25, or the last but one."""
    x = values.double().log()
    start = len(sizes) - 2
    while start > 0 and abs(float(x[start] - x[start - 1])) > _CLEAR * math.log(sizes[start] / sizes[start - 1]):
        start -= 1
    return sizes[start]


def seeds_needed(slope: Interval, seeds: int, span: float = math.inf) -> int | None:
    """How many seeds would settle an uncertain slope, if it stays where it is; None where no number would,
    or too many to ask for.

    An interval shrinks as the root of their number.
    """
    half, size = (slope.high - slope.low) / 2, abs(slope.value)
    room = _CLEAR - size if size < _CLEAR else size - _resolved(span)
    if not math.isfinite(half) or room <= 0.01:
        return None
    needed = max(seeds + 1, math.ceil(seeds * (half / room) ** 2))
    return needed if needed <= _MANY else None


# ---- What a verdict means for a meter: what was seen, what cures it, and which rules have that cure built in


_WIDTH: frozenset[RuleName] = frozenset(name for name, rule in RULES.items() if rule.scales_width)
_DEPTH: frozenset[RuleName] = frozenset(name for name in _WIDTH if RULES[name].scales_depth)
_COMPLETE: frozenset[RuleName] = frozenset({"complete-p"})


@dataclass(frozen=True)
class Advice:
    """What was seen, the remedy, the rules that already contain it, and why a rule that does not shows it."""

    seen: str
    remedy: str = ""
    rules: frozenset[RuleName] = frozenset()
    because: str = ""


_LAZY = Advice(
    "features stop moving as the network widens (lazy training)", "Use a rule of mup's kind, and its readout.", _WIDTH
)
_WIDE = Advice(
    "updates grow with width",
    "Use rule 'mup' or 'complete-p' instead of 'standard'.",
    _WIDTH,
    "rates do not follow it",
)
_AT_FIRST = (
    "before the first block: by how the embedding begins, by its rate, or by a factor of width in the forward pass"
)
_BY_PLAN = "Train by the plan of 'mup' or 'complete-p', which makes up for such factors."
_UPDATES = tuple(meter for meter in UPDATES if meter != "activation")
ADVICE: dict[tuple[str, Axis, Verdict], Advice] = {
    **{(meter, "width", "COLLAPSES"): _LAZY for meter in _UPDATES},
    **{(meter, "width", "GROWS"): _WIDE for meter in _UPDATES},
    ("activation", "depth", "GROWS"): Advice(
        "the residual stream grows with depth", "Use 'complete-p'.", _DEPTH, "branches carry no 1/sqrt(L)"
    ),
    ("activation", "depth", "COLLAPSES"): Advice(
        "activations vanish with depth", "Check the initialisation and the norms."
    ),
    ("activation", "width", "GROWS"): Advice(
        "the stream grows with width", "Use rule 'mup' or 'complete-p' instead of 'standard'.", _WIDTH
    ),
    ("activation", "width", "COLLAPSES"): Advice(
        "the stream shrinks with width",
        "Check after one step: where it shrinks there, the initialisation is not the rule's; else training shrinks it.",
    ),
    ("first_activation", "width", "GROWS"): Advice(f"the stream grows with width {_AT_FIRST}", _BY_PLAN, _WIDTH),
    ("first_activation", "width", "COLLAPSES"): Advice(f"the stream shrinks with width {_AT_FIRST}", _BY_PLAN, _WIDTH),
    ("activation_update", "depth", "GROWS"): Advice(
        "the stream moves further the deeper the network",
        "Use 'complete-p', or a lower rate.",
        _COMPLETE,
        "blocks add up coherently",
    ),
    ("activation_update", "depth", "COLLAPSES"): Advice(
        "deep streams hardly move: the rate of the blocks falls too fast"
    ),
    ("inner_update", "depth", "COLLAPSES"): Advice(
        "inner layers stop learning",
        "Use 'complete-p', whose multiplier 1/L keeps the function's step too, or 'depth-mup-inner' (Eq. 8), at the "
        "price that function_update_inner shows.",
        frozenset({"complete-p", "depth-mup-inner"}),
        "their gradient carries the residual multiplier",
    ),
    ("inner_update", "depth", "GROWS"): Advice("inner rates grow too fast with depth", "Use 'complete-p'.", _COMPLETE),
    ("stream_update", "depth", "COLLAPSES"): Advice(
        "outer layers learn less than 1/L of the stream each", "Raise their rate."
    ),
    ("stream_update", "depth", "GROWS"): Advice(
        "outer layers add more than 1/L of the stream each",
        "Use 'complete-p'.",
        _DEPTH,
        "their rates do not fall with depth",
    ),
    ("function_update", "depth", "GROWS"): Advice(
        "a step moves the function further the deeper the network",
        "Lower the rate as depth grows, or use 'complete-p'.",
        _COMPLETE,
    ),
    ("function_update", "depth", "COLLAPSES"): Advice("a step moves the function less the deeper the network"),
    ("function_update_inner", "depth", "GROWS"): Advice(
        "inner updates add up coherently over the blocks (under Eq. 8 as sqrt(L), its price)",
        "Use 'complete-p', or lower the rate as depth grows.",
        _COMPLETE,
    ),
    ("function_update_inner", "depth", "COLLAPSES"): Advice(
        "the effect of inner layers on the function vanishes with depth"
    ),
    ("update_to_weight", "depth", "COLLAPSES"): Advice(
        "inner weights hardly move relative to their initial size in deep networks"
    ),
    ("update_to_weight", "depth", "GROWS"): Advice(
        "inner weights move further relative to their initial size the deeper the network",
        "Lower their rate as depth grows.",
    ),
    ("gradient", "depth", "COLLAPSES"): Advice(
        "gradients vanish on their way down", "Check norms and residual multipliers."
    ),
    ("gradient", "depth", "GROWS"): Advice(
        "gradients explode on their way down", "Use 'complete-p'.", _DEPTH, "branches carry no 1/sqrt(L)"
    ),
    (ALIGNMENT, "width", "STABLE"): Advice(
        "updates stay aligned with their inputs, as mup and similar rules assume: sums over n coordinates grow as n"
    ),
    (ALIGNMENT, "width", "COLLAPSES"): Advice(
        "updates and their inputs lose their alignment with width: sums over n coordinates no longer grow as n, as mup "
        "and similar rules assume",
        "The best rate need not transfer to training of this length: find it at several widths, by nfd transfer.",
    ),
    (ALIGNMENT, "width", "GROWS"): Advice("updates are better aligned with their inputs in wide networks"),
    ("loss", "depth", "COLLAPSES"): Advice("the loss falls with depth: more blocks pay"),
    ("loss", "depth", "GROWS"): Advice("the same rate does worse the deeper the network: it does not transfer"),
    ("loss", "width", "COLLAPSES"): Advice("the loss falls with width: more width pays"),
    ("loss", "width", "GROWS"): Advice("the same rate does worse the wider the network: it does not transfer"),
}
_BY_TRAINING: dict[tuple[str, Axis, Verdict], Advice] = {
    ("activation", "depth", "GROWS"): Advice(
        "the residual stream grows with depth by training, and not at the start",
        "Use 'complete-p'.",
        _DEPTH,
        "rates do not fall with depth",
    ),
}


def advice_of(meter: str, axis: Axis, word: Verdict, reason: Reason = "trend") -> Advice | None:
    """The advice for a verdict; None where there is none."""
    known = ADVICE.get((meter, axis, word))
    return _BY_TRAINING.get((meter, axis, word), known) if reason == "training" else known


def cure_of_all(faults: Iterable[Mapping[str, Any]], rule: str) -> RuleName | None:
    """The rule that has the remedy of every one of these rows built in; None where there is none."""
    remedies = [ADVICE.get((row["meter"], row["axis"], row["verdict"])) for row in faults]
    shared = [name for name in RULES if all(advice and name in advice.rules for advice in remedies)]
    return shared[-1] if shared and rule not in shared else None


def cause(meter: str, axis: Axis, word: Verdict, rule: RuleName | None = None, reason: Reason = "trend") -> str:
    """What a verdict means, for those in ``ADVICE``: one or two sentences on what was seen and on its remedy.

    Where the rule in use has the remedy built in, it is not named as the cure: something else is wrong.
    """
    known = advice_of(meter, axis, word, reason)
    if known is None:
        return ""
    if rule in known.rules:
        return (
            f"{known.seen}; {rule!r} should keep it: check roles, base and rate, and take more steps or larger sizes."
        )
    because = f": {known.because}" if known.because else ""
    return f"{known.seen}{because}. {known.remedy}".rstrip()


# ---- The table of a check: how every meter changes along one axis, its verdict, and what that means


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
        and verdict_of(before.slope(), span) != "GROWS"
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


# ---- What a check saw at several steps: the networks after each of them, and how meters grow from one to the next


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
        for meter, own in slopes.items():
            if len(own) > 1:
                slope = mean(torch.tensor(own))
                known = slope if math.isfinite(slope.stderr) else UNKNOWN
                row = {"meter": meter, "axis": "step", "slope": known.value} | known.limits
                rows.append(row | {"cause": f"{change(slope, 'step', steps)}."} | ({"stack": stack} if stack else {}))
    return rows


def _meters(run: Row, step: int) -> dict[str, Any]:
    return next((row for row in run["rows"] if row["step"] == step and not row["matrix"]), {})


def _slopes(runs: Sequence[Row], steps: Sequence[int], meter: str) -> Iterator[float]:
    for run in runs:
        values = [_meters(run, step).get(meter, math.nan) for step in steps]
        if all(math.isfinite(value) and value > 0 for value in values):
            yield float(log_slope(steps, torch.tensor(values, dtype=torch.float64)))
