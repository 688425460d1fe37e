"""The charts of a training run: its loss, the worst layer of each cause, and the worst layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt

from nfd.core.tables import Row
from nfd.core.words import MINUS, number, plural
from nfd.meters.meter import quantity_in_words
from nfd.meters.reading import WatchRow, at_steps, steps_of
from nfd.report.look import (
    BAND,
    BLUE,
    INK,
    LINE,
    ORANGE,
    hover,
    points,
    round_ticks,
    with_margin,
)
from nfd.report.picture import Picture, picture
from nfd.watch.alerts import Fault, measured
from nfd.watch.bands import ALERTS, Band
from nfd.watch.verdict import loss_says, loss_seen

if TYPE_CHECKING:
    from nfd.watch.watch import Watch

# How many looks of the past a chart over steps has, and how many losses
LOOKS = 60
_LOSSES = 240
# Layers in the chart of the worst ones, and where its axis ends, in half-widths of a band
_WORST = 9
_FURTHEST = 4.0
# Values over this ratio are drawn on a logarithmic axis.
_WIDE_RATIO = 50
_TALL = 220
_LOW = 170
_ROW = 38


def spaced(steps: Sequence[int], most: int = LOOKS) -> list[int]:
    """At most so many of these steps, evenly spaced, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(k * (len(steps) - 1) / (most - 1))] for k in range(most)]


# ---- the loss


def loss_picture(watch: Watch) -> Picture | None:
    """The losses that ``step()`` was given, over those of the small networks; None without two.

    The caption says how they compare, or why they are not compared.
    """
    finite = [step for step, loss in watch.losses.items() if math.isfinite(loss)]
    if len(finite) < 2:
        return None
    rows: list[Row] = [
        {"step": step, "loss": watch.losses[step]} for step in spaced(finite, _LOSSES)
    ]
    band: list[Row] = []
    ladder = None if watch.expected is None else watch.expected.ladder
    key = {_run_in_words(watch): "blue"}
    # A band beside losses that are not compared with it would look like a comparison.
    if ladder is not None and len(ladder.losses) > 1 and loss_seen(watch) is not None:
        band = [
            {"step": step, "low": low, "high": high}
            for step, (low, high) in ladder.losses.items()
            if step <= max(finite)
        ]
        widths = [run.width for run in ladder.runs]
        span = f"width {min(widths):g} to {max(widths):g}"
        key[f"{plural(len(ladder.runs), 'small network')}, {span}"] = "band"
    span_x = 0, max(finite)
    y = _y("loss", "training loss", [*rows, *band])
    x = _x(span_x)
    line = points(rows, x=x, y=y).mark_line(color=BLUE, strokeWidth=2)
    layers = [line, _hovered(rows, x, y, "loss", BLUE)]
    if len(band) > 1:
        area = points(band, x=x, y=_y("low", "training loss", [*rows, *band]), y2="high:Q")
        layers.insert(0, area.mark_area(color=BAND))
    if watch.alerts:
        layers += _first_alert(watch, span_x)
        key["first alert"] = "orange"
    chart = alt.layer(*layers).properties(height=_TALL)
    return picture("loss", chart, label="training loss", key=key, caption=loss_says(watch))


def _run_in_words(watch: Watch) -> str:
    plan = watch.plan
    if not watch.is_planned or plan.base is None:
        return "this run"
    width, depth = plan.base
    return f"this run, width {plan.width * width:g} and depth {plan.depth * depth:g}"


def _first_alert(watch: Watch, span: tuple[float, float]) -> list[Any]:
    """A line at the first alert, its label above the chart where no other line is."""
    steps = [alert.step for alert in watch.alerts]
    step = min(steps)
    text = f"✗ {plural(steps.count(step), 'alert')} at step {step:,}"
    if steps.count(step) < len(steps):
        text += f", {len(steps)} so far"
    row: Row = {"step": step, "text": text}
    is_right = step > sum(span) / 2
    base = points([row], x=_x(span))
    label = base.mark_text(
        align="right" if is_right else "left",
        dx=4 if is_right else -4,
        fontWeight="bold",
        color=ORANGE,
        baseline="bottom",
    )
    rule = base.mark_rule(color=ORANGE, strokeWidth=2)
    return [rule, label.encode(text="text:N", y=alt.value(-5))]


# ---- a quantity over the steps, with its band


