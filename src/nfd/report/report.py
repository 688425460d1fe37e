"""What a command writes: one page, its charts as files, and everything on it as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nfd.core.files import Finding, plain, staged, write_csv, write_json, write_text
from nfd.report.charts import Chart, write_charts
from nfd.report.page import Section, finding_section, page


@dataclass(frozen=True)
class Report:
    """The answer of one command.

    Attributes:
        title: heading of the page. command: what the user typed.
        settings: what decided the numbers, as plain data.
        findings: each becomes a section with a chart.
        answers: sentences that open the page, with the rows of ``lines`` below them.
        opening, closing: sections before the answers, and after all others.
        content: what ``result.json`` holds beside title, settings, command and findings.
        tables: rows of CSV files, texts: content of other files; by file name.
    """

    title: str
    command: str
    settings: Mapping[str, Any]
    findings: Sequence[Finding]
    answers: Sequence[str] = ()
    lines: Sequence[Mapping[str, Any]] = ()
    opening: Sequence[Section] = ()
    closing: Sequence[Section] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """Write page, ``result.json``, tables and charts, all or nothing; returns the page's path."""
        with staged(directory) as folder:
            drawn = write_charts(self.findings, folder)
            for name, rows in self.tables.items():
                write_csv(folder / name, rows)
            for name, text in self.texts.items():
                write_text(folder / name, text)
            write_text(folder / "report.html", page(self.title, self._sections(drawn)))
            head = {"title": self.title, "config": dict(self.settings), "command": self.command}
            numbers = {"answers": list(self.answers), "findings": plain(self.findings), **self.content}
            write_json(folder / "result.json", head | numbers)
        return directory / "report.html"

    def _sections(self, drawn: Mapping[str, Chart]) -> list[Section]:
        answers = [Section("In short", [], points=self.answers, table=self.lines)] if self.answers else []
        findings = [finding_section(finding, drawn[finding.name]) for finding in self.findings]
        return [*self.opening, *answers, *findings, *self.closing]


def made_by(command: str, *more: str) -> Section:
    """The section that ends a page: how it was made."""
    return Section("What was run", [f"Made by: {command}", *more])


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page of these sections, in HTML."""
    write_text(path, page(title, sections))
