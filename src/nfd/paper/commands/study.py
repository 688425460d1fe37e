"""``nfd paper study``: the main job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from nfd.core import INTERRUPTED, option
from nfd.paper.commands.options import Options
from nfd.paper.settings import StudyConfig

if TYPE_CHECKING:
    from nfd.paper.findings import Finding


@dataclass(frozen=True)
class StudyCommand(Options, StudyConfig):
    """Predict how an infinitely wide and deep residual network trains on real data, and compare real networks with it.

    Writes report.html, result.json, and every chart as PDF, PNG and CSV to OUT, and every network to
    OUT/runs.sqlite. When it is interrupted, what was measured by then is written, and the report says that it is
    partial; the same command continues from there.
    """

    out: str = option("out/study", "directory for the results")

    kind = StudyConfig

    def answer(self, config: StudyConfig, directory: Path, command: str) -> int:
        from nfd.paper.findings import findings
        from nfd.paper.study import Study
        from nfd.paper.study_report import study_report

        study = Study(config, device=self.device, progress=True)
        try:
            study.measure(self.sweep(directory))
        except KeyboardInterrupt:
            if not study.measured.seconds:
                raise
        measured = findings(study)
        try:
            path = study_report(study, measured, command).write(directory)
        finally:  # findings are shown even where they cannot be written
            for finding in measured:
                print(finding.title, *_lines(finding), sep="\n")
        print(f"Report: {path}")
        if study.measured.complete:
            return 0
        print(
            "nfd: interrupted; the report contains the measurements so far, and says so. The same command continues.",
            file=sys.stderr,
        )
        return INTERRUPTED


def _lines(finding: Finding) -> list[str]:
    texts = (finding.headline, *finding.details)
    return [fill(text, 100, initial_indent="  ", subsequent_indent="  ") for text in texts]
