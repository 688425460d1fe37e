"""Charts of the reports: Altair draws a finding once, for the page (SVG), for papers (PDF) and for
slides (PNG).
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeGuard, cast

import altair as alt
import vl_convert

from nfd.core.files import write_csv
from nfd.core.findings import Axes, Finding, SeriesRole
from nfd.core.tables import Row, visible

Chart = alt.LayerChart
Point = dict[str, Any]
Span = tuple[float, float]

# pixels across: of a page, and of a phone or of one of several panels
WIDE = 640
NARROW = 270
_HEIGHT = 300
_STRIP = 16
_TEXT = 11
_LONGEST = 100  # characters of a name of files
_TICKS = 12  # most values that an axis names one by one
# 7B, 4T
_LETTERED = (
    "datum.label && datum.value >= 1e6 ? replace(format(datum.value, '~s'), 'G', 'B') : datum.label"
)
_TITLE_WIDTH = 48  # characters of a line of an axis title
_CHARACTER = 6.5  # pixels of a title, on average
_CURVES = ("curves", "logcurves")
_LOG_X = ("logarithmic", "semilogarithmic")
_LOG_Y = ("logarithmic", "logcurves")
_MARGIN = 1.15  # of logarithmic axes, as a factor
_PAD = 0.03  # of linear axes, as a share
_DEEPEST = 20  # a bar ends at the axis if it reaches below this share of the lowest point
# a chart of a hundred thousand points takes minutes to make and to open
MOST_ROWS = 5000
MOST_SERIES = 100


# ---- a chart of a finding


def drawn(rows: Sequence[Row], axes: Axes) -> Chart:
    """The chart of these rows alone."""
    return chart_of(Finding("", "", "", list(rows), axes, ""))


def chart_of(finding: Finding, beside: Sequence[Row] = ()) -> Chart:
    """The chart of a finding, on axes that have room for the rows ``beside``, too: lines in bands
    from ``low`` to ``high``, or points with bars joined by lines, as ``axes.kind`` says; its
    references are grey lines behind them."""
    if finding.axes.kind == "counts":
        return _counts(finding)
    rows = thinned(finding.rows)
    compared = thinned(finding.references)
    axes = finding.axes
    best = [
        row for row in finding.best if all(map(drawable, (row[axes.x], row["low"], row["high"])))
    ]
    points = tidy(rows, axes)
    behind = tidy(compared, axes)
    marks = [row for row in finding.marks if tidy([row], axes)]
    marked = tidy(marks, axes)
    room = tidy(beside, axes)
    names = {point["series"] for point in points}
    others = dict.fromkeys(point["series"] for point in behind if point["series"] not in names)
    grey = [Series(name, REFERENCE, _GREY_DASHES[k % 3]) for k, name in enumerate(others)]
    series = [*(one for one in styled(rows, axes) if one.name in names), *grey]
    log = axes.kind in _LOG_Y
    top = math.inf if axes.top is None else axes.top
    every = [*points, *behind, *marked, *room]
    span = _up(every, axes, top)
    strip = _STRIP * len(best)
    floor = span[0]
    if strip:
        share = strip / (_HEIGHT - strip)
        span = (
            span[0] / (span[1] / span[0]) ** share
            if log
            else span[0] - share * (span[1] - span[0]),
            span[1],
        )
    for point in points:
        if log and "low" in point:
            point["low"] = max(point["low"], span[0])
    beyond = any(max(p["y"], p.get("high", p["y"])) > top for p in every)  # what to cut off

    def layer(rows: Sequence[Point]) -> alt.Chart:
        """Series on their colours and dashes across the x axis."""
        domain = [one.name for one in series]
        colours = alt.Scale(domain=domain, range=[one.colour for one in series])
        dashes = alt.Scale(domain=domain, range=[list(one.dash) for one in series])
        legend = (
            None
            if len(series) < 2
            else alt.Legend(title=None, orient="top", labelLimit=300, symbolType="stroke")
        )
        return alt.Chart(alt.InlineData(values=list(rows))).encode(
            x=_across(points or behind, every, axes),
            color=alt.Color("series:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=legend),
        )

    def up(column: str = "y") -> alt.Y:
        """The y axis; its title ends with what bands and bars reach over, if there are any."""
        banded = axes.interval and any("low" in point for point in points)
        title = _wrapped(f"{axes.y_title} ({axes.interval})" if banded else axes.y_title)
        scale = alt.Scale(type="log" if log else "linear", domain=list(span), nice=False)
        axis = (
            alt.Axis(labelExpr=f"datum.value >= {floor} ? datum.label : ''")
            if strip
            else alt.Undefined
        )
        return alt.Y(f"{column}:Q", title=title, scale=scale, axis=axis)

    base = layer(points)
    known = base.transform_filter("isValid(datum.low)").encode(y=up("low"), y2="high:Q")
    alone = len({point["x"] for point in points}) == 1  # a line through one point is not seen
    line = base.mark_line(strokeWidth=2, clip=beyond, point=alone).encode(y=up())
    if axes.kind in _CURVES:
        band = known.mark_area(fillOpacity=0.16, clip=beyond)
        band.encoding.strokeDash = alt.Undefined  # areas have none
        layers = [band, line]
    else:
        bars = known.mark_rule(strokeWidth=1.5, clip=beyond).encode(strokeDash=alt.value([1, 0]))
        layers = [
            line,
            bars,
            base.mark_point(filled=True, size=55, opacity=1, clip=beyond).encode(y=up()),
        ]
    if behind:
        layers = [layer(behind).mark_line(strokeWidth=1.2, clip=beyond).encode(y=up()), *layers]
    for k, row in enumerate(best):
        at = {"y": alt.value(_HEIGHT - strip + _STRIP * (k + 0.5)), "strokeDash": alt.value([1, 0])}
        ends, place = (
            {"series": series_of(row), "x": x, "to": row["high"]} for x in (row["low"], row[axes.x])
        )
        layers.append(
            layer([ends]).mark_rule(strokeWidth=4, opacity=0.45, clip=True).encode(x2="to:Q", **at)
        )
        layers.append(
            layer([place]).mark_point(filled=True, size=70, opacity=1, shape="diamond").encode(**at)
        )
    if strip:
        edge = alt.Chart(alt.InlineData(values=[{}])).encode(
            x=alt.value(0), y=alt.value(_HEIGHT - strip)
        )
        layers.append(edge.mark_rule(color=REFERENCE).encode(x2=alt.value("width")))
        layers.append(
            edge.mark_text(
                text=f"best {axes.x_title}", align="left", dx=4, dy=9, fontSize=_TEXT, color=INK
            )
        )
    for row, point in zip(marks, marked, strict=True):
        one = layer([{**point, "text": visible(str(row["text"]))}])
        one = one.encode(color=alt.value(INK), strokeDash=alt.value([1, 0]), y=up())
        right = sum(p["x"] < point["x"] for p in every) * 2 > len(every)  # where there is more room
        above: Point = {
            "dy": -4 - _TEXT * str(row["text"]).count("\n"),
            "dx": -9 if right else 9,
            "lineBreak": "\n",
        }
        text = one.mark_text(align="right" if right else "left", fontSize=_TEXT, **above)
        layers += (
            [one.mark_rule(strokeWidth=2.5).encode(y=up("low"), y2="y:Q")] if "low" in point else []
        )
        layers += [
            one.mark_point(filled=True, size=90, shape="diamond"),
            text.encode(text="text:N"),
        ]
    said = visible(f"{finding.title} {finding.headline}".strip())
    return cast(Chart, alt.layer(*layers).properties(width=WIDE, height=_HEIGHT, description=said))


def _counts(finding: Finding) -> Chart:
    """Bars one after another."""
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
    said = visible(f"{finding.title} {finding.headline}".strip())
    return cast(
        Chart,
        alt.layer(bars.mark_bar()).properties(width=WIDE, height=alt.Step(26), description=said),
    )


def _up(points: Sequence[Point], axes: Axes, top: float) -> Span:
    """The range of the y axis."""
    shown = [point for point in points if point["y"] <= top] or points
    zero = axes.zero and axes.kind in ("named", "semilogarithmic", "linear")
    low, high = log_span(shown) if axes.kind in _LOG_Y else linear_span(shown, zero=zero)
    return (low, min(high, top)) if low < top else (low, high)


def _across(points: Sequence[Point], every: Sequence[Point], axes: Axes) -> alt.X:
    """The x axis with room for every point: named places, or numbers with a tick at each, or at a
    few round ones.
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
    few = log and len(values) <= _TICKS
    ticks = {"values": values} if few else {"tickCount": _TICKS}
    digits: Point = {"format": ".3~r"} if max(values, default=1) < 1 else {}  # of rates
    axis = alt.Axis(grid=False, labelExpr=_LETTERED, **ticks, **digits)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def _wrapped(title: str) -> list[str]:
    """The lines of a title; Vega trips over names that JavaScript's objects have, unless a space
    follows.
    """
    return [f"{line} " for line in textwrap.wrap(visible(title), _TITLE_WIDTH)] or [""]


