"""``nfd capacity``: how big should it be?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import tyro

from nfd.cli.ending import VERDICT
from nfd.cli.logs import LogConfig, LogOptions
from nfd.cli.options import PAGE, ModelOptions, Options, charts, printed
from nfd.cli.runs import chosen
from nfd.cli.sweeping import ExecutorOptions, SweepOptions
from nfd.core.errors import UsageError
from nfd.questions.sweep_settings import CapacityConfig, ModelCapacityConfig
from nfd.runs.config import Config

if TYPE_CHECKING:
    from nfd.questions.capacity import Capacity
    from nfd.questions.capacity_answers import Answers
    from nfd.report.report import Report

_LIMIT = ("limit_width", "replicates")
_OF_LOG = ("width", "depth", "parameters", "flops")  # asked of a log
_OF_STORED = ("width", "depth", "parameters", "memory", "flops", "held_out", "hold_out", *_LIMIT)  # asked of runs


class CapacityPage(Options):
    """The page of a capacity."""

    out: str = "out/capacity"
    """directory for the results"""

    def files(self) -> list[str]:
        return [*PAGE, *charts("ceiling", "map", "horizon", "stability")]

    def report(self, answers: Answers, config: Config, command: str, runs: str, more: Sequence[str] = ()) -> Report:
        """The page; ``runs`` is the directory that holds them, ``more`` stands below the sentences."""
        from nfd.questions.capacity_findings import capacity_findings
        from nfd.report.report import Report, made_by

        return Report(
            "How big should it be?",
            command,
            config,
            capacity_findings(answers),
            [*answers.sentences, *more],
            closing=[made_by(command, f"Every run of the fit: nfd runs {runs}")],
            content={"store": runs, **answers.result},
        )

    def conclude(self, report: Report, answers: Answers, directory: Path) -> int:
        """Write the page and print what stands on top of it."""
        page = report.write(directory, self.files())
        print(*report.answers, f"Report: {page}", *printed(report.next_steps), sep="\n")
        return 0 if answers.capacity.law.good else VERDICT


class ModelCapacityCommand(CapacityPage, ModelOptions, ExecutorOptions, ModelCapacityConfig):
    """Fit loss(n, L) = floor + a/n + b/L to your own networks: what growing them buys, and the best size for a budget.

    Without a constructor the command trains the paper's networks: see nfd capacity --help. Writes report.html,
    result.json, config.toml and charts to OUT, and every run to OUT/runs.sqlite. It can be stopped at any time: the
    same command continues from there.
    """

    def answer(self, config: ModelCapacityConfig, directory: Path, command: str) -> int:
        from nfd.questions.capacity_answers import answers_of
        from nfd.questions.model_sweeps import capacity_of_model
        from nfd.questions.next_steps import NextSteps

        executor = self.chosen_executor
        capacity, data = capacity_of_model(config, self.model, out=directory, executor=executor, device=self.device)
        answers = answers_of(config, capacity)
        steps = NextSteps(self.model, self.device, self.out).after_capacity(config, answers)
        report = self.report(answers, config, command, self.out, [f"{self.model}, {data}. {capacity.about}"])
        content = {**report.content, "model": self.model}
        return self.conclude(replace(report, next_steps=steps, content=content), answers, directory)


class CapacityCommand(CapacityPage, SweepOptions, LogOptions, CapacityConfig):
    """Fit loss(n, L) = floor + a/n + b/L to a sweep, and say what growing a network buys and what the best size is.

    With the directory of a sweep it fits the runs there, with --from a table of runs of any framework; otherwise it
    trains a sweep of its own, which can be stopped at any time. Writes report.html, result.json, config.toml and charts
    to OUT.

    Your own networks: nfd capacity package.module:make_model, whose options nfd capacity package.module:make_model
    --help lists.
    """

    store: tyro.conf.Positional[str] = ""
    """directory of a sweep over width, depth and seed; by default networks are trained"""
    where: tuple[str, ...] = ()
    """settings that its runs must have, such as horizon=1.0 rule=mup"""
    rate: str | None = None
    """with --from: the learning rate whose runs count, or best: at each size the one with the lowest mean loss"""

    of_models: ClassVar[type[Options] | None] = ModelCapacityCommand

    def check_used(self, config: CapacityConfig) -> None:
        self.check_log(config, (*_OF_LOG, "rate"))
        if self.rate is not None and not self.log:
            raise UsageError(f"--rate chooses runs of a log; got {self.rate} without --from.")
        if not self.store and self.where:
            raise UsageError(f"--where chooses runs of a sweep; got {' '.join(self.where)} without its directory.")
        if not self.store:
            return
        unused = config.changed(*(name for name in CapacityConfig.model_fields if name not in _OF_STORED))
        if not config.hold_out:  # nothing is trained
            unused += self.changed(*(name for name in SweepOptions.model_fields if name not in Options.model_fields))
        if unused:
            raise UsageError(
                f"the runs in {self.store!r} have settings of their own; got {', '.join(unused)}, which would change "
                "nothing. Drop it, choose runs with --where, or leave out the directory to train new networks."
            )

    def answer(self, config: CapacityConfig, directory: Path, command: str) -> int:
        from nfd.questions.capacity_answers import answers_of
        from nfd.report.report import made_by

        capacity = self._fitted(config, directory)
        answers, settings = answers_of(config, capacity), self._settings(config, capacity)
        if self.log:
            report = self.report(answers, settings, command, self.log, [capacity.about, *capacity.notes])
            return self.conclude(replace(report, closing=[made_by(command)]), answers, directory)
        return self.conclude(self.report(answers, settings, command, self.store or self.out), answers, directory)

    def _settings(self, config: CapacityConfig, capacity: Capacity) -> Config:
        """The settings that repeat the answer: a stored sweep has its own."""
        if self.log:
            return LogConfig(log=self.log, columns=self.columns)
        return capacity.horizons.base if self.store and capacity.horizons else config

    def _fitted(self, config: CapacityConfig, directory: Path) -> Capacity:
        """The law of the logged or stored runs, or of a sweep that is trained here."""
        from nfd.questions.capacity_logs import fit_capacity
        from nfd.questions.capacity_sweep import capacity_of_records, capacity_of_sweep
        from nfd.store.store import Store

        if self.log:
            return fit_capacity(self.log, columns=self.named_columns(), rate=self.rate)
        if not self.store:
            with self.sweep(directory) as sweep:
                return capacity_of_sweep(config, sweep)
        with Store.read(self.store) as store:
            records = store.records(chosen(self.where))
        with self.sweep(directory) as sweep:
            return capacity_of_records(records, config, sweep)
