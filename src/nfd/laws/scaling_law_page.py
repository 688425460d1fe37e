"""The page of a loss law over width and depth: losses, the law with its floor, and residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from nfd.core.errors import InputError
from nfd.core.estimates import Interval, mean
from nfd.core.tables import Row
from nfd.core.words import number
from nfd.laws import law_chart
from nfd.laws.best_size import BestSize
from nfd.laws.ladder_answer import CONTRADICTED, columns, signed
from nfd.laws.loss_law import Sizes
from nfd.laws.scaling_law_answer import Growth, size_text
from nfd.report import look
from nfd.report.page import Cell, Section
from nfd.report.picture import Picture, picture

# Sizes that have a curve of their own.
_CURVES = 4
_PLACES = 40
# How many times the largest size the law is drawn to, and how far past a forecast.
_FURTHEST = 4.0
_PAST = 1.6
# The x axis begins so far before the smallest size, as a factor.
_LEFT = 1.15
_RUNS = "your runs"


def first_sections(growth: Growth) -> list[Section]:
    """The losses with the law and its forecast, and what growing buys."""
    title = "What growing buys" if growth.law.law.good else "What was run"
    table = Section(title, [], table=_bought(growth), cards=True)
    return [Section("", [], pictures=[_picture(growth)]), table]


def folded_sections(growth: Growth) -> list[Section]:
    """Every size against the law, and the numbers of the law."""
    law = growth.law.law
    runs = []
    for row in sorted(_runs(growth), key=lambda row: -abs(row["off"])):
        cells = {name: size_text(row[name]) for name in law.variables}
        losses = {growth.law.score: number(row["loss"], 4), "by the law": number(row["law"], 4)}
        runs.append(cells | losses | {"off by": signed(row["off"] / 100)})
    terms = []
    for name, term in law.terms.items():
        terms.append({"": name, "with its 95 % interval": term.in_words()})
    return [
        Section("Every size against the law", [], table=runs, folded=True),
        Section("The law and its terms", [f"{law.in_words()}."], table=terms, folded=True),
    ]


def content(growth: Growth) -> dict[str, Any]:
    """What ``result.json`` holds: the law, its answers, and the curves of the chart."""
    law = growth.law.law
    fit: dict[str, Any] = {name: term.limits for name, term in law.terms.items()}
    stored: dict[str, Any] = {
        "fit": fit | {"p_value": law.p_value, "good": law.good, "note": law.note},
        "curves": {"sizes": _curves(growth), "runs": _runs(growth)},
    }
    held = growth.law.held_out
    if held is not None:
        stored["held_out"] = dict(zip(law.variables, held.size, strict=True)) | {
            "networks": held.networks,
            "inside": held.inside,
            "predicted": held.predicted.limits,
            "measured": held.measured.limits,
        }
    if law.good:
        stored["best"] = _stored_sizes(growth)
        stored["growth"] = growth.table
        if law.variables == ("width", "depth"):
            stored["network"] = growth.size | {
                "excess": law.excess(*growth.place).limits,
                "doubling_width": growth.doubled["width"].limits,
                "doubling_depth": growth.doubled["depth"].limits,
            }
    return stored


def _stored_sizes(growth: Growth) -> dict[str, Any]:
    """The best sizes by resource."""
    sizes = {}
    for resource, (_, best) in growth.budgets.items():
        if not isinstance(best, InputError):
            sizes[resource] = _stored(best)
    return sizes


def _stored(best: BestSize) -> dict[str, Any]:
    return {
        "width": best.width,
        "depth": best.depth,
        "cost": best.cost,
        "loss": best.predicted.limits,
        "inside": best.inside,
        "note": best.note,
    }


# ---- numbers of the chart


def _span(growth: Growth) -> tuple[float, float]:
    """From the smallest size of the x axis to what is drawn beyond the largest."""
    law = growth.law.law
    sizes = [size[0] for size in growth.law.losses]
    if not law.good:
        return min(sizes), max(sizes) * _LEFT
    _, marked, _ = growth.forecast
    return min(sizes), max(_FURTHEST * max(sizes), _PAST * marked[law.variables[0]])


def _others(growth: Growth) -> list[Sizes]:
    """The sizes in the other variables that have a curve; of tokens only the most."""
    others = sorted({size[1:] for size in growth.law.losses if _is_shown(growth, size)})
    if len(others) <= _CURVES:
        return others
    last = len(others) - 1
    return [others[round(k * last / (_CURVES - 1))] for k in range(_CURVES)]


def _is_shown(growth: Growth, size: Sizes) -> bool:
    """Whether a size is in the chart: where three variables vary, those of the most tokens."""
    return len(size) < 3 or size[2:] == growth.law.law.largest[2:]


def _curves(growth: Growth) -> list[Row]:
    """The losses by the law over the first variable, one curve for each size in the others."""
    law = growth.law.law
    first, last = _span(growth)
    start = max(first, law.smallest[0])
    end = last if law.good else law.largest[0]
    places = sorted({*np.geomspace(start, end, _PLACES).tolist(), law.largest[0]})
    rows = list[Row]()
    for other in _others(growth):
        if not law.good and any(np.array(other) < law.smallest[1:]):
            continue
        for place in places:
            named = dict(zip(law.variables, (place, *other), strict=True))
            rows.append(named | columns("loss", law.loss(place, *other)))
    return rows


def _runs(growth: Growth) -> list[Row]:
    """The mean loss of every size that was fitted, and how far it lies above the law."""
    law = growth.law.law
    rows = list[Row]()
    for size, of_seeds in sorted(growth.law.losses.items()):
        loss = mean(of_seeds)
        if not math.isfinite(loss.value):
            continue
        # The law is also asked about smaller sizes, which may have been left out.
        place = np.array([size], dtype=float)
        by_law = float(law.form.losses(law.fit[None], place)[0, 0])
        off = {"law": by_law, "off": 100 * (loss.value / by_law - 1)}
        rows.append(dict(zip(law.variables, size, strict=True)) | columns("loss", loss) | off)
    return rows


def _allowed(growth: Growth) -> float:
    """How far the mean losses scatter about the law by chance, in percent: 95 of 100 sizes."""
    law = growth.law.law
    shares = []
    for size, of_seeds in growth.law.losses.items():
        log_variance = float(np.median(law.noise @ [1.0, *np.log(np.array(size, dtype=float))]))
        error = math.exp(log_variance / 2) / math.sqrt(len(of_seeds))
        shares.append(1.96 * error / float(np.mean(of_seeds)))
    return 100 * float(np.median(shares))


# ---- the chart


def _series(growth: Growth, size: Mapping[str, float]) -> str:
    """The name of a size's curve."""
    others = growth.law.law.variables[1:]
    return ", ".join(f"{name} {size_text(size[name])}" for name in others) or _RUNS


