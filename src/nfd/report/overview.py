"""The page of ``nfd report``: any results, a part for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from nfd.core.files import staged, write_json, write_text
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
        about = {"title": title, "command": command, REPORT: directory}
        write_json(folder / "result.json", {**about, "results": listed, "problems": list(problems)})
    return out / "report.html"


def overview(results: Sequence[Result], problems: Sequence[str], drawers: Sequence[Drawer] = ()) -> list[Section]:
    """What could not be read, then a part for every result."""
    unread = [Section("What could not be read", [], points=problems)] if problems else []
    return [*unread, *(section for result in results for section in part(result, drawers))]


def part(result: Result, drawers: Sequence[Drawer] = ()) -> list[Section]:
    """A result: where it came from and its answers, then its findings, what ``drawers`` make of it, or values."""
    origin = f"In {result.folder}, made by: {result.command}"
    drawn = [finding_section(finding, level=3) for finding in result.findings]
    special = [section for drawer in drawers for section in drawer(result)]
    opening = Section(
        result.title,
        [origin, *_partial(result)],
        points=[*_answers(result), *_missing(result)],
        table=[] if drawn or special else _values(result),
    )
    return [opening, *special, *drawn, *([] if drawn or special else _tables(result))]


def _partial(result: Result) -> list[str]:
    return ["It was interrupted: a part is missing."] if result.content.get("complete") is False else []


def _answers(result: Result) -> list[str]:
    """Its answers in short: those that it holds, or what its findings say."""
    answers = result.content.get("answers")
    if isinstance(answers, list) and answers:
        return [str(answer) for answer in answers]
    return [f"{f.title} {f.headline}" for f in result.findings if len(result.findings) > 1]


def _missing(result: Result) -> list[str]:
    return [f"Not drawn: {problem}" for problem in result.problems]


def _values(result: Result) -> list[dict[str, Any]]:
    """The numbers and words of a result in two columns."""
    content = {name: value for name, value in result.content.items() if name not in _ABOUT}
    return [{"": name, "value": value} for name, value in _flat(content)]


def _tables(result: Result) -> list[Section]:
    """The lists of rows in a result, folded."""
    return [
        Section(f"{name} ({len(rows):,} rows{_cut(rows)})", [], table=_table(rows), folded=True, level=3)
        for name, rows in result.content.items()
        if _is_table(rows)
    ]


def _flat(values: Mapping[str, Any], before: str = "", depth: int = 1) -> list[tuple[str, Any]]:
    """Values by name, those of nested objects by ``outer inner``."""
    flat = list[tuple[str, Any]]()
    for key, value in values.items():
        name = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, dict) and depth < _DEEPEST:
            flat += _flat(value, name, depth + 1)
        elif isinstance(value, list) and len(value) <= _LONGEST and not any(isinstance(v, list | dict) for v in value):
            flat.append((name, ", ".join(map(_shown, value))))
        elif isinstance(value, int | float) or (isinstance(value, str) and value):
            flat.append((name, value))
    return flat


def _is_table(rows: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and row for row in rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    columns = list(dict.fromkeys(name for row in rows[:_MOST] for name in row))
    return [{name: _shown(row.get(name)) for name in columns} for row in rows[:_MOST]]


def _cut(rows: Sequence[Any]) -> str:
    return f", the first {_MOST} below" if len(rows) > _MOST else ""


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
