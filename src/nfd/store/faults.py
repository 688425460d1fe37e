"""Transactions, and what SQLite's errors mean for a sweep."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfd.core.errors import InputError

_SAFE = "nothing of this was added or removed, what was committed before is safe"
_FAULTS = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, f"the disk is full; {_SAFE}. Free space and resume the sweep"),
    sqlite3.SQLITE_IOERR: (errno.EIO, f"reading or writing failed; {_SAFE}. Check space, quota and disk, and resume"),
    sqlite3.SQLITE_BUSY: (errno.EBUSY, f"another program holds it; {_SAFE}. Close that program and resume the sweep"),
    sqlite3.SQLITE_CANTOPEN: (errno.EACCES, "not all of it can be read here. Copy its directory and read the copy"),
}


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of the block or nothing."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite as errors that say which file, what is safe and what to do."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a mistake of ours
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise _explained(path, error) from error


def damaged(path: Path, why: str) -> ValueError:
    """The error for a file whose content contradicts itself."""
    return InputError(
        f"{path} is damaged ({why}). It was not changed. Restore it from a copy, or choose another directory."
    )


def _explained(path: Path, error: Exception) -> Exception:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # without one: a text that is not UTF-8
    # Our statements are right: where SQLite finds one wrong (SQLITE_ERROR), the schema is.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return damaged(path, str(error))
    number, reason = _FAULTS.get(code, (errno.EIO, f"it could not be used; {_SAFE}"))
    return OSError(number, f"{reason} ({error})", str(path))
