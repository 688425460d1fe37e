"""Directories for results, and the formats of the files in them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError, InputTypeError
from nfd.core.ownership import check_replaceable
from nfd.core.staging import settle, staged

__all__ = ["expanded", "prepare_directory", "staged", "write_bytes", "write_csv", "write_json", "write_text"]

_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # with these a cell of a spreadsheet begins a formula
_DECIMAL = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", re.IGNORECASE)


def expanded(path: str | Path) -> Path:
    """The path with ``~`` replaced by the home directory; TypeError if it is not a path."""
    if not isinstance(path, str | Path):
        raise InputTypeError(f"a path must be a text or a Path; got {path!r} of {type(path).__name__}.")
    if "\0" in str(path):
        raise InputError(f"a path cannot hold a zero byte; got {str(path)!r}.")
    return Path(os.path.expanduser(path))


def prepare_directory(path: str | Path, names: Iterable[str] = ()) -> Path:
    """Create ``path`` if needed and prove that a file can be written there; an error that says what to do.

    ``names``: files that will be written, ``*`` for any text; those that this program did not make are not replaced.
    """
    if not str(path).strip():
        raise InputError("out must name a directory; got an empty string.")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"out must be a name in UTF-8; got {str(path)!r}. Choose another.") from None
    directory = expanded(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"0")
    except OSError as error:
        raise InputError(
            f"out must be a directory that can be written; got {str(directory)!r} ({error.strerror}). "
            "Choose another with --out DIR."
        ) from error
    settle(directory)
    check_replaceable(directory, names)
    return directory


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def write_text(path: Path, content: str) -> Path:
    """Write UTF-8 text."""
    return write_bytes(path, content.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write JSON; numbers that are not finite become null."""
    return write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write dictionaries as CSV, a column for every key; text that a spreadsheet would compute gets a quote in front.

    Text that is a decimal number, such as ``-0.5``, computes nothing and stays as it is.
    """
    text = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, fieldnames=names)
    writer.writerow({name: _inert(name) for name in names})
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return write_text(path, text.getvalue())


def _inert(value: Any) -> Any:
    computed = isinstance(value, str) and value.startswith(_COMPUTED) and not _DECIMAL.fullmatch(value)
    return f"'{value}" if computed else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
