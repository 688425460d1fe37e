"""The command ``nfd check``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nfd.cli.shared import SizesCommand
from nfd.core.answer import Answer
from nfd.core.checks import check_count
from nfd.core.errors import InputError
from nfd.core.options import again, option

if TYPE_CHECKING:
    from nfd.cli.setup_file import Setup
    from nfd.families.family import Family
    from nfd.meters.check import Check
    from nfd.report.answer_page import AnswerPage


@dataclass
class CheckCommand(SizesCommand):
    """Train small networks for a few steps over widths and depths, and say what scales wrongly.

    Example: nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 3e-3

    Where something is wrong, the same networks are also trained by the plan that should mend it.
    Writes report.html, result.json, runs.csv, meters.csv and charts to OUT, and every run to
    OUT/runs.sqlite, from which the same command answers again. Exit code 1 if something grows,
    collapses or breaks, else 0, also where something is not decided yet.
    """

    name = "check"

    seeds: int | None = option(
        None,
        "initialisations of each network; by default up to 3, and fewer sizes where these decide",
        group="Sizes",
    )
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
        with self.sweep(directory) as sweep:
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
        answer = self._answer(setup, family, result, command)
        page = self._page(family.name, result, answer, command).write(directory)
        return self.end(answer, page, *self.stored(sweep))

    def _answer(self, setup: Setup, family: Family, result: Check, command: str) -> Answer:
        """The answer of the check, with advice for the shell."""
        from nfd.meters.check_answer import (
            about_of,
            edits,
            first_edit,
            is_anything_judged,
            more_networks,
        )

        answer = result.answer
        path, _, name = family.name.partition(":")
        model = f"{name} in {Path(path).name}" if name else f"{path} in {Path(self.setup).name}"
        answer = replace(answer, about=f"nfd check · {model} · {about_of(result)}")
        next_step = answer.next
        if answer.tone == "open" and is_anything_judged(result):
            more = more_networks(result)
            line = again(command, "--seeds", more.seeds) if more.seeds else command
            for axis, sizes in more.sizes.items():
                if list(sizes) != result.sizes[axis]:
                    line = again(line, f"--{axis}s", *sizes)
            return answer.with_next(more.label, line)
        if answer.tone == "open":
            return replace(answer, next=None)
        if next_step is not None and "lower learning rate" in next_step.label:
            return answer.with_next(next_step.label, again(command, "--lr", f"{result.lr / 10:g}"))
        if answer.tone == "good" and next_step is not None:
            return answer.with_next(next_step.label, self._transfer(result, self.rule))
        if edits(result):
            # What helps beside the edit is checked with it.
            rule = result.cure or self.rule
            line = again(command, "--rule", rule) if rule is not None else command
            return answer.with_next(first_edit(result), line)
        return self._planned(setup, result, answer)

    def _transfer(self, result: Check, rule: str | None) -> str:
        """The command that finds the learning rate, at both ends of the sizes."""
        words = ["nfd", "transfer", self.setup]
        for axis, sizes in result.sizes.items():
            words += [f"--{axis}s", *map(str, sorted({sizes[0], sizes[-1]}))]
        if rule is not None:
            words += ["--rules", rule]
        if self.optimizer is not None:
            words += ["--optimizer", self.optimizer]
        return shlex.join(words)

    def _planned(self, setup: Setup, result: Check, answer: Answer) -> Answer:
        """Advise the plan of the rule that helps, or a self-test of the plan in use."""
        from nfd.meters.check_answer import find_rate_label

        width, depth = (sizes[-1] for sizes in result.sizes.values())
        words = ["nfd", "plan", self.setup, "--width", str(width), "--depth", str(depth)]
        if result.cure is not None:
            words += ["--from", "out/transfer", "--rule", result.cure]
            # The rate of a check is not tuned.
            lines = [self._transfer(result, result.cure), shlex.join(words)]
            return answer.with_next(find_rate_label(result.cure), "\n".join(lines))
        words += ["--base", *map(str, result.base)]
        if result.rule != setup.family(result.base, None, self.optimizer).rule:
            words += ["--rule", result.rule]
        if self.optimizer is not None:
            words += ["--optimizer", self.optimizer]
        if result.rule == "standard":
            return answer
        return answer.with_next(
            "Run next: the plan tests itself, tensor by tensor",
            shlex.join([*words, "--self-test"]),
        )

    def _page(self, model: str, result: Check, answer: Answer, command: str) -> AnswerPage:
        """Lay the answer out as a page."""
        from nfd.meters.check_page import closing_sections, curves_of, first_sections
        from nfd.report.answer_page import AnswerPage

        networks = [row for row in result.rows if not row["matrix"]]
        last_networks = [row for row in networks if row["step"] == result.steps]
        numbers = {
            name: getattr(result, name)
            for name in ("rule", "optimizer", "lr", "ok", "table", "growth", "rows")
        }
        tables = {"runs.csv": last_networks, "meters.csv": result.rows}
        if self.noise:
            tables["noise.csv"] = result.noise
        remedy = result.remedy
        return AnswerPage(
            # What a terminal prints of every quantity is a table here.
            replace(answer, details=result.sentences),
            command,
            self.settings,
            first_sections(result),
            closing=closing_sections(result),
            content={
                "model": model,
                "failures": [str(failure) for failure in result.failures],
                "suspects": [asdict(suspect) for suspect in result.suspects],
                "changes": [asdict(change) for change in result.changes],
                "cure": result.cure,
                "remedy": None if remedy is None else remedy.table,
                "curves": curves_of(result),
                "noise": result.noise,
                "ladder": result.ladder,
            }
            | numbers,
            tables=tables,
        )
