"""The time left of a stage: rehearsed, corrected, shown. No test reads a real clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import pytest
import torch
from torch import nn

import nfd
from nfd.core.names import NetworkWeights
from nfd.core.progress import Bar
from nfd.data.digits import digits
from nfd.families.constructed import family_of
from nfd.limits.ensemble import Replicate
from nfd.limits.problem import problem
from nfd.runs.forecast import Rehearsal, Stage, makespan
from nfd.runs.records import runs_of
from nfd.runs.replicates import ReplicateRun
from nfd.runs.run import Group, Run, group_key, groups
from nfd.runs.sweep import Sweep
from nfd.runs.trials import Trial
from nfd.store.rows import Record, Status
from nfd.training.loop import train
from nfd.training.optimizers import optimizer_named
from nfd.training.recipe import Recipe
from nfd.training.task import Task


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@dataclass(frozen=True)
class Timed(Run):
    """A run of steps that take ``pace * width`` seconds each on the clock; its counted work is ``width`` of each."""

    clock: Clock = field(repr=False, compare=False)
    width: int
    seed: int
    pace: float = 1.0
    steps: int = 40
    building: float = 0.0
    first_step: float = 0.0
    testing: float = 0.0
    status: Status = "done"

    @property
    def key(self) -> str:
        return f"{self.width}-{self.seed}-{self.steps}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"width": self.width, "seed": self.seed}

    @property
    def cost(self) -> float:
        return float(self.steps * self.width)

    @property
    def size(self) -> Hashable:
        return self.width

    def shortened(self, steps: int) -> Self:
        return replace(self, steps=min(steps, self.steps))

    @property
    def seconds(self) -> float:
        """What it takes."""
        return self.building + self.first_step + self.steps * self.pace * self.width + self.testing

    def _trained(self) -> Record:
        start = self.clock.seconds
        self.clock.seconds += self.building
        weight = nn.Parameter(torch.ones(1))

        def net(step: int) -> torch.Tensor:
            self.clock.seconds += self.pace * self.width + (0.0 if step else self.first_step)
            return weight.sum()

        batches = [(step, None) for step in range(self.steps)]
        optimizer = optimizer_named("sgd", [{"params": [weight], "lr": 0.0}])
        for row in train(net, optimizer, batches, lambda value, _: value):
            self.clock.seconds += self.testing if row.step == self.steps - 1 else 0.0
        return Record(
            self.key, group_key([self.key]), self.status, self.settings, {}, seconds=self.clock.seconds - start
        )

    @classmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        return [run._trained() for run in runs]


class Watched(Bar):
    """A bar that is shown, and what it counts down from, with the time at which it was told."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.left: list[tuple[float, float]] = []

    @property
    def is_shown(self) -> bool:
        return True

    def expect(self, seconds: float) -> None:
        self.left.append((self.clock.seconds, seconds))


