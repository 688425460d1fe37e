"""How long the groups of a stage will take, told before it starts and corrected by what was trained.

The work of a group is counted (``Run.cost``, by ``nfd.nets.matrix_cost``). Its seconds are ``pace * cost``. The pace of
networks of a size comes from the first that were trained:

    ``pace = seconds / cost`` of trained groups of that size;
    before there is one, ``rehearsed pace * sum(seconds) / sum(predicted)`` over trained groups of other sizes. A size
    that was rehearsed is corrected by others that were: what a count alone had missed is in its rehearsal already.

A rehearsal trains the networks of a group for one step, and again, timed, for four. A forecast tells time and decides
no number.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import fmean

from nfd.core.errors import StateError
from nfd.runs.run import Group
from nfd.training.loop import noted_moments

_STEPS = 4  # of a rehearsal: the first one loads what there is to load, the last one may be followed by tests
_SHARE = 0.1  # of the work and of the time of a stage: most that rehearsals may take


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
        return self._ended_after(1).cost + self._ended_after(_STEPS).cost

    def train(self, device: str) -> float:
        """Predicted seconds of the whole group: of these steps with all before and after them, and of further steps.

        Raises:
            RuntimeError: where training failed or diverged at once, which leaves nothing to be timed.
        """
        first, short = self._ended_after(1), self._ended_after(_STEPS)
        first.train(device)  # in a new process, this loads what there is to load
        start = time.perf_counter()
        with noted_moments() as trainings:
            short.train(device)
        took = time.perf_counter() - start
        trained = [[after - before for before, after in pairwise(moments)] for moments in trainings]
        if min(map(len, trained), default=0) < 3:
            raise StateError("Training ended at one of its first steps.")
        usual = [fmean(steps[1:-1]) for steps in trained]
        loading = sum(steps[0] for steps in trained) - sum(usual)
        left = (self.group.cost - short.cost) / (short.cost - first.cost) * (_STEPS - 1)  # steps as costly as these
        return took - loading + left * sum(usual)

    def _ended_after(self, steps: int) -> Group:
        return Group(tuple(run.shortened(steps) for run in self.group.runs))


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
    _corrections: dict[tuple[type, bool], _Pace] = field(default_factory=dict)  # by whether a kind was rehearsed

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
        known = group.kind[0], group.kind in self._rehearsed
        self._corrections.setdefault(known, _Pace()).add(seconds, self._before(group))
        self._trained.setdefault(group.kind, _Pace()).add(seconds, group.cost)

    def seconds(self, group: Group) -> float:
        """Predicted, of a group that is trained alone on its worker."""
        kind = group.kind
        if kind in self._trained:
            return self._trained[kind].ratio * group.cost
        alike = self._corrections.get((kind[0], kind in self._rehearsed))
        correction = alike or self._corrections.get((kind[0], True)) or _Pace()
        return correction.ratio * self._before(group)

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

    def waves(self, slots: int) -> Iterator[list[Rehearsal]]:
        """What to rehearse, as much at a time as there are workers; no more once that takes too long."""
        begun, rehearsals = time.perf_counter(), self.forecast.to_rehearse(self.groups)
        while rehearsals:
            yield rehearsals[:slots]
            rehearsals = rehearsals[slots:]
            if time.perf_counter() - begun > _SHARE * self.remaining(slots):
                return

    def started(self, index: int) -> None:
        """A group was handed to a worker."""
        self._waiting.pop(index, None)
        self.running[index] = time.perf_counter()

    def ended(self, index: int, seconds: float | None) -> None:
        """A group was trained, in so many seconds of its worker; None where these tell nothing of other groups."""
        self._waiting.pop(index, None)
        self.running.pop(index, None)
        if seconds:
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
