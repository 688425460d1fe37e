"""The runs of a sweep: added group by group, listed without their curves."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.core.errors import NoFileError, check_choice
from nfd.core.files import expanded, prepare_directory
from nfd.store.blobs import pack, unpack
from nfd.store.database import FILE, create, for_driver, for_reader, identify, memory, transaction, translated
from nfd.store.lock import DriverLock, timestamp
from nfd.store.rows import COLUMNS, STATUSES, Record, decode, encode, matching

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Record", "Store"]

IN_MEMORY = Path(":memory:")


class Store:
    """``Store.open(directory)`` writes, one process at a time; ``Store.read(directory)`` reads, any number."""

    def __init__(self, path: Path, database: sqlite3.Connection, lock: DriverLock | None) -> None:
        self.path = path
        self._file = (path.absolute(), path.stat()) if path != IN_MEMORY else None
        self._database: sqlite3.Connection | None = database
        self._lock = lock

    @classmethod
    def open(cls, directory: str | Path) -> Store:
        """The store in ``directory`` for its one driver, made if it is not there.

        Raises:
            BlockingIOError: another driver is at work; the message names it.
            ValueError: the directory cannot be written, or what lies there is foreign, damaged or of another version.
        """
        path = prepare_directory(directory) / FILE
        if path.exists():
            identify(path)  # before the lock, which leaves a file: a foreign directory stays as it was
        lock = DriverLock(path.parent)
        try:
            if not path.exists():
                create(path)
            return cls(path, for_driver(path), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def in_memory(cls) -> Store:
        """A store in memory, for runs that are not needed again."""
        return cls(IN_MEMORY, memory(), None)

    @classmethod
    def read(cls, directory: str | Path) -> Store:
        """The store in ``directory`` to read, also while a driver writes and where nothing can be written.

        If the directory cannot be written and no driver is at work, the store shows the present runs only.
        """
        path = expanded(directory) / FILE
        if not str(directory).strip() or not path.exists():
            raise NoFileError(f"No sweep in {str(directory)!r}: there is no {FILE}.")
        return cls(path, for_reader(path), None)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock; closing twice does nothing."""
        database, lock, self._database, self._lock = self._database, self._lock, None, None
        if database is not None:
            database.close()
        if lock is not None:
            lock.release()

    def add(self, records: Iterable[Record]) -> None:
        """Add a group of runs: when this returns all are on the disk, and if it raises none is.

        Raises:
            ValueError: a key is there already (``forget`` it first) or comes twice, or a curve cannot be kept exactly.
            OSError: the disk is full or failed; earlier groups are safe and the sweep can be resumed.
        """
        group, database, created = list(records), self._writer("add"), timestamp()
        insert = f"INSERT INTO runs ({COLUMNS}, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        with translated(self.path), transaction(database):
            for record in group:
                try:
                    run = database.execute(insert, (*encode(record), created)).lastrowid
                except sqlite3.IntegrityError:
                    raise ValueError(
                        f"run {record.key!r} is in {self.path} already, or comes twice. To replace it, forget it first."
                    ) from None
                curves = [(run, name, pack(name, values)) for name, values in record.curves.items()]
                database.executemany("INSERT INTO curves VALUES (?, ?, ?)", curves)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove runs, such as ``store.keys("failed")`` to try them again. If a key does not exist, none is removed."""
        if isinstance(keys, str):
            raise TypeError(f"keys must be a list or set of keys; got the text {keys!r}. Pass [{keys!r}].")
        doomed, database = sorted(set(keys)), self._writer("forget")
        with translated(self.path), transaction(database):
            for key in doomed:
                run = self._number(key)
                database.execute("DELETE FROM curves WHERE run = ?", (run,))
                database.execute("DELETE FROM runs WHERE rowid = ?", (run,))

    def keys(self, status: str | None = None) -> set[str]:
        """The keys of all runs, or of those with a status."""
        return {key for (key,) in self._select("SELECT key FROM runs", status)}

    def records(self, where: Mapping[str, Any] | None = None, status: str | None = None) -> list[Record]:
        """The runs in the order in which they were added, without their curves.

        Args:
            where: fields of the config and their values; a list means any of its values.
            status: "done", "diverged" or "failed".
        """
        records = [decode(row, self.path) for row in self._select(f"SELECT {COLUMNS} FROM runs", status)]
        return matching(records, where) if where else records

    def record(self, key: str) -> Record:
        """One run, without its curves."""
        (row,) = self._query(f"SELECT {COLUMNS} FROM runs WHERE rowid = ?", self._number(key))
        return decode(row, self.path)

    def curve(self, key: str, name: str) -> Tensor:
        """One curve of a run, bit for bit and in the precision in which it was added."""
        curves = self.curves(key)
        if not curves:
            raise ValueError(f"run {key!r} has no curves; asked for {name!r}.")
        return curves[check_choice(f"name of a curve of run {key!r}", name, curves)]

    def curves(self, key: str) -> dict[str, Tensor]:
        """All curves of a run by name."""
        from torch import from_numpy  # listing does not need it

        run = self._number(key)
        rows = self._query("SELECT name, content FROM curves WHERE run = ? ORDER BY rowid", run)
        return {name: from_numpy(unpack(f"{name} of run number {run} in {self.path}", blob)) for name, blob in rows}

    def __len__(self) -> int:
        return int(self._query("SELECT count(*) FROM runs")[0][0])

    def _select(self, select: str, status: str | None) -> list[tuple[Any, ...]]:
        if status is None:
            return self._query(f"{select} ORDER BY rowid")
        return self._query(f"{select} WHERE status = ? ORDER BY rowid", check_choice("status", status, STATUSES))

    def _number(self, key: str) -> int:
        rows = self._query("SELECT rowid FROM runs WHERE key = ?", str(key))
        if not rows:
            raise ValueError(f"run {key!r} is not in {self.path}. keys() lists what is.")
        return int(rows[0][0])

    def _query(self, select: str, *values: object) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self._opened().execute(select, values).fetchall()

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise ValueError(f"The store of {self.path} is closed. Open it again.")
        return self._database

    def _writer(self, action: str) -> sqlite3.Connection:
        if self._file is None:
            return self._opened()
        if self._lock is None and self._database is not None:
            raise PermissionError(f"Store.read cannot {action} runs in {self.path}. Use Store.open to write.")
        database, (path, opened) = self._opened(), self._file
        # SQLite would go on writing into a file that has no name any more.
        if not path.exists() or not os.path.samestat(path.stat(), opened):
            raise FileNotFoundError(
                errno.ENOENT,
                "it was removed, moved or replaced after it was opened; nothing of this was added or removed. "
                "Put it back if you can, and resume the sweep",
                str(self.path),
            )
        return database