def over_steps(
    watch: Watch, meter: str, layer: str | None, name: str, colour: str = ORANGE
) -> Picture | None:
    """A quantity of one layer over the steps, with its band; None where it was read at no look."""
    of_layer = [row for row in watch.rows if (row.meter, row.layer) == (meter, layer)]
    shown = at_steps(of_layer, spaced(steps_of(of_layer)))
    rows = list[Row]()
    bands = list[Row]()
    for row in shown:
        if not math.isfinite(row.value):
            continue
        band = watch.band(row)
        text = f"step {row.step:,}: {measured(row.value, band)}"
        rows.append({"step": row.step, "value": row.value, "text": hover(text)})
        if band is not None:
            bands.append({"step": row.step, "low": band.low, "high": band.high})
    if not rows:
        return None
    title = quantity_in_words(meter)
    x = _x((0, max(row["step"] for row in rows)), 5)
    y = _y("value", title, [*rows, *bands], with_zero=True)
    line = points(rows, x=x, y=y).mark_line(color=colour, strokeWidth=2)
    dots = points(rows, x=x, y=y, description="text:N").mark_circle(
        color=colour, size=28, opacity=1
    )
    layers = [line, dots]
    if len(bands) > 1:
        area = points(bands, x=x, y=_y("low", title, [*rows, *bands], with_zero=True), y2="high:Q")
        layers.insert(0, area.mark_area(color=BAND))
    elif bands:
        bar = points(bands, x=x, y=_y("low", title, [*rows, *bands], with_zero=True), y2="high:Q")
        layers.insert(0, bar.mark_rule(color=BAND, strokeWidth=8))
    chart = alt.layer(*layers).properties(height=_LOW)
    of = layer or "the network"
    return picture(name, chart, label=f"{title} of {of} over the steps", kind="half")


# ---- the worst layers of a look


@dataclass(frozen=True)
class _Dot:
    """The quantity of a layer that is furthest from the middle of its band."""

    row: WatchRow
    band: Band
    place: float


def worst_picture(watch: Watch, faults: Sequence[Fault]) -> tuple[int, Picture] | None:
    """The latest judged step with its worst layers; None where nothing was judged."""
    look = _judged_look(watch)
    dots = _dots(watch, look)
    if not dots:
        return None
    step = look[0].step
    wrong = _wrong(dots, faults)
    order = sorted(dots.values(), key=lambda dot: (dot.row.layer not in wrong, -abs(dot.place)))
    rows = list[Row]()
    for place, dot in enumerate(order[:_WORST]):
        name = quantity_in_words(dot.row.meter)
        text = f"{dot.row.layer}: {name} {measured(dot.row.value, dot.band)}"
        rows.append(
            {
                "row": place + 0.5,
                "name": f"{dot.row.layer} · {name}",
                "place": max(-_FURTHEST, min(_FURTHEST, dot.place)),
                "colour": ORANGE if dot.row.layer in wrong else BLUE,
                "text": hover(text),
            }
        )
    key = {"expected": "band"}
    sound = [abs(row["place"]) for row in rows if row["colour"] == BLUE]
    if sound:
        key["as expected" if max(sound) <= 1 else "as expected, or outside only now"] = "blue"
    if len(sound) < len(rows):
        key["with a fault"] = "orange"
    shown = picture(
        "worst-layers",
        _worst_chart(rows),
        label="worst layers",
        key=key,
        note=f"One dot for each layer at step {step:,}: its worst quantity.",
    )
    return step, shown


def _wrong(dots: Mapping[str, _Dot], faults: Sequence[Fault]) -> set[str]:
    """The layers with a fault; all that are outside, where one is of the whole network."""
    wrong = set[str]()
    for fault in faults:
        wrong |= {*fault.layers}
        if not fault.layers:
            wrong |= {layer for layer, dot in dots.items() if abs(dot.place) > 1}
    return wrong


def worst_layer(watch: Watch, meter: str) -> str | None:
    """The layer that is furthest from its band in this meter at the latest judged look."""
    dots = _dots(watch, [row for row in _judged_look(watch) if row.meter == meter])
    return max(dots, key=lambda layer: abs(dots[layer].place), default=None)


def _judged_look(watch: Watch) -> list[WatchRow]:
    """The rows of the latest look that was compared with the small networks."""
    step = watch.unjudged_since
    if step is None:
        step = max(steps_of(watch.rows), default=0)
    return at_steps(watch.rows, [step])


