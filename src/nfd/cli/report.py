"""``nfd report``: one page from any results."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

from nfd.cli.options import Options
from nfd.core.errors import UsageError
from nfd.runs.config import Config


class ReportCommand(Options, Config):
    """Make one page from the results in a directory: every result.json there and below, of any command.

    Writes report.html, which loads nothing from outside, and result.json to OUT. Nothing is trained.
    """

    directory: tyro.conf.Positional[str] = ""
    """directory with results, such as out"""
    out: str = "out/report"
    """directory for the page"""

    def run(self, command: str) -> int:
        """Read, draw, write, print."""
        if not self.directory:
            raise UsageError("report needs a directory with results, such as out. See nfd report --help.")
        from nfd.core.files import expanded, prepare_directory
        from nfd.core.ownership import check_replaceable
        from nfd.paper.claims.page import claims_sections
        from nfd.paper.pages import warning_sections
        from nfd.report.overview import write_report
        from nfd.report.results import read_results, replaceable

        if not replaceable(expanded(self.out)):
            raise UsageError(
                f"the page would replace a result, {str(Path(self.out) / 'result.json')!r}. Choose another directory "
                "with --out DIR."
            )
        check_replaceable(expanded(self.out), ["report.html", "result.json"])
        results, problems = read_results(expanded(self.directory))
        for problem in problems:
            print(f"nfd: {problem}", file=sys.stderr)
        if not results:
            raise UsageError(f"no result in {self.directory!r}: no readable result.json there or below.")
        out = prepare_directory(self.out)
        path = write_report(
            results, problems, self.directory, out, command, drawers=[warning_sections, claims_sections]
        )
        drawn = sum(len(result.findings) for result in results)
        print(f"{len(results)} result{'s' * (len(results) != 1)}, {drawn} chart{'s' * (drawn != 1)}.")
        print(f"Report: {path}")
        return 0