# ---- pictures

Pictures = tuple[bytes, bytes, bytes]  # PDF, PNG and SVG


def svg_of(chart: Chart, width: int) -> str:
    """The chart as SVG, so many pixels wide."""
    return vl_convert.vegalite_to_svg(_text(_spec(chart, "", width)))


def still(chart: Chart, title: str = "") -> Pictures:
    """The chart as PDF, PNG and SVG, under its title."""
    return _pictures(_spec(chart, title, WIDE))


def beside(charts: Mapping[str, Chart]) -> Pictures:
    """Charts side by side, each under its title and with colours and axes of its own."""
    panels = [_spec(chart, title, NARROW) for title, chart in charts.items()]
    shared = {name: panels[0][name] for name in ("$schema", "config")}
    kept = [
        {name: value for name, value in panel.items() if name not in (*shared, "datasets")}
        for panel in panels
    ]
    data = {name: values for panel in panels for name, values in panel.get("datasets", {}).items()}
    own = dict.fromkeys(("color", "strokeDash"), "independent")
    return _pictures(
        shared
        | {
            "datasets": data,
            "hconcat": kept,
            "spacing": 30,
            "resolve": {"scale": own, "legend": own},
        }
    )


def write_charts(findings: Sequence[Finding], folder: Path) -> None:
    """Write every finding's chart as PDF, PNG and SVG and its rows as CSV to ``folder``."""
    taken = set[str]()
    for finding in findings:
        # titles say what was found
        said = finding.headline if "?" in finding.title else finding.title
        # names of rules are those of a user's log
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", finding.name)[:_LONGEST]
        while stem.lower() in taken:
            stem += "-"
        taken.add(stem.lower())
        write_csv(folder / f"{stem}.csv", finding.rows)
        write_pictures(folder / stem, still(chart_of(finding), said))


