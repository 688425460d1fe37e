"""``nfd.predict``: the training of an infinitely wide, and if asked infinitely deep, residual network.

Width: a network of large width n with deferred weights, R independent replicates; their spread gives the standard
error. It does not see the O(1/n) bias, which is measured against a narrower ensemble: with ``f_n = f + a/n`` two
widths give ``a``, and ``bias`` is the RMS of ``a / n``.

Depth: ``2 f_2L - f_L``, L doubled from 32 until the change from L to 2L is within ``rtol``. Where the change does
not shrink there is no limit; then nothing is extrapolated and ``note`` says what was seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import check_count, check_real
from nfd.core.progress import Bar, bar
from nfd.core.random import check_seed
from nfd.limits.cost import bytes_of, power_of_two, widest, within
from nfd.limits.ensemble import Ensemble, ensemble
from nfd.limits.problem import Problem, problem

_FIRST_DEPTH = 32
_LAST_DEPTH = 512
_SHRINKS = 0.8  # a change that doubling the depth leaves this large is not converging (1/L would halve it)
_PILOT_WIDTH = 1024
_PILOT_REPLICATES = 4
_REPLICATES = 8  # fewer make a standard error too uncertain to use
_MOST_REPLICATES = 1024


@dataclass(frozen=True)
class Prediction:
    """What ``nfd.predict`` found; every mean comes with the standard error of its Monte Carlo estimate.

    Attributes:
        outputs, outputs_stderr: [steps, batch, C], before the update of each step.
        loss, loss_stderr: [steps], batch mean of the loss at ``outputs``; error by jackknife over replicates.
        eval_outputs, eval_stderr: [n_eval, C] after the last step, or None.
        depths: depths that were run; the last two are extrapolated when ``depth`` is infinite.
        width, replicates: of the ensembles. bias, bias_stderr: RMS of the estimated O(1/n) error of the outputs
            and its resolution, in units of the outputs.
        converged: whether the limit in depth was reached within ``rtol`` (always True for a finite depth that did
            not diverge). note: one sentence on what limits the answer; empty when nothing does.
        growth: fitted exponent g of the change from depth L to 2L, ``~ L**g`` (-1 expected); None with one depth.
        weights: "deferred" or "dense", the cheaper by predicted cost. seconds: time it took.
    """

    outputs: Tensor = field(repr=False)
    outputs_stderr: Tensor = field(repr=False)
    loss: Tensor = field(repr=False)
    loss_stderr: Tensor = field(repr=False)
    eval_outputs: Tensor | None = field(repr=False)
    eval_stderr: Tensor | None = field(repr=False)
    depths: tuple[int, ...]
    width: int
    replicates: int
    bias: float
    bias_stderr: float
    converged: bool
    growth: float | None
    weights: str
    seconds: float
    note: str


def predict(
    inputs: Any,
    targets: Any,
    *,
    depth: float = math.inf,
    horizon: float = 1.0,
    activation: str = "relu",
    block: str = "one-layer",
    eta_c: float | Sequence[float] = 0.1,
    momentum: float = 0.0,
    loss: str = "cross-entropy",
    classes: int | None = None,
    feedback: str = "shared",
    rule: str = "depth-mup",
    width: int | str = "auto",
    replicates: int | None = None,
    rtol: float = 0.01,
    memory: str | int = "4 GiB",
    seed: int = 0,
    eval_inputs: Any = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Prediction:
    """Predict the SGD trajectory of an infinitely wide residual network, step by step, on given batches.

    Args:
        inputs: ``[steps, batch, d]`` or ``[steps, d]``; one update per step, in this order.
        targets: ``[steps, batch]`` or ``[steps]``: class ids, or floats for ``loss="mse"``.
        depth: L, or ``math.inf``.
        horizon, activation, block: of the network, as in ``nfd.ResNet``.
        eta_c: the rate that depends on neither width nor depth: a number, or one per step.
        momentum: of SGD.
        loss: ``"cross-entropy"`` or ``"mse"``, ``(f - y)^2 / 2`` with one output.
        classes: C; needed when the last class may be absent from ``targets``.
        feedback: ``"shared"``, the standard network; ``"independent"``, the decoupled one, whose limit is the
            paper's Definition 1; ``"static"``.
        rule: learning-rate rule; its exponent decides the residual multiplier.
        width: n of the deferred networks, or ``"auto"`` for the width and replicates that ``rtol`` needs.
        replicates: R; None for as many as ``rtol`` needs.
        rtol: wanted standard error, relative to the RMS of the outputs.
        memory: bound on the working set of one network, such as ``"4 GiB"``.
        seed: of everything random.
        eval_inputs: ``[n_eval, d]``, evaluated after the last step.
        device: where to compute. progress: show a bar when stderr is a terminal.

    Returns:
        A ``Prediction``. A run that diverged is a result: not-a-number from that step on, and a note.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/paper-notes.md for ``"shared"``.
    """
    start = time.perf_counter()
    given = problem(
        inputs,
        targets,
        eval_inputs=eval_inputs,
        loss=loss,
        classes=classes,
        horizon=horizon,
        activation=activation,
        block=block,
        eta_c=eta_c,
        momentum=momentum,
        feedback=feedback,
        rule=rule,
        device=device,
    )
    sampler = _Sampler(
        given,
        width=None if width == "auto" else check_count("width", width),  # type: ignore[arg-type]
        replicates=None if replicates is None else check_count("replicates", replicates, minimum=2),
        rtol=check_real("rtol", rtol, above=0.0),
        memory=bytes_of(memory),
        seed=check_seed(seed),
    )
    infinite = depth == math.inf
    first = _FIRST_DEPTH if infinite else check_count("depth", depth)  # type: ignore[arg-type]
    with bar("predict", enabled=progress) as sampler.bar:
        sampler.settle(first, amplification=math.sqrt(5.0) if infinite else 1.0)
        limit = _to_infinity(sampler) if infinite else _at(sampler, first)
    return sampler.summarise(limit, time.perf_counter() - start)


@dataclass(frozen=True)
class _Limit:
    """Samples of the answer, [R, ...], and how they were reached."""

    outputs: Tensor
    eval_outputs: Tensor
    depths: tuple[int, ...]
    converged: bool
    growth: float | None
    note: str


class _Sampler:
    """Runs ensembles of one problem at the width and number of replicates that the accuracy asks for."""

    def __init__(
        self, given: Problem, *, width: int | None, replicates: int | None, rtol: float, memory: int, seed: int
    ) -> None:
        self.problem, self.rtol, self.memory, self.seed = given, rtol, memory, seed
        self.width, self.replicates = width, replicates
        self.bar = Bar()
        self._done: dict[tuple[int, int], Ensemble] = {}
        self._narrow: Ensemble | None = None

    def settle(self, depth: int, amplification: float) -> None:
        """Fix width and replicates; a narrow pilot gives the spread, and later the width bias.

        ``amplification`` is the factor by which extrapolation in depth enlarges a standard error.
        """
        widest_here = widest(self.problem, 2 * depth if amplification > 1 else depth, self.memory)
        if self.width is not None:
            self._require_memory(self.width, depth)
        free = self.replicates is None
        pilot_width = min(_PILOT_WIDTH, widest_here) if self.width is None else max(1, self.width // 4)
        self._narrow = self._run(pilot_width, depth, self.replicates or _PILOT_REPLICATES)
        needed = self._needed(self._narrow, amplification)
        if self.width is None:
            wanted = power_of_two(needed / (self.replicates or _REPLICATES))
            self.width = min(max(wanted, 2 * pilot_width), widest_here)
        if free:
            self.replicates = max(_REPLICATES, min(math.ceil(needed / self.width), _MOST_REPLICATES))
            refined = math.ceil(self._needed(self.at(depth), amplification) / self.width)
            self.replicates = max(self.replicates, min(refined, 2 * self.replicates, _MOST_REPLICATES))

    def _needed(self, seen: Ensemble, amplification: float) -> float:
        """Width times replicates at which the largest standard error is ``rtol`` times the RMS of the outputs."""
        error = self.rtol * _rms(seen.outputs.mean(0))
        spread = amplification * float(seen.outputs.std(0).max())
        needed = (spread / error) ** 2 * seen.width if error > 0 else math.nan
        return needed if math.isfinite(needed) else 0.0

    def at(self, depth: int) -> Ensemble:
        """The ensemble at a depth, narrower where memory does not allow the width."""
        assert self.width is not None
        assert self.replicates is not None
        width = min(self.width, widest(self.problem, depth, self.memory)) if depth > _FIRST_DEPTH else self.width
        return self._run(width, depth, self.replicates)

    def bias(self) -> tuple[float, float]:
        """RMS of ``a / n`` and its resolution, from ``f_m - f_n = a (1/m - 1/n)`` at the first depth."""
        narrow = self._narrow
        wide = next((e for (w, _), e in self._done.items() if narrow and w > narrow.width), None)
        if narrow is None or wide is None:
            return math.nan, math.nan
        lever = wide.width / narrow.width - 1
        estimate = (narrow.outputs.mean(0) - wide.outputs.mean(0)) / lever
        noise = (_stderr(narrow.outputs) ** 2 + _stderr(wide.outputs) ** 2).sqrt() / lever
        return _rms(estimate), _rms(noise)

    def summarise(self, limit: _Limit, seconds: float) -> Prediction:
        """Means and standard errors of the samples."""
        bias, bias_stderr = self.bias()
        loss, loss_stderr = _jackknife(limit.outputs, self.problem.mean_loss)
        last = self._done[max(self._done, key=lambda key: (key[1], key[0]))]
        evaluated = self.problem.eval_inputs is not None
        assert self.width is not None
        return Prediction(
            outputs=limit.outputs.mean(0),
            outputs_stderr=_stderr(limit.outputs),
            loss=loss,
            loss_stderr=loss_stderr,
            eval_outputs=limit.eval_outputs.mean(0) if evaluated else None,
            eval_stderr=_stderr(limit.eval_outputs) if evaluated else None,
            depths=limit.depths,
            width=self.width,
            replicates=len(limit.outputs),
            bias=bias,
            bias_stderr=bias_stderr,
            converged=limit.converged,
            growth=limit.growth,
            weights=last.weights,
            seconds=seconds,
            note=" ".join(filter(None, (limit.note, self._accuracy(limit.outputs)))),
        )

    def _accuracy(self, samples: Tensor) -> str:
        """What to say when the standard error stayed above rtol; empty when it did not."""
        reached = _rms(_stderr(samples)) / _rms(samples.mean(0))
        if not reached > self.rtol:
            return ""
        return (
            f"The standard error is {reached:.2g} of the RMS of the outputs, above rtol={self.rtol:g}: width "
            f"{self.width} and {len(samples)} replicates were what was asked for, or what memory allows."
        )

    def _require_memory(self, width: int, depth: int) -> None:
        if within(self.problem, width, depth, self.memory) is None:
            raise ValueError(
                f"width={width} at depth {depth} does not fit into memory; at most "
                f"{widest(self.problem, depth, self.memory)} does. Raise memory or lower width, batch or steps."
            )

    def _run(self, width: int, depth: int, count: int) -> Ensemble:
        key = (width, depth)
        have = self._done.get(key)
        missing = range(len(have) if have else 0, count)
        if missing:
            weights = _chosen_weights(self.problem, width, depth, self.memory)
            work = float(width * depth)
            self.bar.plan(work * len(missing), f"predict: {len(missing)} networks of width {width}, depth {depth}")
            more = ensemble(self.problem, width, depth, weights, missing, self.seed, lambda: self.bar.advance(work))
            self._done[key] = have.joined(more) if have else more
        return self._done[key]


def _chosen_weights(given: Problem, width: int, depth: int, memory: int) -> str:
    """Deferred or dense, whichever the cost model finds faster within memory."""
    way = within(given, width, depth, memory)
    return way.weights if way else "deferred"


def _at(sampler: _Sampler, depth: int) -> _Limit:
    here = sampler.at(depth)
    return _Limit(here.outputs, here.eval_outputs, (depth,), here.diverged_at is None, None, _divergence(here))


def _to_infinity(sampler: _Sampler) -> _Limit:
    """Double the depth until the change is within rtol, shows no sign of shrinking, or the last depth is reached."""
    ensembles = [sampler.at(_FIRST_DEPTH)]
    changes: list[float] = []
    while True:
        deeper = sampler.at(2 * ensembles[-1].depth)
        ensembles.append(deeper)
        if deeper.diverged_at is not None:
            return _no_limit(ensembles, changes, _divergence(deeper))
        changes.append(_excess(deeper.outputs - ensembles[-2].outputs))
        if changes[-1] <= sampler.rtol * _rms(deeper.outputs.mean(0)):
            return _extrapolated(ensembles, changes, converged=True, note="")
        if len(changes) > 1 and changes[-1] > _SHRINKS * changes[-2]:
            return _no_limit(ensembles, changes, "")
        if deeper.depth >= _LAST_DEPTH:
            note = f"Doubling the depth to {deeper.depth} still changed the outputs by {changes[-1]:.3g} (RMS)."
            return _extrapolated(ensembles, changes, converged=False, note=note)


def _extrapolated(ensembles: list[Ensemble], changes: list[float], *, converged: bool, note: str) -> _Limit:
    shallow, deep = ensembles[-2:]
    return _Limit(
        2 * deep.outputs - shallow.outputs,
        2 * deep.eval_outputs - shallow.eval_outputs,
        tuple(e.depth for e in ensembles),
        converged,
        _growth(ensembles, changes),
        note,
    )


def _no_limit(ensembles: list[Ensemble], changes: list[float], divergence: str) -> _Limit:
    depths = tuple(e.depth for e in ensembles)
    growth = _growth(ensembles, changes)
    seen = ", ".join(f"{change:.3g}" for change in changes)
    note = divergence or (
        f"No limit in depth was seen: doubling it through {', '.join(map(str, depths))} changed the outputs by "
        f"{seen} (RMS), growing as L^{growth:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; these "
        f"are the outputs at depth {depths[-1]}."
    )
    last = ensembles[-1]
    return _Limit(last.outputs, last.eval_outputs, depths, False, growth, note)


def _divergence(here: Ensemble) -> str:
    if here.diverged_at is None:
        return ""
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. Lower eta_c."


def _growth(ensembles: list[Ensemble], changes: list[float]) -> float | None:
    """Exponent of the change against depth, from the first and last doubling."""
    if len(changes) < 2 or min(changes[0], changes[-1]) <= 0:
        return None
    return math.log2(changes[-1] / changes[0]) / (len(changes) - 1)


def _excess(samples: Tensor) -> float:
    """RMS of the mean of samples [R, ...] beyond what their noise explains."""
    return math.sqrt(max(0.0, _rms(samples.mean(0)) ** 2 - _rms(_stderr(samples)) ** 2))


def _stderr(samples: Tensor) -> Tensor:
    return samples.std(0) / math.sqrt(len(samples))


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _jackknife(samples: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """``f`` of the mean of samples [R, ...], corrected for its bias, with a standard error."""
    R = len(samples)
    whole = f(samples.mean(0))
    left_out = f((samples.sum(0) - samples) / (R - 1))
    spread = (left_out - left_out.mean(0)).square().sum(0) * (R - 1) / R
    return R * whole - (R - 1) * left_out.mean(0), spread.sqrt()
