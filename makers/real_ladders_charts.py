"""Charts of docs/real-ladders.md.

Bars are 95 % intervals everywhere; what differs in colour differs in shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from makers import pictures
from makers.pictures import FONT, chart
from nfd.report.charts import COLOURS, INK, REFERENCE

Row = Mapping[str, Any]
_PLAIN = COLOURS[0]
_TARGET = COLOURS[1]


def signed(value: float) -> str:
    """A number of percent with its sign, and a minus as wide as the plus."""
    return f"{value:+.1f}".replace("-", "\u2212")


def _scale(low: float, high: float, pad: float = 0.08) -> alt.Scale:
    """A logarithmic axis with a margin."""
    margin = (high / low) ** pad
    return alt.Scale(type="log", domain=[low / margin, high * margin], nice=False)


def _powers(values: Sequence[float], most: int = 2, title: str | None = None) -> alt.X:
    """An axis of operations, with ticks at some powers of ten, ``most`` at most."""
    first = math.ceil(math.log10(min(values)))
    last = math.floor(math.log10(max(values)))
    step = max(1, math.ceil((last - first) / (most - 1)))
    ticks = [10.0**k for k in range(first, last + 1, step)]
    axis = alt.Axis(values=ticks, title=title, labelExpr="'1e' + round(log(datum.value) / LN10)")
    return alt.X("flops:Q", scale=_scale(min(values), max(values)), axis=axis)


def _ladder(
    fit: Sequence[Sequence[float]],
    targets: Sequence[Row],
    colour: str,
    dash: Sequence[int],
    most: int = 2,
) -> Any:
    """Draw fitted runs as grey dots, and targets as diamonds on the bars of their forecasts."""
    runs = [{"flops": flops, "loss": loss} for flops, loss in fit]
    losses = [row["loss"] for row in runs]
    for row in targets:
        losses += [row["low"], row["high"], row["loss"]]
    low = min(losses)
    high = max(losses)
    digits = 1 if high > 1.5 else 2
    # Small charts have few ticks, and no room for titles.
    has_titles = most > 2
    axis = alt.Axis(
        values=[round(float(v), digits) for v in np.geomspace(low, high, 3)],
        title="loss" if has_titles else None,
        format=f".{digits}f",
        minExtent=26,
        maxExtent=26,
    )
    operations = [row["flops"] for row in [*runs, *targets]]
    x = _powers(operations, most, "operations of a run" if has_titles else None)
    y = alt.Y("loss:Q", scale=_scale(low, high), axis=axis)
    base = chart(targets).encode(x=x)
    return alt.layer(
        chart(runs).mark_point(filled=True, color=REFERENCE, size=8, opacity=0.8).encode(x=x, y=y),
        base.mark_rule(color=colour, strokeDash=list(dash), strokeWidth=1.5).encode(
            y="low:Q", y2="high:Q"
        ),
        base.mark_tick(color=colour, orient="horizontal", width=8, thickness=1.5).encode(
            y="forecast:Q"
        ),
        base.mark_point(shape="diamond", color=_TARGET, size=28, strokeWidth=1.5, opacity=1).encode(
            y="loss:Q"
        ),
    )


def ladders(cases: Sequence[Row], title: str) -> alt.ConcatChart:
    """Draw ladders two by two, each from the cut that is shown.

    Bars of refused forecasts are grey and broken.
    """
    charts = []
    for case in cases:
        order = sorted(case["targets"], key=lambda row: float(row["flops"]))
        # Six targets at most, evenly chosen.
        places = {round(k) for k in np.linspace(0, len(order) - 1, 6)}
        some = [order[k] for k in sorted(places)]
        name = case["ladder"].replace("owt2_", "").replace("_", " ")
        heading = alt.Title(name, subtitle=f"{case['factor']:.0f}x: {_outcome(case)}")
        if case["accepted"]:
            drawn = _ladder(case["fit"], some, INK, (1, 0))
        else:
            drawn = _ladder(case["fit"], some, REFERENCE, (3, 2))
        charts.append(drawn.properties(width=112, height=92, title=heading))
    return alt.concat(*charts, columns=2, spacing=8, title=pictures.title(title))


def _outcome(case: Row) -> str:
    """Say how far off a forecast was, or that it was refused.

    Where targets lie outside of its intervals, their number follows.
    """
    half = f"± {case['width'] / 2:.1f} %"
    if not case["accepted"]:
        return f"refused ({half})"
    count = len(case["targets"])
    outside = round((1 - case["covered"]) * count)
    words = f"{signed(case['bias'])} {half}"
    if outside == 0:
        return words
    if outside == count:
        return f"{words}, out"
    return f"{words}, {outside} out"


def against_factor(
    cases: Sequence[Row], name: str, title: str, medians: Mapping[tuple[int, int], float]
) -> Any:
    """Draw errors of the cases by factor, refused ones hollow.

    A line shows the median of the accepted ones of each factor.
    """
    rows = [
        {"factor": c["factor"], "error": max(c[name], 0.02), "accepted": c["accepted"]}
        for c in cases
    ]
    x = alt.X(
        "factor:Q",
        scale=alt.Scale(type="log", domain=[1, 1000]),
        axis=alt.Axis(values=[1, 10, 100, 1000], title="times the compute of the fitted runs"),
    )
    y = alt.Y(
        "error:Q",
        scale=alt.Scale(type="log", domain=[0.02, 40], clamp=True),
        axis=alt.Axis(values=[0.1, 1, 10], title="median error of a case, %"),
    )
    base = chart([row for row in rows if row["factor"] >= 1]).encode(x=x, y=y)
    colour, shape = (INK, "circle") if name == "error" else (_PLAIN, "square")
    mark: dict[str, Any] = {"color": colour, "shape": shape, "size": 26, "opacity": 0.85}
    steps = [{"factor": low, "to": high, "error": value} for (low, high), value in medians.items()]
    return alt.layer(
        base.transform_filter("datum.accepted").mark_point(filled=True, **mark),
        base.transform_filter("!datum.accepted").mark_point(filled=False, strokeWidth=1, **mark),
        chart(steps).mark_rule(color=_TARGET, strokeWidth=3).encode(x=x, x2="to:Q", y=y),
    ).properties(width=260, height=200, title=pictures.title(title))


def olmo(cases: Sequence[Row], published: Row, title: str) -> alt.VConcatChart:
    """Draw the ladder of OLMo and, below, how far its forecasts are off.

    The forecast of its authors is a cross.
    """
    rows = []
    for target in range(len(cases[0]["targets"])):
        rows += [_off(case, target, published["names"]) for case in cases]
    low = min(row["low"] for row in rows)
    high = max(row["high"] for row in rows)
    rows.append({"row": published["label"], "theirs": published["error"]})
    # The names stand on the left.
    scale = alt.Scale(domain=[low - 0.9 * (high - low), high * 1.1], nice=False)
    step = 2 if high - low < 16 else 5
    ticks = [v for v in range(-30, 31, step) if low <= v <= high]
    axis = alt.Axis(
        values=ticks, title="forecast over measured loss, %", titleAnchor="end", domain=False
    )
    x = alt.X("value:Q", scale=scale, axis=axis)
    ends = alt.X("low:Q", scale=scale, axis=axis)
    base = chart(rows).encode(y=alt.Y("row:N", sort=[row["row"] for row in rows], axis=None))
    off = alt.layer(
        chart([{"value": 0}]).mark_rule(color=_TARGET, strokeWidth=1.5).encode(x=x),
        base.mark_rule(color=INK, strokeWidth=1.5).encode(x=ends, x2="high:Q"),
        base.mark_point(color=INK, filled=True, size=36, opacity=1).encode(x=x),
        base.transform_filter("isValid(datum.theirs)")
        .mark_point(color=_PLAIN, shape="cross", filled=True, size=70, angle=45, opacity=1)
        .encode(x=alt.X("theirs:Q", scale=scale, axis=axis)),
        base.mark_text(align="left", dx=4, fontSize=FONT).encode(x=alt.value(0), text="row:N"),
    ).properties(width=288, height=20 * len(rows))
    above = _ladder(cases[0]["fit"], cases[0]["targets"], INK, (1, 0), 6).properties(
        width=288, height=130
    )
    return alt.vconcat(above, off, spacing=12, title=pictures.title(title))


def _off(case: Row, target: int, names: Mapping[float, str]) -> dict[str, Any]:
    """How far the forecast of a target and its limits are off, in percent of the measured loss."""
    forecast = case["targets"][target]
    largest_fitted = max(flops for flops, _ in case["fit"])
    less = forecast["flops"] / largest_fitted

    def off(loss: float) -> float:
        return 100 * (loss / float(forecast["loss"]) - 1)

    return {
        "row": f"{names[forecast['flops']]}, {less:,.0f}x less",
        "flops": forecast["flops"],
        "value": off(forecast["forecast"]),
        "low": off(forecast["low"]),
        "high": off(forecast["high"]),
    }
