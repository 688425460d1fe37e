"""``nfd.predict``: how an infinitely wide network trains, from networks of two widths.

Structured weights leave out what is shorter than a resolution, which moves losses by b. Pairs of narrow networks from
the same seeds, with it and without one, show b. (Pairs with it and with half of it would not: directions that matter
can be shorter than both.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import torch
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
from nfd.core.estimates import Interval, Magnitude, combined, magnitude, rms, stderr
from nfd.core.machine import memory_of, undisturbed
from nfd.core.random import derive
from nfd.core.tables import as_text, table_of
from nfd.families.family import Family, as_family
from nfd.families.member import Member
from nfd.runs.sweep import Sweep, as_sweep
from nfd.runs.task import Batch, Task, as_task
from nfd.runs.trial import Curves, Observation, Observer, Step, Trial
from nfd.scaling.base import MakeModel
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
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
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
        replicates: how many networks are averaged, R.
        weights: ``"structured"``, ``"deferred"`` or ``"dense"`` (``nfd.defer``); all networks have the same kind. By
            default structured under optimizers that act on whole matrices (SGD, Muon) and dense under others, which
            act on every stored entry.
        rtol: the relative standard error that you want; R is doubled until it is met. At infinite depth also how far
            the last doubling may move the losses, by default 0.01.
        outputs: also give the outputs of every step.
        blocks, roles: as in ``nfd.plan``.
        sweep: where networks are trained and kept.

    Returns:
        A ``Prediction``. If training diverges, numbers are not-a-number from that step on, and ``note`` says so.
        Estimates smaller than their error may be negative.

    Raises:
        ValueError, TypeError: naming the argument; for rules and optimizers without a limit, and for networks that do
            not fit into memory.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/mathematics/extrapolation.md.
    """
    start, depth, task = time.perf_counter(), check_depth(depth), as_task(task)
    base = 64, 4 if depth == math.inf else int(depth)
    family = as_family(family, base, sample=task.sample, blocks=blocks, roles=roles)
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
    unit = family.base[0]
    wide = -(-WIDTH // unit) * unit if width is None else check_count("width", width, maximum=WIDEST)
    narrow = max(unit, wide // LEVER // unit * unit)
    if narrow >= wide:
        raise InputError(
            f"width must be above that of the base, {unit}, whose networks show the bias of width; got {width}."
        )
    family.check_sizes([unit, 2 * unit], [family.base[1]])  # wide ones may not fit into memory
    first = family.base[1] if family.base[1] > 1 else _SHALLOWEST
    depths = [first * 2**k for k in range(_DOUBLINGS + 1)]
    if depth == math.inf:
        family = family.along_one_path(depths[1])
    with as_sweep(sweep) as opened:
        ensembles = Ensembles(family, task, rate, weights, opened, outputs=check_flag("outputs", outputs))
        while True:
            wide_at = cache(lambda L, count=count: ensembles.train(wide, L, count))
            if depth == math.inf:
                limit = to_infinity(wide_at, depths, wanted or _RTOL)
            else:
                here = wide_at(int(depth))
                limit = Limit((here.depth,), False, here.diverged_at is None, _divergence(here))
            losses = limit.of(wide_at)
            error = rms(stderr(losses)) / rms(losses.mean(0))
            if wanted is None or not error > wanted or count >= _MOST_REPLICATES:
                break
            count = min(2 * count, _MOST_REPLICATES)
        narrow_at = cache(lambda L: ensembles.train(narrow, L, count))
        exact_at = cache(lambda L: ensembles.train(narrow, L, min(count, _PAIRS), exact=True))
        parts = {}
        for name in ("losses", "judged") if task.eval_batches else ("losses",):
            exact = None if ensembles.resolution is None else limit.of(exact_at, name)
            of, coarse = (limit.of(wide_at, name), limit.of(narrow_at, name)), limit.before(wide_at, name)
            parts[name] = limit_losses(*of, wide / narrow, coarse, exact, min(1.0, _BENT / narrow))
        made: dict[str, Any] = {_name(part): values for part, values in parts["losses"].items()}
        if task.eval_batches:
            made["eval_loss_replicates"] = parts["judged"].pop("replicates")[:, 0]
            made["eval_row"] = {part: float(value) for part, value in parts["judged"].items()}
        if outputs:
            of, lever = (limit.of(wide_at, "outputs"), limit.of(narrow_at, "outputs")), 1 / (wide / narrow - 1)
            made["outputs"] = (1 + lever) * of[0].mean(0) - lever * of[1].mean(0)
            made["outputs_stderr"] = ((1 + lever) * stderr(of[0])).hypot(lever * stderr(of[1]))
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
            weights=weights,
            seconds=time.perf_counter() - start,
            note=" ".join(filter(None, (*opened.notes(family), *task.notes, limit.note, noise))),
        )


def _name(part: str) -> str:
    """What a part of the losses is called in a ``Prediction``."""
    return "loss" if part == "value" else f"loss_{part}"


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
        eval_row: the mean evaluation loss after the last step, as the rows of ``table`` have that of a step; None
            without evaluation data. At infinite depth it is the floor of the law of size. ``eval_loss`` is its value,
            ``eval_interval`` its interval. eval_loss_replicates: [replicates], as ``loss_replicates``.
        about: how the batches were read: their number, samples and shape, in words.
        depths: depths that were trained; the last two are extrapolated when ``depth`` is infinite.
        extrapolated: whether they were; otherwise all numbers are those of the last of ``depths``.
        width, replicates: of the wide networks. narrow_width: of the networks that estimate the bias.
        converged: at infinite depth, whether the last doubling of the depth moved the extrapolated losses by less than
            ``rtol``, and noise is small enough to see it. At a finite depth it is True
            unless training diverged. It says nothing of the convergence in width, which the intervals include.
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
    weights: str
    seconds: float
    note: str
    eval_row: dict[str, float] | None = None
    eval_loss_replicates: Tensor | None = None
    outputs: Tensor | None = None
    outputs_stderr: Tensor | None = None

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per step: ``step``, and the loss as ``value``, ``stderr``, ``low``, ``high``.

        Further keys: ``bias``, which was subtracted, ``bias_stderr``, ``resolution_bias``, ``resolution_bias_stderr``,
        ``sampling_error`` and ``depth_error``. ``loss`` repeats ``value``. Not-a-number after a divergence.
        """
        columns = [getattr(self, _name(part)).tolist() for part in PARTS]
        rows = [dict(zip(PARTS, row, strict=True)) for row in zip(*columns, strict=True)]
        return [{"step": step, "loss": row["value"]} | row for step, row in enumerate(rows)]

    @property
    def eval_loss(self) -> float | None:
        """The mean evaluation loss after the last step; None without evaluation data."""
        return None if self.eval_row is None else self.eval_row["value"]

    @property
    def eval_interval(self) -> Interval | None:
        """The same with its error and 95 % interval."""
        return None if self.eval_row is None else _interval(self.eval_row)

    def __str__(self) -> str:
        trained = ", ".join(map(str, self.depths))
        depth = f"infinite depth, from {trained}" if self.extrapolated else f"depth {self.depths[-1]}"
        table = table_of("", "loss [95 % interval]", f"bias of width {self.width:,}, subtracted, +- its error")
        rows = [(f"step {row['step']}", row) for row in self.table]
        if self.eval_row is not None:
            rows.append(("evaluation, after the last step", self.eval_row))
        for k in dict.fromkeys((0, len(self.loss) - 1, len(rows) - 1)):
            name, row = rows[k]
            bias = f"{row['bias']:+.4f} +- {row['bias_stderr']:.4f}" if math.isfinite(row["bias"]) else "not known"
            table.add_row(name, _interval(row).unsigned if math.isfinite(row["value"]) else "diverged", bias)
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


def _interval(row: Mapping[str, Any]) -> Interval:
    return Interval(row["value"], row["stderr"], row["low"], row["high"])


# ---- Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence, and plain words where it does not


_SHRINKS = 0.8  # a change that keeps this share when the depth doubles is not converging (1/L would keep 1/2)


@dataclass(frozen=True)
class Limit:
    """Which depths were trained, and whether the last two are extrapolated.

    Attributes:
        depths: ascending; the last is the deepest. extrapolated: whether values are ``2 f_2L - f_L``.
        converged: whether the limit was reached. note: what to say.
    """

    depths: tuple[int, ...]
    extrapolated: bool
    converged: bool
    note: str = ""

    def of(self, ensemble_at: Callable[[int], Ensemble], name: str = "losses") -> Tensor:
        """The limit of what ensembles at depths hold under this name."""
        deep: Tensor = getattr(ensemble_at(self.depths[-1]), name)
        return extrapolated(getattr(ensemble_at(self.depths[-2]), name), deep) if self.extrapolated else deep

    def before(self, ensemble_at: Callable[[int], Ensemble], name: str) -> Tensor | None:
        """The limit one doubling ago, which shows the error of depth; None where nothing was extrapolated."""
        if not self.extrapolated:
            return None
        if len(self.depths) == 2:
            return replace(self, extrapolated=False).of(ensemble_at, name)
        return replace(self, depths=self.depths[:-1]).of(ensemble_at, name)


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """``2 f_2L - f_L`` of anything at depths, or widths, L and 2L: its limit where it goes to it as 1/L."""
    return 2 * deep - shallow


def to_infinity(ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float) -> Limit:
    """Double the depth until the extrapolation moves by less than rtol, or the changes do not shrink."""
    ensembles, changes = list[Ensemble](), list[Magnitude]()

    def ended(extrapolates: bool, converged: bool, note: str) -> Limit:
        return Limit(tuple(e.depth for e in ensembles), extrapolates, converged, note)

    for depth in depths:
        ensembles.append(ensemble_at(depth))
        if ensembles[-1].diverged_at is not None:
            return ended(False, False, _divergence(ensembles[-1]))
        if len(ensembles) > 1:
            changes.append(_change(ensembles[-1].losses - ensembles[-2].losses))
        if len(changes) > 1 and (_stays(*changes[-2:]) or (depth == depths[-1] and _stays(changes[0], changes[-1]))):
            tried, moves = ", ".join(str(e.depth) for e in ensembles), ", ".join(f"{c.value:.3g}" for c in changes)
            note = (
                f"No limit in depth was found: doubling it through {tried} changed the losses by {moves} (RMS), where "
                f"a limit would halve the change. Nothing was extrapolated; these are the losses at depth {depth}."
            )
            return ended(False, False, note)
        if len(ensembles) > 2:
            a, b, c = (e.losses for e in ensembles[-3:])
            moved, wanted = _change(extrapolated(b, c) - extrapolated(a, b)), rtol * rms(c.mean(0))
            if moved.value <= wanted < moved.noise:
                note = (
                    "Noise hides whether the limit in depth was reached: the last doubling moved the extrapolation by "
                    f"less than its noise, {moved.noise:.2g} (RMS), which is above rtol. Raise replicates, width or "
                    "rtol."
                )
                return ended(True, False, note)
            if moved.value <= wanted:
                return ended(True, True, "")
    moved_by = f"still changed the losses by {changes[-1].value:.3g} (RMS)"
    note = f"The last doubling of the depth {moved_by}; {depths[-1]} is the deepest tried."
    return ended(True, False, note)


def _divergence(here: Ensemble) -> str:
    """A sentence on a divergence; empty where there was none."""
    if here.diverged_at is None:
        return ""
    remedy = "Lower lr" if here.diverged_at else "Check the batches and the initial weights"
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. {remedy}."


def _change(samples: Tensor) -> Magnitude:
    return magnitude(samples.mean(0), stderr(samples))


def _stays(before: Magnitude, after: Magnitude) -> bool:
    """Whether a change did not shrink while the depth doubled, beyond noise."""
    return after.value > _SHRINKS * before.value and before.value > 2 * before.noise and after.value > 2 * after.noise


# ---- The loss of the infinitely wide network, from ensembles of networks of two widths


PARTS = (
    "value", "stderr", "low", "high", "bias", "bias_stderr", "resolution_bias", "resolution_bias_stderr",
    "sampling_error", "depth_error",
)  # fmt: skip


def limit_losses(
    wide: Tensor,
    narrow: Tensor,
    ratio: float,
    coarse: Tensor | None = None,
    exact: Tensor | None = None,
    bend: float = 0.0,
) -> dict[str, Tensor]:
    """The losses of the limit from losses ``[R, K]`` of wide networks and of others ``ratio`` times narrower.

    Where the narrow ones diverged, the loss is that of the wide ones, and its interval not-a-number.

    Args:
        coarse: losses of the same wide networks by the extrapolation in depth before the last one. How far they moved
            since then is an error beside the noise: the half-width is the root of the sum of both squares.
        exact: losses of the first of the narrow networks without a resolution, whose bias is a third such error.
        bend: the share of the bias by which it may be wrong, as the mean loss is not ``loss + a/n`` alone.

    Returns:
        By the names in ``PARTS`` ``[K]`` each: of ``width`` the bias, which is subtracted, of the resolution the one
        that is not; ``sampling_error`` is the standard error of the wide networks alone, ``depth_error`` how far the
        last doubling of the depth moved the losses. As ``replicates`` the losses by single replicates, ``[R, K]``.
    """
    value, variance, lever = wide.mean(0), stderr(wide).square(), ratio - 1
    other, other_variance = narrow.mean(0), stderr(narrow).square()
    moved = torch.zeros_like(value) if coarse is None else value - coarse.mean(0)
    shortened = torch.zeros_like(narrow[:2]) if exact is None else narrow[: len(exact)] - exact
    resolution = shortened.mean(0), stderr(shortened)
    rows = []
    for v, var, o, o_var, unsampled in zip(
        *(x.tolist() for x in (value, variance, other, other_variance, moved.hypot(resolution[0]))), strict=True
    ):
        if not math.isfinite(o):
            rows.append((v, math.sqrt(var), math.nan, math.nan, math.nan, math.nan))
            continue
        bias, variances = (o - v) / lever, (var * (1 + 1 / lever) ** 2, o_var / lever**2)
        limit = combined(v - bias, zip(variances, (len(wide) - 1, len(narrow) - 1), strict=True))
        half = math.hypot(limit.high - limit.value, unsampled, bend * bias)
        error = math.sqrt(var + o_var) / lever
        rows.append((limit.value, limit.stderr, limit.value - half, limit.value + half, bias, error))
    estimates = torch.tensor(rows, dtype=torch.float64, device=wide.device).T
    parts = [*estimates, *resolution, variance.sqrt(), moved.abs()]
    return dict(zip(PARTS, parts, strict=True)) | {"replicates": wide - (narrow - wide) / lever}


# ---- Networks of one width and depth, trained alike from seeds of their own: what the limits are made of


_SHARE = 0.8  # of the memory that networks may take


@dataclass(frozen=True)
class Outputs(Observer):
    """The outputs of every step, before its update."""

    def begin(self, member: Member, task: Task) -> Observation:
        return _Outputs()


class _Outputs(Observation):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def after(self, row: Step) -> None:
        self.seen.append(row.outputs.cpu())

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        return {}, {"outputs": torch.stack(self.seen).flatten()}, list(self.seen[0].shape)


@dataclass(frozen=True)
class Ensemble:
    """What R networks gave, not-a-number after a divergence.

    Attributes:
        losses: ``[R, steps]``, before each update. judged: evaluation losses ``[R, 1]``, or ``[R, 0]``.
        outputs: ``[R, steps, b, C]``, where they were asked for.
        diverged_at: the first step of a divergence, or None.
    """

    width: int
    depth: int
    losses: Tensor
    judged: Tensor
    outputs: Tensor | None
    diverged_at: int | None


class Ensembles:
    """The networks of a family at one rate; what a sweep holds is not trained again."""

    def __init__(
        self, family: Family, task: Task, lr: float, weights: NetworkWeights, sweep: Sweep, *, outputs: bool
    ) -> None:
        self.family, self.task, self.lr, self.weights, self.sweep = family, task, lr, weights, sweep
        self.observe: tuple[Observer, ...] = (Outputs(),) if outputs else ()
        self.resolution = family.resolution if weights == "structured" else None  # None where they drop nothing

    def train(self, width: int, depth: int, count: int, *, exact: bool = False) -> Ensemble:
        """The ensemble of the first so many seeds, or of others of these seeds without a resolution."""
        self._check_memory(width, depth)
        seeds = [derive(0, "replicate", width, index) for index in range(count)]
        resolution = None if exact else self.resolution
        more: dict[str, Any] = {"weights": self.weights, "resolution": resolution, "observe": self.observe}
        trials = [Trial(self.family, self.task, width, depth, seed, self.lr, **more) for seed in seeds]
        label = f"width {width}, depth {depth}"
        records = self.sweep.run_all({label: trials}, label)[label]
        curves = [self.sweep.curves(trial) for trial in trials]
        losses = [own["loss"] for own in curves]
        if len(losses) > 1 and all(torch.equal(loss, losses[0]) for loss in losses[1:]):
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses from every seed, but intervals come from "
                "differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )
        ends = [int(record.metrics["diverged_at"]) for record in records if "diverged_at" in record.metrics]
        shapes = [record.observed[0] if self.observe else () for record in records]
        outputs = [own["outputs"].double().view(-1, *s) for own, s in zip(curves, shapes, strict=True) if self.observe]
        steps = self.task.steps
        own = [[record.metrics["test_loss"]] if "test_loss" in record.metrics else [] for record in records]
        judged = torch.tensor(own, dtype=torch.float64)
        return Ensemble(
            width,
            depth,
            torch.stack([_padded(loss.double(), steps) for loss in losses]),
            torch.where(judged.isfinite(), judged, math.nan),
            torch.stack([_padded(own, steps) for own in outputs]) if outputs else None,
            min(ends, default=None),
        )

    def _check_memory(self, width: int, depth: int) -> None:
        """InputError where a network of this size would not fit into the memory of the machine.

        A hidden matrix holds ``m n`` numbers, as many for its gradient and for each state of the optimizer; unstored,
        as many vectors of both sides as rows passed through it, twice for deferred weights.
        """
        n, rows = max(self.family.base[0], 16), self.task.rows
        small = self.family.member(n, self.family.base[1])
        blocks = max(len(small.plan.blocks), 1)
        hidden = [name for name, role in small.plan.roles.items() if role in ("hidden", "inner", "outer")]
        shapes = [small.module.get_parameter(name).shape for name in hidden]
        area = sum(math.prod(shape) for shape in shapes) / n**2 / blocks * width**2 * depth
        sides = sum(shape[0] + math.prod(shape[1:]) for shape in shapes) / n / blocks * width * depth
        dense = (2 + self.family.law.states) * area
        held = {"dense": dense, "structured": sides * rows, "deferred": 2 * sides * rows}[self.weights]
        needed = 4 * (held + 2 * sides * rows / self.task.steps)
        there = _SHARE * memory_of(torch.device(self.sweep.device or self.task.device))
        if needed > there:
            raise InputError(
                f"a network of width {width:,} and depth {depth} with {self.weights} weights needs "
                f"{needed / 2**30:.3g} GiB, and {there / 2**30:.3g} GiB may be used. Take a smaller width, depth or "
                "batch, or fewer steps."
            )


def _padded(values: Tensor, steps: int) -> Tensor:
    """Values ``[steps, ...]``, not-a-number from where training diverged."""
    finite = torch.where(values.isfinite(), values, math.nan)
    return torch.cat([finite, finite.new_full((steps - len(finite), *finite.shape[1:]), math.nan)])
