"""Charts of the reports: Altair draws a finding for the page, for papers and for slides.

The page has SVG, papers get PDF, and slides PNG.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any, TypeGuard, cast

import altair as alt
import vl_convert

from nfd.core.files import write_csv
from nfd.core.findings import Axes, Finding, SeriesRole
from nfd.core.tables import Row, visible
from nfd.report.picture import files_of

Chart = alt.LayerChart
Point = dict[str, Any]
Span = tuple[float, float]

# Pixels across: of a page, and of a phone or of one of several panels.
WIDE = 640
NARROW = 270
_HEIGHT = 300
_STRIP = 16
_TEXT = 11
# Characters of a file name, at most.
_LONGEST = 100
# Values that an axis names one by one, at most.
_TICKS = 12
# Labels of large numbers: 7B, 4T.
_LETTERED = (
    "datum.label && datum.value >= 1e6 ? replace(format(datum.value, '~s'), 'G', 'B') : datum.label"
)
# Characters of a line of an axis title.
_TITLE_WIDTH = 48
# Pixels of a character of a title, on average.
_CHARACTER = 6.5
_CURVES = ("curves", "logcurves")
_LOG_X = ("logarithmic", "semilogarithmic")
_LOG_Y = ("logarithmic", "logcurves")
# The margin of logarithmic axes, as a factor, and of linear ones, as a share.
_MARGIN = 1.15
_PAD = 0.03
# A bar that reaches below one of so many parts of the lowest point ends at the axis.
_DEEPEST = 20
# A chart of a hundred thousand points takes minutes to make and to open.
MOST_ROWS = 5000
MOST_SERIES = 100


# ---- a chart of a finding


def drawn(rows: Sequence[Row], axes: Axes) -> Chart:
    """Draw rows without a finding around them."""
    return chart_of(Finding("", "", "", list(rows), axes, ""))


def chart_of(finding: Finding, beside: Sequence[Row] = ()) -> Chart:
    """Draw a finding on axes that have room for the rows ``beside``, too.

    It has lines in bands from ``low`` to ``high``, or points with bars joined by lines, as
    ``axes.kind`` says. Its references are grey lines behind them.
    """
    axes = finding.axes
    if axes.kind == "counts":
        return _counts(finding)
    best = [
        row for row in finding.best if all(map(drawable, (row[axes.x], row["low"], row["high"])))
    ]
    marks = [row for row in finding.marks if tidy([row], axes)]
    marked = tidy(marks, axes)
    drawing = _drawing(finding, len(best), [*marked, *tidy(beside, axes)])
    layers = [*drawing.references(), *drawing.findings()]
    for place, row in enumerate(best):
        layers += drawing.best(row, place)
    if best:
        layers += drawing.frame_of_strip()
    for row, point in zip(marks, marked, strict=True):
        layers += drawing.mark(point, str(row["text"]))
    return cast(
        Chart,
        alt.layer(*layers).properties(
            width=WIDE, height=_HEIGHT, description=_description(finding)
        ),
    )


def _description(finding: Finding) -> str:
    """What a screen reader says of a chart."""
    return visible(f"{finding.title} {finding.headline}".strip())


@dataclass(frozen=True)
class _Drawing:
    """What the layers of a chart share.

    Attributes:
        points: the finding's rows. behind: its references.
        every: all points that the axes have room for.
        series: the colours and dashes.
        span: range of the y axis. floor: where it ends above the strip.
        strip: height of the strip below, in pixels; 0 without one.
        is_cut: whether a point is above the top of the y axis.
    """

    axes: Axes
    points: list[Point]
    behind: list[Point]
    every: list[Point]
    series: list[Series]
    span: Span
    floor: float
    strip: int
    is_cut: bool

    def references(self) -> list[alt.Chart]:
        """Grey lines behind everything."""
        if not self.behind:
            return []
        lines = self._layer(self.behind).mark_line(strokeWidth=1.2, clip=self.is_cut)
        return [lines.encode(y=self._up())]

    def findings(self) -> list[alt.Chart]:
        """Lines in bands, or points with bars joined by lines."""
        base = self._layer(self.points)
        banded = base.transform_filter("isValid(datum.low)").encode(y=self._up("low"), y2="high:Q")
        # A line through one point is not seen.
        is_alone = len({point["x"] for point in self.points}) == 1
        line = base.mark_line(strokeWidth=2, clip=self.is_cut, point=is_alone).encode(y=self._up())
        if self.axes.kind in _CURVES:
            band = banded.mark_area(fillOpacity=0.16, clip=self.is_cut)
            # Areas have no dashes.
            band.encoding.strokeDash = alt.Undefined
            return [band, line]
        bars = banded.mark_rule(strokeWidth=1.5, clip=self.is_cut).encode(
            strokeDash=alt.value([1, 0])
        )
        points = base.mark_point(filled=True, size=55, opacity=1, clip=self.is_cut)
        return [line, bars, points.encode(y=self._up())]

    def best(self, row: Row, place: int) -> list[alt.Chart]:
        """One series in the strip: a bar where it is best, and a diamond at its best place."""
        y = alt.value(_HEIGHT - self.strip + _STRIP * (place + 0.5))
        at = {"y": y, "strokeDash": alt.value([1, 0])}
        bar = {"series": series_of(row), "x": row["low"], "to": row["high"]}
        point = {"series": series_of(row), "x": row[self.axes.x], "to": row["high"]}
        ends = self._layer([bar]).mark_rule(strokeWidth=4, opacity=0.45, clip=True)
        diamond = self._layer([point]).mark_point(filled=True, size=70, opacity=1, shape="diamond")
        return [ends.encode(x2="to:Q", **at), diamond.encode(**at)]

    def frame_of_strip(self) -> list[alt.Chart]:
        """The line above the strip, and its title."""
        edge = alt.Chart(alt.InlineData(values=[{}])).encode(
            x=alt.value(0), y=alt.value(_HEIGHT - self.strip)
        )
        title = f"best {self.axes.x_title}"
        return [
            edge.mark_rule(color=REFERENCE).encode(x2=alt.value("width")),
            edge.mark_text(text=title, align="left", dx=4, dy=9, fontSize=_TEXT, color=INK),
        ]

    def mark(self, point: Point, text: str) -> list[alt.Chart]:
        """A diamond with a text, and a line to ``low`` if the point has one."""
        base = self._layer([{**point, "text": visible(text)}]).encode(
            color=alt.value(INK), strokeDash=alt.value([1, 0]), y=self._up()
        )
        to_the_left = sum(other["x"] < point["x"] for other in self.every)
        place: Point = {
            "align": "left",
            "dy": -4 - _TEXT * text.count("\n"),
            "dx": 9,
            "lineBreak": "\n",
        }
        # The text stands on the side that has more room.
        if to_the_left * 2 > len(self.every):
            place |= {"align": "right", "dx": -9}
        words = base.mark_text(fontSize=_TEXT, **place)
        diamond = base.mark_point(filled=True, size=90, shape="diamond")
        layers = [diamond, words.encode(text="text:N")]
        if "low" in point:
            line = base.mark_rule(strokeWidth=2.5).encode(y=self._up("low"), y2="y:Q")
            layers.insert(0, line)
        return layers

    def _layer(self, points: Sequence[Point]) -> alt.Chart:
        """Points on their colours and dashes across the x axis."""
        domain = [one.name for one in self.series]
        colours = alt.Scale(domain=domain, range=[one.colour for one in self.series])
        dashes = alt.Scale(domain=domain, range=[list(one.dash) for one in self.series])
        legend = None
        if len(self.series) > 1:
            legend = alt.Legend(title=None, orient="top", labelLimit=300, symbolType="stroke")
        return alt.Chart(alt.InlineData(values=list(points))).encode(
            x=_across(self.points or self.behind, self.every, self.axes),
            color=alt.Color("series:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=legend),
        )

    def _up(self, column: str = "y") -> alt.Y:
        """The y axis; its title ends with what bands and bars reach over, if there are any."""
        title = self.axes.y_title
        if self.axes.interval and any("low" in point for point in self.points):
            title = f"{title} ({self.axes.interval})"
        kind: Any = "log" if self.axes.kind in _LOG_Y else "linear"
        scale = alt.Scale(type=kind, domain=list(self.span), nice=False)
        axis: Any = alt.Undefined
        if self.strip:
            # No numbers beside the strip.
            axis = alt.Axis(labelExpr=f"datum.value >= {self.floor} ? datum.label : ''")
        return alt.Y(f"{column}:Q", title=_wrapped(title), scale=scale, axis=axis)


def _drawing(finding: Finding, rows_of_strip: int, more: Sequence[Point]) -> _Drawing:
    """Prepare the chart of a finding, with room for ``more`` points and for a strip below."""
    axes = finding.axes
    rows = thinned(finding.rows)
    points = tidy(rows, axes)
    behind = tidy(thinned(finding.references), axes)
    every = [*points, *behind, *more]
    top = math.inf if axes.top is None else axes.top
    span = _up(every, axes, top)
    floor = span[0]
    strip = _STRIP * rows_of_strip
    if strip:
        share = strip / (_HEIGHT - strip)
        if axes.kind in _LOG_Y:
            span = (span[0] / (span[1] / span[0]) ** share, span[1])
        else:
            span = (span[0] - share * (span[1] - span[0]), span[1])
    if axes.kind in _LOG_Y:
        for point in points:
            if "low" in point:
                point["low"] = max(point["low"], span[0])
    names = {point["series"] for point in points}
    series = [one for one in styled(rows, axes) if one.name in names]
    grey = dict.fromkeys(point["series"] for point in behind if point["series"] not in names)
    series += [Series(name, REFERENCE, _GREY_DASHES[k % 3]) for k, name in enumerate(grey)]
    is_cut = any(max(point["y"], point.get("high", point["y"])) > top for point in every)
    return _Drawing(axes, points, behind, every, series, span, floor, strip, is_cut)


def _counts(finding: Finding) -> Chart:
    """Draw a finding as bars one after another."""
    axes = finding.axes
    most = max(1, len(finding.axes.order) - 1)
    colours = [ORDERED[k * (len(ORDERED) - 1) // most] for k in range(len(axes.order))]
    scale = alt.Scale(domain=list(axes.order), range=colours)
    bars = alt.Chart(alt.InlineData(values=finding.rows)).encode(
        x=alt.X(
            f"{axes.x}:Q",
            stack="zero",
            title=_wrapped(axes.x_title),
            axis=alt.Axis(grid=False, tickMinStep=1),
        ),
        y=alt.Y(f"{axes.y}:N", title=None),
        color=alt.Color(
            "series:N",
            scale=scale,
            legend=alt.Legend(title=None, orient="top", symbolType="square"),
        ),
        order=alt.Order("color_series_sort_index:Q"),
    )
    return cast(
        Chart,
        alt.layer(bars.mark_bar()).properties(
            width=WIDE, height=alt.Step(26), description=_description(finding)
        ),
    )


def _up(points: Sequence[Point], axes: Axes, top: float) -> Span:
    """The range of the y axis."""
    shown = [point for point in points if point["y"] <= top] or points
    zero = axes.zero and axes.kind in ("named", "semilogarithmic", "linear")
    if axes.kind in _LOG_Y:
        low, high = log_span(shown)
    else:
        low, high = linear_span(shown, zero=zero)
    if low < top:
        high = min(high, top)
    return low, high


def _across(points: Sequence[Point], every: Sequence[Point], axes: Axes) -> alt.X:
    """The x axis with room for every point.

    It has named places, or numbers with a tick at each, or at a few round ones.
    """
    title = _wrapped(axes.x_title)
    tight = axes.kind in _CURVES
    log = axes.kind in _LOG_X
    if axes.kind == "named":
        return alt.X(
            "x:N",
            title=title,
            sort=[*dict.fromkeys(p["x"] for p in every)],
            axis=alt.Axis(labelAngle=0),
        )
    values = sorted({point["x"] for point in points})
    scale = alt.Scale(
        type="log" if log else "linear",
        nice=False,
        domain=list(across_span(every, log=log, tight=tight)),
    )
    settings: Point = {"tickCount": _TICKS}
    if log and len(values) <= _TICKS:
        settings = {"values": values}
    # Small numbers are learning rates, which need their digits.
    if max(values, default=1) < 1:
        settings["format"] = ".3~r"
    axis = alt.Axis(grid=False, labelExpr=_LETTERED, **settings)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def _wrapped(title: str) -> list[str]:
    """The lines of a title, each with a space after it.

    Without it Vega trips over names that JavaScript's objects have.
    """
    return [f"{line} " for line in textwrap.wrap(visible(title), _TITLE_WIDTH)] or [""]


# ---- pictures

Pictures = tuple[bytes, bytes, bytes]  # PDF, PNG and SVG


def svg_of(chart: Chart, width: int) -> str:
    """Draw a chart as SVG, so many pixels wide."""
    return _svg(_spec(chart, "", width))


def still(chart: Chart, title: str = "") -> Pictures:
    """Draw a chart as PDF, PNG and SVG, under its title."""
    return _pictures(_spec(chart, title, WIDE))


def beside(charts: Mapping[str, Chart]) -> Pictures:
    """Draw charts side by side, each under its title and with its own colours and axes."""
    panels = [_spec(chart, title, NARROW) for title, chart in charts.items()]
    shared = {name: panels[0][name] for name in ("$schema", "config")}
    data: dict[str, Any] = {}
    for panel in panels:
        # What all panels share stands around them.
        for name in shared:
            panel.pop(name, None)
        data |= panel.pop("datasets", {})
    independent = dict.fromkeys(("color", "strokeDash"), "independent")
    return _pictures(
        shared
        | {
            "datasets": data,
            "hconcat": panels,
            "spacing": 30,
            "resolve": {"scale": independent, "legend": independent},
        }
    )


def write_charts(findings: Sequence[Finding], folder: Path) -> None:
    """Write every finding's chart as PDF, PNG and SVG and its rows as CSV to ``folder``."""
    stems = file_stems([finding.name for finding in findings])
    for finding, stem in zip(findings, stems, strict=True):
        # The title of a picture is the answer, not the question.
        title = finding.title
        if "?" in title:
            title = finding.headline
        write_csv(folder / f"{stem}.csv", finding.rows)
        write_pictures(folder / stem, still(chart_of(finding), title))


