"""The workers of one run and the tasks that they hold, wait for, or have lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from nfd.core.errors import StateError
from nfd.sweep.executors.executor import Outcome, received
from nfd.sweep.executors.pending import Pending
from nfd.sweep.executors.worker import Worker

_LOOK = 1.0  # seconds after which deaths are looked for that no pipe tells, as when a task's own child keeps it open
_STARTS = 5  # rounds of workers that are killed before they are ready, with no news between, are no accident
_ADVICE = (
    "What it printed is above. The work must stand at the top level of a module that workers can import; if that is "
    "the script itself, start the sweep there under `if __name__ == '__main__':`."
)


class Crew:
    """Keeps up to ``size`` workers of ``threads`` threads at ``work``, a function by name, a task at a time each."""

    def __init__(
        self,
        work: bytes,
        tasks: Sequence[Any],
        started: Callable[[int], None],
        *,
        size: int,
        threads: int,
        attempts: int,
    ) -> None:
        self.work, self.size, self.threads = work, size, threads
        self.pending = Pending(tasks, started, attempts)
        self.workers: list[Worker] = []
        self.failed_starts = 0

    @property
    def working(self) -> bool:
        """Whether an outcome is still to come."""
        return bool(self.pending) or any(worker.index is not None for worker in self.workers)

    def advance(self) -> list[Outcome[Any]]:
        """Keep every worker at work, then wait for the next outcomes; workers are at work again when it returns."""
        outcomes = self._fill()
        if not outcomes:
            wait([handle for w in self.workers for handle in (w.pipe, w.process.sentinel)], _LOOK)
            outcomes = [outcome for worker in list(self.workers) if (outcome := self._heard(worker))]
            outcomes += self._fill()
        return outcomes

    def stop(self) -> None:
        """End every worker: those with a task at once, idle ones when they notice that their pipe is closed."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.index is not None or not worker.ready:
                worker.process.kill()
        while self.workers:
            self.workers.pop().stop()

    def _fill(self) -> list[Outcome[Any]]:
        """Hand tasks to idle workers and start missing ones; tasks that cannot be sent are outcomes."""
        unsent = list[Outcome[Any]]()
        for worker in self.workers:
            while self.pending and worker.ready and worker.index is None:
                task = self.pending.next()
                if isinstance(task, Outcome):
                    unsent.append(task)
                else:
                    worker.hand(*task)
        free = sum(worker.index is None for worker in self.workers)
        for _ in range(min(len(self.pending) - free, self.size - len(self.workers))):
            self.workers.append(Worker(self.work, self.threads))
        return unsent

    def _heard(self, worker: Worker) -> Outcome[Any] | None:
        """What became of the worker since the last look."""
        try:
            message = worker.take()
        except EOFError:
            return self._lost(worker)
        if message is None:
            return None
        self.failed_starts = 0
        index, worker.index = worker.index, None
        if index is not None:
            return received(message, index)
        if message:
            raise RuntimeError(f"A worker could not import the work: {message.decode()}. {_ADVICE}")
        worker.ready = True
        return None

    def _lost(self, worker: Worker) -> Outcome[Any] | None:
        """Try its task again on another worker, or give it up; give all up if workers die before they are ready."""
        self.workers.remove(worker)
        index, code = worker.index, worker.stop()
        ending = f"it was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"it exited with {code}"
        if not worker.ready:
            self.failed_starts += 1
            if code >= 0 or self.failed_starts == _STARTS * self.size:
                advice = _ADVICE if code >= 0 else "Memory may be short: use fewer workers."
                raise StateError(f"A worker was lost before it was ready: {ending}. {advice}")
        return None if index is None else self.pending.lost(index, ending)
