"""A log as a table: one flat dict for each row, from any of its forms."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nfd.core.errors import FileError, InputError, InputTypeError, NoFileError, check_several

Line = dict[str, Any]

_NONE = ("", "<NA>", "NaT")  # as texts: nothing, and what pandas has for it beside not-a-number
_SCALARS = ("run", "tag", "step", "value")  # columns of TensorBoard's scalars, beside the wall time
_SETTING = re.compile(r"([A-Za-z_][\w.]*)=([^,;/\s]+)")  # in the name of a run


def table_of_log(rows: Any) -> list[Line]:
    """The rows of a list of dicts, of a DataFrame or of the CSV at a path, as flat dicts.

    Raises:
        ValueError, TypeError, OSError: for anything else, and for no rows.
    """
    table = [_flat(line) for line in _lines(rows)]
    if not table:
        raise InputError("the log has no rows. Give one row for each run.")
    scalars = set(_SCALARS) <= {name.lower() for name in table[0]}
    return _pivoted(table) if scalars else table


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or str(value).strip() in _NONE


def number_of(value: Any, name: str, number: int) -> float:
    """The number in a column of this name, in the row of this number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"column {name!r} must hold numbers; row {number} has {value!r}.") from None


def _lines(rows: Any) -> list[Mapping[str, Any]]:
    if isinstance(rows, str | os.PathLike):
        return _csv(os.fspath(rows))
    if hasattr(rows, "to_dicts"):  # polars
        rows = rows.to_dicts()
    elif hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas
        rows = rows.to_dict("records")
    lines = check_several("rows", rows, "dicts, or a DataFrame, or the path of a CSV")
    for line in lines:
        if not isinstance(line, Mapping):
            raise InputTypeError(f"rows must be dicts, one for each run; got {type(line).__name__} among them.")
    return lines


def _csv(path: str) -> list[Mapping[str, Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            lines = list(reader)
    except FileNotFoundError:
        raise NoFileError(f"the log must be a CSV file; there is none at {path!r}.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"the log {path!r} must be a CSV file in UTF-8; it cannot be read: {error}.") from None
    except ValueError as error:  # of a name that no file can have
        raise InputError(f"the log must be a CSV file; {path!r} is not the name of one ({error}).") from None
    except OSError as error:
        raise FileError(f"the log {path!r} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise InputError(f"line {number} of {path!r} has another number of fields than the header. Fix the file.")
    return lines  # type: ignore[return-value]


def _flat(line: Mapping[Any, Any], prefix: str = "") -> Line:
    """Dicts within a row become columns ``config.lr``."""
    flat = Line()
    for name, value in line.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _pivoted(table: Sequence[Line]) -> list[Line]:
    """TensorBoard's scalars (run, tag, step, value) as a row for each run: the last value of every tag, and what the
    name of the run says, such as ``width=64,lr=0.01``."""
    runs, reached = dict[str, Line](), dict[tuple[str, str], float]()
    for number, line in enumerate(table, 1):
        values = {name.lower(): value for name, value in line.items()}
        run, tag, step, value = (values[name] for name in _SCALARS)
        row = runs.setdefault(str(run), {"run": run} | dict(_SETTING.findall(str(run))))
        place, at = (str(run), str(tag)), number_of(step, "step", number)
        if at >= reached.get(place, -math.inf):
            reached[place], row[str(tag)] = at, value
    return list(runs.values())