def write_pictures(path: Path, pictures: Pictures) -> None:
    """Write pictures to ``path`` with the ending of each."""
    for ending, content in zip(("pdf", "png", "svg"), pictures, strict=True):
        path.with_name(f"{path.name}.{ending}").write_bytes(content)


def _spec(chart: Chart, title: str, width: int) -> dict[str, Any]:
    """What Vega-Lite draws, with as many columns in the legend as there is room for."""
    # the tests check every kind
    spec: dict[str, Any] = chart.properties(width=width).to_dict(validate=False)
    for layer in spec["layer"]:
        if "tickCount" in (axis := layer["encoding"]["x"].get("axis") or {}):
            axis["tickCount"] = width // 55
    legend = {"columns": 1 if width < WIDE else 2, **_THEME["config"]["legend"]}
    spec["config"] = {**spec.get("config", {}), **_THEME["config"], "legend": legend}
    if title:
        text = textwrap.wrap(visible(title), int(width / _CHARACTER))
        spec["title"] = {"text": text, "anchor": "start", "fontWeight": "normal"}
    return spec


def _text(spec: Mapping[str, Any]) -> str:
    # what has no UTF-8 is drawn as ?
    return json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode()


def _pictures(spec: Mapping[str, Any]) -> Pictures:
    # read on dark screens, too
    drawn = vl_convert.vegalite_to_svg(_text({**spec, "background": "white"}))
    return vl_convert.svg_to_pdf(drawn), vl_convert.svg_to_png(drawn, scale=2), drawn.encode()


# ---- how series differ

_SOLID = (1, 0)
_BROKEN = ((6, 4), (2, 3), (12, 3))
_DASHES = (_SOLID, *_BROKEN[:2])
_MANY = (_SOLID, *_BROKEN, (8, 3, 2, 3))
_GREY_DASHES = ((4, 3), (2, 2), (8, 3))  # of lines to compare with

