"""``nfd paper figure``: the figures of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nfd.core import InputError, expanded, option, prepare_directory
from nfd.paper.commands.options import Options
from nfd.paper.settings import FigureConfig


@dataclass(frozen=True)
class PaperOptions(Options, FigureConfig):
    """Options that the commands of the paper share: they keep its networks in one place."""

    store: str | None = option(None, "directory of the trained networks; by default OUT")

    kind = FigureConfig

    def kept(self) -> list[str]:
        """Patterns of the files in OUT that stay beside those that are written."""
        return ["figure-*.html"]

    def check_used(self, config: FigureConfig) -> None:
        from nfd.paper.earlier import clash

        if mixed := clash(config, expanded(self.out), self.kept()):
            raise InputError(f"{mixed} Give another --out DIR.")

    def warn(self, config: FigureConfig) -> None:
        """Print a sentence where nothing of what the paper says is shown."""
        for sentence in config.warnings:
            say(sentence)

    def runs_in(self, directory: Path) -> Path:
        return prepare_directory(self.store or directory)


@dataclass(frozen=True)
class FigureCommand(PaperOptions):
    """Draw figures of the paper, every panel, from networks trained here.

    Writes report.html, result.json, a page for each figure and every panel as PDF, PNG and CSV to OUT. It
    can be stopped at any time: the same command continues from there, and drawing again trains nothing.
    """

    number: Literal["1", "2", "3", "4", "5", "6", "7", "all"] = option("all", "which figure, or all", place="FIGURE")
    out: str = option("out/figures", "directory for the results")

    def answer(self, config: FigureConfig, directory: Path, command: str) -> int:
        from nfd.paper.claims.table import ids_of
        from nfd.paper.figures import FIGURES
        from nfd.paper.figures.beside_captions import beside_captions
        from nfd.paper.figures.making import dataset_for, findings, is_trained, trained
        from nfd.paper.pages import write_figure, write_figures

        drawn, dataset, runs = [], dataset_for(config), {}
        with self.sweep(self.runs_in(directory)) as sweep:
            for number, figure in FIGURES.items():
                wanted = self.number in (number, "all")
                there = (directory / f"{figure.name}.html").exists()
                if not wanted and not (there and is_trained(figure, config, sweep)):
                    continue
                runs[number] = trained(figure, config, sweep, say)
                panels = findings(figure, runs[number], dataset)
                drawn.append(
                    (panels, write_figure(config, figure, panels, dataset.title, directory, ids_of(figure.name)))
                )
                for finding in panels if wanted else ():
                    say(f"{finding.name}: {finding.headline}")
        self.warn(config)
        beside = beside_captions(runs, len(dataset.train))
        print(f"Report: {write_figures(config, drawn, beside, dataset.title, directory, command)}")
        return 0


def say(text: str) -> None:
    """Print at once, while the command continues."""
    print(text, flush=True)
