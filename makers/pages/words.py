"""How pages word numbers: with their 95 % intervals, in sentences and in cells of tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from nfd.core.tables import Row

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STUDIES = ROOT / "studies"
NUMBERS = ROOT / "makers/numbers"
LEVEL = "95 %: "
MINUS = "\N{MINUS SIGN}"


def number(value: float, spec: str = ".2f") -> str:
    """A number as text, whose zero has no minus."""
    text = f"{value:{spec}}"
    return text if float(text.replace(",", "")) else text.replace("-", "+" if "+" in spec else "")


def sentence(row: Mapping[str, Any], spec: str = ".2f", unit: str = "", level: str = "") -> str:
    """A value with its interval as a sentence says it: ``0.5 (0.3 to 0.7)``.

    The first one of a paragraph says its ``level``.
    """
    text = (
        f"{number(row['value'], spec)}{unit} "
        f"({level}{number(row['low'], spec)} to {number(row['high'], spec)}{unit})"
    )
    return text.replace("-", MINUS)


def bracketed(row: Mapping[str, Any], spec: str = ".2f", unit: str = "") -> str:
    """A value with its interval as a cell has it: ``0.5 [0.3, 0.7]``."""
    ends = f"{number(row['low'], spec)}, {number(row['high'], spec)}"
    return f"{number(row['value'], spec)}{unit} [{ends}]"


def scaled(row: Mapping[str, Any], factor: float) -> Row:
    """A value and its interval, multiplied; by 100 for percent."""
    return {name: factor * row[name] for name in ("value", "low", "high")}


def shifted(row: Mapping[str, Any], offset: float) -> Row:
    """A value and its interval, moved."""
    return {name: offset + row[name] for name in ("value", "low", "high")}


def negated(row: Mapping[str, Any]) -> Row:
    """A value and its interval with the other sign."""
    return {"value": -row["value"], "low": -row["high"], "high": -row["low"]}


def paragraph(*sentences: str) -> str:
    """Sentences as a paragraph of lines of at most 120 characters."""
    return fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def read_csv(path: Path) -> list[Row]:
    """The rows of a CSV, with numbers as numbers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = list[Row]()
    for line in csv.DictReader(lines):
        rows.append({name: _typed(text) for name, text in line.items()})
    return rows


def _typed(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def where(rows: Sequence[Row], **wanted: Any) -> Row:
    """The only row whose columns have these values."""
    (row,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row
