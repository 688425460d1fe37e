"""Values in sentences: lists of them, sizes, and the name that was meant by a misspelt one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INFINITE = math.inf


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
    """Return a number of parameters or tokens as ``7B``, ``1.71T`` or ``64``."""
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
