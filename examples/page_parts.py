"""Tables and intervals in Markdown, as the pages of the examples have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

LIMITS = ("value", "low", "high")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def bracketed(row: Mapping[str, float | None], form: str = "+.2f", factor: float = 1.0) -> str:
    """``0.008 [0.007, 0.01]``; a dash where it is not known."""
    value, low, high = (None if row[name] is None else format(factor * row[name], form) for name in LIMITS)
    return "-" if value is None else value if low is None else f"{value} [{low}, {high}]"
