"""The commands ``nfd paper study``, ``nfd paper figure`` and ``nfd paper claims``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nfd.core import (
    INTERRUPTED,
    Answer,
    InputError,
    expanded,
    json_option,
    nearest,
    option,
    prepare_directory,
    prepare_results,
    print_answer,
    quiet_option,
    verbose_option,
)
from nfd.paper.settings import DataConfig, FigureConfig, StudyConfig

if TYPE_CHECKING:
    from nfd import Sweep


@dataclass(frozen=True)
class Options(DataConfig):
    """Options of a command beside the settings that decide its numbers."""

    out: str = option("out", "directory for the results", group="Results", is_path=True)
    executor: str = option(
        "processes",
        "where networks are trained: processes, inline (this process), ray or slurm (clusters)",
        group="Computing",
    )
    workers: int | None = option(
        None, "number of processes; by default one for each core", group="Computing"
    )
    device: str = option("cpu", "where it computes: cpu, cuda", group="Computing")
    verbose: bool = verbose_option()
    quiet: bool = quiet_option()
    json: bool = json_option()

    kind: ClassVar[type[DataConfig]]  # the settings that decide the numbers

    def run(self, command: str) -> int:
        """Check the settings, prepare OUT, answer; returns the exit code.

        ``command`` is the line that asked.
        """
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self.kind)}
        config = self.kind(**settings)
        self.check_used()
        return self.answer(config, prepare_results(self.out), command)

    def check_used(self) -> None:
        """Raise InputError for options that have no part in what is asked."""

    def answer(self, config: Any, directory: Path, command: str) -> int:
        """Compute, write to ``directory``, print; returns the exit code."""
        raise NotImplementedError

    def sweep(self, directory: Path) -> Sweep:
        """The sweep in ``directory``."""
        from nfd import Sweep

        return Sweep(directory, self.workers, self.executor, self.device, not self.quiet)

    def say(self, text: str) -> None:
        """Print what is done while the command continues, where only the answer is not wanted."""
        if not self.quiet:
            print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def end(self, answer: Answer, page: Path | None) -> int:
        """Print an answer as the options say; returns the exit code."""
        return print_answer(
            answer, page, verbose=self.verbose, quiet=self.quiet, json_only=self.json
        )


@dataclass(frozen=True)
class StudyCommand(Options, StudyConfig):
    """Compare real networks with the limit of infinite width and depth, trained on real data.

    Example: nfd paper study --steps 30 --widths 64 256 1024

    Predicts how an infinitely wide and deep residual network trains, and trains real ones. Writes
    report.html, result.json, and every chart as PDF, PNG and CSV to OUT, and every network to
    OUT/runs.sqlite. When it is interrupted, what was measured by then is written, and the report
    says that it is partial; the same command continues from there.
    """

    out: str = option("out/study", "directory for the results", group="Results", is_path=True)

    kind = StudyConfig

    def answer(self, config: StudyConfig, directory: Path, command: str) -> int:
        from nfd.paper.findings import findings
        from nfd.paper.study import Study
        from nfd.paper.study_answer import study_answer, study_page

        study = Study(config, device=self.device)
        try:
            study.measure(self.sweep(directory))
        except KeyboardInterrupt:
            if not study.measured.seconds:
                raise
        measured = findings(study)
        answer = study_answer(study, measured, command)
        page = None
        # The answer is shown even where it cannot be written.
        try:
            page = study_page(study, measured, command).write(directory)
        finally:
            code = self.end(answer, page)
        if study.measured.complete:
            return code
        print(
            "nfd: interrupted; the report says that it is partial. The same command continues.",
            file=sys.stderr,
        )
        return INTERRUPTED


@dataclass(frozen=True)
class _OfFigures(Options, FigureConfig):
    """Options that figures and claims share: they keep their networks in one place."""

    store: str | None = option(
        None, "directory of the trained networks; by default OUT", group="Results", is_path=True
    )

    kind = FigureConfig

    def runs_in(self, directory: Path) -> Sweep:
        """The sweep in STORE, by default in ``directory``."""
        return self.sweep(prepare_directory(self.store or directory))


@dataclass(frozen=True)
class FigureCommand(_OfFigures):
    """Draw figures of the paper, every panel, from networks trained here.

    Example: nfd paper figure 4 --size smoke

    Writes report.html and result.json of the figures asked for, a page of each, and every panel as
    PDF, PNG and CSV to OUT. It can be stopped at any time: the same command continues from there,
    and drawing again trains nothing.
    """

    number: Literal["1", "2", "3", "4", "5", "6", "7", "all"] = option(
        "all", "which figure, or all", place="FIGURE", group="Question"
    )
    out: str = option("out/figures", "directory for the results", group="Results", is_path=True)

    def answer(self, config: FigureConfig, directory: Path, command: str) -> int:
        from nfd.paper.claims.table import ids_of
        from nfd.paper.figures import FIGURES
        from nfd.paper.figures.figure import dataset_for, findings, trained
        from nfd.paper.pages import write_figure, write_figures

        figures = list(FIGURES.values()) if self.number == "all" else [FIGURES[self.number]]
        drawn = []
        dataset = dataset_for(config)
        with self.runs_in(directory) as sweep:
            for figure in figures:
                panels = findings(figure, trained(figure, config, sweep, self.say), dataset)
                section = write_figure(
                    config, figure, panels, dataset.title, directory, ids_of(figure.name)
                )
                drawn.append((figure, panels, section))
        return self.end(*write_figures(config, drawn, dataset.title, directory, command))


@dataclass(frozen=True)
class ClaimsCommand(_OfFigures):
    """Judge the paper's statements, each by a measurement with its interval.

    Example: nfd paper claims --only fig4 --size smoke

    Reads the networks of the figures from STORE, trains those that are missing, and writes
    report.html, result.json and a chart to OUT.
    """

    out: str = option("out/claims", "directory for the results", group="Results", is_path=True)
    store: str | None = option(
        None,
        "directory of trained networks, such as nfd paper figure's OUT; by default OUT",
        group="Results",
        is_path=True,
    )
    only: tuple[str, ...] = option(
        (),
        "judge these alone, by id or figure such as fig5; trains only what they need",
        group="Question",
    )

    def check_used(self) -> None:
        from nfd.paper.claims.table import CLAIMS, chosen

        unknown = [name for name in self.only if not chosen([name])]
        if unknown:
            close = nearest(unknown[0], [claim.id for claim in CLAIMS])
            raise InputError(
                "--only takes ids of statements, their beginnings, or figures such as fig5; got "
                f"{', '.join(unknown)}."
                f'{close} The page "Which statements of the paper hold?" of the documentation '
                "lists all."
            )
        if self.store is not None and not (expanded(self.store) / "runs.sqlite").exists():
            raise InputError(
                f"--store {self.store!r} holds no networks. Name the OUT of nfd paper figure, or "
                "drop it."
            )

    def answer(self, config: FigureConfig, directory: Path, command: str) -> int:
        from nfd.paper.claims.table import chosen, evidence_for
        from nfd.paper.pages import write_claims

        with self.runs_in(directory) as sweep:
            evidence = evidence_for(config, sweep, self.say)
            rows = [claim.row(evidence) for claim in chosen(self.only)]
        return self.end(*write_claims(config, rows, evidence.dataset.title, directory, command))
