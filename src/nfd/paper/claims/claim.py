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
        """The verdict where the answer is known: a number without randomness, on one side of its
        bound.
        """
        return cls.HOLDS if holds else cls.FAILS

    @property
    def opposite(self) -> ClaimVerdict:
        """The verdict on the negation of the statement."""
        return {ClaimVerdict.HOLDS: ClaimVerdict.FAILS, ClaimVerdict.FAILS: ClaimVerdict.HOLDS}.get(
            self, self
        )


@dataclass(frozen=True)
class Judged:
    """What a measurement says of a statement.

    ``reading`` names the condition, the counter-measurement, or why nothing can be said; ``tried``
    is what was varied, so that the statement might hold where it does not: never empty there.
    """

    value: Interval
    verdict: ClaimVerdict
    reading: str
    tried: tuple[str, ...] = ()


def only_of(figure: str) -> str:
    """The name by which ``--only`` takes the statements of a figure: ``fig5`` for "figure-5"."""
    return figure.replace("figure-", "fig")


def figure_of(id_: str, source: str) -> str | None:
    """The figure that a statement is about, as "figure-5": the first that its source names, or that
    of its id.
    """
    match = re.search(r"Fig\. (\d)", source) or re.match(r"fig(\d)-", id_)
    return f"figure-{match[1]}" if match else None


@dataclass(frozen=True)
class Claim:
    """A statement: where it stands in the text, what it says in our words, and what is measured to
    test it.
    """

    id: str
    source: str
    statement: str
    measurement: str
    measure: Callable[[Evidence], Judged]

    def row(self, evidence: Evidence) -> dict[str, Any]:
        """The claim and its verdict as one line of the table."""
        judged = self.measure(evidence)
        about = {name: value for name, value in vars(self).items() if name != "measure"}
        return (
            about
            | asdict(judged.value)
            | {
                "verdict": str(judged.verdict),
                "reading": judged.reading,
                "tried": list(judged.tried),
            }
        )


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
    """The data set, at which size networks are taken where a claim trains its own, and the runs of
    the figures.

    ``runs`` are by figure, "1" to "7" and "claims", and by part. What is measured here is kept with
    the object itself, which therefore equals no other.
    """

    size: Preset
    dataset: Dataset
    seed: int = 0
    runs: Mapping[str, Mapping[str, Runs]] = field(default_factory=dict)

    def part(self, figure: str, name: str, more: str = "") -> Runs:
        """The runs of a part of a figure; in their place those that claims have of their own, as
        ``4-gains`` for the part ``gains`` of Figure 4: more seeds or steps than the figure
        shows."""
        own = f"{figure}-{more or name}"
        of_claims = self.runs.get("claims", {})
        return of_claims[own] if own in of_claims else self.runs[figure][name]

    @property
    def classes(self) -> int:
        """C."""
        return len(self.dataset.classes)


# ---- Rules by which intervals decide, how several verdicts make one, and the bounds they share

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
    """Whether a 95 % interval lies within bounds, outside of them, or across one; no difference is
    not above zero.
    """
    if (low < measured.low or low == -math.inf) and (measured.high < high or high == math.inf):
        return ClaimVerdict.HOLDS if measured.low <= measured.high else ClaimVerdict.UNDECIDED
    return (
        ClaimVerdict.FAILS
        if measured.high <= low or measured.low >= high
        else ClaimVerdict.UNDECIDED
    )


