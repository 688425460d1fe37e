"""What claims are judged by: the runs of the figures, and data to compute on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nfd.data import Dataset
from nfd.paper.config import Preset
from nfd.paper.figures.selection import Runs


@dataclass(frozen=True, eq=False)
class Evidence:
    """The data set, at which size networks are taken where a claim trains its own, and the runs of the figures.

    ``runs`` are by figure, "1" to "7" and "claims", and by part. What is measured here is kept with the object itself,
    which therefore equals no other.
    """

    size: Preset
    dataset: Dataset
    seed: int = 0
    runs: Mapping[str, Mapping[str, Runs]] = field(default_factory=dict)

    def part(self, figure: str, name: str, more: str = "") -> Runs:
        """The runs of a part of a figure; in their place those that claims have of their own, as ``4-gains`` for the
        part ``gains`` of Figure 4: more seeds or steps than the figure shows."""
        return self.runs.get("claims", {}).get(f"{figure}-{more or name}") or self.runs[figure][name]

    @property
    def classes(self) -> int:
        """C."""
        return len(self.dataset.classes)
