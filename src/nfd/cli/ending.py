"""How a command ends: its exit code, and what is said of an error."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence

from nfd import __version__
from nfd.core.errors import LESS_MEMORY, UsageError, first_line, out_of_memory
from nfd.core.exits import INPUT, INTERRUPTED, OURS
from nfd.core.origin import in_users_code, is_ours, of_the_package
from nfd.core.tables import visible

# What the system says of disks, directories and limits, whoever asked.
_CIRCUMSTANCES = (
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE),
    *(errno.EBUSY, errno.ETXTBSY, errno.ENXIO, errno.ESTALE, errno.EAGAIN),
)


def ended(error: BaseException, arguments: Sequence[str], *, show: bool) -> int:
    """Say why a command ended, on stderr; returns its exit code. ``show``: print the traceback of any error."""
    if _was_interrupted(error):
        _say("interrupted; nothing was written.")
        return INTERRUPTED
    if show:
        _print_lines(_traceback(error))
    if isinstance(error, UsageError):
        _say(str(error))
    elif out_of_memory(error):
        detail = f" ({first_line(error)})" if str(error) else ""
        _say(f"out of memory{detail}. {LESS_MEMORY}")
    elif isinstance(error, OSError) and _is_of_the_system(error):
        _say(str(error))
    elif not is_ours(error):
        _say(f"your code raised {_named(error)}")
    else:
        return _mistake(error, arguments, show)
    if not show:
        _print_lines(in_users_code(error))
    return INPUT


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether it was Ctrl-C, or what an import that Ctrl-C broke off made of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _mistake(error: BaseException, arguments: Sequence[str], show: bool) -> int:
    _say(f"this is a bug in nfd, not an error in your input: {_named(error)}")
    where = None if show else _kept(error, arguments)
    if where is None and not show:
        _print_lines(_traceback(error))
    traced = "the traceback above" if where is None else f"the traceback in {where}"
    again = "" if show else " The same command with --traceback prints it."
    _say(f"please report it to the authors, with {traced} (nfd {__version__}).{again}")
    return OURS


def _kept(error: BaseException, arguments: Sequence[str]) -> str | None:
    """The file in which the traceback was written, None where there is no place for one."""
    versions = [f"nfd {__version__}, Python {platform.python_version()}, {platform.platform()}"]
    versions += [f"PyTorch {sys.modules['torch'].__version__}"] if "torch" in sys.modules else []
    lines = [*versions, shlex.join(["nfd", *arguments]), *_traceback(error)]
    for directory in (None, os.getcwd()):  # that of the system for temporary files; here
        try:
            number, path = tempfile.mkstemp(prefix="nfd-traceback-", suffix=".txt", dir=directory, text=True)
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError:
            continue
        return path
    return None


def _is_of_the_system(error: OSError) -> bool:
    """Whether it tells of files, disks or limits, of which none is our own."""
    return error.errno in _CIRCUMSTANCES and not of_the_package(error.filename)


def _named(error: BaseException) -> str:
    kind, message = type(error).__name__, first_line(error)
    return kind if message == kind else f"{kind}: {message}"


def _traceback(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).rstrip().splitlines()


def _say(text: str) -> None:
    print(f"nfd: {visible(text)}", file=sys.stderr)


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(visible(line), file=sys.stderr)
