"""What a command writes: one page, its charts as files, and everything on it as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nfd.core.answer import Answer
from nfd.core.files import staged, write_csv, write_json, write_text
from nfd.core.findings import Finding, plain
from nfd.report.charts import file_stems, write_charts, write_pictures
from nfd.report.page import Section, finding_section, page
from nfd.report.picture import Picture


@dataclass(frozen=True)
class AnswerPage:
    """The answer of one command, as a page and as files.

    Attributes:
        answer: how the page begins.
        command: what the user typed. settings: what decided the numbers, as plain data.
        sections: what follows, the most important first.
        findings: each becomes a section with a chart after these.
        closing: sections after all others.
        content: what ``result.json`` holds besides. tables: rows of CSV files, by file name.
    """

    answer: Answer
    command: str
    settings: Mapping[str, Any]
    sections: Sequence[Section]
    findings: Sequence[Finding] = ()
    closing: Sequence[Section] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """Write page, ``result.json``, tables and charts, all or nothing; returns the page."""
        pictures = self.pictures
        with staged(directory) as folder:
            write_charts(self.findings, folder)
            stems = file_stems([one.name for one in pictures])
            for one, stem in zip(pictures, stems, strict=True):
                write_pictures(folder / stem, one.files())
            for name, rows in self.tables.items():
                write_csv(folder / name, rows)
            write_text(folder / "report.html", self.html())
            head = {
                "title": self.answer.title,
                "config": dict(self.settings),
                "command": self.command,
                "answer": self.answer.plain(),
                "lead": self.answer.lead,
                "answers": self.answer.sentences,
                "charts": [one.plain() for one in pictures],
                "findings": plain(self.findings),
            }
            write_json(folder / "result.json", head | dict(self.content))
        return directory / "report.html"

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of all sections, in their order."""
        pictures = list[Picture]()
        for section in [*self.sections, *self.closing]:
            for one in section.pictures:
                # Drawn elsewhere, such as by ``nfd report``, it needs the key of its section.
                pictures.append(replace(one, key=one.key or section.key))
        return pictures

    def html(self) -> str:
        """Return the page."""
        sections = [*self.sections, *map(finding_section, self.findings)]
        if self.answer.details:
            folded = Section("Details", list(self.answer.details), folded=True)
            sections.append(folded)
        run = Section("What was run", [f"Made by: {self.command}"], folded=True)
        return page(self.answer.title, [*sections, *self.closing, run], answer=self.answer)
