"""The page of ``nfd report``: every ``result.json`` in a directory and below, of any command, a
part for each.
"""

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
REPORT = "report_of"  # the key by which the result of a report is known: a report shows no other
_MOST = 500  # rows of a table
_DRAWN = 4  # charts of the opening
# what a part says elsewhere, or not
_ABOUT = ("title", "command", "repeat", "config", "findings", "lead", "answers")


@dataclass(frozen=True)
class Result:
    """The result of one command: its folder, relative to the directory of the search, and its
    ``result.json``.

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
        return (
            title
            if isinstance(title, str) and title.strip()
            else " ".join(self.command.split()[:2]) or self.folder
        )

    @property
    def lead(self) -> Lead:
        """Its verdict; of a command without one its first answer."""
        lead = self.content.get("lead")
        answers = self.content.get("answers")
        if isinstance(lead, dict) and lead.get("tone") in get_args(Tone):
            numbers = lead.get("numbers")
            shown = (
                {str(k): str(x) for k, x in numbers.items()} if isinstance(numbers, dict) else {}
            )
            return Lead(str(lead.get("verdict")), lead["tone"], shown)
        return Lead(
            str(answers[0]) if isinstance(answers, list) and answers else "It has no verdict."
        )


# the sections of results that another package writes; none for others
Drawer = Callable[[Result], list[Section]]


# ---- reading


def read_results(directory: Path) -> tuple[list[Result], list[str]]:
    """The results in and below ``directory``, and a sentence on each file that is none.

    Those of a directory come before those of its folders. Hidden folders, such as unfinished ones,
    are left out.
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
    """Whether a report may be written to ``out``: no ``result.json`` is there, or that of an
    earlier report.
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
    found = Result(folder, content)
    stored = content.get("findings")
    for name, plain in stored.items() if isinstance(stored, dict) else ():
        try:
            found.findings.append(Finding.of(plain))
        except InputError as error:
            found.problems.append(f"{name} {error}")
    return found


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
    first = [result.findings[0] for result in results if result.findings][:_DRAWN]
    leads = {r.title if r.folder == "." else r.folder: r.lead for r in results}
    opening = replace(figure_section("", first), leads=leads)
    unread = [Section("What could not be read", [], points=problems)] if problems else []
    sections = [*unread, *(section for result in results for section in part(result, drawers))]
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
    """A result: where it came from and its answers, then its findings, the charts of ``drawers``,
    or its values.
    """
    drawn = [section for drawer in drawers for section in drawer(result)]
    drawn += [finding_section(finding, level=3) for finding in result.findings]
    values = (
        {}
        if drawn
        else {name: value for name, value in result.content.items() if name not in _ABOUT}
    )
    answers = result.content.get("answers")
    if not isinstance(answers, list) or not answers:
        answers = (
            [f"{f.title} {f.headline}" for f in result.findings] if len(result.findings) > 1 else []
        )
    partial = (
        ["It was interrupted: a part is missing."]
        if result.content.get("complete") is False
        else []
    )
    opening = Section(
        result.title,
        [f"In {result.folder}, made by: {result.command}", *partial],
        points=[*map(str, answers), *(f"Not drawn: {problem}" for problem in result.problems)],
        table=[
            {"": name, "value": v}
            for name, v in values.items()
            if isinstance(v, int | float | str) and v != ""
        ],
    )
    return [
        opening,
        *drawn,
        *(_table(name, rows) for name, rows in values.items() if _is_table(rows)),
    ]


def _is_table(rows: Any) -> bool:
    return (
        isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and row for row in rows)
    )


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """A list of rows in a result, folded."""
    columns = list(dict.fromkeys(column for row in rows[:_MOST] for column in row))
    cells = [{column: short(row.get(column)) for column in columns} for row in rows[:_MOST]]
    cut = f", the first {_MOST} below" if len(rows) > _MOST else ""
    return Section(f"{name} ({len(rows):,} rows{cut})", [], table=cells, folded=True, level=3)
