"""Names at the ends of lines, in place of a legend where lines are few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nfd.report.tidy import Point, Span

MOST = 8  # lines that are named at their ends; more have a legend
_LONGEST = 34  # characters of a name at an end
_GAP = 15.0  # pixels from one name to the next


def end_labels(
    points: Sequence[Point], names: Sequence[str], spans: Mapping[str, Span], *, log: bool, height: float
) -> list[dict[str, Any]]:
    """A label for the last point of each series: ``series``, ``x``, ``y``, and ``shift``, pixels that keep names apart.

    Nothing where there is one series, or more than ``MOST``, or a name too long for the margin.
    """
    lasts = {name: [p for p in points if p["series"] == name][-1:] for name in names}
    ends = [ends[0] for ends in lasts.values() if ends]
    if not 1 < len(ends) <= MOST or max(len(end["series"]) for end in ends) > _LONGEST:
        return []
    low, high = spans["log" if log else "linear"]
    form = math.log if log else float
    heights = [height * (form(end["y"]) - form(low)) / (form(high) - form(low)) for end in ends]
    return [
        {"series": end["series"], "x": end["x"], "y": end["y"], "shift": at - wanted}
        for end, at, wanted in zip(ends, apart(heights, _GAP), heights, strict=True)
    ]


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The nearest heights, in the sum of squares, that are in the same order and at least ``gap`` apart."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    blocks = list[tuple[float, list[int]]]()  # of heights that touch: their mean without the gaps, their places
    for place, k in enumerate(order):
        mean, members = heights[k] - place * gap, [k]
        while blocks and blocks[-1][0] > mean:
            below, others = blocks.pop()
            mean = (mean * len(members) + below * len(others)) / (len(members) + len(others))
            members = others + members
        blocks.append((mean, members))
    levels = [mean for mean, members in blocks for _ in members]
    placed = dict(zip((k for _, members in blocks for k in members), enumerate(levels), strict=True))
    return [placed[k][1] + placed[k][0] * gap for k in range(len(heights))]
