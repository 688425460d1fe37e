"""An executor: tasks in, outcomes out, in order of completion. The simplest one works in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from nfd.core import machine
from nfd.core.errors import check_count, described

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """How the task numbered ``index`` ended: with a value, or with an error such as ``"ValueError: message"``."""

    index: int
    value: R | None = None
    error: str | None = None


def unnoticed(index: int) -> None:
    """The default of ``started``: nothing happens."""


class Executor(Protocol):
    """Runs the tasks of a sweep somewhere; which executor it is changes no number.

    Workers live for one ``run``. In a ``with`` statement they may wait for the next one, and end with the statement.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers that wait."""
        return

    def prepare(self, module: str) -> None:
        """Where there are processes to start, start them: they load this module while the caller does something else.

        They end with the next ``with`` statement, or with the next ``run`` outside of one.
        """
        return

    @property
    def slots(self) -> int:
        """How many tasks run at once."""
        ...

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Yield one outcome for each task, in order of completion.

        A task that raises is an outcome with an error, and the others continue. A task whose worker is lost is tried
        again, so it may be done in part more than once, but it has one outcome. Closing the generator, or
        KeyboardInterrupt, stops the workers.

        Args:
            function: called with each task. Workers are sent functions of a script or a notebook as they are, and
                import those of a module.
            tasks: anything that can be pickled, one item for each task; and so are results.
            started: called with the index of a task when it is first handed to a worker.
        """
        ...


def attempt(function: Callable[[T], R], task: T, index: int, threads: int) -> Outcome[R]:
    """Do one task here with ``threads`` threads of PyTorch; what it raises, sys.exit included, is an outcome."""
    try:
        with machine.threads(threads):
            return Outcome(index, value=function(task))
    except (Exception, SystemExit) as error:
        return Outcome(index, error=described(error))


class Inline(Executor):
    """Runs one task after the other in this process, with ``threads`` threads of PyTorch, restored after each."""

    slots = 1

    def __init__(self, threads: int = 1) -> None:
        self.threads = check_count("threads", threads)

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Outcomes in the order of the tasks; see ``Executor.run``."""
        for index, task in enumerate(tasks):
            started(index)
            yield attempt(function, task, index, self.threads)
