"""Files that appear together: written in a folder beside their directory's files, then renamed into their places.

The folder is called ``.unfinished-*`` while it is written and ``.complete-*`` from the moment when all of it is on the
disk. So a writer that is killed leaves the files as they were before it, or the rest of its moves to the next one.
A writer locks its folder, and the system drops the lock when the writer dies. Where folders have no locks (Windows,
some network file systems) nothing counts as abandoned.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

from nfd.core.errors import FileError
from nfd.core.interruptions import uninterrupted
from nfd.core.ownership import MARKER, check_replaceable, made_here, marker

_UNFINISHED, _COMPLETE = ".unfinished-", ".complete-"
# Seconds. Writers hold a directory for a moment: who holds it for longer is no writer, but ``flock DIRECTORY nfd ...``,
# which waits for us.
_PATIENCE, _PAUSE = 2.0, 0.005


@contextmanager
def staged(directory: Path, replaced: Iterable[str] = (), *, marked: bool = True) -> Iterator[Path]:
    """A folder to write files in; they move into ``directory`` together when the block ends well.

    Otherwise they vanish, and ``directory`` stays as it was. A disk that is full is noticed before the first move.
    Files named in ``replaced`` belong to the same result: those that are not written again are removed.

    A file that this program did not make is never replaced (``nfd.core.ownership``): FileError, and nothing is changed.
    ``marked=False`` is for directories that are ours alone.
    """
    with ExitStack() as stack:
        with _locked(directory, _PATIENCE):
            _settle(directory, marked)
            folder = Path(tempfile.mkdtemp(dir=directory, prefix=_UNFINISHED))
            stack.enter_context(_locked(folder))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            yield folder
        except OSError as error:
            reason = f"{error.strerror}: nothing was changed in it; free space or choose another"
            raise OSError(error.errno, reason, str(directory)) from error
        with _locked(directory, _PATIENCE), uninterrupted():
            _check_places(folder, directory, marked)
            if marked:
                (folder / MARKER).write_text(marker(directory, os.listdir(folder), replaced), encoding="utf-8")
            _move(folder.rename(directory / folder.name.replace(_UNFINISHED, _COMPLETE, 1)), directory)


def settle(directory: Path) -> None:
    """Finish the moves of writers that were killed in the middle of them, and remove what others did not finish."""
    with _locked(directory, _PATIENCE):
        _settle(directory, marked=True)


def _settle(directory: Path, marked: bool) -> None:
    for folder in sorted([*directory.glob(f"{_COMPLETE}*"), *directory.glob(f"{_UNFINISHED}*")]):
        if folder.is_symlink() or not folder.is_dir():
            continue
        with _locked(folder) as abandoned:
            if abandoned and folder.name.startswith(_COMPLETE):
                _check_places(folder, directory, marked)
                _move(folder, directory)
            if abandoned:
                shutil.rmtree(folder, ignore_errors=True)


def _check_places(folder: Path, directory: Path, marked: bool) -> None:
    """FileError where a file of the folder would take the place of a directory, or of a file that is not ours."""
    names = sorted(os.listdir(folder))
    for name in names:
        if (directory / name).is_dir():
            raise FileError(f"{directory / name} is a directory where a file should go; nothing was changed. Move it.")
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
        mixed = "old and new files are mixed in it; the next command that writes there moves the rest"
        raise OSError(error.errno, f"{error.strerror}: {mixed}", str(directory)) from error


@contextmanager
def _locked(folder: Path, patience: float = 0.0) -> Iterator[bool]:
    """Lock a folder for the block; False where another holds it for ``patience`` seconds, or it cannot be locked."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        handle = None
    try:
        yield handle is not None and _lock(handle, time.monotonic() + patience)
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int, deadline: float) -> bool:
    while flock is not None:
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        else:
            return True
    return False
