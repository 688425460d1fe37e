"""Worker processes on this machine; one that is killed costs its task another attempt, and nothing else.

The standard library's pool and loky would serve here but for three faults: a worker that dies takes the tasks of all
others with it, one that is killed in the middle of a result leaves the driver waiting for ever, and one whose driver is
killed works on. With a pipe of its own for each worker none of them can happen.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Self, TypeVar

from nfd.core.errors import StateError, check_count, described
from nfd.core.interruptions import blocked, unblock
from nfd.core.machine import cores
from nfd.runs.executors.attempts import Lost, outcomes
from nfd.runs.executors.executor import Executor, Outcome, unnoticed
from nfd.runs.executors.messages import answer, packed, packed_function, unpacked

T = TypeVar("T")
R = TypeVar("R")

_LOOK = 1.0  # seconds after which deaths are looked for that no pipe tells, as when a task's own child keeps it open
_PATIENCE = 2.0  # seconds in which a worker may end by itself
_STARTS = 5  # rounds of workers that are lost before they are ready, with no news between, are no accident
_READY = b""
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_one_start_at_a_time = threading.Lock()


class Processes(Executor):
    """Up to ``workers`` processes with ``threads`` threads each; by default as many as this process has cores for."""

    def __init__(self, workers: int | None = None, threads: int = 1, attempts: int = 3) -> None:
        self.threads = check_count("threads", threads)
        self.attempts = check_count("attempts", attempts)
        self.workers = max(1, cores() // threads) if workers is None else check_count("workers", workers)
        self._statements = 0  # ``with`` statements that this executor is in
        self._resting: list[_Worker] = []

    def __enter__(self) -> Self:
        self._statements += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._statements -= 1
        if not self._statements:
            _end(self._resting)

    def prepare(self, module: str) -> None:
        """Start every process now, which loads this module; see ``Executor.prepare``."""
        self._resting += [_Worker(self.threads, module) for _ in range(self.workers - len(self._resting))]

    @property
    def slots(self) -> int:
        """The number of processes."""
        return self.workers

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Outcomes in order of completion; see ``Executor.run``.

        Raises:
            TypeError: if ``function`` cannot be sent to workers.
            RuntimeError: if the workers cannot start, or cannot load ``function``.
        """
        # with the path of today: workers that started earlier would not find the user's module
        message = packed((sys.path, packed_function(function)))
        resting, self._resting = self._resting, []
        ready = [worker for worker in resting if worker.function in (message, None) and worker.process.is_alive()]
        _end([worker for worker in resting if worker not in ready])
        for worker in ready:
            worker.learn(message)
        return outcomes(_Workers(message, self, ready), tasks, started, self.attempts)

    def rest(self, workers: list[_Worker]) -> None:
        """Let idle workers wait for the next run, or end them."""
        self._resting += workers
        if not self._statements:
            _end(self._resting)


class _Workers:
    """The processes of one run: those that waited for it, and others that are started when there is a task for them."""

    def __init__(self, function: bytes, executor: Processes, workers: list[_Worker]) -> None:
        self._function, self._executor, self._workers = function, executor, workers
        self._size, self._threads = executor.workers, executor.threads
        self._failed_starts = 0

    @property
    def room(self) -> int:
        return self._size - sum(worker.index is not None for worker in self._workers)

    def hand(self, index: int, task: bytes) -> None:
        idle = next((worker for worker in self._workers if worker.index is None), None)
        if idle is None:
            idle = _Worker(self._threads)
            idle.learn(self._function)
            self._workers.append(idle)
        idle.hand(index, task)

    def answers(self) -> Iterator[tuple[int, bytes | Lost]]:
        wait([worker.pipe for worker in self._workers], _LOOK)
        for worker in list(self._workers):
            try:
                message: bytes | Lost | None = worker.take()
            except EOFError:
                message = self._lost(worker)
            if worker.ready:
                self._failed_starts = 0
            index = worker.index
            if message is not None and index is not None:
                worker.index = None
                yield index, message

    def stop(self) -> None:
        """End those with a task at once; the others rest."""
        at_work = [worker for worker in self._workers if worker.index is not None or not worker.ready]
        self._executor.rest([worker for worker in self._workers if worker not in at_work])
        for worker in at_work:
            worker.process.kill()
        _end(at_work)

    def _lost(self, worker: _Worker) -> Lost:
        self._workers.remove(worker)
        reason = worker.stop()
        self._failed_starts += not worker.ready
        if self._failed_starts == _STARTS * self._size:
            raise StateError(
                f"A worker was lost before it was ready: {reason}. What it printed is above; if nothing is, "
                "memory may be short: use fewer workers."
            )
        return Lost(reason, worker.ready)