def near(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Whether an interval is the expected number within ``NEAR``."""
    return inside(measured, expected - NEAR, expected + NEAR)


def flat(measured: Interval, expected: float = 0.0) -> ClaimVerdict:
    """Whether an exponent is the expected one within ``FLAT``."""
    return inside(measured, expected - FLAT, expected + FLAT)


def fast(measured: Interval, exponent: float) -> ClaimVerdict:
    """Whether an exponent is at most ``FASTER`` above the claimed one; faster than claimed is fast
    enough.
    """
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
    """Holds where an exponent's whole interval is at most ``FASTER`` above the claimed one, does
    not where it lies above that: finite sizes shift a fitted exponent, and the alternative to
    1/size is its root."""
    return _judged(measured, fast(measured, exponent), reading, tried)


def _judged(
    measured: Interval, verdict: ClaimVerdict, reading: str, tried: tuple[str, ...]
) -> Judged:
    """With what was tried, where the statement does not simply hold."""
    return Judged(measured, verdict, reading, () if verdict == ClaimVerdict.HOLDS else tried)


def together(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """The worst of several verdicts, all of which a statement needs; of none, nothing can be
    said.
    """
    given = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in given), ClaimVerdict.UNDECIDED)


def some_of(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """The verdict on a statement for every case: with a condition where it holds in some cases and
    not in others.
    """
    given = set(verdicts)
    return (
        ClaimVerdict.CONDITIONAL
        if {ClaimVerdict.HOLDS, ClaimVerdict.FAILS} <= given
        else together(given)
    )


def rescued(
    verdict: ClaimVerdict, variants: Mapping[str, ClaimVerdict]
) -> tuple[ClaimVerdict, str]:
    """A statement that does not hold, but holds in variants, holds with a condition; and the
    sentence that says so.
    """
    helped = [name for name, of_variant in variants.items() if of_variant == ClaimVerdict.HOLDS]
    if verdict != ClaimVerdict.FAILS or not helped:
        return verdict, ""
    return ClaimVerdict.CONDITIONAL, f" The condition: {', '.join(helped)}."


def conditional(judged: Judged, condition: str) -> Judged:
    """What holds, with its condition."""
    if judged.verdict != ClaimVerdict.HOLDS:
        return judged
    return replace(
        judged, verdict=ClaimVerdict.CONDITIONAL, reading=f"{condition} {judged.reading}".strip()
    )


def known(measured: Interval) -> bool:
    """Whether there is a number, with limits."""
    return all(math.isfinite(x) for x in (measured.value, measured.low, measured.high))


def power_said(letter: str, measured: Interval) -> str:
    """``L^-0.46 [-0.51, -0.41]``, where there is an exponent."""
    return f"{letter}^{measured}" if known(measured) else f"no known power of {letter}"


def no_number(runs: Runs, axis: str, name: str) -> Judged:
    """Undecided: by the values of a setting, which networks diverged."""
    return undecided(
        " ".join(diverged(runs, axis, name)) or "These runs give no number to judge by."
    )


def undecided(reading: str) -> Judged:
    """Nothing can be said from these runs, and why."""
    return Judged(UNKNOWN, ClaimVerdict.UNDECIDED, reading)


# ---- What the claims that train networks of their own share: inputs, seeds, and exponents


def seeds(evidence: Evidence, name: str, count: int) -> list[int]:
    """Seeds of independent networks for one measurement."""
    return [derive(evidence.seed, "claim", name, index) for index in range(count)]


def rows(evidence: Evidence, count: int) -> Tensor:
    """The first training inputs [count, d], float64."""
    return evidence.dataset.inputs[:count].double()


def signed(evidence: Evidence, count: int) -> tuple[Tensor, Tensor]:
    """Training inputs [count, d] and +1 for even classes, -1 for odd ones."""
    return rows(evidence, count), torch.where(evidence.dataset.labels[:count] % 2 == 0, 1.0, -1.0)


def unit(evidence: Evidence) -> Tensor:
    """The first training input [1, d] with ``|x|^2 = d``."""
    x = rows(evidence, 1)
    return x / x.square().mean().sqrt()


def over(
    evidence: Evidence,
    name: str,
    sizes: Sequence[int],
    count: int,
    measured: Callable[[int, int], Tensor],
) -> Tensor:
    """``measured(size, seed)`` of independent networks at every size, [count, sizes, ...]."""
    columns = [
        torch.stack([measured(size, seed) for seed in seeds(evidence, f"{name}-{size}", count)])
        for size in sizes
    ]
    return torch.stack(columns, 1)


def exponent(sizes: Sequence[float], samples: Tensor) -> Interval:
    """The exponent in the sizes of the mean over networks [R, sizes]."""
    return interval(lambda r: log_slope(sizes, r.mean(0)), samples)


def ratio(first: Tensor, second: Tensor) -> Interval:
    """The ratio of the means of two independent groups [R]."""
    return interval(lambda a, b: a.mean(0) / b.mean(0), first, second)


def within(value: float, error: float) -> Interval:
    """A number without randomness, known to a numerical error."""
    return Interval(value, error, value - error, value + error)


def span(samples: Tensor) -> Interval:
    """The largest of several numbers without noise; the limits are the smallest and the largest."""
    return Interval(float(samples.max()), 0.0, float(samples.min()), float(samples.max()))


def itemised(intervals: dict[str, Interval]) -> str:
    """Intervals with their names, for a reading."""
    return "; ".join(f"{name} {value}" for name, value in intervals.items())
