"""The command ``nfd report``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from nfd.cli.answering import AnsweringCommand
from nfd.core.errors import InputError
from nfd.core.files import prepare_results
from nfd.core.options import option


@dataclass
class ReportCommand(AnsweringCommand):
    """Make one page from all results in a directory.

    Example: nfd report out

    Reads every result.json there and below, of any command. Writes report.html, which loads nothing
    from outside, and result.json to OUT. Nothing is trained.
    """

    directory: str = option(
        "", "directory with results, such as out", place="DIR", group="Results", is_path=True
    )
    out: str = option("out/report", "directory for the page", group="Results", is_path=True)

    def run(self, command: str) -> int:
        """Read, draw, write, print; returns the exit code."""
        from nfd.core.files import expanded
        from nfd.paper.pages import claims_sections, warning_sections
        from nfd.report.overview import read_results, replaceable, write_report

        if not self.directory:
            raise InputError(
                "report needs a directory with results, such as out. See nfd report --help."
            )
        if not replaceable(expanded(self.out)):
            existing = str(Path(self.out) / "result.json")
            raise InputError(
                f"the page would replace a result, {existing!r}. Choose another directory with "
                "--out DIR."
            )
        results, problems = read_results(expanded(self.directory))
        for problem in problems:
            print(f"nfd: {problem}", file=sys.stderr)
        if not results:
            raise InputError(
                f"no result in {self.directory!r}: no readable result.json there or below."
            )
        out = prepare_results(self.out)
        drawers = [warning_sections, claims_sections]
        return self.end(*write_report(results, problems, self.directory, out, command, drawers))