_THEME = json.loads(Path(__file__).with_name("theme.json").read_text())
# Okabe & Ito's colours, told apart by colour-blind readers too, purple and brown; of ordered
# families viridis without its ends, from its dark side; shades of grey; and what stands on a dark
# page for what is hard to see there.
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
    """How the series of these rows are drawn: by their role; those without one by the columns that
    ``axes`` names.
    """
    firsts: dict[str, Row] = {}
    for row in rows:
        firsts.setdefault(series_of(row), row)
    names: dict[Any, list[str]] = {
        role: [name for name, row in firsts.items() if row.get("role") == role]
        for role in SeriesRole
    }
    equals = {
        name: row for name, row in firsts.items() if not any(name in own for own in names.values())
    }
    older = names[SeriesRole.PREDICTION][:-1]
    latest = names[SeriesRole.PREDICTION][-1:]
    return [
        *(Series(name, SHADES[k * len(SHADES) // len(older)]) for k, name in enumerate(older)),
        *(Series(name, INK) for name in latest),
        *map(Series, names[SeriesRole.REAL], cycle(COLOURS), cycle(_BROKEN)),
        *_equals(equals, axes),
    ]


def _equals(rows: Mapping[str, Row], axes: Axes) -> list[Series]:
    """Series by name and first row, in the colour and the dash of what their columns hold."""
    if len(rows) == 1 and not axes.order:
        return [Series(name, INK) for name in rows]
    values = {name: row.get(axes.colour, name) for name, row in rows.items()}
    hues = {name: float(value) if drawable(value) else str(value) for name, value in values.items()}
    drawn = _coloured(
        [*(axes.order if set(axes.order) >= set(hues.values()) else dict.fromkeys(hues.values()))]
    )
    series = [Series(name, *drawn[hues[name]]) for name in rows]
    if axes.dash is None:
        return series
    groups = [str(row.get(axes.dash)) for row in rows.values()]
    places = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    return [
        replace(s, dash=_DASHES[places[g] % len(_DASHES)])
        for s, g in zip(series, groups, strict=True)
    ]


def _coloured(hues: Sequence[float | str]) -> dict[float | str, tuple[str, tuple[int, ...]]]:
    """A colour and a dash for every hue: growing colours for numbers, black for the few that are
    none.

    Names differ in their dashes too, as their colours are alike in grey.
    """
    numbers = sorted(hue for hue in hues if isinstance(hue, float))
    others = [hue for hue in hues if isinstance(hue, str)]
    if len(numbers) > 1 and len(others) <= len(_DASHES):
        steps = (len(ORDERED) - 1) / (len(numbers) - 1)
        growing = {hue: (ORDERED[round(k * steps)], _SOLID) for k, hue in enumerate(numbers)}
        return growing | {hue: (INK, _DASHES[k]) for k, hue in enumerate(others)}
    dashes = _MANY if len(hues) > len(COLOURS) else _DASHES
    return {hue: (COLOURS[k % len(COLOURS)], dashes[k % len(dashes)]) for k, hue in enumerate(hues)}


# ---- rows as charts need them


def tidy(rows: Sequence[Row], axes: Axes) -> list[Point]:
    """The rows that the axes can show, as series, x, y, and low and high if both are known.

    A run that diverged ends; what is not above zero has no place on a logarithmic axis.
    """
    kept = []
    for row in rows:
        x, y, low, high = (row.get(name) for name in (axes.x, axes.y, "low", "high"))
        if axes.kind == "named":
            x = named(x)
        elif not drawable(x, above_zero=axes.kind in _LOG_X):
            continue
        if drawable(y, above_zero=axes.kind in _LOG_Y):
            bar = {"low": low, "high": high} if drawable(low) and drawable(high) else {}
            kept.append({"series": series_of(row), "x": x, "y": y, **bar})
    return kept


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
    return (
        "infinite"
        if value == math.inf
        else f"{value:g}"
        if isinstance(value, float)
        else visible(str(value))
    )


def linear_span(points: Sequence[Point], *, zero: bool) -> Span:
    """From the lowest to the highest of points and bars, and zero if asked for."""
    values = [v for p in points for v in (p["y"], p.get("low"), p.get("high")) if v is not None] + [
        0.0
    ] * zero
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if low == high:
        pad = abs(low) or 1.0
        return low - pad, high + pad
    pad = _PAD * (high - low)
    return low - pad * (low != 0 or not zero), high + pad * (high != 0 or not zero)


def log_span(points: Sequence[Point]) -> Span:
    """The same above zero; a bar may end far below its point, or below zero, and ends at the axis
    then.
    """
    lowest = min((p["y"] for p in points), default=1.0)
    bottom = min((p["low"] for p in points if p.get("low", 0) > lowest / _DEEPEST), default=lowest)
    top = max((max(p["y"], p.get("high", 0)) for p in points), default=2.0)
    return min(lowest, bottom) / _MARGIN, top * _MARGIN


def across_span(points: Sequence[Point], *, log: bool, tight: bool) -> Span:
    """From the first to the last x; ``tight`` if lines may touch the sides of an axis that is not
    logarithmic.
    """
    low, high = (f((p["x"] for p in points), default=1.0) for f in (min, max))
    if log:
        return low / _MARGIN, high * _MARGIN
    pad = (0 if tight else _PAD * (high - low)) if low < high else 0.5
    return low - pad, high + pad


def thinned(rows: Sequence[Row]) -> list[Row]:
    """The rows themselves if they are few; else of each of the first hundred series every so many,
    and its last.
    """
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(series_of(row), []).append(row)
    if len(rows) <= MOST_ROWS and len(series) <= MOST_SERIES:
        return list(rows)
    kept = list(series.values())[:MOST_SERIES]
    stride = math.ceil(sum(map(len, kept)) / MOST_ROWS)
    return [
        row for own in kept for k, row in enumerate(own) if k % stride == 0 or k == len(own) - 1
    ]


def left_out(finding: Finding) -> str:
    """What a chart of the finding does not draw, in words; empty if it draws everything."""
    some = len(thinned(finding.rows))
    total = len(finding.rows)
    return (
        ""
        if some == total
        else f"Drawn are {some:,} of {total:,} rows; result.json and the CSV hold all."
    )
