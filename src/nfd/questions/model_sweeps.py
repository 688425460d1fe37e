"""Transfer from the command line of anyone's networks: a constructor and batches by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nfd.core.errors import check_device
from nfd.questions.named import batches_of, named, named_batches, training_of
from nfd.questions.sweep_settings import ModelSweepConfig, ModelTransferConfig
from nfd.questions.transfer import Transfer
from nfd.questions.transfer_model import transfer
from nfd.runs.executors.executor import Executor


def transfer_of_model(
    config: ModelTransferConfig, model: str, *, out: Path, executor: Executor, device: str
) -> tuple[Transfer, str]:
    """The transfer that the settings describe, of the constructor ``model``; and what the data were."""
    place = check_device(device)  # before the data are read
    batches, data = batches_of(config, config.steps)
    answer = transfer(
        named(model, "model"),
        config.widths,
        config.depths,
        batches,
        rules=config.rules,
        lr=config.lr,
        out=out,
        executor=executor,
        device=place,
        **_training(config),
    )
    return answer, data


def _training(config: ModelSweepConfig) -> dict[str, Any]:
    """What both sweeps share."""
    judged = None if config.eval_batches is None else named_batches(config.eval_batches, "eval_batches")
    return training_of(config) | {"eval_batches": judged, "version": config.version, "progress": True}
