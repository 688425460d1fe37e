"""``nfd.predict``: how an infinitely wide network trains, from networks of two widths."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from torch import Tensor

from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    NetworkWeights,
    check_choice,
    check_count,
    check_depth,
    check_flag,
    check_real,
)
from nfd.core.estimates import Interval, rms, stderr
from nfd.core.machine import undisturbed
from nfd.core.tables import as_text, table_of
from nfd.families.family import Family, as_family
from nfd.limits.extrapolate import PARTS, Ensemble, Ensembles, Limit, divergence, limit_losses, to_infinity
from nfd.runs.sweep import Sweep
from nfd.runs.task import Batch, Task, as_task
from nfd.scaling.entries import MakeModel
from nfd.scaling.optimizers import names_where
from nfd.scaling.rules import MAX_RATE, check_limit

# ---- ``nfd.predict``: how an infinitely wide network trains, from networks of two widths


WIDTH, REPLICATES = 1024, 8
LEVER = 4  # how many times narrower the networks are that show the bias of width: fewer add noise, more bend 1/n
_RTOL = 0.01  # of the limit in depth, where none is asked for
_DOUBLINGS = 6  # of the depth, at most
_SHALLOWEST = 8  # where the base has depth 1
_MOST_REPLICATES = 1024
_BENT = 16  # the width at which c/n^2 may be as large as a/n: intervals without it held .87 under Muon at 64 over 16
_PAIRS = 4  # of networks that show the bias of resolution


At = Callable[[int], Ensemble]


@undisturbed()
def predict(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    lr: float | None = None,
    *,
    depth: float = math.inf,
    width: int | None = None,
    replicates: int = REPLICATES,
    weights: NetworkWeights | None = None,
    rtol: float | None = None,
    outputs: bool = False,
    sweep: Sweep | None = None,
) -> Prediction:
    """Predict how an infinitely wide network trains: its loss before every step, with 95 % intervals.

    Networks of two widths are trained on the task: R of width n, and R that are r times narrower. Their mean loss at
    width n is ``loss + a / n``, so the two widths give the loss of the infinitely wide network:

        loss = loss(n) - bias,    bias = (loss(n / r) - loss(n)) / (r - 1).

    Standard errors come from the spread over seeds. For infinite depth, the depth L is doubled from that of the base
    until the extrapolated loss ``2 loss_2L - loss_L`` changes by less than ``rtol``.

    Example::

        p = nfd.predict(nfd.resnets(64, 10), batches, lr=0.3, depth=4, width=64, replicates=2)
        print(p)
        p.loss, p.loss_low, p.loss_high  # of every step

    Args:
        family: an ``nfd.Family``, such as ``nfd.resnets(...)``, or a function of (width, depth).
        task: batches, one update for each, or an ``nfd.Task``.
        lr: of the base; for ``nfd.resnets`` the paper's ``eta_c``. By default the usual rate of the optimizer.
        depth: L, or ``math.inf`` under a rule with a limit in depth (``"depth-mup"``, ``"complete-p"``).
        width: n, a multiple of the base's width; by default 1,024 or the next multiple.
        replicates: R.
        weights: ``"structured"``, ``"deferred"`` or ``"dense"`` (``nfd.defer``); all networks have the same kind. By
            default structured under optimizers that act on whole matrices (SGD, Muon) and dense under others, which
            act on every stored entry.
        rtol: the relative standard error that you want; R is doubled until it is met. At infinite depth also how far
            the last doubling may move the losses, by default 0.01.
        outputs: also give the outputs of every step.
        sweep: where networks are trained and kept.

    Returns:
        A ``Prediction``. If training diverges, numbers are not-a-number from that step on, and ``note`` says so.
        Estimates are not clipped: where a loss is smaller than its error they may be negative.

    Raises:
        ValueError, TypeError: naming the argument; for rules and optimizers without a limit, and for networks that do
            not fit into memory.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/mathematics/extrapolation.md.
    """
    start, depth, task = time.perf_counter(), check_depth(depth), as_task(task)
    family = as_family(family, (64, 4 if depth == math.inf else int(depth)), sample=task.sample)
    weights = weights or ("structured" if family.law.equivariant else "dense")
    check_limit(family.rule, depth)
    if check_choice("weights", weights, get_args(NetworkWeights)) != "dense" and not family.law.equivariant:
        raise InputError(
            f"optimizer={family.optimizer!r} acts on every entry of the hidden matrices by itself, which is exact for "
            f"stored weights alone. Use {names_where(lambda other: other.equivariant)}, or weights='dense'."
        )
    rate = check_real("lr", family.law.default_lr if lr is None else lr, least=0.0, below=MAX_RATE)
    count = check_count("replicates", replicates, minimum=2, maximum=MOST)
    wanted = None if rtol is None else check_real("rtol", rtol, above=0.0)
    wide, narrow = _widths(family, width)
    family.check_sizes([family.base[0], 2 * family.base[0]], [family.base[1]])  # wide ones may not fit into memory
    first = family.base[1] if family.base[1] > 1 else _SHALLOWEST
    depths = [first * 2**k for k in range(_DOUBLINGS + 1)]
    if depth == math.inf:
        family = family.along_one_path(depths[1])
    with sweep or Sweep() as opened:
        ensembles = Ensembles(family, task, rate, weights, opened, outputs=check_flag("outputs", outputs))
        while True:
            wide_at = cache(lambda L, count=count: ensembles.train(wide, L, count))
            if depth == math.inf:
                limit = to_infinity(wide_at, depths, wanted or _RTOL)
            else:
                here = wide_at(int(depth))
                limit = Limit((here.depth,), False, here.diverged_at is None, note=divergence(here))
            losses = limit.of(lambda L, at=wide_at: at(L).losses)  # type: ignore[misc]
            error = rms(stderr(losses)) / rms(losses.mean(0))
            if wanted is None or not error > wanted or count >= _MOST_REPLICATES:
                break
            count = min(2 * count, _MOST_REPLICATES)
        narrow_at = cache(lambda L: ensembles.train(narrow, L, count))
        exact_at = cache(lambda L: ensembles.train(narrow, L, min(count, _PAIRS), exact=True))
        made: dict[str, Any] = {}
        for name in ("losses", "judged") if task.eval_batches else ("losses",):

            def of(at: At, name: str = name) -> Tensor:
                return limit.of(lambda L: getattr(at(L), name))

            coarse = limit.before(lambda L, name=name: getattr(wide_at(L), name))  # type: ignore[misc]
            exact = None if ensembles.resolution is None else of(exact_at)
            parts = limit_losses(of(wide_at), of(narrow_at), wide / narrow, coarse, exact, min(1.0, _BENT / narrow))
            if name == "losses":
                made |= {_name("loss", part): values for part, values in parts.items()}
            else:
                replicated = parts.pop("replicates")[:, 0]
                made |= {_name("eval_loss", part): float(value) for part, value in parts.items()}
                made["eval_loss_replicates"] = replicated
        if outputs:
            made |= _outputs(limit, wide_at, narrow_at, wide / narrow)
        missed = wanted is not None and error > wanted
        noise = f"The standard error is {error:.2g} of the losses, above rtol={wanted:g}." if missed else ""
        return Prediction(
            **made,
            about=task.about,
            depths=limit.depths,
            extrapolated=limit.extrapolated,
            width=wide,
            narrow_width=narrow,
            replicates=count,
            converged=limit.converged,
            growth=limit.growth,
            weights=weights,
            seconds=time.perf_counter() - start,
            note=" ".join(filter(None, (*task.notes, limit.note, noise))),
        )


def _widths(family: Family, width: int | None) -> tuple[int, int]:
    """The width that was asked for, and the narrower one."""
    unit = family.base[0]
    wide = -(-WIDTH // unit) * unit if width is None else check_count("width", width, maximum=WIDEST)
    narrow = max(unit, wide // LEVER // unit * unit)
    if narrow >= wide:
        raise InputError(
            f"width must be above that of the base, {unit}, whose networks show the bias of width; got {width}."
        )
    return wide, narrow


def _outputs(limit: Limit, wide_at: At, narrow_at: At, ratio: float) -> dict[str, Tensor]:
    """The mean outputs of the limit, and their standard error."""
    wide, narrow = (limit.of(lambda L, at=at: at(L).outputs) for at in (wide_at, narrow_at))  # type: ignore[misc]
    lever = 1 / (ratio - 1)
    error = ((1 + lever) * stderr(wide)).hypot(lever * stderr(narrow))
    return {"outputs": (1 + lever) * wide.mean(0) - lever * narrow.mean(0), "outputs_stderr": error}


def _name(of: str, part: str) -> str:
    """What a part of the losses is called in a ``Prediction``."""
    return of if part == "value" else f"{of}_{part}"


# ---- The result of ``nfd.predict``, as numbers, a table and text


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """The result of ``nfd.predict``: losses of an infinitely wide network. Print it to see them.

    The bias from the finite width of the trained networks is estimated and subtracted. The 95 % intervals include the
    noise of the networks, the noise of this correction, what it may miss (16 / narrow_width of it, for terms of second
    order in 1 / n) and, for infinite depth, the change at the last doubling of the depth.

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
        eval_loss, and all others that begin with it: the same of the mean evaluation loss after the last step; None
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
    eval_loss: float | None = None
    eval_loss_stderr: float | None = None
    eval_loss_low: float | None = None
    eval_loss_high: float | None = None
    eval_loss_bias: float | None = None
    eval_loss_bias_stderr: float | None = None
    eval_loss_resolution_bias: float | None = None
    eval_loss_resolution_bias_stderr: float | None = None
    eval_loss_sampling_error: float | None = None
    eval_loss_depth_error: float | None = None
    eval_loss_replicates: Tensor | None = None
    outputs: Tensor | None = None
    outputs_stderr: Tensor | None = None

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per step: ``step``, and the loss as ``value``, ``stderr``, ``low``, ``high``.

        Further keys: ``bias``, which was subtracted, ``bias_stderr``, ``resolution_bias``, ``resolution_bias_stderr``,
        ``sampling_error`` and ``depth_error``. ``loss`` repeats ``value``. Not-a-number after a divergence.
        """
        columns = [getattr(self, _name("loss", part)).tolist() for part in PARTS]
        rows = [dict(zip(PARTS, row, strict=True)) for row in zip(*columns, strict=True)]
        return [{"step": step, "loss": row["value"]} | row for step, row in enumerate(rows)]

    @property
    def eval_interval(self) -> Interval | None:
        """The evaluation loss with its error and 95 % interval; None without ``eval_targets``."""
        values = (self.eval_loss, self.eval_loss_stderr, self.eval_loss_low, self.eval_loss_high)
        return None if None in values else Interval(*(v for v in values if v is not None))

    def __str__(self) -> str:
        trained = ", ".join(map(str, self.depths))
        depth = f"infinite depth, from {trained}" if self.extrapolated else f"depth {self.depths[-1]}"
        table = table_of("", "loss [95 % interval]", f"bias of width {self.width:,}, subtracted, +- its error")
        for row in self._shown():
            table.add_row(*row)
        made = (
            f"{self.replicates} networks of width {self.width:,} ({self.weights} weights) and {self.replicates} of "
            f"width {self.narrow_width:,}, {self.seconds:.1f} s."
        )
        parts = {
            "sampling": rms(self.loss_sampling_error),
            "width": rms(self.loss_bias_stderr),
            "resolution": rms(self.loss_resolution_bias),
            "depth": rms(self.loss_depth_error),
        }
        there = ", ".join(f"{name} {size:.1e}" for name, size in parts.items() if size)
        head = f"Infinitely wide network, {depth}, {self.about}"
        error = f"Parts of the error of the losses (RMS over steps): {there}."
        return "\n".join(filter(None, (head, as_text(table, 150), error, made, self.note)))

    __repr__ = __str__

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        """The first step, the last one, and the evaluation: name, loss and bias."""
        rows = [{"name": f"step {row['step']}"} | row for row in self.table]
        if self.eval_interval is not None:
            parts = {part: getattr(self, _name("eval_loss", part)) for part in PARTS}
            rows.append({"name": "evaluation, after the last step"} | parts)
        for row in dict.fromkeys((0, len(self.loss) - 1, len(rows) - 1)):
            of = rows[row]
            loss = Interval(of["value"], of["stderr"], of["low"], of["high"])
            bias = f"{of['bias']:+.4f} +- {of['bias_stderr']:.4f}" if math.isfinite(of["bias"]) else "not known"
            yield of["name"], loss.unsigned if math.isfinite(loss.value) else "diverged", bias
