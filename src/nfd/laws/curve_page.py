"""The chart of a run's forecast: its losses so far, the losses to come, and their interval."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from nfd.core.tables import Row
from nfd.core.words import number
from nfd.laws import law_chart
from nfd.laws.curve import RunForecast
from nfd.report import look
from nfd.report.page import Section
from nfd.report.picture import Picture, picture

_PLACES = 60
# Losses that are drawn: more are means of neighbours.
_DOTS = 150
# Of a run so far, the first losses are many times the last; the axis begins at this share of steps.
_SHOWN_FROM = 0.02


def first_sections(forecast: RunForecast) -> list[Section]:
    """The losses so far, and the losses to come."""
    return [Section("", [], pictures=[_picture(forecast)])]


def _picture(forecast: RunForecast) -> Picture:
    rows = _losses_so_far(forecast)
    ahead = curve(forecast)
    total = forecast.total_steps
    x = alt.X(
        "step:Q",
        title="training step",
        scale=alt.Scale(domain=[0, total], nice=False),
        axis=alt.Axis(grid=False, format=",d", tickCount=6),
    )
    losses = [row["loss"] for row in [*rows, *ahead]]
    y = law_chart.loss_axis("loss", [*losses, forecast.loss.low, forecast.loss.high])
    colours = {"losses so far": look.BLUE}
    dots = look.points(rows, x=x, y=y, color=look.coloured(colours), description="hover:N")
    label = {"step": total, "loss": forecast.loss.low}
    layers: list[Any] = [
        *law_chart.beyond("step", forecast.seen, total, x, text="to come"),
        law_chart.band(ahead, x, y),
        *law_chart.law_line(ahead, "step", forecast.seen, x, y),
        dots.mark_point(filled=True, opacity=1, size=18),
        *law_chart.forecast_mark(
            forecast.loss,
            f"after {total:,} steps",
            {"step": total},
            label,
            {"align": "right", "dy": 12},
            x,
            y,
        ),
    ]
    return picture(
        "forecast",
        alt.layer(*layers).properties(height=law_chart.HEIGHT),
        label=f"loss against training step: {forecast.answer.title}",
        key={"losses so far": "blue", "forecast": "ink", law_chart.BAND: "band"},
    )


def curve(forecast: RunForecast) -> list[Row]:
    """The losses to come, with their 95 % intervals."""
    steps = np.unique(np.linspace(forecast.seen, forecast.total_steps, _PLACES).round())
    rows = []
    for step in steps.astype(int).tolist():
        loss = forecast.at(step)
        ends = {"loss": loss.value, "loss_low": loss.low, "loss_high": loss.high}
        rows.append({"step": step} | ends)
    return rows


def _losses_so_far(forecast: RunForecast) -> list[Row]:
    """The losses of the run, or means of neighbours where there are many."""
    run = forecast.posterior.run
    shown = run.steps >= _SHOWN_FROM * forecast.total_steps
    parts = min(_DOTS, int(shown.sum()))
    rows = []
    all_steps = np.array_split(run.steps[shown], parts)
    all_losses = np.array_split(run.losses[shown], parts)
    for steps, losses in zip(all_steps, all_losses, strict=True):
        step = float(steps.mean())
        loss = float(losses.mean())
        hover = look.hover(f"step {step:,.0f}: {number(loss, 4)}")
        rows.append({"step": step, "loss": loss, "series": "losses so far", "hover": hover})
    return rows
