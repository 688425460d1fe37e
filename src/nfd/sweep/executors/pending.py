"""The tasks of one run that wait for a worker, and how often each has lost one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from nfd.sweep.executors.executor import Outcome, lost, sendable


class Pending:
    """Hands out tasks in their order, those whose worker was lost again at the end, up to ``attempts`` times."""

    def __init__(self, tasks: Sequence[Any], started: Callable[[int], None], attempts: int) -> None:
        self._tasks, self._started, self._attempts = tasks, started, attempts
        self._waiting = deque(range(len(tasks)))
        self._losses: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> tuple[int, bytes] | Outcome[Any]:
        """The index of the next task and the task, packed, or the outcome of one that cannot be sent."""
        index = self._waiting.popleft()
        if not self._losses[index]:
            self._started(index)
        packed = sendable(self._tasks[index], index)
        return packed if isinstance(packed, Outcome) else (index, packed)

    def lost(self, index: int, ending: str) -> Outcome[Any] | None:
        """Let a task whose worker was lost wait again; its outcome when it was tried often enough."""
        self._losses[index] += 1
        if self._losses[index] == self._attempts:
            return lost(index, self._attempts, ending)
        self._waiting.append(index)
        return None
