"""Predicted time and memory of what does not fit here: on one large GPU, and on a Ray cluster of a hundred machines.

python -m benchmarks.forecast          # the tables of docs/larger-machines.md, from benchmarks/growth.json

    seconds = max(bytes / bandwidth, operations / peak) / share + calls * seconds of a call

with bytes and operations of ``benchmarks.counted``, the device's numbers by its data sheet, the share of that bound
that the widest network of the same kind of weights reached here on one core, and the operations of PyTorch that were
counted in a training. Memory is what ``nfd.predict`` predicts. Nothing of it is measured on these machines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from benchmarks.counted import Training, Work
from benchmarks.growth import BATCH, Growth, cases, kinds
from benchmarks.growth_page import machine_line
from benchmarks.measure import Row
from benchmarks.show import cell, fill_page, markdown
from nfd.data.dataset import Dataset
from nfd.limits.cost import way_of
from nfd.limits.problem import Problem
from nfd.paper.figures import FIGURES
from nfd.runs.records import ConfiguredRun
from nfd.runs.settings import RunConfig
from nfd.training.tensors import TensorTask

PAGE = Path(__file__).parents[1] / "docs" / "larger-machines.md"
MACHINES = 100
_CALL = 1e-5  # seconds of an operation of PyTorch that has nothing to do
_IMAGES, _PIXELS = 50_000, 3072  # of CIFAR-10
_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))


@dataclass(frozen=True)
class Device:
    """A machine by its data sheet: bytes a second, float32 operations a second, bytes that it holds."""

    name: str
    read: float
    peak: float
    memory: float
    source: str

    def bound(self, work: Work) -> float:
        """Seconds that the work takes at least."""
        return max(work.traffic / self.read, work.operations / self.peak)


GPU = Device("NVIDIA H200", 4.8e12, 67e12, 141e9, "data sheet of the H200 SXM: 4.8 TB/s, 67 TFLOPS in FP32, 141 GB")
NODE = Device(
    "AMD EPYC 9654, 768 GiB",
    460.8e9,
    96 * 2.4e9 * 32,
    768 * 2**30,
    "its specification: 12 channels, 460.8 GB/s; 96 cores of 2.4 GHz with 32 operations a cycle",
)


@dataclass(frozen=True)
class Task:
    """Networks that are trained in one go, ``together`` of them sharing every call."""

    training: Training
    together: int = 1

    @property
    def work(self) -> Work:
        """Of all its networks."""
        return self.training.work.times(self.together)

    @property
    def memory(self) -> float:
        """Bytes of all its networks."""
        t = self.training
        task = SimpleNamespace(
            features=t.features, outputs=t.outputs, batch=t.batch, steps=t.steps, samples=t.batch * t.steps
        )
        problem = Problem(
            cast(TensorTask, task), horizon=1.0, activation="relu", block="one-layer", eta_c=(), momentum=0.0,
            feedback="shared", rule="depth-mup", device=None, coupled=False,  # type: ignore[arg-type]
        )  # fmt: skip
        rank = t.rank if math.isfinite(t.rank) else None
        return self.together * way_of(t.weights, problem, t.width, t.depth, rank).bytes


@dataclass(frozen=True)
class Job:
    """Work that no machine here holds or waits for: its tasks, each with how often it is there."""

    name: str
    tasks: Sequence[tuple[Task, int]]

    @property
    def work(self) -> Work:
        """All of it."""
        return sum((task.work.times(count) for task, count in self.tasks), Work(0.0, 0.0))

    @property
    def memory(self) -> float:
        """Bytes of its largest task."""
        return max(task.memory for task, _ in self.tasks)


def several(name: str, trainings: Iterable[Training], replicates: int = 1) -> Job:
    """Replicates of each of some trainings."""
    return Job(name, [(Task(training), replicates) for training in trainings])


def figure(number: str) -> Job:
    """The trainings of a figure of the paper at the sizes of its caption, networks of one shape together."""
    images = cast(Dataset, SimpleNamespace(train=range(_IMAGES)))
    grids = FIGURES[number].grids("paper", {}, images)
    shapes = Counter(_shape(run) for runs in grids.values() for run in runs)
    return Job(f"figure {number}", [task for shape, count in shapes.items() for task in _stacked(*shape, count)])


def _shape(run: RunConfig) -> tuple[Training, int]:
    """What is trained, and how many of it at most in one go."""
    matrices = run.depth * (2 if run.block == "two-layer" else 1)
    training = Training(run.weights, run.width, matrices, run.steps, run.batch, _PIXELS)
    return training, ConfiguredRun(run, "").most_together


def _stacked(training: Training, together: int, count: int) -> list[tuple[Task, int]]:
    full, rest = divmod(count, together)
    return [(Task(training, size), times) for size, times in ((together, full), (rest, 1)) if size and times]


def jobs() -> list[Job]:
    """What the page lists."""
    return [
        several("width 2^20, depth 4, 96 samples", [Training("deferred", 2**20, 4, 12, 8)]),
        several("width 2^22, depth 4, 96 samples", [Training("deferred", 2**22, 4, 12, 8)]),
        several("width 2^24, depth 4, 64 samples", [Training("deferred", 2**24, 4, 8, 8)]),
        several("width 2^22, depth 64, 96 samples", [Training("structured", 2**22, 64, 12, 8)]),
        several("width 2^24, depth 8, 96 samples", [Training("structured", 2**24, 8, 12, 8)]),
        several("a study: depths 2 to 16, 64 replicates, width 2^16, 30 steps of 16", [
            Training("deferred", 2**16, depth, 30, 16) for depth in (2, 4, 8, 16)], 64),
        several("limit at depth 256 and 512, 64 replicates, width 2^14, 30 steps of 16", [
            Training("deferred", 2**14, depth, 30, 16) for depth in (256, 512)], 64),
        several("the same by structured weights", [
            Training("structured", 2**14, depth, 30, 16) for depth in (256, 512)], 64),
        several("an epoch of CIFAR-10, width 2^16, depth 16, 4,000 directions, 8 replicates", [
            Training("structured", 2**16, 16, 390, 128, _PIXELS, rank=4000)], 8),
        *(figure(number) for number in FIGURES),
    ]  # fmt: skip


# ---- what they take -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """Seconds on any device, by what was measured here: shares of the bound, and calls of a layer and step."""

    shares: dict[str, float]
    calls: dict[str, float]

    @classmethod
    def of(cls, growth: Growth) -> Forecast:
        """From the widest network of every kind of weights."""
        read, peak = (1e9 * growth.machine[name] for name in ("read, GB/s", "float32 products, GFLOP/s"))
        here = Device("here", read, peak, math.inf, "")
        shares = dict[str, float]()
        for kind in kinds():
            widest = cases("width", kind, 1)[-1]
            row = growth.row(widest)
            if row is None:
                raise ValueError(f"{growth.path} lacks {widest}. python -m benchmarks.growth measures it.")
            training = Training(kind, widest.width, widest.depth, widest.samples // BATCH, BATCH)
            shares[kind] = min(1.0, here.bound(training.work) / min(row["seconds"]))
        return cls(shares, dict(growth.calls))

    def seconds(self, task: Task, device: Device) -> float:
        """Of one task."""
        training = task.training
        called = self.calls[training.weights] * training.depth * training.steps * _CALL
        return device.bound(task.work) / self.shares[training.weights] + called


def on_one(job: Job, device: Device, forecast: Forecast) -> str:
    """One task after the other."""
    if job.memory > device.memory:
        return "does not fit"
    return duration(sum(count * forecast.seconds(task, device) for task, count in job.tasks))


def on_many(job: Job, device: Device, forecast: Forecast) -> str:
    """Tasks spread over machines: an equal share of all, and at least the longest; a task stays on its machine."""
    if job.memory > device.memory:
        return "does not fit"
    seconds = [(forecast.seconds(task, device), count) for task, count in job.tasks]
    return duration(max(sum(s * count for s, count in seconds) / MACHINES, max(s for s, _ in seconds)))


def duration(seconds: float) -> str:
    """In the largest unit of which there is one."""
    unit, size = max(
        ((unit, size) for unit, size in _UNITS if seconds >= size), key=lambda pair: pair[1], default=_UNITS[0]
    )
    return f"{cell('', seconds / size)} {unit}"


def table(forecast: Forecast) -> list[Row]:
    """A row for every job."""
    return [
        {
            "what": job.name,
            "weights": job.tasks[0][0].training.weights,
            "networks": sum(task.together * count for task, count in job.tasks),
            "operations": f"{job.work.operations:.1e}",
            "bytes moved": f"{job.work.traffic:.1e}",
            "memory of a task, GiB": job.memory / 2**30,
            "one GPU": on_one(job, GPU, forecast),
            f"{MACHINES} machines": on_many(job, NODE, forecast),
        }
        for job in jobs()
    ]


def made(growth: Growth) -> dict[str, str]:
    """What stands between the marks of the page."""
    forecast = Forecast.of(growth)
    devices = [
        {"device": d.name, "GB/s": d.read / 1e9, "TFLOP/s": d.peak / 1e12, "GB": d.memory / 1e9, "from": d.source}
        for d in (GPU, NODE)
    ]
    measured = [
        {"weights": kind, "share of the bound": share, "calls of a layer and step": forecast.calls[kind]}
        for kind, share in forecast.shares.items()
    ]
    return {
        "machine": machine_line(growth),
        "measured": markdown(measured),
        "devices": markdown(devices),
        "jobs": markdown(table(forecast)),
    }


if __name__ == "__main__":
    fill_page(PAGE, made(Growth.read()))
