"""How a program answers Ctrl-C and SIGTERM: at once, or after moments in which it must not be stopped half way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType


@contextmanager
def answering(handlers: Mapping[int, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """These handlers answer their signals within the block; where it is not the main thread's, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An interruption waits for the end of the block."""
    waiting: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    try:
        with answering({signal.SIGINT: later, signal.SIGTERM: later}):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])
