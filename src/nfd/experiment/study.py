"""The main job: how a residual network trains when infinitely wide, and how far real ones are from that."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

import nfd
from nfd.core.activations import ACTIVATIONS
from nfd.core.errors import check_choice, check_count, check_real
from nfd.core.machine import peak_memory
from nfd.core.progress import Bar, bar
from nfd.core.random import check_seed, derive
from nfd.data.digits import digits
from nfd.limits.predict import Prediction, predict
from nfd.nets.network import MAX_ETA_C
from nfd.nets.resnet import ResNet
from nfd.nets.sgd import SGD
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

FEEDBACKS = {"shared": "infinitely wide", "independent": "infinitely wide, decoupled"}
Row = dict[str, Any]
_WIDEST_DENSE = 16384


@dataclass(frozen=True)
class StudyConfig:
    """Everything that decides a study's numbers; stored with them."""

    data: str = "digits"
    depth: int = 8
    horizon: float = 1.0
    activation: str = "relu"
    eta_c: float = 0.3
    steps: int = 40
    batch: int = 16
    widths: tuple[int, ...] = (64, 256, 1024)
    seeds: int = 5
    limit_width: int = 4096
    replicates: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("data", self.data, ("digits",))
        check_choice("activation", self.activation, ACTIVATIONS)
        for name in ("depth", "steps", "batch", "limit_width"):
            check_count(name, getattr(self, name))
        for name in ("seeds", "replicates"):
            check_count(name, getattr(self, name), minimum=2)
        for width in self.widths or (0,):
            check_count("widths", width)
            if width > _WIDEST_DENSE:
                raise ValueError(f"widths must be at most {_WIDEST_DENSE}, as these hold dense weights; got {width}.")
        check_real("horizon", self.horizon, above=0.0)
        check_real("eta_c", self.eta_c, least=0.0, below=MAX_ETA_C)
        check_seed(self.seed)


@dataclass(frozen=True)
class Study:
    """A finished study: tidy curve rows, the gap rows, the facts of the run and its reading in words."""

    config: StudyConfig
    curves: list[Row]
    gaps: list[Row]
    reading: list[str]
    run: Row

    def result(self) -> Row:
        """What goes into result.json."""
        return {
            "config": asdict(self.config),
            "reading": self.reading,
            "gaps": self.gaps,
            "curves": self.curves,
            "run": self.run,
        }


def study(config: StudyConfig, *, progress: bool = False) -> Study:
    """Predict the infinitely wide network with both feedbacks, train real ones on the same batches, compare."""
    start = time.perf_counter()
    inputs, targets = digits(config.seed).batches(config.batch, config.steps, config.seed)
    limits = {name: _limit(config, inputs, targets, name, progress) for name in FEEDBACKS}
    with bar("real networks", enabled=progress) as shown:
        losses = {width: _real(config, inputs, targets, width, shown) for width in config.widths}
    curves = [row for name, p in limits.items() for row in _limit_rows(FEEDBACKS[name], p)]
    curves += [row for width, values in losses.items() for row in _real_rows(f"width {width}", values)]
    gaps = _gaps(limits, losses)
    run = _facts(limits["shared"], time.perf_counter() - start)
    return Study(config, curves, gaps, _reading(config, limits, gaps), run)


def _limit(config: StudyConfig, x: Tensor, y: Tensor, feedback: str, progress: bool) -> Prediction:
    return predict(
        x,
        y,
        depth=config.depth,
        horizon=config.horizon,
        activation=config.activation,
        eta_c=config.eta_c,
        classes=10,
        feedback=feedback,
        width=config.limit_width,
        rtol=0.05,
        replicates=config.replicates,
        seed=config.seed,
        progress=progress,
    )


