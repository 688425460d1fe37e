"""Tables as text."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

Row = dict[str, Any]
"""A row of a table: values by the names of its columns."""


def table_of(*columns: Column | str) -> Table:
    """An empty table with these columns."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def rows_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a result for people; ``value``, ``low`` and ``high`` stand in one column."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("low", "high")]
    table = table_of(*("value [95 % interval]" if name == "value" else name for name in names))
    for row in rows:
        table.add_row(*(_interval(row) if name == "value" else _cell(row.get(name)) for name in names))
    return as_text(table, 200)


def _interval(row: Mapping[str, Any]) -> str:
    value, low, high = (_cell(row.get(name)) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]" if low and high else value


def _cell(value: object) -> str:
    return "" if isinstance(value, float) and not math.isfinite(value) else short(value)


def as_text(table: Table, width: int) -> str:
    """What Rich would print, without colours; in a notebook, too, where it would display it instead."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, highlight=False, emoji=False, markup=False, force_jupyter=False
    )
    console.print(table)
    return text.getvalue().rstrip()


# ---- Text from outside, as people are shown it.


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
