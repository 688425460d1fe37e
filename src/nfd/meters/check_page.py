"""The pictures and tables of a check: what to change, and every quantity against both sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.estimates import Interval, interval
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.core.words import listed, number, plural
from nfd.meters.changes import ROLE_NAMES, Change, by_tensor
from nfd.meters.check_answer import (
    column_of,
    last_rows,
    name_of,
    power_in_words,
    quantities,
    ratio_of,
    title_of,
)
from nfd.meters.meter import CLEAR_EXPONENT, METERS, in_words
from nfd.meters.ratios import TIMES
from nfd.meters.verdict import is_fault, matters, networks
from nfd.report.look import BAND, BLUE, CONFIG, INK, ORANGE, SOFT, hover, points, x_log
from nfd.report.page import Cell, Look, Section
from nfd.report.picture import Picture, picture

if TYPE_CHECKING:
    from nfd.meters.check import Check

_HEIGHT = 96
_WIDTH = 140
# Parts of a chart that only the whole drawing has
_OF_THE_TOP = ("$schema", "config", "datasets")
# Beyond this many times the smallest network, ticks stand at powers of ten.
_MOST_DOUBLINGS = 7
_ROLE = "role"


def first_sections(check: Check) -> list[Section]:
    """What a page and a notebook show first: what to change, then what shows it."""
    sections = []
    if check.changes:
        sections.append(_what_to_change(check))
    shown = _shown_rows(check)
    if shown:
        sections += _measured(check, shown)
    return sections


def closing_sections(check: Check) -> list[Section]:
    """What a page folds: causes, the other quantities, and what all of them mean."""
    shown = {id(row) for row in _shown_rows(check)}
    others = [row for row in last_rows(check) if id(row) not in shown]
    sections = []
    if check.wrong:
        sections.append(Section("Causes", [], points=check.wrong, folded=True))
    pictures = _pictures(check, [row for row in others if math.isfinite(row["slope"])])
    if pictures:
        title = f"The other {plural(len(pictures), 'quantity', 'quantities')}"
        note = "Sound, or not decided. Grey: allowed."
        sections.append(Section(title, [note], pictures=pictures, folded=True))
    sections.append(Section("All numbers", [], table=_table_rows(check), folded=True))
    meanings = []
    for name, meter in METERS.items():
        meanings.append(f"{meter.title} ({in_words(name)}): {meter.meaning}.")
    sections.append(Section("What the quantities are", [], points=meanings, folded=True))
    return sections


def plot(check: Check) -> Any:
    """Every picture that a page shows first, a row for each axis."""
    datasets = dict[str, Any]()
    rows = []
    for section in first_sections(check):
        charts = []
        for one in section.pictures:
            chart = {name: part for name, part in one.spec.items() if name not in _OF_THE_TOP}
            # On a page the name stands above the chart.
            title = chart["title"] | {"text": [one.title, chart["title"]["text"]]}
            charts.append(chart | {"title": title, "width": _WIDTH})
            datasets |= one.spec.get("datasets", {})
        if charts:
            rows.append({"hconcat": charts})
    if not rows:
        raise InputError(f"this Check has no chart: {check.answer.title}.")
    config = CONFIG | {"background": "transparent"}
    return alt.VConcatChart.from_dict({"vconcat": rows, "datasets": datasets, "config": config})


# ---- What to change


def _what_to_change(check: Check) -> Section:
    """The table with a row for each kind of tensors, by what they do."""
    rows = []
    columns = [
        column
        for column in ("learning rate", "initial std", "also")
        if any(column_of(change) == column for change in check.changes)
    ]
    # As good as always it is the smallest size, which the text above says.
    begins_late = any(_begins_late(check, change) for change in check.changes)
    for tensor, changes in by_tensor(check.changes).items():
        row: dict[str, Any] = {
            _ROLE: ROLE_NAMES.get(changes[0].role, ROLE_NAMES[""]),
            "tensor": Cell(((tensor, "code"),)),
        }
        for column in columns:
            title = title_of(column, check.changes)
            row |= _cells(title, [one for one in changes if column_of(one) == column])
        if columns == ["also"]:
            row["change"] = row.pop("also")
        if begins_late:
            begins = dict.fromkeys(change.begins for change in changes)
            row["since"] = Cell(((" · ".join(_axes_of_begins(begins)), "soft"),))
        rows.append(row)
    return Section("What to change", [_at_the_largest(check)], table=rows, group=_ROLE, cards=True)


def _begins_late(check: Check, change: Change) -> bool:
    """Whether something deviates only from a larger size on than the smallest."""
    return any(size != check.sizes[axis][0] for axis, size in change.since.items())


def _axes_of_begins(begins: Mapping[str, None]) -> list[str]:
    """Every axis and size once."""
    parts = dict[str, None]()
    for text in begins:
        parts |= dict.fromkeys(text.split(" · "))
    return list(parts)


def _at_the_largest(check: Check) -> str:
    """Say of which network the values are, and what the words width and depth stand for."""
    spans = []
    largest = []
    for axis in AXES:
        sizes = check.sizes[axis]
        largest.append(f"{axis} {sizes[-1]}")
        if len(sizes) > 1:
            growth = number(sizes[-1] / sizes[0])
            spans.append(f"“{axis}” is {sizes[-1]} ÷ {sizes[0]} = {growth}")
    since = ""
    if any(map(is_fault, check.table)):
        since = "All of it already shows in networks one size above the smallest."
    if any(_begins_late(check, one) for one in check.changes):
        since = "“since”: the size from which on a tensor is off."
    return (
        f"At {listed(largest)}, the largest network checked. {', '.join(spans).capitalize()}; at "
        f"other sizes the same rule gives other factors. {since}"
    )


def _cells(column: str, changes: Sequence[Change]) -> dict[str, Any]:
    """The cells of one quantity: now and should be, and by what to divide it."""
    if column == "also":
        if not changes:
            return {column: ""}
        parts = list[tuple[str, Look]]()
        for change in changes:
            parts += [(f"{change.quantity} {change.values} ", ""), (change.factor, "wrong")]
            parts.append((f" {change.axes} ", "soft"))
        return {column: Cell(tuple(parts))}
    title = f"{column}: now → should be"
    by = "change of the rate"
    if column != "learning rate":
        by = f"change of the {column.removeprefix('initial ')}"
    if not changes:
        return {title: Cell((("fine", "soft"),)), by: ""}
    (change,) = changes[:1]
    now, _, sound = change.values.partition(" → ")
    return {
        title: Cell(((f"{now} → ", ""), (sound, "strong"))),
        by: Cell(((change.factor, "wrong"), (f" {change.axes}", "soft"))),
    }


# ---- What shows it


def _shown_rows(check: Check) -> list[Row]:
    """The rows whose pictures are not folded: faults, else what is open, else all."""
    last = [row for row in last_rows(check) if math.isfinite(row["slope"])]
    faults = [row for row in last if is_fault(row)]
    if faults:
        return faults
    if not check.ok:
        return []
    return [row for row in last if matters(row)] or last


def _measured(check: Check, shown: Sequence[Row]) -> list[Section]:
    """The pictures against one axis, below the title and the key, and those against the other."""
    pictures = _pictures(check, shown)
    sections = list[Section]()
    for axis in AXES:
        of_axis = [one for one in pictures if one.name.startswith(axis)]
        if not of_axis:
            continue
        sizes = check.sizes[axis]
        span = f"against {axis}, {sizes[0]} to {sizes[-1]}"
        if sections:
            sections.append(Section(span.capitalize(), [], pictures=of_axis, level=3))
            continue
        text = f"{_how_to_read(check)} First {span}."
        key = _key(check, shown)
        sections.append(Section(_why(check, shown), [text], pictures=of_axis, key=key))
    return sections


def _why(check: Check, shown: Sequence[Row]) -> str:
    """The title of the pictures."""
    count = len(quantities(shown))
    noun = plural(count, "measured quantity", "measured quantities")
    if is_fault(shown[0]):
        verb = "changes" if count == 1 else "change"
        pronoun = "it" if count == 1 else "they"
        return f"Why: {noun} {verb} with the network; {pronoun} should not"
    if matters(shown[0]):
        verb = "is" if count == 1 else "are"
        return f"What is open: {noun} {verb} not decided"
    return f"Why: {noun} keep their scale, or change as in sound networks"


def _how_to_read(check: Check) -> str:
    steps = plural(check.steps, "step")
    return (
        f"Each over its value in the smallest network, after {steps}; Δ: change by training. Grey: "
        "allowed. Bars: 95 % intervals."
    )


def _key(check: Check, shown: Sequence[Row]) -> dict[str, str]:
    """What the colours mean."""
    rule = "PyTorch's defaults" if check.rule == "standard" else f"the plan {check.rule}"
    key = {rule: VARIABLE_OF[_colour(shown[0])]}
    if check.remedy is not None:
        key[f"dashed: the same networks with the plan {check.remedy.rule}"] = "blue"
    return key


VARIABLE_OF = {ORANGE: "orange", BLUE: "blue", INK: "ink"}


def _colour(row: Row) -> str:
    """Orange for what is wrong, ink for what is open, blue for what is sound."""
    if is_fault(row):
        return ORANGE
    return INK if matters(row) else BLUE


@dataclass(frozen=True)
class _Curve:
    """A quantity over its value in the smallest network, by size."""

    row: Row
    points: list[Row]


def _pictures(check: Check, rows: Sequence[Row]) -> list[Picture]:
    """A small picture of every quantity, all on one axis."""
    curves = []
    for row in rows:
        curve = _Curve(row, ratios(check.runs, row, check.sizes[row["axis"]], check.steps))
        if len(curve.points) > 1:
            curves.append(curve)
    span = _span(curves)
    pictures = []
    for curve in curves:
        pictures.append(_picture(check, curve, span))
    return pictures


def _picture(check: Check, curve: _Curve, span: tuple[float, float]) -> Picture:
    """One quantity against one axis, with the grey wedge of what is allowed."""
    row = curve.row
    axis: Axis = row["axis"]
    sizes = check.sizes[axis]
    colour = _colour(row)
    plane = _Plane(axis, sizes, span)
    layers = [plane.wedge(), *plane.curve(curve.points, colour)]
    if check.remedy is not None:
        planned = ratios(check.remedy.runs, row, sizes, check.steps)
        if len(planned) > 1:
            layers += plane.dashed(planned)
    title = alt.TitleParams(
        text=ratio_of(row, sizes),
        subtitle=f"{axis}^{number(row['slope'])}",
        color=colour,
        subtitleColor=SOFT,
        fontSize=13,
        subtitleFontSize=12,
        anchor="start",
        offset=6,
    )
    chart = alt.layer(*layers).properties(title=title, height=_HEIGHT)
    name = "-".join(part for part in (axis, row["meter"], row.get("stack", "")) if part)
    label = f"{name_of(row)} against {axis}: {ratio_of(row, sizes)}, {power_in_words(row)}"
    return picture(name, chart, title=name_of(row), label=label, kind="small")


@dataclass(frozen=True)
class _Plane:
    """The axes of one picture: the sizes along one axis, and times the smallest network."""

    axis: Axis
    sizes: Sequence[int]
    span: tuple[float, float]

    def wedge(self) -> Any:
        """What is allowed: the size to the power of a quarter, up and down."""
        rows = []
        for size in self.sizes:
            edge = math.pow(size / self.sizes[0], CLEAR_EXPONENT)
            low, high = self._within(1 / edge, edge)
            rows.append({"size": size, "ratio": low, "high": high})
        return self._drawn(rows).encode(y2="high:Q").mark_area(color=BAND, opacity=1)

    def curve(self, rows: Sequence[Row], colour: str) -> list[Any]:
        """A line with points and intervals."""
        shown = self._hovered(rows)
        line = self._drawn(shown).mark_line(color=colour, strokeWidth=1.8)
        dots = self._drawn(shown).encode(description="text:N")
        low_ends = [row | {"ratio": row["low"]} for row in shown]
        bars = self._drawn(low_ends).encode(y2="high:Q").mark_rule(color=colour, strokeWidth=1.2)
        return [bars, line, dots.mark_circle(color=colour, size=26, opacity=1)]

    def dashed(self, rows: Sequence[Row]) -> list[Any]:
        """The same networks with the plan."""
        shown = self._hovered(rows)
        line = self._drawn(shown).mark_line(color=BLUE, strokeWidth=1.8, strokeDash=[4, 3])
        dots = self._drawn(shown).encode(description="text:N")
        return [line, dots.mark_circle(color=BLUE, size=18, opacity=1)]

    def _hovered(self, rows: Sequence[Row]) -> list[Row]:
        """The points with their texts, and intervals that end where the axis ends."""
        shown = []
        for row in rows:
            ratio = Interval(row["ratio"], math.nan, row["low"], row["high"])
            low, high = self._within(row["low"], row["high"])
            text = hover(f"{self.axis} {row['size']}: {TIMES} {ratio.in_words()}")
            shown.append(row | {"low": low, "high": high, "text": text})
        return shown

    def _drawn(self, rows: Sequence[Row]) -> alt.Chart:
        ends = (self.sizes[0] * 0.92, self.sizes[-1] * 1.08)
        x = x_log("size", self.axis, ends, values=_some(self.sizes))
        return points(rows, x=x, y=_y(self.span, f"over {self.axis} {self.sizes[0]}"))

    def _within(self, low: float, high: float) -> tuple[float, float]:
        """Cut an interval at the ends of the axis."""
        return max(low, self.span[0]), min(high, self.span[1])


def _y(span: tuple[float, float], title: str) -> alt.Y:
    """The axis that all pictures share, in times the smallest network."""
    doublings = math.log2(span[1] / span[0])
    if doublings <= _MOST_DOUBLINGS:
        low, high = math.ceil(math.log2(span[0])), math.floor(math.log2(span[1]))
        ticks = [2.0**power for power in range(low, high + 1)]
    else:
        low, high = math.ceil(math.log10(span[0])), math.floor(math.log10(span[1]))
        step = max(1, math.ceil((high - low) / 5))
        ticks = [float(f"1e{power}") for power in range(0, high + 1, step)]
        ticks = [float(f"1e{power}") for power in range(-step, low - 1, -step)] + ticks
    axis = alt.Axis(
        values=ticks, labelExpr=f"'{TIMES} ' + format(datum.value, ',~r')", grid=True, ticks=False
    )
    scale = alt.Scale(type="log", domain=list(span), nice=False)
    return alt.Y("ratio:Q", title=title, scale=scale, axis=axis)


def _span(curves: Sequence[_Curve]) -> tuple[float, float]:
    """The range of all points; bars of intervals may leave it by a factor of two."""
    values = [0.5, 2.0]
    ends = list[float]()
    for curve in curves:
        values += [point["ratio"] for point in curve.points]
        ends += [point["low"] for point in curve.points]
        ends += [point["high"] for point in curve.points]
    low = min(values)
    high = max(values)
    inside = [end for end in ends if low / 2 <= end <= high * 2]
    return min([low, *inside]) / 1.1, max([high, *inside]) * 1.1


def _some(sizes: Sequence[int]) -> list[int]:
    """At most four sizes, with both ends."""
    if len(sizes) <= 4:
        return list(sizes)
    return [sizes[0], sizes[len(sizes) // 2], sizes[-1]]


def ratios(runs: Sequence[Row], row: Row, sizes: Sequence[int], step: int) -> list[Row]:
    """The points of a quantity: its mean at every size over its mean at the smallest one.

    Means are geometric, over seeds and sizes along the other axis, with 95 % intervals.
    """
    axis = row["axis"]
    seen = networks(runs, step, row.get("stack", ""))
    logs = []
    for size in sizes:
        values = [run.get(row["meter"], math.nan) for run in seen if run[axis] == size]
        log = torch.tensor(values, dtype=torch.float64).log()
        logs.append(log[log.isfinite()])
    points_of_row = []
    for size, log in zip(sizes, logs, strict=True):
        if min(len(log), len(logs[0])) > 1:
            ratio = interval(_difference_of_means, logs[0], log).exp()
            point = {"size": size, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
            points_of_row.append(point)
    return points_of_row


def _difference_of_means(first: Tensor, second: Tensor) -> Tensor:
    return second.mean(0) - first.mean(0)


def curves_of(check: Check) -> list[Row]:
    """What the pictures show, as rows for ``result.json``."""
    rows = []
    for row in last_rows(check):
        place = {"meter": row["meter"], "axis": row["axis"], "stack": row.get("stack", "")}
        sizes = check.sizes[row["axis"]]
        every = {check.rule: check.runs}
        if check.remedy is not None:
            every[check.remedy.rule] = check.remedy.runs
        for rule, runs in every.items():
            for point in ratios(runs, row, sizes, check.steps):
                rows.append(place | {"rule": rule} | point)
    return rows


# ---- All numbers


def _table_rows(check: Check) -> list[dict[str, Any]]:
    """Every row of the table of the check, what is wrong first."""
    rows = []
    for row in sorted(check.table, key=lambda row: not is_fault(row)):
        cells: dict[str, Any] = {"quantity": name_of(row), "with": row["axis"]}
        if len(check.at) > 1:
            cells["after step"] = str(row["step"])
        is_known = math.isfinite(row["slope"])
        cells["changes by"] = ratio_of(row, check.sizes[row["axis"]]) if is_known else ""
        cells["as (95 %)"] = power_in_words(row) if is_known else ""
        look: Look = "wrong" if is_fault(row) else ""
        cells["verdict"] = Cell(((str(row["verdict"]), look),))
        since = row["since"]
        cells["since"] = "" if since is None else f"{row['axis']} {since}"
        cells["what it means"] = row["cause"]
        rows.append(cells)
    return rows