def _real(config: StudyConfig, x: Tensor, y: Tensor, width: int, shown: Bar) -> Tensor:
    """Loss curves [seeds, steps] of real networks; not-a-number after divergence."""
    shown.plan(float(config.seeds * width**2), f"real networks of width {width}")
    curves = torch.full((config.seeds, config.steps), torch.nan, dtype=torch.float64)
    for index in range(config.seeds):
        net = ResNet(
            x.shape[2],
            10,
            width,
            config.depth,
            horizon=config.horizon,
            activation=config.activation,
            seed=derive(config.seed, "real", index),
        )
        optimizer = SGD(net.param_groups(config.eta_c))
        for row in train(net, optimizer, zip(x, y, strict=True), cross_entropy):
            curves[index, row.step] = row.loss
        shown.advance(float(width**2))
    return curves


def _limit_rows(series: str, p: Prediction) -> Iterator[Row]:
    for step, (mean, error) in enumerate(zip(p.loss.tolist(), p.loss_stderr.tolist(), strict=True)):
        yield {"series": series, "step": step, "loss": mean, "low": mean - 2 * error, "high": mean + 2 * error}


def _real_rows(series: str, losses: Tensor) -> Iterator[Row]:
    for step, (mean, sd) in enumerate(zip(losses.mean(0).tolist(), losses.std(0).tolist(), strict=True)):
        yield {"series": series, "step": step, "loss": mean, "low": mean - sd, "high": mean + sd}


def _gaps(limits: dict[str, Prediction], losses: dict[int, Tensor]) -> list[Row]:
    """Mean over steps of the loss above the infinitely wide network's, with a 95 % interval (Student's t).

    The error of the prediction's mean is bounded by the RMS of its errors, as if all steps erred together.
    """
    shared, independent = limits["shared"], limits["independent"]
    own = float(shared.loss_stderr.square().mean().sqrt())
    rows = []
    for width, values in losses.items():
        each = (values - shared.loss).mean(1)
        half = math.hypot(_t(len(each)) * float(each.std()) / math.sqrt(len(each)), _t(shared.replicates) * own)
        rows.append(_gap(f"width {width}", float(each.mean()), half))
    half = _t(shared.replicates) * math.hypot(own, float(independent.loss_stderr.square().mean().sqrt()))
    rows.append(_gap(FEEDBACKS["independent"], float((independent.loss - shared.loss).mean()), half))
    return rows


def _t(count: int) -> float:
    """The 97.5 % quantile of Student's t for the mean of ``count`` values."""
    return float(stats.t.ppf(0.975, count - 1))


def _gap(series: str, value: float, half: float) -> Row:
    return {"series": series, "gap": value, "low": value - half, "high": value + half}


def _reading(config: StudyConfig, limits: dict[str, Prediction], gaps: list[Row]) -> list[str]:
    first, last = (float(limits["shared"].loss[k]) for k in (0, -1))
    *real, independent = gaps
    apart = "; ".join(f"{g['series']}: {_interval(g)}" for g in real)
    progress = first - last
    share = f", {abs(independent['gap']) / progress:.0%} of the progress made" if progress > 0 else ""
    apart_from_zero = independent["low"] > 0 or independent["high"] < 0
    verdict = "differs from" if apart_from_zero else "cannot be told apart from"
    notes = [f"{FEEDBACKS[name].capitalize()}: {p.note}" for name, p in limits.items() if not p.converged]
    return [
        f"The infinitely wide network of depth {config.depth} (width {config.limit_width} stands for it) goes from "
        f"loss {first:.3f} to {last:.3f} nats in {config.steps} steps of {config.batch}.",
        f"The loss of real networks minus its loss, on average over the steps: {apart} (95 % intervals).",
        f"The decoupled network (independent backward weights, the paper's limit) {verdict} the standard one: "
        f"mean gap {_interval(independent)}{share}.",
        *notes,
    ]


def _interval(row: Row) -> str:
    return f"{row['gap']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def _facts(p: Prediction, seconds: float) -> Row:
    return {
        "seconds": round(seconds, 1),
        "peak_memory_gib": round(peak_memory() / 2**30, 2),
        "limit_width": p.width,
        "limit_replicates": p.replicates,
        "limit_weights": p.weights,
        "limit_width_bias": p.bias,
        "nfd": nfd.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
