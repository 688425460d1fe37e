"""Rules by which intervals decide."""

from __future__ import annotations

import math

from nfd.claims.claim import UNKNOWN, Judged, Verdict, inside
from nfd.core.statistics import Interval

FASTER = 0.25  # how much slower than claimed a rate may seem to be
EVEN = 0.15  # exponents that count as none


def between(found: Interval, low: float, high: float, reading: str, *tried: str) -> Judged:
    """Holds where the whole interval lies within the bounds, does not where it lies outside."""
    return Judged(found, inside(found, low, high), reading, tried)


def below(found: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies below the bound."""
    return between(found, -math.inf, bound, reading, *tried)


def above(found: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies above the bound."""
    return between(found, bound, math.inf, reading, *tried)


def as_fast_as(found: Interval, exponent: float, reading: str, *tried: str) -> Judged:
    """Holds where an exponent's interval reaches the claimed one or lies below it, and is no wider above it than
    ``FASTER``; does not where it lies above."""
    if found.low > exponent:
        verdict: Verdict = "does not hold"
    else:
        verdict = "holds" if found.high <= exponent + FASTER else "undecided"
    return Judged(found, verdict, reading, tried)


def conditional(judged: Judged, condition: str) -> Judged:
    """What holds, with its condition."""
    if judged.verdict != "holds":
        return judged
    return Judged(judged.value, "holds with a condition", f"{condition} {judged.reading}".strip(), judged.tried)


def undecided(reading: str) -> Judged:
    """Nothing can be said from these runs, and why."""
    return Judged(UNKNOWN, "undecided", reading)
