"""Text from outside, as people are shown it."""

from __future__ import annotations

import math
import unicodedata

_UNSEEN = ("Cc", "Cf", "Zl", "Zp")  # controls, those that turn text around among them, and separators of lines
_KEPT = "\n\t\u00ad\u200c\u200d"  # soft hyphens and joiners belong to words


def short(value: object) -> str:
    """A value in a cell of a table: four digits of a number, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def in_bytes(size: float) -> str:
    """A number of bytes, with three digits in its own unit: ``"1.25 GiB"``."""
    names = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(max(math.frexp(size)[1] - 1, 0) // 10, len(names) - 1)
    return f"{size / 1024**power:.3g} {names[power]}"


def visible(text: str) -> str:
    """The text with invisible characters, and those that reorder text, replaced by their code points."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in _UNSEEN and c not in _KEPT else c for c in text)
