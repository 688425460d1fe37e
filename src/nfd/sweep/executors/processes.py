"""Worker processes on this machine; one that is killed costs its task another attempt, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from nfd.core.errors import check_count
from nfd.core.machine import cores
from nfd.sweep.executors import plain
from nfd.sweep.executors.crew import Crew
from nfd.sweep.executors.executor import Outcome, described, unnoticed

T = TypeVar("T")
R = TypeVar("R")


class Processes:
    """Up to ``workers`` processes with ``threads`` threads each; by default as many as this process has cores for."""

    def __init__(self, workers: int | None = None, threads: int = 1, attempts: int = 3) -> None:
        self.threads = check_count("threads", threads)
        self.attempts = check_count("attempts", attempts)
        self.workers = max(1, cores() // threads) if workers is None else check_count("workers", workers)

    @property
    def slots(self) -> int:
        """The number of processes."""
        return self.workers

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Outcomes in order of completion; see ``Executor.run``.

        Raises:
            TypeError: if ``work`` is not at the top level of a module.
            RuntimeError: if the workers cannot start, or cannot import ``work``.
        """
        limits = {"size": self.workers, "threads": self.threads, "attempts": self.attempts}
        crew = Crew(_importable(work), tasks, started, **limits)
        try:
            while crew.working:
                yield from crew.advance()
        finally:
            crew.stop()


def _importable(work: Callable[..., Any]) -> bytes:
    try:
        return plain.name_of(work).encode()
    except Exception as error:
        raise TypeError(
            f"work must be a function at the top level of a module, for workers to import; got {work!r} "
            f"({described(error)}). Move it there, or use the executor 'inline'."
        ) from None
