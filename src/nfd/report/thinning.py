"""What of very many rows a chart draws: a page of a hundred thousand points takes minutes to make and to open."""

from __future__ import annotations

from collections.abc import Sequence

from nfd.experiment.findings.finding import Finding, Row
from nfd.report.tidy import series_of

MOST_ROWS = 5000
MOST_SERIES = 100


def thinned(rows: Sequence[Row]) -> list[Row]:
    """The rows themselves where they are few; else rows of the first hundred series, evenly, with both ends of each."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(series_of(row), []).append(row)
    if len(rows) <= MOST_ROWS and len(series) <= MOST_SERIES:
        return list(rows)
    kept = list(series.values())[:MOST_SERIES]
    share = max(2, MOST_ROWS // len(kept))
    return [row for some in kept for row in _evenly(some, share)]


def left_out(finding: Finding) -> str:
    """What a chart of the finding does not draw, in words; empty where it draws everything."""
    drawn, there = len(thinned(finding.rows)), len(finding.rows)
    if drawn == there:
        return ""
    names = len(set(map(series_of, finding.rows)))
    few = f" of the first {MOST_SERIES} of {names:,} series" if names > MOST_SERIES else ""
    return f"Drawn are {drawn:,} of {there:,} rows{few}, evenly along each series; result.json and the CSV hold all."


def _evenly(rows: Sequence[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(k * step)] for k in range(most)]
