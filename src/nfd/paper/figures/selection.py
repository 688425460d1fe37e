"""Runs with their curves, as what figures and claims are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfd.paper.runs import RunConfig
from nfd.store import Record


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
        """The runs apart by the values of these settings, in the order in which they come; single values for one."""
        groups: dict[Any, list[Record]] = {}
        for record in self.records:
            values = tuple(record.config[name] for name in names)
            groups.setdefault(values[0] if len(names) == 1 else values, []).append(record)
        return {values: Runs(records) for values, records in groups.items()}

    def where(self, **settings: Any) -> Runs:
        """The runs with these settings."""
        return Runs([r for r in self.records if all(r.config[name] == value for name, value in settings.items())])

    def values(self, name: str) -> list[Any]:
        """The different values of a setting, in order."""
        return list(dict.fromkeys(record.config[name] for record in self.records))

    def metric(self, name: str) -> Tensor:
        """A number of every run, ``[runs]``."""
        return torch.tensor([record.metrics[name] for record in self.records], dtype=torch.float64)

    def curve(self, name: str) -> Tensor:
        """A vector of every run, ``[runs, ...]``."""
        vectors = [torch.as_tensor(record.curves[name]).double() for record in self.records if name in record.curves]
        blank = torch.full_like(max(vectors, key=len), torch.nan)
        return torch.stack([_padded(record.curves.get(name), blank) for record in self.records])

    @property
    def configs(self) -> list[RunConfig]:
        """Their settings."""
        return [RunConfig(**record.config) for record in self.records]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


def _padded(values: Any, blank: Tensor) -> Tensor:
    """A vector of a run that ended early, with nothing where it has nothing."""
    padded = blank.clone()
    if values is not None:
        padded[: len(values)] = torch.as_tensor(values).double()
    return padded
