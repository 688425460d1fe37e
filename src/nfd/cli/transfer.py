"""The command ``nfd transfer``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import LoggedCommand, as_number, as_numbers, named
from nfd.core.answer import Next
from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.options import again, option
from nfd.core.words import in_letters

if TYPE_CHECKING:
    from nfd.laws.rate_advice import BestRate
    from nfd.laws.rate_law import RateLaw
    from nfd.laws.transfer import Transfer
    from nfd.laws.transfer_answer import Advice
    from nfd.report.answer_page import AnswerPage


def _typed(size: float) -> str:
    """A number of parameters or tokens as one types it: ``7B`` or ``400000``."""
    return in_letters(size) if size >= 1e6 else f"{size:.0f}"


@dataclass(frozen=True)
class _Outcome:
    """An answer, and what the page and the terminal say besides.

    Attributes:
        shown: the answer; the advice for one training stands in place of its law.
        about: the model or the table, for the line above the answer.
        remarks: what is printed after the answer, with ``--verbose``.
        content: what ``result.json`` has besides.
    """

    shown: Transfer | RateLaw | BestRate
    about: str
    remarks: list[str]
    content: dict[str, Any] = field(default_factory=dict)


@dataclass
class TransferCommand(LoggedCommand):
    """Find the best learning rate at every size under each rule, and what it costs to tune small.

    Example: nfd transfer setup.py --widths 64 256 --rules standard complete-p

    Writes report.html, result.json, tables and charts to OUT, and every run to
    OUT/runs.sqlite; the same command continues after a stop. With --from it answers from a table of
    runs: nfd transfer --from runs.csv.
    """

    name = "transfer"

    lr: tuple[float, ...] | None = option(
        None,
        "a grid of rates for every size; without one, trainings go where they decide",
        group="Training",
    )
    seeds: int | None = option(
        None,
        "of the largest network at most, 12; with --lr of every network, 3",
        group="Sizes",
    )
    budget: int | None = option(None, "trainings at most, without --lr", group="Training")
    drift: bool = option(
        False, "train the sizes between, too; with --lr they always are", group="Training"
    )
    rules: tuple[str, ...] | None = option(
        None,
        "rules to compare, of those of --rule; by default standard beside that of the family",
        group="Training",
    )
    axes: tuple[str, ...] = option(
        (),
        "settings to vary too, such as batch_size=16,32,64; also steps, weight_decay, init_scale",
        group="Training",
    )
    halving: bool = option(False, "goes in 0.5", group="Training")
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
        from nfd.laws.transfer import Transfer

        directory, outcome = self._fit() if self.log else self._train()
        if isinstance(outcome.shown, Transfer):
            page = self._page_of_transfer(outcome.shown, outcome, command)
        else:
            page = self._page_of_law(outcome.shown, outcome, command)
        path = page.write(directory)
        return self.end(page.answer, path, *outcome.remarks)

    def _page_of_transfer(self, transfer: Transfer, outcome: _Outcome, command: str) -> AnswerPage:
        """The page of best rates over width and depth."""
        from nfd.experiments.transfer_findings import result
        from nfd.laws.transfer_page import curves, sections
        from nfd.report.answer_page import AnswerPage

        answer = transfer.answer
        about = f"nfd transfer · {outcome.about} · {answer.about}"
        advice = transfer.decided.advice
        following = None
        if advice is not None:
            kept = "; yours are kept" if advice.continues else ""
            following = Next(f"{advice.label}{kept}", self._in_shell(advice, command))
        losses = curves(transfer)
        content = {
            "rules": result(transfer.rules),
            "table": transfer.table,
            "notes": transfer.notes,
            "curves": losses,
        }
        return AnswerPage(
            replace(answer, about=about, next=following),
            command,
            self.settings,
            sections(transfer),
            content=content | outcome.content,
            tables={"transfer.csv": transfer.table, "curves.csv": losses},
        )

    def _in_shell(self, advice: Advice, command: str) -> str:
        """Write an advice as a command."""
        if not advice.verb:
            written = command
            for option_name, values in advice.options.items():
                written = again(written, option_name, *values)
            return written
        options = dict(advice.options)
        if advice.verb == "plan" and not self.log:
            # The answer also knows the base of a family, and the optimizer.
            del options["--base"], options["--lr"]
            options["--from"] = (self.out or f"out/{self.name}",)
        words = ["nfd", advice.verb, self.setup or "setup.py"]
        for option_name, values in options.items():
            words += [option_name, *map(str, values)]
        return shlex.join(words)

    def _page_of_law(
        self, shown: RateLaw | BestRate, outcome: _Outcome, command: str
    ) -> AnswerPage:
        """The page of a law of the best rate, or of the advice for one training."""
        from nfd.laws.rate_advice import BestRate
        from nfd.laws.rate_law_page import curve_of, sections
        from nfd.report.answer_page import AnswerPage

        answer = shown.answer
        law = shown.law if isinstance(shown, BestRate) else shown
        if law is None:
            raise RuntimeError("the advice for a training has no law")
        following = self._after_law(shown, command)
        content = {"rules": [], "table": law.table, "notes": law.notes, "curves": curve_of(shown)}
        return AnswerPage(
            replace(answer, about=f"nfd transfer · {outcome.about}", next=following),
            command,
            self.settings,
            sections(shown),
            content=content | outcome.content,
            tables={"transfer.csv": law.table},
        )

    def _after_law(self, shown: RateLaw | BestRate, command: str) -> Next | None:
        """What to run after an answer about a law: its advice as a command."""
        from nfd.laws.rate_advice import BestRate
        from nfd.laws.rate_answer import can_forecast, further

        following = shown.answer.next
        if following is None:
            return None
        if not isinstance(shown, BestRate):
            asked = [f"{name}={_typed(size)}" for name, size in further(shown).items()]
            return Next(following.label, again(command, "--at", *asked))
        if shown.answer.tone == "open":
            return Next(following.label, command)
        if shown.law is None or not can_forecast(shown.law):
            return following
        columns = ["--columns", *self.columns] if self.columns else []
        words = ["nfd", "scaling-law", "--from", self.log, *columns, "--rate", "best"]
        label = f"Next: train it, add its row to {Path(self.log).name}, then"
        return Next(label, shlex.join(words))

    def _fit(self) -> tuple[Path, _Outcome]:
        """Answer from a table of runs; with --at the advice for one training is the verdict."""
        from nfd.laws.rate_law import RateLaw
        from nfd.laws.rate_runs import fit_rate_law
        from nfd.laws.transfer import rates_of

        self.refuse_unread("rule", "guess", "at", "scaled")
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
            return directory, _Outcome(answer, Path(self.log).name, [answer.about])
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
        content = {"at": target | advice}
        return directory, _Outcome(best, Path(self.log).name, [law.about], content)

    def _refuse(self, names: tuple[str, ...], tables: str) -> None:
        """Refuse options that only an answer from other tables reads."""
        for name in names:
            if self.has(name):
                raise InputError(f"--{name} is for tables of {tables}. Leave --{name} out.")

    def _train(self) -> tuple[Path, _Outcome]:
        """Answer by training the family of the file."""
        from nfd.experiments.transfer import transfer

        self.refuse_without_table("at", "columns", "guess", "scaled")
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
                budget=self.budget,
                drift=self.drift,
                axes=axes or None,
                halving=self.halving,
                sweep=sweep,
            )
        # What was trained, for nfd plan --from; a log does not say it.
        trained = {"model": family.name, "optimizer": family.optimizer, "base": family.base}
        about = f"{family.name.rpartition(':')[2]} in {Path(self.setup).name}"
        return directory, _Outcome(answer, about, self.stored(sweep), trained)
