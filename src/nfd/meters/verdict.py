"""A word for how a quantity changes along an axis: does it stay, collapse or grow?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from nfd.core.statistics import Interval
from nfd.meters.trend import Trend

_SMALL, _CLEAR = 0.1, 0.25
_LEAST, _LIKELY = 0.04, 0.25  # a limit's share of the square at the largest size
THRESHOLDS = (
    f"STABLE: the interval lies within ±{_CLEAR}; COLLAPSES, GROWS: beyond ±{_SMALL}, the exponent beyond ±{_CLEAR}."
)
LIMITS = (
    "A meter that tends to a limit, v^2 = a^2 + b^2/size, does not collapse: STABLE where the limit is significant, "
    "UNCERTAIN where a power law fits as well."
)
_MANY = 100  # seeds: beyond it more sizes help sooner

Verdict = Literal["STABLE", "COLLAPSES", "GROWS", "UNCERTAIN", "NOT MEASURED"]
Axis = Literal["width", "depth"]
AXES: tuple[Axis, ...] = ("width", "depth")
Reason = Literal[
    "trend",  # it collapses or grows
    "training",  # it does not at the start, and does by training
    "flat",  # the interval holds zero
    "little",  # it does not, and is small
    "limit",  # a limit is resolved
    "constant",  # one number in every network
    "noise",  # more seeds would settle it
    "edge",  # near the edge of a verdict
    "early",  # what falls as n^-1/2 after few steps, while features move
    "sizes",  # a limit as good as a power
    "near",  # sizes too near each other to tell a trend from what small networks add
    "steps",  # a limit at the first step, not resolved since
    "broken",  # zero or not finite in some networks
    "missing",  # in every network of some size
    "unread",  # the model does not show it
    "zero",  # nothing moves it
    "same",  # the seeds do not differ
]


def verdict(slope: Interval) -> Verdict:
    """``STABLE``: the 95 % interval lies within +-0.25. ``COLLAPSES``, ``GROWS``: it lies beyond -0.1 or +0.1 and the
    slope beyond -0.25 or +0.25. Otherwise ``UNCERTAIN``."""
    if slope.low >= -_CLEAR and slope.high <= _CLEAR:
        return "STABLE"
    if slope.high < -_SMALL and slope.value < -_CLEAR:
        return "COLLAPSES"
    if slope.low > _SMALL and slope.value > _CLEAR:
        return "GROWS"
    return "UNCERTAIN"


def judged(now: Trend, first: Trend | None = None) -> tuple[Verdict, Reason]:
    """The word for a trend, and why, from the trend at the end and, where training went on, after the first step.

    By its slope as ``verdict`` says, but a quantity that comes to a limit above zero does not collapse. ``STABLE``,
    too, is what falls as the law with a limit while the power law is refused, if by it the exponent at the largest size
    lies within +-0.25. ``COLLAPSES`` needs a power law that refuses the limit, or a limit that is small beside what is
    left at the largest size: its square below 1/4 by the best fit, the interval reaching down to 1/25 and not up to
    0.8, where the exponent is still -0.1; and, unless the fall has become steeper since the first step, where networks
    scatter least, no limit that was sure there.
    """
    word = verdict(now.slope)
    if word == "STABLE":
        return word, "flat" if now.slope.low <= 0 <= now.slope.high else "little"
    if word == "GROWS" or now.slope.value > 0:
        return word, "trend" if word == "GROWS" else "edge"
    if now.limit_alone and now.limit.low > 0 and verdict(now.local) == "STABLE":
        return "STABLE", "limit"
    if word != "COLLAPSES":
        return word, "edge"
    if not now.power_alone and not _vanishes(now.limit):
        return "UNCERTAIN", "sizes"
    if first is not None and first.limit.low > _LEAST and not first.power_alone:
        steeper = now.slope.value < first.slope.value - _SMALL
        return (word, "trend") if steeper else ("UNCERTAIN", "steps")
    return word, "trend"


def _vanishes(limit: Interval) -> bool:
    """Whether a limit may be zero, is small, and leaves an exponent beyond -0.1 at the largest size."""
    return limit.low <= _LEAST and limit.value < _LIKELY and limit.high < 1 - 2 * _SMALL


def since(sizes: Sequence[int], values: Tensor) -> int:
    """The size from which every later local slope of ``values`` [sizes] is beyond 0.25, or the last but one."""
    x = values.double().log()
    start = len(sizes) - 2
    while start > 0 and abs(float(x[start] - x[start - 1])) > _CLEAR * math.log(sizes[start] / sizes[start - 1]):
        start -= 1
    return sizes[start]


def seeds_needed(slope: Interval, seeds: int) -> int | None:
    """How many seeds would settle an uncertain slope, if it stays where it is; None where no number would,
    or too many to ask for.

    An interval shrinks as the root of their number.
    """
    half, size = (slope.high - slope.low) / 2, abs(slope.value)
    room = _CLEAR - size if size < _CLEAR else size - _SMALL
    if not math.isfinite(half) or room <= 0.01:
        return None
    needed = max(seeds + 1, math.ceil(seeds * (half / room) ** 2))
    return needed if needed <= _MANY else None