def _dots(watch: Watch, rows: Sequence[WatchRow]) -> dict[str, _Dot]:
    """The worst quantity of every layer of a look."""
    worst: dict[str, _Dot] = {}
    for row in rows:
        band = watch.band(row)
        if row.layer is None or row.meter == ALERTS or band is None:
            continue
        dot = _Dot(row, band, _half_widths(row.value, band))
        if row.layer not in worst or abs(dot.place) > abs(worst[row.layer].place):
            worst[row.layer] = dot
    return worst


def _half_widths(value: float, band: Band) -> float:
    """Where a value lies: 0 at what was expected, -1 and 1 at the ends of the band.

    Bands are intervals of logarithms.
    """
    if not math.isfinite(value):
        return _FURTHEST
    if value <= 0 or band.value <= 0:
        return -_FURTHEST
    distance = math.log(value / band.value)
    end = band.high if distance > 0 else band.low
    if end <= 0:
        # Below is nothing that would be too small.
        return (value - band.value) / band.value
    width = abs(math.log(end / band.value))
    return distance / width if width > 0 else 0.0


def _worst_chart(rows: Sequence[Row]) -> Any:
    """A line of text for each layer, and its dot below it."""
    last = _FURTHEST
    ends = (
        f"datum.value <= -{last:g} ? '≤ {MINUS}{last:g}' : datum.value >= {last:g} ? '≥ {last:g}'"
    )
    axis = alt.Axis(
        grid=False,
        values=list(range(-int(last), int(last) + 1)),
        labelExpr=f"{ends} : replace(datum.label, '-', '{MINUS}')",
    )
    title = "too small ← half-widths of the band → too large"
    scale = alt.Scale(domain=[-last - 0.2, last + 0.2], nice=False)
    x = alt.X("place:Q", title=title, scale=scale, axis=axis)
    rows_scale = alt.Scale(domain=[0, len(rows)], reverse=True, nice=False)
    y = alt.Y("row:Q", axis=None, scale=rows_scale)
    limits: list[Row] = [{"place": -1, "to": 1, "row": 0, "end": len(rows)}]
    band = points(limits, x=x, x2="to:Q", y=y, y2="end:Q").mark_rect(color=BAND)
    lines: list[Row] = [{"row": k} for k in range(1, len(rows))]
    layers = [band]
    if lines:
        layers.append(points(lines, y=y).mark_rule(color=LINE))
    # Text starts at the left end of the plotting area, above the dots of its row.
    names = points(rows, y=y, x=alt.value(0), text="name:N").mark_text(
        align="left", dy=-8, color=INK
    )
    colour = alt.Color("colour:N", scale=None)
    dots = points(rows, x=x, y=y, color=colour, description="text:N")
    return alt.layer(*layers, names, dots.mark_circle(size=90, opacity=1, yOffset=8)).properties(
        height=_ROW * len(rows)
    )


# ---- axes


def _x(span: tuple[float, float], ticks: int = 8) -> alt.X:
    scale = alt.Scale(domain=list(span), nice=False)
    axis = alt.Axis(grid=False, tickCount=ticks, tickMinStep=1, format=",~d")
    return alt.X("step:Q", title="step", scale=scale, axis=axis)


def _y(
    column: str, title: str, rows: Sequence[Mapping[str, Any]], *, with_zero: bool = False
) -> alt.Y:
    """An axis with room for all rows, logarithmic where they differ much and none is zero."""
    values = []
    for row in rows:
        values += [row[name] for name in ("loss", "value", "low", "high") if name in row]
    low = min(values)
    high = max(values)
    if low > 0 and high / low > _WIDE_RATIO:
        span = with_margin(values, "log")
        scale = alt.Scale(type="log", domain=list(span), nice=False)
        axis = alt.Axis(values=round_ticks(*span), format="~g")
        return alt.Y(f"{column}:Q", title=title, scale=scale, axis=axis)
    span = with_margin(values)
    if with_zero:
        span = (min(0.0, low), span[1])
    scale = alt.Scale(domain=list(span), nice=False)
    return alt.Y(f"{column}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))


def _hovered(rows: Sequence[Row], x: alt.X, y: alt.Y, column: str, colour: str) -> Any:
    """Points that are not seen, with a text while the pointer is on them."""
    steps = {*spaced([row["step"] for row in rows])}
    shown: list[Row] = []
    for row in rows:
        if row["step"] in steps:
            text = f"step {row['step']:,}: {number(row[column], 3)}"
            shown.append({**row, "text": hover(text)})
    marks = points(shown, x=x, y=y, description="text:N")
    return marks.mark_circle(color=colour, size=90, opacity=0)
