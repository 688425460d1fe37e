"""The charts of ``transfer_gpt.py``: loss against the rate, a panel for every ladder, a line for every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from nfd.report.charts import ORDERED

Row = Mapping[str, Any]

TALLEST = 1.2  # nats above the least loss that are drawn
ACROSS = "learning rate of the base"
UP = ["loss on unseen text (nats per byte)", "(95 % interval; below: best rate)"]


def chart(axis: str, panels: Mapping[str, tuple[Sequence[Row], Sequence[Row]]]) -> alt.HConcatChart:
    """Panels by title: curves, rows with ``axis``, ``lr``, ``value``, ``low`` and ``high``, and best rates below."""
    every = [row for curves, _ in panels.values() for row in curves]
    sizes, rates = (sorted({row[column] for row in every}) for column in (axis, "lr"))
    fitted = {row[axis] for _, best in panels.values() for row in best}
    least = min(row["value"] for row in every)
    places = sorted({row["lr"] for row in every if row[axis] in fitted})
    step = min(max(row["value"] for row in every) - least, TALLEST) / 18
    top = least + 19 * step
    bottom = least - (3 + len(sizes)) * step
    heights = {size: least - (2 + k) * step for k, size in enumerate(sizes)}
    shades = [ORDERED[round(k * (len(ORDERED) - 2) / max(1, len(sizes) - 1))] for k in range(len(sizes))]
    scale = alt.Scale(domain=sizes, range=shades)
    colour = alt.Color(f"{axis}:O", scale=scale, legend=None)
    reach = alt.Scale(type="log", domain=[rates[0] / 1.2, rates[-1] * 1.2])
    ticks = alt.Axis(values=places, format="~g", grid=False, labelAngle=-40)

    def across(column: str) -> alt.X:
        return alt.X(f"{column}:Q", title=ACROSS, axis=ticks, scale=reach)

    def up(column: str) -> alt.Y:
        domain = alt.Scale(domain=[bottom, top], nice=False)
        return alt.Y(f"{column}:Q", title=UP, axis=alt.Axis(grid=False), scale=domain)

    def panel(title: str, curves: Sequence[Row], best: Sequence[Row]) -> alt.LayerChart:
        drawn = [{**row, "low": max(bottom, row["low"]), "high": min(top, row["high"])} for row in curves]
        optima = [{**row, "height": heights[row[axis]]} for row in best if row["value"] is not None]
        lines = alt.Chart(alt.Data(values=drawn)).encode(x=across("lr"), color=colour)
        below = alt.Chart(alt.Data(values=optima)).encode(y=up("height"), color=colour)
        ends = [{**row, "lr": min(row["high"], rates[-1])} for row in optima]
        ends += [{**row, "height": row["value"]} for row in lasts(drawn, axis) if row[axis] not in fitted]
        ends = [{**row, "name": f"{axis} {row[axis]:,}"} for row in ends if row["height"] < top]
        names = alt.Chart(alt.Data(values=ends)).encode(y=up("height"), x=across("lr"), text="name:N")
        layers = (
            lines.mark_area(opacity=0.18, clip=True).encode(y=up("low"), y2="high:Q"),
            lines.mark_line(point=True, clip=True).encode(y=up("value")),
            below.mark_rule(strokeWidth=2, clip=True).encode(x=across("low"), x2="high:Q"),
            below.mark_point(shape="diamond", filled=True, size=70, opacity=1, clip=True).encode(x=across("value")),
            names.mark_text(align="left", dx=6, fontSize=10),
        )
        return alt.layer(*layers).properties(title=title, width=250, height=260)

    beside = alt.hconcat(*(panel(title, *rows) for title, rows in panels.items())).resolve_scale(color="shared")
    return beside.configure_view(stroke=None)  # names stand across the frame


def lasts(curves: Sequence[Row], axis: str) -> list[Row]:
    """The row of the highest rate of every size."""
    return list({row[axis]: row for row in sorted(curves, key=lambda row: row["lr"])}.values())
