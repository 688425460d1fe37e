"""The page of a ladder: losses against compute, the law with its forecast, and residuals below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from nfd.core.tables import Row
from nfd.core.words import alike, number
from nfd.laws import law_chart
from nfd.laws.ladder import exact
from nfd.laws.ladder_answer import (
    CONTRADICTED,
    TIMES,
    LadderForecast,
    budget,
    budget_name,
    columns,
    signed,
)
from nfd.laws.supplies import SUPPLIES
from nfd.report import look
from nfd.report.page import Cell, Look, Section
from nfd.report.picture import Picture, picture

# Sizes that have a curve of their own.
_CURVES = 4
# Places of a curve, and of a table of it in result.json.
_PLACES = 40
# How many times the largest run the law is drawn to, and how far past a forecast.
_FURTHEST = 30.0
_PAST = 1.6
# The x axis begins so far before the cheapest run, as a factor.
_LEFT = 1.25
# The share of the width that a label takes.
_LABEL_SHARE = 0.28
_BEST = "best size for each budget"
_EACH_RATIO = "the law at your ratio"
_ONE = "the law"
_RUNS = "your runs"


def first_sections(forecast: LadderForecast) -> list[Section]:
    """The losses with the law and its forecast, and what more compute buys."""
    title = "What more compute buys"
    if len(forecast.law.variables) < 2:
        title = f"What more {forecast.law.variables[0]} buy"
    table = Section(title, [], table=_bought(forecast), cards=True)
    sections = [Section("", [], pictures=[_picture(forecast)])]
    if forecast.plan is not None:
        sections += forecast.plan.first_sections()
    return [*sections, table]


def next_sections(forecast: LadderForecast) -> list[Section]:
    """What one more run would do to a forecast that needs none."""
    if forecast.behind or forecast.doubt not in ("", "scatter"):
        return []
    return forecast.law.next_runs(target=forecast.size).first_sections()


def folded_sections(forecast: LadderForecast) -> list[Section]:
    """Every size against the law, and the numbers of the law."""
    law = forecast.law
    runs = []
    for row in sorted(_runs(forecast), key=lambda row: -abs(row["above"])):
        sizes = {"run": row["run"]} if "run" in row else {}
        sizes |= {name: exact(row[name]) for name in law.columns}
        losses = {law.score: number(row["loss"], 4), "by the law": number(row["law"], 4)}
        off = {"off by": signed(row["above"]), "95 % of new runs": f"± {number(row['allowed'])} %"}
        runs.append(sizes | losses | off)
    terms = []
    for name, term in law.terms.items():
        additive = law.additive_terms.get(name, math.nan)
        without = "" if math.isnan(additive) else number(additive, 3)
        terms.append(
            {
                "": name,
                "with its 95 % interval": term.in_words(),
                "additive fit, no priors": without,
            }
        )
    letters = "N parameters, D tokens" if len(law.variables) == 2 else law.variables[0]
    letters = "; ".join([letters, *(SUPPLIES[name].formula for name in law.supplies)])
    return [
        Section("Every size against the law", [], table=runs, folded=True),
        Section("The law and its terms", [f"{law.formula}, {letters}."], table=terms, folded=True),
    ]


def content(forecast: LadderForecast) -> dict[str, Any]:
    """What ``result.json`` holds of a forecast: the law, and the curves of the chart."""
    law = forecast.law
    refused = law.refused(**forecast.size, **forecast.behind)
    plan = forecast.plan
    return {
        "fit": {name: term.limits for name, term in law.terms.items()},
        "additive": vars(law.additive),
        "prior": law.prior,
        "residual": law.residual,
        "warning": law.warning,
        "refusal": refused,
        "forecast": forecast.size
        | forecast.behind
        | {"times": forecast.times, "loss": forecast.loss.limits},
        "ratio": law.ratio,
        "budgets": forecast.table,
        "plan": [] if plan is None else plan.table,
        "curves": {
            "best": best_curve(forecast),
            "sizes": size_curves(forecast),
            "runs": _runs(forecast),
        },
    }


# ---- numbers of the chart


def _span(forecast: LadderForecast) -> tuple[float, float]:
    """From the cheapest run to what is drawn beyond the dearest."""
    costs = [row["cost"] for row in _runs(forecast)]
    cheapest = min(*costs, forecast.cost)
    return cheapest, max(_FURTHEST * max(costs), _PAST * forecast.cost)


def best_curve(forecast: LadderForecast) -> list[Row]:
    """The loss at the size that every budget is spent on, with its 95 % interval."""
    law = forecast.law
    # The line becomes dashed at the largest run.
    costs = sorted([*np.geomspace(*_span(forecast), _PLACES).tolist(), law.largest_cost])
    sizes = [law.size_for(cost) for cost in costs]
    rows = []
    for cost, size, loss in zip(costs, sizes, law.forecasts(np.array(sizes)), strict=True):
        named = dict(zip(law.variables, size, strict=True))
        rows.append({"cost": cost} | named | columns("loss", loss))
    return rows


def size_curves(forecast: LadderForecast) -> list[Row]:
    """The losses by the law of some numbers of parameters, over tokens."""
    law = forecast.law
    rows = list[Row]()
    for N in _curved(forecast):
        tokens = [D for parameters, D, *_ in law.losses if parameters == N]
        # A little beyond its runs.
        places = np.geomspace(min(tokens) / 1.2, max(tokens) * 1.5, _PLACES)
        sizes = np.stack([np.full(_PLACES, N), places], 1)
        for D, loss in zip(places.tolist(), law.by_law(sizes).tolist(), strict=True):
            rows.append({"parameters": N, "tokens": D, "cost": 6 * N * D, "loss": loss})
    return rows


def _curved(forecast: LadderForecast) -> list[float]:
    """The numbers of parameters that have a curve: some of those with several runs."""
    law = forecast.law
    if len(law.variables) < 2 or law.ratio is not None:
        return []
    counts = dict[float, int]()
    for N, *_ in law.losses:
        counts[N] = counts.get(N, 0) + 1
    several = sorted(N for N, count in counts.items() if count > 1)
    if len(several) <= _CURVES:
        return several
    last = len(several) - 1
    return [several[round(k * last / (_CURVES - 1))] for k in range(_CURVES)]


def _runs(forecast: LadderForecast) -> list[Row]:
    """The mean loss of every size, the law there, and how far the first lies above it."""
    law = forecast.law
    rows = list[Row]()
    for row in law.table:
        if "above" not in row:
            continue
        size = {name: row[name] for name in law.columns}
        axes = [row[name] for name in law.variables]
        cost = math.prod([6.0, *axes]) if len(axes) == 2 else axes[0]
        losses = {"loss": row["value"], "law": row["law"], "above": row["above"]}
        expected = law.of_runs[tuple(size.values())]
        allowed = {"allowed": 100 * (expected.high / expected.value - 1)}
        name = {"run": row["run"]} if "run" in row else {}
        rows.append({"cost": cost} | name | size | losses | allowed)
    return rows


# ---- the chart


def _picture(forecast: LadderForecast) -> Picture:
    """Losses against compute with the law, and residuals on the same axis."""
    law = forecast.law
    series = [f"{exact(N)} parameters" for N in _curved(forecast)] or [_RUNS]
    shades = look.ramp(len(series)) if len(series) > 1 else [look.BLUE]
    colours = dict(zip(series, shades, strict=True))
    variables = {text: look.VARIABLES[colour] for text, colour in colours.items()}
    points = _points(forecast, series)
    first, last = _span(forecast)
    below = law_chart.residuals(
        points, colours, {"cost": first / _LEFT, "end": last}, _x(forecast, title=True)
    )
    largest_miss = max(abs(row["off"]) for row in points)
    count = len({size[0] for size in law.losses})
    some = ""
    if 0 < len(_curved(forecast)) < count:
        some = f"{len(_curved(forecast))} of {count} sizes have a curve. "
    outside = len(law.outside)
    caption = (
        f"{some}Below: how far each size lies from the law, at most {number(largest_miss)} %. Grey "
        f"holds 95 % of new runs of each size; {outside or 'none'} of {len(points)} "
        f"{'lies' if outside == 1 else 'lie'} outside."
    )
    return picture(
        "ladder",
        alt.vconcat(_losses(forecast, points, colours), below, spacing=8),
        label=f"{law.score} against {_axis(forecast)}: {forecast.answer.title}",
        key=variables | {_curve_name(forecast): "ink", law_chart.BAND: "band"},
        caption=caption,
    )


def _curve_name(forecast: LadderForecast) -> str:
    if len(forecast.law.variables) < 2:
        return _ONE
    return _BEST if forecast.law.ratio is None else _EACH_RATIO


def _axis(forecast: LadderForecast) -> str:
    """The quantity of the x axis with its unit."""
    if len(forecast.law.variables) == 2:
        return f"compute (FLOPs: 6 {TIMES} parameters {TIMES} tokens)"
    return forecast.law.variables[0]


def _points(forecast: LadderForecast, series: Sequence[str]) -> list[Row]:
    """The sizes, each in the colour of the nearest curve, with their text on hover."""
    law = forecast.law
    curved = _curved(forecast)
    is_contradicted = forecast.answer.state == CONTRADICTED
    rows = []
    for row in _runs(forecast):
        place = tuple(row[name] for name in law.columns)
        nearest = 0
        if curved:
            nearest = int(np.abs(np.log(np.array(curved) / row["parameters"])).argmin())
        name = law.label(place)
        text = f"{name}: {number(row['loss'], 4)}, off by {signed(row['above'])}"
        is_largest = law.held_out is not None and place == law.held_out.size
        shown = {"series": series[nearest], "hover": look.hover(text), "off": 100 * row["above"]}
        rows.append(row | shown | {"is_wrong": is_contradicted and is_largest})
    return rows


def _x(forecast: LadderForecast, *, title: bool) -> alt.X:
    """The axis that both charts share; the upper one has neither title nor labels."""
    first, last = _span(forecast)
    settings: dict[str, Any] = {"format": "~e", "labelExpr": "replace(datum.label, '+', '')"}
    if len(forecast.law.variables) < 2:
        letters = "datum.value >= 1e6 ? replace(format(datum.value, '~s'), 'G', 'B') : datum.label"
        settings = {"format": ",~r", "labelExpr": letters}
    if not title:
        settings |= {"labels": False, "ticks": False, "domain": False}
    name = _axis(forecast) if title else ""
    return look.x_log("cost", name, (first / _LEFT, last), **settings)


def _losses(forecast: LadderForecast, points: Sequence[Row], colours: Mapping[str, str]) -> Any:
    """The losses, the law's curves, its band, and the forecast."""
    law = forecast.law
    best = best_curve(forecast)
    losses = [row["loss"] for row in [*points, *best]]
    x = _x(forecast, title=False)
    y = law_chart.loss_axis(law.score, [*losses, forecast.loss.low, forecast.loss.high])
    _, last = _span(forecast)
    layers: list[Any] = [
        *law_chart.beyond("cost", law.largest_cost, last, x),
        law_chart.band(best, x, y),
    ]
    sizes = []
    for row in size_curves(forecast):
        sizes.append(row | {"series": f"{exact(row['parameters'])} parameters"})
    if sizes:
        curves = look.points(sizes, x=x, y=y, color=look.coloured(colours))
        layers.append(curves.mark_line(strokeWidth=1.6, clip=True))
    is_above = forecast.loss.low > _on_curve(forecast.cost, best, "loss_high")
    style = {"align": "right", "dx": -4, "dy": -10} if is_above else {"align": "right", "dy": 12}
    layers += [
        *law_chart.law_line(best, "cost", law.largest_cost, x, y),
        *law_chart.dots(points, colours, x, y),
        *law_chart.forecast_mark(
            forecast.loss,
            forecast.subject,
            {"cost": forecast.cost},
            _labelled(forecast, best, is_above=is_above),
            style,
            x,
            y,
        ),
    ]
    return alt.layer(*layers).properties(height=law_chart.HEIGHT)


