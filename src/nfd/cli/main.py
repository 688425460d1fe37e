"""``nfd``: the entry point, and how a command ends: its exit code, and what is said of an error.

What a command needs is imported when it is needed, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

TRACEBACK = "--traceback"
_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO)  # without a name of a file, of standard output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, in every case: 0, 1 (a verdict), 2 (input), 70 (ours), 130."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    show, given = TRACEBACK in given, [argument for argument in given if argument != TRACEBACK]
    code, raised = 0, None
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM is Ctrl-C
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        code = _run(given)
    except BaseException as error:  # every error ends here, by its type
        raised = error
    fault = _fault_of(sys.stdout)
    if raised is not None and not (fault is not None and isinstance(raised, OSError)):
        code = _ended(raised, given, show)
    if fault is not None and not isinstance(fault, BrokenPipeError):  # a reader may leave: nfd | head
        _say([f"nfd: the output could not be written ({fault.strerror})."])
        code = code or 2
    _fault_of(sys.stderr)
    return code


def _run(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        from nfd import __version__

        print(f"nfd {__version__}")
        return 0
    from nfd.cli.commands import overview, parsed
    from nfd.core.errors import StateError

    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0
    try:
        command = parsed(given)
    except SystemExit as asked:  # the parser has said what there is to say
        return asked.code if isinstance(asked.code, int) else 0
    try:
        return int(command.run(shlex.join(["nfd", *given])))
    except SystemExit as error:
        raise StateError(f"code that the command ran called sys.exit({error.code!r}). Remove the call.") from error


def _ended(error: BaseException, given: Sequence[str], show: bool) -> int:
    """Say why a command ended, on stderr; returns its exit code. ``show``: print the traceback of any error."""
    from nfd.core.errors import INPUT, INTERRUPTED, OURS, UsageError, described, is_ours, out_of_memory, users_frames

    if isinstance(error, KeyboardInterrupt):
        _say(["nfd: interrupted. The same command continues from what is stored."])
        return INTERRUPTED
    if show:
        _say(traceback.format_exception(error))
    cause = (isinstance(error, UsageError) and error.__cause__) or error
    frames = users_frames(cause)
    if isinstance(error, UsageError):
        _say([f"nfd: {error}"])
    elif out_of_memory(error):
        _say([f"nfd: out of memory: {described(error)}"])
    elif not is_ours(error):
        _say([f"nfd: your code raised {described(error)}"])
    elif isinstance(error, OSError) and error.errno in _OUTPUT and error.filename is None:  # a print too long to wait
        _say([f"nfd: the output could not be written ({error.strerror})."])
    elif isinstance(error, OSError | ImportError):  # what the system says of disks and files, or what is not installed
        _say([f"nfd: {error}"])
    else:
        where = "above" if show else f"in {_kept(error, given)}; {TRACEBACK} prints it"
        _say([f"nfd: this is a bug in nfd, not an error in your input: {described(error)}"])
        _say([f"nfd: please report it to the authors, with the traceback {where}."])
        return OURS
    if not show:
        _say([*traceback.format_list(frames), *(traceback.format_exception_only(cause) if frames else [])])
    return INPUT


def _kept(error: BaseException, given: Sequence[str]) -> str:
    """The file in which the traceback of a mistake of ours was written."""
    import platform
    import tempfile

    from nfd import __version__

    about = f"nfd {__version__}, Python {platform.python_version()}, {platform.platform()}"
    number, path = tempfile.mkstemp(prefix="nfd-traceback-", suffix=".txt", text=True)
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("\n".join([about, shlex.join(["nfd", *given]), *traceback.format_exception(error)]))
    return path


def _say(texts: Sequence[str]) -> None:
    """Print on stderr, in characters that a terminal shows and does not obey."""
    from nfd.core.tables import visible

    with suppress(OSError):  # stderr may be closed or full
        for line in "\n".join(text.rstrip("\n") for text in texts).splitlines():
            print(visible(line), file=sys.stderr)


def _fault_of(stream: TextIO | None) -> OSError | None:
    """Why a standard stream cannot be written, if it cannot; what follows is dropped then."""
    if stream is None:  # it was closed before we began
        return None
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # also what Python writes out when it ends
        return error
    return None
