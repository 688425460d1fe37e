"""Tasks on the nodes of a Ray cluster, or of a Ray started here; needs ``pip install 'nfd[ray]'``."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self, TypeVar, cast

from nfd.core.errors import MissingError, StateError, check_count, check_real, described
from nfd.runs.executors.attempts import Lost, outcomes
from nfd.runs.executors.executor import Executor, Outcome, unnoticed
from nfd.runs.executors.messages import answer, packed_function, unpacked

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2  # tasks handed to Ray for each slot: none waits for the driver, and 10,000 do not flood the cluster
_LOOK = 1.0  # seconds after which a change of the cluster is noticed
_CANCELLATIONS = 10  # of a task that goes on


class Ray(Executor):
    """Runs each task with ``threads`` cores and ``gpus`` GPUs (a fraction shares one), wherever Ray has them.

    ``address`` None joins the Ray that this process or machine has, or starts one for as long as a run or the ``with``
    statement lasts.
    """

    def __init__(self, address: str | None = None, threads: int = 1, gpus: float = 0.0, attempts: int = 3) -> None:
        self.address = address
        self.threads = check_count("threads", threads)
        self.gpus = check_real("gpus", gpus, least=0.0)
        self.attempts = check_count("attempts", attempts)
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingError(
                f"The executor 'ray' needs Ray ({error}). Install it with: pip install 'nfd[ray]'"
            ) from error
        self._ours = False
        self._statements = 0  # ``with`` statements that this executor is in

    def __enter__(self) -> Self:
        self._statements += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._statements -= 1
        self._leave()

    @property
    def slots(self) -> int:
        """How many tasks the nodes have room for now; asking connects to Ray."""
        self._connect()
        return sum(self._room(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Outcomes in order of completion; see ``Executor.run``.

        Raises:
            TypeError: if ``function`` cannot be sent to workers.
            RuntimeError: if no node has room for a task, or the nodes cannot import nfd or ``function``.
        """
        try:
            if tasks and not self.slots:
                raise StateError(
                    f"No node of Ray has room for a task with threads={self.threads} and gpus={self.gpus:g}; there are "
                    f"{[node['Resources'] for node in self._ray.nodes()]}. Ask for less, or add a node."
                )
            yield from outcomes(_Cluster(self, self._ray, function), tasks, started, self.attempts)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Shut a Ray down that was started here, once nothing is to follow."""
        if self._ours and not self._statements:
            self._ray.shutdown()
            self._ours = False

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
            self._ray.init(self.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            self._ours = True
        elif self.address not in (None, "auto", here := self._ray.get_runtime_context().gcs_address):
            raise StateError(
                f"This process is connected to the Ray at {here}; got address={self.address!r}. "
                "Call ray.shutdown() before, or leave the address out."
            )

    def _room(self, resources: dict[str, float]) -> int:
        cores = int(resources.get("CPU", 0.0) // self.threads)
        return min(cores, int(resources.get("GPU", 0.0) / self.gpus + 1e-9)) if self.gpus else cores


class _Cluster:
    """The workers of one run, which Ray places.

    Attempts are not left to Ray: its ``max_retries`` leaves out tasks killed for memory, which it tries for ever.
    """

    def __init__(self, executor: Ray, ray: Any, function: Callable[..., Any]) -> None:
        self._executor, self._ray, self._function = executor, ray, packed_function(function)
        self._handed: dict[Any, int] = {}
        self._answer = ray.remote(num_cpus=executor.threads, num_gpus=executor.gpus, max_retries=0)(_answer)
        names = ("WorkerCrashed", "NodeDied", "OutOfMemory", "ObjectLost", "LocalRayletDied")
        self._losses = tuple(getattr(ray.exceptions, f"{name}Error") for name in names)

    @property
    def room(self) -> int:
        return _AHEAD * max(1, self._executor.slots) - len(self._handed)

    def hand(self, index: int, task: bytes) -> None:
        self._handed[self._answer.remote(self._function, task, index, self._executor.threads)] = index

    def answers(self) -> Iterator[tuple[int, bytes | Lost]]:
        ready, _ = self._ray.wait(list(self._handed), timeout=_LOOK)
        for handed in ready:
            yield self._handed.pop(handed), self._answered(handed)

    def stop(self) -> None:
        """Cancel what was handed over, again if it continues: Ray can lose the cancellation of a task that begins."""
        going = list(self._handed)
        for _ in range(_CANCELLATIONS):
            if not going:
                return
            for handed in going:
                self._ray.cancel(handed, force=True)
            _, going = self._ray.wait(going, num_returns=len(going), timeout=_LOOK)

    def _answered(self, handed: Any) -> bytes | Lost:
        try:
            return cast(bytes, self._ray.get(handed))
        except self._losses as error:
            return Lost(described(error).splitlines()[0].rstrip("."))
        except self._ray.exceptions.RayTaskError as error:
            raise StateError(
                f"A worker of Ray could not load the function: {described(error).splitlines()[-1]}. "
                "Install the same nfd on every node, and put the modules that the function needs there, too."
            ) from error


def _answer(function: bytes, task: bytes, index: int, threads: int) -> bytes:
    """``answer`` by a function that is packed, too."""
    return answer(unpacked(function), task, index, threads)
