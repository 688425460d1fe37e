"""Runs of the paper's networks: configurations to networks, training and records, a group at a time.

The runs of a group differ in seed, eta_c, horizon and rule alone, so they share every product (``nfd.nets.stack``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.errors import described, trace_of
from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.nets.matrix_cost import STORED_SECONDS, MatrixUse, training_seconds
from nfd.runs.run import NUMERICS, Run, group_key, hashed, loss_metrics
from nfd.runs.settings import RunConfig
from nfd.runs.trained import Trained, is_stackable, tested, trained
from nfd.store.rows import Record
from nfd.training.losses import cross_entropy

_IN_A_GROUP = {"seed", "eta_c", "horizon", "rule"}  # what may differ there
_FLOAT = 4  # bytes
_TOGETHER = 32  # most runs in a group: beyond, batched products gain nothing more
_SINCE_0_1 = ("resolution", "train", "validation")  # not in a name unless they are set: settings then had none of them
_ENTRIES = 2**18  # of a hidden vector of the whole group: what stays in a core's cache


@dataclass(frozen=True)
class ConfiguredRun(Run):
    """The run of a configuration, on data with this fingerprint."""

    config: RunConfig
    data: str

    @cached_property
    def key(self) -> str:
        return run_key(self.config, self.data)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.config.model_dump()

    @property
    def cost(self) -> float:
        c = self.config
        use = MatrixUse(c.width, c.width, c.batch, c.batch * c.steps, 0, False, _FLOAT)
        return _matrices(c) * training_seconds(c.weights, use)

    @property
    def calls(self) -> float:
        return self.config.steps * _matrices(self.config) * STORED_SECONDS

    def shortened(self, steps: int) -> Self:
        return replace(self, config=self.config.model_copy(update={"steps": min(steps, self.config.steps)}))

    @property
    def form(self) -> Hashable:
        return tuple((name, repr(value)) for name, value in self.settings.items() if name not in _IN_A_GROUP)

    @property
    def most_together(self) -> int:
        c = self.config
        return max(1, min(_TOGETHER, _ENTRIES // (c.width * max(c.width, c.batch)))) if is_stackable(c) else 1

    @classmethod
    def train(cls, runs: Sequence[Self], device: str) -> list[Record]:
        return train_group([run.settings for run in runs], device)


def _matrices(config: RunConfig) -> int:
    """Of the blocks, and one for the ends."""
    return config.depth * (2 if config.block == "two-layer" else 1) + 1


def runs_of(wanted: Iterable[RunConfig | Run], *, progress: bool | None = False) -> Iterator[Run]:
    """The runs themselves, where configurations stand for some; each data set is read once, in any order."""
    prints: dict[Hashable, str] = {}
    for run in wanted:
        if isinstance(run, Run):
            yield run
            continue
        data = _data_of(run)
        if data not in prints:
            prints[data] = dataset_of(run, progress=progress).fingerprint
        yield ConfiguredRun(run, prints[data])


def run_key(config: RunConfig, fingerprint: str) -> str:
    """The name of a run: a hash of its settings, of the data themselves wherever they lie, and of ``NUMERICS``."""
    settings = config.model_dump(exclude={"data_dir", *(name for name in _SINCE_0_1 if getattr(config, name) is None)})
    return hashed(settings | {"data": fingerprint, "numerics": NUMERICS})


def dataset_of(config: RunConfig, *, progress: bool | None = False) -> Dataset:
    """The data set of a run; it is loaded once and cached."""
    return _loaded(*_data_of(config), progress)


def _data_of(config: RunConfig) -> tuple[str, str | None, int | None, int, int | None, int | None]:
    """What decides the data of a run."""
    return config.data, config.data_dir, config.image_size, config.data_seed, config.train, config.validation


@undisturbed()
def train_group(settings: Sequence[dict[str, Any]], device: str = "cpu") -> list[Record]:
    """Train the runs with these settings together; a run that cannot be trained is a record with its error.

    Where the group fails as a whole its runs are trained one by one, so that each has a record of its own.
    """
    configs = [RunConfig(**run) for run in settings]
    runs = [ConfiguredRun(config, dataset_of(config).fingerprint) for config in configs]
    group = group_key([run.key for run in runs])
    try:
        return _trained(runs, group, device)
    except Exception as error:  # of the input or ours: as the record says
        if len(runs) == 1:
            return [runs[0].failed(group, described(error), trace_of(error))]
    return [replace(record, group=group) for run in settings for record in train_group([run], device)]


def _trained(runs: Sequence[ConfiguredRun], group: str, device: str) -> list[Record]:
    start = time.perf_counter()
    configs = [run.config for run in runs]
    dataset = dataset_of(configs[0])
    results = trained(configs, dataset, device)
    seconds = (time.perf_counter() - start) / len(runs)
    labels = dataset.test_labels[tested(configs[0])]
    return [_record(run, group, result, labels, seconds) for run, result in zip(runs, results, strict=True)]


def _record(run: ConfiguredRun, group: str, result: Trained, labels: Tensor, seconds: float) -> Record:
    metrics = result.metrics | loss_metrics(result.losses, bool(result.outputs.isfinite().all()))
    diverged = "diverged_at" in metrics
    right = (result.outputs.argmax(-1) == labels).float().mean()
    metrics |= {
        "test_loss": math.inf if diverged else float(cross_entropy(result.outputs, labels)),
        "test_samples": float(len(labels)),
        "test_accuracy": 0.0 if diverged else float(right),
    }
    curves: dict[str, Any] = {name: x.cpu().numpy() for name, x in ({"loss": result.losses} | result.curves).items()}
    return Record(run.key, group, "diverged" if diverged else "done", run.settings, metrics, curves, seconds=seconds)


@lru_cache(maxsize=4)
def _loaded(
    name: str,
    directory: str | None,
    image_size: int | None,
    seed: int,
    train: int | None,
    validation: int | None,
    progress: bool | None,
) -> Dataset:  # a worker trains many groups on the same data
    return load(name, directory, image_size=image_size, seed=seed, progress=progress).part(train, validation, seed)
