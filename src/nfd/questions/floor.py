"""The floor of the law of size a second way: the loss of the infinite network that these runs are of, without a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nfd.core.statistics import Interval
from nfd.limits.prediction import Prediction
from nfd.questions.findings.finding import numbers
from nfd.questions.predict import predict
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.runs.trained import tested
from nfd.scaling.laws import law_of
from nfd.scaling.rules import rule_named

_ACCURACY = 0.1  # rtol: how little the outputs may still move with the depth


class NoLimit(Enum):
    """What runs have that the networks of ``nfd.predict`` have not, in words about a run ``base``."""

    VANILLA = "the runs are of the vanilla network (nfd.MLP); nfd.predict knows residual networks alone."
    KERNEL = "the runs are in the kernel regime (rule='ntk'); nfd.predict knows the feature regime alone."
    DEPTH = "rule={base.rule!r} has no limit of large depth."
    ORDER = "the runs have order={base.order!r}; nfd.predict knows pre-activation alone."
    OPTIMIZER = "the runs are trained by {base.optimizer}; nfd.predict trains by SGD alone."


@dataclass(frozen=True)
class Floor:
    """The loss of the infinite network by ``nfd.predict``, or None; ``note`` says what limits it, or why there is none.

    ``width_bias`` is what the finite width had added; ``loss`` has it subtracted. ``reason`` is set where
    ``nfd.predict`` has no such networks.
    """

    loss: Interval | None
    width: int
    replicates: int
    width_bias: float | None
    note: str
    reason: NoLimit | None = None

    def sentence(self) -> str:
        """The floor in a sentence."""
        if self.loss is None:
            return f"No floor by nfd.predict: {self.note}"
        return (
            f"nfd.predict ({self.replicates} networks of width {self.width}, bias of width subtracted) puts "
            f"the floor at {self.loss.unsigned}. {self.note}"
        ).strip()

    def beside(self, fitted: Interval) -> str:
        """The same, and how far from it the floor of the law is."""
        if self.loss is None:
            return self.sentence()
        apart = fitted.minus(self.loss)
        half = (apart.high - apart.low) / 2
        told = "more than" if apart.resolved else "within"
        beside = f"The law's is {apart.value:+.3f} from it, {told} the {half:.3f} that this check can see."
        return f"{self.sentence()} {beside}"

    def numbers(self) -> dict[str, Any]:
        """The same as numbers, for ``result.json``."""
        loss = numbers(self.loss)
        return {"floor_predicted": loss, "floor_predicted_bias": self.width_bias, "floor_predicted_note": self.note}


def floor_of(base: RunConfig, width: int, replicates: int, sweep: Sweep) -> Floor | None:
    """The floor for the batches and test samples of these runs, by ``nfd.predict``; None for no replicates.

    Its networks are trained by the executor of the sweep. They are kept beside the sweep's runs, in ``floor``.
    """
    if replicates < 2:
        return None
    reason = no_limit(base)
    if reason:
        return Floor(None, width, replicates, None, reason.value.format(base=base), reason)
    out = None if sweep.directory is None else sweep.directory / "floor"
    options: dict[str, Any] = {"width": width, "replicates": replicates, "rtol": _ACCURACY, "progress": sweep.progress}
    return floor_in(predict(**settings_of(base), **options, out=out, executor=sweep.executor))


def no_limit(base: RunConfig) -> NoLimit | None:
    """Why ``nfd.predict`` has no limit for runs like this one; None where it has."""
    excluded = {
        NoLimit.VANILLA: base.network != "resnet",
        NoLimit.KERNEL: rule_named(base.rule).regime == "kernel",
        NoLimit.DEPTH: not rule_named(base.rule).scales_depth,
        NoLimit.ORDER: base.order != "pre",
        NoLimit.OPTIMIZER: not law_of(base.optimizer).is_linear,
    }
    return next((reason for reason, holds in excluded.items() if holds), None)


def settings_of(base: RunConfig) -> dict[str, Any]:
    """The question to ``nfd.predict`` about runs like this one."""
    dataset = dataset_of(base)
    inputs, targets = dataset.batches(base.batch, base.steps, base.data_seed)
    names = ("horizon", "activation", "block", "eta_c", "momentum", "feedback", "rule")
    return {name: getattr(base, name) for name in names} | {
        "inputs": inputs,
        "targets": targets,
        "classes": len(dataset.classes),
        "eval_inputs": dataset.test_inputs[tested(base)],
        "eval_targets": dataset.test_labels[tested(base)],
    }


def floor_in(predicted: Prediction) -> Floor:
    """The floor that a prediction gives: none where it diverged, and where no limit in depth was seen."""
    loss = predicted.eval_interval
    known = predicted.extrapolated and loss is not None and math.isfinite(loss.low)
    return Floor(
        loss if known else None, predicted.width, predicted.replicates, predicted.eval_loss_bias, predicted.note
    )
