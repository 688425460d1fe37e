"""One HTML file that opens by double click: sections with sentences, charts and tables, no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nfd.core.files import Finding
from nfd.core.tables import visible
from nfd.report.charts import DARK, NARROW, WIDE, Chart, chart_of, left_out, svg_of


@dataclass(frozen=True)
class Label:
    """A coloured word in a cell of a table."""

    text: str
    tone: Literal["good", "partly", "bad", "open"]


@dataclass(frozen=True)
class Panel:
    """One of several charts that stand side by side, with its own title and caption."""

    chart: Chart
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, paragraphs, and optionally points, a chart or panels, a caption and a table.

    A cell of the table is a text, a ``Label`` or a list of paragraphs. ``folded`` hides the section behind its heading.
    A section of ``level`` 3 belongs to the last of level 2. ``cards`` turns the rows of a wide table into cards on a
    narrow page.
    """

    title: str
    paragraphs: Sequence[str]
    chart: Chart | None = None
    table: Sequence[Mapping[str, Any]] = ()
    caption: str = ""
    points: Sequence[str] = ()
    folded: bool = False
    panels: Sequence[Panel] = ()
    level: Literal[2, 3] = 2
    cards: bool = False


def finding_section(finding: Finding, chart: Chart | None = None, *, level: Literal[2, 3] = 2) -> Section:
    """A finding under its question: its sentences, its chart (drawn here unless given), caption and table."""
    drawn = chart_of(finding) if chart is None else chart
    text = [finding.headline, *finding.details]
    wide = any(len(row) > 3 for row in finding.table)
    return Section(finding.title, text, drawn, finding.table, _below(finding.caption, finding), level=level, cards=wide)


def figure_section(
    title: str, caption: str, findings: Sequence[Finding], charts: Mapping[str, Chart] | None = None
) -> Section:
    """Findings as the panels of one figure, each with what it shows below; the caption of all below.

    ``charts`` are theirs by name, if they are drawn already.
    """
    drawn = {f.name: chart_of(f) for f in findings} if charts is None else charts
    panels = [Panel(drawn[f.name], _below(f"{f.reading} {f.caption}", f), f.title) for f in findings]
    return Section(title, [], caption=caption, panels=panels)


def _below(caption: str, finding: Finding) -> str:
    """A caption, and which rows the chart does not draw."""
    return f"{caption} {left_out(finding)}".strip()


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML; every string from outside is escaped."""
    parts = [(section, f"part{k}") for k, section in enumerate(sections)]
    contents = [part for part in parts if not part[0].folded]
    template = templates().get_template("page.html")
    return template.render(title=title, parts=parts, contents=contents, drawn=_drawn, dark=DARK)


def _drawn(chart: Chart, anchor: str, *, panel: bool) -> list[tuple[str, Markup]]:
    """A chart for windows and for phones: text of a drawing that is scaled down cannot be read."""
    sizes = {"any": NARROW + 60} if panel else {"broad": WIDE, "narrow": NARROW}
    return [(name, _placed(svg_of(chart, width), f"{anchor}{name}")) for name, width in sizes.items()]


def _placed(svg: str, anchor: str) -> Markup:
    """A drawing inside of a page: what it names inside itself is no other's."""
    own = svg.replace('id="', f'id="{anchor}-').replace("url(#", f"url(#{anchor}-")
    return Markup(visible(own))  # written by Vega, which escapes


@cache
def templates() -> Environment:
    """The environment of all pages: every string from outside is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests |= {
        "label": lambda value: isinstance(value, Label),
        "paragraphs": lambda value: isinstance(value, list),
    }
    return environment


def _shown(value: object) -> object:
    """A value before it is escaped: four digits, nothing unseen, and a question mark for what has no UTF-8."""
    if isinstance(value, Markup):
        return value
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return visible(text).encode("utf-8", "replace").decode()