def file_stems(names: Sequence[str]) -> list[str]:
    """Return names of files without their endings, all different on every file system.

    Names of charts may have names of rules from a user's log in them.
    """
    stems = list[str]()
    taken = set[str]()
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST]
        while stem.lower() in taken:
            stem += "-"
        taken.add(stem.lower())
        stems.append(stem)
    return stems


def write_pictures(path: Path, pictures: Pictures) -> None:
    """Write pictures to ``path`` with the ending of each."""
    for ending, content in zip(("pdf", "png", "svg"), pictures, strict=True):
        path.with_name(f"{path.name}.{ending}").write_bytes(content)


def _spec(chart: Chart, title: str, width: int) -> dict[str, Any]:
    """What Vega-Lite draws, with as many columns in the legend as there is room for."""
    # Not validated here, which is slow: the tests check every kind.
    spec: dict[str, Any] = chart.to_dict(validate=False) | {"width": width}
    for layer in spec["layer"]:
        axis = layer["encoding"]["x"].get("axis") or {}
        if "tickCount" in axis:
            axis["tickCount"] = width // 55
    columns = 1 if width < WIDE else 2
    legend = {"columns": columns, **_THEME["config"]["legend"]}
    spec["config"] = {**spec.get("config", {}), **_THEME["config"], "legend": legend}
    if title:
        text = textwrap.wrap(visible(title), int(width / _CHARACTER))
        spec["title"] = {"text": text, "anchor": "start", "fontWeight": "normal"}
    return spec


