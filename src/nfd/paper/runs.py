"""The trials of figures and claims: their settings, as trials of ``nfd.resnets``, and their
records.
"""

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

# first test samples, on which a run with a meter is tested: wide ones would test longer than they
# train
TESTED = 256
PROBES = 64  # of those, on which updates are measured
STARTS = 8  # of the probes, on which streams are read


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run: a network, its training and its meter.

    Attributes:
        data, data_dir, data_seed: the data set, and the seed of the order of batches.
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
    """Every combination of these settings: a list is an axis, the last one varying fastest."""
    axes = {
        name: list(value) for name, value in settings.items() if isinstance(value, list | tuple)
    }
    rest = {name: value for name, value in settings.items() if name not in axes}
    return [
        RunConfig(**rest, **dict(zip(axes, point, strict=True)))
        for point in itertools.product(*axes.values())
    ]


def data_settings(config: DataConfig) -> dict[str, Any]:
    """The data of a configuration, as settings of ``RunConfig``."""
    data, directory = config.source
    return {"data": data, "data_dir": directory, "data_seed": config.seed}


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Steps of so many passes over the images, in whole batches."""
    return max(1, round(epochs * (images // batch)))


def initial_seed(seed: int, index: int) -> int:
    """Initialisation ``index`` of a sweep; those of seed 0 are 0, 1, 2, ..."""
    return (seed * 1_000_003 + index) & (2**63 - 1)


# ---- trials


def run_all(
    sweep: Sweep, plans: Mapping[K, Sequence[RunConfig]], label: str
) -> dict[K, list[Record]]:
    """Train what is missing of several lists of runs; their records with settings and curves."""
    trials = {name: [trial_of(config) for config in configs] for name, configs in plans.items()}
    sweep.run_all(trials, label)
    return {
        name: [record_of(sweep, config) for config in configs] for name, configs in plans.items()
    }


def record_of(sweep: Sweep, config: RunConfig) -> Record:
    """The record of a run that is stored, with its settings and curves."""
    key = trial_of(config).key
    return replace(
        sweep.store.record(key), config=asdict(config), curves={**sweep.store.curves(key)}
    )


@lru_cache(maxsize=2**16)
def trial_of(config: RunConfig) -> Trial:
    """The trial that a run is."""
    observe = () if config.meter == "none" else (Meter(config.meter, config.every),)
    return Trial(
        _family(config),
        _task(
            config.data,
            config.data_dir,
            config.data_seed,
            config.batch,
            config.steps,
            config.meter != "none",
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
    """The data set of a run; it is loaded once and cached."""
    return dataset_named(config.data, config.data_dir, config.data_seed)


@lru_cache(maxsize=4)
def dataset_named(name: str, directory: str | None, seed: int) -> Dataset:
    """A data set, loaded once."""
    return load(name, directory, seed=seed)


def _family(config: RunConfig) -> Family:
    dataset = dataset_of(config)
    plain = config.network == "mlp"
    shared = ("activation", "feedback")
    names = shared if plain else (*shared, "horizon", "block", "order", "coupled")
    settings = {name: getattr(config, name) for name in names}
    sizes = dataset.inputs.shape[1], len(dataset.classes)
    return networks(
        MLP if plain else ResNet, *sizes, rule=config.rule, optimizer=config.optimizer, **settings
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
    """What reads a network of the paper while it is trained, by its name, after every so many steps
    and the last.
    """

    name: str
    every: int | None

    @property
    def settings(self) -> Mapping[str, Any]:
        return asdict(self)

    def begin(self, member: Member, task: Task) -> Observation:
        return METERS[self.name](self, member, task)


class Metered(Observation):
    """Reads nothing."""

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
        """Vectors by name, at a look."""
        return {}

    def after(self, row: Step) -> None:
        if not row.diverged and row.step + 1 in self.moments:
            self.readings[row.step + 1] = self.read()

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        """Readings ``[looks x parts]``, flat, not-a-number after the run ended, and the steps of
        the looks.
        """
        if not self.blank:
            return {}, {}, None
        steps = sorted(self.moments)
        vectors = {
            name: torch.cat([self.readings.get(k, self.blank)[name] for k in steps])
            for name in self.blank
        }
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
        metrics, vectors, said = super().end()
        return metrics, vectors | {"start": self.first["outputs"]}, said


METERS = {
    "start": Start,
    "updates": Updates,
    "spectra": SmallestEigenvalues,
    "outputs": TestOutputs,
}
