"""``nfd study``: the main job."""

from __future__ import annotations

import sys
from textwrap import fill
from typing import TYPE_CHECKING

from nfd.cli.ending import INTERRUPTED
from nfd.cli.options import PAGE, DeviceOptions, charts
from nfd.experiment.settings import StudyConfig

if TYPE_CHECKING:
    from nfd.experiment.findings import Finding


class StudyCommand(DeviceOptions, StudyConfig):
    """Predict how an infinitely wide and deep residual network trains on real data, and compare real networks with it.

    Writes report.html, result.json, config.toml and every chart as PDF, PNG and CSV to OUT. When it is interrupted,
    what was measured by then is written, and the report says that it is partial.
    """

    out: str = "out/study"
    """directory for the results"""

    def run(self, command: str) -> int:
        """Check, measure, write, and print what was found."""
        config = self.settings(StudyConfig)
        from nfd.core.files import prepare_directory
        from nfd.experiment.findings import NAMES, findings
        from nfd.experiment.study import Study
        from nfd.report.study import write_study

        directory = prepare_directory(self.out, [*PAGE, *charts(NAMES)])
        study = Study(config, device=self.device, progress=True)
        try:
            study.measure()
        except KeyboardInterrupt:
            if not study.measured.seconds:
                raise
        found = findings(study)
        try:
            path = write_study(study, found, directory, command)
        finally:  # what was found is shown even where it cannot be written
            for finding in found:
                print(finding.title, *_lines(finding), sep="\n")
        print(f"Report: {path}")
        if study.measured.complete:
            return 0
        print("nfd: interrupted; the report holds what was measured by then, and says so.", file=sys.stderr)
        return INTERRUPTED


def _lines(finding: Finding) -> list[str]:
    texts = (finding.headline, *finding.details)
    return [fill(text, 100, initial_indent="  ", subsequent_indent="  ") for text in texts]
