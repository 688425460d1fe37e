"""Networks of predictions and studies as runs: named by their problem, trained anywhere, kept as records."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from nfd.core.errors import described, trace_of
from nfd.limits.cost import way_of
from nfd.limits.ensemble import Replicate, Trajectory
from nfd.limits.problem import Problem
from nfd.meters.updates import UPDATES, Baseline
from nfd.nets.dense import factor_gradients_
from nfd.nets.network import Network
from nfd.nets.recorded import record_updates_
from nfd.runs.run import NUMERICS, Run, group_key, hashed
from nfd.runs.sweep import Sweep
from nfd.runs.trained import recorded
from nfd.runs.trials import DIRECTIONS
from nfd.store.rows import Record
from nfd.training.loop import train
from nfd.training.optimizers import optimizer_named

_EVAL_ROWS = 16  # at least; more when training batches are larger, which memory was counted for


@dataclass(frozen=True)
class ReplicateRun(Run):
    """One replicate as a run: it shares no product with another."""

    replicate: Replicate

    largest_first: ClassVar[bool] = False  # in their order: the most telling first

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as plain data: tensors by their fingerprints."""
        replicate, problem = self.replicate, self.replicate.problem
        size = {name: getattr(replicate, name) for name in ("width", "depth", "weights", "seed")}
        probes = None if replicate.probes is None else _fingerprint(replicate.probes)
        task = {"task": problem.task.fingerprint, "steps": problem.task.steps, "batch": problem.task.batch}
        resolved = {} if replicate.resolution is None else {"resolution": replicate.resolution}
        return problem.settings | size | task | {"probes": probes} | resolved

    @cached_property
    def key(self) -> str:
        return hashed({"replicate": self.settings, "numerics": NUMERICS})

    @property
    def cost(self) -> float:
        r = self.replicate
        return way_of(r.weights, r.problem, r.width, r.depth).seconds

    @property
    def size(self) -> Hashable:
        return hashed(self.settings | {"seed": None})

    def shortened(self, steps: int) -> Self:
        problem = self.replicate.problem
        return replace(self, replicate=replace(self.replicate, problem=problem.first(steps)))

    @classmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        return [run._trained() for run in runs]

    def _trained(self) -> Record:
        try:
            return self.record(trained(self.replicate))
        except Exception as error:  # of the input or ours: as the record says
            return self.failed(group_key([self.key]), described(error), trace_of(error))

    def record(self, trajectory: Trajectory) -> Record:
        """The record of what it gave."""
        metrics = {
            _metric(name, steps): value for steps, row in trajectory.updates.items() for name, value in row.items()
        }
        diverged = trajectory.diverged_at is not None
        if trajectory.diverged_at is not None:
            metrics["diverged_at"] = float(trajectory.diverged_at)
        if trajectory.directions is not None:
            metrics[DIRECTIONS] = trajectory.directions
        curves = {"outputs": trajectory.outputs, "evaluated": trajectory.evaluated}
        return Record(
            self.key,
            group_key([self.key]),
            "diverged" if diverged else "done",
            self.settings,
            metrics,
            {name: x.cpu().flatten().numpy() for name, x in curves.items() if x.numel()},
            seconds=trajectory.seconds,
        )

    def trajectory(self, record: Record, curves: Mapping[str, Tensor]) -> Trajectory:
        """What it gave, from its record and the vectors beside it."""
        task = self.replicate.problem.task
        count = 0 if task.eval_inputs is None else len(task.eval_inputs)
        end = record.metrics.get("diverged_at")
        rows = {
            steps: {name: record.metrics[key] for name in UPDATES if (key := _metric(name, steps)) in record.metrics}
            for steps in (1, task.steps)
        }
        return Trajectory(
            curves["outputs"].view(task.steps, task.batch, task.outputs),
            curves["evaluated"].view(count, task.outputs) if count else torch.empty(0, task.outputs),
            None if end is None else int(end),
            {steps: row for steps, row in rows.items() if row},
            record.seconds,
            record.metrics.get(DIRECTIONS),
        )


class Replicates:
    """Where predictions and studies have their networks trained and kept: a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def run(self, replicates: Sequence[Replicate], label: str) -> list[Trajectory]:
        """Train those that are not kept, in their order; raises as ``Sweep.run_all`` does."""
        runs = [ReplicateRun(replicate) for replicate in replicates]
        self.sweep.run_all({label: runs}, label)
        return [self._trajectory(run) for run in runs]

    def kept(self, replicates: Sequence[Replicate]) -> list[Trajectory] | None:
        """What is kept of them; None unless all of it is."""
        runs = [ReplicateRun(replicate) for replicate in replicates]
        return None if self.sweep.missing(runs) else [self._trajectory(run) for run in runs]

    def _trajectory(self, run: ReplicateRun) -> Trajectory:
        store = self.sweep.store
        return run.trajectory(store.record(run.key), store.curves(run.key))


def trained(replicate: Replicate) -> Trajectory:
    """Train a network on every batch of its problem and evaluate it."""
    start, problem, task = time.perf_counter(), replicate.problem, replicate.problem.task
    resolution = replicate.resolution or None
    member = problem.member(replicate.width, replicate.depth, replicate.weights, replicate.seed, resolution)
    net = member.net
    if replicate.resolution == 0:
        record_updates_(net, task.samples)
    factor_gradients_(net)
    net.reserve(task.samples)
    baseline = None if replicate.probes is None else Baseline(member, replicate.probes)
    optimizer = optimizer_named("sgd", net.param_groups(1.0, problem.rule), momentum=problem.momentum)
    outputs = task.inputs.new_full((task.steps, task.batch, task.outputs), torch.nan)
    diverged, updates = None, dict[int, dict[str, float]]()
    is_read_after = bool(recorded(net)) or not (task.eval_inputs is None and replicate.probes is None)
    followed = task.steps if is_read_after else task.steps - 1
    for row in train(net, optimizer, task.batches, task.value, rates=problem.eta_c, updates=followed):
        outputs[row.step] = row.outputs
        if row.diverged:
            diverged = row.step
        elif baseline is not None and row.step in (0, task.steps - 1):
            updates[row.step + 1] = baseline.updates()
    evaluated = _evaluated(problem, net, diverged is not None)
    if diverged is None and not bool(torch.isfinite(evaluated).all()):
        diverged = task.steps - 1
    directions = recorded(net).get(DIRECTIONS)
    return Trajectory(outputs, evaluated, diverged, updates, time.perf_counter() - start, directions)


@torch.no_grad()
def _evaluated(problem: Problem, net: Network, diverged: bool) -> Tensor:
    """Outputs on the evaluation inputs, in parts; rows of different parts are not jointly consistent draws."""
    x = problem.task.eval_inputs
    if x is None or diverged:
        return problem.task.inputs.new_full((0 if x is None else len(x), problem.task.outputs), torch.nan)
    net.eval()
    return torch.cat([net(part) for part in torch.split(x, max(_EVAL_ROWS, problem.task.batch))])


def _metric(name: str, steps: int) -> str:
    return f"{name}_after_{steps}"


def _fingerprint(tensor: Tensor) -> str:
    array = tensor.cpu().contiguous().numpy()
    return blake2b(repr(array.shape).encode() + array.tobytes(), digest_size=10).hexdigest()
