"""``nfd figure``: the figures of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from nfd.cli.sweeping import SweepOptions, resumable
from nfd.experiment.sweep_settings import FigureConfig

if TYPE_CHECKING:
    pass


class FigureCommand(SweepOptions, FigureConfig):
    """Draw figures of the paper: every panel, from networks trained here.

    Writes report.html, result.json, config.toml, a page for each figure and every panel as PDF, PNG and CSV to OUT. It
    can be stopped at any time: the same command goes on from there, and drawing again trains nothing.
    """

    number: tyro.conf.Positional[Literal["1", "2", "3", "4", "5", "6", "7", "all"]] = "all"
    """which figure, or all"""
    out: str = "out/figures"
    """directory for the results"""
    store: str | None = None
    """directory of the trained networks; by default OUT"""

    def run(self, command: str) -> int:
        """Check, train what is missing, draw, print."""
        config = self.settings(FigureConfig)
        from nfd.core.files import prepare_directory

        directory = prepare_directory(self.out)
        store = directory if self.store is None else prepare_directory(self.store)
        return resumable(store, lambda: self._drawn(config, directory, store, command))

    def _drawn(self, config: FigureConfig, directory: Path, store: Path, command: str) -> int:
        from nfd.report.figures import write_figure, write_figures

        drawn = []
        with self.sweep(store) as sweep:
            for number in self._wanted():
                figure, found, data = self._made(number, config, sweep)
                drawn.append((figure, found))
                write_figure(figure, found, data, directory)
                for finding in found:
                    print(f"{finding.name}: {finding.headline}")
        print(f"Report: {write_figures(config, drawn, data, directory, command)}")
        return 0
