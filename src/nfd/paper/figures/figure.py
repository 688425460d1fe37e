"""What a figure is: the runs it is made from, at three sizes, and what is read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nfd.core import Finding
from nfd.data import Dataset
from nfd.paper.figures.selection import DataSummary, Runs
from nfd.paper.runs import RunConfig, grid, initial_seed, steps_of
from nfd.paper.settings import Preset

Settings = Mapping[str, Any]
Parts = Mapping[str, Settings]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        name: such as "figure-1". title: what it asks.
        parts: for each size, the grids by name, where a list is an axis. ``epochs`` stands for the
            steps that make so many passes over the training part, ``seeds`` for a list of that many seeds, ``apart``
            for seeds that no other part has, ``looks`` for so many looks at the test part.
        reduce: runs by part, and what they were trained on, to one finding per panel.
    """

    name: str
    title: str
    parts: Mapping[Preset, Parts]
    reduce: Callable[[Mapping[str, Runs], DataSummary], list[Finding]]

    def grids(self, size: Preset, data: Settings, dataset: Dataset, seed: int = 0) -> dict[str, list[RunConfig]]:
        """The runs of every part."""
        return {name: grid(**_settings(part, dataset, seed), **data) for name, part in self.parts[size].items()}


def _settings(part: Settings, dataset: Dataset, seed: int) -> dict[str, Any]:
    """Settings of ``RunConfig``, from those of a part."""
    settings = dict(part)
    batch, seeds = min(settings.get("batch", 16), len(dataset.train)), settings.pop("seeds")
    epochs, looked, first = settings.pop("epochs", None), settings.pop("looks", None), settings.pop("apart", 0)
    if epochs is not None:
        settings["steps"] = steps_of(epochs, len(dataset.train), batch)
    if looked is not None:
        settings["every"] = max(1, settings["steps"] // looked)
    return settings | {"batch": batch, "seed": [initial_seed(seed, first + k) for k in range(seeds)]}


def everywhere(shared: Settings, sizes: Mapping[Preset, Mapping[str, Settings]]) -> dict[Preset, dict[str, Settings]]:
    """The parts of each size, with the settings that all share."""
    return {size: {name: {**shared, **part} for name, part in parts.items()} for size, parts in sizes.items()}
