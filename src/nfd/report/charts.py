"""Charts of the reports: one Altair object gives the interactive page, the PDF and the PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

Row = dict[str, Any]

# Okabe & Ito's colours, told apart by colour-blind readers too.
_LIMIT_COLOURS = ["#000000", "#D55E00"]
_REAL_COLOURS = ["#56B4E9", "#0072B2", "#009E73", "#CC79A7", "#E69F00"]


def loss_curves(rows: Sequence[Row], limits: Sequence[str]) -> alt.LayerChart:
    """Loss against step: predictions as lines, real networks as lines in their bands."""
    rows = [row for row in rows if all(math.isfinite(row[k]) for k in ("loss", "low", "high"))]  # drop divergence
    names = list(dict.fromkeys(row["series"] for row in rows))
    real = [name for name in names if name not in limits]
    colours = [*_LIMIT_COLOURS[: len(limits)], *(_REAL_COLOURS[k % len(_REAL_COLOURS)] for k in range(len(real)))]
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=[*limits, *real], range=colours),
        legend=alt.Legend(
            title=None, orient="top", columns=2, labelLimit=300, labelFontSize=12, symbolOpacity=1, symbolType="stroke"
        ),
    )
    chosen = alt.selection_point(fields=["series"], bind="legend")
    base = alt.Chart(alt.InlineData(values=list(rows))).encode(
        x=alt.X("step:Q", title="step"),
        color=colour,
        opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.08)),
    )
    band = base.mark_area().encode(
        y=alt.Y("low:Q", title="training loss before the step (nats)", scale=alt.Scale(zero=False)),
        y2="high:Q",
        opacity=alt.condition(chosen, alt.value(0.18), alt.value(0.0)),
    )
    line = base.mark_line(strokeWidth=2).encode(
        y="loss:Q",
        strokeDash=alt.condition(
            alt.FieldOneOfPredicate(field="series", oneOf=list(limits)), alt.value([1, 0]), alt.value([5, 3])
        ),
        tooltip=["series:N", "step:Q", *(alt.Tooltip(f"{k}:Q", format=".4f") for k in ("loss", "low", "high"))],
    )
    chart: alt.LayerChart = (band + line).add_params(chosen).properties(width="container", height=360)
    return chart
