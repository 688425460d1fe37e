"""How often intervals contain the truth, by repetition: outcomes of one draw, and rows of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfd.core.estimates import Interval, standard_errors
from nfd.core.random import derive

Row = dict[str, Any]

NOMINAL, WANTED = 0.95, 0.93


class Outcome(NamedTuple):
    """One interval of one repetition: its kind, the case, its limits, and the truth that it should hold."""

    kind: str
    case: str
    low: float
    high: float
    truth: float


Draw = Callable[[torch.Generator], Iterable[Outcome]]


def share(count: float, total: float) -> Interval:
    """``count`` of ``total`` with Wilson's 95 % interval."""
    z, p = standard_errors(math.inf), count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return Interval(p, math.sqrt(p * (1 - p) / total), middle - half, middle + half)


def outcome(kind: str, case: str, found: Interval, truth: float) -> Outcome:
    """An outcome of an interval."""
    return Outcome(kind, case, found.low, found.high, truth)


def repeated(draws: Sequence[Draw], repetitions: int, seed: int) -> list[Row]:
    """Rows of all kinds and cases: every draw this many times, each from random numbers of its own."""
    outcomes: list[Outcome] = []
    for index, draw in enumerate(draws):
        generator = torch.Generator().manual_seed(derive(seed, "coverage", index))
        for _ in range(repetitions):
            outcomes += draw(generator)
    return counted(outcomes)


def counted(outcomes: Iterable[Outcome]) -> list[Row]:
    """One row per kind and case: the share of known intervals that contain the truth, and its standard error."""
    held: dict[tuple[str, str], list[bool]] = {}
    for one in outcomes:
        known = held.setdefault((one.kind, one.case), [])
        if math.isfinite(one.low) and math.isfinite(one.high):
            known.append(one.low <= one.truth <= one.high)
    return [row(kind, case, sum(known), len(known)) for (kind, case), known in held.items()]


def row(kind: str, case: str, covered: int, count: int) -> Row:
    """What a table shows of ``covered`` in ``count`` intervals."""
    found = share(covered, count) if count else Interval(math.nan, math.nan, math.nan, math.nan)
    measured, error = found.value, found.stderr
    return {"kind": kind, "case": case, "nominal": NOMINAL, "measured": measured, "error": error, "count": count}


def joined(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of several runs, those of one kind and case together; what else a row says is kept from the first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for one in (one for rows in parts for one in rows):
        found.setdefault((one["kind"], one["case"]), []).append(one)
    return [
        same[0] | row(*place, sum(map(covered_in, same)), sum(r["count"] for r in same))
        for place, same in found.items()
    ]


def covered_in(one: Row) -> int:
    """How many intervals of a row contain the truth."""
    return round(one["measured"] * one["count"]) if one["count"] else 0


def verdict(one: Row) -> str:
    """Whether a row reaches ``WANTED``; where it is below by less than the noise of counting (Wilson), nobody knows."""
    if not one["count"]:
        return "not measured"
    if one["measured"] >= WANTED:
        return "reaches it"
    return "undecided" if share(covered_in(one), one["count"]).high >= WANTED else "falls short"


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent standard normal numbers, float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
