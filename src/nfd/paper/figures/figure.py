"""Figures: the runs that one is made from, at three sizes; how they are trained and read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nfd import Sweep
from nfd.core import Finding
from nfd.data import Dataset
from nfd.paper.runs import (
    RunConfig,
    data_settings,
    dataset_of,
    grid,
    initial_seed,
    run_all,
    steps_of,
    trial_of,
)
from nfd.paper.settings import FigureConfig, Preset
from nfd.store import Record

Settings = Mapping[str, Any]
Parts = Mapping[str, Settings]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        name: such as "figure-1".
        title: what it asks.
        parts: for each size, the grids by name, where a list is an axis. ``epochs`` stands for the
            steps that make so many passes over the training part, ``seeds`` for a list of that many
            seeds, ``apart`` for seeds that no other part has, ``looks`` for so many looks at the
            test part.
        reduce: runs by part, and what they were trained on, to one finding per panel.
        answer: the panel that answers what it asks.
    """

    name: str
    title: str
    parts: Mapping[Preset, Parts]
    reduce: Callable[[Mapping[str, Runs], DataSummary], list[Finding]]
    answer: str = ""

    def grids(
        self, size: Preset, data: Settings, dataset: Dataset, seed: int = 0
    ) -> dict[str, list[RunConfig]]:
        """Return the runs of every part."""
        return {
            name: grid(**_settings(part, dataset, seed), **data)
            for name, part in self.parts[size].items()
        }


def _settings(part: Settings, dataset: Dataset, seed: int) -> dict[str, Any]:
    """Return settings of ``RunConfig``, from those of a part."""
    settings = dict(part)
    batch = min(settings.get("batch", 16), len(dataset.train))
    seeds = settings.pop("seeds")
    epochs = settings.pop("epochs", None)
    looks = settings.pop("looks", None)
    first = settings.pop("apart", 0)
    if epochs is not None:
        settings["steps"] = steps_of(epochs, len(dataset.train), batch)
    if looks is not None:
        settings["every"] = max(1, settings["steps"] // looks)
    settings["batch"] = batch
    settings["seed"] = [initial_seed(seed, first + k) for k in range(seeds)]
    return settings


def everywhere(
    shared: Settings, sizes: Mapping[Preset, Mapping[str, Settings]]
) -> dict[Preset, dict[str, Settings]]:
    """Return the parts of each size, with the settings that all share."""
    complete: dict[Preset, dict[str, Settings]] = {}
    for size, parts in sizes.items():
        complete[size] = {name: {**shared, **part} for name, part in parts.items()}
    return complete


# ---- From a figure to its findings, by way of a sweep: what is stored is not trained again


def dataset_for(config: FigureConfig) -> Dataset:
    """Return the data that a configuration names."""
    return dataset_of(RunConfig(**data_settings(config)))


def trained(
    figure: Figure,
    config: FigureConfig,
    sweep: Sweep,
    say: Callable[..., object],
    parts: Sequence[str] = (),
) -> dict[str, Runs]:
    """Return the runs of these parts of a figure, by default of all.

    Those that are not stored are trained.

    Args:
        say: gets how many there are to train.
    """
    dataset = dataset_for(config)
    grids = figure.grids(config.size, data_settings(config), dataset, config.seed)
    wanted = {name: grid for name, grid in grids.items() if not parts or name in parts}
    trials = [trial_of(run) for run in itertools.chain(*wanted.values())]
    missing = sweep.missing(trials)
    if missing:
        say(f"{figure.name}: {missing} of {len(trials)} networks to train on {dataset.title}")
    return {name: Runs(records) for name, records in run_all(sweep, wanted, figure.name).items()}


def findings(figure: Figure, runs: Mapping[str, Runs], dataset: Dataset) -> list[Finding]:
    """Return the panels of a figure, with the data in their titles."""
    panels = figure.reduce(runs, DataSummary(dataset.title, len(dataset.classes)))
    return [replace(panel, title=f"{panel.title} ({dataset.title})") for panel in panels]


# ---- Runs with their curves, as what figures and claims are read from


@dataclass(frozen=True)
class DataSummary:
    """What runs were trained on: its title, and the number of classes C."""

    title: str
    classes: int


class Runs:
    """Some runs, in order; every vector ``[runs, ...]``, not-a-number where a run has none."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def by(self, *names: str) -> dict[Any, Runs]:
        """Group the runs by the values of these settings, in the order in which they come.

        Keys are tuples of values, or single values for one setting.
        """
        groups: dict[Any, list[Record]] = {}
        for record in self.records:
            values = tuple(record.config[name] for name in names)
            key = values[0] if len(names) == 1 else values
            groups.setdefault(key, []).append(record)
        return {key: Runs(records) for key, records in groups.items()}

    def where(self, **settings: Any) -> Runs:
        """Return the runs with these settings."""

        def has_settings(record: Record) -> bool:
            return all(record.config[name] == value for name, value in settings.items())

        return Runs([record for record in self.records if has_settings(record)])

    def values(self, name: str) -> list[Any]:
        """Return the different values of a setting, in order."""
        return list(dict.fromkeys(record.config[name] for record in self.records))

    def metric(self, name: str) -> Tensor:
        """Return a number of every run, ``[runs]``."""
        return torch.tensor([record.metrics[name] for record in self.records], dtype=torch.float64)

    def curve(self, name: str) -> Tensor:
        """Return a vector of every run, ``[runs, ...]``; what a run lacks is not-a-number."""
        vectors = [
            torch.as_tensor(record.curves[name]).double()
            for record in self.records
            if name in record.curves
        ]
        blank = torch.full_like(max(vectors, key=len), torch.nan)
        return torch.stack([_padded(record.curves.get(name), blank) for record in self.records])

    @property
    def configs(self) -> list[RunConfig]:
        """The settings of every run."""
        return [RunConfig(**record.config) for record in self.records]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


def _padded(values: Any, blank: Tensor) -> Tensor:
    """Pad the vector of a run that ended early, or that has none."""
    padded = blank.clone()
    if values is not None:
        padded[: len(values)] = torch.as_tensor(values).double()
    return padded
