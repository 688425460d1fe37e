"""The result of ``nfd.predict``, as numbers, a table and text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nfd.core.statistics import Interval, rms
from nfd.core.tables import as_text, table_of
from nfd.limits.cost import Storage
from nfd.limits.loss import LimitLosses
from nfd.limits.weighing import Weighing

_WIDTH = 150  # of the printed table, at most


@dataclass(frozen=True, repr=False)
class LossPrediction:
    """The losses of an infinitely wide network, as ``nfd.predict`` returns them; ``print`` shows them.

    Losses are those of the infinitely wide network: what the finite width of the networks that were run adds is
    estimated and taken out, and their 95 % intervals count the noise of the networks, that of this correction and,
    where the depth is infinite, how far the last doubling of the depth moved them.

    Attributes:
        loss, loss_stderr, loss_low, loss_high: [steps], batch means, their standard errors and intervals.
        loss_bias, loss_bias_stderr: [steps], what ``width`` had added to the loss, and its error.
        loss_resolution_bias, loss_resolution_bias_stderr: [steps], what the resolution of structured weights adds, at
            most, and its error; it is not taken out, and the intervals count it. Zero for other weights.
        loss_sampling_error, loss_depth_error: [steps], the other parts of the error beside that of ``loss_bias``: the
            standard error of the wide networks, and how far the last doubling of the depth moved the losses.
        resolution: of structured weights, 0 where nothing is dropped; None for others.
        weighing: exact layers against a resolution, predicted, where ``resolution="auto"`` chose; else None.
        eval_loss, eval_loss_stderr, eval_loss_low, eval_loss_high, eval_loss_bias, eval_loss_bias_stderr,
            eval_loss_resolution_bias, eval_loss_resolution_bias_stderr, eval_loss_sampling_error,
            eval_loss_depth_error: the same of the mean loss on what is evaluated after the last step; None without it.
            With the depth infinite it is the floor of the law of size.
        depths: depths that were run; the last two are extrapolated when ``depth`` is infinite.
        extrapolated: whether they were; otherwise everything is of the last of ``depths``.
        width, replicates: of the ensembles. narrow_width: of those that show what ``width`` adds.
        converged: whether the limit in depth was reached within ``rtol`` and the noise is small enough to tell
            (always True for a finite depth that did not diverge).
        growth: exponent g of the change from depth L to 2L, ``~ L**g`` (-1 expected), from the first and the last
            doubling; None before there are two.
        weights: "structured", "deferred" or "dense", the cheaper by predicted cost.
        ways: how a network of ``width`` at the last of ``depths`` could hold its weights, each with the bytes and the
            seconds that were predicted.
        seconds: time it took.
        note: what limits the answer; empty if nothing.
    """

    loss: Tensor
    loss_stderr: Tensor
    loss_low: Tensor
    loss_high: Tensor
    loss_bias: Tensor
    loss_bias_stderr: Tensor
    loss_resolution_bias: Tensor
    loss_resolution_bias_stderr: Tensor
    loss_sampling_error: Tensor
    loss_depth_error: Tensor
    eval_loss: float | None
    eval_loss_stderr: float | None
    eval_loss_low: float | None
    eval_loss_high: float | None
    eval_loss_bias: float | None
    eval_loss_bias_stderr: float | None
    eval_loss_resolution_bias: float | None
    eval_loss_resolution_bias_stderr: float | None
    eval_loss_sampling_error: float | None
    eval_loss_depth_error: float | None
    depths: tuple[int, ...]
    extrapolated: bool
    width: int
    narrow_width: int
    replicates: int
    converged: bool
    growth: float | None
    weights: str
    resolution: float | None
    weighing: Weighing | None
    ways: tuple[Storage, ...]
    seconds: float
    note: str

    @property
    def table(self) -> list[dict[str, Any]]:
        """The loss at every step: its value, standard error and 95 % interval, and what width had added.

        ``value`` is the loss too, as in the tables of all results.
        """
        attributes = LimitLosses.names("loss")
        names = ["loss", *(name.removeprefix("loss_") for name in attributes[1:])]
        values = zip(*(getattr(self, name).tolist() for name in attributes), strict=True)
        return [{"step": step, "value": row[0]} | dict(zip(names, row, strict=True)) for step, row in enumerate(values)]

    @property
    def eval_interval(self) -> Interval | None:
        """The evaluation loss with its error and 95 % interval; None without ``eval_targets``."""
        values = (self.eval_loss, self.eval_loss_stderr, self.eval_loss_low, self.eval_loss_high)
        return None if None in values else Interval(*(v for v in values if v is not None))

    def __str__(self) -> str:
        depth = f"infinite depth, from {', '.join(map(str, self.depths))}" if self.extrapolated else (
            f"depth {self.depths[-1]}"
        )  # fmt: skip
        table = table_of("", "loss [95 % interval]", f"bias of width {self.width:,}, taken out, +- its error")
        for row in self._shown():
            table.add_row(*row)
        made = (
            f"{self.replicates} networks of width {self.width:,} ({self.weights} weights) and {self.replicates} of "
            f"width {self.narrow_width:,}, {self.seconds:.1f} s{self._remark()}."
        )
        shorter = self._of_resolution() if self.resolution else ""
        reached = "The limit in depth was reached." if self.extrapolated and self.converged else ""
        weighed = "" if self.weighing is None else str(self.weighing)
        parts = (as_text(table, _WIDTH), self._parts(), made, shorter, weighed, reached, self.note)
        lines = (f"Infinitely wide network, {depth}", *parts)
        return "\n".join(line for line in lines if line)

    __repr__ = __str__

    def _parts(self) -> str:
        """Each part of the error; those that are there."""
        parts = {
            "sampling": rms(self.loss_sampling_error),
            "width": rms(self.loss_bias_stderr),
            "resolution": rms(self.loss_resolution_bias),
            "depth": rms(self.loss_depth_error),
        }
        there = ", ".join(f"{name} {size:.1e}" for name, size in parts.items() if size)
        return f"Parts of the error of the losses (RMS over steps): {there}."

    def _of_resolution(self) -> str:
        """What the resolution adds, and its error."""
        added, error = rms(self.loss_resolution_bias), rms(self.loss_resolution_bias_stderr)
        return (
            f"Resolution {self.resolution:g} adds {added:.1e} +- {error:.1e} to the losses at most (RMS over steps, by "
            "half of it at the narrower width), which their intervals count."
        )

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        rows = self.table
        for row in rows if len(rows) == 1 else (rows[0], rows[-1]):
            loss = Interval(row["loss"], row["stderr"], row["low"], row["high"])
            yield f"step {row['step']}", _shown_loss(loss), _added(row["bias"], row["bias_stderr"])
        if self.eval_interval is not None and self.eval_loss_bias is not None:
            added = _added(self.eval_loss_bias, self.eval_loss_bias_stderr or math.nan)
            yield "evaluation, after the last step", _shown_loss(self.eval_interval), added

    def _remark(self) -> str:
        """What the kinds of weights were predicted to cost, from which the kind was chosen."""
        costs = [f"{way.weights} {way.seconds:.2g} s and {way.bytes / 2**20:,.0f} MiB" for way in self.ways]
        return f"; predicted for each of width {self.width:,}: {', '.join(costs)}"


@dataclass(frozen=True, repr=False)
class Prediction(LossPrediction):
    """The answer of ``nfd.predict`` for the paper's networks: losses, and outputs, which are means at ``width``.

    Attributes:
        outputs, outputs_stderr: [steps, batch, C], before the update of each step; the error counts noise alone.
        eval_outputs, eval_stderr: [n_eval, C] after the last step, or None.
        bias, bias_stderr: RMS over outputs of the O(1/n) error after noise is subtracted, and that noise, in units of
            the outputs.

    The other attributes are those of ``nfd.LossPrediction``.
    """

    outputs: Tensor
    outputs_stderr: Tensor
    eval_outputs: Tensor | None
    eval_stderr: Tensor | None
    bias: float
    bias_stderr: float

    def _remark(self) -> str:
        return f"{super()._remark()}. {self._bias()}"

    def _bias(self) -> str:
        if math.isnan(self.bias):
            return "Their bias of width is not known"
        if not self.bias > 0:
            return f"Their outputs have no significant bias of width (noise {self.bias_stderr:.1e})"
        return f"The bias of width in their outputs is {self.bias:.1e} (RMS; noise {self.bias_stderr:.1e})"


def _shown_loss(loss: Interval) -> str:
    if not math.isfinite(loss.value):
        return "diverged"
    return loss.unsigned if math.isfinite(loss.low) else f"{loss.value:.4f} (interval not known)"


def _added(bias: float, error: float) -> str:
    return f"{bias:+.4f} +- {error:.4f}" if math.isfinite(bias) else "not known"