class _Worker:
    """A process for a function and the pipe to it; ``index`` is the task that it holds, None while it waits.

    ``function`` is the message that holds it, and the path to import from. The process loads ``module``, where one is
    named, before it gets its function.
    """

    def __init__(self, threads: int, module: str | None = None) -> None:
        self.function: bytes | None = None
        self.index: int | None = None
        self.ready = False
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe(duplex=True)
        self.process = context.Process(target=_serve, args=(end, threads, module), daemon=True)
        try:
            with _one_start_at_a_time, _inheriting_nothing():
                self.process.start()
            end.close()  # so that the worker's is the last one, and its death the end of the pipe
        except BaseException:  # nobody holds this worker yet
            if self.process.pid is not None:
                self.stop(patience=0.0)
            raise

    def learn(self, function: bytes) -> None:
        """Tell it its function, once."""
        if self.function is None:
            self.function = function
            self._send(function)

    def hand(self, index: int, task: bytes) -> None:
        """Give it a packed task."""
        self.index = index
        self._send(index.to_bytes(8) + task)

    def take(self) -> bytes | None:
        """Its answer, None if there is none yet; EOFError once it is dead and all that it sent is taken."""
        alive = self.process.is_alive()
        try:
            while self.pipe.poll():
                message = self.pipe.recv_bytes()
                if self.ready:
                    return message
                if message != _READY:
                    raise StateError(f"A worker could not load the function: {message.decode()}. Its trace is above.")
                self.ready = True
        except OSError:  # it died in the middle of a message
            raise EOFError from None
        if not alive:
            raise EOFError
        return None

    def stop(self, patience: float = _PATIENCE) -> str:
        """Let the process end by itself for some seconds, then kill it; how it ended, in words."""
        self.pipe.close()
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        return f"it was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"it exited with {code}"

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, as ``take`` will tell
            self.pipe.send_bytes(message)


def _end(workers: list[_Worker]) -> None:
    """End workers, all together; those that wait for a task notice that their pipe is closed."""
    for worker in workers:
        worker.pipe.close()
    while workers:
        worker = workers.pop()
        worker.stop(_PATIENCE if worker.ready else 0.0)


@contextmanager
def _inheriting_nothing() -> Iterator[None]:
    """A worker starts with SIGINT blocked, and without the driver's script, which ``spawn`` would run again."""
    if os.name != "nt":  # Windows has none
        resource_tracker.getfd()  # started before, because starting it unblocks SIGINT
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with blocked():
            yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection, threads: int, module: str | None) -> None:
    """Receive the function, then tasks until the pipe ends; each is answered by its packed outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver stops its workers
    unblock()
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    os.environ.update(dict.fromkeys(_POOLS, str(threads)))  # before the libraries are loaded that read it
    if module is not None:
        import_module(module)
    with suppress(EOFError, OSError):  # the driver has closed the pipe, or is gone
        try:
            sys.path[:], function = unpacked(pipe.recv_bytes())
            function = unpacked(function)
        except Exception as error:
            pipe.send_bytes(described(error).encode())
            raise
        pipe.send_bytes(_READY)
        while True:
            message = pipe.recv_bytes()
            pipe.send_bytes(answer(function, message[8:], int.from_bytes(message[:8]), threads))


def _end_with_the_driver() -> None:
    """End this process when its driver is gone, even in the middle of a task."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
