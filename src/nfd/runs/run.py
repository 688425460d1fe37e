"""``Run``: a network that a sweep trains, of any kind, and ``Group``: runs that are trained together.

A group is the unit of everything: of batching, of commit and of repetition.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nfd.store.rows import Record

if TYPE_CHECKING:
    from torch import Tensor

NUMERICS = 3  # counts changes of what a run computes beyond rounding; tests/test_runs.py notices them


class Run(ABC):
    """One network to be trained: its name in the store, what is stored beside its results, and how it is trained.

    A run and all that it holds can be sent to another process.
    """

    ends_the_sweep: ClassVar[bool] = False
    """Whether the sweep ends where a run of this kind fails, as the others would fail alike."""

    largest_first: ClassVar[bool] = True
    """Whether the costliest runs are trained first, so that no core waits at the end; otherwise in their order."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Its name in the store: a hash of all that decides its numbers and of ``NUMERICS``."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as plain data for its record."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """Its work as ``nfd.nets.matrix_cost`` counts it, in seconds of the machine whose constants these are.

        Forecasts take ratios of costs for ratios of times; no number depends on them.
        """

    @property
    def calls(self) -> float:
        """The same of calling operations, which the runs of a group share."""
        return 0.0

    @property
    def form(self) -> Hashable:
        """What the runs of a group have in common."""
        return self.key

    @property
    def size(self) -> Hashable:
        """What decides how fast it is trained; runs of equal size have one pace."""
        return self.form

    @abstractmethod
    def shortened(self, steps: int) -> Self:
        """The same run, ended after so many steps at most, to be timed."""

    @property
    def most_together(self) -> int:
        """How many runs of its form make a group at most."""
        return 1

    @classmethod
    @abstractmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        """Train the runs of a group; a run that cannot be trained is a record with its error."""

    def failed(self, group: str, error: str, trace: str | None = None) -> Record:
        """The record of a run that could not be trained; ``trace`` where that is a mistake of ours."""
        return Record(self.key, group, "failed", self.settings, {}, error=error, trace=trace)


@dataclass(frozen=True)
class Group:
    """Runs that are trained together."""

    runs: tuple[Run, ...]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names of its runs."""
        return tuple(run.key for run in self.runs)

    @cached_property
    def key(self) -> str:
        """Its own name."""
        return group_key(self.keys)

    @cached_property
    def kind(self) -> tuple[type, Hashable]:
        """Groups of one kind have one pace."""
        return type(self.runs[0]), self.runs[0].size

    @cached_property
    def cost(self) -> float:
        """The work of its runs."""
        return max(run.calls for run in self.runs) + sum(run.cost for run in self.runs)

    def train(self, device: str) -> list[Record]:
        """Train them; what a worker does."""
        return type(self.runs[0]).train(self.runs, device)

    def failed(self, error: str) -> list[Record]:
        """The records of its runs where it could not be trained."""
        return [run.failed(self.key, error) for run in self.runs]


def groups(runs: Iterable[Run], done: Container[str] = ()) -> list[Group]:
    """What is to be trained of ``runs``, in groups that they alone decide; the costliest groups first.

    A run whose key is ``done`` is left out of its group: what is left of a plan is trained in the plan's groups,
    whenever it was stopped. Another order of the runs, or more of them, can make other groups of those that are not
    done.
    """
    alike: dict[Hashable, dict[str, Run]] = {}
    for run in runs:
        alike.setdefault((type(run), run.form), {})[run.key] = run
    missing = []
    for members in map(list, map(dict.values, alike.values())):
        if all(run.key in done for run in members):
            continue
        size = members[0].most_together
        for first in range(0, len(members), size):
            left = tuple(run for run in members[first : first + size] if run.key not in done)
            missing += [Group(left)] if left else []
    return sorted(missing, key=lambda group: -group.cost if group.runs[0].largest_first else 0.0)


def loss_metrics(losses: Tensor, answers: bool) -> dict[str, float]:
    """What every record of a training holds: its first and highest loss, and the mean over the last tenth of the steps.

    Args:
        losses: ``[steps]``, before each update. answers: whether the network gives finite outputs after the last one.

    Returns:
        ``first_loss``, ``highest_loss`` and ``train_loss``; where training diverged the last two are infinite, and
        ``diverged_at`` is the step of the first loss that is not a number.
    """
    bad = (~losses.isfinite()).nonzero()
    if not answers or len(bad):
        end = float(bad[0]) if len(bad) else float(len(losses))
        return {"first_loss": float(losses[0]), "highest_loss": inf, "train_loss": inf, "diverged_at": end}
    last = losses[-max(1, len(losses) // 10) :]
    return {"first_loss": float(losses[0]), "highest_loss": float(losses.max()), "train_loss": float(last.mean())}


def group_key(keys: Sequence[str]) -> str:
    """The name of a group: a hash of the names of its runs, in order."""
    return hashed({"runs": list(keys)})


def hashed(content: dict[str, Any]) -> str:
    """A name for plain data."""
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()
