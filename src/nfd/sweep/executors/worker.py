"""A worker process: the side of the driver that holds it, and the loop that it runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType

from nfd.sweep.executors import plain
from nfd.sweep.executors.executor import described, performed

_READY = b""
_WATCH = 0.5  # seconds between looks at the driver
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_starting = threading.Lock()


class Worker:
    """A process and the pipe to it; ``index`` is the task that it holds, None while it starts or waits."""

    def __init__(self, work: bytes, threads: int) -> None:
        self.index: int | None = None
        self.ready = False
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe(duplex=True)
        self.process = context.Process(target=_serve, args=(end, os.getpid(), threads), daemon=True)
        try:
            with _starting, _inheriting(threads, needs_main=b"__main__" in work):
                self.process.start()
            end.close()  # so that the worker's is the last one, and its death the end of the pipe
            self._send(work)
        except BaseException:  # nobody holds this worker yet
            if self.process.pid is not None:
                self.stop(patience=0.0)
            raise

    def hand(self, index: int, packed: bytes) -> None:
        """Give it a packed task."""
        self.index = index
        self._send(index.to_bytes(8) + packed)

    def take(self) -> bytes | None:
        """What it sent, None if nothing yet; EOFError once it is dead and all that it sent is taken."""
        alive = self.process.is_alive()
        try:
            if self.pipe.poll():
                return self.pipe.recv_bytes()
        except OSError:  # it died in the middle of a message
            raise EOFError from None
        if not alive:
            raise EOFError
        return None

    def stop(self, patience: float = 2.0) -> int:
        """Let the process end by itself for some seconds, then end it; its exit code, or minus a signal."""
        self.pipe.close()
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        return code

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, as ``take`` will tell
            self.pipe.send_bytes(message)


@contextmanager
def _inheriting(threads: int, needs_main: bool) -> Iterator[None]:
    """What a worker inherits: few threads, SIGINT blocked, and the driver's script only if the work stands in it.

    Without the script a worker starts faster, and a script without ``if __name__ == "__main__":`` is safe.
    """
    resource_tracker.getfd()  # started before, because starting it unblocks SIGINT
    main, mask = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = {name: os.environ.get(name) for name in _POOLS}
    os.environ.update(dict.fromkeys(_POOLS, str(threads)))
    if not needs_main:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(pipe: Connection, driver: int, threads: int) -> None:
    """Receive the work, then tasks until the pipe ends; each is answered by its packed outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver stops its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_follow, args=(driver,), daemon=True).start()
    try:
        try:
            import torch

            work = plain.named(pipe.recv_bytes().decode())
            torch.set_num_threads(threads)
        except Exception as error:
            return pipe.send_bytes(described(error).encode())
        pipe.send_bytes(_READY)
        while True:
            message = pipe.recv_bytes()
            pipe.send_bytes(performed(work, message[8:], int.from_bytes(message[:8]), threads))
    except (EOFError, OSError):
        return None  # the driver has closed the pipe, or is gone


def _follow(driver: int) -> None:
    """End this process when its driver is gone, even in the middle of a task."""
    while os.getppid() == driver:
        time.sleep(_WATCH)
    os._exit(1)
