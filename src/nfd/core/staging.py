"""Files that appear together: written in a folder beside their directory's files, then renamed into their places.

The folder is called ``.unfinished-*`` while it is written and ``.complete-*`` from the moment when all of it is on the
disk. So a writer that is killed leaves the files as they were before it, or the rest of its moves to the next one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nfd.core.errors import FileError
from nfd.core.interruptions import uninterrupted
from nfd.core.ownership import MARKER, check_replaceable, made_here, marker

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_UNFINISHED, _COMPLETE = ".unfinished-", ".complete-"
_PATIENCE, _PAUSE = 2.0, 0.005  # seconds


@contextmanager
def staged(directory: Path, replaced: Iterable[str] = (), *, marked: bool = True) -> Iterator[Path]:
    """A folder to write files in; they move into ``directory`` together when the block ends well.

    Otherwise they vanish, and ``directory`` stays as it was. A disk that is full is noticed before the first move.
    Files named in ``replaced`` belong to what is written: those that were not written anew are removed.

    A file that this program did not make is never replaced (``nfd.core.ownership``): FileError, and nothing is changed.
    ``marked=False`` is for directories that are ours alone.
    """
    with _alone(directory):
        _settle(directory, marked)
        folder = Path(tempfile.mkdtemp(dir=directory, prefix=_UNFINISHED))
        held = _locked(folder)
    try:
        try:
            yield folder
        except OSError as error:
            reason = f"{error.strerror}: nothing was changed in it; free space or choose another"
            raise OSError(error.errno, reason, str(directory)) from error
        with _alone(directory):
            _check_places(folder, directory, marked)
            if marked:
                (folder / MARKER).write_text(marker(directory, os.listdir(folder), replaced), encoding="utf-8")
            with uninterrupted():
                _move(folder.rename(directory / folder.name.replace(_UNFINISHED, _COMPLETE, 1)), directory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlocked(held)


def settle(directory: Path) -> None:
    """Finish the moves of writers that were killed in the middle of them, and remove what others did not finish."""
    with _alone(directory):
        _settle(directory, marked=True)


def _settle(directory: Path, marked: bool) -> None:
    for folder in sorted([*directory.glob(f"{_COMPLETE}*"), *directory.glob(f"{_UNFINISHED}*")]):
        held = None if folder.is_symlink() or not folder.is_dir() else _locked(folder)
        if held is None:
            continue
        try:
            if folder.name.startswith(_COMPLETE):
                _check_places(folder, directory, marked)
                _move(folder, directory)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            _unlocked(held)


def _check_places(folder: Path, directory: Path, marked: bool) -> None:
    """FileError where a file of the folder would take the place of a directory, or of a file that is not ours."""
    names = sorted(os.listdir(folder))
    blocked = [name for name in names if (directory / name).is_dir()]
    if blocked:
        raise FileError(
            f"{directory / blocked[0]} is a directory where a file should go; nothing was changed. Move it."
        )
    if marked:
        check_replaceable(directory, names)


def _move(complete: Path, directory: Path) -> None:
    """Files that are no longer listed go, the list comes, then the files: so what is left to do can always be seen."""
    gone = made_here(directory) - made_here(complete) if (complete / MARKER).exists() else set[str]()
    try:
        for name in gone:
            if (directory / name).is_file():
                (directory / name).unlink()
        for path in sorted(complete.iterdir(), key=lambda path: (path.name != MARKER, path.name)):
            os.replace(path, directory / path.name)
        complete.rmdir()
    except OSError as error:
        reason = (
            f"{error.strerror}: old and new files are mixed in it; the next command that writes there moves the rest"
        )
        raise OSError(error.errno, reason, str(directory)) from error


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
