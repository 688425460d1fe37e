"""A word for a slope: does a quantity stay, collapse or grow along an axis, and what is the likely cause?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from nfd.core.statistics import Interval
from nfd.meters.updates import UPDATES

_SMALL, _CLEAR = 0.1, 0.25
THRESHOLDS = (
    f"STABLE: the interval lies within ±{_CLEAR}; COLLAPSES, GROWS: beyond ±{_SMALL}, the exponent beyond ±{_CLEAR}."
)
_MANY = 100  # seeds: beyond it more sizes help sooner

Verdict = Literal["STABLE", "COLLAPSES", "GROWS", "UNCERTAIN"]
Axis = Literal["width", "depth"]


def verdict(slope: Interval) -> Verdict:
    """``STABLE``: the 95 % interval lies within +-0.25. ``COLLAPSES``, ``GROWS``: it lies beyond -0.1 or +0.1 and the
    slope beyond -0.25 or +0.25. Otherwise ``UNCERTAIN``."""
    if slope.low >= -_CLEAR and slope.high <= _CLEAR:
        return "STABLE"
    if slope.high < -_SMALL and slope.value < -_CLEAR:
        return "COLLAPSES"
    if slope.low > _SMALL and slope.value > _CLEAR:
        return "GROWS"
    return "UNCERTAIN"


def since(sizes: Sequence[int], values: Tensor) -> int:
    """The size from which every later local slope of ``values`` [sizes] is beyond 0.25, or the last but one."""
    x = values.double().log()
    start = len(sizes) - 2
    while start > 0 and abs(float(x[start] - x[start - 1])) > _CLEAR * math.log(sizes[start] / sizes[start - 1]):
        start -= 1
    return sizes[start]


def seeds_needed(slope: Interval, seeds: int) -> int | None:
    """How many seeds would settle an uncertain slope, if it stays where it is; None where no number would,
    or too many to ask for.

    An interval shrinks as the root of their number.
    """
    half, size = (slope.high - slope.low) / 2, abs(slope.value)
    room = _CLEAR - size if size < _CLEAR else size - _SMALL
    if not math.isfinite(half) or room <= 0.01:
        return None
    needed = max(seeds + 1, math.ceil(seeds * (half / room) ** 2))
    return needed if needed <= _MANY else None


_LAZY = "features stop moving as the network widens (lazy training). Use a rule of mup's kind, and its readout."
_WIDE = "updates grow with width: rates do not follow it. Use rule 'mup' or a depth rule instead of 'standard'."
_UPDATES = tuple(meter for meter in UPDATES if meter != "activation")
_CAUSES: dict[tuple[str, Axis, Verdict], str] = {
    **{(meter, "width", "COLLAPSES"): _LAZY for meter in _UPDATES},
    **{(meter, "width", "GROWS"): _WIDE for meter in _UPDATES},
    ("activation", "depth", "GROWS"): (
        "the residual stream grows with depth: branches carry no 1/sqrt(L). Use a depth rule."
    ),
    ("activation", "depth", "COLLAPSES"): "the signal dies on its way up. Check the initialisation and the norms.",
    ("activation", "width", "GROWS"): _WIDE,
    ("activation", "width", "COLLAPSES"): "the start shrinks with width: the initialisation is not the rule's.",
    ("activation_update", "depth", "GROWS"): (
        "the stream moves further the deeper the network: blocks add up coherently. Use 'complete-p', or a lower rate."
    ),
    ("activation_update", "depth", "COLLAPSES"): "deep streams hardly move: the rate of the blocks falls too fast.",
    ("inner_update", "depth", "COLLAPSES"): (
        "inner layers stop learning: their gradient carries the residual multiplier. Use 'complete-p', whose "
        "multiplier 1/L keeps the function's step too, or 'depth-mup-inner' (Eq. 8), at the price that "
        "function_update_inner shows."
    ),
    ("inner_update", "depth", "GROWS"): "inner rates grow too fast with depth. Use 'complete-p'.",
    ("stream_update", "depth", "COLLAPSES"): "outer layers learn less than 1/L of the stream each: raise their rate.",
    ("stream_update", "depth", "GROWS"): (
        "outer layers add more than 1/L of the stream each: their rates do not fall with depth. Use a depth rule."
    ),
    ("function_update", "depth", "GROWS"): (
        "a step moves the function further the deeper the network. Lower the rate as depth grows, or use 'complete-p'."
    ),
    ("function_update", "depth", "COLLAPSES"): "a step moves the function less the deeper the network.",
    ("function_update_inner", "depth", "GROWS"): (
        "inner updates add up coherently over the blocks (under Eq. 8 as sqrt(L), its price). Use 'complete-p', "
        "or lower the rate as depth grows."
    ),
    ("function_update_inner", "depth", "COLLAPSES"): "what inner layers do to the function vanishes with depth.",
    ("update_to_weight", "depth", "COLLAPSES"): "inner weights hardly move against their start in deep networks.",
    ("gradient", "depth", "COLLAPSES"): "gradients vanish on their way down: check norms and residual multipliers.",
    ("gradient", "depth", "GROWS"): (
        "gradients explode on their way down: branches carry no 1/sqrt(L). Use a depth rule."
    ),
    ("loss", "depth", "COLLAPSES"): "the loss falls with depth: more blocks pay.",
    ("loss", "depth", "GROWS"): "the same rate does worse the deeper the network: it does not transfer.",
    ("loss", "width", "COLLAPSES"): "the loss falls with width: more width pays.",
    ("loss", "width", "GROWS"): "the same rate does worse the wider the network: it does not transfer.",
    ("gia_gap", "depth", "COLLAPSES"): "decoupled training comes closer to standard training with depth.",
    ("gia_gap", "depth", "STABLE"): (
        "reused backward weights matter at every depth: gradient independence is not restored (contrary to "
        "Corollary 1)."
    ),
    ("gia_gap", "depth", "GROWS"): (
        "reused backward weights matter more the deeper the network: gradient independence is not restored "
        "(contrary to Corollary 1)."
    ),
}


def cause(meter: str, axis: Axis, word: Verdict, rule: str = "") -> str:
    """One sentence on the likely cause and remedy; for a quantity that stays, that it does.

    Where the remedy is the rule that is in use, something else is wrong.
    """
    if word == "STABLE" and (meter, axis, word) not in _CAUSES:
        return f"does not depend on {axis}."
    said = _CAUSES.get((meter, axis, word), f"changes with {axis}; the plan's rates were made to keep it.")
    advised = f"'{rule}'" in said or said == _WIDE or (rule != "mup" and "Use a depth rule" in said)
    if advised and rule not in ("", "standard"):
        seen = said.split(": ")[0].split(". ")[0]
        return f"{seen}; {rule!r} should keep it: check roles, base and rate, or larger sizes."
    return said
