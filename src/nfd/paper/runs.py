"""The trials of figures and claims: their settings, what is measured, and their records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from nfd import MLP, SGD, Family, Observation, Observer, ResNet, Sweep, Task, Trial
from nfd.data import Dataset
from nfd.families import Member, Network, networks
from nfd.meters import Baseline
from nfd.paper.data import load
from nfd.paper.settings import DataConfig
from nfd.paper.streams import Spectra, at_start
from nfd.runs import Step
from nfd.store import Record

K = TypeVar("K")

# A run with a meter is tested on so many test samples: with all, wide networks would test longer
# than they train.
TESTED = 256
# Updates are measured on so many of these samples, and streams are read on so many of those.
PROBES = 64
STARTS = 8


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run: a network, its training and its meter.

    Attributes:
        data: the data set. data_dir: its directory. data_seed: the seed of the order of batches.
        network: resnet, or mlp, the vanilla network without skip connections.
        coupled: whether the layers of a seed's networks of every depth are increments of one path,
            or the depth at which that path begins.
        every: steps between evaluations on the test part and of the meter; by default only after
            the last step.
        meter: what is measured beside the loss: start (streams before training), updates (of
            features and of the function), spectra (of Sigma and Theta), outputs (on the test
            samples), or none. A run with a meter uses only the first 256 test samples.
    """

    data: str = "digits"
    data_dir: str | None = None
    data_seed: int = 0
    activation: str = "relu"
    horizon: float = 1.0
    eta_c: float = 0.3
    steps: int = 30
    batch: int = 16
    network: str = "resnet"
    width: int = 64
    depth: int = 8
    block: str = "one-layer"
    order: str = "pre"
    feedback: str = "shared"
    weights: Any = "dense"
    resolution: float | None = None
    rule: Any = "depth-mup"
    optimizer: str = "sgd"
    momentum: float = 0.0
    seed: int = 0
    coupled: bool | int = False
    every: int | None = None
    meter: str = "none"


def grid(**settings: Any) -> list[RunConfig]:
    """Return every combination of these settings.

    A list is an axis; the last one varies fastest.
    """
    axes = {
        name: list(value) for name, value in settings.items() if isinstance(value, list | tuple)
    }
    fixed = {name: value for name, value in settings.items() if name not in axes}
    return [
        RunConfig(**fixed, **dict(zip(axes, point, strict=True)))
        for point in itertools.product(*axes.values())
    ]


