"""Values in sentences: numbers, lists, sizes, and the name that was meant by a misspelt one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INFINITE = math.inf
MINUS = "\u2212"


# ---- numbers


def number(value: float, digits: int = 2) -> str:
    """Write a number as a person does: ``0.0054``, ``19,000``, ``2.1B``, ``−0.3`` or ``5.4e-5``."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else f"{value:+g}".replace("inf", "∞")
    size = abs(value)
    rounded = float(f"{value:.{digits}g}")
    if size >= 1e15 or 0 < size < 1e-4:
        return power_of_ten(value, digits)
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if size >= 0.9995 * scale:
            return minus(f"{float(f'{value / scale:.{digits}g}'):,.10g}{letter}")
    return minus(f"{rounded:,.10g}")


def power_of_ten(value: float, digits: int = 2) -> str:
    """Write ``7.7e19``, as compute is written."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return minus(f"{float(mantissa):g}e{int(exponent)}")


def minus(text: str) -> str:
    """Write a number's sign as the character that is as wide as a plus; exponents keep theirs."""
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def alike(value: float, low: float, high: float, limit: float | None = None) -> list[str]:
    """Write a value and the ends of its interval with the same decimals.

    They have two digits of the interval's width, and one more where an end would round to
    ``limit``, on either side of which it decides.
    """
    numbers = [value, low, high]
    finite = [abs(one) for one in numbers if math.isfinite(one)]
    width = high - low
    largest = max(finite, default=0.0)
    if len(finite) < 3 or largest >= 1e4 or largest < 1e-4 or not width > 0:
        return [number(one, 3) for one in numbers]
    places = min(max(0, 1 - math.floor(math.log10(width))), 6)
    texts = [f"{one:.{places}f}" for one in numbers]
    if limit is not None and any(float(text) == limit for text in texts[1:]):
        texts = [f"{one:.{places + 1}f}" for one in numbers]
    # Rounded to zero, a number has no sign.
    return [minus(text) if float(text) else text.lstrip("-") for text in texts]


def plural(count: int, noun: str, several: str = "") -> str:
    """Write ``1 layer`` or ``4 layers``; with ``several`` for another plural."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {several or noun + 's'}"


# ---- lists and sizes


def listed(values: Iterable[Any], form: str = "") -> str:
    """Return ``1, 2 and 3``; an empty text of no values."""
    texts = [format(value, form) for value in values]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def quoted(names: Sequence[str], most: int = 3) -> str:
    """Return the first names in quotes, and how many more there are.

    An example is ``'a', 'b', 'c' and 2 more``.
    """
    first = ", ".join(repr(name) for name in names[:most])
    others = len(names) - most
    if others <= 0:
        return first
    return f"{first} and {others} more"


def depth_name(depth: float) -> str:
    """Return ``depth 8`` or ``infinite depth``."""
    return "infinite depth" if depth == INFINITE else f"depth {depth:g}"


def in_letters(size: float) -> str:
    """Return parameters or tokens as ``7B``, ``1.71T`` or ``64``, and compute as ``3e21``."""
    if size >= 1e16:
        return power_of_ten(size, 3)
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if size >= 0.9995 * scale:
            return f"{size / scale:.3g}{letter}"
    return f"{size:.4g}"


def in_words(size: Mapping[str, float]) -> str:
    """Return ``7B parameters and 4T tokens``."""
    return listed(f"{in_letters(number)} {name}" for name, number in size.items())


def nearest(name: object, choices: Iterable[str]) -> str:
    """Return a hint such as ``" Did you mean 'relu'?"``, or an empty text.

    It is empty when nothing is near; case does not count.
    """
    close = closest(name, choices)
    if not close:
        return ""
    return f" Did you mean {close!r}?"


def closest(name: object, choices: Iterable[str]) -> str:
    """Return the choice that is nearest to a name, or an empty string.

    It is empty when none is near; case does not count.
    """
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=0.5)
    if not close:
        return ""
    return by_lower_case[close[0]]
