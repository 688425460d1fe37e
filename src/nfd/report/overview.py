"""The page of ``nfd report``: a part for every ``result.json`` in a directory and below."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

from nfd.core.answer import SYMBOLS, Answer, Tone
from nfd.core.errors import InputError
from nfd.core.files import staged, write_json, write_text
from nfd.core.findings import Finding
from nfd.core.tables import short
from nfd.core.words import plural
from nfd.report.page import Label, Section, finding_section, page
from nfd.report.picture import Picture

FILE = "result.json"
# The key that only results of reports have: a report shows no other report.
REPORT = "report_of"
# Rows of a table, at most.
_MOST = 500
# Characters of an answer in a row of the terminal.
_TITLE = 58
# What a part says elsewhere, or not.
_ABOUT = ("title", "command", "repeat", "config", "findings", "charts", "lead", "answer", "answers")
# Verdicts of 0.3.0 by their tone, as answers say them.
_STATES: dict[str, tuple[Tone, str]] = {
    "good": ("good", "Sound"),
    "bad": ("bad", "Wrong or costly"),
    "partly": ("open", "Not decided"),
    "open": ("open", "Without a verdict"),
}


@dataclass(frozen=True)
class Result:
    """The result of one command.

    Attributes:
        folder: where it is, relative to the directory of the search.
        content: its ``result.json``.
        findings, pictures: those that can be drawn. problems: messages about those that cannot.
        page: the page that its command wrote, if it is still there.
    """

    folder: str
    content: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    page: Path | None = None

    @property
    def command(self) -> str:
        """The command that made it."""
        return str(self.content["command"])

    @property
    def title(self) -> str:
        """Its title, or the name of its command if it has no title, as without findings."""
        title = self.content.get("title")
        if isinstance(title, str) and title.strip():
            return title
        return " ".join(self.command.split()[:2]) or self.folder

    @property
    def answer(self) -> Answer:
        """Its answer; of a result of 0.3.0 its verdict, or its first answer."""
        stored = self.content.get("answer")
        if isinstance(stored, dict):
            # Pydantic takes longer to load than a small page to make.
            from pydantic import TypeAdapter, ValidationError

            try:
                return TypeAdapter(Answer).validate_python(stored)
            except ValidationError:
                return Answer("open", "Unreadable answer", self.title)
        lead = self.content.get("lead")
        if isinstance(lead, dict):
            tone, state = _STATES.get(str(lead.get("tone")), _STATES["open"])
            return Answer(tone, state, str(lead.get("verdict")))
        answers = self.content.get("answers")
        if isinstance(answers, list) and answers:
            return Answer(*_STATES["open"], str(answers[0]))
        return Answer(*_STATES["open"], self.title)


# Draws the sections of results that another package writes; none of other results.
Drawer = Callable[[Result], list[Section]]


# ---- reading


def read_results(directory: Path) -> tuple[list[Result], list[str]]:
    """Read the results in and below ``directory``; a sentence on each file that is not one.

    Results of a directory come before results of its folders. Hidden folders, such as unfinished
    ones, are left out.
    """
    if not directory.is_dir():
        raise InputError(
            f"report needs a directory that exists; got {str(directory)!r}. Give one that holds "
            "results."
        )
    results = list[Result]()
    problems = list[str]()
    for path in sorted(directory.rglob(FILE), key=lambda path: path.parent):
        place = path.parent.relative_to(directory)
        if any(name.startswith(".") for name in place.parts):
            continue
        try:
            content = _content(path)
        except InputError as error:
            problems.append(f"{path}: {error}")
            continue
        if REPORT not in content:
            page_of_it = path.with_name("report.html")
            page_or_none = page_of_it if page_of_it.is_file() else None
            results.append(_result(str(place), content, page_or_none))
    return results, problems


def replaceable(out: Path) -> bool:
    """Whether a report may be written to ``out``.

    It may where there is no ``result.json``, or only an earlier report's.
    """
    path = out / FILE
    try:
        return not path.exists() or REPORT in _content(path)
    except InputError:
        return False


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is damaged: not JSON ({str(error).splitlines()[0]}). Run its command again."
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("command"), str):
        raise InputError("was not written by nfd: it names no command.")
    return content


def _result(folder: str, content: dict[str, Any], page_of_it: Path | None) -> Result:
    result = Result(folder, content, page=page_of_it)
    charts = content.get("charts")
    for stored in charts if isinstance(charts, list) else []:
        try:
            one = Picture.of(stored)
            # Vega finds what no type tells.
            one.svgs()
            result.pictures.append(one)
        except (InputError, ValueError) as error:
            result.problems.append(f"a chart {str(error).splitlines()[0]}")
    findings = content.get("findings")
    for name, plain in findings.items() if isinstance(findings, dict) else ():
        try:
            result.findings.append(Finding.of(plain))
        except InputError as error:
            result.problems.append(f"{name} {error}")
    return result


# ---- drawing


def write_report(
    results: Sequence[Result],
    problems: Sequence[str],
    directory: str,
    out: Path,
    command: str,
    drawers: Sequence[Drawer] = (),
) -> tuple[Answer, Path]:
    """Write ``report.html`` and ``result.json`` to ``out``.

    Returns the answer of the command, and the page's path.
    """
    answer = answer_of(results, directory)
    sections = []
    if problems:
        sections.append(Section("What could not be read", [], points=problems))
    if len(results) == 1:
        first = results[0].answer
        sections += part(results[0], out, drawers, heads_the_page=True)
    else:
        first = answer
        sections.insert(0, Section("", [], table=[_row(result) for result in results], cards=True))
        for result in results:
            sections += part(result, out, drawers)
    listed = [
        {"folder": result.folder, "title": result.title, "command": result.command}
        for result in results
    ]
    head = {"title": first.title, "command": command, REPORT: directory, "answer": answer.plain()}
    with staged(out) as folder:
        write_text(folder / "report.html", page(first.title, sections, answer=first))
        write_json(folder / FILE, {**head, "results": listed, "problems": list(problems)})
    return answer, out / "report.html"


def answer_of(results: Sequence[Result], directory: str) -> Answer:
    """Count the results and their states; what is wrong or open says what to run next."""
    answers = [result.answer for result in results]
    tones = Counter(answer.tone for answer in answers)
    states = ", ".join(f"{tones[tone]} {symbol}" for tone, symbol in SYMBOLS.items() if tones[tone])
    charts = sum(len(result.findings) + len(result.pictures) for result in results)
    to_run = [answer.next for answer in answers if answer.tone != "good"]
    rows = []
    for result, answer in zip(results, answers, strict=True):
        rows.append(
            {
                "": SYMBOLS[answer.tone],
                "in": result.folder,
                "answer": shorten(answer.title, _TITLE, placeholder=" …"),
            }
        )
    return Answer(
        "good",
        "One page",
        f"{plural(len(results), 'result')}, {plural(charts, 'chart')} on one page",
        because=f"States: {states}.",
        next=next((one for one in to_run if one is not None), None),
        about=f"nfd report {directory}",
        table=rows,
    )


def _row(result: Result) -> dict[str, Any]:
    answer = result.answer
    return {
        "state": Label(answer.state, answer.tone),
        "answer": answer.title,
        "of": " ".join(result.command.split()[:2]),
        "in": result.folder,
    }


def part(
    result: Result, out: Path, drawers: Sequence[Drawer] = (), *, heads_the_page: bool = False
) -> list[Section]:
    """Show a result: its answer and charts, the sections of ``drawers``, and its findings.

    A result without all of these shows its values. ``heads_the_page`` where the page itself begins
    with its answer.
    """
    sections = list[Section]()
    for drawer in drawers:
        sections += drawer(result)
    # Where the answer has its own charts, those of findings are more of the same.
    is_folded = bool(result.pictures)
    for finding in result.findings:
        sections.append(replace(finding_section(finding, level=3), folded=is_folded))
    values: dict[str, Any] = {}
    if not sections and not result.pictures:
        values = {name: value for name, value in result.content.items() if name not in _ABOUT}
    paragraphs = []
    if result.content.get("complete") is False:
        paragraphs.append("It was interrupted: a part is missing.")
    plain_values = []
    for name, value in values.items():
        if isinstance(value, int | float | str) and value != "":
            plain_values.append({"": name, "value": value})
    answer = result.answer
    title = "" if heads_the_page else answer.title or result.title
    table: Sequence[Mapping[str, Any]] = answer.table or plain_values
    key, pictures = with_shared_key(result.pictures)
    opening = Section(
        title,
        paragraphs,
        answer=None if heads_the_page else answer,
        points=[*_answers(result), *(f"Not drawn: {problem}" for problem in result.problems)],
        key=key,
        pictures=pictures,
        table=table,
        caption=f"{result.title}. In {result.folder}, made by: {result.command}",
        links=_links(result, out),
    )
    tables = [_table(name, rows) for name, rows in values.items() if _is_table(rows)]
    return [opening, *sections, *tables]


def with_shared_key(pictures: Sequence[Picture]) -> tuple[Mapping[str, str], list[Picture]]:
    """Take the key of the first picture off all that have it, since a section shows it once."""
    key = pictures[0].key if pictures else {}
    without = [replace(one, key={}) if one.key == key else one for one in pictures]
    return key, without


def _links(result: Result, out: Path) -> dict[str, str]:
    """Lead to the page of a result, relative to the page in ``out``."""
    if result.page is None:
        return {}
    relative = os.path.relpath(result.page.resolve(), out.resolve())
    # Quoted, so that no name of a folder is read as a scheme or a query.
    return {"The whole page": quote(Path(relative).as_posix())}


def _answers(result: Result) -> list[str]:
    """The answers of a result, or a line for each finding if it has several findings."""
    if isinstance(result.content.get("answer"), dict):
        return []
    answers = result.content.get("answers")
    if isinstance(answers, list) and len(answers) > 1:
        return list(map(str, answers[1:]))
    if len(result.findings) > 1:
        return [f"{finding.title} {finding.headline}" for finding in result.findings]
    return []


def _is_table(rows: Any) -> bool:
    """Whether a value of a result is a list of rows."""
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and row for row in rows)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """Show a list of rows in a result, folded."""
    shown = rows[:_MOST]
    columns: dict[str, None] = {}
    for row in shown:
        columns |= dict.fromkeys(row)
    cells = []
    for row in shown:
        cells.append({column: short(row.get(column)) for column in columns})
    count = f"{len(rows):,} rows"
    if len(rows) > _MOST:
        count += f", the first {_MOST} below"
    return Section(f"{name} ({count})", [], table=cells, folded=True, level=3)
