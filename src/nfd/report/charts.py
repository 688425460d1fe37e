"""Charts of the reports: one Altair object gives the interactive page, the PDF and the PNG."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import altair as alt

from nfd.core.files import write_csv
from nfd.core.tables import Row, visible
from nfd.questions.finding import Axes, Finding
from nfd.report.labels import end_labels
from nfd.report.series import Series, references, styled
from nfd.report.stills import still
from nfd.report.thinning import thinned
from nfd.report.tidy import LOG_X, LOG_Y, Point, across_span, linear_span, log_span, series_of, tidy

Chart = alt.LayerChart

_HEIGHT = 360
_LONGEST = 100  # characters of a name of files
_TICKS = 12  # most values that an axis names one by one
_TITLE_WIDTH = 48  # characters of a line of an axis title
_TRIPS = ("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toString", "valueOf")
_BAND, _STROKE, _THIN = 0.16, 2.0, 1.2


def chart_of(finding: Finding) -> Chart:
    """The chart of a finding, its references behind its series."""
    rows, compared = (thinned(part, finding.axes) for part in (finding.rows, finding.references))
    draw = {"curves": curves, "logcurves": curves, "map": lines}.get(finding.axes.kind, points)
    drawn = draw(rows, styled(rows, finding.axes), finding.axes, compared)
    return drawn.properties(description=visible(f"{finding.title} {finding.headline}".strip()))


def curves(rows: Sequence[Row], series: Sequence[Series], axes: Axes, compared: Sequence[Row] = ()) -> Chart:
    """Lines in bands from ``low`` to ``high``."""
    drawing = _Drawing(rows, series, axes, compared)
    band = drawing.bars(drawing.base.mark_area(fillOpacity=_BAND, clip=True))
    band.encoding.strokeDash = alt.Undefined  # areas have none
    line = drawing.base.mark_line(strokeWidth=_STROKE, clip=True).encode(y=drawing.up())
    return drawing.finished([band, line, drawing.touched(drawing.base)])


def points(rows: Sequence[Row], series: Sequence[Series], axes: Axes, compared: Sequence[Row] = ()) -> Chart:
    """Points with bars from ``low`` to ``high``, joined by lines, on the axes that ``axes.kind`` says."""
    drawing = _Drawing(rows, series, axes, compared)
    clip = drawing.cut
    line = drawing.base.mark_line(strokeWidth=_STROKE, clip=clip).encode(y=drawing.up())
    bars = drawing.bars(drawing.base.mark_rule(strokeWidth=1.5, clip=clip)).encode(strokeDash=alt.value([1, 0]))
    dot = drawing.base.mark_point(filled=True, size=55, opacity=1, clip=clip)
    dots = dot.encode(y=drawing.up(), tooltip=drawing.tooltip())
    return drawing.finished([line, bars, dots])


def lines(rows: Sequence[Row], series: Sequence[Series], axes: Axes, compared: Sequence[Row] = ()) -> Chart:
    """A map with two logarithmic axes: a line for each series, a large point where it has one row."""
    drawing = _Drawing(rows, series, axes, compared)
    together = drawing.base.transform_filter("!datum.alone")
    drawn = together.mark_line(strokeWidth=_STROKE, clip=True).encode(y=drawing.up(), order="x:Q")
    alone = drawing.base.transform_filter("datum.alone").mark_point(filled=True, size=160, opacity=1)
    dots = alone.encode(y=drawing.up(), tooltip=drawing.tooltip())
    return drawing.finished([drawn, dots, drawing.touched(together)])


class _Drawing:
    """What the layers of one chart share: rows, colours, axes and the series that a reader has hidden."""

    def __init__(self, rows: Sequence[Row], series: Sequence[Series], axes: Axes, compared: Sequence[Row]) -> None:
        self.axes = axes
        self.points, self.compared = tidy(rows, axes), tidy(compared, axes)
        counts = Counter(p["series"] for p in self.points)
        own = [s for s in series if s.name in counts]
        self.series = [*own, *references([n for n in _distinct(self.compared) if n not in counts])]
        self.spans = self._spans(complete=len(self.points) == len(tidy(rows, _linear(axes))))
        for point in self.points if axes.kind == "map" else ():
            point["alone"] = counts[point["series"]] == 1
        bottom = self.spans.get("log", (0.0,))[0]
        for point in self.points:
            if "low" in point and "log" in self.spans:
                point["cut"] = max(point["low"], bottom)
        self.base = self._layer(self.points)

    @property
    def cut(self) -> bool:
        """Whether something lies above the top of the y axis."""
        return any(max(p["y"], p.get("high", p["y"])) > self.top for p in [*self.points, *self.compared])

    @property
    def top(self) -> float:
        """The largest value that the y axis may show."""
        return math.inf if self.axes.top is None else self.axes.top

    @property
    def _log(self) -> bool:
        return self.axes.kind in LOG_Y

    def _spans(self, complete: bool) -> dict[str, tuple[float, float]]:
        """The ranges of the y axis by its type: both where a reader may switch, which takes values above zero only."""
        top, points = self.top, [*self.points, *self.compared]
        in_range = [p for p in points if p["y"] <= top] or points
        zero = self.axes.zero and self.axes.kind in ("named", "semilogarithmic", "linear")
        if self.axes.kind == "map":
            ys = [p["y"] for p in in_range]
            return {"log": (min(ys), max(ys)) if len(set(ys)) > 1 else log_span(in_range)}
        spans = {"linear": linear_span(in_range, zero=zero)}
        positive = bool(in_range) and complete and all(p["y"] > 0 for p in in_range)
        both = spans | ({"log": log_span(in_range)} if positive or self._log else {})
        cut = {kind: (low, min(high, top)) for kind, (low, high) in both.items() if low < top} or both
        return cut if complete or not self._log else {"log": cut["log"]}

    def _layer(self, rows: Sequence[Point]) -> alt.Chart:
        """Series on their colours and dashes across the x axis, without those that are hidden."""
        names = [s.name for s in self.series]
        colours = alt.Scale(domain=names, range=[s.colour for s in self.series])
        dashes = alt.Scale(domain=names, range=[list(s.dash) for s in self.series])
        legend = _legend(len(names))
        return (
            alt.Chart(alt.InlineData(values=list(rows)))
            .transform_filter("indexof(hidden, datum.series) < 0")
            .encode(
                x=self.across(),
                color=alt.Color("series:N", scale=colours, legend=legend),
                strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=legend),
            )
        )

    def across(self) -> alt.X:
        """The x axis: named places, or numbers with a tick at every value, or at a few round ones where many."""
        title, kind = _wrapped(self.axes.x_title), self.axes.kind
        if kind == "named":
            places = list(dict.fromkeys(p["x"] for p in [*self.points, *self.compared]))
            return alt.X("x:N", title=title, sort=places, axis=alt.Axis(labelAngle=0))
        log, tight = kind in LOG_X, kind in ("curves", "logcurves", "map")
        values = sorted({p["x"] for p in self.points or self.compared})
        span = across_span(self.points or self.compared, log=log, tight=tight)
        scale = alt.Scale(type="log" if log else "linear", nice=False, domain=list(span))
        few = log and not tight and len(values) <= _TICKS
        axis = alt.Axis(values=values, grid=False) if few else alt.Axis(grid=False, tickCount=_TICKS)
        return alt.X("x:Q", title=title, scale=scale, axis=axis)

    def up(self, column: str = "y") -> alt.Y:
        """The y axis."""
        axis = alt.Axis(grid=False, tickCount=_TICKS) if self.axes.kind == "map" else alt.Undefined
        scale = _scale(self.spans, "log" if self._log else "linear")
        return alt.Y(f"{column}:Q", title=self._up_title, scale=alt.Scale(**scale), axis=axis)

    @property
    def _up_title(self) -> list[str]:
        """The title of the y axis, and below it what bands and bars reach over, where there are any."""
        banded = self.axes.interval and any("low" in point for point in self.points)
        return [*_wrapped(self.axes.y_title), *([f"({self.axes.interval})"] if banded else [])]

    def bars(self, chart: alt.Chart) -> alt.Chart:
        """What reaches from ``low`` to ``high``, of the rows that have them."""
        ends = chart.transform_filter("isValid(datum.low)")
        return ends.encode(y=self.up("cut" if self._log else "low"), y2="high:Q")

    def touched(self, chart: alt.Chart) -> alt.Chart:
        """The places of a line, unseen, at which a pointer finds what is there."""
        unseen = chart.mark_point(size=90, opacity=0, clip=True)
        return cast(alt.Chart, unseen.encode(y=self.up(), tooltip=self.tooltip()))

    def tooltip(self) -> list[Any]:
        """The series, where, and how much."""
        x, y = (_column_title(name) for name in (self.axes.x, self.axes.y))
        named = self.axes.kind == "named"
        where = alt.Tooltip("x:N", title=x) if named else alt.Tooltip("x:Q", title=x, format=".6~g")
        return [alt.Tooltip("series:N", title="series"), where, alt.Tooltip("text:N", title=y)]

    def finished(self, layers: Sequence[alt.Chart]) -> Chart:
        """The layers over the references; ``usermeta`` holds the series, both kinds of y axis, and whether it cuts."""
        behind = [self._layer(self.compared).mark_line(strokeWidth=_THIN, clip=True).encode(y=self.up())]
        scales = {kind: _scale(self.spans, kind) for kind in self.spans}
        usermeta = {
            "series": [{**vars(s), "dash": list(s.dash)} for s in self.series],
            "scales": scales if len(scales) > 1 else {},
            "cut": self.cut,
            "ends": self._ends(),
        }
        chart = alt.layer(*(behind if self.compared else []), *layers).add_params(alt.param(name="hidden", value=[]))
        return cast(Chart, chart.properties(width="container", height=_HEIGHT, usermeta=usermeta))

    def _ends(self) -> list[dict[str, Any]]:
        """Names for the ends of the lines; those cut off by the top of the axis end there."""
        points = [p for p in [*self.points, *self.compared] if p["y"] <= self.top]
        names = [s.name for s in self.series]
        return end_labels(points, names, self.spans, log=self._log, height=_HEIGHT)


def write_charts(findings: Sequence[Finding], folder: Path) -> dict[str, Chart]:
    """Every finding's chart as PDF and PNG and its rows as CSV in ``folder``; returns the charts by name."""
    charts = {finding.name: chart_of(finding) for finding in findings}
    taken = set[str]()
    for finding in findings:
        pdf, png = still(charts[finding.name], finding.title)
        stem = _file_name(finding.name, taken)
        write_csv(folder / f"{stem}.csv", finding.rows)
        (folder / f"{stem}.pdf").write_bytes(pdf)
        (folder / f"{stem}.png").write_bytes(png)
    return charts


