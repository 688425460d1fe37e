"""A sweep: what is missing is trained, group by group, and stored as it comes; a sweep can stop at any time.

The driver is the only writer of its store. A group is committed whole, so that a sweep that was stopped, by whatever
cause, and started again holds what an uninterrupted one holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from nfd.core.progress import Bar, bar
from nfd.experiment.runs import dataset_of, failed, run_key, train_group
from nfd.experiment.settings import RunConfig
from nfd.store.rows import Record
from nfd.store.store import Store
from nfd.sweep.executors.executor import Executor, Outcome
from nfd.sweep.executors.inline import Inline
from nfd.sweep.grid import Group, groups
from nfd.sweep.trackers import Tracker


class Sweep:
    """Runs in the store of ``directory``, a context manager; one at a time may be open there.

    Args:
        directory: holds ``runs.sqlite``; made if it is not there.
        executor: where runs are trained; this process by default. It changes no number.
        trackers: told of every run that is stored.
        progress: show a bar when stderr is a terminal.

    Raises:
        BlockingIOError: when another process drives a sweep in this directory.
        ValueError: when the directory cannot be written or its store cannot be read.
    """

    def __init__(
        self,
        directory: str | Path,
        executor: Executor | None = None,
        *,
        trackers: Sequence[Tracker] = (),
        progress: bool = False,
    ) -> None:
        self.store = Store.open(directory)
        self.executor: Executor = Inline() if executor is None else executor
        self.trackers, self.progress = trackers, progress
        self.store.forget(self.store.keys(status="failed"))  # what failed is tried again

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
        for tracker in self.trackers:
            tracker.close()

    def run(self, configs: Iterable[RunConfig], label: str = "sweep") -> list[Record]:
        """Train those of these runs that are not stored; returns the records of all, in order, without curves."""
        wanted = list(configs)
        names = [run_key(config, dataset_of(config, progress=self.progress).fingerprint) for config in wanted]
        missing = groups(wanted, self.store.keys())
        if missing:
            with bar(label, enabled=self.progress) as shown:
                _Run(self, missing, label, shown).finish()
        records = {record.key: record for record in self.store.records()}
        return [records[name] for name in names]


class _Run:
    """The training of some groups, as it is shown."""

    def __init__(self, sweep: Sweep, missing: Sequence[Group], label: str, shown: Bar) -> None:
        self.sweep, self.groups, self.label, self.shown = sweep, missing, label, shown
        self.total = sum(len(group.keys) for group in missing)
        self.running: set[int] = set()
        self.done = self.diverged = self.failed = 0
        shown.plan(sum(group.cost for group in missing), self._said())

    def finish(self) -> None:
        tasks = [[config.model_dump() for config in group.configs] for group in self.groups]
        with closing(self.sweep.executor.run(train_group, tasks, self._started)) as outcomes:
            for outcome in outcomes:
                self._keep(outcome)

    def _started(self, index: int) -> None:
        self.running.add(index)
        self.shown.plan(0.0, self._said())

    def _keep(self, outcome: Outcome[list[Record]]) -> None:
        group = self.groups[outcome.index]
        records = outcome.value
        if records is None:
            error = outcome.error or "no result"
            pairs = zip(group.configs, group.keys, strict=True)
            records = [failed(config, key, group.key, error) for config, key in pairs]
        self.sweep.store.add(records)
        for tracker in self.sweep.trackers:
            for record in records:
                tracker.log(record)
        self.running.discard(outcome.index)
        self.done += len(records)
        self.diverged += sum(record.status == "diverged" for record in records)
        self.failed += sum(record.status == "failed" for record in records)
        self.shown.advance(group.cost)
        self.shown.plan(0.0, self._said())

    def _said(self) -> str:
        running = sum(len(self.groups[index].keys) for index in self.running)
        parts = [f"{self.label}: {self.done} of {self.total} runs", f"{running} running"]
        parts += [f"{self.diverged} diverged"] if self.diverged else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)
