"""Tables as text."""

from __future__ import annotations

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table


def table_of(*columns: Column | str) -> Table:
    """An empty table with these columns."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def as_text(table: Table, width: int) -> str:
    """What Rich would print, without colours; in a notebook, too, where it would display it instead."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, highlight=False, emoji=False, markup=False, force_jupyter=False
    )
    console.print(table)
    return text.getvalue().rstrip()