def data_settings(config: DataConfig) -> dict[str, Any]:
    """Return the data of a configuration, as settings of ``RunConfig``."""
    data, directory = config.source
    return {"data": data, "data_dir": directory, "data_seed": config.seed}


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Return the steps of so many passes over the images, in whole batches."""
    return max(1, round(epochs * (images // batch)))


def initial_seed(seed: int, index: int) -> int:
    """Return the seed of initialisation ``index``; with seed 0 these are 0, 1, 2, ..."""
    return (seed * 1_000_003 + index) & (2**63 - 1)


# ---- trials


def run_all(
    sweep: Sweep, plans: Mapping[K, Sequence[RunConfig]], label: str
) -> dict[K, list[Record]]:
    """Train what is missing of several lists of runs.

    Returns their records, with settings and curves.
    """
    trials = {}
    for name, configs in plans.items():
        trials[name] = [trial_of(config) for config in configs]
    sweep.run_all(trials, label)
    records: dict[K, list[Record]] = {}
    for name, configs in plans.items():
        records[name] = [record_of(sweep, config) for config in configs]
    return records


def record_of(sweep: Sweep, config: RunConfig) -> Record:
    """Return the record of a run that is stored, with its settings and curves."""
    key = trial_of(config).key
    return replace(
        sweep.store.record(key), config=asdict(config), curves={**sweep.store.curves(key)}
    )


@lru_cache(maxsize=2**16)
def trial_of(config: RunConfig) -> Trial:
    """Return the trial that trains a run."""
    is_metered = config.meter != "none"
    observe = (Meter(config.meter, config.every),) if is_metered else ()
    return Trial(
        _family(config),
        _task(
            config.data,
            config.data_dir,
            config.data_seed,
            config.batch,
            config.steps,
            is_metered,
            config.momentum,
        ),
        config.width,
        config.depth,
        config.seed,
        config.eta_c,
        weights=config.weights,
        resolution=config.resolution,
        every=config.every,
        observe=observe,
    )


def dataset_of(config: RunConfig) -> Dataset:
    """Return the data set of a run."""
    return dataset_named(config.data, config.data_dir, config.data_seed)


@lru_cache(maxsize=4)
def dataset_named(name: str, directory: str | None, seed: int) -> Dataset:
    """Load a data set, once in each process."""
    return load(name, directory, seed=seed)


def _family(config: RunConfig) -> Family:
    dataset = dataset_of(config)
    kind: type[MLP] | type[ResNet] = ResNet
    names: tuple[str, ...] = ("activation", "feedback", "horizon", "block", "order", "coupled")
    if config.network == "mlp":
        kind = MLP
        names = ("activation", "feedback")
    return networks(
        kind,
        dataset.inputs.shape[1],
        len(dataset.classes),
        rule=config.rule,
        optimizer=config.optimizer,
        **{name: getattr(config, name) for name in names},
    )


@lru_cache(maxsize=8)
def _task(
    name: str,
    directory: str | None,
    seed: int,
    batch: int,
    steps: int,
    metered: bool,
    momentum: float,
) -> Task:
    dataset = dataset_named(name, directory, seed)
    tests = slice(TESTED if metered else None)
    inputs, labels = dataset.batches(batch, steps, seed)
    tested = [(dataset.test_inputs[tests], dataset.test_labels[tests])]
    stepped = partial(SGD, momentum=momentum) if momentum else None
    return Task(list(zip(inputs, labels, strict=True)), eval_batches=tested, make_optimizer=stepped)


# ---- what is measured on the way


@dataclass(frozen=True)
class Meter(Observer):
    """An observer that reads a network of the paper while it is trained.

    ``METERS`` has its readings by name; they come after every so many steps and the last.
    """

    name: str
    every: int | None

    @property
    def settings(self) -> Mapping[str, Any]:
        return asdict(self)

    def begin(self, member: Member, task: Task) -> Observation:
        return METERS[self.name](self, member, task)


class Metered(Observation):
    """Readings at the looks of one run; this class reads nothing."""

    def __init__(self, meter: Meter, member: Member, task: Task) -> None:
        self.member = member
        self.task = task
        self.steps = task.steps
        (self.inputs, _), *_ = task.eval_batches
        self.moments = {*range(0, task.steps, meter.every or task.steps), task.steps} - {0}
        self.first = self.read()
        self.blank = {name: torch.full_like(x, torch.nan) for name, x in self.first.items()}
        self.readings: dict[int, dict[str, Tensor]] = {}

    def read(self) -> dict[str, Tensor]:
        """Return vectors by name, at a look."""
        return {}

    def after(self, row: Step) -> None:
        if not row.diverged and row.step + 1 in self.moments:
            self.readings[row.step + 1] = self.read()

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        """Return readings ``[looks x parts]``, flat, and the steps of the looks.

        They are not-a-number after the run ended.
        """
        if not self.blank:
            return {}, {}, None
        steps = sorted(self.moments)
        readings = [self.readings.get(step, self.blank) for step in steps]
        vectors = {}
        for name in self.blank:
            vectors[name] = torch.cat([reading[name] for reading in readings])
        return {}, vectors | {"measured_after": torch.tensor(steps, dtype=torch.float32)}, None


def _network(member: Member) -> Network:
    return cast(Network, member.module)


class Start(Metered):
    """Streams before training."""

    def __init__(self, meter: Meter, member: Member, task: Task) -> None:
        super().__init__(meter, member, task)
        self.started = at_start(_network(member), self.inputs[:PROBES][:STARTS])

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        metrics, curves = self.started
        return metrics, dict(curves), None


class Updates(Metered):
    """Updates of features and function."""

    def __init__(self, meter: Meter, member: Member, task: Task) -> None:
        (inputs, _), *_ = task.eval_batches
        self.baseline = Baseline(member, inputs[:PROBES])
        super().__init__(meter, member, task)

    def read(self) -> dict[str, Tensor]:
        return {name: torch.tensor([value]) for name, value in self.baseline.look().network.items()}


class SmallestEigenvalues(Metered):
    """Smallest eigenvalues of the covariances of all steps."""

    def __init__(self, meter: Meter, member: Member, task: Task) -> None:
        self.spectra = Spectra(_network(member))
        super().__init__(meter, member, task)

    def around(self, step: int) -> AbstractContextManager[object]:
        return self.spectra.watching()

    def after(self, row: Step) -> None:
        if not row.diverged:
            self.spectra.gather()
        super().after(row)

    def read(self) -> dict[str, Tensor]:
        return self.spectra.smallest()


class TestOutputs(Metered):
    """The outputs on the test samples after training, and before it."""

    @torch.no_grad()
    def read(self) -> dict[str, Tensor]:
        return {"outputs": self.member(self.inputs).flatten()}

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        metrics, vectors, rows = super().end()
        return metrics, vectors | {"start": self.first["outputs"]}, rows


METERS = {
    "start": Start,
    "updates": Updates,
    "spectra": SmallestEigenvalues,
    "outputs": TestOutputs,
}
