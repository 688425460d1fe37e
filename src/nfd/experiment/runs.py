"""Runs: configurations to networks, training and records, a group at a time.

A group is trained together and is the unit of everything: of batching, of commit and of repetition. Its runs differ in
seed, eta_c, horizon and rule alone, so that they share every product (``nfd.nets.stack``).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.experiment.settings import RunConfig
from nfd.nets.network import Network
from nfd.nets.resnet import ResNet
from nfd.nets.sgd import SGD
from nfd.nets.stack import Stack
from nfd.scaling.rules import exponent_of
from nfd.store.rows import Record
from nfd.training.loop import train
from nfd.training.losses import cross_entropy
from nfd.training.stacked import train_stack

NUMERICS = 1  # counts changes of what a run computes beyond rounding; tests/test_runs.py notices them
IN_A_GROUP = ("seed", "eta_c", "horizon", "rule")  # what may differ there

_EVALUATED = 512  # test samples at a time


def run_key(config: RunConfig, fingerprint: str) -> str:
    """The name of a run: a hash of its settings, of the data themselves wherever they lie, and of ``NUMERICS``."""
    return _hash(config.model_dump(exclude={"data_dir"}) | {"data": fingerprint, "numerics": NUMERICS})


def group_key(keys: Sequence[str]) -> str:
    """The name of a group: a hash of the names of its runs, in order."""
    return _hash({"runs": list(keys)})


def dataset_of(config: RunConfig, *, progress: bool = False) -> Dataset:
    """The data of a run, kept for the runs that follow."""
    return _loaded(config.data, config.data_dir, config.image_size, config.data_seed, progress)


def train_group(settings: Sequence[dict[str, Any]], device: str = "cpu") -> list[Record]:
    """Train the runs with these settings together; a run that cannot be trained is a record with its error.

    Where the group fails as a whole its runs are trained one by one, so that each has a record of its own.
    """
    configs = [RunConfig(**each) for each in settings]
    keys = [run_key(config, dataset_of(config).fingerprint) for config in configs]
    group = group_key(keys)
    try:
        return _trained(configs, keys, group, device)
    except (ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError) as error:
        if len(configs) == 1:
            return [failed(configs[0], keys[0], group, f"{type(error).__name__}: {error}")]
    return [_alone(config, key, group, device) for config, key in zip(configs, keys, strict=True)]


def train_task(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``train_group`` of a task's ``runs`` on its ``device``, records as plain data: what executors are given."""
    return [asdict(record) for record in train_group(task["runs"], task["device"])]


def failed(config: RunConfig, key: str, group: str, error: str) -> Record:
    """The record of a run that could not be trained."""
    return Record(key, group, "failed", config.model_dump(), {}, {}, error, 0.0)


def network(config: RunConfig, dataset: Dataset, device: str = "cpu") -> Network:
    """The untrained network of a run."""
    return ResNet(
        dataset.inputs.shape[1],
        len(dataset.classes),
        config.width,
        config.depth,
        horizon=config.horizon,
        activation=config.activation,
        block=config.block,
        order=config.order,
        branch_exponent=exponent_of(config.rule),
        regime="kernel" if config.rule == "ntk" else "feature",
        weights=config.weights,
        feedback=config.feedback,
        seed=config.seed,
        device=device,
    )


def _alone(config: RunConfig, key: str, group: str, device: str) -> Record:
    (record,) = train_group([config.model_dump()], device)
    return Record(key, group, record.status, record.config, record.metrics, record.curves, record.error, record.seconds)


def _trained(configs: Sequence[RunConfig], keys: Sequence[str], group: str, device: str) -> list[Record]:
    start = time.perf_counter()
    dataset = dataset_of(configs[0])
    order = dataset.order(configs[0].batch, configs[0].steps, configs[0].data_seed)
    way = _stacked if configs[0].weights == "dense" else _deferred
    losses, outputs = (part.cpu() for part in way(configs, dataset, order.to(device), device))
    seconds = (time.perf_counter() - start) / len(configs)
    found = zip(configs, keys, losses, outputs, strict=True)
    return [_record(c, key, group, loss, f, dataset, seconds) for c, key, loss, f in found]


def _stacked(configs: Sequence[RunConfig], dataset: Dataset, order: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Losses [R, steps] and outputs [R, N, C] on the test part."""
    first = configs[0]
    stack = Stack([network(config, dataset, device) for config in configs])
    inputs, labels, test_inputs = _placed(dataset, device)
    groups = stack.param_groups([c.eta_c for c in configs], [c.rule for c in configs], first.optimizer)
    losses = train_stack(stack, groups, first.optimizer, first.momentum, inputs, labels, order)
    with torch.no_grad():
        return losses, torch.cat([stack(x) for x in torch.split(test_inputs, _EVALUATED)], dim=1)


def _deferred(configs: Sequence[RunConfig], dataset: Dataset, order: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """The same for networks that cannot be stacked, one after another."""
    inputs, labels, test_inputs = _placed(dataset, device)
    losses, outputs = torch.full((len(configs), len(order)), math.nan), []
    for row, config in zip(losses, configs, strict=True):
        net = network(config, dataset, device)
        net.reserve(order.numel())
        optimizer = SGD(net.param_groups(config.eta_c, config.rule), momentum=config.momentum)
        batches = ((inputs[samples], labels[samples]) for samples in order)
        for step in train(net, optimizer, batches, cross_entropy):
            row[step.step] = step.loss
        net.eval()
        with torch.no_grad():
            diverged = not bool(row.isfinite().all())
            blank = torch.full((len(test_inputs), len(dataset.classes)), math.nan)
            outputs.append(blank if diverged else net(test_inputs).cpu())
    return losses, torch.stack(outputs)


def _record(
    config: RunConfig, key: str, group: str, loss: Tensor, outputs: Tensor, dataset: Dataset, seconds: float
) -> Record:
    bad = (~loss.isfinite()).nonzero()
    diverged = len(bad) > 0 or not bool(outputs.isfinite().all())
    last = loss[-max(1, len(loss) // 10) :]
    metrics = {
        "first_loss": float(loss[0]),
        "highest_loss": math.inf if diverged else float(loss.max()),
        "train_loss": math.inf if diverged else float(last.mean()),
        "test_loss": math.inf if diverged else float(cross_entropy(outputs, dataset.test_labels)),
        "test_accuracy": float((outputs.argmax(-1) == dataset.test_labels).float().mean()) if not diverged else 0.0,
    }
    if diverged:
        metrics["diverged_at"] = float(bad[0]) if len(bad) else float(len(loss))
    status = "diverged" if diverged else "done"
    return Record(key, group, status, config.model_dump(), metrics, {"loss": loss.numpy()}, None, seconds)


@lru_cache(maxsize=2)
def _placed(dataset: Dataset, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs and labels and test inputs, where they are used."""
    return dataset.inputs.to(device), dataset.labels.to(device), dataset.test_inputs.to(device)


@lru_cache(maxsize=4)
def _loaded(
    name: str, directory: str | None, image_size: int | None, seed: int, progress: bool
) -> Dataset:  # a worker trains many groups on the same data
    return load(name, directory, image_size=image_size, seed=seed, progress=progress)


def _hash(content: dict[str, Any]) -> str:
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()
