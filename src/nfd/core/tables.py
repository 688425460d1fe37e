"""Tables as text."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from nfd.core.text import short

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
