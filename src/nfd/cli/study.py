"""``nfd study``: the main job."""

from __future__ import annotations

import sys
from textwrap import fill

from nfd.cli.options import Options
from nfd.experiment.settings import StudyConfig


class StudyCommand(Options, StudyConfig):
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
        from nfd.experiment.findings import findings
        from nfd.experiment.study import Study
        from nfd.report.study import write_study

        directory = prepare_directory(self.out)
        study = Study(config, progress=True)
        try:
            study.measure()
        except KeyboardInterrupt:
            if not study.measured.seconds:
                raise
        found = findings(study)
        for finding in found:
            lines = (
                fill(text, 100, initial_indent="  ", subsequent_indent="  ")
                for text in (finding.headline, *finding.details)
            )
            print(finding.title, *lines, sep="\n")
        print(f"Report: {write_study(study, found, directory, command)}")
        if study.measured.complete:
            return 0
        print("nfd: interrupted; the report holds what was measured by then, and says so.", file=sys.stderr)
        return 130
