"""What of very many rows a chart draws: a page of a hundred thousand points takes minutes to make and to open."""

from __future__ import annotations

from collections.abc import Sequence

from nfd.core.tables import Row
from nfd.questions.finding import Axes, Finding
from nfd.report.tidy import drawable, series_of

MOST_ROWS = 5000
MOST_SERIES = 100


def thinned(rows: Sequence[Row], axes: Axes) -> list[Row]:
    """The rows themselves where they are few; else the outline of each of the first hundred series."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(series_of(row), []).append(row)
    if len(rows) <= MOST_ROWS and len(series) <= MOST_SERIES:
        return list(rows)
    kept = list(series.values())[:MOST_SERIES]
    return [row for own_rows in kept for row in _outline(own_rows, axes.y, MOST_ROWS // len(kept))]


def left_out(finding: Finding) -> str:
    """What a chart of the finding does not draw, in words; empty where it draws everything."""
    drawn, total = len(thinned(finding.rows, finding.axes)), len(finding.rows)
    if drawn == total:
        return ""
    names = len(set(map(series_of, finding.rows)))
    few = f" of the first {MOST_SERIES} of {names:,} series" if names > MOST_SERIES else ""
    along = "the lowest and the highest of equal stretches of each series"
    return f"Drawn are {drawn:,} of {total:,} rows{few}, {along}; result.json and the CSV hold all."


def _outline(rows: Sequence[Row], y: str, most: int) -> list[Row]:
    """Both ends, and the lowest and the highest of each of equal stretches between them: no spike is left out."""
    if len(rows) <= most:
        return list(rows)
    stretches, last = most // 2 - 1, len(rows) - 1
    kept = {0, last}
    for k in range(stretches):
        stretch = range(1 + k * (last - 1) // stretches, 1 + (k + 1) * (last - 1) // stretches)
        heights = {i: value for i in stretch if drawable(value := rows[i].get(y))}
        kept |= {min(heights, key=heights.__getitem__, default=stretch[0])}
        kept |= {max(reversed(heights), key=heights.__getitem__, default=stretch[0])}
    return [rows[i] for i in sorted(kept)]
