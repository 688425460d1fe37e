"""Sections of a page, and their HTML; every string from outside is escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from nfd.core.text import visible


@dataclass(frozen=True)
class Label:
    """A word in a cell of a table that should catch the eye."""

    text: str
    tone: Literal["good", "partly", "bad", "open"]


@dataclass(frozen=True)
class Panel:
    """One of several charts that stand side by side, with its own title and caption."""

    chart: alt.LayerChart
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, its reading in words, and optionally points, a chart or panels, a caption and a table; folded or not.

    A cell of the table may be a ``Label``, or a list of paragraphs. ``level`` 3 stands under the last of level 2;
    ``cards`` turns the rows of a wide table into cards where the page is narrow.
    """

    title: str
    paragraphs: Sequence[str]
    chart: alt.LayerChart | None = None
    table: Sequence[Mapping[str, Any]] = ()
    caption: str = ""
    points: Sequence[str] = ()
    folded: bool = False
    panels: Sequence[Panel] = ()
    level: Literal[2, 3] = 2
    cards: bool = False

    @property
    def charts(self) -> list[alt.LayerChart]:
        """Its charts, in the order of the page."""
        return [*([self.chart] if self.chart is not None else []), *(panel.chart for panel in self.panels)]


def section_html(section: Section, anchor: str) -> str:
    """The section as HTML; its charts go to the places ``anchor-0``, ``anchor-1``, ..."""
    heading = f"h{section.level}"
    parts = [f'<section id="{anchor}"><{heading}>{escaped(section.title)}</{heading}>']
    if section.folded:
        parts = [f'<section id="{anchor}"><details><summary>{escaped(section.title)}</summary>']
    parts += [f"<p>{escaped(text)}</p>" for text in section.paragraphs]
    if section.points:
        parts.append("<ul>" + "".join(f"<li>{escaped(text)}</li>" for text in section.points) + "</ul>")
    places = [f"{anchor}-{k}" for k in range(len(section.charts))]
    if section.chart is not None:
        parts.append(_chart(section.chart, places.pop(0), section.title))
    if section.panels:
        panels = zip(section.panels, places, strict=True)
        parts.append(f'<div class="grid">{"".join(_panel(panel, place) for panel, place in panels)}</div>')
    if section.caption:
        parts.append(f'<p class="note">{escaped(section.caption)}</p>')
    if section.table:
        parts.append(_table(section.table, cards=section.cards))
    return "\n".join([*parts, "</details></section>" if section.folded else "</section>"])


def escaped(text: object) -> str:
    """Text that is text in HTML, in attributes too; what has no UTF-8 becomes a question mark, what is unseen seen."""
    return html.escape(visible(str(text)).encode("utf-8", "replace").decode())


def _panel(panel: Panel, place: str) -> str:
    title = f"<h4>{escaped(panel.title)}</h4>" if panel.title else ""
    caption = f'<p class="note">{escaped(panel.caption)}</p>' if panel.caption else ""
    return f"<div>{title}{_chart(panel.chart, place, panel.title)}{caption}</div>"


def _chart(chart: alt.LayerChart, place: str, title: str) -> str:
    """The place of a chart under its legend, whose entries hide and show their series, and the button of its axis."""
    about = chart.to_dict(validate=False).get("usermeta", {})
    series, scales = about.get("series", []), about.get("scales", {})
    entries = "".join(f"<li>{_entry(one, k)}</li>" for k, one in enumerate(series)) if len(series) > 1 else ""
    legend = f'<ul class="legend" aria-label="series; press to hide or show">{entries}</ul>' if entries else ""
    switch = '<button type="button" class="scale"></button>' if scales else ""
    drawn = f'<div class="chart" id="{place}" aria-label="{escaped(title)}"></div>'
    return f'<figure class="plot" data-chart="{place}">{legend}{drawn}{switch}</figure>'


def _entry(series: Mapping[str, Any], index: int) -> str:
    dash, width = " ".join(map(str, series["dash"])), 1.2 if series["reference"] else 2.5
    dashed = "" if series["dash"] == [1, 0] else f' stroke-dasharray="{dash}"'
    line = f'<line x1="0" x2="26" y1="5" y2="5" stroke="{series["colour"]}" stroke-width="{width}"{dashed}/>'
    swatch = f'<svg width="26" height="10" aria-hidden="true">{line}</svg>'
    return f'<button type="button" aria-pressed="true" data-series="{index}">{swatch}{escaped(series["name"])}</button>'


def _table(rows: Sequence[Mapping[str, Any]], *, cards: bool) -> str:
    columns = list(rows[0])
    head = "".join(f'<th scope="col">{escaped(key)}</th>' for key in columns)
    cells = ([f'<td data-label="{escaped(key)}">{_cell(row.get(key, ""))}</td>' for key in columns] for row in rows)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in cells)
    kind = "wide cards" if cards else "wide"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, Label):
        return f'<span class="label {value.tone}">{escaped(value.text)}</span>'
    if isinstance(value, list):
        return "".join(f"<p>{escaped(text)}</p>" for text in value)
    return escaped(f"{value:.4g}" if isinstance(value, float) else value)
