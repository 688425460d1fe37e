"""How long the groups of a stage will take, told before it starts and corrected by what was trained.

The work of a group is counted (``Run.cost``, by ``nfd.nets.matrix_cost``). Its seconds are ``pace * cost``. The pace of
networks of a size comes from the first that were trained:

    ``pace = seconds / cost`` of trained groups of that size;
    before there is one, ``rehearsed pace * sum(seconds) / sum(predicted)`` over trained groups of other sizes.

A rehearsal builds the networks of a group and trains them for three steps. A forecast tells time and decides no number.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from nfd.core.errors import StateError
from nfd.runs.run import Group
from nfd.training.loop import noted_moments

_STEPS = 3  # of a rehearsal; the first one loads what there is to load
_SHARE = 0.1  # of the counted work of a stage: most that rehearsals may take


def makespan(tasks: Iterable[float], slots: int) -> float:
    """Seconds until all tasks are done, of which so many are done at once: a free slot takes up the next."""
    busy = [0.0] * max(slots, 1)
    for seconds in tasks:
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy)


@dataclass(frozen=True)
class Rehearsal:
    """The first steps of a group, as a task for a worker."""

    group: Group

    @property
    def cost(self) -> float:
        """Its counted work."""
        return self._short.cost

    def train(self, device: str) -> float:
        """Predicted seconds of the whole group: of what comes before and after its steps, and of its steps.

        Raises:
            RuntimeError: where training failed or diverged at its first step, which leaves nothing to be timed.
        """
        start = time.perf_counter()
        with noted_moments() as trainings:
            self._short.train(device)
        took = time.perf_counter() - start
        steps = [[after - before for before, after in pairwise(moments)] for moments in trainings]
        if min(map(len, steps), default=0) < 2:
            raise StateError("Training ended at its first step.")
        outside = took - sum(map(sum, steps))
        return outside + sum(min(own[1:]) * len(own) for own in steps) * self.group.cost / self.cost

    @property
    def _short(self) -> Group:
        return Group(tuple(run.shortened(_STEPS) for run in self.group.runs))


@dataclass
class _Pace:
    """Seconds that were measured, and the work or the seconds that were predicted for the same groups."""

    seconds: float = 0.0
    expected: float = 0.0

    def add(self, seconds: float, expected: float) -> None:
        self.seconds += seconds
        self.expected += expected

    @property
    def ratio(self) -> float:
        return self.seconds / self.expected if self.seconds > 0 and self.expected > 0 else 1.0


@dataclass
class Forecast:
    """The seconds of groups, from rehearsals and from all groups that a sweep has trained.

    Before any of a type was timed, its cost counts as seconds.
    """

    _rehearsed: dict[tuple[type, Hashable], _Pace] = field(default_factory=dict)
    _trained: dict[tuple[type, Hashable], _Pace] = field(default_factory=dict)
    _corrections: dict[type, _Pace] = field(default_factory=dict)

    def to_rehearse(self, groups: Sequence[Group]) -> list[Rehearsal]:
        """A group of every kind that was never timed, the costliest kinds first, as far as a small share of the work
        of all groups goes."""
        unknown: dict[tuple[type, Hashable], list[Group]] = {}
        for group in groups:
            if group.kind not in self._rehearsed and group.kind not in self._trained:
                unknown.setdefault(group.kind, []).append(group)
        left, chosen = _SHARE * sum(group.cost for group in groups), list[Rehearsal]()
        for alike in sorted(unknown.values(), key=lambda alike: -sum(group.cost for group in alike)):
            rehearsal = Rehearsal(alike[0])
            if rehearsal.cost <= left:
                left -= rehearsal.cost
                chosen.append(rehearsal)
        return chosen

    def rehearsed(self, group: Group, seconds: float) -> None:
        """Take over what a rehearsal predicts for the whole group."""
        self._rehearsed.setdefault(group.kind, _Pace()).add(seconds, group.cost)

    def trained(self, group: Group, seconds: float) -> None:
        """Learn from a group that took so long."""
        if seconds > 0:  # one that failed took none
            self._corrections.setdefault(group.kind[0], _Pace()).add(seconds, self._before(group))
            self._trained.setdefault(group.kind, _Pace()).add(seconds, group.cost)

    def seconds(self, group: Group) -> float:
        """Predicted, of a group that is trained alone on its worker."""
        kind = group.kind
        if kind in self._trained:
            return self._trained[kind].ratio * group.cost
        return self._corrections.get(kind[0], _Pace()).ratio * self._before(group)

    def _before(self, group: Group) -> float:
        """Predicted from rehearsals alone: of its kind, or else of all kinds of its type."""
        kind = group.kind
        if kind in self._rehearsed:
            return self._rehearsed[kind].ratio * group.cost
        of_type = _Pace()
        for other, pace in self._rehearsed.items():
            if other[0] is kind[0]:
                of_type.add(pace.seconds, pace.expected)
        return of_type.ratio * group.cost


class Stage:
    """The groups of a stage, in the order in which they are trained, and what is left of them."""

    def __init__(self, groups: Sequence[Group], forecast: Forecast) -> None:
        self.groups, self.forecast = groups, forecast
        self.running: dict[int, float] = {}
        self._waiting = dict.fromkeys(range(len(groups)))

    def started(self, index: int) -> None:
        """A group was handed to a worker."""
        self._waiting.pop(index, None)
        self.running[index] = time.perf_counter()

    def ended(self, index: int, seconds: float) -> None:
        """A group was trained, in so many seconds of its worker."""
        self._waiting.pop(index, None)
        self.running.pop(index, None)
        self.forecast.trained(self.groups[index], seconds)

    def remaining(self, slots: int) -> float:
        """Predicted seconds to the end of the stage, where so many groups are trained at once."""
        return makespan(chain(self._under_way(), map(self._seconds, self._waiting)), slots)

    def _under_way(self) -> Iterator[float]:
        now = time.perf_counter()
        for index, start in self.running.items():
            yield max(self._seconds(index) - (now - start), 0.0)

    def _seconds(self, index: int) -> float:
        return self.forecast.seconds(self.groups[index])
