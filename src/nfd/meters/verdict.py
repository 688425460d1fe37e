"""A word for how a quantity changes along an axis: does it stay, fall to a limit, collapse or grow?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from nfd.core.estimates import Interval
from nfd.core.names import Axis

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


def verdict(slope: Interval, span: float = math.inf) -> Verdict:
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
    word = verdict(slope, span)
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
