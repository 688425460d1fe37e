"""Files on disk that are whole or absent: written in a folder beside, then renamed together."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfd.core.errors import FileError, InputError, InputTypeError
from nfd.core.ownership import MARKER, check_replaceable, made_here, marker

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # with these a cell of a spreadsheet begins a formula
_DECIMAL = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", re.IGNORECASE)
_UNFINISHED = ".unfinished-"
_PATIENCE, _PAUSE = 2.0, 0.005  # seconds


def expanded(path: str | Path) -> Path:
    """The path with the home of ``~`` in it, where there is one; TypeError for what is no path."""
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
    check_replaceable(directory, names)
    return directory


@contextmanager
def staged(directory: Path, replaced: Iterable[str] = (), *, marked: bool = True) -> Iterator[Path]:
    """A folder to write files in; they move into ``directory`` together when the block ends well.

    Otherwise they vanish, and ``directory`` stays as it was. A disk that is full is noticed before the first move.
    Files named in ``replaced`` belong to what is written: those that were not written anew are removed. What writers
    that were killed left in ``directory`` is removed first.

    A file that this program did not make is never replaced (``nfd.core.ownership``): FileError, and nothing is changed.
    ``marked=False`` is for directories that are ours alone.
    """
    with _alone(directory):
        for left in directory.glob(f"{_UNFINISHED}*"):
            _remove_abandoned(left)
        folder = Path(tempfile.mkdtemp(dir=directory, prefix=_UNFINISHED))
        held = _locked(folder)
    try:
        try:
            yield folder
        except OSError as error:
            said = f"{error.strerror}: nothing was changed in it; free space or choose another"
            raise OSError(error.errno, said, str(directory)) from error
        with _alone(directory):
            _move(folder, directory, replaced, marked)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlocked(held)


# A folder is locked by its writer. The system drops the lock when the writer dies, however it dies. Where folders have
# no locks (other systems, some network file systems) nothing counts as abandoned.


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Writers of ``directory`` one at a time, while one makes and locks its folder, or moves what is in it.

    That takes a moment: who holds the lock for longer is no writer, but ``flock DIRECTORY nfd ...``, for one, which
    waits for us.
    """
    held = _locked(directory, _PATIENCE)
    try:
        yield
    finally:
        _unlocked(held)


def _remove_abandoned(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    held = _locked(folder)
    if held is not None:
        shutil.rmtree(folder, ignore_errors=True)
        _unlocked(held)


def _locked(folder: Path, patience: float = 0.0) -> int | None:
    """A handle that locks a folder, None where it is locked for longer than ``patience`` seconds or cannot be."""
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                os.close(handle)
                return None
        time.sleep(_PAUSE)


def _unlocked(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _move(folder: Path, directory: Path, replaced: Iterable[str], marked: bool) -> None:
    moved: set[str] = set()
    new = [path.name for path in folder.iterdir()]
    blocked = [path.name for path in folder.iterdir() if (directory / path.name).is_dir()]
    if blocked:
        raise FileError(
            f"{directory / blocked[0]} is a directory where a file should go; nothing was changed. Move it."
        )
    if marked:
        check_replaceable(directory, new)
        replaced = made_here(directory).intersection(replaced)
        write_text(folder / MARKER, marker(directory, new, replaced))
    with uninterrupted():
        _rename(folder, directory, replaced, moved)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An interruption, by Ctrl-C or SIGTERM, waits for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if waiting:
            signal.raise_signal(waiting[0])


def _rename(folder: Path, directory: Path, replaced: Iterable[str], moved: set[str]) -> None:
    try:
        for path in sorted(folder.iterdir()):
            os.replace(path, directory / path.name)
            moved.add(path.name)
        for name in set(replaced) - moved:
            (directory / name).unlink(missing_ok=True)
    except OSError as error:
        said = f"{error.strerror}, after {len(moved)} of the new files were moved there: old and new are mixed"
        raise OSError(error.errno, said, str(directory)) from error


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
    """Write dictionaries with the same keys as CSV; text that a spreadsheet would compute gets a quote in front.

    Text that is a decimal number, such as ``-0.5``, computes nothing and stays as it is.
    """
    text = io.StringIO(newline="")
    names = list(rows[0]) if rows else []
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
