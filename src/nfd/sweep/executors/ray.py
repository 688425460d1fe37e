"""Tasks on the nodes of a Ray cluster, or of a Ray started here; needs ``pip install 'nfd[ray]'``."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from nfd.core.errors import MissingError, StateError, check_count, check_real
from nfd.sweep.executors.executor import Outcome, described, performed, received, unnoticed
from nfd.sweep.executors.pending import Pending

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2  # tasks handed to Ray for each slot: none waits for the driver, and 10,000 do not flood the cluster
_LOOK = 1.0  # seconds after which a change of the cluster is noticed


class Ray:
    """Runs each task with ``threads`` cores and ``gpus`` GPUs (a fraction shares one), wherever Ray has them.

    ``address`` None joins the Ray that this process or machine has, or starts one for as long as a run lasts.
    """

    def __init__(self, address: str | None = None, threads: int = 1, gpus: float = 0.0, attempts: int = 3) -> None:
        self.address = address
        self.threads = check_count("threads", threads)
        self.gpus = check_real("gpus", gpus, least=0.0)
        self.attempts = check_count("attempts", attempts)
        self._ray, self._ours = _imported(), False

    @property
    def slots(self) -> int:
        """How many tasks the nodes have room for now; asking connects to Ray."""
        self._connect()
        return sum(self._room(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[R], None, None]:
        """Outcomes in order of completion; see ``Executor.run``.

        Raises:
            RuntimeError: if no node has room for a task, or the nodes cannot import nfd or ``work``.
        """
        flight = _Flight(self, self._ray, work, tasks, started)
        try:
            if tasks and not self.slots:
                raise StateError(
                    f"No node of Ray has room for a task with threads={self.threads} and gpus={self.gpus:g}; there are "
                    f"{[node['Resources'] for node in self._ray.nodes()]}. Ask for less, or add a node."
                )
            while flight.pending or flight.handed:
                yield from flight.advance()
        finally:
            for handed in flight.handed:
                self._ray.cancel(handed, force=True)
            if self._ours:
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


class _Flight:
    """The tasks of one run that wait, and those handed to Ray.

    Attempts are counted here: Ray's ``max_retries`` leaves out tasks killed for memory, which it tries for ever.
    """

    def __init__(
        self, limits: Ray, ray: Any, work: Callable[..., Any], tasks: Sequence[Any], started: Callable[[int], None]
    ) -> None:
        self.limits, self.ray, self.work = limits, ray, work
        self.pending = Pending(tasks, started, limits.attempts)
        self.handed: dict[Any, int] = {}
        self.remote = ray.remote(num_cpus=limits.threads, num_gpus=limits.gpus, max_retries=0)(performed)
        names = ("WorkerCrashed", "NodeDied", "OutOfMemory", "ObjectLost", "LocalRayletDied")
        self.losing = tuple(getattr(ray.exceptions, f"{name}Error") for name in names)

    def advance(self) -> list[Outcome[Any]]:
        """Keep the cluster supplied, then wait for the next outcomes."""
        outcomes = self._fill()
        if not outcomes and self.handed:
            ready, _ = self.ray.wait(list(self.handed), timeout=_LOOK)
            outcomes = [outcome for handed in ready if (outcome := self._heard(handed))]
        return outcomes

    def _fill(self) -> list[Outcome[Any]]:
        """Hand tasks to Ray; those that cannot be sent are outcomes."""
        unsent = list[Outcome[Any]]()
        for _ in range(min(len(self.pending), _AHEAD * max(1, self.limits.slots) - len(self.handed))):
            task = self.pending.next()
            if isinstance(task, Outcome):
                unsent.append(task)
            else:
                index, packed = task
                self.handed[self.remote.remote(self.work, packed, index, self.limits.threads)] = index
        return unsent

    def _heard(self, handed: Any) -> Outcome[Any] | None:
        """The outcome of a task that ended; None if it lost its worker and is to be tried again."""
        index = self.handed.pop(handed)
        try:
            return received(self.ray.get(handed), index)
        except self.losing as error:
            return self.pending.lost(index, described(error).splitlines()[0].rstrip("."))
        except self.ray.exceptions.RayTaskError as error:
            raise StateError(
                f"A worker of Ray could not import the work: {described(error).splitlines()[-1]}. "
                "Install the same nfd on every node, and put the work into a module that is there, too."
            ) from error


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingError(
            f"The executor 'ray' needs Ray ({error}). Install it with: pip install 'nfd[ray]'"
        ) from error