def _colours(growth: Growth) -> dict[str, str]:
    names = []
    for other in _others(growth):
        named = dict(zip(growth.law.law.variables[1:], other, strict=True))
        names.append(_series(growth, named))
    shades = look.ramp(len(names)) if len(names) > 1 else [look.BLUE]
    return dict(zip(names, shades, strict=True))


def _picture(growth: Growth) -> Picture:
    """Losses against width with the law, and residuals on the same axis."""
    colours = _colours(growth)
    points = _points(growth, colours)
    allowed = _allowed(growth)
    first, last = _span(growth)
    variable = growth.law.law.variables[0]
    below = law_chart.residuals(
        points, colours, {variable: first / _LEFT, "end": last}, _x(growth, title=True), allowed
    )
    largest_miss = max(abs(row["off"]) for row in points)
    key = {text: look.VARIABLES[colour] for text, colour in colours.items()}
    return picture(
        "law",
        alt.vconcat(_losses(growth, points, colours), below, spacing=8),
        label=f"{growth.law.score} against {variable}: {growth.answer.title}",
        key=key | ({"its floor, with its 95 % interval": "ink"} if growth.law.law.good else {}),
        caption=(
            "Bars: 95 % intervals of mean losses. Below: how far each size lies from the law; "
            f"grey, the scatter that its seeds explain (± {number(allowed)} %). Largest miss: "
            f"{number(largest_miss)} %."
        ),
    )


def _points(growth: Growth, colours: Mapping[str, str]) -> list[Row]:
    """The sizes, each in the colour of the nearest curve, with their text on hover."""
    law = growth.law.law
    is_contradicted = growth.answer.state == CONTRADICTED
    held = growth.law.held_out
    others = np.log(np.array(_others(growth), dtype=float))
    rows = []
    for row in _runs(growth):
        size = {name: row[name] for name in law.variables}
        place = tuple(size.values())
        if not _is_shown(growth, place):
            continue
        nearest = 0
        if len(place) > 1:
            nearest = int(np.abs(others - np.log(place[1:])).sum(1).argmin())
        text = f"{growth.named(size)}: {number(row['loss'], 4)}, off by {signed(row['off'] / 100)}"
        is_wrong = is_contradicted and held is not None and place == held.size
        shown = {"series": list(colours)[nearest], "hover": look.hover(text)}
        # A single run has no interval, and JSON no word for that.
        numbers = {name: value for name, value in row.items() if math.isfinite(value)}
        rows.append(numbers | shown | {"is_wrong": is_wrong})
    return rows