def _labelled(forecast: LadderForecast, best: Sequence[Row], *, is_above: bool) -> Row:
    """Where the label of the forecast ends, and no line is.

    The curve falls: below its band nothing is drawn to the left of the forecast. A size that is far
    from the best one lies above the band, which its label is not to meet at its beginning.
    """
    if not is_above:
        return {"cost": forecast.cost, "loss": forecast.loss.low}
    first, last = _span(forecast)
    begin = last * (first / last) ** _LABEL_SHARE
    level = max(forecast.loss.high, _on_curve(begin, best, "loss_high"))
    return {"cost": last, "loss": level}


def _on_curve(cost: float, best: Sequence[Row], column: str) -> float:
    """The height of the curve, or of an end of its band, at a budget."""
    costs = [math.log(row["cost"]) for row in best]
    return float(np.interp(math.log(cost), costs, [row[column] for row in best]))


# ---- the table


def _bought(forecast: LadderForecast) -> list[dict[str, Any]]:
    """What more compute buys, in words."""
    rows = []
    for row in forecast.table:
        look_of: Look = "strong" if math.isclose(row["loss"], forecast.loss.value) else ""
        name = f"{budget_name(row)}, {TIMES} your largest run"
        times = Cell(((budget(row), look_of), (f" {TIMES} {number(row['times'])}", "soft")))
        cells: dict[str, Any] = {name: times}
        if "flops" in row:
            for variable, title in (("parameters", "best size"), ("tokens", "tokens")):
                cells |= _cell(row, variable, title)
        rows.append(cells | _cell(row, "loss", "loss"))
    return rows


def _cell(row: Row, name: str, title: str) -> dict[str, Any]:
    """A number with its interval in grey, below its title."""
    if f"{name}_low" not in row:
        return {"size at your ratio" if title == "best size" else title: number(row[name], 3)}
    value, low, high = alike(row[name], row[f"{name}_low"], row[f"{name}_high"])
    return {f"{title} (95 %)": Cell(((value, ""), (f" ({low} to {high})", "soft")))}
