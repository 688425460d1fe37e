"""The look of an answer's charts: colours by meaning, axes, and text that can be read on lines.

A chart is drawn in the colours of a light page. The page shows a CSS variable in place of each, so
that one drawing serves light and dark (``nfd.report.charts.svg_of``).

| colour | means |
|---|---|
| ``BLUE`` | the user's network; what is sound |
| ``ORANGE`` | only what is wrong, or costs |
| ``BAND`` | what is allowed or expected |
| ``RAMP`` | sizes of networks, the larger the stronger |
| ``INK``, ``SOFT``, ``LINE`` | text, quiet text, grid |

Blue and orange differ for colour-blind readers by a distance (CIE 1976) of 81 or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

from nfd.core.tables import Row, visible

INK = "#1b1f24"
SOFT = "#5c6570"
LINE = "#e4e7eb"
BAND = "#d5dbe2"
BLUE = "#0067a5"
ORANGE = "#c4500c"
PAPER = "#fffffe"
RAMP = ("#5193c3", "#3a80b6", "#1d5a8d", "#0a3050")

# The CSS variable that a page shows in place of a colour.
VARIABLES = {
    INK: "ink",
    SOFT: "soft",
    LINE: "line",
    BAND: "band",
    BLUE: "blue",
    ORANGE: "orange",
    PAPER: "paper",
} | {colour: f"ramp{place}" for place, colour in enumerate(RAMP, 1)}

_FONT_SIZE = 12
# A description with this mark in front becomes the text that a browser shows on hover. Vega
# describes other marks on its own, in words that help nobody.
HOVER = "\u2060"

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": _FONT_SIZE,
        "titleFontSize": _FONT_SIZE,
        "titleFontWeight": "normal",
        "labelColor": SOFT,
        "titleColor": SOFT,
        "gridColor": LINE,
        "domainColor": LINE,
        "tickColor": LINE,
        "tickSize": 4,
        "labelOverlap": "greedy",
        "labelPadding": 4,
    },
    "text": {"fontSize": _FONT_SIZE, "color": INK},
}


def points(rows: Sequence[Row], **encoding: Any) -> alt.Chart:
    """Rows on their axes, without a mark yet."""
    return alt.Chart(alt.InlineData(values=list(rows))).encode(**encoding)


def x_log(column: str, title: str, span: tuple[float, float], **axis: Any) -> alt.X:
    """A logarithmic x axis with ticks at 1, 2 and 5 times powers of ten."""
    settings: dict[str, Any] = {"values": round_ticks(*span), "grid": False, "format": "~r"} | axis
    scale = alt.Scale(type="log", domain=list(span), nice=False)
    return alt.X(f"{column}:Q", title=visible(title), scale=scale, axis=alt.Axis(**settings))


def y_log(column: str, title: str, span: tuple[float, float], **axis: Any) -> alt.Y:
    """A logarithmic y axis with ticks at 1, 2 and 5 times powers of ten."""
    settings: dict[str, Any] = {"values": round_ticks(*span), "format": "~r"} | axis
    scale = alt.Scale(type="log", domain=list(span), nice=False)
    return alt.Y(f"{column}:Q", title=visible(title), scale=scale, axis=alt.Axis(**settings))


def y_linear(column: str, title: str, span: tuple[float, float], **axis: Any) -> alt.Y:
    """A linear y axis."""
    scale = alt.Scale(domain=list(span), nice=False)
    settings: dict[str, Any] = {"tickCount": 6} | axis
    return alt.Y(f"{column}:Q", title=visible(title), scale=scale, axis=alt.Axis(**settings))


def round_ticks(low: float, high: float) -> list[float]:
    """Places at 1, 2 and 5 times powers of ten; only at powers of ten over three decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    is_wide = math.log10(high / low) > 3
    steps = (1,) if is_wide else (1, 2, 5)
    ticks = []
    for decade in decades:
        # A power of a float would leave 0.30000000000000004.
        ticks += [float(f"{step}e{decade}") for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def with_margin(
    values: Sequence[float], kind: Literal["log", "linear"] = "linear", share: float = 0.05
) -> tuple[float, float]:
    """The range of the finite values with a margin on both sides; 0 to 1 without any."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or kind != "log")]
    if not finite:
        return (0.1, 1.0) if kind == "log" else (0.0, 1.0)
    low = min(finite)
    high = max(finite)
    if kind == "log":
        factor = max((high / low) ** share, 1.05)
        return low / factor, high * factor
    margin = share * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def on_lines(base: alt.Chart, **mark: Any) -> Any:
    """Text with a halo in the colour of the page, so that it can be read on lines."""
    halo = base.mark_text(stroke=PAPER, strokeWidth=4, strokeJoin="round", **mark)
    return alt.layer(halo, base.mark_text(**mark))


def hover(text: str) -> str:
    """The description of a mark that a browser shows while the pointer is on it."""
    return HOVER + visible(text)


def ramp(count: int) -> list[str]:
    """Colours of so many sizes, the smallest first."""
    if count == 1:
        return [RAMP[-1]]
    last = len(RAMP) - 1
    return [RAMP[round(place * last / (count - 1))] for place in range(count)]


def coloured(names: Mapping[str, str], title: str | None = None) -> alt.Color:
    """The colour of every name, without a key: the page writes it above the chart."""
    scale = alt.Scale(domain=list(names), range=list(names.values()))
    return alt.Color("series:N", scale=scale, legend=None, title=title)
