"""How tasks go through workers that may be lost: the same for processes and for Ray."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nfd.runs.executors.executor import Outcome
from nfd.runs.executors.messages import outcome_of, packed_task


@dataclass(frozen=True)
class Lost:
    """The worker of a task is gone; ``ready``: it had begun to work, so that the task may be the cause."""

    reason: str
    ready: bool = True


class Crew(Protocol):
    """Workers of one run. A task is a pickle; so is the answer that its worker gives."""

    @property
    def room(self) -> int:
        """How many more tasks may be handed over now; at least one where no worker has any."""
        ...

    def hand(self, index: int, task: bytes) -> None:
        """Give a worker a task."""

    def answers(self) -> Iterable[tuple[int, bytes | Lost]]:
        """Wait for a moment; the tasks that ended in it, by index."""
        ...

    def stop(self) -> None:
        """End every worker, also one at work."""


def outcomes(
    crew: Crew, tasks: Sequence[Any], started: Callable[[int], None], attempts: int
) -> Generator[Outcome[Any], None, None]:
    """One outcome for each task, in order of completion; see ``Executor.run``.

    A task whose worker is lost waits again, behind the others, until it has lost ``attempts`` workers.
    """
    waiting, at_work, begun, losses = deque(range(len(tasks))), set[int](), set[int](), Counter[int]()
    ended = list[Outcome[Any]]()
    try:
        while waiting or at_work or ended:
            while waiting and crew.room > 0:
                index = waiting.popleft()
                task = packed_task(tasks[index], index)
                if isinstance(task, Outcome):
                    ended.append(task)
                    continue
                crew.hand(index, task)
                at_work.add(index)
                if index not in begun:
                    begun.add(index)
                    started(index)
            yield from ended  # every worker is at work while these are looked at
            ended = []
            for index, answer in crew.answers() if at_work else ():
                at_work.remove(index)
                if not isinstance(answer, Lost):
                    ended.append(outcome_of(answer, index))
                    continue
                losses[index] += answer.ready
                if losses[index] < attempts:
                    waiting.append(index)
                else:
                    ended.append(_given_up(index, attempts, answer.reason))
    finally:
        crew.stop()


def _given_up(index: int, times: int, reason: str) -> Outcome[Any]:
    return Outcome(
        index,
        error=f"WorkerLost: the worker of this task was lost {times} time{'s' * (times != 1)}, last because {reason}. "
        "If that was for memory, use fewer workers or a smaller size.",
    )
