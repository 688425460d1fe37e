"""A statement of the paper, what it is judged by, and the rules by which intervals decide."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from nfd.core import UNKNOWN, Interval, derive, interval, log_slope
from nfd.data import Dataset
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import diverged
from nfd.paper.settings import Preset


class ClaimVerdict(StrEnum):
    """Whether a statement holds, by the measurement that tests it."""

    HOLDS = "holds"
    CONDITIONAL = "holds with a condition"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    UNTESTABLE = "not testable here"

    @classmethod
    def of(cls, holds: bool) -> ClaimVerdict:
        """Return the verdict by a number without randomness, which is on one side of its bound."""
        return cls.HOLDS if holds else cls.FAILS

    @property
    def opposite(self) -> ClaimVerdict:
        """The verdict on the negation of the statement."""
        if self == ClaimVerdict.HOLDS:
            return ClaimVerdict.FAILS
        if self == ClaimVerdict.FAILS:
            return ClaimVerdict.HOLDS
        return self


@dataclass(frozen=True)
class Judged:
    """What a measurement says of a statement.

    Attributes:
        reading: names the condition, the counter-measurement, or why nothing can be said.
        tried: what was varied, so that the statement might hold where it does not: never empty
            where it fails.
    """

    value: Interval
    verdict: ClaimVerdict
    reading: str
    tried: tuple[str, ...] = ()


def only_of(figure: str) -> str:
    """Return what ``--only`` calls a figure: ``fig5`` for "figure-5"."""
    return figure.replace("figure-", "fig")


def figure_of(id_: str, source: str) -> str | None:
    """Return the figure that a statement is about, as "figure-5", or None.

    It is the first that its source names, or else the one that its id names.
    """
    match = re.search(r"Fig\. (\d)", source) or re.match(r"fig(\d)-", id_)
    return f"figure-{match[1]}" if match else None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words.

    Attributes:
        source: where it stands in the text.
        measurement: what is measured to test it, in words. measure: does so.
    """

    id: str
    source: str
    statement: str
    measurement: str
    measure: Callable[[Evidence], Judged]

    def row(self, evidence: Evidence) -> dict[str, Any]:
        """Return the claim and its verdict as one row of the table."""
        judged = self.measure(evidence)
        return {
            "id": self.id,
            "source": self.source,
            "statement": self.statement,
            "measurement": self.measurement,
            **asdict(judged.value),
            "verdict": str(judged.verdict),
            "reading": judged.reading,
            "tried": list(judged.tried),
        }


# ---- What claims are judged by: the runs of the figures, and data to compute on


