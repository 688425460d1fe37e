"""Transfer and capacity from the command line, of the user's networks: a constructor and batches by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nfd.questions.capacity import Capacity
from nfd.questions.capacity_model import capacity
from nfd.questions.capacity_sweep import budgets_of
from nfd.questions.costs import amount
from nfd.questions.named import arguments_of, evaluation_arguments, telling_of_pixels
from nfd.questions.sweep_settings import ModelCapacityConfig, ModelSweepConfig, ModelTransferConfig
from nfd.questions.transfer import Transfer
from nfd.questions.transfer_model import transfer
from nfd.runs.executors.executor import Executor
from nfd.runs.fields import values_by_name


def transfer_of_model(
    config: ModelTransferConfig, model: str, *, out: Path, executor: Executor, device: str | None
) -> tuple[Transfer, str]:
    """The transfer that the settings describe, of the constructor ``model``; and what the data were."""
    arguments, data = _arguments(config, model, device)
    axes = None if config.axes is None else values_by_name(config.axes)
    own = {name: getattr(config, name) for name in ("rules", "lr", "adamw_lr", "halving")}
    with telling_of_pixels(config):
        return transfer(**arguments, **own, axes=axes, out=out, executor=executor), data


def capacity_of_model(
    config: ModelCapacityConfig, model: str, *, out: Path, executor: Executor, device: str | None
) -> tuple[Capacity, str]:
    """The capacity that the settings describe, of the constructor ``model``; and what the data were."""
    for resource, budget in budgets_of(config).items():
        amount(resource, budget)  # can be read, before anything is trained
    arguments, data = _arguments(config, model, device)
    own = {name: getattr(config, name) for name in ("rule", "lr", "lengths")}
    with telling_of_pixels(config):
        return capacity(**arguments, **own, out=out, executor=executor), data


def _arguments(config: ModelSweepConfig, model: str, device: str | None) -> tuple[dict[str, Any], str]:
    """What both sweeps share."""
    arguments, data = arguments_of(config, model, config.steps, device)
    return arguments | evaluation_arguments(config), data
