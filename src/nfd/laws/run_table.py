"""What a table says of runs beside their losses: names, and settings and shapes by size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nfd.laws.log_columns import Field, usual_field
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.rows import Line, as_number, is_none, is_number
from nfd.laws.unread import is_setting

Size = tuple[float, ...]
# Columns whose cells may be names of runs, those that people read first.
_NAMES = ("run_name", "name", "run", "run_id", "id", "key")
# Fields that are read of runs, and say of their shape or setting what their size does not.
_SAID: tuple[Field, ...] = ("depth", "width", "batch", "length", "decay", "rule")
# Fields that a law is in, or from which its sizes follow; rates are tuned.
_SIZES: tuple[Field, ...] = (
    "parameters",
    "tokens",
    "samples",
    "steps",
    "flops",
    "unique_tokens",
    "epochs",
    "lr",
)
QUOTIENT = "width/depth"


@dataclass(frozen=True)
class RunTable:
    """What a table says of the runs of each size.

    Attributes:
        names: of the runs of a size; empty where the table has no name of every run.
        columns: numbers and words by the name of a column, then by size. Runs of a size that
            differ in a column are not in it.
        rates_differ: whether the runs that count were trained at several learning rates.
    """

    names: Mapping[Size, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[Size, float | str]] = field(default_factory=dict)
    rates_differ: bool = False


def table_of(rungs: Mapping[Size, Sequence[LoggedRun]], chosen: Mapping[Field, str]) -> RunTable:
    """Gather what a table says of runs.

    Args:
        rungs: the runs of each size.
        chosen: the column of each field that was read.
    """
    runs = [run for rung in rungs.values() for run in rung]
    lines = [run.line for run in runs]
    columns = dict[str, dict[Size, float | str]]()
    for title, name in _titles(lines, chosen).items():
        columns[title] = _by_size(rungs, name)
    if "width" in columns and "depth" in columns:
        columns[QUOTIENT] = _quotients(columns["width"], columns["depth"])
    rates = {run.lr for run in runs} - {None}
    return RunTable(_names(rungs, lines), columns, len(rates) > 1)


def _titles(lines: Sequence[Line], chosen: Mapping[Field, str]) -> dict[str, str]:
    """The columns of settings and shapes by what an answer calls them, shapes first."""
    titles: dict[str, str] = {field: chosen[field] for field in _SAID if field in chosen}
    names = dict.fromkeys(name for line in lines for name in line)
    for name in names:
        # What a law is in, and what sizes follow from, says nothing beside it.
        is_read = name in chosen.values() or usual_field(name) in (*chosen, *_SIZES)
        if is_read or not is_setting(lines, name):
            continue
        short = re.split("[./]", name)[-1]
        titles[name if short in titles else short] = name
    return titles


def _by_size(rungs: Mapping[Size, Sequence[LoggedRun]], name: str) -> dict[Size, float | str]:
    """The values of a column, where the runs of a size agree."""
    values = dict[Size, float | str]()
    for size, rung in rungs.items():
        cells = {_cell(run.line.get(name)) for run in rung}
        if len(cells) == 1 and None not in cells:
            values[size] = cells.pop()  # type: ignore[assignment]
    return values


def _cell(value: Any) -> float | str | None:
    """A cell as a number or a word; None for an empty one."""
    if is_none(value):
        return None
    return as_number(str(value)) if is_number(str(value)) else str(value).strip()


def _quotients(
    widths: Mapping[Size, float | str], depths: Mapping[Size, float | str]
) -> dict[Size, float | str]:
    """The width over the depth of each size."""
    quotients = dict[Size, float | str]()
    for size, width in widths.items():
        depth = depths.get(size)
        if isinstance(width, float) and isinstance(depth, float) and depth:
            quotients[size] = width / depth
    return quotients


def _names(rungs: Mapping[Size, Sequence[LoggedRun]], lines: Sequence[Line]) -> dict[Size, str]:
    """The names of runs, from the first column that tells them apart; else none."""
    columns = dict.fromkeys(name for line in lines for name in line)
    candidates = [name for name in columns if usual_field(name) == "run"]
    candidates.sort(key=lambda name: (re.search("[./]", name) is not None, _rank(name)))
    for name in candidates:
        cells = [line.get(name) for line in lines]
        if any(map(is_none, cells)) or len({*map(str, cells)}) < len(cells):
            continue
        names = dict[Size, str]()
        for size, rung in rungs.items():
            others = f" and {len(rung) - 1} more" if len(rung) > 1 else ""
            names[size] = f"{rung[0].line[name]}{others}"
        return names
    return {}


def _rank(name: str) -> int:
    """Which columns of names come first: those of words before ids."""
    return next((place for place, word in enumerate(_NAMES) if word in name.lower()), len(_NAMES))
