"""Rows of training runs from what people hold them in: files, DataFrames, nested dicts and lists.

A JSON file is a list of runs, or a dict of them by name, or has such a list inside of it; a table
may be a dict of columns. A run may hold curves, lists over its steps, of which the last values
count.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.checks import check_several
from nfd.core.errors import InputError, InputTypeError
from nfd.core.words import nearest
from nfd.laws.log_columns import usual_field
from nfd.laws.rows import is_none, listed
from nfd.laws.run_files import read_file

Record = Mapping[str, Any]
# Fields over which a run has curves.
_OVER_STEPS = ("step", "steps", "tokens", "samples")
# Fields that tell the runs of a list apart from the steps of a curve.
_OF_RUNS = ("lr", "seed", "parameters", "width", "depth", "batch", "flops", "run")
# The number that the caller names tables by, beside the fields.
TABLE = "table"


@dataclass(frozen=True)
class Names:
    """What the columns of a log hold, by their usual names and by those that the caller gave."""

    given: Mapping[str, str | None]

    def field(self, name: str) -> str:
        """The field that a column holds; empty for none."""
        for field, column in self.given.items():
            if column is not None and column.replace("/", ".") == name.replace("/", "."):
                return field
        return usual_field(name) or ("step" if name.lower() == "epoch" else "")

    def is_loss(self, name: str) -> bool:
        """Whether a column holds a loss."""
        return self.field(name) == "loss"


def kept_rows(rows: Any) -> Any:
    """List the rows of a generator, which can be read only once; leave anything else."""
    return list(rows) if isinstance(rows, Iterator) else rows


def lines_of(rows: Any, given: Mapping[str, str | None]) -> list[Record]:
    """List the rows of a file, a DataFrame, a list of dicts or a nested dict.

    Args:
        rows: any of these.
        given: columns by field, and the name of the table where there are several, as ``table``.

    Raises:
        OSError, ValueError, TypeError: where rows cannot be read, and where there are several
            tables of runs and none is named.
    """
    wanted = given.get(TABLE)
    names = Names({field: name for field, name in given.items() if field != TABLE})
    content = _content(rows)
    if wanted is None:
        _refuse_answer(content)
    if isinstance(content, Mapping) or wanted is not None:
        content = _chosen(_tables(content, names), content, wanted)
    kind = (
        "dicts, or a DataFrame, or the path of a CSV, JSON or parquet file, or a dict of runs by "
        "name"
    )
    lines = check_several("rows", content, kind)
    for line in lines:
        if not isinstance(line, Mapping):
            raise InputTypeError(
                f"rows must be dicts, one for each run; got {type(line).__name__} among them."
            )
    return [row for line in lines for row in _unrolled(line, names)]


def _content(rows: Any) -> Any:
    """Read a file, or the rows of a frame; anything else is returned as it is."""
    if isinstance(rows, str | os.PathLike):
        return read_file(os.fspath(rows))
    # A table of pyarrow, and a frame of polars.
    for method in ("to_pylist", "to_dicts"):
        if hasattr(rows, method):
            return getattr(rows, method)()
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas
        counts = Counter(map(str, rows.columns))
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise InputError(
                f"the log has several columns {listed(repeated)}. Give each a name of its own."
            )
        index_names = getattr(getattr(rows, "index", None), "names", [None])
        if None not in index_names:
            rows = rows.reset_index()
        return rows.to_dict("records")
    return rows


def _refuse_answer(content: Any) -> None:
    """Refuse a ``result.json``: its rows are numbers of an answer, which look like runs."""
    command = content.get("command") if isinstance(content, Mapping) else None
    if isinstance(command, str) and command.startswith("nfd ") and "config" in content:
        raise InputError(
            f"the log is the answer of {command!r}, not a table of runs. Pass the table that it "
            "was fitted to; an answer by training is made again by its command, from stored runs."
        )


# ---- tables in a nested dict


def _tables(content: Any, names: Names) -> dict[str, list[Record]]:
    """Find the tables of runs with a loss in what a JSON file holds, by their places."""
    tables = dict[str, list[Record]]()
    _gather(content, "", names, tables)
    return tables


def _gather(content: Any, place: str, names: Names, tables: dict[str, list[Record]]) -> None:
    """Add the tables of runs in a dict or a list."""
    if isinstance(content, Mapping):
        records = _as_table(content, names)
        if records:
            tables[place] = records
            return
        for name, value in content.items():
            _gather(value, f"{place}.{name}" if place else str(name), names, tables)
    elif _are_records(content) and any(_has_loss(record, names) for record in content):
        tables[place] = list(content)


def _as_table(content: Mapping[Any, Any], names: Names) -> list[Record]:
    """Read a dict as a table: columns, runs by name, or a single run; empty for none of these."""
    if "columns" in content and "data" in content:
        return [dict(zip(content["columns"], line, strict=False)) for line in content["data"]]
    values = list(content.values())
    are_dicts = values and all(isinstance(value, Mapping) for value in values)
    # A frame of pandas, written by its columns.
    if are_dicts and all(_is_count(key) for value in values for key in value):
        return _transposed(content)
    named = dict[str, Record]()
    for name, value in content.items():
        if isinstance(value, Mapping) and _has_loss(value, names):
            named[str(name)] = value
    if len(named) > 1:
        return [{"run": name} | dict(record) for name, record in named.items()]
    if not _has_loss(content, names) or _runs_inside(content, names):
        return []
    return [content]


def _are_records(content: Any) -> bool:
    is_list = isinstance(content, Sequence) and not isinstance(content, str)
    return is_list and len(content) > 0 and all(isinstance(one, Mapping) for one in content)


def _has_loss(record: Mapping[Any, Any], names: Names) -> bool:
    """Whether a dict is a run: it holds a loss, also in a curve or in one dict of its results."""
    with_loss = [value for value in record.values() if _holds_loss(value, names)]
    return _holds_loss(record, names) or len(with_loss) == 1


def _holds_loss(value: Any, names: Names) -> bool:
    """Whether a loss, or a curve of it, is an entry of a dict."""
    if not isinstance(value, Mapping):
        return False
    for name, entry in value.items():
        if _are_records(entry):
            if _is_curve(entry, names):
                return True
        elif names.is_loss(str(name)) and not isinstance(entry, Mapping):
            return True
    return False


def _runs_inside(content: Mapping[Any, Any], names: Names) -> bool:
    """Whether a dict with a loss of its own also holds a list of runs, which then are meant."""
    for value in content.values():
        is_list_of_runs = _are_records(value) and not _is_curve(value, names)
        if is_list_of_runs and any(_has_loss(record, names) for record in value):
            return True
    return False


def _is_curve(entries: Sequence[Record], names: Names) -> bool:
    """Whether the entries of a list are the steps of one run."""
    fields = {names.field(str(name)) for entry in entries for name in entry}
    has_steps = any(field in fields for field in _OVER_STEPS)
    return "loss" in fields and has_steps and not any(field in fields for field in _OF_RUNS)


def _is_count(key: Any) -> bool:
    return isinstance(key, int) or (isinstance(key, str) and key.isdecimal())


def _transposed(content: Mapping[Any, Any]) -> list[Record]:
    """The rows of a dict of columns, each a dict by the number of the row."""
    numbers = dict.fromkeys(number for column in content.values() for number in column)
    rows = list[Record]()
    for number in numbers:
        rows.append({name: column.get(number) for name, column in content.items()})
    return rows


def _chosen(tables: Mapping[str, list[Record]], content: Any, wanted: str | None) -> list[Record]:
    """Choose the table of runs.

    Raises:
        ValueError: for several tables of which none is named, for a name of none, and where no
            table has a loss.
    """
    if wanted is not None:
        if wanted not in tables:
            raise InputError(
                f"columns names the table {wanted!r}, but the tables of runs with a loss are "
                f"{listed([*tables]) or 'none'}.{nearest(wanted, tables)}"
            )
        return tables[wanted]
    if len(tables) == 1:
        return next(iter(tables.values()))
    if tables:
        counted = ", ".join(f"{place!r} ({len(lines)} runs)" for place, lines in tables.items())
        place = max(tables, key=lambda name: len(tables[name]))
        raise InputError(
            f"the log holds several tables of runs: {counted}. Name one: "
            f"columns={{'table': {place!r}}}, in the shell --columns table={place}."
        )
    raise InputError(
        "the log holds no runs with a loss. Expected rows, dicts of runs by name, or a list of "
        f"them; got a dict of {listed([str(name) for name in content]) or 'nothing'}. If the loss "
        "has another name, give it: columns={'loss': '...'}, in the shell --columns loss=..."
    )


# ---- curves in a run


def _unrolled(record: Record, names: Names) -> Iterable[Record]:
    """The rows of a run: one, or one for each step of a curve, or for each entry of its lists."""
    settings = dict[str, Any]()
    lists = dict[str, Sequence[Any]]()
    for name, value in _items(record):
        if isinstance(value, list | tuple):
            lists[name] = value
        else:
            settings[name] = value
    if not lists:
        return [settings]
    if any(names.is_loss(name) and not is_none(value) for name, value in settings.items()):
        return [settings]
    for value in lists.values():
        if _are_records(value) and _is_curve(value, names):
            known = {names.field(name) for name in settings}
            return [settings | _with_step(entry, names, known) for entry in value]
    if _is_table(lists, names.field):
        columns = {name: value for name, value in lists.items() if _is_of_numbers(value)}
        columns = {name: value for name, value in columns.items() if len(value) == _longest(lists)}
        entries = zip(*columns.values(), strict=True)
        return [settings | dict(zip(columns, entry, strict=True)) for entry in entries]
    # Curves of which only the end counts.
    return [settings | {name: _last(value) for name, value in lists.items() if value}]


def _items(record: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The entries of a run, those of dicts within it as ``config.lr``."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _with_step(entry: Record, names: Names, known: Collection[str]) -> dict[str, Any]:
    """An entry of a curve with its step, without what the run says of itself, as its tokens."""
    row = dict[str, Any]()
    for name, value in entry.items():
        field = names.field(str(name))
        if field in ("step", "steps"):
            row["step"] = value
        elif not field or field not in known:
            row[str(name)] = value
    return row


def _is_table(lists: Mapping[str, Sequence[Any]], field_of: Callable[[str], str]) -> bool:
    """Whether lists are columns: as long as each other, of losses and of what runs differ in."""
    longest = _longest(lists)
    fields = set[str]()
    for name, value in lists.items():
        if len(value) == longest and _is_of_numbers(value):
            fields.add(field_of(name))
    return "loss" in fields and any(field in fields for field in (*_OF_RUNS, "tokens", "samples"))


def _longest(lists: Mapping[str, Sequence[Any]]) -> int:
    return max(len(value) for value in lists.values())


def _is_of_numbers(values: Sequence[Any]) -> bool:
    return all(not isinstance(value, list | tuple | Mapping) for value in values)


def _last(values: Sequence[Any]) -> Any:
    """The last value of a curve: of numbers, or of pairs of a step and a number."""
    last = values[-1]
    if isinstance(last, list | tuple) and len(last) > 1:
        return last[-1]
    return None if isinstance(last, list | tuple | Mapping) else last
