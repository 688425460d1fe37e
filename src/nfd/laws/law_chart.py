"""What charts of loss laws share: the region beyond the runs, points, a forecast, and residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.core.words import alike
from nfd.report import look

HEIGHT = 310
_RESIDUALS = 62
# The width of the bar behind a size, in pixels: a little more than its dot.
_BAR = 10
# The share of the losses' range that is free below them, for the label of a forecast.
_BELOW = 0.12
# The y axes of both charts take as much room, so that their x axes lie below each other.
_LABELS: dict[str, Any] = {"minExtent": 38, "titlePadding": 6}
BAND = "its 95 % interval"


def loss_axis(score: str, losses: Sequence[float]) -> alt.Y:
    """The axis of losses, with room below them."""
    low, high = look.with_margin(losses)
    span = (low - _BELOW * (high - low), high)
    title = score if score.endswith("loss") and "." not in score else f"loss ({score})"
    return look.y_linear("loss", title, span, **_LABELS)


def beyond(
    column: str, start: float, end: float, x: alt.X, text: str = "beyond your runs"
) -> list[alt.Chart]:
    """Shade what lies beyond the runs, and say so."""
    region = look.points([{column: start, "end": end, "text": text}], x=x)
    shaded = region.mark_rect(color=look.BAND, opacity=0.3).encode(
        x2="end:Q", y=alt.value(0), y2=alt.value(HEIGHT)
    )
    label = region.mark_text(color=look.SOFT, align="right", dx=-6).encode(
        x="end:Q", y=alt.value(10), text="text:N"
    )
    return [shaded, label]


def band(rows: Sequence[Row], x: alt.X, y: alt.Y) -> Any:
    """The interval of a curve."""
    # An area begins at the column of its axis.
    ends = [row | {"loss": row["loss_low"]} for row in rows]
    area = look.points(ends, x=x, y=y).mark_area(color=look.BAND, opacity=0.75, clip=True)
    return area.encode(y2="loss_high:Q")


def law_line(rows: Sequence[Row], column: str, largest: float, x: alt.X, y: alt.Y) -> list[Any]:
    """The law, dashed beyond the largest run, at which it has a row."""
    style: dict[str, Any] = {"color": look.INK, "strokeWidth": 2.5, "clip": True}
    within = [row for row in rows if row[column] <= largest * (1 + 1e-9)]
    further = [row for row in rows if row[column] >= largest * (1 - 1e-9)]
    line = look.points(within, x=x, y=y).mark_line(**style)
    dashed = look.points(further, x=x, y=y).mark_line(strokeDash=[3, 3], **style)
    return [line, dashed]


def dots(points: Sequence[Row], colours: Mapping[str, str], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Every size; the one that contradicts the law in the colour of what is wrong."""
    sound = [row for row in points if not row["is_wrong"]]
    wrong = [row for row in points if row["is_wrong"]]
    all_sound = look.points(sound, x=x, y=y, color=look.coloured(colours), description="hover:N")
    charts = [all_sound.mark_point(filled=True, opacity=1, size=45)]
    if wrong:
        off = look.points(wrong, x=x, y=y, description="hover:N")
        charts.append(off.mark_point(filled=True, opacity=1, size=70, color=look.ORANGE))
    return charts


def forecast_mark(
    loss: Interval, what: str, place: Row, label: Row, style: Row, x: alt.X, y: alt.Y
) -> list[Any]:
    """A forecast as a diamond with its interval and its label.

    Args:
        loss: the forecast. what: of which run, for the text on hover.
        place: where it is on the x axis, by its column.
        label: where its text is, in both columns; ``style`` says how it is aligned there.
        x, y: the axes.
    """
    value, low, high = alike(loss.value, loss.low, loss.high)
    text = f"{value} (95 %: {low} to {high})"
    row = place | {"loss": loss.value, "loss_high": loss.high}
    hover = look.hover(f"{what}: {text}")
    mark = look.points([row | {"hover": hover}], x=x, y=y, description="hover:N")
    ends = look.points([row | {"loss": loss.low, "hover": hover}], x=x, y=y, description="hover:N")
    written = look.points([label | {"text": text}], x=x, y=y).encode(text="text:N")
    return [
        ends.mark_rule(color=look.INK, strokeWidth=3).encode(y2="loss_high:Q"),
        mark.mark_point(shape="diamond", filled=True, opacity=1, size=130, color=look.INK),
        look.on_lines(written, fontWeight=600, **style),
    ]


def residuals(
    points: Sequence[Row],
    colours: Mapping[str, str],
    region: Row,
    x: alt.X,
    allowed: float | None = None,
) -> Any:
    """How far each size lies above the law, in percent, and what the law allows.

    Args:
        points: rows with ``off``, in percent, and ``allowed``, the scatter that is allowed there.
        colours: of their series.
        region: where the x axis begins, by its column, and its ``end``.
        x: the axis.
        allowed: the scatter that the law allows at every size, in place of each its own.
    """
    limits = [row["allowed"] for row in points] if allowed is None else [allowed]
    limit = 1.25 * max(*limits, *(abs(row["off"]) for row in points))
    y = look.y_linear("off", "off by %", (-limit, limit), tickCount=3, **_LABELS)
    if allowed is None:
        ends = [row | {"off": -row["allowed"], "off_high": row["allowed"]} for row in points]
        bars = look.points(ends, x=x, y=y)
        area = bars.mark_rule(color=look.BAND, strokeWidth=_BAR).encode(y2="off_high:Q")
    else:
        expected = look.points([region | {"off": -allowed}], x=x, y=y)
        area = expected.mark_rect(color=look.BAND, opacity=0.6).encode(
            x2="end:Q", y2=alt.datum(allowed)
        )
    zero = look.points([{"off": 0.0}], y=y).mark_rule(color=look.SOFT, strokeWidth=0.5)
    return alt.layer(area, zero, *dots(points, colours, x, y)).properties(height=_RESIDUALS)
