"""The rows of a watch in series: a meter of the whole network, or of its layers of one kind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from nfd.watch.ladder import Series, kinds_of, series_of
from nfd.watch.rows import WatchRow


def in_series(rows: Sequence[WatchRow]) -> dict[Series, list[WatchRow]]:
    """The rows of every series, in their order."""
    kinds, series = kinds_of(rows), defaultdict[Series, list[WatchRow]](list)
    for row in rows:
        series[series_of(row, kinds)].append(row)
    return dict(series)


def steps_of(rows: Sequence[WatchRow]) -> list[int]:
    """The steps of rows, which are in their order; searched, as a long run has many rows of a step."""
    steps, place = list[int](), 0
    while place < len(rows):
        steps.append(rows[place].step)
        place = bisect_right(rows, steps[-1], lo=place, key=attrgetter("step"))
    return steps


def at_steps(rows: Sequence[WatchRow], steps: Iterable[int]) -> list[WatchRow]:
    """Those rows, in the order of their steps, that are of these steps."""
    step = attrgetter("step")
    return [row for at in steps for row in rows[bisect_left(rows, at, key=step) : bisect_right(rows, at, key=step)]]
