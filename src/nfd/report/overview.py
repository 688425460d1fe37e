"""The page of ``nfd report``: any results, a part for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from nfd.core.files import staged, write_json, write_text
from nfd.core.tables import short
from nfd.report.figure import finding_section
from nfd.report.page import Section, page
from nfd.report.results import REPORT, Result

Drawer = Callable[[Result], list[Section]]  # the sections of results that another package writes; none for others

_DEEPEST = 3  # levels of a result whose values are listed
_LONGEST = 12  # of a list that is shown as a value
_MOST = 500  # rows of a table
_ABOUT = ("title", "command", "repeat", "config", "findings", "answers")  # what a part says elsewhere, or not


def write_report(
    results: Sequence[Result],
    problems: Sequence[str],
    directory: str,
    out: Path,
    command: str,
    drawers: Sequence[Drawer] = (),
) -> Path:
    """Write ``report.html`` and ``result.json`` to ``out``; returns the page's path."""
    title = f"Results in {directory}" if len(results) != 1 else results[0].title
    with staged(out) as folder:
        write_text(folder / "report.html", page(title, overview(results, problems, drawers)))
        listed = [{"folder": result.folder, "title": result.title, "command": result.command} for result in results]
        head = {"title": title, "command": command, REPORT: directory}
        write_json(folder / "result.json", {**head, "results": listed, "problems": list(problems)})
    return out / "report.html"


def overview(results: Sequence[Result], problems: Sequence[str], drawers: Sequence[Drawer] = ()) -> list[Section]:
    """What could not be read, then a part for every result."""
    unread = [Section("What could not be read", [], points=problems)] if problems else []
    return [*unread, *(section for result in results for section in part(result, drawers))]


def part(result: Result, drawers: Sequence[Drawer] = ()) -> list[Section]:
    """A result: where it came from and its answers, then its findings, the charts of ``drawers``, or values."""
    charts = [finding_section(finding, level=3) for finding in result.findings]
    drawn = [section for drawer in drawers for section in drawer(result)] + charts
    content = result.content
    values = {name: value for name, value in content.items() if name not in _ABOUT and not drawn}
    partial = ["It was interrupted: a part is missing."] if content.get("complete") is False else []
    opening = Section(
        result.title,
        [f"In {result.folder}, made by: {result.command}", *partial],
        points=[*_answers(result), *(f"Not drawn: {problem}" for problem in result.problems)],
        table=[{"": name, "value": value} for name, value in _flat(values)],
    )
    tables = [_table(name, rows) for name, rows in content.items() if not drawn and _is_table(rows)]
    return [opening, *drawn, *tables]


def _answers(result: Result) -> list[str]:
    """Its answers in short: those that it holds, or what its findings say."""
    answers = result.content.get("answers")
    if isinstance(answers, list) and answers:
        return [str(answer) for answer in answers]
    return [f"{f.title} {f.headline}" for f in result.findings if len(result.findings) > 1]


def _flat(values: Mapping[str, Any], before: str = "", depth: int = 1) -> list[tuple[str, Any]]:
    """Numbers and words by name, those of nested objects by ``outer inner``."""
    flat = list[tuple[str, Any]]()
    for key, value in values.items():
        name = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, dict) and depth < _DEEPEST:
            flat += _flat(value, name, depth + 1)
        elif isinstance(value, list) and len(value) <= _LONGEST and not any(isinstance(v, list | dict) for v in value):
            flat.append((name, ", ".join(map(short, value))))
        elif isinstance(value, int | float) or (isinstance(value, str) and value):
            flat.append((name, value))
    return flat


def _is_table(rows: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and row for row in rows)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """A list of rows in a result, folded."""
    columns = list(dict.fromkeys(column for row in rows[:_MOST] for column in row))
    cells = [{column: short(row.get(column)) for column in columns} for row in rows[:_MOST]]
    cut = f", the first {_MOST} below" if len(rows) > _MOST else ""
    return Section(f"{name} ({len(rows):,} rows{cut})", [], table=cells, folded=True, level=3)
