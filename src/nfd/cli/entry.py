"""The entry point: one command is read, run, and ends with its exit code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from nfd.cli.answering import AnsweringCommand
from nfd.cli.commands import read_command
from nfd.core.errors import (
    INPUT,
    INTERRUPTED,
    OURS,
    StateError,
    UsageError,
    UsageWarning,
    described,
    is_ours,
    out_of_memory,
    place_of,
    users_frames,
)
from nfd.core.tables import said, visible


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    It is 0 (✓ and ?), 1 (✗), 2 (input), 70 (a bug of ours) or 130 (interrupted).
    """
    if arguments is None:
        arguments = sys.argv[1:]
    words = list(arguments)
    try:
        # SIGTERM does what Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = _run(words)
    except SystemExit as end:
        # The parser raises it after --help.
        code = end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        # A reader may leave: nfd | head.
        code = 0
    except BaseException as error:
        # Every error ends here, by its type.
        code = _ended(error)
    return _flushed(sys.stdout) or code


def _run(words: list[str]) -> int:
    """Read a line and run its command; returns the exit code."""
    command = read_command(words or ["--help"])
    if isinstance(command, str):
        print(command)
        return 0
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            if getattr(command, "quiet", False):
                warnings.simplefilter("ignore")
            with _only_json(command):
                return int(command.run(shlex.join(["nfd", *words])))
    except SystemExit as error:
        raise StateError(
            f"code that the command ran called sys.exit({error.code!r}){place_of(error)}. Remove "
            "the call."
        ) from error


@contextmanager
def _only_json(command: AnsweringCommand) -> Iterator[None]:
    """With --json: what the user's code prints goes to stderr, the answer to stdout."""
    # Commands of the paper run no code of the user's, and write their progress to stderr.
    if not getattr(command, "json", False) or not hasattr(command, "stdout"):
        yield
        return
    command.stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of nfd as a sentence, and any other as Python does."""
    if issubclass(category, UsageWarning):
        _say(f"nfd: {message}")
    else:
        _say(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _ended(error: BaseException) -> int:
    """Say on stderr why a command ended; returns its exit code."""
    if isinstance(error, KeyboardInterrupt):
        # What was going on says what it leaves.
        kept = getattr(error, "__notes__", [])
        goes_on = "The same command continues from what is stored."
        _say(f"nfd: {' '.join(['interrupted.', goes_on, *kept])}")
        return INTERRUPTED
    cause = error
    if isinstance(error, UsageError) and error.__cause__ is not None:
        cause = error.__cause__
    frames = users_frames(cause)
    if isinstance(error, UsageError):
        _say(f"nfd: {error}")
    elif out_of_memory(error):
        _say(f"nfd: out of memory: {described(error)}")
    elif not is_ours(error):
        _say(f"nfd: your code raised {described(error)}")
    elif isinstance(error, OSError | ImportError):
        # The system says it of disks and files, or something is not installed.
        _say(f"nfd: {error}")
    else:
        _say("".join(traceback.format_exception(error)))
        _say(f"nfd: this is a bug in nfd, not an error in your input: {described(error)}")
        _say("nfd: please report it to the authors, with the traceback above.")
        return OURS
    if frames:
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(cause)]
        _say("".join(lines))
    return INPUT


def _say(text: str) -> None:
    """Print on stderr, in characters that a terminal shows and does not obey.

    Our name is red on a terminal.
    """
    # stderr may be full, or closed before we began.
    with suppress(OSError, AttributeError):
        name = "nfd:"
        if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            name = "\033[1;31mnfd:\033[0m"
        for line in said(text).splitlines():
            shown = visible(line)
            if shown.startswith("nfd:"):
                shown = name + shown.removeprefix("nfd:")
            print(shown, file=sys.stderr)
        sys.stderr.flush()


def _flushed(stream: TextIO | None) -> int:
    """Write out what was printed; returns 0, or 2 if it could not be written."""
    if stream is None:
        # It was closed before we began.
        return 0
    try:
        stream.flush()
    except OSError as error:
        # Python would write it out again when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _say(f"nfd: the output could not be written ({error.strerror}).")
            return INPUT
    return 0
