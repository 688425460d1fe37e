"""The page of ``nfd report``: every ``result.json`` in a directory and below, of any command, a part for each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError
from nfd.core.files import Finding, staged, write_json, write_text
from nfd.core.tables import short
from nfd.report.page import Section, finding_section, page

FILE = "result.json"
REPORT = "report_of"  # the key by which the result of a report is known: a report shows no other
_DEEPEST = 3  # levels of a result whose values are listed
_LONGEST = 12  # of a list that is shown as a value
_MOST = 500  # rows of a table
_ABOUT = ("title", "command", "repeat", "config", "findings", "answers")  # what a part says elsewhere, or not


@dataclass(frozen=True)
class Result:
    """The result of one command: its folder, relative to the directory of the search, and its ``result.json``.

    ``findings`` can be drawn; ``problems`` are messages about those that cannot.
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
        """Its title, or its command's name if it has none, as those without findings."""
        title = self.content.get("title")
        return title if isinstance(title, str) and title.strip() else " ".join(self.command.split()[:2]) or self.folder


Drawer = Callable[[Result], list[Section]]  # the sections of results that another package writes; none for others


# ---- reading


def read_results(directory: Path) -> tuple[list[Result], list[str]]:
    """The results in and below ``directory``, and a sentence on each file that is none."""
    results, problems = list[Result](), list[str]()
    for path in _files(directory):
        try:
            content = _content(path)
        except InputError as error:
            problems.append(f"{path}: {error}")
            continue
        if REPORT not in content:
            results.append(_result(str(path.parent.relative_to(directory)), content))
    return results, problems


def replaceable(out: Path) -> bool:
    """Whether a report may be written to ``out``: no ``result.json`` is there, or that of an earlier report."""
    path = out / FILE
    try:
        return not path.exists() or REPORT in _content(path)
    except InputError:
        return False


def _files(directory: Path) -> Iterator[Path]:
    """Those of a directory before those of its folders; hidden folders, such as unfinished ones, are left out."""
    if not directory.is_dir():
        raise InputError(f"report needs a directory that exists; got {str(directory)!r}. Give one that holds results.")
    for folder, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if FILE in names:
            yield Path(folder) / FILE


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is damaged: not JSON ({str(error).splitlines()[0]}). Run its command again.") from None
    if not isinstance(content, dict) or not isinstance(content.get("command"), str):
        raise InputError("was not written by nfd: it names no command.")
    return content


def _result(folder: str, content: dict[str, Any]) -> Result:
    stored = content.get("findings") or {}
    if not isinstance(stored, dict):
        return Result(folder, content, [], ["its findings are not an object with a finding under each name."])
    findings, problems = list[Finding](), list[str]()
    for name, plain in stored.items():
        try:
            findings.append(Finding.of(plain))
        except InputError as error:
            problems.append(f"{name} {error}")
    return Result(folder, content, findings, problems)


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
    title = f"Results in {directory}" if len(results) != 1 else results[0].title
    unread = [Section("What could not be read", [], points=problems)] if problems else []
    sections = [*unread, *(section for result in results for section in part(result, drawers))]
    listed = [{"folder": result.folder, "title": result.title, "command": result.command} for result in results]
    head = {"title": title, "command": command, REPORT: directory}
    with staged(out) as folder:
        write_text(folder / "report.html", page(title, sections))
        write_json(folder / FILE, {**head, "results": listed, "problems": list(problems)})
    return out / "report.html"


def part(result: Result, drawers: Sequence[Drawer] = ()) -> list[Section]:
    """A result: where it came from and its answers, then its findings, the charts of ``drawers``, or its values."""
    drawn = [section for drawer in drawers for section in drawer(result)]
    drawn += [finding_section(finding, level=3) for finding in result.findings]
    values = {} if drawn else {name: value for name, value in result.content.items() if name not in _ABOUT}
    partial = ["It was interrupted: a part is missing."] if result.content.get("complete") is False else []
    opening = Section(
        result.title,
        [f"In {result.folder}, made by: {result.command}", *partial],
        points=[*_answers(result), *(f"Not drawn: {problem}" for problem in result.problems)],
        table=[{"": name, "value": value} for name, value in _flat(values)],
    )
    tables = [_table(name, rows) for name, rows in values.items() if _is_table(rows)]
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


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and row for row in rows)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """A list of rows in a result, folded."""
    columns = list(dict.fromkeys(column for row in rows[:_MOST] for column in row))
    cells = [{column: short(row.get(column)) for column in columns} for row in rows[:_MOST]]
    cut = f", the first {_MOST} below" if len(rows) > _MOST else ""
    return Section(f"{name} ({len(rows):,} rows{cut})", [], table=cells, folded=True, level=3)
