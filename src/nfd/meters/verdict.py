"""A word for a slope: does a quantity stay, collapse or grow along an axis?"""

from __future__ import annotations

from typing import Literal

from nfd.core.statistics import Interval

_SMALL, _CLEAR = 0.1, 0.25

Verdict = Literal["STABLE", "COLLAPSES", "GROWS", "UNCERTAIN"]


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