@pytest.fixture
def watched(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Watched:
    shown = Watched(clock)

    @contextmanager
    def bar(label: str, *, enabled: bool = True) -> Iterator[Bar]:
        yield shown

    monkeypatch.setattr("nfd.runs.sweep.bar", bar)
    return shown


def errors(watched: Watched, end: float) -> list[float]:
    """How far every time left that was shown is from the truth."""
    return [left - (end - now) for now, left in watched.left]


def test_tasks_go_to_the_slot_that_is_free_first() -> None:
    assert makespan([], 4) == 0.0
    assert makespan([3.0, 2.0, 1.0], 1) == 6.0
    assert makespan([3.0, 2.0, 2.0, 1.0], 2) == 4.0
    assert makespan([5.0, 1.0, 1.0], 16) == 5.0  # the longest


def test_the_time_of_a_stage_is_predicted_before_it_starts(clock: Clock, watched: Watched) -> None:
    runs = [Timed(clock, width, seed, building=1.0) for width in (4, 1) for seed in range(3)]
    with Sweep(None, progress=True) as sweep:
        sweep.run(runs)
    rehearsed = sum(2 * 1.0 + 5 * width for width in (4, 1))
    assert watched.left[0] == (rehearsed, sum(run.seconds for run in runs))
    assert errors(watched, clock.seconds) == pytest.approx([0.0] * len(watched.left))


def test_a_prior_that_is_off_by_ten_is_mended_by_the_first_network(clock: Clock, watched: Watched) -> None:
    runs = [Timed(clock, 1, seed, pace=10.0, steps=4) for seed in range(4)]  # too short to be rehearsed
    with Sweep(None, progress=True) as sweep:
        sweep.run(runs)
    assert watched.left[0] == (0.0, 4 * 4.0)
    assert [left for now, left in watched.left if now >= 40.0] == [120.0, 120.0, 80.0, 80.0, 40.0, 40.0, 0.0]


def test_what_the_first_sizes_took_corrects_the_sizes_that_follow(clock: Clock, watched: Watched) -> None:
    """Rehearsed on a fast machine, trained on one that is three times as slow, at the small size nine times."""
    large = [Timed(clock, 4, seed, pace=3.0) for seed in range(3)]
    small = [Timed(clock, 1, seed, pace=9.0) for seed in range(3)]
    with Sweep(None, progress=True) as sweep:
        for run in (large[0], small[0]):
            sweep.forecast.rehearsed(Group((run,)), run.cost)
        sweep.run([*large, *small])
    left, seconds = dict(watched.left), sum(run.seconds for run in large)
    assert left[0.0] == sum(run.cost for run in [*large, *small])
    assert left[large[0].seconds] == pytest.approx(
        sum(run.seconds for run in large[1:]) + 3 * sum(r.cost for r in small)
    )
    assert left[seconds] == pytest.approx(3 * sum(run.cost for run in small))
    assert left[seconds + small[0].seconds] == pytest.approx(sum(run.seconds for run in small[1:]))


def test_what_a_count_had_missed_does_not_correct_a_rehearsal(clock: Clock, watched: Watched) -> None:
    pilot = Timed(clock, 1, 0, pace=10.0, steps=4)  # too short to be rehearsed
    large = [Timed(clock, 4, seed) for seed in range(3)]
    with Sweep(None, progress=True) as sweep:
        sweep.run([pilot])
        watched.left.clear()
        before = clock.seconds
        sweep.run(large)
    assert watched.left[0] == (before + 20.0, pytest.approx(sum(run.seconds for run in large)))


def test_networks_that_diverged_tell_nothing_of_others(clock: Clock, watched: Watched) -> None:
    runs = [Timed(clock, 1, 0, pace=0.25, status="diverged"), *(Timed(clock, 1, seed) for seed in (1, 2))]
    with Sweep(None, progress=True) as sweep:
        sweep.forecast.rehearsed(Group((runs[1],)), runs[1].seconds)
        sweep.run(runs)
    assert dict(watched.left)[runs[0].seconds] == runs[1].seconds + runs[2].seconds


def test_a_later_stage_is_predicted_by_the_networks_of_an_earlier_one(clock: Clock, watched: Watched) -> None:
    with Sweep(None, progress=True) as sweep:
        sweep.run([Timed(clock, 2, seed, pace=7.0, building=5.0) for seed in range(2)])
        watched.left.clear()
        before = clock.seconds
        sweep.run(later := [Timed(clock, 2, seed, pace=7.0, building=5.0) for seed in range(2, 6)])
    assert watched.left[0] == (before, pytest.approx(sum(run.seconds for run in later)))  # nothing is rehearsed again


def test_rehearsals_count_what_comes_before_and_after_all_steps_once(clock: Clock) -> None:
    """And what the first step loads not at all: the worker of the stage has it."""
    run = Timed(clock, 3, 0, steps=100, building=2.0, first_step=50.0, testing=7.0)
    assert Rehearsal(Group((run, run))).train("cpu") == pytest.approx(2 * (2.0 + 300.0 + 7.0))


def test_rehearsals_take_a_small_share_of_a_stage(clock: Clock, watched: Watched) -> None:
    few, many = [Timed(clock, 20, 0, steps=20)], [Timed(clock, 1, seed) for seed in range(4)]
    with Sweep(None, progress=True) as sweep:
        assert [rehearsal.group.runs for rehearsal in sweep.forecast.to_rehearse(groups([*few, *many]))] == [(many[0],)]
        sweep.run(few)
    assert watched.left[0] == (0.0, 400.0)


def test_rehearsals_end_where_they_take_long(clock: Clock, watched: Watched) -> None:
    """What a network takes before its first step is not counted; then the costliest kind is rehearsed alone."""
    runs = [Timed(clock, width, seed, building=100.0) for width in (4, 1) for seed in range(3)]
    with Sweep(None, progress=True) as sweep:
        sweep.run(runs)
    assert watched.left[0] == (220.0, pytest.approx((1 + 1 / 4) * 3 * runs[0].seconds))


def test_groups_under_way_count_down_and_share_the_slots(clock: Clock) -> None:
    runs = [Timed(clock, 2, 0), Timed(clock, 1, 1)]
    with Sweep(None) as sweep:
        stage = Stage(groups(runs), sweep.forecast)
        assert stage.remaining(1) == 120.0
        assert stage.remaining(2) == 80.0
        stage.started(0)
        stage.started(1)
        clock.seconds += 40.0
        stage.ended(1, 40.0)
        assert stage.remaining(2) == 40.0
        clock.seconds += 60.0
        assert stage.remaining(2) == 0.0  # it takes longer than it should


def test_a_group_that_cannot_be_rehearsed_is_trained(clock: Clock, watched: Watched) -> None:
    class Broken(Timed):
        def shortened(self, steps: int) -> Self:
            return replace(self, steps=0) if steps else self

    with Sweep(None, progress=True) as sweep:
        (record,) = sweep.run([Broken(clock, 1, 0)])
    assert (record.status, watched.left[0]) == ("done", (0.0, 40.0))


def residual(width: int, depth: int) -> nn.Module:
    return nfd.ResNet(64, 10, width, depth)


def trials(steps: int) -> list[Run]:
    batches = list(zip(*digits().batches(2, steps, 0), strict=True))
    task = Task.of(batches, eval_batches=batches[:2])
    recipe = Recipe(family_of(residual, (8, 2), "depth-mup", "sgd", None, None, batches[0][0], None), task)
    return [Trial(recipe, 8, 2, seed, 1e-3) for seed in (0, 1)]


def configured(steps: int) -> list[Run]:
    return list(runs_of(nfd.grid(width=8, depth=2, steps=steps, batch=2, seed=[0, 1])))


def replicates(weights: NetworkWeights, steps: int) -> list[Run]:
    x, y = digits().batches(2, steps, 0)
    asked = problem(
        x, y, loss="cross-entropy", classes=10, horizon=1.0, activation="relu", block="one-layer", eta_c=0.1,
        momentum=0.0, feedback="shared", rule="depth-mup", device=torch.device("cpu"), coupled=False,
    )  # fmt: skip
    return [ReplicateRun(Replicate(asked, 64, 2, weights, seed)) for seed in (0, 1)]


KINDS: dict[str, Callable[[int], list[Run]]] = {
    "trial": trials,
    "configured": configured,
    "dense": partial(replicates, "dense"),
    "deferred": partial(replicates, "deferred"),
    "structured": partial(replicates, "structured"),
}

REPEATED = {"configured", "dense", "structured"}  # of the same two ways to train


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_can_be_rehearsed_and_costs_more_the_longer_it_is(kind: str) -> None:
    short, long = KINDS[kind](6), KINDS[kind](32)
    assert 0 < Group(tuple(short)).cost < Group(tuple(long)).cost
    assert short[0].shortened(3).cost < short[0].cost
    assert short[0].shortened(100).cost == pytest.approx(short[0].cost, rel=0.2)  # trials are not judged then
    assert Rehearsal(Group(tuple(short))).train("cpu") > 0
    assert {Group((run,)).kind for run in short} == {Group(tuple(short)).kind} != {Group(tuple(long)).kind}


@pytest.mark.parametrize("kind", ["trial", "configured"])
def test_networks_that_are_trained_as_one_share_the_calling_of_operations(kind: str) -> None:
    first, second = KINDS[kind](6)
    assert first.cost + second.cost < Group((first, second)).cost < Group((first,)).cost + Group((second,)).cost


@pytest.mark.parametrize(
    "kind", ["trial", "deferred", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind in REPEATED)]
)
def test_a_rehearsal_changes_no_number(kind: str, watched: Watched) -> None:
    with Sweep(None) as silent, Sweep(None, progress=True) as shown:
        expected, runs = silent.run(KINDS[kind](32)), KINDS[kind](32)
        records = shown.run(runs)
        assert shown.forecast.to_rehearse([Group(tuple(runs))]) == []
        for record, other in zip(records, expected, strict=True):
            assert record.metrics == other.metrics
            curves, others = shown.store.curves(record.key), silent.store.curves(other.key)
            assert all(torch.equal(curve, others[name]) for name, curve in curves.items())
