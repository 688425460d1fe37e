"""The file ``runs.sqlite``: made whole, examined before anything could change it, then opened to write or to read."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from nfd.core.errors import InputError
from nfd.core.files import write_bytes
from nfd.core.ownership import STORE_ID

FILE = "runs.sqlite"  # in the directory of a sweep
VERSION = 2

_WAIT = 10.0  # seconds for a reader that meets a checkpoint, or for another program that looks into the file
_MOVE = "It was not changed. Move it away or choose another directory."
_SAFE = "nothing of this was added or removed, what was committed before is safe"
_FAULTS = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, f"the disk is full; {_SAFE}. Free space and resume the sweep"),
    sqlite3.SQLITE_IOERR: (errno.EIO, f"reading or writing failed; {_SAFE}. Check space, quota and disk, and resume"),
    sqlite3.SQLITE_BUSY: (errno.EBUSY, f"another program holds it; {_SAFE}. Close that program and resume the sweep"),
    sqlite3.SQLITE_CANTOPEN: (errno.EACCES, "not all of it can be read here. Copy its directory and read the copy"),
}
# Our statements are right: where SQLite finds one wrong (SQLITE_ERROR), the schema is.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_SCHEMA = f"""
CREATE TABLE runs (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, group_key TEXT NOT NULL, status TEXT NOT NULL,
    config TEXT NOT NULL, metrics TEXT NOT NULL, observed TEXT NOT NULL, error TEXT NOT NULL, seconds REAL NOT NULL,
    checksum INTEGER NOT NULL, created TEXT NOT NULL);
CREATE TABLE curves (run INTEGER NOT NULL REFERENCES runs (id), name TEXT NOT NULL, content BLOB NOT NULL,
    UNIQUE (run, name));
PRAGMA application_id = {int.from_bytes(STORE_ID, "big")};
PRAGMA user_version = {VERSION};
"""


def create(path: Path) -> None:
    """A database without runs: written beside, through to the disk, then renamed."""
    log, draft = _beside(path, "-wal"), _beside(path, ".new")
    if _has_log(path):
        raise InputError(f"{log} holds runs of a database that is gone. Put {path.name} back, or move it away.")
    with closing(memory()) as database:
        content = database.serialize()
    try:
        os.replace(write_bytes(draft, content), path)
    finally:
        draft.unlink(missing_ok=True)
    with suppress(PermissionError):  # Windows opens no directories
        directory = os.open(path.parent, os.O_RDONLY)  # the new name too must survive a power loss
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def memory() -> sqlite3.Connection:
    """A database without runs in the memory of this process."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(_SCHEMA)
    return database


def for_driver(path: Path) -> sqlite3.Connection:
    """Open to write; every commit is on the disk when it returns."""
    # FULL and not NORMAL: a group of runs took minutes, its fsync takes milliseconds.
    return _opened(
        path, "mode=rw", "journal_mode = WAL", "synchronous = FULL", "fullfsync = ON", "cell_size_check = ON"
    )


def for_reader(path: Path) -> sqlite3.Connection:
    """Open to read beside a driver. Where nothing can be written, a file without a log is read as it is now."""
    # Where it can be written not mode=ro: the last one to close must be able to remove -wal and -shm.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return _opened(path, "mode=rw" if writable else _reading(path), "query_only = ON")


def identify(path: Path) -> None:
    """ValueError unless the file begins like a database of ours; reads 100 bytes and leaves no trace."""
    if not path.is_file():
        raise InputError(f"{path} must be a file with the runs of a sweep; it is something else. {_MOVE}")
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise InputError(f"{path} is not a database, or a damaged one: it begins with {header[:16]!r}. {_MOVE}")
    if header[68:72] != STORE_ID:
        raise InputError(
            f"{path} is a database of another program: its application_id is {header[68:72].hex()}, not "
            f"{STORE_ID.hex()}. {_MOVE}"
        )


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
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # without one: a text, not in UTF-8
        if code in _DAMAGE:
            raise _damaged(path, str(error)) from error
        number, reason = _FAULTS.get(code, (errno.EIO, f"it could not be used; {_SAFE}"))
        raise OSError(number, f"{reason} ({error})", str(path)) from error


def _opened(path: Path, mode: str, *settings: str) -> sqlite3.Connection:
    """A connection to a database that is ours and sound; one that is not stays as it was."""
    identify(path)
    quiet = not _has_log(path)
    try:
        _examine(path)
    except InputError:
        if not (quiet and _has_log(path)):
            raise
        _examine(path)  # a driver began to write in the meantime
    with translated(path):
        database = _connect(path, mode)
        try:
            for setting in settings:
                database.execute(f"PRAGMA {setting}")
        except BaseException:
            database.close()
            raise
    return database


def _examine(path: Path) -> None:
    """ValueError unless the database is of this version and sound."""
    index = _beside(path, "-shm")
    existed = index.exists()
    try:
        with translated(path), closing(_connect(path, _reading(path))) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise InputError(
                    f"{path} was written by version {version} of the store; this nfd reads version {VERSION}. It was "
                    f"not changed. Use {'a newer' if version > VERSION else 'the'} nfd that wrote it, or choose "
                    "another directory."
                )
            (problem,) = database.execute("PRAGMA integrity_check(1)").fetchone()  # 40 ms at 10,000 runs
            if problem != "ok":
                raise _damaged(path, " ".join(str(problem).split()))
    except BaseException:
        if not existed:
            index.unlink(missing_ok=True)
        raise


def _damaged(path: Path, why: str) -> ValueError:
    return InputError(
        f"{path} is damaged ({why}). It was not changed. Restore it from a copy, or choose another directory."
    )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection without Python's own transactions."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=_WAIT)


def _reading(path: Path) -> str:
    """How SQLite reads the file and leaves it as it is."""
    return "mode=ro" if _has_log(path) else "immutable=1"


def _has_log(path: Path) -> bool:
    """Whether commits may lie beside the file, in its write-ahead log."""
    log = _beside(path, "-wal")
    return log.exists() and log.stat().st_size > 0


def _beside(path: Path, suffix: str) -> Path:
    """A file that SQLite keeps beside a database."""
    return path.with_name(path.name + suffix)
