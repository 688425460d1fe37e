"""What a sweep has trained: one SQLite file, written by one process at a time."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError

from nfd.core.errors import InputError, StateError
from nfd.core.files import prepare_directory

if TYPE_CHECKING:
    from torch import Tensor

# The store, in the directory of a sweep.
FILE = "runs.sqlite"
# The number of the process that writes, beside the store while it is open.
_DRIVER = "runs.driver"
# Whose the file is, and the version of its table.
_ID = int.from_bytes(b"nfds")
_VERSION = 3
_COLUMNS = "key, status, config, metrics, observed, seconds"
_TABLE = f"""
BEGIN;
CREATE TABLE records (key TEXT PRIMARY KEY, status TEXT NOT NULL, config TEXT NOT NULL,
    metrics TEXT NOT NULL, observed TEXT NOT NULL, seconds REAL NOT NULL, curves BLOB NOT NULL);
PRAGMA application_id = {_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""
# SQLite's codes of a damaged file. The last one is for another table than ours.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True)
class Record:
    """What is kept of one trial.

    ``config`` is plain JSON data, ``metrics`` are numbers by name (a diverged run has inf and nan),
    ``curves`` arrays by name. A record that was listed has no curves, and two records are compared
    without them. ``observed`` is what observers returned beside numbers, as plain data. Of a trial
    that failed, which is not stored, ``error`` says why, and ``trace`` where, if that was a mistake
    of ours.
    """

    key: str
    status: Status
    config: dict[str, Any]
    metrics: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    error: str | None = None
    seconds: float = 0.0
    trace: str | None = None
    observed: list[Any] = field(default_factory=list, compare=False, repr=False)


class Store:
    """The records of a sweep, in a directory or in memory.

    Raises:
        BlockingIOError: another process writes to this directory.
        ValueError: the directory cannot be written, or the file in it is damaged, of another
            program or version.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self.path = None if directory is None else prepare_directory(directory) / FILE
        with self._in_words():
            # It does not wait for other processes, and begins no transactions of its own.
            self._database = sqlite3.connect(
                self.path or ":memory:", timeout=0, isolation_level=None
            )
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise
        if self.path is not None:
            self.path.with_name(_DRIVER).write_text(str(os.getpid()), encoding="ascii")

    def _prepare(self) -> None:
        execute = self._database.execute
        # The lock holds until the file is closed, or this process dies.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        ((tables,),) = execute("SELECT count(*) FROM sqlite_master")
        ((owner,),) = execute("PRAGMA application_id")
        ((version,),) = execute("PRAGMA user_version")
        if (tables or owner) and (owner, version) != (_ID, _VERSION):
            whose = "by another program"
            if owner == _ID:
                whose = f"by version {version} of the store, not {_VERSION}"
            raise InputError(
                f"{self.path} was made {whose}. Move it away, or choose another directory."
            )
        execute("PRAGMA journal_mode = WAL")
        # A group took minutes to train, and takes milliseconds to reach the disk.
        execute("PRAGMA synchronous = FULL")
        if not tables:
            self._database.executescript(_TABLE)
        ((report,),) = execute("PRAGMA quick_check(1)")
        if report != "ok":
            raise self._damaged(" ".join(report.split()))

    def close(self) -> None:
        """Close the file, so that another process can write to it."""
        if self.path is not None:
            self.path.with_name(_DRIVER).unlink(missing_ok=True)
        self._database.close()

    def add(self, record: Record) -> None:
        """Add a record: when this returns it is on the disk."""
        from safetensors.numpy import save

        # ``save`` does not read strides.
        curves = {name: np.array(x, order="C") for name, x in record.curves.items()}
        texts = [json.dumps(part) for part in (record.config, record.metrics, record.observed)]
        row = (record.key, record.status, *texts, record.seconds, save(curves))
        with self._in_words():
            self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def keys(self) -> set[str]:
        """The keys of all records."""
        return {key for (key,) in self._select("SELECT key FROM records")}

    def records(self) -> list[Record]:
        """All records in the order in which they were added, without their curves."""
        rows = self._select(f"SELECT {_COLUMNS} FROM records ORDER BY rowid")
        return [self._record(row) for row in rows]

    def record(self, key: str) -> Record:
        """One record, without its curves."""
        return self._record(self._row(f"SELECT {_COLUMNS} FROM records WHERE key = ?", key))

    def curves(self, key: str) -> dict[str, Tensor]:
        """The curves of a record by name, bit for bit as they were added."""
        # Records are listed without PyTorch.
        from safetensors.torch import load

        (content,) = self._row("SELECT curves FROM records WHERE key = ?", key)
        with self._in_words():
            return dict(sorted(load(content).items()))

    def _record(self, row: tuple[Any, ...]) -> Record:
        key, status, config, metrics, observed, seconds = row
        with self._in_words():
            config, metrics, observed = map(json.loads, (config, metrics, observed))
        return Record(key, status, config, metrics, seconds=seconds, observed=observed)

    def _row(self, query: str, key: str) -> tuple[Any, ...]:
        rows = self._select(query, key)
        if not rows:
            raise InputError(
                f"trial {key} is not stored in {self.path or 'this sweep'}. Train it: "
                "sweep.run([trial])."
            )
        return rows[0]

    def _select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._in_words():
            return self._database.execute(query, values).fetchall()

    # ---- what can be wrong with a file

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """A context whose errors of SQLite say which file it is and what to do."""
        try:
            yield
        except (UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as error:
            raise self._damaged(str(error)) from error
        except sqlite3.DatabaseError as error:
            # without one: a text, not UTF-8
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if isinstance(error, sqlite3.ProgrammingError):
                if "same thread" in str(error):
                    raise StateError(
                        "a sweep is of the thread that opened it. Open one of its own in each "
                        "thread, in a directory of its own."
                    ) from error
                # A mistake of ours.
                raise
            if code in _DAMAGE:
                raise self._damaged(str(error)) from error
            if code == sqlite3.SQLITE_BUSY:
                raise self._busy() from error
            message = (
                f"could not be read or written ({error}); what was stored before is safe. Free "
                "space and start again"
            )
            number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(number, message, str(self.path)) from error

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"{self.path} is damaged ({why}). Put a copy in its place, or choose another directory "
            "and train again."
        )

    def _busy(self) -> BlockingIOError:
        file = (self.path or Path()).with_name(_DRIVER)
        try:
            number = file.read_text(encoding="ascii")
            driver = f"process {number}"
        # The process is of another program, or has not written its number yet.
        except (OSError, ValueError):
            driver = "another process"
        else:
            if number == str(os.getpid()):
                message = "a sweep of this process has it open. Use that one, or close it before"
                return BlockingIOError(errno.EBUSY, message, str(self.path))
        message = f"{driver} has it open. Wait until it ends, stop it, or choose another directory"
        return BlockingIOError(errno.EBUSY, message, str(self.path))
