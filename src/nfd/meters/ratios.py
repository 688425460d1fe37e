"""What is beside what should be, in words: ratios, and the powers of a size that they follow."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nfd.core.names import Axis
from nfd.core.words import number

TIMES = "\u00d7"

# A power that is nearer to 0 is none.
_NO_POWER = 0.04


def goes(power: float, axis: Axis) -> str:
    """Say how a quantity follows an axis: ``falls as width^-0.5``."""
    if abs(power) < _NO_POWER:
        return f"does not change with {axis}"
    verb = "rises" if power > 0 else "falls"
    return f"{verb} as {axis}^{power:.2g}"


def should_go(power: float, axis: Axis) -> str:
    """Say how a quantity is to follow an axis: ``fall as width^-1``."""
    if abs(power) < _NO_POWER:
        return "stay as it is"
    verb = "rise" if power > 0 else "fall"
    return f"{verb} as {axis}^{power:.2g}"


def arrow(now: float, sound: float) -> str:
    """Write what is and what should be as ``0.004 → 0.001``."""
    return f"{number(now, 3)} → {number(sound, 3)}"


def arrow_of_size(now: float, sound: float) -> str:
    """Write by how much a size is off: ``4 times too large``."""
    side = "large" if now > sound else "small"
    return f"{number(max(now / sound, sound / now))} times too {side}"


def divided(ratio: float) -> str:
    """Write a ratio of what is to what should be as ``÷ 4`` or a factor of 2."""
    if ratio >= 1:
        return f"÷ {number(ratio)}"
    return f"{TIMES} {number(1 / ratio)}"


def axes_of(axes: Mapping[Axis, tuple[float, float]]) -> str:
    """Say which sizes a ratio follows: ``width · depth``, ``√width`` or ``width / √depth``.

    Args:
        axes: by axis the part of the ratio that comes from it, and how much the axis grows.
    """
    total = math.prod(ratio for ratio, _ in axes.values())
    sign = 1.0 if total >= 1 else -1.0
    multiplied = list[str]()
    divided_by = list[str]()
    for axis, (ratio, span) in axes.items():
        power = sign * math.log(ratio) / math.log(span)
        if abs(power) < _NO_POWER:
            continue
        side = multiplied if power > 0 else divided_by
        side.append(_axis_to(abs(power), axis))
    text = " · ".join(multiplied) or "1"
    if divided_by:
        text += f" / {' / '.join(divided_by)}"
    return text


def exact(axes: Mapping[Axis, tuple[float, float]]) -> float:
    """The ratio without the noise of what was drawn, where its powers are named ones."""
    total = 1.0
    for ratio, span in axes.values():
        power = math.log(ratio) / math.log(span)
        for named in _NAMED:
            if abs(abs(power) - named) < _AS_NAMED:
                power = math.copysign(named, power)
        total *= math.pow(span, power)
    return total


# Powers that are as near are written as their names.
_AS_NAMED = 0.1
_NAMED = {1.0: "{}", 0.5: "√{}", 2.0: "{}²"}


def _axis_to(power: float, axis: Axis) -> str:
    for named, form in _NAMED.items():
        if abs(power - named) < _AS_NAMED:
            return form.format(axis)
    return f"{axis}^{power:.2g}"
