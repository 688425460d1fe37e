"""Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence like 1/L, and plain words where it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from nfd.limits.ensemble import Ensemble
from nfd.limits.sampler import Sampler
from nfd.limits.statistics import Size, rms, size, stderr

FIRST_DEPTH = 32
AMPLIFICATION = math.sqrt(5.0)  # of the standard error of 2 f_2L - f_L, were f_2L and f_L independent
_LAST_DEPTH = 512
_SHRINKS = 0.8  # a change that keeps this share when the depth doubles is not converging (1/L would keep 1/2)


@dataclass(frozen=True)
class Limit:
    """Samples of the answer, [R, ...], and how they were reached; the fields are those of ``Prediction``."""

    outputs: Tensor
    eval_outputs: Tensor
    depths: tuple[int, ...]
    weights: str
    converged: bool
    growth: float | None
    note: str


def at_depth(sampler: Sampler, depth: int) -> Limit:
    """No extrapolation: the ensemble at this depth."""
    here = sampler.at(depth)
    finite = here.diverged_at is None
    return Limit(here.outputs, here.eval_outputs, (depth,), here.weights, finite, None, _divergence(here))


def to_infinity(sampler: Sampler) -> Limit:
    """Double the depth until the change is within rtol, does not shrink, or cannot be doubled again."""
    seen = [sampler.at(FIRST_DEPTH)]
    changes: list[Size] = []
    while seen[-1].diverged_at is None:
        depth = 2 * seen[-1].depth
        if depth > _LAST_DEPTH or not sampler.fits(depth):
            if changes[-1].value > _SHRINKS * changes[0].value and len(changes) > 1:
                return _without_limit(seen, changes)
            why = "memory allows no deeper one" if depth <= _LAST_DEPTH else f"{_LAST_DEPTH} is the deepest tried"
            note = f"The last doubling of the depth still changed the outputs by {changes[-1].value:.3g} (RMS); {why}."
            return _extrapolated(seen, changes, converged=False, note=note)
        seen.append(sampler.at(depth))
        deep, shallow = seen[-1].outputs, seen[-2].outputs
        changes.append(size((deep - shallow).mean(0), stderr(deep - shallow)))
        wanted = sampler.rtol * rms(deep.mean(0))
        if changes[-1].value <= wanted:
            resolved = changes[-1].noise <= wanted
            return _extrapolated(seen, changes, converged=resolved, note="" if resolved else _unresolved(changes[-1]))
        if _does_not_shrink(changes):
            return _without_limit(seen, changes)
    return _stopped(seen, changes, _divergence(seen[-1]))


def _does_not_shrink(changes: list[Size]) -> bool:
    if len(changes) < 2:
        return False
    before, after = changes[-2:]
    return after.value > _SHRINKS * before.value and before.value > 2 * before.noise and after.value > 2 * after.noise


def _extrapolated(seen: list[Ensemble], changes: list[Size], *, converged: bool, note: str) -> Limit:
    shallow, deep = seen[-2:]
    return Limit(
        2 * deep.outputs - shallow.outputs,
        2 * deep.eval_outputs - shallow.eval_outputs,
        tuple(e.depth for e in seen),
        deep.weights,
        converged,
        _growth(changes),
        note,
    )


def _without_limit(seen: list[Ensemble], changes: list[Size]) -> Limit:
    depths = ", ".join(str(e.depth) for e in seen)
    steps = ", ".join(f"{change.value:.3g}" for change in changes)
    note = (
        f"No limit in depth was seen: doubling it through {depths} changed the outputs by {steps} (RMS), growing as "
        f"L^{_growth(changes) or 0.0:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; these are the "
        f"outputs at depth {seen[-1].depth}."
    )
    return _stopped(seen, changes, note)


def _stopped(seen: list[Ensemble], changes: list[Size], note: str) -> Limit:
    last = seen[-1]
    depths = tuple(e.depth for e in seen)
    return Limit(last.outputs, last.eval_outputs, depths, last.weights, False, _growth(changes), note)


def _unresolved(change: Size) -> str:
    return (
        f"Whether the limit in depth was reached is not resolved: the last doubling changed the outputs by less than "
        f"its noise, {change.noise:.2g} (RMS), which is above rtol. Raise replicates, width or rtol."
    )


def _divergence(here: Ensemble) -> str:
    if here.diverged_at is None:
        return ""
    remedy = "Lower eta_c" if here.diverged_at else "Lower the horizon or the scale of the inputs"
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. {remedy}."


def _growth(changes: list[Size]) -> float | None:
    """Exponent g of the change ``~ L**g`` between the first and the last doubling."""
    if len(changes) < 2 or not min(changes[0].value, changes[-1].value) > 0:
        return None
    return math.log2(changes[-1].value / changes[0].value) / (len(changes) - 1)
