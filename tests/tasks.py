"""Work for the tests of executors; workers import it by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.waiting import FOREVER, wait_for


def named(task: tuple[str, Any]) -> Any:
    """Call a function of this module: one run can hold tasks of every kind."""
    name, argument = task
    return globals()[name](argument)


def square(x: float) -> float:
    return x * x


def fail(text: str) -> None:
    raise ValueError(text)


def leave(code: int) -> None:
    sys.exit(code)


def quit_at_once(code: int) -> None:
    """End this process without a word."""
    os._exit(code)


def unsendable(_: Any) -> Any:
    return threading.Lock()


def killed_while_answering(mark: str) -> bytes:
    """Killed in the middle of sending the result, where it has not been before."""
    if Path(mark).exists():
        return b"whole"
    Path(mark).touch()
    write = Connection._send  # type: ignore[attr-defined]

    def write_half(pipe: Connection, content: bytes, *rest: Any) -> None:
        write(pipe, bytes(content)[: max(1, len(content) // 2)], *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = write_half  # type: ignore[attr-defined]
    return bytes(1_000_000)


def large(size: int) -> bytes:
    return bytes(size)


def touch(path: Path) -> None:
    path.touch()


def process(_: Any) -> int:
    """Where it is called."""
    return os.getpid()


def other_process(_: Any) -> int:
    """Another function that says where it is called."""
    return os.getpid()


def threads(_: Any) -> int:
    import torch

    return torch.get_num_threads()


def pools(_: Any) -> list[str | None]:
    return [os.environ.get(f"{name}_NUM_THREADS") for name in ("OMP", "MKL", "OPENBLAS")]


def logged(task: tuple[str, int, float]) -> int:
    """Write name and process to a file, work for a while, write the name again."""
    log, name, seconds = task
    with Path(log).open("a") as file:
        print("start", name, os.getpid(), file=file, flush=True)
        time.sleep(seconds)
        print("end", name, os.getpid(), file=file, flush=True)
    return name


def logged_until(task: tuple[str, int, str]) -> int:
    """The same, at work until a file is there."""
    log, name, over = task
    with Path(log).open("a") as file:
        print("start", name, os.getpid(), file=file, flush=True)
        wait_for(Path(over).exists)
        print("end", name, os.getpid(), file=file, flush=True)
    return name


def killed(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(mark: str) -> str:
    """Killed where it has not been before."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def met(task: tuple[str, int, int]) -> str:
    """Wait until so many of these tasks are at work at once; the node of Ray it was on."""
    import ray

    folder, name, count = task
    (Path(folder) / str(name)).touch()
    wait_for(lambda: len(list(Path(folder).iterdir())) >= count)
    return str(ray.get_runtime_context().get_node_id())


def orphan(mark: str) -> None:
    """Die and leave a child that keeps every pipe of this process open; ``mark`` is then its process."""
    child = os.fork()
    if child == 0:
        time.sleep(FOREVER)
        os._exit(0)
    Path(mark).write_text(str(child))
    os._exit(1)


def blocked_signals(_: Any) -> str:
    """What the processes of a task inherit."""
    code = "import signal; print(list(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
