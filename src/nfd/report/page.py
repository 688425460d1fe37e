"""One HTML file that opens by double click: sections with sentences, charts and tables.

It has no script and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from nfd.core.answer import SYMBOLS, Answer
from nfd.core.files import staged, write_csv, write_json, write_text
from nfd.core.findings import Finding, plain
from nfd.core.tables import Lead, Row, Tone, visible
from nfd.report.charts import (
    DARK,
    NARROW,
    WIDE,
    Chart,
    beside,
    chart_of,
    left_out,
    svg_of,
    write_charts,
    write_pictures,
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
    ``leads`` are verdicts, by the names of what they are about; they stand above everything else.

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
    leads: Mapping[str, Lead] = field(default_factory=dict)
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
    lead: Lead | None = None,
    answer: Answer | None = None,
) -> str:
    """Return the page as HTML, with more elements in its ``head``.

    Every other string from outside is escaped. It begins with ``answer``, or ``title`` and
    ``lead``, and what the first section shows, if that has no title; the contents follow.
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
            lead=lead,
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


# A number with its unit, and the interval that follows it.
_WITH_INTERVAL = re.compile(
    r"([+\u2212]?\d[\d.,]*(?:e-?\d+)?[TBM]?(?:&nbsp;%|&nbsp;nats)?)( \(95&nbsp;%: [^()]*\))"
)


def _unbroken(text: str) -> Markup:
    """Keep numbers on one line with their units."""
    escaped = str(escape(_shown(text)))
    return Markup(re.sub(r"(?<=\d) (?=%|nats\b)", "&nbsp;", escaped))


def _marked(text: str) -> Markup:
    """Write numbers with intervals in bold, and their intervals in grey."""
    bold = r'<b>\1</b> <span class="interval">\2</span>'
    marked = _WITH_INTERVAL.sub(bold, str(_unbroken(text)))
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


# ---- What a command writes: one page, its charts as files, and everything on it as numbers


@dataclass(frozen=True)
class Report:
    """The answer of one command.

    Attributes:
        title: heading of the page. command: what the user typed.
        settings: what decided the numbers, as plain data.
        findings: each becomes a section with a chart.
        lead: the verdict, which opens the page.
        hero: the findings whose charts stand below it, on the same axes; by default the first one,
            whose section then has none.
        answers: sentences that follow the contents, with the rows of ``lines`` below them.
        opening, closing: sections before the answers, and after all others.
        content: what ``result.json`` holds beside title, settings, command and findings.
        tables: rows of CSV files, by file name.
    """

    title: str
    command: str
    settings: Mapping[str, Any]
    findings: Sequence[Finding]
    lead: Lead
    hero: Sequence[Finding] = ()
    answers: Sequence[str] = ()
    lines: Sequence[Mapping[str, Any]] = ()
    opening: Sequence[Section] = ()
    closing: Sequence[Section] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """Write page, ``result.json``, tables and charts, all or nothing.

        Returns the page's path.
        """
        with staged(directory) as folder:
            write_charts(self.findings, folder)
            if self.hero:
                charts = {panel.title: panel.chart for panel in self._opening().panels}
                write_pictures(folder / "verdict", beside(charts))
            for name, rows in self.tables.items():
                write_csv(folder / name, rows)
            write_text(folder / "report.html", page(self.title, self._sections(), lead=self.lead))
            head = {"title": self.title, "config": dict(self.settings), "command": self.command}
            numbers = {
                "lead": asdict(self.lead),
                "answers": list(self.answers),
                "findings": plain([*self.hero, *self.findings]),
            }
            write_json(folder / "result.json", head | numbers | dict(self.content))
        return directory / "report.html"

    def _sections(self) -> list[Section]:
        """All sections of the page, in their order."""
        sections = [self._opening(), *self.opening]
        points = [answer for answer in self.answers if answer != self.lead.verdict]
        if points or self.lines:
            sections.append(Section("In short", [], points=points, table=self.lines))
        findings = [*map(finding_section, self.findings)]
        if findings and not self.hero:
            # Its chart opens the page. What is left may repeat what stands there.
            first = replace(findings[0], chart=None, caption="")
            repeated = {self.lead.verdict, self.findings[0].title, ""}
            has_news = bool(first.table) or not repeated.issuperset(first.paragraphs)
            findings = findings[1:]
            if has_news:
                findings.insert(0, first)
        return [*sections, *findings, *self.closing]

    def _opening(self) -> Section:
        """The section that opens the page, with the charts of ``hero``."""
        if self.hero:
            return figure_section("", self.hero, shared=True)
        sections = opening_of(self.findings)
        return sections[0] if sections else Section("", [])


def opening_of(findings: Sequence[Finding]) -> list[Section]:
    """Return the section that opens a page, with the first finding's chart, if there is one."""
    if not findings:
        return []
    first = findings[0]
    return [replace(finding_section(first), title="", paragraphs=[first.title], table=())]


def made_by(command: str, *more: str) -> Section:
    """Return the section that ends a page and says how it was made."""
    return Section("What was run", [f"Made by: {command}", *more])


def write_page(path: Path, answer: Answer, sections: Sequence[Section]) -> None:
    """Write a page that begins with an answer, in HTML."""
    write_text(path, page(answer.title, sections, answer=answer))
