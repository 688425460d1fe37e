"""Executors train the trials of a sweep: in this process, in others, or on a cluster.

The choice changes no number.
"""

from __future__ import annotations

import importlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import ModuleType
from typing import Any, get_args

import cloudpickle

from nfd.core import machine
from nfd.core.checks import check_choice, check_count
from nfd.core.errors import InputError, InputTypeError, described
from nfd.core.names import ExecutorName

_DIED_TWICE = (
    "WorkerLost: the process that trained it died twice; use fewer workers or a smaller size if "
    "for memory"
)
# Gradients are freed and allocated anew at every step. The C library of Linux would give their
# memory back to the system and have its pages cleared again: the training of a network with 16
# matrices of 1024 x 1024 took 1.7 times as long. Of the variables, what the user has set stays.
_KEEPING_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "33000000", "MALLOC_TRIM_THRESHOLD_": "2000000000"}
# seconds between two looks whether a process lives
_LIFE_SIGN = 1.0
Task = Callable[[], Any]
# index, value and error of every task, as they end
Outcomes = Generator[tuple[int, Any, str | None], None, None]


class Executor(AbstractContextManager["Executor"], ABC):
    """Runs tasks somewhere; its workers live until its ``with`` statement ends."""

    # How many tasks may be with workers.
    slots: int = 1

    def __exit__(self, *error: object) -> None:
        """End the workers."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Outcomes:
        """Do all tasks, also where some raise an error.

        Closing the generator stops those at work.
        """


def executor_named(name: str, workers: int | None = None) -> Executor:
    """Return the executor of a name.

    ``workers`` is the number of processes, by default one for each core.
    """
    check_choice("executor", name, get_args(ExecutorName))
    if name == "processes":
        return Processes(workers)
    if workers is not None:
        raise InputError(
            f"workers is the number of processes; got workers={workers} with executor={name!r}."
        )
    if name == "inline":
        return Inline()
    if name == "ray":
        return Ray()
    from nfd.runs.slurm import Slurm

    return Slurm()


class Inline(Executor):
    """Runs one task after the other in this process, with one thread of PyTorch."""

    def run(self, tasks: Sequence[Task]) -> Outcomes:
        for index, task in enumerate(tasks):
            yield index, *_attempt(task)


class Workers(Executor):
    """Workers to which tasks go as pickles, and which can be lost.

    A task that lost its worker is done once more.
    """

    # errors of a task whose worker is gone
    lost: tuple[type[Exception], ...]

    @abstractmethod
    def hand(self, message: bytes) -> Future[bytes]:
        """Give a task to a worker."""

    @abstractmethod
    def stop(self, future: Future[bytes]) -> None:
        """Stop a task at once."""

    def run(self, tasks: Sequence[Task]) -> Outcomes:
        waiting = deque(range(len(tasks)))
        tried_twice = set[int]()
        at_work = dict[Future[bytes], int]()
        try:
            while waiting or at_work:
                while waiting and len(at_work) < self.slots:
                    index = waiting.popleft()
                    at_work[self.hand(packed(tasks[index]))] = index
                # Windows answers Ctrl-C only between two waits.
                for future in wait(at_work, 1.0, FIRST_COMPLETED).done:
                    index = at_work.pop(future)
                    error = future.exception()
                    is_lost = isinstance(error, self.lost)
                    if error is None:
                        yield index, *cloudpickle.loads(future.result())
                    elif is_lost and index not in tried_twice:
                        tried_twice.add(index)
                        # At once: where all tasks are too large, the second death of one ends the
                        # sweep.
                        waiting.appendleft(index)
                    else:
                        # Ray's errors have a cause.
                        reason = described(getattr(error, "cause", None) or error)
                        if is_lost:
                            reason = f"{_DIED_TWICE} ({reason})"
                        yield index, None, reason
        finally:
            for future in at_work:
                self.stop(future)


class Processes(Workers):
    """As many processes as ``workers`` says, by default one for each core, with one thread each."""

    # Errors of a pipe whose other end died. Errors of tasks arrive as values.
    lost = (EOFError, OSError)

    def __init__(self, workers: int | None = None) -> None:
        self.slots = machine.cores() if workers is None else check_count("workers", workers)
        # by their last task
        self._processes = dict[Future[bytes], _Process]()

    def __exit__(self, *error: object) -> None:
        while self._processes:
            _, process = self._processes.popitem()
            process.end()

    def hand(self, message: bytes) -> Future[bytes]:
        process = self._idle() or _Process()
        future = process.hand(message)
        self._processes[future] = process
        return future

    def _idle(self) -> _Process | None:
        """Take a process whose last task is answered; None if all are at work."""
        for last in self._processes:
            if last.done() and last.exception() is None:
                return self._processes.pop(last)
        return None

    def stop(self, future: Future[bytes]) -> None:
        self._processes.pop(future).end()


class _Process:
    """A process that answers one message after the other, and ends with the pipe to its driver."""

    def __init__(self) -> None:
        # A fork of a process with threads may wait for ever.
        context = multiprocessing.get_context("spawn")
        self._line, workers_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(workers_end,))
        self._thread = ThreadPoolExecutor(1)
        with _inheriting_nothing():
            self._process.start()
        # A process that dies in the middle of an answer then ends the pipe. The queue of a pool
        # would wait.
        workers_end.close()

    def hand(self, message: bytes) -> Future[bytes]:
        """Send a message, and wait for the answer in a thread."""
        self._thread.submit(self._line.send_bytes, message)
        return self._thread.submit(self._answer)

    def _answer(self) -> bytes:
        """Receive an answer. Raise EOFError if the process dies before it gives one."""
        # The pipe does not show every death: what the process has forked may hold its end open.
        while not self._line.poll(_LIFE_SIGN):
            if not self._process.is_alive() and not self._line.poll():
                raise EOFError
        return self._line.recv_bytes()

    def end(self) -> None:
        """Stop it at once."""
        self._process.kill()
        self._process.join()
        self._thread.shutdown()
        self._line.close()


@contextmanager
def _inheriting_nothing() -> Iterator[None]:
    """A context in which processes start deaf to Ctrl-C and without the driver's script.

    ``spawn`` would run the script again. They keep the memory that they free.
    """
    main = sys.modules["__main__"]
    added = {name: value for name, value in _KEEPING_MEMORY.items() if name not in os.environ}
    # Windows has no masks of signals.
    has_masks = hasattr(signal, "pthread_sigmask")
    if has_masks:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ |= added
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        sys.modules["__main__"] = main
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(line: Connection) -> None:
    """Answer messages until the driver ends or dies, also in the middle of one."""
    # The driver stops this process; Ctrl-C does not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # PyTorch reads these when it is loaded.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # Windows has no forks.
    if hasattr(os, "register_at_fork"):
        # A forked child, such as a worker of a loader, may outlive this process: it must not hold
        # the pipe open.
        os.register_at_fork(after_in_child=line.close)
    messages = SimpleQueue[bytes]()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                messages.put(line.recv_bytes())
        os._exit(1)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        line.send_bytes(_answer(messages.get()))


class Ray(Workers):
    """An executor that trains on Ray: ``nfd.Sweep(out, executor=nfd.Ray(gpus=1))``.

    It needs Ray (``pip install 'nfd[ray]'``).

    Args:
        address: of the Ray to use. By default it is the Ray that runs on this machine, else one
            of its own that it starts and ends.
        gpus: GPUs of each training beside its one core; a fraction shares one. Pass
            ``device="cuda"`` to the sweep.

    Raises:
        ImportError: without Ray.
    """

    def __init__(self, address: str | None = None, gpus: float = 0.0) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                f"The executor 'ray' needs Ray ({error}). Install it: pip install 'nfd[ray]'"
            ) from error
        names = ("WorkerCrashed", "NodeDied", "OutOfMemory", "ObjectLost", "LocalRayletDied")
        self.lost = tuple(getattr(self._ray.exceptions, f"{name}Error") for name in names)
        # Ray's own retries leave out tasks killed for memory, which it tries for ever.
        self._answer = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_answer)
        self._address = address
        self._ours = False

    def __exit__(self, *error: object) -> None:
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def run(self, tasks: Sequence[Task]) -> Outcomes:
        if not self._ray.is_initialized():
            # Ray then reports nothing to anybody.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init(
                self._address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            self._ours = True
        # Twice the cores: none waits for the driver, and 10,000 tasks do not flood the cluster.
        self.slots = 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        return super().run(tasks)

    def hand(self, message: bytes) -> Future[bytes]:
        future: Future[bytes] = self._answer.remote(message).future()
        return future

    def stop(self, future: Future[bytes]) -> None:
        self._ray.cancel(getattr(future, "object_ref"), force=True)  # noqa: B009, as Ray's futures have one


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that sends tensors without the rest of the storage that they view.

    So a batch goes without its data set.
    """

    def reducer_override(self, obj: Any) -> Any:
        if _is_view(obj):
            return obj.detach().clone().__reduce_ex__(self.proto)
        return super().reducer_override(obj)


def _is_view(value: Any) -> bool:
    """Whether a value is a dense tensor that is smaller than its storage."""
    # Where nothing has loaded PyTorch there are no tensors.
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.layout is not torch.strided:
        return False
    return bool(value.untyped_storage().nbytes() > value.nbytes)


def packed(content: Any) -> bytes:
    """Pickle a value. Raise TypeError where that is impossible."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(content)
    except Exception as error:
        raise InputTypeError(
            f"this trial cannot be sent between processes: {described(error)}. Let its model, "
            "loss, batches and observers hold no open files, locks or connections, or use "
            "executor='inline'."
        ) from error
    return file.getvalue()


def _answer(message: bytes) -> bytes:
    """Do the task of a message, as a worker, and return its value and error."""
    return packed(_attempt(lambda: cloudpickle.loads(message)()))


def _attempt(task: Task) -> tuple[Any, str | None]:
    """Return value and error of a task, with one thread of PyTorch.

    What it raises, sys.exit included, is the error.
    """
    try:
        with machine.threads(1):
            return task(), None
    except (Exception, SystemExit) as error:
        return None, described(error)
