"""Predictions from the command line: of the paper's networks on a data set, and of a constructor's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nfd
from nfd.core.defaults import OPTIMIZER
from nfd.core.errors import check_device
from nfd.data.load import load
from nfd.limits.prediction import LossPrediction
from nfd.questions.findings.finding import numbers
from nfd.questions.named import evaluation_arguments, telling_of_pixels, training_arguments
from nfd.questions.predict import predict
from nfd.runs.config import Config
from nfd.runs.executors.executor import Executor
from nfd.runs.model_settings import EvaluationConfig, ModelPredictConfig, RecipeConfig
from nfd.runs.settings import DataConfig, PredictConfig
from nfd.scaling.laws import law_of

_FACTS = (
    "depths",
    "extrapolated",
    "width",
    "narrow_width",
    "replicates",
    "weights",
    "resolution",
    "rtol",
    "converged",
    "growth",
    "seconds",
    "note",
)
_OF_OUTPUTS = ("bias", "bias_stderr")  # of the paper's networks alone
_OF_BATCHES = ("steps", "batch", "depth")


@dataclass(frozen=True)
class Predicted:
    """A configuration, what it ran on, and what ``nfd.predict`` said; ``lr``: of the base of a constructor."""

    config: PredictConfig | ModelPredictConfig
    data: Mapping[str, Any]
    prediction: LossPrediction
    lr: float = math.nan

    def result(self) -> dict[str, Any]:
        """What goes into result.json."""
        p = self.prediction
        facts = {name: getattr(p, name) for name in (*_FACTS, *_OF_OUTPUTS) if hasattr(p, name)}
        predicted = {"ways": [asdict(way) for way in p.ways], "eval_loss": numbers(p.eval_interval)}
        predicted["weighing"] = None if p.weighing is None else asdict(p.weighing)
        config = self.config.model_dump() | {"depth": "inf" if self.config.depth == math.inf else self.config.depth}
        return {"config": config, **self.data, **facts, **predicted, "nfd": nfd.__version__, "rows": p.table}


def prediction(
    config: PredictConfig,
    *,
    device: str = "cpu",
    out: Path | None = None,
    executor: Executor | None = None,
    progress: bool = False,
) -> Predicted:
    """Run ``nfd.predict`` of the paper's networks as configured."""
    c, place = config, check_device(device)
    dataset = load(c.data, c.data_dir, image_size=c.image_size, seed=c.seed, progress=progress)
    inputs, targets = dataset.batches(c.batch, c.steps, c.seed)
    predicted = predict(
        inputs,
        targets,
        **_own(config, {*DataConfig.model_fields, *_OF_BATCHES}),
        depth=_depth(c.depth),
        classes=len(dataset.classes),
        seed=c.seed,
        device=place,
        out=out,
        executor=executor,
        progress=progress,
    )
    return Predicted(config, {"data": dataset.source, "data_fingerprint": dataset.fingerprint}, predicted)


def prediction_of_model(
    config: ModelPredictConfig, model: str, *, out: Path, executor: Executor, device: str | None
) -> Predicted:
    """Run ``nfd.predict`` of the constructor ``model`` as configured."""
    arguments, data = training_arguments(config, model, config.steps, device)
    with telling_of_pixels(config):
        predicted = predict(
            **arguments,
            **evaluation_arguments(config),
            **_own(config, {*RecipeConfig.model_fields, *EvaluationConfig.model_fields, "depth"}),
            depth=_depth(config.depth),
            seed=config.seed,
            out=out,
            executor=executor,
        )
    rate = law_of(arguments["optimizer"] or OPTIMIZER).check_rate if config.lr is None else config.lr
    return Predicted(config, {"model": model, "data": data}, predicted, rate)


def _own(config: Config, shared: set[str]) -> dict[str, Any]:
    """The settings beside these."""
    return {name: getattr(config, name) for name in type(config).model_fields if name not in shared}


def _depth(depth: float) -> float:
    return depth if depth == math.inf else int(depth)
