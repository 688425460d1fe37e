"""Directories for results, and the formats of the files in them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError, InputTypeError

SWEEP = "runs.sqlite"  # the file of a sweep
_MARK = ".nfd"  # left in a directory of results


def expanded(path: str | Path) -> Path:
    """The path with ``~`` replaced by the home directory; TypeError if it is not a path."""
    if not isinstance(path, str | Path):
        raise InputTypeError(
            f"a path must be a text or a Path; got {path!r} of {type(path).__name__}."
        )
    return Path(os.path.expanduser(path))


def prepare_directory(path: str | Path) -> Path:
    """Create ``path`` if needed and prove that a file can be written there.

    An error says what to do.
    """
    if not str(path).strip():
        raise InputError("out must name a directory; got an empty string.")
    directory = expanded(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"0")
    except OSError as error:
        raise InputError(
            f"out must be a directory that can be written; got {str(directory)!r} "
            f"({error.strerror}). Choose another with --out DIR."
        ) from error
    return directory


def prepare_results(path: str | Path) -> Path:
    """Prepare a directory for the files of a command, which replace an earlier command's.

    A directory that is not empty must be one of nfd: it has the mark that the first command leaves,
    or the file of a sweep.

    Raises:
        FileExistsError: naming a file that is of something else.
    """
    directory = expanded(path)
    is_ours = any((directory / name).exists() for name in (_MARK, SWEEP))
    visible = list[str]()
    if directory.is_dir() and not is_ours:
        files = sorted(path.name for path in directory.iterdir() if path.is_file())
        visible = [name for name in files if not name.startswith(".")]
    if visible:
        raise FileExistsError(
            f"out must be a new directory, or one of nfd: {str(directory)!r} holds {visible[0]!r}, "
            "which nfd did not make. Nothing was changed. Choose another with --out DIR."
        )
    prepare_directory(directory)
    (directory / _MARK).touch()
    return directory


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A folder to write files in; they take their places in ``directory`` when the block ends well.

    So a fault on the way, such as a full disk, leaves ``directory`` as it was.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as folder:
        try:
            yield Path(folder)
        except OSError as error:
            reason = f"{error.strerror}: nothing was changed in it; free space or choose another"
            raise OSError(error.errno, reason, str(directory)) from error
        for path in Path(folder).iterdir():
            os.replace(path, directory / path.name)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole: beside its place, then into it.

    Readers see the old one or the new one. A link stays, and the file that it names is replaced.

    Raises:
        FileExistsError: where there is something else than a file, such as a pipe.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise FileExistsError(
            f"a file must be written to a new path or replace a file; {str(path)!r} is neither. "
            "Nothing was changed. Choose another path."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with staged(path.parent) as folder:
        (folder / path.name).write_bytes(content)


def write_text(path: Path, content: str) -> Path:
    """Write UTF-8 text."""
    path.write_text(content, encoding="utf-8", newline="")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write JSON; numbers that are not finite become null."""
    return write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write dictionaries as CSV, a column for every key."""
    text = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, fieldnames=names)
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
