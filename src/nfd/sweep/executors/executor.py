"""The interface of an executor: tasks in, outcomes out, in order of completion; and how one task is done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from nfd.core import machine
from nfd.sweep.executors import plain

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """How the task numbered ``index`` ended: with a value, or with an error such as ``"ValueError: message"``."""

    index: int
    value: R | None = None
    error: str | None = None


def unnoticed(index: int) -> None:
    """The default of ``started``: nobody is told."""


class Executor(Protocol):
    """Runs the tasks of a sweep somewhere; which executor it is changes no number."""

    @property
    def slots(self) -> int:
        """How many tasks run at once."""
        ...

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Yield one outcome for each task, in order of completion.

        A task that raises is an outcome with an error, and the rest goes on. A task whose worker is lost is tried
        again, so it may be done in part more than once, but it has one outcome. Closing the generator, or
        KeyboardInterrupt, stops the workers.

        Args:
            work: a function at the top level of a module.
            tasks: plain data, one item for each task; results are plain data, too.
            started: called with the index of a task when it is first handed to a worker.
        """
        ...


def attempt(work: Callable[[T], R], task: T, index: int, threads: int) -> Outcome[R]:
    """Do one task here with ``threads`` threads of PyTorch; what it raises, sys.exit included, is an outcome."""
    try:
        with machine.threads(threads):
            return Outcome(index, value=work(task))
    except (Exception, SystemExit) as error:
        return Outcome(index, error=described(error))


def sendable(task: Any, index: int) -> bytes | Outcome[Any]:
    """The packed task, or the outcome of one that cannot be sent."""
    try:
        return plain.packed(task)
    except Exception as error:
        return Outcome(index, error=f"{described(error)} (tasks must be plain data)")


def performed(work: Callable[[Any], Any], packed: bytes, index: int, threads: int) -> bytes:
    """The outcome of a task, both packed, for executors that send them between processes."""
    outcome = attempt(lambda data: work(plain.unpacked(data)), packed, index, threads)
    try:
        return plain.packed([outcome.value, outcome.error])
    except Exception as error:
        kind = type(outcome.value).__name__
        reason = f"{described(error)} (the result, of type {kind}, cannot be sent; return plain data)"
        return plain.packed([None, reason])


def received(packed: bytes, index: int) -> Outcome[Any]:
    """The outcome that ``performed`` packed."""
    value, error = plain.unpacked(packed)
    return Outcome(index, value, error)


def lost(index: int, times: int, last: str) -> Outcome[Any]:
    """The outcome of a task that lost its worker each time that it was tried."""
    counted = "1 time" if times == 1 else f"{times} times"
    return Outcome(
        index,
        error=f"WorkerLost: the worker of this task was lost {counted}, last because {last}. "
        "If that was for memory, use fewer workers or a smaller size.",
    )


def described(error: BaseException) -> str:
    """An exception in one line: its type and its message."""
    return f"{type(error).__name__}: {error}"
