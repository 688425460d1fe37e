"""One HTML file that opens by double click: sections with sentences, charts and tables.

It has no script and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from nfd.core.answer import SYMBOLS, Answer, Tone
from nfd.core.files import write_text
from nfd.core.findings import Finding
from nfd.core.tables import Row, visible
from nfd.report.charts import (
    DARK,
    NARROW,
    WIDE,
    Chart,
    chart_of,
    left_out,
    svg_of,
)
from nfd.report.picture import Picture


@dataclass(frozen=True)
class Label:
    """A coloured word in a cell of a table."""

    text: str
    tone: Tone


Look = Literal["", "strong", "soft", "wrong", "sound", "code"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table in parts: texts, and how each looks."""

    parts: tuple[tuple[str, Look], ...]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True)
class Panel:
    """One of several charts that stand side by side, with its own title and caption."""

    chart: Chart
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Card:
    """One of several faults that stand side by side: what it is of, what to do, and its chart.

    Attributes:
        title: the fault, in a sentence without a full stop.
        names: what it is of; those after the first five are folded.
        text: what is seen. todo: what to do, in bold after it.
        note: which numbers the chart shows.
        table: rows of what deviates, where numbers say more than a chart.
        tone: ``bad`` where the fault is certain.
    """

    title: str
    names: Sequence[str] = ()
    text: str = ""
    todo: str = ""
    note: str = ""
    picture: Picture | None = None
    table: Sequence[Mapping[str, Any]] = ()
    tone: Tone = "bad"


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, paragraphs, and optionally charts, points and a table.

    Every line of ``details`` opens to a text. A cell of the table is a text, a ``Label`` or a list
    of paragraphs. ``folded`` hides the section behind its heading. A section of ``level`` 3 belongs
    to the last of level 2. ``cards`` turns the rows of a wide table into cards on a narrow page.

    ``pictures`` are charts of answers, and ``key`` what their colours mean. Rows of the table that
    are alike in the column ``group`` stand below that value. ``faults`` stand side by side.
    ``answer`` stands in place of the heading, and ``links`` at the end: texts, and where they lead.
    """

    title: str
    paragraphs: Sequence[str]
    chart: Chart | None = None
    table: Sequence[Mapping[str, Any]] = ()
    caption: str = ""
    points: Sequence[str] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    folded: bool = False
    panels: Sequence[Panel] = ()
    level: Literal[2, 3] = 2
    cards: bool = False
    pictures: Sequence[Picture] = ()
    key: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    faults: Sequence[Card] = ()
    answer: Answer | None = None
    links: Mapping[str, str] = field(default_factory=dict)


def finding_section(finding: Finding, *, level: Literal[2, 3] = 2) -> Section:
    """Show a finding under its question: its sentences, its chart, caption and table."""
    text = [finding.headline, *finding.details]
    caption = f"{finding.caption} {left_out(finding)}".strip()
    wide = any(len(row) > 3 for row in finding.table)
    return Section(
        finding.title, text, chart_of(finding), finding.table, caption, level=level, cards=wide
    )


def figure_section(title: str, findings: Sequence[Finding], *, shared: bool = False) -> Section:
    """Show findings as the panels of one figure, each with what it shows below.

    With ``shared``, they have the same axes.
    """
    every = list[Row]()
    if shared:
        for finding in findings:
            every += [*finding.rows, *finding.marks]
    panels = []
    for finding in findings:
        caption = f"{finding.reading} {finding.caption} {left_out(finding)}".strip()
        panels.append(Panel(chart_of(finding, every), caption, finding.title))
    return Section(title, [], panels=panels)


def page(
    title: str,
    sections: Sequence[Section],
    head: str = "",
    answer: Answer | None = None,
) -> str:
    """Return the page as HTML, with more elements in its ``head``.

    Every other string from outside is escaped. It begins with ``answer``, or ``title``, and what
    the first section shows, if that has no title; the contents follow.
    """
    parts = [(section, f"part{k}") for k, section in enumerate(sections)]
    contents = [part for part in parts if part[0].title and not part[0].folded]
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            head=Markup(head),
            parts=parts,
            answer=answer,
            contents=contents,
            drawn=_drawn,
            drawings=_drawings,
            dark=DARK,
        )
    )


def fragment(answer: Answer, sections: Sequence[Section], anchor: str) -> str:
    """Return an answer and what its first sections show as HTML, for a notebook.

    Ids of its drawings begin with ``anchor``, as other answers stand on the same page.
    """
    return (
        templates()
        .get_template("fragment.html")
        .render(answer=answer, sections=sections, anchor=anchor, drawings=_drawings)
    )


def _drawings(picture: Picture, anchor: str) -> list[tuple[str, Markup]]:
    """Draw a picture in every width of its kind."""
    svgs = picture.svgs()
    names = ["broad", "narrow"] if len(svgs) == 2 else ["any"]
    return [(name, _placed(svg, f"{anchor}{name}")) for name, svg in zip(names, svgs, strict=True)]


def _drawn(chart: Chart, anchor: str, *, panel: bool) -> list[tuple[str, Markup]]:
    """Draw a chart for windows and for phones, since text that is scaled down cannot be read."""
    sizes = {"broad": WIDE, "narrow": NARROW}
    if panel:
        sizes = {"any": NARROW + 60}
    drawings = []
    for name, width in sizes.items():
        drawings.append((name, _placed(svg_of(chart, width), f"{anchor}{name}")))
    return drawings


def _placed(svg: str, anchor: str) -> Markup:
    """Put a drawing into a page, with ids that no other drawing has."""
    renamed = svg.replace('id="', f'id="{anchor}-').replace("url(#", f"url(#{anchor}-")
    # Vega has escaped what is from outside.
    return Markup(visible(renamed))


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
    environment.globals["symbols"] = SYMBOLS
    environment.filters |= {
        "marked": _marked,
        "unbroken": _unbroken,
        "groupby_kind": _by_kind,
    }
    environment.tests |= {
        "parts": lambda value: isinstance(value, Cell),
        "label": lambda value: isinstance(value, Label),
        "paragraphs": lambda value: isinstance(value, list),
    }
    return environment


# A number with its unit, and the interval that follows it; or the interval that it was expected in,
# behind the number that was expected.
_NUMBER = r"[+\u2212]?\d[\d.,]*(?:e-?\d+)?[TBM]?(?:&nbsp;%|&nbsp;nats)?"
_WITH_INTERVAL = re.compile(rf"({_NUMBER})((?:, expected {_NUMBER})? \(95&nbsp;%: [^()]*\))")


# Names of rules with a hyphen, at which a browser would break them
_HYPHENATED = re.compile(r"\b(complete-p|depth-mup(-inner)?)\b")


def _unbroken(text: str) -> Markup:
    """Keep numbers on one line with their units, and names of rules on one line."""
    escaped = str(escape(_shown(text)))
    with_units = re.sub(r"(?<=\d) (?=%|nats\b)", "&nbsp;", escaped)
    # A hyphen of another kind would not be found by a search for the name.
    return Markup(_HYPHENATED.sub(r'<span class="rule">\g<0></span>', with_units))


def _marked(text: str) -> Markup:
    """Write numbers with intervals in bold, and their intervals in grey."""
    bold = r'<b>\1</b> <span class="interval">\2</span>'
    marked = _WITH_INTERVAL.sub(bold, str(_unbroken(text)))
    marked = marked.replace('</b> <span class="interval">,', '</b><span class="interval">,')
    return Markup(marked.replace('<span class="interval"> ', '<span class="interval">'))


def _by_kind(pictures: Sequence[Picture]) -> Iterator[tuple[str, list[Picture]]]:
    """Group neighbouring pictures that are equally wide."""
    for kind, some in groupby(pictures, lambda picture: picture.kind):
        yield kind, list(some)


def _shown(value: object) -> object:
    """Write a value before it is escaped: with four digits, and without unseen characters.

    What has no UTF-8 becomes a question mark.
    """
    if isinstance(value, Markup):
        return value
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return visible(text).encode("utf-8", "replace").decode()


def write_page(path: Path, answer: Answer, sections: Sequence[Section]) -> None:
    """Write a page that begins with an answer, in HTML."""
    write_text(path, page(answer.title, sections, answer=answer))
