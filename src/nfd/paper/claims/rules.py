"""Rules by which intervals decide, how several verdicts make one, and the bounds they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from nfd.core import UNKNOWN, Interval
from nfd.paper.claims.claim import Judged, Verdict
from nfd.paper.figures.panels import diverged
from nfd.paper.figures.selection import Runs

NEAR = 0.05  # relative differences that count as none
FLAT = 0.1  # exponents of measured sizes that count as the expected one
EVEN = 0.15  # exponents that count as none
FASTER = 0.25  # how much slower than claimed a rate may be: tells 1/size from its root

_WORST_FIRST: tuple[Verdict, ...] = (
    "does not hold",
    "undecided",
    "not testable here",
    "holds with a condition",
    "holds",
)


def inside(found: Interval, low: float, high: float) -> Literal["holds", "does not hold", "undecided"]:
    """Whether a 95 % interval lies within bounds, outside of them, or across one; no difference is not above zero."""
    if (low < found.low or low == -math.inf) and (found.high < high or high == math.inf):
        return "holds" if found.low <= found.high else "undecided"
    return "does not hold" if found.high <= low or found.low >= high else "undecided"


def near(found: Interval, expected: float = 0.0) -> Verdict:
    """Whether an interval is the expected number within ``NEAR``."""
    return inside(found, expected - NEAR, expected + NEAR)


def flat(found: Interval, expected: float = 0.0) -> Verdict:
    """Whether an exponent is the expected one within ``FLAT``."""
    return inside(found, expected - FLAT, expected + FLAT)


def fast(found: Interval, exponent: float) -> Verdict:
    """Whether an exponent is at most ``FASTER`` above the claimed one; faster than claimed is fast enough."""
    return inside(found, -math.inf, exponent + FASTER)


def between(found: Interval, low: float, high: float, reading: str, *tried: str) -> Judged:
    """Holds where the whole interval lies within the bounds, does not where it lies outside."""
    return _judged(found, inside(found, low, high), reading, tried)


def below(found: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies below the bound."""
    return between(found, -math.inf, bound, reading, *tried)


def above(found: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies above the bound."""
    return between(found, bound, math.inf, reading, *tried)


def as_fast_as(found: Interval, exponent: float, reading: str, *tried: str) -> Judged:
    """Holds where an exponent's whole interval is at most ``FASTER`` above the claimed one, does not where it lies
    above that: finite sizes shift a fitted exponent, and what is to be told from 1/size is its root."""
    return _judged(found, fast(found, exponent), reading, tried)


def _judged(found: Interval, verdict: Verdict, reading: str, tried: tuple[str, ...]) -> Judged:
    """With what was tried, where the statement does not simply hold."""
    return Judged(found, verdict, reading, () if verdict == "holds" else tried)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several verdicts, all of which a statement needs; of none, nothing can be said."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), "undecided")


def some_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a statement for every case: with a condition where it holds in some cases and not in others."""
    found = set(verdicts)
    return "holds with a condition" if {"holds", "does not hold"} <= found else together(found)


def rescued(verdict: Verdict, variants: Mapping[str, Verdict]) -> tuple[Verdict, str]:
    """A statement that does not hold, but holds in variants, holds with a condition; and the sentence that says so."""
    helped = [name for name, found in variants.items() if found == "holds"]
    if verdict != "does not hold" or not helped:
        return verdict, ""
    return "holds with a condition", f" The condition: {', '.join(helped)}."


def conditional(judged: Judged, condition: str) -> Judged:
    """What holds, with its condition."""
    if judged.verdict != "holds":
        return judged
    return Judged(judged.value, "holds with a condition", f"{condition} {judged.reading}".strip(), judged.tried)


def known(found: Interval) -> bool:
    """Whether there is a number, with limits."""
    return all(math.isfinite(x) for x in (found.value, found.low, found.high))


def power_said(letter: str, found: Interval) -> str:
    """``L^-0.46 [-0.51, -0.41]``, where there is an exponent."""
    return f"{letter}^{found}" if known(found) else f"no known power of {letter}"


def no_number(runs: Runs, axis: str, name: str) -> Judged:
    """Undecided: by the values of a setting, which networks diverged."""
    return undecided(" ".join(diverged(runs, axis, name)) or "These runs give no number to judge by.")


def undecided(reading: str) -> Judged:
    """Nothing can be said from these runs, and why."""
    return Judged(UNKNOWN, "undecided", reading)