def _svg(spec: Mapping[str, Any]) -> str:
    # What has no UTF-8 is drawn as a question mark.
    return _drawn(json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode())


# A command that runs again, and a notebook, draw the same charts.
@lru_cache(maxsize=128)
def _drawn(text: str) -> str:
    return vl_convert.vegalite_to_svg(text)


def _pictures(spec: Mapping[str, Any]) -> Pictures:
    # White, since pictures are read on dark screens, too.
    return files_of(_svg({**spec, "background": "white"}))


# ---- how series differ

_SOLID = (1, 0)
_BROKEN = ((6, 4), (2, 3), (12, 3))
_DASHES = (_SOLID, *_BROKEN[:2])
_MANY = (_SOLID, *_BROKEN, (8, 3, 2, 3))
# Dashes of lines to compare with.
_GREY_DASHES = ((4, 3), (2, 2), (8, 3))

_THEME = json.loads(Path(__file__).with_name("theme.json").read_text())
# COLOURS of names are Okabe and Ito's, which colour-blind readers distinguish, purple and brown.
# ORDERED families have viridis without its ends, from its dark side. SHADES are grey. DARK has what
# stands on a dark page for colours that are hard to see there.
COLOURS, ORDERED, SHADES, DARK = (_THEME[name] for name in ("colours", "ordered", "shades", "dark"))
INK = "#000000"
REFERENCE = "#858585"


