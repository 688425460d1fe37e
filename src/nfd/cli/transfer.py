"""``nfd transfer``: does the best learning rate transfer?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tyro

from nfd.cli.logs import LogConfig, LogOptions
from nfd.cli.options import PAGE, Options, charts
from nfd.cli.sweeping import ExecutorOptions, SweepOptions
from nfd.core.errors import UsageError
from nfd.questions.sweep_settings import ModelTransferConfig, TransferConfig
from nfd.runs.config import Config

if TYPE_CHECKING:
    from nfd.questions.transfer import Transfer


class TransferPage(Options):
    """The page of a transfer."""

    out: str = "out/transfer"
    """directory for the results"""

    def files(self) -> list[str]:
        return [*PAGE, "transfer.csv", *charts("depth", "width", "loss-*")]

    def advise(
        self, transfer: Transfer, config: Config, directory: Path, command: str, more: list[str], content: Any
    ) -> int:
        """Write the page of trained networks, and print the verdicts and what to do."""
        from nfd.questions.recommendation import recommended
        from nfd.questions.transfer_findings import advice, sentence

        advised = recommended(transfer.rules)
        how = [command, f"Every run: nfd runs {directory}"]
        content = {"recommendation": advice(advised), **content}
        page = self.page(transfer, [str(advised), *more], config, directory, how, content)
        for answer in transfer:
            print(f"{answer.verdict}  {sentence(answer)}")
        print(f"Report: {page}", advised, sep="\n")
        return 0

    def page(
        self, transfer: Transfer, more: list[str], config: Config, directory: Path, how: list[str], content: Any
    ) -> Path:
        """Write the page; ``more`` stands below the sentences on the rules."""
        from nfd.questions.transfer_findings import result, sentence, table, transfer_findings
        from nfd.report.report import Report, made_by

        lines = table(transfer.rules)
        return Report(
            "Is the best learning rate of a small network that of a large one?",
            how[0],
            config,
            transfer_findings(transfer),
            [*map(sentence, transfer), *more],
            lines,
            closing=[made_by(*how)],
            content={"rules": result(transfer.rules), **content},
            tables={"transfer.csv": lines},
        ).write(directory, self.files())


class ModelTransferCommand(TransferPage, ExecutorOptions, ModelTransferConfig):
    """Find the best learning rate of your own networks at every width and depth, and what it costs to tune small.

    Without a constructor the command trains the paper's networks: see nfd transfer --help. Writes report.html,
    result.json, transfer.csv, config.toml and charts to OUT, and every run to OUT/runs.sqlite. It can be stopped at any
    time: the same command goes on from there.
    """

    model: tyro.conf.Positional[str] = ""
    """package.module:make_model, a function of (width, depth) that returns a torch.nn.Module"""

    def answer(self, config: ModelTransferConfig, directory: Path, command: str) -> int:
        from nfd.questions.model_sweeps import transfer_of_model

        executor = self.chosen_executor()
        transfer, data = transfer_of_model(config, self.model, out=directory, executor=executor, device=self.device)
        return self.advise(transfer, config, directory, command, [f"{self.model}, {data}."], {"model": self.model})


class TransferCommand(TransferPage, SweepOptions, LogOptions, TransferConfig):
    """Find the best learning rate at every width and depth under each rule, and what it costs to tune small.

    Writes report.html, result.json, transfer.csv, config.toml and charts to OUT, and every run to OUT/runs.sqlite. It
    can be stopped at any time: the same command goes on from there. With --from it answers from a table of runs.

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
        return self.advise(transfer, config, directory, command, [], {})

    def _from_log(self, directory: Path, command: str) -> int:
        from nfd.questions.transfer_findings import sentence
        from nfd.questions.transfer_logs import fit_transfer

        transfer = fit_transfer(self.log, columns=self.named_columns(), guess=self.guess)
        more = [transfer.about, *transfer.notes]
        page = self.page(transfer, more, LogConfig(log=self.log, columns=self.columns), directory, [command], {})
        print(*map(sentence, transfer), *more, f"Report: {page}", sep="\n")
        return 0
