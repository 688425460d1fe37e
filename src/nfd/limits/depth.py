"""Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence, and plain words where it does not.

``f_L = f + a / L + O(1/L^2)``, so the extrapolated ``2 f_2L - f_L`` is off by O(1/L^2): when a further doubling moves
it by less than rtol, the limit is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from nfd.core.statistics import Magnitude, magnitude, rms, stderr
from nfd.limits.ensemble import Ensemble
from nfd.limits.networks import Words
from nfd.limits.sampler import Sampler

_SHRINKS = 0.8  # a change that keeps this share when the depth doubles is not converging (1/L would keep 1/2)


@dataclass(frozen=True)
class Limit:
    """Samples of the answer, [R, ...], and how they were reached; the fields are those of ``Prediction``.

    ``coarse`` and ``eval_coarse`` are what the extrapolation before the last one gave, from half the depths; None where
    nothing was extrapolated.
    """

    outputs: Tensor
    eval_outputs: Tensor
    coarse: Tensor | None
    eval_coarse: Tensor | None
    depths: tuple[int, ...]
    weights: str
    converged: bool
    growth: float | None
    note: str

    @property
    def extrapolated(self) -> bool:
        """Whether it is ``2 f_2L - f_L``, and not the outputs of the deepest networks run."""
        return self.coarse is not None


def at_depth(sampler: Sampler, depth: int) -> Limit:
    """No extrapolation: the ensemble at this depth."""
    here = sampler.at(depth)
    finite, note = here.diverged_at is None, _divergence(here, sampler.networks.words)
    return Limit(here.outputs, here.eval_outputs, None, None, (depth,), here.weights, finite, None, note)


def narrower(sampler: Sampler, limit: Limit) -> tuple[Tensor, Tensor] | None:
    """Outputs and evaluation outputs [R, ...] of narrower networks, made as the limit was; None if none is narrower."""
    if sampler.narrow_width == sampler.width:
        return None
    return _made_alike(limit, sampler.narrower)


def exact(sampler: Sampler, limit: Limit) -> tuple[Tensor, Tensor] | None:
    """The same of narrower networks without a resolution; None where weights have none."""
    return _made_alike(limit, sampler.exact)


def _made_alike(limit: Limit, ensemble_at: Callable[[int], Ensemble | None]) -> tuple[Tensor, Tensor] | None:
    """Outputs and evaluation outputs of other ensembles, from the depths of a limit."""
    deepest = ensemble_at(limit.depths[-1])
    half = ensemble_at(limit.depths[-2]) if limit.extrapolated else None
    if deepest is None or half is None:
        return None if deepest is None else (deepest.outputs, deepest.eval_outputs)
    return extrapolated(half.outputs, deepest.outputs), extrapolated(half.eval_outputs, deepest.eval_outputs)


def to_infinity(sampler: Sampler) -> Limit:
    """Double the depth until the extrapolation moves by less than rtol, or the changes do not shrink."""
    networks, ensembles, changes = sampler.networks, list[Ensemble](), list[Magnitude]()
    words = networks.words
    for depth in networks.depths:
        if not sampler.fits(depth):
            break
        ensembles.append(sampler.at(depth))
        if ensembles[-1].diverged_at is not None:
            return _stopped(ensembles, changes, _divergence(ensembles[-1], words))
        if len(ensembles) > 1:
            changes.append(_change(ensembles[-1].outputs - ensembles[-2].outputs))
        if _does_not_shrink(changes):
            return _without_limit(ensembles, changes, words)
        if len(ensembles) > 2:
            a, b, c = (e.outputs for e in ensembles[-3:])
            moved = _change(extrapolated(b, c) - extrapolated(a, b))
            wanted = sampler.rtol * rms(ensembles[-1].outputs.mean(0))
            if moved.value <= wanted:
                resolved = moved.noise <= wanted
                return _limit(ensembles, changes, converged=resolved, note="" if resolved else _unresolved(moved))
    if changes[-1].value > max(_SHRINKS * changes[0].value, 2 * changes[-1].noise):
        return _without_limit(ensembles, changes, words)
    short = len(ensembles) < len(networks.depths)
    reason = "memory allows no deeper one" if short else f"{networks.depths[-1]} is the deepest tried"
    note = (
        f"The last doubling of the depth still changed the {words.values} by {changes[-1].value:.3g} (RMS); {reason}."
    )
    return _limit(ensembles, changes, converged=False, note=note)


def _change(samples: Tensor) -> Magnitude:
    return magnitude(samples.mean(0), stderr(samples))


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """``2 f_2L - f_L`` of anything at depths, or widths, L and 2L: its limit where it goes to it as 1/L."""
    return 2 * deep - shallow


def _does_not_shrink(changes: list[Magnitude]) -> bool:
    if len(changes) < 2:
        return False
    before, after = changes[-2:]
    return after.value > _SHRINKS * before.value and before.value > 2 * before.noise and after.value > 2 * after.noise


def _limit(ensembles: list[Ensemble], changes: list[Magnitude], *, converged: bool, note: str) -> Limit:
    shallow, deep = ensembles[-2:]
    outputs, evaluations = [e.outputs for e in ensembles[-3:]], [e.eval_outputs for e in ensembles[-3:]]
    return Limit(
        extrapolated(shallow.outputs, deep.outputs),
        extrapolated(shallow.eval_outputs, deep.eval_outputs),
        _before(outputs),
        _before(evaluations),
        tuple(e.depth for e in ensembles),
        deep.weights,
        converged,
        _growth(changes),
        note,
    )


def _before(outputs: list[Tensor]) -> Tensor:
    """What the last three depths gave one doubling ago: the extrapolation of the first two, of two alone the deeper."""
    return extrapolated(*outputs[:2]) if len(outputs) > 2 else outputs[-1]


def _without_limit(ensembles: list[Ensemble], changes: list[Magnitude], words: Words) -> Limit:
    depths = ", ".join(str(e.depth) for e in ensembles)
    steps = ", ".join(f"{change.value:.3g}" for change in changes)
    note = (
        f"No limit in depth was found: doubling it through {depths} changed the {words.values} by {steps} (RMS), "
        f"growing as L^{_growth(changes) or 0.0:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; "
        f"these are the {words.values} at depth {ensembles[-1].depth}."
    )
    return _stopped(ensembles, changes, note)


def _stopped(ensembles: list[Ensemble], changes: list[Magnitude], note: str) -> Limit:
    last = ensembles[-1]
    depths = tuple(e.depth for e in ensembles)
    return Limit(last.outputs, last.eval_outputs, None, None, depths, last.weights, False, _growth(changes), note)


def _unresolved(change: Magnitude) -> str:
    return (
        f"Noise hides whether the limit in depth was reached: the last doubling moved the extrapolation by less "
        f"than its noise, {change.noise:.2g} (RMS), which is above rtol. Raise replicates, width or rtol."
    )


def _divergence(here: Ensemble, words: Words) -> str:
    if here.diverged_at is None:
        return ""
    remedy = words.later if here.diverged_at else words.at_start
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. {remedy}."


def _growth(changes: list[Magnitude]) -> float | None:
    """Exponent g of the change ``~ L**g`` between the first and the last doubling."""
    if len(changes) < 2 or not min(changes[0].value, changes[-1].value) > 0:
        return None
    return math.log2(changes[-1].value / changes[0].value) / (len(changes) - 1)
