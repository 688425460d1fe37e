"""Charts of the reports: one Altair object gives the interactive page, the PDF and the PNG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from nfd.core.files import write_bytes, write_csv
from nfd.experiment.findings.finding import Axes, Finding

Row = Mapping[str, Any]
Chart = alt.LayerChart

_HEIGHT, _STILL_WIDTH = 360, 640
_MARGIN = 1.15  # of logarithmic axes, as a factor
_TICKS = 12  # most values that an axis names one by one

# Okabe & Ito's colours, told apart by colour-blind readers too; light to dark for an ordered family.
_DASHES = ((1, 0), (6, 4), (2, 3))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SHADES = ("#cccccc", "#b4b4b4", "#9a9a9a", "#7e7e7e", "#666666", "#4f4f4f")


@dataclass(frozen=True)
class Series:
    """How the rows of one series are drawn: as a line of this colour and dash."""

    name: str
    colour: str
    dash: tuple[int, int] = (1, 0)


def chart_of(finding: Finding) -> Chart:
    """The chart of a finding, its series styled by their names."""
    names = list(dict.fromkeys(row["series"] for row in finding.rows))
    series = _mapped(names) if finding.axes.kind == "map" else _styled(names)
    draw = {"curves": curves, "map": lines}.get(finding.axes.kind, points)
    return draw(finding.rows, series, finding.axes)


def _styled(names: Sequence[str]) -> list[Series]:
    """Predictions in shades of grey to black; real networks dashed in colours; pairs of rules solid and dashed; all
    else in colours, dashed from the second turn on."""
    if any(", " in name and not name.startswith(("real", "infinitely")) for name in names):
        colours = dict(zip(dict.fromkeys(name.rsplit(", ", 1)[0] for name in names), cycle(COLOURS), strict=False))
        first = names[0].rsplit(", ", 1)[1]
        return [
            Series(name, colours[meter], (1, 0) if rule == first else (6, 4))
            for name in names
            for meter, rule in [name.rsplit(", ", 1)]
        ]
    if len(names) > 1 and not any(name.startswith(("real", "infinitely")) for name in names):
        styles = zip(names, cycle(COLOURS), [k // len(COLOURS) for k in range(len(names))], strict=False)
        return [Series(name, colour, _DASHES[turn % len(_DASHES)]) for name, colour, turn in styles]
    real = [name for name in names if name.startswith("real")]
    predicted = [name for name in names if name not in real]
    shades = [*(SHADES[k * len(SHADES) // max(len(predicted) - 1, 1)] for k in range(len(predicted) - 1)), "#000000"]
    return [
        *(Series(name, shade) for name, shade in zip(predicted, shades, strict=False)),
        *(Series(name, colour, (6, 4)) for name, colour in zip(real, cycle(COLOURS), strict=False)),
    ]


def _mapped(names: Sequence[str]) -> list[Series]:
    """The lines of a map in shades, light to dark, what is drawn on it in colours."""
    levels = [name for name in names if name.endswith("above the floor")]
    drawn = [name for name in names if name not in levels]
    shades = (SHADES[k * len(SHADES) // len(levels)] for k in range(len(levels)))
    return [
        *(Series(name, shade) for name, shade in zip(levels, shades, strict=True)),
        *(Series(name, colour) for name, colour in zip(drawn, cycle(COLOURS), strict=False)),
    ]


def curves(rows: Sequence[Row], series: Sequence[Series], axes: Axes) -> Chart:
    """Lines in bands from ``low`` to ``high``."""
    x, y = axes.x, axes.y
    base, chosen = _base(rows, series, (y, "low", "high"))
    base = base.encode(x=alt.X(f"{x}:Q", title=axes.x_title, scale=alt.Scale(nice=False)))
    scale = alt.Scale(zero=False)
    band = base.mark_area().encode(
        y=alt.Y("low:Q", title=axes.y_title, scale=scale),
        y2="high:Q",
        opacity=alt.condition(chosen, alt.value(0.16), alt.value(0.0)),
    )
    line = base.mark_line(strokeWidth=2).encode(y=f"{y}:Q", tooltip=_tooltip(x, y))
    return _finished(band + line, chosen)


def points(rows: Sequence[Row], series: Sequence[Series], axes: Axes) -> Chart:
    """Points with bars from ``low`` to ``high``, joined by lines, on the axes that ``axes.kind`` says."""
    x, y = axes.x, axes.y
    if axes.kind == "named":
        rows = [{**row, x: _name(row[x])} for row in rows]
        across = alt.X(f"{x}:N", title=axes.x_title, sort=_values(rows, x), axis=alt.Axis(labelAngle=0))
    else:
        across = _logarithmic(x, axes.x_title, sorted(_values(rows, x)))
    if axes.kind == "logarithmic":
        rows, scale = _above_zero(rows, y)
    else:
        scale = alt.Scale(zero=axes.zero)
    base, chosen = _base(rows, series, (y, "low", "high"))
    base = base.encode(x=across)
    up = alt.Y(f"{y}:Q", title=axes.y_title, scale=scale)
    line = base.mark_line(strokeWidth=2).encode(y=up)
    bars = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low:Q", title=axes.y_title, scale=scale), y2="high:Q", strokeDash=alt.value([1, 0])
    )
    dots = base.mark_point(filled=True, size=55).encode(y=up, tooltip=_tooltip(x, y))
    return _finished(line + bars + dots, chosen)


def lines(rows: Sequence[Row], series: Sequence[Series], axes: Axes) -> Chart:
    """A map with two logarithmic axes: a line for each series, a large point where it has one row."""
    x, y = axes.x, axes.y
    counts = Counter(row["series"] for row in rows)
    base, chosen = _base([{**row, "alone": counts[row["series"]] == 1} for row in rows], series, (x, y))
    base = base.encode(
        x=alt.X(f"{x}:Q", title=axes.x_title, scale=_range(rows, x), axis=alt.Axis(grid=False, tickCount=_TICKS)),
        y=alt.Y(f"{y}:Q", title=axes.y_title, scale=_range(rows, y), axis=alt.Axis(grid=False, tickCount=_TICKS)),
    )
    drawn = base.transform_filter("!datum.alone").mark_line(strokeWidth=2, clip=True).encode(order=f"{x}:Q")
    dots = (
        base.transform_filter("datum.alone")
        .mark_point(filled=True, size=160)
        .encode(tooltip=["series:N", f"{x}:Q", f"{y}:Q"])
    )
    return _finished(drawn + dots, chosen)


def _range(rows: Sequence[Row], column: str) -> alt.Scale:
    values = [row[column] for row in rows]
    return alt.Scale(type="log", nice=False, domain=[min(values), max(values)])


def _values(rows: Sequence[Row], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _logarithmic(x: str, title: str, values: Sequence[float]) -> alt.X:
    """An axis with a tick at every value, or at a few round ones where there are many."""
    domain = [values[0] / _MARGIN, values[-1] * _MARGIN]
    axis = alt.Axis(values=values, grid=False) if len(values) <= _TICKS else alt.Axis(grid=False, tickCount=_TICKS)
    return alt.X(f"{x}:Q", title=title, scale=alt.Scale(type="log", nice=False, domain=domain), axis=axis)


def _above_zero(rows: Sequence[Row], y: str) -> tuple[list[Row], alt.Scale]:
    """The rows that a logarithmic axis can show; a bar that reaches zero ends at the axis."""
    shown = [row for row in rows if _drawable(row[y]) and row[y] > 0]
    bottom = min((v for row in shown for v in (row[y], row["low"]) if v > 0), default=1.0) / _MARGIN
    top = max((row["high"] for row in shown), default=2.0) * _MARGIN
    cut = [{**row, "low": max(row["low"], bottom)} for row in shown]
    return list(cut), alt.Scale(type="log", nice=False, domain=[bottom, top])


def still(chart: Chart) -> tuple[bytes, bytes]:
    """The chart as PDF and PNG."""
    spec = chart.properties(width=_STILL_WIDTH).to_json()
    return vl_convert.vegalite_to_pdf(spec), vl_convert.vegalite_to_png(spec, scale=2)


def write_charts(found: Sequence[Finding], folder: Path) -> dict[str, Chart]:
    """Every finding's chart as PDF and PNG and its rows as CSV in ``folder``; returns the charts by name."""
    charts = {finding.name: chart_of(finding) for finding in found}
    for finding in found:
        pdf, png = still(charts[finding.name])
        write_csv(folder / f"{finding.name}.csv", finding.rows)
        write_bytes(folder / f"{finding.name}.pdf", pdf)
        write_bytes(folder / f"{finding.name}.png", png)
    return charts


