"""Rules by which intervals decide, how several verdicts make one, and the bounds they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nfd.core import UNKNOWN, Interval
from nfd.paper.claims.claim import ClaimVerdict, Judged
from nfd.paper.figures.panels import diverged
from nfd.paper.figures.selection import Runs

NEAR = 0.05  # relative differences that count as none
FLAT = 0.1  # exponents of measured sizes that count as the expected one
EVEN = 0.15  # exponents that count as none
FASTER = 0.25  # how much slower than claimed a rate may be: tells 1/size from its root

_WORST_FIRST: tuple[ClaimVerdict, ...] = (
    ClaimVerdict.FAILS,
    ClaimVerdict.UNDECIDED,
    ClaimVerdict.UNTESTABLE,
    ClaimVerdict.CONDITIONAL,
    ClaimVerdict.HOLDS,
)


def inside(measured: Interval, low: float, high: float) -> ClaimVerdict:
    """Whether a 95 % interval lies within bounds, outside of them, or across one; no difference is not above zero."""
    if (low < measured.low or low == -math.inf) and (measured.high < high or high == math.inf):
        return ClaimVerdict.HOLDS if measured.low <= measured.high else ClaimVerdict.UNDECIDED
    return ClaimVerdict.FAILS if measured.high <= low or measured.low >= high else ClaimVerdict.UNDECIDED


def near(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Whether an interval is the expected number within ``NEAR``."""
    return inside(measured, expected - NEAR, expected + NEAR)


def flat(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Whether an exponent is the expected one within ``FLAT``."""
    return inside(measured, expected - FLAT, expected + FLAT)


def fast(measured: Interval, exponent: float) -> ClaimVerdict:
    """Whether an exponent is at most ``FASTER`` above the claimed one; faster than claimed is fast enough."""
    return inside(measured, -math.inf, exponent + FASTER)


def between(measured: Interval, low: float, high: float, reading: str, *tried: str) -> Judged:
    """Holds where the whole interval lies within the bounds, does not where it lies outside."""
    return _judged(measured, inside(measured, low, high), reading, tried)


def below(measured: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies below the bound."""
    return between(measured, -math.inf, bound, reading, *tried)


def above(measured: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Holds where the interval lies above the bound."""
    return between(measured, bound, math.inf, reading, *tried)


def as_fast_as(measured: Interval, exponent: float, reading: str, *tried: str) -> Judged:
    """Holds where an exponent's whole interval is at most ``FASTER`` above the claimed one, does not where it lies
    above that: finite sizes shift a fitted exponent, and the alternative to 1/size is its root."""
    return _judged(measured, fast(measured, exponent), reading, tried)


def _judged(measured: Interval, verdict: ClaimVerdict, reading: str, tried: tuple[str, ...]) -> Judged:
    """With what was tried, where the statement does not simply hold."""
    return Judged(measured, verdict, reading, () if verdict == ClaimVerdict.HOLDS else tried)


def together(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """The worst of several verdicts, all of which a statement needs; of none, nothing can be said."""
    given = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in given), ClaimVerdict.UNDECIDED)


def some_of(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """The verdict on a statement for every case: with a condition where it holds in some cases and not in others."""
    given = set(verdicts)
    return ClaimVerdict.CONDITIONAL if {ClaimVerdict.HOLDS, ClaimVerdict.FAILS} <= given else together(given)


def rescued(verdict: ClaimVerdict, variants: Mapping[str, ClaimVerdict]) -> tuple[ClaimVerdict, str]:
    """A statement that does not hold, but holds in variants, holds with a condition; and the sentence that says so."""
    helped = [name for name, of_variant in variants.items() if of_variant == ClaimVerdict.HOLDS]
    if verdict != ClaimVerdict.FAILS or not helped:
        return verdict, ""
    return ClaimVerdict.CONDITIONAL, f" The condition: {', '.join(helped)}."


def conditional(judged: Judged, condition: str) -> Judged:
    """What holds, with its condition."""
    if judged.verdict != ClaimVerdict.HOLDS:
        return judged
    return replace(judged, verdict=ClaimVerdict.CONDITIONAL, reading=f"{condition} {judged.reading}".strip())


def known(measured: Interval) -> bool:
    """Whether there is a number, with limits."""
    return all(math.isfinite(x) for x in (measured.value, measured.low, measured.high))


def power_said(letter: str, measured: Interval) -> str:
    """``L^-0.46 [-0.51, -0.41]``, where there is an exponent."""
    return f"{letter}^{measured}" if known(measured) else f"no known power of {letter}"


def no_number(runs: Runs, axis: str, name: str) -> Judged:
    """Undecided: by the values of a setting, which networks diverged."""
    return undecided(" ".join(diverged(runs, axis, name)) or "These runs give no number to judge by.")


def undecided(reading: str) -> Judged:
    """Nothing can be said from these runs, and why."""
    return Judged(UNKNOWN, ClaimVerdict.UNDECIDED, reading)
