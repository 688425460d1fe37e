"""The command ``nfd transfer``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import LoggedCommand, as_number, as_numbers, named
from nfd.core.checks import check_choice
from nfd.core.options import option
from nfd.core.tables import show

if TYPE_CHECKING:
    pass


@dataclass
class TransferCommand(LoggedCommand):
    """Find the best learning rate at every width and depth under each rule, and what it costs to tune small.

    Example: nfd transfer setup.py --widths 64 256 --rules standard complete-p

    Writes report.html, result.json, transfer.csv and charts to OUT, and every run to OUT/runs.sqlite; the same command
    continues after a stop. With --from it answers from a table of runs: nfd transfer --from runs.csv.
    """

    name = "transfer"

    lr: tuple[float, ...] | None = option(
        None, "rates to begin with; extended where the best one lies at an end", group="Training"
    )
    rules: tuple[str, ...] | None = option(
        None, "rules to compare; by default standard beside that of the family", group="Training"
    )
    axes: tuple[str, ...] = option(
        (), "settings to vary too, such as batch_size=16,32,64; also steps, weight_decay, init_scale", group="Training"
    )
    halving: bool = option(False, "choose rates by short trainings first", group="Training")
    guess: float | None = option(
        None, "with --from: the loss before training, such as the logarithm of the vocabulary", group="Table of runs"
    )
    at: tuple[str, ...] = option(
        (), "with --from: the training whose rate is asked, parameters=7B tokens=4T batch=4M", group="Table of runs"
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.rates.findings import hero, result, transfer_findings
        from nfd.report.page import Report, made_by

        said, found = list[str](), dict[str, Any]()
        # What was trained, for nfd plan --from; a log does not say it.
        trained = dict[str, Any]()
        if self.log:
            from nfd.rates.transfer import fit_transfer

            directory = self.directory()
            asked = named("--at", "such as parameters=7B tokens=4T batch=4M", self.at, as_number)
            answer = fit_transfer(self.log, columns=self.named_columns(), guess=self.guess)
            for name in asked:
                check_choice("--at", name, ("parameters", "tokens", "batch"))
            more = [answer.about]
            if asked:
                best = answer.at(**asked)
                said = [f"At {' '.join(self.at)}: {best}"]
                found["at"] = asked | {"advised": best.advised, "best": best.rate.limits, "excess": best.excess.limits}
        else:
            from nfd.rates.sweep import transfer

            setup, directory = self.read_setup(), self.directory()
            family = setup.family(self.base, self.rule, self.optimizer)
            axes = named("--axes", "numbers such as batch_size=16,32", self.axes, as_numbers)
            with self.sweep(directory) as sweep:
                answer = transfer(
                    family, setup.task, self.widths, self.depths, self.lr, rules=self.rules, seeds=self.seeds,
                    axes=axes or None, halving=self.halving, sweep=sweep,
                )  # fmt: skip
            more = self.stored(sweep)
            trained = {"model": family.name, "optimizer": family.optimizer, "base": family.base}
        lead = replace(answer.lead, verdict=said[0]) if said else answer.lead
        page = Report(
            "At which rate to train?"
            if answer.law
            else "Is the best learning rate of a small network that of a large one?",
            command,
            self.settings,
            transfer_findings(answer),
            lead,
            hero(answer),
            [*said, *answer.sentences, answer.about],
            answer.levels,
            closing=[made_by(command)],
            content={"rules": result(answer.rules), "table": answer.table, "notes": answer.notes} | found | trained,
            tables={"transfer.csv": answer.table},
        ).write(directory)
        show(lead, lead, *answer.told(lead), *more, f"Report: {page}")
        return 0
