"""The command ``nfd transfer``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import LoggedCommand, as_number, as_numbers, named
from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.options import option
from nfd.core.tables import show

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw
    from nfd.laws.transfer import Transfer


@dataclass(frozen=True)
class _Outcome:
    """An answer, and what the page and the terminal say besides.

    Attributes:
        remarks: what is printed after the answer.
        content: what ``result.json`` has besides.
        verdict: stands in place of the answer's verdict; empty for that one.
    """

    answer: Transfer | RateLaw
    remarks: list[str]
    content: dict[str, Any] = field(default_factory=dict)
    verdict: str = ""


@dataclass
class TransferCommand(LoggedCommand):
    """Find the best learning rate at every size under each rule, and what it costs to tune small.

    Example: nfd transfer setup.py --widths 64 256 --rules standard complete-p

    Writes report.html, result.json, transfer.csv and charts to OUT, and every run to
    OUT/runs.sqlite; the same command continues after a stop. With --from it answers from a table of
    runs: nfd transfer --from runs.csv.
    """

    name = "transfer"

    lr: tuple[float, ...] | None = option(
        None, "rates to begin with; extended where the best one lies at an end", group="Training"
    )
    rules: tuple[str, ...] | None = option(
        None, "rules to compare; by default standard beside that of the family", group="Training"
    )
    axes: tuple[str, ...] = option(
        (),
        "settings to vary too, such as batch_size=16,32,64; also steps, weight_decay, init_scale",
        group="Training",
    )
    halving: bool = option(False, "choose rates by short trainings first", group="Training")
    guess: float | None = option(
        None,
        "with --from: the loss before training, such as the logarithm of the vocabulary",
        group="Table of runs",
    )
    at: tuple[str, ...] = option(
        (),
        "with --from: the training whose rate is asked, parameters=7B tokens=4T batch=4M",
        group="Table of runs",
    )

    scaled: tuple[str, ...] = option(
        (),
        "with --from: powers of batch and tokens by which your code multiplies lr after the table, "
        "batch=0.5 tokens=-0.5",
        group="Table of runs",
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.experiments.transfer_findings import hero, result, transfer_findings
        from nfd.laws.rate_law import RateLaw
        from nfd.report.page import Report, made_by

        directory, outcome = self._fit() if self.log else self._train()
        answer = outcome.answer
        lead = answer.lead
        sentences = [*answer.sentences, answer.about]
        if outcome.verdict:
            lead = replace(lead, verdict=outcome.verdict)
            sentences.insert(0, outcome.verdict)
        if isinstance(answer, RateLaw):
            question = "At which rate to train?"
            findings = []
            charts = []
            rules = []
        else:
            question = "Is the best learning rate of a small network that of a large one?"
            findings = transfer_findings(answer)
            charts = hero(answer)
            rules = result(answer.rules)
        numbers = {"rules": rules, "table": answer.table, "notes": answer.notes}
        page = Report(
            question,
            command,
            self.settings,
            findings,
            lead,
            charts,
            sentences,
            answer.levels,
            closing=[made_by(command)],
            content=numbers | outcome.content,
            tables={"transfer.csv": answer.table},
        ).write(directory)
        show(lead, lead, *answer.told(lead), *outcome.remarks, f"Report: {page}")
        return 0

    def _fit(self) -> tuple[Path, _Outcome]:
        """Answer from a table of runs; with --at the advice for one training is the verdict."""
        from nfd.laws.rate_law import RateLaw
        from nfd.laws.rate_runs import fit_rate_law
        from nfd.laws.transfer import rates_of

        directory = self.directory()
        target = named("--at", "such as parameters=7B tokens=4T batch=4M", self.at, as_number)
        scaled = named("--scaled", "such as batch=0.5 tokens=-0.5", self.scaled, as_number) or None
        answer: Transfer | RateLaw = rates_of(
            self.log, self.named_columns(), self.guess, rule=self.rule, scaled=scaled
        )
        for name in target:
            check_choice("--at", name, ("parameters", "tokens", "batch"))
        if isinstance(answer, RateLaw):
            self._refuse(("guess",), "width and depth; this one has parameters, tokens or batch")
        elif not target:
            self._refuse(
                ("rule", "scaled"), "parameters, tokens or batch; this one has width and depth"
            )
        if not target:
            return directory, _Outcome(answer, [answer.about])
        law = answer
        if not isinstance(law, RateLaw):
            law = fit_rate_law(
                self.log, columns=self.named_columns(), rule=self.rule, scaled=scaled
            )
        best = law.at(**target)
        advice = {
            "advised": best.advised,
            "best": best.rate.limits,
            "excess": best.excess.limits,
            "diverges": best.diverges,
        }
        verdict = f"At {' '.join(self.at)}: {best}"
        return directory, _Outcome(answer, [answer.about], {"at": target | advice}, verdict)

    def _has(self, name: str) -> bool:
        """Whether an option without a default was given."""
        return getattr(self, name) not in ((), None)

    def _refuse(self, names: tuple[str, ...], tables: str) -> None:
        """Refuse options that only an answer from other tables reads."""
        for name in names:
            if self._has(name):
                raise InputError(f"--{name} is for tables of {tables}. Leave --{name} out.")

    def _train(self) -> tuple[Path, _Outcome]:
        """Answer by training the family of the file."""
        from nfd.experiments.transfer import transfer

        for name in ("at", "columns", "guess", "scaled"):
            if self._has(name):
                raise InputError(f"--{name} is for a table of runs: pass it with --from runs.csv.")
        setup = self.read_setup()
        directory = self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        axes = named("--axes", "numbers such as batch_size=16,32", self.axes, as_numbers)
        with self.sweep(directory) as sweep:
            answer = transfer(
                family,
                setup.task,
                self.widths,
                self.depths,
                self.lr,
                rules=self.rules,
                seeds=self.seeds,
                axes=axes or None,
                halving=self.halving,
                sweep=sweep,
            )
        # What was trained, for nfd plan --from; a log does not say it.
        trained = {"model": family.name, "optimizer": family.optimizer, "base": family.base}
        return directory, _Outcome(answer, self.stored(sweep), trained)