@dataclass(frozen=True)
class Series:
    """How the rows of one series are drawn: as a line of this colour and dash."""

    name: str
    colour: str
    dash: tuple[int, ...] = _SOLID


def styled(rows: Sequence[Row], axes: Axes) -> list[Series]:
    """Choose how the series of these rows are drawn.

    By their role; those without one by the columns that ``axes`` names.
    """
    firsts: dict[str, Row] = {}
    for row in rows:
        firsts.setdefault(series_of(row), row)
    names: dict[str, list[str]] = {role: [] for role in SeriesRole}
    equals = {}
    for name, row in firsts.items():
        role = str(row.get("role", ""))
        if role in names:
            names[role].append(name)
        else:
            equals[name] = row
    older = names[SeriesRole.PREDICTION][:-1]
    latest = names[SeriesRole.PREDICTION][-1:]
    return [
        *(Series(name, SHADES[k * len(SHADES) // len(older)]) for k, name in enumerate(older)),
        *(Series(name, INK) for name in latest),
        *map(Series, names[SeriesRole.REAL], cycle(COLOURS), cycle(_BROKEN)),
        *_equals(equals, axes),
    ]


def _equals(rows: Mapping[str, Row], axes: Axes) -> list[Series]:
    """Choose colours and dashes by the columns of the first row of each series."""
    if len(rows) == 1 and not axes.order:
        return [Series(name, INK) for name in rows]
    hues = dict[str, float | str]()
    for name, row in rows.items():
        value = row.get(axes.colour, name)
        hues[name] = float(value) if drawable(value) else str(value)
    ordered = list(dict.fromkeys(hues.values()))
    if set(axes.order) >= set(ordered):
        ordered = list(axes.order)
    styles = _coloured(ordered)
    series = [Series(name, *styles[hues[name]]) for name in rows]
    if axes.dash is None:
        return series
    groups = [str(row.get(axes.dash)) for row in rows.values()]
    places = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    dashes = [_DASHES[places[group] % len(_DASHES)] for group in groups]
    return [replace(one, dash=dash) for one, dash in zip(series, dashes, strict=True)]


def _coloured(hues: Sequence[float | str]) -> dict[float | str, tuple[str, tuple[int, ...]]]:
    """Choose a colour and a dash for every hue.

    Numbers get growing colours, and the few names beside them black. Names differ in their dashes
    too, as their colours are alike in grey.
    """
    numbers = sorted(hue for hue in hues if isinstance(hue, float))
    names = [hue for hue in hues if isinstance(hue, str)]
    if len(numbers) > 1 and len(names) <= len(_DASHES):
        steps = (len(ORDERED) - 1) / (len(numbers) - 1)
        growing = {hue: (ORDERED[round(k * steps)], _SOLID) for k, hue in enumerate(numbers)}
        return growing | {hue: (INK, _DASHES[k]) for k, hue in enumerate(names)}
    dashes = _MANY if len(hues) > len(COLOURS) else _DASHES
    return {hue: (COLOURS[k % len(COLOURS)], dashes[k % len(dashes)]) for k, hue in enumerate(hues)}


# ---- rows as charts need them


def tidy(rows: Sequence[Row], axes: Axes) -> list[Point]:
    """List the rows that the axes can show, as series, x, y, and low and high if it has both.

    A training run that diverged ends; what is not above zero has no place on a logarithmic axis.
    """
    points = []
    for row in rows:
        x, y, low, high = (row.get(name) for name in (axes.x, axes.y, "low", "high"))
        if axes.kind == "named":
            x = named(x)
        elif not drawable(x, above_zero=axes.kind in _LOG_X):
            continue
        if drawable(y, above_zero=axes.kind in _LOG_Y):
            point = {"series": series_of(row), "x": x, "y": y}
            if drawable(low) and drawable(high):
                point |= {"low": low, "high": high}
            points.append(point)
    return points


def series_of(row: Row) -> str:
    """The name of a row's series."""
    return visible(str(row.get("series", "")))


def drawable(value: Any, *, above_zero: bool = False) -> TypeGuard[float]:
    """Whether an axis has a place for it."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        return False
    return value > 0 or not above_zero


def named(value: Any) -> str:
    """A value as the name of its place on a named axis."""
    if value == math.inf:
        return "infinite"
    return f"{value:g}" if isinstance(value, float) else visible(str(value))


def linear_span(points: Sequence[Point], *, zero: bool) -> Span:
    """The range from the lowest to the highest of points and bars, and zero if asked for."""
    values = []
    if zero:
        values.append(0.0)
    for point in points:
        values += [point[name] for name in ("y", "low", "high") if point.get(name) is not None]
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if low == high:
        pad = abs(low) or 1.0
        return low - pad, high + pad
    pad = _PAD * (high - low)
    return low - pad * (low != 0 or not zero), high + pad * (high != 0 or not zero)


def log_span(points: Sequence[Point]) -> Span:
    """The range from the lowest to the highest of points and bars, above zero.

    A bar that ends far below its point, or below zero, ends at the axis.
    """
    lowest = min((point["y"] for point in points), default=1.0)
    lows = [point["low"] for point in points if point.get("low", 0) > lowest / _DEEPEST]
    top = max((max(point["y"], point.get("high", 0)) for point in points), default=2.0)
    return min([lowest, *lows]) / _MARGIN, top * _MARGIN


def across_span(points: Sequence[Point], *, log: bool, tight: bool) -> Span:
    """The range from the first to the last x.

    ``tight`` if lines may touch the sides of an axis that is not logarithmic.
    """
    low = min((point["x"] for point in points), default=1.0)
    high = max((point["x"] for point in points), default=1.0)
    if log:
        return low / _MARGIN, high * _MARGIN
    if low == high:
        return low - 0.5, high + 0.5
    pad = 0 if tight else _PAD * (high - low)
    return low - pad, high + pad


def thinned(rows: Sequence[Row]) -> list[Row]:
    """Return the rows themselves if they are few, else a part of them.

    The part is every so many rows of each of the first hundred series, and its last row.
    """
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(series_of(row), []).append(row)
    if len(rows) <= MOST_ROWS and len(series) <= MOST_SERIES:
        return list(rows)
    drawn = list(series.values())[:MOST_SERIES]
    stride = math.ceil(sum(map(len, drawn)) / MOST_ROWS)
    part = []
    for members in drawn:
        part += members[::stride]
        if (len(members) - 1) % stride:
            part.append(members[-1])
    return part


def left_out(finding: Finding) -> str:
    """What a chart of the finding does not draw, in words; empty if it draws everything."""
    some = len(thinned(finding.rows))
    total = len(finding.rows)
    if some == total:
        return ""
    return f"Drawn are {some:,} of {total:,} rows; result.json and the CSV hold all."