class PartsAtNeed(dict[str, Runs]):
    """The parts of a figure, each trained when it is first read."""

    def __init__(
        self, names: Iterable[str], train: Callable[[Sequence[str]], Mapping[str, Runs]]
    ) -> None:
        super().__init__()
        self.names = set(names)
        self.train = train

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __missing__(self, name: str) -> Runs:
        self.update(self.train([name]))
        return self[name]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What claims are judged by.

    What claims measure is cached with the object itself, which therefore equals no other.

    Attributes:
        size: how large the networks are that a claim itself trains. dataset: what they train on.
        runs: the runs of figures "1" to "7" and "claims", by figure and part.
    """

    size: Preset
    dataset: Dataset
    seed: int = 0
    runs: Mapping[str, Mapping[str, Runs]] = field(default_factory=dict)

    def part(self, figure: str, name: str, more: str = "") -> Runs:
        """Return the runs of a part of a figure, or what claims have in their place.

        Runs of claims have more seeds or steps than the figure shows; they are a part of "claims"
        such as ``4-gains``, for Figure 4 and ``more`` (by default ``name``).
        """
        name_in_claims = f"{figure}-{more or name}"
        of_claims = self.runs.get("claims", {})
        if name_in_claims in of_claims:
            return of_claims[name_in_claims]
        return self.runs[figure][name]

    @property
    def classes(self) -> int:
        """The number of classes, C."""
        return len(self.dataset.classes)


# ---- Rules by which intervals decide, how several verdicts make one, and the bounds they share

# Relative differences that count as none.
NEAR = 0.05
# How far an exponent of measured sizes may be from the expected one.
FLAT = 0.1
# Exponents that count as none.
EVEN = 0.15
# How much slower than claimed a rate may be: half of what parts 1/size from its root.
FASTER = 0.25

_WORST_FIRST: tuple[ClaimVerdict, ...] = (
    ClaimVerdict.FAILS,
    ClaimVerdict.UNDECIDED,
    ClaimVerdict.UNTESTABLE,
    ClaimVerdict.CONDITIONAL,
    ClaimVerdict.HOLDS,
)


def inside(measured: Interval, low: float, high: float) -> ClaimVerdict:
    """Judge whether a 95 % interval lies within bounds, outside of them, or across one.

    An interval that touches a bound is not inside: no difference is not above zero. One with
    limits that are not numbers is undecided.
    """
    is_above_low = low < measured.low or low == -math.inf
    is_below_high = measured.high < high or high == math.inf
    if is_above_low and is_below_high:
        return ClaimVerdict.HOLDS if measured.low <= measured.high else ClaimVerdict.UNDECIDED
    if measured.high <= low or measured.low >= high:
        return ClaimVerdict.FAILS
    return ClaimVerdict.UNDECIDED


def near(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Judge whether an interval is the expected number within ``NEAR``."""
    return inside(measured, expected - NEAR, expected + NEAR)


def flat(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Judge whether an exponent is the expected one within ``FLAT``."""
    return inside(measured, expected - FLAT, expected + FLAT)


def fast(measured: Interval, exponent: float) -> ClaimVerdict:
    """Judge whether an exponent is at most ``FASTER`` above the claimed one.

    Finite sizes shift a fitted exponent, and the alternative to 1/size is its root. Faster than
    claimed is fast enough.
    """
    return inside(measured, -math.inf, exponent + FASTER)


def between(measured: Interval, low: float, high: float, reading: str, *tried: str) -> Judged:
    """Judge that the whole interval lies within the bounds, or outside of them."""
    return _judged(measured, inside(measured, low, high), reading, tried)


def below(measured: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Judge that the interval lies below the bound."""
    return between(measured, -math.inf, bound, reading, *tried)


def above(measured: Interval, bound: float, reading: str, *tried: str) -> Judged:
    """Judge that the interval lies above the bound."""
    return between(measured, bound, math.inf, reading, *tried)


def as_fast_as(measured: Interval, exponent: float, reading: str, *tried: str) -> Judged:
    """Judge that an exponent is as low as claimed, by the rule of ``fast``."""
    return _judged(measured, fast(measured, exponent), reading, tried)


def _judged(
    measured: Interval, verdict: ClaimVerdict, reading: str, tried: tuple[str, ...]
) -> Judged:
    """Join a verdict with what was tried, where the statement does not simply hold."""
    return Judged(measured, verdict, reading, () if verdict == ClaimVerdict.HOLDS else tried)


def together(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """Return the worst of several verdicts, all of which a statement needs.

    Without any it is undecided.
    """
    given = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in given), ClaimVerdict.UNDECIDED)