def _x(growth: Growth, *, title: bool) -> alt.X:
    """The axis that both charts share; the upper one has neither title nor labels."""
    first, last = _span(growth)
    variable = growth.law.law.variables[0]
    letters = "datum.value >= 1e6 ? replace(format(datum.value, '~s'), 'G', 'B') : datum.label"
    settings: dict[str, Any] = {"format": ",~r", "labelExpr": letters}
    if not title:
        settings |= {"labels": False, "ticks": False, "domain": False}
    return look.x_log(variable, variable if title else "", (first / _LEFT, last), **settings)


def _losses(growth: Growth, points: Sequence[Row], colours: Mapping[str, str]) -> Any:
    """The losses, the law's curves, its floor, and the forecast."""
    law = growth.law.law
    variable = law.variables[0]
    curves = [row | {"series": _series(growth, row)} for row in _curves(growth)]
    what, marked, loss = growth.forecast
    losses = [row["loss"] for row in [*points, *curves]]
    if law.good:
        losses += [loss.low, loss.high, law.floor.low, law.floor.high]
    x = _x(growth, title=False)
    y = law_chart.loss_axis(growth.law.score, losses)
    _, last = _span(growth)
    layers = list[Any]()
    if law.good:
        layers += law_chart.beyond(variable, law.largest[0], last, x)
        layers += _floor(law.floor, x, y)
    style: dict[str, Any] = {"strokeWidth": 1.8, "clip": True}
    for is_beyond in (False, True):
        part = [row for row in curves if _is_part(row[variable], law.largest[0], is_beyond)]
        lines = look.points(part, x=x, y=y, color=look.coloured(colours))
        layers.append(lines.mark_line(**style))
        style["strokeDash"] = [3, 3]
    bars = [row | {"loss": row["loss_low"]} for row in points if "loss_low" in row]
    ends = look.points(bars, x=x, y=y, color=look.coloured(colours))
    layers.append(ends.mark_rule(clip=True).encode(y2="loss_high:Q"))
    layers += law_chart.dots(points, colours, x, y)
    if law.good:
        place = {variable: marked[variable]}
        # Below the interval of the floor, too, no line is.
        label = place | {"loss": min(loss.low, law.floor.low)}
        style = {"align": "right", "dy": 12}
        layers += law_chart.forecast_mark(loss, what, place, label, style, x, y)
    return alt.layer(*layers).properties(height=law_chart.HEIGHT)


def _is_part(place: float, largest: float, is_beyond: bool) -> bool:
    """Whether a place is on a part of a curve; both parts have the largest size."""
    return place >= largest if is_beyond else place <= largest


def _floor(floor: Interval, x: alt.X, y: alt.Y) -> list[Any]:
    """The floor as a line over its interval."""
    hover = look.hover(f"floor: {floor.in_words()}")
    ends = {"loss": floor.low, "high": floor.high, "text": "floor", "hover": hover}
    interval = look.points([ends], y=y, description="hover:N")
    area = interval.mark_rect(color=look.BAND, opacity=0.6, clip=True).encode(y2="high:Q")
    value = look.points([{"loss": floor.value, "hover": hover}], y=y, description="hover:N")
    line = value.mark_rule(color=look.INK, strokeWidth=1.5)
    label = look.points([ends], y=y).encode(x=alt.value(6), text="text:N")
    return [area, line, look.on_lines(label, align="left", dy=9, color=look.SOFT)]


# ---- the table


def _bought(growth: Growth) -> list[dict[str, Any]]:
    """The networks that are compared, in words."""
    rows = []
    for row in growth.table:
        cells: dict[str, Any] = {"network": row["network"]}
        for name, title in (("loss", growth.law.score), ("gain", "lower by")):
            if name in row:
                interval = Interval(row[name], 0.0, row[f"{name}_low"], row[f"{name}_high"])
                value, _, span = interval.in_words().partition(" (")
                limits = f" ({span}".replace("95 %: ", "") if span else ""
                cells[f"{title} (95 %)"] = Cell(((value, ""), (limits, "soft")))
        rows.append(cells)
    # The first row names the columns.
    if rows and "lower by (95 %)" not in rows[0] and growth.law.law.good:
        rows[0]["lower by (95 %)"] = ""
    return rows
