"""Waiting for events, with ends so late that a busy machine does not reach them, and work counted without a clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE = 600.0  # seconds after which an event is given up: a test that gets there has failed
INTERRUPTIBLE = ("env", "--default-signal=INT")  # before a command: else tests in the background make it deaf to Ctrl-C
FOREVER = 24 * 3600.0  # seconds, of work that only a kill ends


def wait_for(condition: Callable[[], object]) -> None:
    """Return once the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_the_end_of(pids: Iterable[int]) -> None:
    """Return once none of the processes runs."""
    waiting = list(pids)
    wait_for(lambda: not any(map(alive, waiting)))


def children(pid: int) -> list[int]:
    """The processes that a process has started and not yet buried."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def calls(work: Callable[[], Any]) -> int:
    """How many functions ``work`` calls, Python's and C's: a cost that no other job on the machine changes."""
    count = 0

    def counted(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