def _file_name(name: str, taken: set[str]) -> str:
    """A name that every file system takes, and no other finding has: names of rules are those of a user's log."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST]
    numbers = (f"{plain}-{number}" for number in itertools.count(2))
    chosen = next(free for free in itertools.chain([plain], numbers) if free.lower() not in taken)
    taken.add(chosen.lower())
    return chosen


def _scale(spans: dict[str, tuple[float, float]], kind: str) -> dict[str, Any]:
    return {"type": kind, "domain": list(spans[kind]), "nice": False}


def _linear(axes: Axes) -> Axes:
    """The same axes without a logarithm up."""
    kinds: dict[str, Any] = {"logarithmic": "semilogarithmic", "logcurves": "curves"}
    return replace(axes, kind=kinds.get(axes.kind, axes.kind))


def _legend(count: int) -> alt.Legend | None:
    if count < 2:
        return None
    return alt.Legend(
        title=None, orient="top", columns=2 if count < 7 else 3, labelLimit=300, labelFontSize=12, symbolOpacity=1,
        symbolType="stroke", symbolSize=300,
    )  # fmt: skip


def _column_title(name: str) -> str:
    """A name of a column in a tooltip, where ``title`` and ``image`` mean something else, and controls break Vega."""
    return f"{name}:" if name in ("title", "image", "series") else " ".join(visible(name).split())


def _wrapped(title: str) -> list[str]:
    """The lines of a title; Vega trips over the names that JavaScript's objects have, unless a space follows."""
    return textwrap.wrap(visible(title), _TITLE_WIDTH) or [""] if title not in _TRIPS else [f"{title} "]


def _distinct(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(map(series_of, rows)))