def _base(rows: Sequence[Row], series: Sequence[Series], columns: Sequence[str]) -> tuple[alt.Chart, alt.Parameter]:
    """The series of finite rows (a run that diverged ends), with a legend that can be clicked."""
    shown = [row for row in rows if all(_drawable(row[c]) for c in columns)]
    present = {row["series"] for row in shown}
    series = [s for s in series if s.name in present]
    names = [s.name for s in series]
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=names, range=[s.colour for s in series]),
        legend=_legend(len(names)),
    )
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=[list(s.dash) for s in series]), legend=_legend(len(names))
    )
    chosen = alt.selection_point(fields=["series"], bind="legend")
    base = alt.Chart(
        alt.InlineData(values=[{k: None if v in (math.inf, -math.inf) else v for k, v in row.items()} for row in shown])
    ).encode(color=colour, strokeDash=dash, opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.08)))
    return base, chosen


def _legend(count: int) -> alt.Legend | None:
    if count < 2:
        return None
    return alt.Legend(
        title=None, orient="top", columns=2, labelLimit=300, labelFontSize=12, symbolOpacity=1, symbolType="stroke",
        symbolSize=300,
    )  # fmt: skip


def _name(value: Any) -> str:
    return "infinite" if value == math.inf else f"{value:g}" if isinstance(value, float) else str(value)


def _drawable(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _tooltip(x: str, y: str) -> list[Any]:
    return ["series:N", alt.Tooltip(f"{x}:N"), *(alt.Tooltip(f"{k}:Q", format=".4f") for k in (y, "low", "high"))]


def _finished(chart: Chart, chosen: alt.Parameter) -> Chart:
    done: Chart = chart.add_params(chosen).properties(width="container", height=_HEIGHT)
    return done
