"""``nfd check``: does a network scale?"""

from __future__ import annotations

from pathlib import Path

import tyro

from nfd.cli.ending import VERDICT
from nfd.cli.options import PAGE, DeviceOptions, charts
from nfd.core.errors import UsageError
from nfd.runs.model_settings import CheckConfig


class CheckCommand(DeviceOptions, CheckConfig):
    """Train a constructor's networks over widths and depths for a few steps, and say what scales wrongly.

    Writes report.html, result.json, runs.csv, meters.csv, config.toml and charts to OUT. Exit code 0 if nothing
    collapses, grows or breaks, 1 if something does.
    """

    model: tyro.conf.Positional[str] = ""
    """package.module:make_model, a function of (width, depth) that returns a torch.nn.Module"""
    device: str | None = None  # type: ignore[assignment]  # the function's default, which the other commands lack
    """where it computes: cpu, cuda; by default where the constructor puts its networks"""
    out: str = "out/check"
    """directory for the results"""

    def files(self) -> list[str]:
        return [
            *PAGE,
            "runs.csv",
            "meters.csv",
            *charts("depth", "width", "late-depth", "late-width", "time", "alignment"),
        ]

    def check_used(self, config: CheckConfig) -> None:
        if not self.model:
            raise UsageError("check needs a constructor, such as mypackage.mymodule:make_model. See nfd check --help.")

    def answer(self, config: CheckConfig, directory: Path, command: str) -> int:
        from nfd.questions.checking import checked
        from nfd.questions.findings.check import check_findings
        from nfd.questions.findings.late import late_findings
        from nfd.questions.next_steps import next_steps
        from nfd.report.check import check_report

        result, data = checked(config, self.model, self.device)
        findings = [*check_findings(config, result, data), *late_findings(result, data)]
        page = check_report(config, self.model, result, findings, command).write(directory, self.files())
        print(result, f"Report: {page}", "Next:", *next_steps(config, self.model, result), sep="\n")
        return 0 if result.ok else VERDICT
