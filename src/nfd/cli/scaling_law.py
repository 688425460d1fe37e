"""The command ``nfd scaling-law``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import LoggedCommand, as_number, named
from nfd.core.checks import check_count
from nfd.core.errors import VERDICT
from nfd.core.options import option
from nfd.core.tables import show

if TYPE_CHECKING:
    from nfd.laws.ladder import LadderLaw
    from nfd.laws.scaling_law import ScalingLaw


@dataclass
class ScalingLawCommand(LoggedCommand):
    """Fit the loss against width and depth, and say what growing buys and which size is best.

    Example: nfd scaling-law setup.py --widths 32 64 128 --best parameters=1M

    Writes report.html, result.json and charts to OUT, and every run to OUT/runs.sqlite; the same
    command continues after a stop. With --from it answers from a table of runs: nfd scaling-law
    --from runs.csv.
    """

    name = "scaling-law"

    seeds: int = option(4, "initialisations of each network", group="Sizes")
    lr: float | None = option(None, "learning rate of the base", group="Training")
    lengths: tuple[int, ...] | None = option(
        None, "steps that every size is trained for, for a law in tokens too", group="Training"
    )
    at: tuple[str, ...] = option(
        (),
        "what is asked about: width=512 depth=16, by default the largest, or parameters=7B "
        "tokens=4T",
        group="Question",
    )
    best: tuple[str, ...] = option(
        (),
        "budgets whose best size is asked for, such as parameters=1M flops=1e15",
        group="Question",
    )
    rate: str | None = option(
        None, "with --from: the learning rate whose runs count, or best", group="Table of runs"
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.experiments.scaling_law_findings import (
            above_floor,
            answers_of,
            answers_of_ladder,
            ladder_chart,
        )
        from nfd.laws.best_size import amount
        from nfd.laws.ladder import LadderLaw
        from nfd.report.page import Report, made_by

        budgets = named("--best", "such as parameters=1M", self.best, str)
        asked: dict[str, Any] = named(
            "--at", "whole numbers such as width=512, or parameters=7B", self.at, as_number
        )
        for resource, budget in budgets.items():
            # Complain of one that cannot be read before anything is trained.
            amount(resource, budget)
        directory, law, remarks = self._fit() if self.log else self._train()
        answers: Any
        if isinstance(law, LadderLaw):
            answers = answers_of_ladder(law, asked, budgets)
            chart = ladder_chart(answers)
        else:
            sizes = {name: check_count("--at", number) for name, number in asked.items()}
            answers = answers_of(law, sizes, budgets)
            chart = above_floor(answers)
        lead = answers.lead
        more = [*answers.sentences[1:], law.about, *law.notes]
        page = Report(
            "How big should it be?",
            command,
            self.settings,
            [chart],
            lead,
            answers=[lead.verdict, *more],
            closing=[made_by(command)],
            content=answers.result,
        ).write(directory)
        show(lead, lead, *more, *remarks, f"Report: {page}")
        return 0 if lead.tone == "good" else VERDICT

    def _fit(self) -> tuple[Path, ScalingLaw | LadderLaw, list[str]]:
        """Fit a law to a table of runs; returns OUT, the law, and no remarks."""
        from nfd.laws.scaling_law import losses_of

        directory = self.directory()
        return directory, losses_of(self.log, self.named_columns(), self.rate), []

    def _train(self) -> tuple[Path, ScalingLaw | LadderLaw, list[str]]:
        """Fit a law to networks of the file; returns OUT, the law, and what was stored before."""
        from nfd.experiments.scaling_law import scaling_law

        setup = self.read_setup()
        directory = self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        with self.sweep(directory) as sweep:
            law = scaling_law(
                family,
                setup.task,
                self.widths,
                self.depths,
                self.lr,
                seeds=self.seeds,
                lengths=self.lengths,
                sweep=sweep,
            )
        return directory, law, self.stored(sweep)
