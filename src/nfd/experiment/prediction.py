"""A prediction of one configuration on one data set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import nfd
from nfd.core.errors import check_device
from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.experiment.settings import DataConfig, PredictConfig
from nfd.limits.predict import Prediction, predict

_FACTS = ("depths", "width", "replicates", "weights", "bias", "bias_stderr", "converged", "growth", "seconds", "note")
_OF_BATCHES = ("steps", "batch", "depth")


@dataclass(frozen=True)
class Predicted:
    """A configuration, the data set it ran on, and what ``nfd.predict`` said."""

    config: PredictConfig
    dataset: Dataset
    found: Prediction

    def rows(self) -> list[dict[str, Any]]:
        """Step, loss and standard error."""
        pairs = zip(self.found.loss.tolist(), self.found.loss_stderr.tolist(), strict=True)
        return [{"step": k, "loss": loss, "stderr": error} for k, (loss, error) in enumerate(pairs)]

    def result(self) -> dict[str, Any]:
        """What goes into result.json."""
        config = self.config.model_dump() | {"depth": "inf" if self.config.depth == math.inf else self.config.depth}
        facts = {name: getattr(self.found, name) for name in _FACTS}
        data = {"data": self.dataset.source, "data_fingerprint": self.dataset.fingerprint}
        return {"config": config, **data, **facts, "nfd": nfd.__version__, "rows": self.rows()}


def prediction(config: PredictConfig, *, device: str = "cpu", progress: bool = False) -> Predicted:
    """Run ``nfd.predict`` as configured, on a device."""
    c, place = config, check_device(device)
    dataset = load(c.data, c.data_dir, image_size=c.image_size, seed=c.seed, progress=progress)
    inputs, targets = dataset.batches(c.batch, c.steps, c.seed)
    own = set(PredictConfig.model_fields) - set(DataConfig.model_fields) - set(_OF_BATCHES)
    found = predict(
        inputs,
        targets,
        depth=c.depth if c.depth == math.inf else int(c.depth),
        classes=len(dataset.classes),
        seed=c.seed,
        device=place,
        progress=progress,
        **{name: getattr(c, name) for name in own},
    )
    return Predicted(config, dataset, found)


def _bias(p: Prediction) -> str:
    if not p.bias > 0:
        return f"width bias not seen (noise {p.bias_stderr:.1e})"
    return f"width bias {p.bias:.1e} +- {p.bias_stderr:.1e}"


def summary(done: Predicted) -> str:
    """The prediction in two sentences."""
    p, rows = done.found, done.rows()
    first, last = rows[0], rows[-1]
    text = (
        f"Loss {first['loss']:.4f} +- {first['stderr']:.4f} at step 0, {last['loss']:.4f} +- {last['stderr']:.4f} at "
        f"step {last['step']} (depth {', '.join(map(str, p.depths))}; width {p.width}, {p.replicates} replicates, "
        f"{p.weights} weights; {_bias(p)})."
    )
    if p.note or done.config.depth == math.inf:
        text += f"\n{p.note or 'The limit in depth was reached.'}"
    return text
