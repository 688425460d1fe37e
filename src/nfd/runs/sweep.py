"""A sweep: what is missing is trained, group by group, and stored as it comes; a sweep can stop at any time.

The driver is the only writer of its store. A group is committed whole, so that a sweep that was stopped, by any
cause, and started again holds what an uninterrupted one holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError, StateError, check_device, check_several, described
from nfd.core.progress import Bar, bar
from nfd.runs.executors.executor import Executor, Inline, Outcome
from nfd.runs.forecast import Forecast, Rehearsal, Stage
from nfd.runs.records import runs_of
from nfd.runs.run import Group, Run, groups
from nfd.runs.settings import RunConfig
from nfd.runs.trackers import Tracker
from nfd.store.rows import Record
from nfd.store.store import Store

K = TypeVar("K")


class Sweep:
    """Train runs and store them in a directory, so that a stopped sweep can continue. Use it as a context manager.

    Args:
        directory: for ``runs.sqlite``; made if missing. None keeps the runs in memory while the sweep is open.
        executor: where runs are trained; by default this process. It does not change any number.
        device: where the executor's workers compute. Another device changes numbers by rounding, and deferred weights
            are other draws of the same law.
        trackers: log every stored run. If one fails, you get a warning, and the next start logs what it missed.
        progress: a bar when stderr is a terminal, with the time left: predicted before training begins, from the first
            steps of some networks, and corrected by the networks that were trained since. True also prints a line every
            half minute where it is none; False shows nothing.

    Raises:
        BlockingIOError: when another process drives a sweep in this directory.
        ValueError: when the directory cannot be written or its store cannot be read.

    Example::

        with nfd.Sweep(None) as sweep:
            for record in sweep.run(nfd.grid(width=[8, 16], depth=2, steps=2, batch=4)):
                print(record.config["width"], record.metrics["test_loss"])
    """

    def __init__(
        self,
        directory: str | Path | None,
        executor: Executor | None = None,
        *,
        device: str = "cpu",
        trackers: Sequence[Tracker] = (),
        progress: bool | None = None,
    ) -> None:
        watching = check_several("trackers", trackers, "trackers")
        self.device = str(check_device(device))
        self.store = Store.in_memory() if directory is None else Store.open(directory)
        self.directory = None if directory is None else self.store.path.parent
        self.executor: Executor = Inline() if executor is None else executor
        self.trackers, self.progress = watching, progress
        self.forecast = Forecast()
        self.again = self.store.keys(status="failed")  # what failed before is tried again, once, when it is asked for

    def __enter__(self) -> Self:
        self.executor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.executor.__exit__(kind, error, trace)
        self.store.close()
        self._each_tracker(lambda tracker: tracker.close())

    @undisturbed()
    def run(self, runs: Iterable[RunConfig | Run], label: str = "sweep") -> list[Record]:
        """Train the runs that are not yet stored, and return the records of all, in order, without curves.

        Args:
            runs: such as ``nfd.grid`` returns. label: of the progress bar.

        Raises:
            RuntimeError: as ``run_all``.
        """
        wanted = list(runs_of(runs, progress=self.progress))
        keys = {run.key for run in wanted}
        if self.trackers:
            self._each_tracker(lambda tracker: self._catch_up(tracker, keys))
        missing = groups(wanted, self._trained)
        if missing:
            with bar(label, enabled=self.progress) as shown:
                _Training(self, missing, len(keys), label, shown).finish()
        records = {key: self.store.record(key) for key in keys}
        return [records[run.key] for run in wanted]

    def run_all(self, plans: Mapping[K, Sequence[RunConfig | Run]], label: str = "sweep") -> dict[K, list[Record]]:
        """As ``run``, for several lists of runs at once, so that all cores have work to the end.

        Raises:
            RuntimeError: if a run could not be trained (a run that diverges is trained). Errors of this library come
                first in the message; without any it is a ``StateError``.
        """
        records = self.run([run for runs in plans.values() for run in runs], label)
        if broken := [record for record in records if record.status == "failed"]:
            raise failure(broken, f"{len(broken)} of {len(records)} runs could not be trained")
        in_order = iter(records)
        return {name: [next(in_order) for _ in runs] for name, runs in plans.items()}

    def missing(self, runs: Iterable[RunConfig | Run]) -> int:
        """The number of these runs that are not yet stored."""
        return len({run.key for run in runs_of(runs)} - self._trained)

    @property
    def _trained(self) -> set[str]:
        return self.store.keys() - self.again

    def keep(self, records: Sequence[Record]) -> None:
        """Store a group of records, in place of earlier ones that failed, and pass them to the trackers."""
        keys = {record.key for record in records}
        self.store.forget(keys & self.again)
        self.again -= keys
        self.store.add(records)
        self._each_tracker(lambda tracker: _tell(tracker, records))

    def _catch_up(self, tracker: Tracker, keys: Set[str]) -> None:
        """Tell a tracker of stored runs that it has not heard of: it is new, failed, or an interruption came first."""
        unheard = (self.store.keys() & keys) - tracker.known()
        _tell(tracker, (replace(self.store.record(key), curves={**self.store.curves(key)}) for key in unheard))

    def _each_tracker(self, tell: Callable[[Tracker], object]) -> None:
        for tracker in list(self.trackers):
            try:
                tell(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                warnings.warn(
                    f"{tracker} failed ({described(error)}). The sweep continues without it; start it again with this "
                    "tracker, and it logs what it missed.",
                    RuntimeWarning,
                    stacklevel=2,
                )


def _tell(tracker: Tracker, records: Iterable[Record]) -> None:
    for record in records:
        tracker.log(record)


def failure(broken: Sequence[Record], outcome: str) -> RuntimeError:
    """The error for runs that failed; where one did by a mistake of ours, it is no error of input, and shows where."""
    mistake = next((record for record in broken if record.trace is not None), None)
    lines = ((mistake or broken[0]).error or "no result").splitlines()
    message = f"{outcome}: {lines[0].rstrip('.')}. The rest is kept; start again to try them again."
    if mistake is None:
        return StateError(message)
    error = RuntimeError(message)
    error.add_note("\n".join(["In the process that trained it:", *lines[1:], mistake.trace or ""]))
    return error


def upset_in(record: Record) -> bool:
    """Whether training diverged, or its loss rose to twice the first on the way."""
    return record.status == "diverged" or record.metrics["highest_loss"] > 2 * record.metrics["first_loss"]


def _trained_on(device: str, task: Group | Rehearsal) -> list[Record] | float:
    """What a worker does: one function for both, since workers of another function are not used again."""
    return task.train(device)


class _Training:
    """The training of some groups, as it is shown: before it begins a few are rehearsed, which tells the time left."""

    def __init__(self, sweep: Sweep, missing: Sequence[Group], total: int, label: str, shown: Bar) -> None:
        self.sweep, self.groups, self.label, self.shown = sweep, missing, label, shown
        self.total = total
        self.work = partial(_trained_on, sweep.device)
        self.stage = Stage(missing, sweep.forecast)
        self.done = total - sum(len(group.keys) for group in missing)
        self.diverged = self.failed = 0
        shown.plan(sum(group.cost for group in missing), self._status())

    def finish(self) -> None:
        if self.shown.is_shown:
            self._rehearse()
        with closing(self.sweep.executor.run(self.work, self.groups, self._started)) as outcomes:
            for outcome in outcomes:
                self._keep(cast("Outcome[list[Record]]", outcome))

    def _rehearse(self) -> None:
        """Time the first steps of some groups; what goes wrong there shows when they are trained."""
        for wave in self.stage.waves(self.sweep.executor.slots):
            for outcome in self.sweep.executor.run(self.work, wave):
                if outcome.value is not None:
                    self.sweep.forecast.rehearsed(wave[outcome.index].group, cast("float", outcome.value))
        self._show()

    def _started(self, index: int) -> None:
        self.stage.started(index)
        self._show()

    def _show(self) -> None:
        if self.shown.is_shown:
            self.shown.expect(self.stage.remaining(self.sweep.executor.slots))
        self.shown.plan(0.0, self._status())

    def _keep(self, outcome: Outcome[list[Record]]) -> None:
        group = self.groups[outcome.index]
        records = group.failed(outcome.error or "no result") if outcome.value is None else outcome.value
        if tuple(record.key for record in records) != group.keys:
            raise InputError(
                "The data of these runs changed while the sweep was running. What was stored before is of the old "
                "data; start the sweep again for the new."
            )
        self.sweep.keep(records)
        broken = [record for record in records if record.status == "failed"]
        if broken and group.runs[0].ends_the_sweep:
            raise failure(broken, "A run could not be trained, so the sweep ended")
        whole = any(record.status == "done" for record in records)  # those that diverged may have ended early
        self.stage.ended(outcome.index, sum(record.seconds for record in records) if whole else None)
        self.done += len(records)
        self.diverged += sum(record.status == "diverged" for record in records)
        self.failed += len(broken)
        self.shown.advance(group.cost)
        self._show()

    def _status(self) -> str:
        running = sum(len(self.groups[index].keys) for index in self.stage.running)
        parts = [f"{self.label}: {self.done} of {self.total} runs", f"{running} running"]
        parts += [f"{self.diverged} diverged"] if self.diverged else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)
