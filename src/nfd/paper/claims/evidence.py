"""What claims are judged by: the runs of the figures, and data to compute on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nfd.data import Dataset
from nfd.paper.figures.selection import Runs
from nfd.paper.settings import Preset


class PartsAtNeed(Mapping[str, Runs]):
    """The parts of a figure, each trained when it is first read."""

    def __init__(self, names: Iterable[str], train: Callable[[Sequence[str]], Mapping[str, Runs]]) -> None:
        self._names, self._train = list(names), train
        self.read: dict[str, Runs] = {}

    def __getitem__(self, name: str) -> Runs:
        if name in self._names and name not in self.read:
            self.read |= self._train([name])
        return self.read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
        own, of_claims = f"{figure}-{more or name}", self.runs.get("claims", {})
        return of_claims[own] if own in of_claims else self.runs[figure][name]

    @property
    def read(self) -> dict[str, Mapping[str, Runs]]:
        """Those of the runs that are trained."""
        return {n: parts.read if isinstance(parts, PartsAtNeed) else parts for n, parts in self.runs.items()}

    @property
    def classes(self) -> int:
        """C."""
        return len(self.dataset.classes)
