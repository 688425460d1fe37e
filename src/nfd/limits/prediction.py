"""The result of ``nfd.predict``, as numbers, a table and text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nfd.core.estimates import Interval
from nfd.core.statistics import rms
from nfd.core.tables import as_text, table_of
from nfd.limits.loss import LimitLosses

_WIDTH = 150  # of the printed table, at most


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """The result of ``nfd.predict``: losses of an infinitely wide network. Print it to see them.

    The bias from the finite width of the trained networks is estimated and subtracted. The 95 % intervals include the
    noise of the networks, the noise of this correction and, for infinite depth, the change at the last doubling of the
    depth.

    Attributes:
        loss, loss_stderr, loss_low, loss_high: [steps], mean losses of the batches, before the update of each step;
            their standard errors and 95 % intervals.
        loss_bias, loss_bias_stderr: [steps], the bias of ``width``, which was subtracted, and its error.
        loss_resolution_bias, loss_resolution_bias_stderr: [steps], the bias from the resolution of structured
            weights, measured by narrower networks, and its error. It is not subtracted; the intervals include it. Zero
            for other weights.
        loss_sampling_error, loss_depth_error: [steps], the other parts of the error: the standard error of the wide
            networks, and the change of the losses at the last doubling of the depth.
        loss_replicates: [replicates, steps], the losses of the limit by single replicates: their mean is ``loss``.
            Subtract those of two predictions with the same sizes and replicates to get an interval for the
            difference (docs/two-limits.md). Their spread does not include the errors of depth and resolution.
        outputs, outputs_stderr: [steps, batch, C], the mean outputs before every step and their standard errors, where
            they were asked for; else None.
        eval_loss, eval_loss_stderr, eval_loss_low, eval_loss_high, eval_loss_bias, eval_loss_bias_stderr,
            eval_loss_resolution_bias, eval_loss_resolution_bias_stderr, eval_loss_sampling_error,
            eval_loss_depth_error, eval_loss_replicates: the same of the mean evaluation loss after the last step; None
            without evaluation data. At infinite depth it is the floor of the law of size.
        about: how the batches were read: their number, samples and shape, in words.
        depths: depths that were trained; the last two are extrapolated when ``depth`` is infinite.
        extrapolated: whether they were; otherwise all numbers are those of the last of ``depths``.
        width, replicates: of the wide networks. narrow_width: of the networks that estimate the bias.
        converged: at infinite depth, whether the last doubling of the depth moved the extrapolated losses by less than
            ``rtol``, and noise is small enough to see it. At a finite depth it is True
            unless training diverged. It says nothing of the convergence in width, which the intervals include.
        growth: exponent g of the change from depth L to 2L, ``~ L**g`` (-1 expected), from the first and the last
            doubling; None before there are two.
        weights: "structured", "deferred" or "dense".
        seconds: time of the prediction.
        note: limitations of the answer, in words; empty if there are none.

    Example::

        p = nfd.predict(nfd.resnets(64, 10), batches, lr=0.3, depth=2, width=32, replicates=2)
        for row in p.table:
            print(row["step"], row["value"], row["low"], row["high"])
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
    loss_replicates: Tensor
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
    eval_loss_replicates: Tensor | None
    about: str
    depths: tuple[int, ...]
    extrapolated: bool
    width: int
    narrow_width: int
    replicates: int
    converged: bool
    growth: float | None
    weights: str
    seconds: float
    note: str
    outputs: Tensor | None = None
    outputs_stderr: Tensor | None = None

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per step: ``step``, and the loss as ``value``, ``stderr``, ``low``, ``high``.

        Further keys: ``bias``, which was subtracted, ``bias_stderr``, ``resolution_bias``, ``resolution_bias_stderr``,
        ``sampling_error`` and ``depth_error``. ``loss`` repeats ``value``. Not-a-number after a divergence.
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
        table = table_of("", "loss [95 % interval]", f"bias of width {self.width:,}, subtracted, +- its error")
        for row in self._shown():
            table.add_row(*row)
        made = (
            f"{self.replicates} networks of width {self.width:,} ({self.weights} weights) and {self.replicates} of "
            f"width {self.narrow_width:,}, {self.seconds:.1f} s."
        )
        shorter = self._of_resolution() if bool((self.loss_resolution_bias > 0).any()) else ""
        reached = self._reached() if self.extrapolated and self.converged else ""
        parts = (as_text(table, _WIDTH), self._parts(), made, shorter, reached, self.note)
        lines = (f"Infinitely wide network, {depth}, {self.about}", *parts)
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

    def _reached(self) -> str:
        """That depth converged, and within which error."""
        return (
            f"The limit in depth was reached: the last doubling of the depth moved the "
            f"extrapolated losses by {rms(self.loss_depth_error):.1e} (RMS)."
        )

    def _of_resolution(self) -> str:
        """What the resolution adds, and its error."""
        added, error = rms(self.loss_resolution_bias), rms(self.loss_resolution_bias_stderr)
        return (
            f"The resolution of structured layers adds {added:.1e} +- {error:.1e} to the losses (RMS over steps; "
            "measured by narrower networks without one). The intervals include this."
        )

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        rows = self.table
        for row in rows if len(rows) == 1 else (rows[0], rows[-1]):
            loss = Interval(row["loss"], row["stderr"], row["low"], row["high"])
            yield f"step {row['step']}", _shown_loss(loss), _added(row["bias"], row["bias_stderr"])
        if self.eval_interval is not None and self.eval_loss_bias is not None:
            added = _added(self.eval_loss_bias, self.eval_loss_bias_stderr or math.nan)
            yield "evaluation, after the last step", _shown_loss(self.eval_interval), added


def _shown_loss(loss: Interval) -> str:
    if not math.isfinite(loss.value):
        return "diverged"
    return loss.unsigned if math.isfinite(loss.low) else f"{loss.value:.4f} (interval not known)"


def _added(bias: float, error: float) -> str:
    return f"{bias:+.4f} +- {error:.4f}" if math.isfinite(bias) else "not known"
