"""The command ``nfd check``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import SizesCommand
from nfd.core.checks import check_count
from nfd.core.errors import VERDICT, InputError
from nfd.core.options import option
from nfd.core.tables import show

if TYPE_CHECKING:
    from nfd.report.page import Report


@dataclass
class CheckCommand(SizesCommand):
    """Train small networks for a few steps over widths and depths, and say what scales wrongly.

    Example: nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 3e-3

    Writes report.html, result.json, runs.csv, meters.csv and charts to OUT. Exit code 0 if nothing
    collapses, grows or breaks, 1 if something does.
    """

    name = "check"

    lr: float | None = option(
        None,
        "learning rate of the base; by default 0.1 for sgd, 0.001 for the others",
        group="Training",
    )
    steps: int | None = option(
        None, "training steps, one per batch; by default the last of --at, or 10", group="Training"
    )
    at: tuple[int, ...] | None = option(
        None, "steps to look after, such as 1 10 100; by default the last step", group="Training"
    )
    noise: bool = option(
        False,
        "also estimate the noise scale of the gradients after the last step",
        group="Training",
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.meters.check import check

        setup = self.read_setup()
        directory = self.directory()
        task = setup.task
        steps = min(10, task.steps)
        if self.at:
            steps = max(check_count("at", step) for step in self.at)
        if self.steps is not None:
            steps = check_count("steps", self.steps)
        if steps > task.steps:
            raise InputError(
                f"steps must be at most {task.steps}, one per batch; got {steps}. Give more "
                "batches."
            )
        task = task.first(steps)
        family = setup.family(self.base, self.rule, self.optimizer)
        with self.sweep(None) as sweep:
            result = check(
                family,
                task,
                self.widths,
                self.depths,
                self.lr,
                seeds=self.seeds,
                at=self.at,
                noise=self.noise,
                sweep=sweep,
            )
        page = self._report(family.name, result, command).write(directory)
        show(result.lead, result, f"Report: {page}")
        return 0 if result.ok else VERDICT

    def _report(self, model: str, answer: Any, command: str) -> Report:
        """Lay the answer out as a report."""
        from nfd.meters.check import check_findings
        from nfd.meters.meter import METERS, in_words
        from nfd.report.page import Report, Section, made_by

        meanings = [f"{in_words(name)}: {meter.meaning}." for name, meter in METERS.items()]
        networks = [row for row in answer.rows if not row["matrix"]]
        last_networks = [row for row in networks if row["step"] == answer.steps]
        numbers = {
            name: getattr(answer, name)
            for name in ("rule", "optimizer", "lr", "ok", "table", "growth", "rows")
        }
        suspects = [asdict(suspect) for suspect in answer.suspects]
        opening = []
        if answer.wrong:
            opening.append(Section("What went wrong", [], points=answer.wrong))
        tables = {"runs.csv": last_networks, "meters.csv": answer.rows}
        if self.noise:
            tables["noise.csv"] = answer.noise
        return Report(
            f"How {model} scales",
            command,
            self.settings,
            check_findings(answer, f"batches of {self.setup}"),
            answer.lead,
            opening=opening,
            closing=[
                Section("What the meters are", [], points=meanings, folded=True),
                made_by(command),
            ],
            content={
                "model": model,
                "failures": [str(failure) for failure in answer.failures],
                "suspects": suspects,
                "noise": answer.noise,
                "ladder": answer.ladder,
            }
            | numbers,
            tables=tables,
        )
