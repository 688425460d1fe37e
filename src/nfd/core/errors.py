"""The kinds of errors, the exit codes of commands, and whose mistake an error is."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

# ---- Three kinds of errors, and exit codes


# 70 is EX_SOFTWARE of sysexits.h
VERDICT = 1
INPUT = 2
OURS = 70
INTERRUPTED = 130


class UsageError(Exception):
    """What was asked for cannot be done, by no fault of the program.

    The message says why, and what to do. It marks the errors below. Python's users catch them
    as the errors of Python that they are, the command line ends with exit code 2.
    """


class InputError(UsageError, ValueError):
    """A value that was given is none that can be used, or code of the user's raised an error."""


class InputTypeError(UsageError, TypeError):
    """What was given is of a type that cannot be used."""


class StateError(UsageError, RuntimeError):
    """What was asked for cannot be done as things stand.

    Weights that something else changed are a case.
    """


class UsageWarning(UserWarning):
    """Something was done in another way than one may expect.

    The message says how, and what to do.
    """


# ---- What is said of an error, and whose it is


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = {
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
}
# the names of files of generated code start with "<"
_NOT_USERS = (_OURS, "<", *_INSTALLED)


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the user's part of a traceback, from the first to the last of the user's lines."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [
        number for number, frame in enumerate(frames) if not frame.filename.startswith(_NOT_USERS)
    ]
    if not numbers:
        return []
    return frames[numbers[0] : numbers[-1] + 1]


def is_ours(error: BaseException) -> bool:
    """Whether a line of ours raised an error, or called a library that did."""
    # the last line that is ours or the user's decides: what comes after it was called from there
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(_OURS):
            return True
        if not frame.filename.startswith(_NOT_USERS):
            return False
    return True


def place_of(error: BaseException) -> str:
    """Say in brackets where the user's code raised an error; nothing where it did not."""
    frames = users_frames(error)
    if not frames:
        return ""
    last = frames[-1]
    return f" ({last.filename}, line {last.lineno}, in {last.name})"


@contextmanager
def blaming(what: str, kind: type[UsageError] = InputError) -> Iterator[None]:
    """A context in which errors of a model become errors of input.

    They say ``what`` failed and where. A mistake of ours stays as it is. So does an
    ``InputError``, which says enough. Of what a layer or a plan refuses, it says for which model
    that was.
    """
    try:
        yield
    except Exception as error:
        is_refusal = isinstance(error, UsageError)
        is_ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS)
        if isinstance(error, InputError) or out_of_memory(error) or (is_ours and not is_refusal):
            raise
        name = "" if is_refusal else f"{type(error).__name__}: "
        raise kind(f"{what}: {name}{in_brief(error)}{place_of(error)}") from error


def in_brief(error: BaseException) -> str:
    """Say what an error says: ours in full, one of another library without its traces.

    A line that ends with a colon announces what follows, as of ``load_state_dict``, so that the
    next one is needed. An error that says nothing gives its kind.
    """
    if isinstance(error, UsageError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    brief = list[str]()
    for line in lines:
        brief.append(line)
        if not line.endswith(":"):
            break
    return " ".join(brief) or type(error).__name__


LESS_MEMORY = (
    "Use smaller widths, depths or batches, or fewer workers at a time. Wide matrices need little "
    "memory with weights='structured' or 'deferred'; nfd.defer replaces those of your own model."
)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the CPU or an accelerator.

    Python and PyTorch have types for it; PyTorch's error on the CPU has none.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    on_the_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names or on_the_cpu


def described(error: BaseException) -> str:
    """Describe an exception: its type and its message, with a remedy where memory ran out."""
    text = f"{type(error).__name__}: {error}"
    if out_of_memory(error):
        text += f" {LESS_MEMORY}"
    return text


def trace_of(error: BaseException) -> str | None:
    """Return the traceback of a mistake of ours.

    None for an error of the input, and where memory ran out.
    """
    if isinstance(error, UsageError) or out_of_memory(error):
        return None
    return "".join(traceback.format_tb(error.__traceback__))
