"""Whose code an error comes from: ours, or the module that the user named."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from types import TracebackType

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OF_OTHERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_TORCH = f"{os.sep}torch{os.sep}"
_users: set[str] = set()  # files of the modules that the user named, and of what these imported


def users_file(path: str) -> None:
    """Know a file as the user's, wherever it lies."""
    _users.add(path)


def is_ours(error: BaseException) -> bool:
    """Whether our code made the error: it raised it, or it called a library (NumPy, PyTorch) that did."""
    for file in reversed([*_files(error.__traceback__)]):
        if file in _users:
            return False
        if file.startswith(_OURS):
            return True
    return True


def of_the_package(path: object) -> bool:
    """Whether a path leads to a file of the program's own."""
    return isinstance(path, str) and os.path.abspath(path).startswith(_OURS)


def is_a_models(error: BaseException) -> bool:
    """Whether a model that we called raised the error: its own code, or PyTorch's in answer to it.

    For errors that come while a model of the user's is built, trained or measured. A line of ours that raised is our
    mistake, and so is a call of ours that made another library raise.
    """
    for file in reversed([*_files(error.__traceback__)]):
        if not _of_others(file) or _TORCH in file:
            return True
        if file.startswith(_OURS):
            return False
    return False


def in_users_code(error: BaseException | None) -> list[str]:
    """Where the user's code was when the error, or what caused it, came: lines of a traceback, and the error."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(_OURS):
            return _lines(traceback.format_exception_only(error))
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _users]
        if frames:
            return _lines([*traceback.format_list(frames), *traceback.format_exception_only(error)])
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return []


def place_in_code(error: BaseException | None) -> str:
    """Where the deepest line of the user's stands that led to an error, or to what caused it; empty where none did."""
    while error is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _of_others(frame.filename)]
        if frames:
            return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}"
        error = error.__cause__
    return ""


def _files(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename
        trace = trace.tb_next


def _lines(parts: list[str]) -> list[str]:
    return "".join(parts).rstrip().splitlines()


def _of_others(file: str) -> bool:
    return file.startswith((_OURS, "<", *_OF_OTHERS))
