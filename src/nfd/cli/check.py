"""``nfd check``: does a network scale?"""

from __future__ import annotations

from pathlib import Path

from nfd.cli.ending import VERDICT
from nfd.cli.options import PAGE, ModelOptions, charts, printed
from nfd.core.errors import UsageError
from nfd.runs.model_settings import CheckConfig


class CheckCommand(ModelOptions, CheckConfig):
    """Train a constructor's networks over widths and depths for a few steps, and say what scales wrongly.

    Writes report.html, result.json, runs.csv, meters.csv, config.toml and charts to OUT. Exit code 0 if nothing
    collapses, grows or breaks, 1 if something does.
    """

    out: str = "out/check"
    """directory for the results"""

    def files(self) -> list[str]:
        return [
            *PAGE,
            "runs.csv",
            "meters.csv",
            "noise.csv",
            *charts("depth", "width", "late-depth", "late-width", "time", "alignment"),
        ]

    def check_used(self, config: CheckConfig) -> None:
        if not self.model:
            raise UsageError("check needs a constructor, such as mypackage.mymodule:make_model. See nfd check --help.")

    def answer(self, config: CheckConfig, directory: Path, command: str) -> int:
        from nfd.questions.checking import checked
        from nfd.questions.findings.check import check_findings
        from nfd.questions.findings.late import late_findings
        from nfd.questions.next_steps import NextSteps
        from nfd.report.check import check_report

        result, data = checked(config, self.model, self.device)
        findings = [*check_findings(config, result, data), *late_findings(result, data)]
        steps = NextSteps(self.model, self.device).after_check(config, result)
        page = check_report(config, self.model, result, findings, command, steps).write(directory, self.files())
        print(result, f"Report: {page}", *printed(steps), sep="\n")
        return 0 if result.ok else VERDICT
