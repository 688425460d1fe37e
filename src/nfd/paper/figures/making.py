"""From a figure to its findings, by way of a sweep: what is stored is not trained again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nfd import Sweep
from nfd.core import Finding
from nfd.data import Dataset
from nfd.paper.figures.figure import Figure
from nfd.paper.figures.selection import DataSummary, Runs
from nfd.paper.runs import RunConfig, data_settings, dataset_of, run_all, trial_of
from nfd.paper.settings import FigureConfig


def dataset_for(config: FigureConfig) -> Dataset:
    """The data that a configuration names."""
    return dataset_of(RunConfig(**data_settings(config)))


def is_trained(figure: Figure, config: FigureConfig, sweep: Sweep) -> bool:
    """Whether every run of a figure is stored."""
    return not sweep.missing([trial_of(run) for grid in _grids(figure, config, sweep).values() for run in grid])


def trained(
    figure: Figure,
    config: FigureConfig,
    sweep: Sweep,
    say: Callable[[str], object] = lambda text: None,
    parts: Sequence[str] | None = None,
) -> dict[str, Runs]:
    """The runs of these parts of a figure, by default of all; those that are not stored are trained.

    Args:
        say: gets how many there are to train.
    """
    grids = {n: grid for n, grid in _grids(figure, config, sweep).items() if parts is None or n in parts}
    wanted = [c for configs in grids.values() for c in configs]
    if missing := sweep.missing([trial_of(run) for run in wanted]):
        say(f"{figure.name}: {missing} of {len(wanted)} networks to train on {dataset_for(config).title}")
    return {name: Runs(records) for name, records in run_all(sweep, grids, figure.name).items()}


def findings(figure: Figure, runs: Mapping[str, Runs], dataset: Dataset) -> list[Finding]:
    """The panels of a figure, with the data in their titles."""
    panels = figure.reduce(runs, DataSummary(dataset.title, len(dataset.classes)))
    return [replace(panel, title=f"{panel.title} ({dataset.title})") for panel in panels]


def _grids(figure: Figure, config: FigureConfig, sweep: Sweep) -> dict[str, list[RunConfig]]:
    dataset = dataset_for(config)
    return figure.grids(config.size, data_settings(config), dataset, config.seed)
