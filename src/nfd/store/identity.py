"""Whose file it is, in which version, and whether it is sound: asked before anything could change it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from nfd.core.errors import InputError
from nfd.core.ownership import STORE_ID
from nfd.store.faults import damaged, translated

APPLICATION_ID = int.from_bytes(STORE_ID, "big")
VERSION = 1
MIGRATIONS: Mapping[int, tuple[str, ...]] = {}  # version -> statements that make the next version of it

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
    found = int.from_bytes(header[68:72], "big")
    if found != APPLICATION_ID:
        raise InputError(
            f"{path} is a database of another program: its application_id is {found:#x}, not {APPLICATION_ID:#x}. "
            f"{_MOVE}"
        )


def examine(path: Path) -> int:
    """The version of a database that is ours and sound; ValueError otherwise, and the file is as it was."""
    identify(path)
    quiet = not has_log(path)
    try:
        return _examine(path, "immutable=1" if quiet else "mode=ro")
    except InputError:
        if not (quiet and has_log(path)):
            raise
        return _examine(path, "mode=ro")  # a driver began to write in the meantime


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


def _examine(path: Path, mode: str) -> int:
    memory = beside(path, "-shm")
    there = memory.exists()
    try:
        with translated(path), closing(connect(path, mode)) as database:
            version = int(database.execute("PRAGMA user_version").fetchone()[0])
            _check_version(path, version)
            (said,) = database.execute("PRAGMA integrity_check(1)").fetchone()  # 40 ms at 10,000 runs; quick_check 35
        if said != "ok":
            raise damaged(path, " ".join(str(said).split()))
    except BaseException:
        if not there:
            memory.unlink(missing_ok=True)
        raise
    return version


def _check_version(path: Path, version: int) -> None:
    if version > VERSION or any(v not in MIGRATIONS for v in range(version, VERSION)):
        raise InputError(
            f"{path} was written by version {version} of the store; this nfd reads version {VERSION}. It was not "
            f"changed. Use {'a newer' if version > VERSION else 'the'} nfd that wrote it, or choose another directory."
        )
