"""Measure how often 95 % intervals contain the truth, by repetition: ``make coverage``.

It writes docs/coverage.csv and fills a page. Every kind of interval is made by the function that
the library makes it with, from numbers or networks whose truth is known: the draws of
``calibration.coverage_cases``, ``coverage_laws``, ``coverage_powers`` and ``coverage_bowls``. Two
processes share them.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from makers.pages.words import paragraph
from makers.tables import fill_page, markdown, terminal
from nfd.core.estimates import Interval, share
from nfd.core.files import write_csv
from nfd.core.random import derive

Row = dict[str, Any]

NOMINAL = 0.95
WANTED = 0.93
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "coverage.md"
TABLE = DOCS / "coverage.csv"


class Outcome(NamedTuple):
    """One interval of one repetition: its kind and case, its limits, and the truth."""

    kind: str
    case: str
    low: float
    high: float
    truth: float


Draw = Callable[[torch.Generator], Iterable[Outcome]]


def outcome(kind: str, case: str, interval: Interval, truth: float) -> Outcome:
    """An outcome of an interval."""
    return Outcome(kind, case, interval.low, interval.high, truth)


def repeated(draw: Draw, repetitions: int, seed: int) -> list[Row]:
    """A row per kind and case of a draw: the share of known intervals that contain the truth.

    ``measured`` and its standard error, ``error``; ``count`` leaves out intervals that are not
    known.
    """
    torch.set_num_threads(1)
    # Short runs warn of their noise.
    warnings.simplefilter("ignore", RuntimeWarning)
    holds_by_case: dict[tuple[str, str], list[bool]] = {}
    for index in range(repetitions):
        for one in draw(torch.Generator().manual_seed(derive(seed, "repetition", index))):
            holds = holds_by_case.setdefault((one.kind, one.case), [])
            if math.isfinite(one.low) and math.isfinite(one.high):
                holds.append(one.low <= one.truth <= one.high)
    return [row(*names, sum(holds), len(holds)) for names, holds in holds_by_case.items()]


def row(kind: str, case: str, covered: int, count: int) -> Row:
    """What the table has of ``covered`` in ``count`` intervals."""
    interval = share(covered, count) if count else Interval(math.nan, math.nan, math.nan, math.nan)
    today = datetime.now(UTC).date().isoformat()
    measured = round(interval.value, 4)
    error = round(interval.stderr, 4)
    return {
        "kind": kind,
        "case": case,
        "measured": measured,
        "error": error,
        "count": count,
        "date": today,
    }


def verdict(one: Row) -> str:
    """Whether a row reaches ``WANTED``.

    It is undecided where it is below by less than the noise of counting (Wilson).
    """
    if not one["count"]:
        return "not measured"
    if one["measured"] >= WANTED:
        return "reaches it"
    interval = share(one["measured"] * one["count"], one["count"])
    return "undecided" if interval.high >= WANTED else "falls short"


def draws() -> dict[str, Sequence[Draw]]:
    """All draws by the name of their part.

    The slowest come first, so that no process is left with one at the end.
    """
    # They import this module.
    laws = import_module("calibration.coverage_laws")
    powers = import_module("calibration.coverage_powers")
    bowls = import_module("calibration.coverage_bowls")
    cases = import_module("calibration.coverage_cases")
    return {
        "predict": cases.PREDICTIONS,
        "laws": laws.LAWS,
        "powers": powers.DRAWS,
        "rates": laws.DRAWS,
        "bowls": bowls.DRAWS,
        "noise": cases.SCALES,
        "slopes": cases.SLOPES,
        "means": cases.MEANS,
    }


# ---- the page


def read() -> list[Row]:
    """The stored table."""
    with TABLE.open(newline="") as lines:
        rows: list[Row] = list(csv.DictReader(lines))
    for one in rows:
        one["measured"] = float(one["measured"])
        one["error"] = float(one["error"])
        one["count"] = int(one["count"])
    return rows


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """The texts of the page: how many cases reach ``WANTED``, and a row per kind of the others."""
    counted = [one for one in rows if one["count"]]
    low = [one for one in counted if one["measured"] < WANTED]
    surely = dict[str, Row]()
    for one in sorted(low, key=measured):
        if verdict(one) == "falls short":
            surely.setdefault(one["kind"], one)
    count = sum(verdict(one) == "falls short" for one in low)
    lowest = "; ".join(f"{kind}, {shown(one)} at the lowest" for kind, one in surely.items())
    answer = paragraph(
        f"A 95 % interval should contain the truth 19 times in 20. **{len(counted) - len(low)} of "
        f"{len(counted)} cases reach {100 * WANTED:.0f} %.** Of the other {len(low)}, "
        f"{count} are surely lower, by the noise of counting" + (f" ({lowest})." if surely else ".")
    )
    by_kind = dict[str, list[Row]]()
    for one in low:
        by_kind.setdefault(one["kind"], []).append(one)
    below = []
    for kind, cases in by_kind.items():
        least = min(cases, key=measured)
        of_kind = sum(one["kind"] == kind for one in counted)
        below.append(
            {
                "kind": kind,
                "cases": f"{len(cases)} of {of_kind}",
                "lowest": least["case"],
                "holds the truth": shown(least),
            }
        )
    return {"answer": answer, "below": markdown(below)}


def measured(one: Row) -> float:
    """The share of intervals that contain the truth."""
    return float(one["measured"])


def shown(one: Row) -> str:
    """Coverage with Wilson's interval, in percent."""
    interval = share(one["measured"] * one["count"], one["count"])
    return f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def main() -> None:
    """Measure the parts that are chosen; with ``--keep``, renew the stored table and the page."""
    parts = draws()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000, help="of every case")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        choices=parts,
        default=list(parts),
        help=", ".join(parts),
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", action="store_true", help="write docs/coverage.csv and fill docs/coverage.md"
    )
    given = parser.parse_args()
    start = time.perf_counter()
    chosen = list[Draw]()
    for part in given.only:
        chosen += parts[part]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        seeds = [derive(given.seed, "coverage", index) for index in range(len(chosen))]
        results = pool.map(repeated, chosen, [given.repetitions] * len(chosen), seeds)
        rows = list(chain.from_iterable(results))
    terminal("coverage", [one | {"": verdict(one)} for one in rows])
    if given.keep:
        stored = {(one["kind"], one["case"]): one for one in [*read(), *rows]}
        write_csv(TABLE, list(stored.values()))
        fill_page(PAGE, tables(read()))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
