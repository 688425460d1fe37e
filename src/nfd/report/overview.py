"""The page of ``nfd report``: a part for every ``result.json`` in a directory and below."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from nfd.core.errors import InputError
from nfd.core.files import staged, write_json, write_text
from nfd.core.findings import Finding
from nfd.core.tables import Lead, Tone, short
from nfd.report.page import Section, figure_section, finding_section, page

FILE = "result.json"
# The key that only results of reports have: a report shows no other report.
REPORT = "report_of"
# Rows of a table, at most.
_MOST = 500
# Charts of the opening, at most.
_DRAWN = 4
# What a part says elsewhere, or not.
_ABOUT = ("title", "command", "repeat", "config", "findings", "lead", "answers")


@dataclass(frozen=True)
class Result:
    """The result of one command.

    Attributes:
        folder: where it is, relative to the directory of the search.
        content: its ``result.json``.
        findings: those that can be drawn. problems: messages about those that cannot.
    """

    folder: str
    content: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

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
    def lead(self) -> Lead:
        """Its verdict, or its first answer if it has none."""
        lead = self.content.get("lead")
        answers = self.content.get("answers")
        if isinstance(lead, dict) and lead.get("tone") in get_args(Tone):
            shown = {}
            numbers = lead.get("numbers")
            if isinstance(numbers, dict):
                shown = {str(name): str(number) for name, number in numbers.items()}
            return Lead(str(lead.get("verdict")), lead["tone"], shown)
        if isinstance(answers, list) and answers:
            return Lead(str(answers[0]))
        return Lead("It has no verdict.")


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
            results.append(_result(str(place), content))
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


def _result(folder: str, content: dict[str, Any]) -> Result:
    result = Result(folder, content)
    stored = content.get("findings")
    if not isinstance(stored, dict):
        return result
    for name, plain in stored.items():
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
) -> Path:
    """Write ``report.html`` and ``result.json`` to ``out``; returns the page's path."""
    title = f"Results in {directory}"
    if len(results) == 1:
        title = results[0].title
    first = [result.findings[0] for result in results if result.findings][:_DRAWN]
    leads = {}
    for result in results:
        name = result.title if result.folder == "." else result.folder
        leads[name] = result.lead
    opening = replace(figure_section("", first), leads=leads)
    sections = []
    if problems:
        sections.append(Section("What could not be read", [], points=problems))
    for result in results:
        sections += part(result, drawers)
    listed = [
        {"folder": result.folder, "title": result.title, "command": result.command}
        for result in results
    ]
    head = {"title": title, "command": command, REPORT: directory}
    with staged(out) as folder:
        write_text(folder / "report.html", page(title, [opening, *sections]))
        write_json(folder / FILE, {**head, "results": listed, "problems": list(problems)})
    return out / "report.html"


def part(result: Result, drawers: Sequence[Drawer] = ()) -> list[Section]:
    """Show a result: where it came from and its answers, then its findings.

    The sections of ``drawers`` come before the findings. A result without both shows its values.
    """
    sections = list[Section]()
    for drawer in drawers:
        sections += drawer(result)
    sections += [finding_section(finding, level=3) for finding in result.findings]
    values: dict[str, Any] = {}
    if not sections:
        values = {name: value for name, value in result.content.items() if name not in _ABOUT}
    paragraphs = [f"In {result.folder}, made by: {result.command}"]
    if result.content.get("complete") is False:
        paragraphs.append("It was interrupted: a part is missing.")
    problems = [f"Not drawn: {problem}" for problem in result.problems]
    plain_values = []
    for name, value in values.items():
        if isinstance(value, int | float | str) and value != "":
            plain_values.append({"": name, "value": value})
    opening = Section(
        result.title, paragraphs, points=[*_answers(result), *problems], table=plain_values
    )
    tables = [_table(name, rows) for name, rows in values.items() if _is_table(rows)]
    return [opening, *sections, *tables]


def _answers(result: Result) -> list[str]:
    """The answers of a result, or a line for each finding if it has several findings."""
    answers = result.content.get("answers")
    if isinstance(answers, list) and answers:
        return list(map(str, answers))
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
