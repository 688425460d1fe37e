"""Whose file it is, in which version, and whether it is sound: asked before anything could change it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nfd.core.errors import InputError
from nfd.core.ownership import STORE_ID
from nfd.store.faults import damaged, translated

VERSION = 1

_MOVE = "It was not changed. Move it away or choose another directory."
_WAIT = 10.0  # seconds for a reader that meets a checkpoint, or for another program that looks into the file


def identify(path: Path) -> None:
    """ValueError unless the file begins like a database of ours; reads 100 bytes and leaves no trace."""
    if not path.is_file():
        raise InputError(f"{path} must be a file with the runs of a sweep; it is something else. {_MOVE}")
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise InputError(f"{path} is no database, or a damaged one: it begins with {header[:16]!r}. {_MOVE}")
    if header[68:72] != STORE_ID:
        raise InputError(
            f"{path} is a database of another program: its application_id is {header[68:72].hex()}, not "
            f"{STORE_ID.hex()}. {_MOVE}"
        )


def examine(path: Path) -> None:
    """ValueError unless the database is ours, of this version and sound; the file stays as it was."""
    identify(path)
    quiet = not has_log(path)
    try:
        _examine(path, "immutable=1" if quiet else "mode=ro")
    except InputError:
        if not (quiet and has_log(path)):
            raise
        _examine(path, "mode=ro")  # a driver began to write in the meantime


def has_log(path: Path) -> bool:
    """Whether commits may lie beside the file, in its write-ahead log."""
    log = beside(path, "-wal")
    return log.exists() and log.stat().st_size > 0


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection without Python's own transactions."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=_WAIT)


def beside(path: Path, suffix: str) -> Path:
    """One of the files that SQLite keeps beside a database."""
    return path.with_name(path.name + suffix)


def _examine(path: Path, mode: str) -> None:
    memory = beside(path, "-shm")
    was_there = memory.exists()
    try:
        with translated(path), closing(connect(path, mode)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise InputError(
                    f"{path} was written by version {version} of the store; this nfd reads version {VERSION}. It was "
                    f"not changed. Use {'a newer' if version > VERSION else 'the'} nfd that wrote it, or choose "
                    "another directory."
                )
            (problem,) = database.execute("PRAGMA integrity_check(1)").fetchone()  # 40 ms at 10,000 runs
            if problem != "ok":
                raise damaged(path, " ".join(str(problem).split()))
    except BaseException:
        if not was_there:
            memory.unlink(missing_ok=True)
        raise
