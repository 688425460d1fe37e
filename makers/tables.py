"""Rows as tables, on the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.table import Table

from nfd.core.estimates import Interval
from nfd.core.files import write_text
from nfd.core.tables import Row


@runtime_checkable
class HasInterval(Protocol):
    """A value with a 95 % interval, such as a ratio of times."""

    @property
    def interval(self) -> Interval:
        """The value and its limits."""


def cell(column: str, value: Any) -> str:
    """A value as text: three digits, shares in percent, ratios with their 95 % interval."""
    percent = "share" in column or column.endswith("alone") or column == "outside operations"
    unit = " %" if percent else ""
    if isinstance(value, HasInterval):
        interval = value.interval
        text = _number(interval.value, percent)
        if math.isfinite(interval.low):
            text += f" [{_number(interval.low, percent)}, {_number(interval.high, percent)}]"
        return text + unit
    if isinstance(value, float):
        return _number(value, percent) + unit
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def in_sentence(column: str, value: HasInterval, level: str = "") -> str:
    """A value as a sentence says it: ``6.0 (5.0 to 7.3)``, in percent where ``cell`` has percent.

    The first interval of a paragraph says its level, such as ``95 %: ``.
    """
    interval = value.interval
    percent = "share" in column
    unit = " %" if percent else ""
    ends = f"{_number(interval.low, percent)} to {_number(interval.high, percent)}{unit}"
    return f"{_number(interval.value, percent)}{unit} ({level}{ends})"


def _number(value: float, percent: bool) -> str:
    """A number as text: three digits, in percent two or a whole number."""
    if percent:
        return f"{100 * value:.2g}" if abs(value) < 0.1 else f"{100 * value:.0f}"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    if value == 0:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def columns(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, in order."""
    names = dict[str, None]()
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def terminal(title: str, rows: Sequence[Row]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for name in columns(rows):
        table.add_column(name)
    for row in rows:
        table.add_row(*(cell(name, row.get(name)) for name in columns(rows)))
    Console().print(table)


def markdown(rows: Sequence[Row]) -> str:
    """A table of Markdown."""
    names = columns(rows)
    table = [names]
    for row in rows:
        table.append([cell(name, row.get(name)) for name in names])
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    lines.insert(1, "|" + "---|" * len(names))
    return "\n".join(lines)


def fill_page(page: Path, texts: Mapping[str, str]) -> None:
    """Write every text between its marks: ``<!-- made: NAME -->`` and ``<!-- end -->``."""
    text = page.read_text(encoding="utf-8")
    for name, content in texts.items():
        begin = f"<!-- made: {name} -->\n"
        end = "\n<!-- end -->"
        if text.count(begin) != 1:
            raise ValueError(
                f"{page} has {text.count(begin)} places for {name!r}; one is expected."
            )
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
    write_text(page, text)
