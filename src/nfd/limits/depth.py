"""Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence, and plain words where it does not.

``f_L = f + a / L + O(1/L^2)``, so the extrapolated ``2 f_2L - f_L`` is off by O(1/L^2): when a further doubling moves
it by less than rtol, the limit is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from nfd.core.statistics import Magnitude, magnitude, rms, stderr
from nfd.limits.ensemble import Ensemble

_SHRINKS = 0.8  # a change that keeps this share when the depth doubles is not converging (1/L would keep 1/2)


@dataclass(frozen=True)
class Limit:
    """Which depths were trained, and whether the last two are extrapolated.

    Attributes:
        depths: ascending; the last is the deepest. extrapolated: whether values are ``2 f_2L - f_L``.
        converged: whether the limit was reached. growth: exponent g of the change from L to 2L. note: what to say.
    """

    depths: tuple[int, ...]
    extrapolated: bool
    converged: bool
    growth: float | None = None
    note: str = ""

    def of(self, value_at: Callable[[int], Tensor]) -> Tensor:
        """The limit of values at depths."""
        deep = value_at(self.depths[-1])
        return extrapolated(value_at(self.depths[-2]), deep) if self.extrapolated else deep

    def before(self, value_at: Callable[[int], Tensor]) -> Tensor | None:
        """The same one doubling ago, which shows the error of depth; None where nothing was extrapolated."""
        if not self.extrapolated:
            return None
        if len(self.depths) == 2:
            return value_at(self.depths[-1])
        return extrapolated(value_at(self.depths[-3]), value_at(self.depths[-2]))


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """``2 f_2L - f_L`` of anything at depths, or widths, L and 2L: its limit where it goes to it as 1/L."""
    return 2 * deep - shallow


def at_depth(here: Ensemble) -> Limit:
    """No extrapolation: the ensemble at this depth."""
    return Limit((here.depth,), False, here.diverged_at is None, note=divergence(here))


def to_infinity(ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float) -> Limit:
    """Double the depth until the extrapolation moves by less than rtol, or the changes do not shrink."""
    ensembles, changes = list[Ensemble](), list[Magnitude]()
    for depth in depths:
        ensembles.append(ensemble_at(depth))
        if ensembles[-1].diverged_at is not None:
            return _stopped(ensembles, changes, divergence(ensembles[-1]))
        if len(ensembles) > 1:
            changes.append(_change(ensembles[-1].losses - ensembles[-2].losses))
        if _does_not_shrink(changes):
            return _without_limit(ensembles, changes)
        if len(ensembles) > 2:
            a, b, c = (e.losses for e in ensembles[-3:])
            moved = _change(extrapolated(b, c) - extrapolated(a, b))
            wanted = rtol * rms(ensembles[-1].losses.mean(0))
            if moved.value <= wanted:
                resolved = moved.noise <= wanted
                return _limit(ensembles, changes, resolved, "" if resolved else _unresolved(moved))
    if changes[-1].value > max(_SHRINKS * changes[0].value, 2 * changes[-1].noise):
        return _without_limit(ensembles, changes)
    note = (
        f"The last doubling of the depth still changed the losses by {changes[-1].value:.3g} (RMS); {depths[-1]} is "
        "the deepest tried."
    )
    return _limit(ensembles, changes, False, note)


def divergence(here: Ensemble) -> str:
    """A sentence on a divergence; empty where there was none."""
    if here.diverged_at is None:
        return ""
    remedy = "Lower lr" if here.diverged_at else "Check the batches and the initial weights"
    return f"Training diverged at step {here.diverged_at} at width {here.width}, depth {here.depth}. {remedy}."


def _change(samples: Tensor) -> Magnitude:
    return magnitude(samples.mean(0), stderr(samples))


def _does_not_shrink(changes: list[Magnitude]) -> bool:
    if len(changes) < 2:
        return False
    before, after = changes[-2:]
    return after.value > _SHRINKS * before.value and before.value > 2 * before.noise and after.value > 2 * after.noise


def _limit(ensembles: list[Ensemble], changes: list[Magnitude], converged: bool, note: str) -> Limit:
    return Limit(tuple(e.depth for e in ensembles), True, converged, _growth(changes), note)


def _stopped(ensembles: list[Ensemble], changes: list[Magnitude], note: str) -> Limit:
    return Limit(tuple(e.depth for e in ensembles), False, False, _growth(changes), note)


def _without_limit(ensembles: list[Ensemble], changes: list[Magnitude]) -> Limit:
    depths = ", ".join(str(e.depth) for e in ensembles)
    steps = ", ".join(f"{change.value:.3g}" for change in changes)
    note = (
        f"No limit in depth was found: doubling it through {depths} changed the losses by {steps} (RMS), growing as "
        f"L^{_growth(changes) or 0.0:.2f} where a limit would shrink as 1/L. Nothing was extrapolated; these are the "
        f"losses at depth {ensembles[-1].depth}."
    )
    return _stopped(ensembles, changes, note)


def _unresolved(change: Magnitude) -> str:
    return (
        f"Noise hides whether the limit in depth was reached: the last doubling moved the extrapolation by less "
        f"than its noise, {change.noise:.2g} (RMS), which is above rtol. Raise replicates, width or rtol."
    )


def _growth(changes: list[Magnitude]) -> float | None:
    """Exponent g of the change ``~ L**g`` between the first and the last doubling."""
    if len(changes) < 2 or not min(changes[0].value, changes[-1].value) > 0:
        return None
    return math.log2(changes[-1].value / changes[0].value) / (len(changes) - 1)
