"""``nfd transfer``: does the best learning rate transfer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nfd.cli.logs import LogConfig, LogOptions
from nfd.cli.options import PAGE, ModelOptions, Options, charts, printed
from nfd.cli.sweeping import ExecutorOptions, SweepOptions
from nfd.core.errors import UsageError
from nfd.questions.sweep_settings import ModelTransferConfig, TransferConfig
from nfd.runs.config import Config

if TYPE_CHECKING:
    from nfd.questions.transfer import Transfer
    from nfd.report.report import Report


class TransferPage(Options):
    """The page of a transfer."""

    out: str = "out/transfer"
    """directory for the results"""

    def files(self) -> list[str]:
        return [*PAGE, "transfer.csv", *charts("depth", "width", "rate-*", "loss-*")]

    def report(self, transfer: Transfer, config: Config, command: str, more: Sequence[str] = ()) -> Report:
        """The page; ``more`` stands below the sentences on the rules."""
        from nfd.questions.transfer_findings import result, sentence, table, transfer_findings
        from nfd.report.report import Report, made_by

        lines = table(transfer.rules)
        return Report(
            "Is the best learning rate of a small network that of a large one?",
            command,
            config,
            transfer_findings(transfer),
            [*map(sentence, transfer), *transfer.along_settings, *more, *transfer.warnings],
            lines,
            closing=[made_by(command)],
            content={"rules": result(transfer.rules), "warnings": transfer.warnings},
            tables={"transfer.csv": lines},
        )

    def advise(self, report: Report, transfer: Transfer, directory: Path) -> int:
        """Write the page of networks that were trained here, and print the verdicts and what to do."""
        from nfd.questions.recommendation import recommended
        from nfd.questions.transfer_findings import advice, sentence
        from nfd.report.report import made_by

        advised = recommended(transfer.rules)
        page = replace(
            report,
            answers=[*report.answers, str(advised)],
            closing=[made_by(report.command, f"Every run: nfd runs {directory}")],
            content={**report.content, "recommendation": advice(advised)},
        ).write(directory, self.files())
        print(transfer.levels)
        for answer in transfer:
            print(sentence(answer) if answer.regret is None else f"{answer.verdict}  {sentence(answer)}")
        told = [*transfer.along_settings, *(f"Warning: {warning}" for warning in transfer.warnings)]
        print(*(f"{line}\n" for line in told), sep="", end="")
        print(f"Report: {page}", advised, *printed(report.next_steps), sep="\n")
        return 0


class ModelTransferCommand(TransferPage, ModelOptions, ExecutorOptions, ModelTransferConfig):
    """Find the best learning rate of your own networks at every width and depth, and what it costs to tune small.

    Without a constructor the command trains the paper's networks: see nfd transfer --help. Writes report.html,
    result.json, transfer.csv, config.toml and charts to OUT, and every run to OUT/runs.sqlite. It can be stopped at any
    time: the same command continues from there.
    """

    def answer(self, config: ModelTransferConfig, directory: Path, command: str) -> int:
        from nfd.questions.model_sweeps import transfer_of_model
        from nfd.questions.next_steps import NextSteps

        executor = self.chosen_executor
        transfer, data = transfer_of_model(config, self.model, out=directory, executor=executor, device=self.device)
        steps = NextSteps(self.model, self.device, self.out).after_transfer(config, transfer)
        report = self.report(transfer, config, command, [f"{self.model}, {data}."])
        content = {**report.content, "model": self.model}
        return self.advise(replace(report, next_steps=steps, content=content), transfer, directory)


class TransferCommand(TransferPage, SweepOptions, LogOptions, TransferConfig):
    """Find the best learning rate at every width and depth under each rule, and what it costs to tune small.

    Writes report.html, result.json, transfer.csv, config.toml and charts to OUT, and every run to OUT/runs.sqlite. It
    can be stopped at any time: the same command continues from there. With --from it answers from a table of runs.

    Your own networks: nfd transfer package.module:make_model, whose options nfd transfer package.module:make_model
    --help lists.
    """

    guess: float | None = None
    """with --from: the loss that a run that diverged counts as, such as the logarithm of the vocabulary"""
    config: str | None = None
    """TOML file of settings, or the name of a ready one: cifar10, fig5-row2 (the paper's), deep (to depth 256)"""

    ready: ClassVar[str] = "transfer"
    of_models: ClassVar[type[Options] | None] = ModelTransferCommand

    def check_used(self, config: TransferConfig) -> None:
        self.check_log(config, ["guess"])
        if self.guess is not None and not self.log:
            raise UsageError(f"--guess is about the losses of a log; got {self.guess:g} without --from.")

    def answer(self, config: TransferConfig, directory: Path, command: str) -> int:
        if self.log:
            return self._from_log(directory, command)
        from nfd.questions.transfer_sweep import transfer_of_sweep

        with self.sweep(directory) as sweep:
            transfer = transfer_of_sweep(config, sweep)
        return self.advise(self.report(transfer, config, command), transfer, directory)

    def _from_log(self, directory: Path, command: str) -> int:
        from nfd.questions.transfer_findings import sentence
        from nfd.questions.transfer_logs import fit_transfer

        transfer = fit_transfer(self.log, columns=self.named_columns(), guess=self.guess)
        more = [transfer.about, *transfer.notes]
        config = LogConfig(log=self.log, columns=self.columns)
        page = self.report(transfer, config, command, more).write(directory, self.files())
        print(*map(sentence, transfer), *more, f"Report: {page}", sep="\n")
        return 0
