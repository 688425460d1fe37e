"""The file ``runs.sqlite``: made whole, opened to write or to read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from nfd.core.errors import InputError
from nfd.core.files import write_bytes
from nfd.core.ownership import STORE_ID
from nfd.store.faults import translated
from nfd.store.identity import VERSION, beside, connect, examine, has_log

_SCHEMA = f"""
CREATE TABLE runs (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, group_key TEXT NOT NULL, status TEXT NOT NULL,
    config TEXT NOT NULL, metrics TEXT NOT NULL, error TEXT NOT NULL, seconds REAL NOT NULL, checksum INTEGER NOT NULL,
    created TEXT NOT NULL);
CREATE TABLE curves (run INTEGER NOT NULL REFERENCES runs (id), name TEXT NOT NULL, content BLOB NOT NULL,
    UNIQUE (run, name));
PRAGMA application_id = {int.from_bytes(STORE_ID, "big")};
PRAGMA user_version = {VERSION};
"""


def create(path: Path) -> None:
    """A database without runs: written beside, through to the disk, then renamed."""
    if has_log(path):
        raise InputError(
            f"{beside(path, '-wal')} holds runs of a database that is gone. Put {path.name} back, or move it away."
        )
    with closing(memory()) as database:
        content = database.serialize()
    draft = beside(path, ".new")
    try:
        os.replace(write_bytes(draft, content), path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def memory() -> sqlite3.Connection:
    """A database without runs in the memory of this process."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(_SCHEMA)
    return database


def for_driver(path: Path) -> sqlite3.Connection:
    """Open to write; every commit is on the disk when it returns."""
    examine(path)
    with translated(path):
        database = connect(path, "mode=rw")
        try:
            # FULL and not NORMAL: a group of runs took minutes, its fsync takes milliseconds.
            for setting in ("journal_mode = WAL", "synchronous = FULL", "fullfsync = ON", "cell_size_check = ON"):
                database.execute(f"PRAGMA {setting}")
        except BaseException:
            database.close()
            raise
    return database


def for_reader(path: Path) -> sqlite3.Connection:
    """Open to read beside a driver. Where nothing can be written, a file without a log is read as it is now."""
    examine(path)
    # Where it can be written not mode=ro: the last one to close must be able to remove -wal and -shm.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if has_log(path) else "immutable=1"
    with translated(path):
        database = connect(path, mode)
        database.execute("PRAGMA query_only = ON")
    return database


def _sync(directory: Path) -> None:
    """The new name too must survive a power loss."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
