"""The file ``runs.sqlite``: made whole, brought up to date, opened to write or to read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from nfd.core.errors import InputError
from nfd.store import identity
from nfd.store.faults import transaction, translated
from nfd.store.identity import APPLICATION_ID, beside, connect, examine, has_log

_SCHEMA = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, group_key TEXT NOT NULL, "
    "status TEXT NOT NULL, config TEXT NOT NULL, metrics TEXT NOT NULL, error TEXT NOT NULL, seconds REAL NOT NULL, "
    "checksum INTEGER NOT NULL, created TEXT NOT NULL)",
    "CREATE TABLE curves (run INTEGER NOT NULL REFERENCES runs (id), name TEXT NOT NULL, content BLOB NOT NULL, "
    "UNIQUE (run, name))",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {identity.VERSION}",
)


def create(path: Path) -> None:
    """A database without runs: written beside, through to the disk, then renamed."""
    if has_log(path):
        raise InputError(
            f"{beside(path, '-wal')} holds runs of a database that is gone. Put {path.name} back, or move it away."
        )
    draft = beside(path, ".new")
    _clear(draft)
    try:
        with translated(path), closing(connect(draft, "mode=rwc")) as database:
            with transaction(database):
                for statement in _SCHEMA:
                    database.execute(statement)
            database.execute("PRAGMA journal_mode = WAL")
        os.replace(draft, path)
    finally:
        _clear(draft)
    _sync(path.parent)


def for_driver(path: Path) -> sqlite3.Connection:
    """Open to write, in the newest version; every commit is on the disk when it returns."""
    version = examine(path)
    with translated(path):
        database = connect(path, "mode=rw")
        try:
            # FULL and not NORMAL: a group of runs took minutes, its fsync takes milliseconds.
            for setting in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON"):
                database.execute(f"PRAGMA {setting}")
            if version < identity.VERSION:
                _migrate(database, version)
        except BaseException:
            database.close()
            raise
    return database


def for_reader(path: Path) -> sqlite3.Connection:
    """Open to read beside a driver. Where nothing can be written, a file without a log is read as it is now."""
    version = examine(path)
    if version < identity.VERSION:
        raise InputError(
            f"{path} was written by version {version} of the store; this nfd reads version {identity.VERSION}. "
            "Open it once to write (resume the sweep), and it is brought up to date."
        )
    # Where it can be written not mode=ro: the last one to close must be able to remove -wal and -shm.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if has_log(path) else "immutable=1"
    with translated(path):
        database = connect(path, mode)
        database.execute("PRAGMA query_only = ON")
    return database


def _migrate(database: sqlite3.Connection, version: int) -> None:
    with transaction(database):
        for number in range(version, identity.VERSION):
            for statement in identity.MIGRATIONS[number]:
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {identity.VERSION}")


def _clear(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        beside(path, suffix).unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    """The new name too must survive a power loss."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