def some_of(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """Return the verdict on a statement for every case.

    It has a condition where the statement holds in some cases and not in others.
    """
    given = set(verdicts)
    if {ClaimVerdict.HOLDS, ClaimVerdict.FAILS} <= given:
        return ClaimVerdict.CONDITIONAL
    return together(given)


def rescued(
    verdict: ClaimVerdict, variants: Mapping[str, ClaimVerdict]
) -> tuple[ClaimVerdict, str]:
    """Make a statement conditional that fails, but holds in variants.

    Returns the verdict and a sentence on the condition, which is empty without one.
    """
    helped = [name for name, of_variant in variants.items() if of_variant == ClaimVerdict.HOLDS]
    if verdict != ClaimVerdict.FAILS or not helped:
        return verdict, ""
    return ClaimVerdict.CONDITIONAL, f" The condition: {', '.join(helped)}."


def conditional(judged: Judged, condition: str) -> Judged:
    """Put a condition on a statement that holds."""
    if judged.verdict != ClaimVerdict.HOLDS:
        return judged
    reading = f"{condition} {judged.reading}".strip()
    return replace(judged, verdict=ClaimVerdict.CONDITIONAL, reading=reading)


def known(measured: Interval) -> bool:
    """Return whether there is a number, with limits."""
    return all(math.isfinite(x) for x in (measured.value, measured.low, measured.high))


def power_in_words(letter: str, measured: Interval) -> str:
    """Show an exponent as ``L^-0.46 [-0.51, -0.41]``, where there is one."""
    return f"{letter}^{measured}" if known(measured) else f"no known power of {letter}"


def no_number(runs: Runs, axis: str, name: str) -> Judged:
    """Say for which values of a setting networks diverged, so that nothing can be said."""
    reading = " ".join(diverged(runs, axis, name))
    return undecided(reading or "These runs give no number to judge by.")


def undecided(reading: str) -> Judged:
    """Say that these runs decide nothing, and why."""
    return Judged(UNKNOWN, ClaimVerdict.UNDECIDED, reading)


# ---- What the claims that train networks of their own share: inputs, seeds, and exponents


def seeds(evidence: Evidence, name: str, count: int) -> list[int]:
    """Return seeds of independent networks for one measurement."""
    return [derive(evidence.seed, "claim", name, index) for index in range(count)]


def rows(evidence: Evidence, count: int) -> Tensor:
    """Return the first training inputs [count, d], float64."""
    return evidence.dataset.inputs[:count].double()


def signed(evidence: Evidence, count: int) -> tuple[Tensor, Tensor]:
    """Return training inputs [count, d], and +1 for even classes, -1 for odd ones."""
    is_even = evidence.dataset.labels[:count] % 2 == 0
    return rows(evidence, count), torch.where(is_even, 1.0, -1.0)


def unit(evidence: Evidence) -> Tensor:
    """Return the first training input [1, d], scaled to ``|x|^2 = d``."""
    x = rows(evidence, 1)
    return x / x.square().mean().sqrt()


def over(
    evidence: Evidence,
    name: str,
    sizes: Sequence[int],
    count: int,
    measured: Callable[[int, int], Tensor],
) -> Tensor:
    """Measure independent networks at every size, [count, sizes, ...].

    ``measured`` takes a size and a seed.
    """
    by_size: list[Tensor] = []
    for size in sizes:
        of_size = [measured(size, seed) for seed in seeds(evidence, f"{name}-{size}", count)]
        by_size.append(torch.stack(of_size))
    return torch.stack(by_size, 1)


def exponent(sizes: Sequence[float], samples: Tensor) -> Interval:
    """Return the exponent in the sizes of the mean over networks [R, sizes]."""
    return interval(lambda r: log_slope(sizes, r.mean(0)), samples)


def ratio(first: Tensor, second: Tensor) -> Interval:
    """Return the ratio of the means of two independent groups [R]."""
    return interval(lambda a, b: a.mean(0) / b.mean(0), first, second)


def within(value: float, error: float) -> Interval:
    """Return a number without randomness, known to a numerical error."""
    return Interval(value, error, value - error, value + error)


def span(samples: Tensor) -> Interval:
    """Return the largest of several numbers without noise.

    The limits are the smallest and the largest.
    """
    return Interval(float(samples.max()), 0.0, float(samples.min()), float(samples.max()))


def itemised(intervals: dict[str, Interval]) -> str:
    """Show intervals with their names, for a reading."""
    return "; ".join(f"{name} {value}" for name, value in intervals.items())
