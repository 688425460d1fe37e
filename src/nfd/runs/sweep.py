"""``Sweep`` trains the trials that are missing, and stores each as it ends. It may stop any time.

The driver is the only writer of its store. A trial is committed whole, so that a sweep that was
stopped, by any cause, and started again holds what an uninterrupted one holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from nfd.core.checks import check_count, check_device, check_flag
from nfd.core.errors import InputError, InputTypeError, StateError, UsageWarning
from nfd.core.modes import undisturbed
from nfd.core.notices import tell
from nfd.core.tables import LogClock, bar
from nfd.core.words import listed, plural
from nfd.families.family import Family
from nfd.runs.executors import Executor, Inline, executor_named
from nfd.runs.task import Task
from nfd.runs.trial import CODE, Trial, hashed
from nfd.store import Record, Store

K = TypeVar("K")
_OF_INPUT = {kind.__name__: kind for kind in (InputError, InputTypeError)}


class Sweep:
    """Where trials are trained and kept. All verbs take one, and share what it holds.

    Args:
        out: directory for ``runs.sqlite``, made if missing; the same call continues there after a
            stop. None keeps the trials in memory while the sweep is open.
        workers: number of processes; by default trials are trained in this one.
        executor: ``"processes"``, ``"inline"``, ``"ray"``, ``"slurm"``, or one with options such as
            ``nfd.Ray(...)`` or ``nfd.Slurm(...)``; it changes no number.
        device: where trials are trained; by default where the first batch lies.
        progress: whether to show a bar where stderr is a terminal.

    Raises:
        ValueError, TypeError: naming the argument.
        BlockingIOError: when it is opened while another process drives a sweep in this directory.

    Example::

        with nfd.Sweep("out/mine") as sweep:
            check = nfd.check(make_model, batches, [16, 32], [2], lr=3e-3, sweep=sweep)
    """

    def __init__(
        self,
        out: str | Path | None = None,
        workers: int | None = None,
        executor: str | Executor | None = None,
        device: torch.device | str | None = None,
        progress: bool = True,
    ) -> None:
        self.out = out
        if workers is not None:
            workers = check_count("workers", workers)
            if not isinstance(executor, str):
                executor = "processes"
        if isinstance(executor, str):
            executor = executor_named(executor, workers=workers)
        self.executor: Executor = Inline() if executor is None else executor
        self.device = None if device is None else str(check_device(device))
        self.progress = check_flag("progress", progress)
        # Keys of the trials that were stored when it was opened, and which of them were asked for.
        self.held = set[str]()
        self.reused = set[str]()
        # While none of them was asked for, settings they differ in, such as "task" or "version".
        self.differing = list[str]()
        # Settings of the trials that were held, once they are compared, and the hashes of their
        # code by the settings without it. A search asks for a few trials at a time.
        self._held_configs: list[dict[str, Any]] | None = None
        self._held_code = dict[str, Mapping[str, str]]()
        # By the name of a family, trials that were held and not used, as they are of other code.
        self._of_other_code = dict[str, _OtherCode]()
        self._open = 0
        # Every verb enters: a minute without a line is one of that verb.
        self._clock = LogClock()
        self._store: Store | None = None

    # ---- open and closed

    def __enter__(self) -> Self:
        """Open it; a sweep that is open already stays so until its first ``with`` ends."""
        self._clock = LogClock()
        if not self._open:
            with ExitStack() as stack:
                self._store = Store(self.out)
                stack.callback(self._store.close)
                self.executor.__enter__()
                self.held = self._store.keys()
                self.reused = set()
                self._held_configs = None
                self._of_other_code = {}
                stack.pop_all()
        self._open += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open -= 1
        if not self._open:
            self.executor.__exit__(kind, error, trace)
            self.store.close()
            self._store = None

    @property
    def store(self) -> Store:
        """What was trained."""
        if self._store is None:
            raise StateError(
                "the sweep is closed. Use it in a with statement: with nfd.Sweep(...) as sweep."
            )
        return self._store

    # ---- trials

    @undisturbed()
    def run(self, trials: Sequence[Trial], label: str = "sweep") -> list[Record]:
        """Train the trials that are not yet stored, and return the records of all, in order.

        The records have no curves. Warns once of stored trials that have the same settings and
        other code: these are not used.
        """
        trials = _held(trials)
        keys = {trial.key for trial in trials}
        self.reused |= keys & self.held
        done = self.store.keys()
        missing = {trial.key: trial for trial in trials if trial.key not in done}
        if missing:
            if self.held:
                self._compare(list(missing.values()))
            costliest_first = sorted(missing.values(), key=lambda trial: -trial.cost)
            try:
                self._train(costliest_first, len(keys), label)
            except KeyboardInterrupt as stop:
                stop.add_note(self._kept())
                raise
        records = {key: self.store.record(key) for key in keys}
        return [records[trial.key] for trial in trials]

    def run_all(
        self, plans: Mapping[K, Sequence[Trial]], label: str = "sweep"
    ) -> dict[K, list[Record]]:
        """Run several lists of trials at once, so that all cores have work to the end.

        Raises:
            RuntimeError: if a trial could not be trained (one that diverges is trained). Errors of
                this library come first in the message; without any it is a ``StateError``.
        """
        records = self.run(list(chain.from_iterable(plans.values())), label)
        in_order = iter(records)
        return {name: [next(in_order) for _ in trials] for name, trials in plans.items()}

    def missing(self, trials: Iterable[Trial]) -> int:
        """Count the trials that are not yet stored."""
        return len({trial.key for trial in _held(trials)} - self.store.keys())

    def record(self, trial: Trial) -> Record:
        """Return the record of a stored trial, with its curves."""
        return replace(self.store.record(trial.key), curves={**self.store.curves(trial.key)})

    def curves(self, trial: Trial) -> dict[str, Tensor]:
        """Return all curves of a trial, by name."""
        return self.store.curves(trial.key)

    @property
    def holds_other_code(self) -> bool:
        """Whether stored trials were not used because they are of other code."""
        return bool(self._of_other_code)

    def notes(self, family: Family) -> list[str]:
        """Say which trials of a family were stored and not used, in sentences."""
        other = self._of_other_code.get(family.name)
        if other is None:
            return []
        return [other.sentence(family.name, self.out)]

    def _compare(self, missing: Sequence[Trial]) -> None:
        """Note in what stored trials differ from these, and warn where only the code differs."""
        if self._held_configs is None:
            records = self.store.records()
            self._held_configs = [record.config for record in records if record.key in self.held]
            self._held_code = {_without_code(c): c.get(CODE, {}) for c in self._held_configs}
        if not self.reused:
            self.differing = list[str]()
            for name, value in missing[0].experiment.items():
                if all(config.get(name) != value for config in self._held_configs):
                    self.differing.append(name)
        for trial in missing:
            stored = self._held_code.get(_without_code(trial.settings))
            if stored is not None:
                self._of_other_code.setdefault(trial.family.name, _OtherCode()).add(
                    stored, trial.code
                )
        for name, other in self._of_other_code.items():
            if not other.was_warned_of:
                other.was_warned_of = True
                tell(other.sentence(name, self.out), UsageWarning)

    def _kept(self) -> str:
        """Say what a stop leaves."""
        trained = plural(len(self.store.keys()), "training")
        if self.out is None:
            return f"{trained} of this sweep are lost: nfd.Sweep(out) would keep them."
        verb = "is" if trained.startswith("1 ") else "are"
        return f"{trained} {verb} stored in {self.out}."

    def _train(self, missing: Sequence[Trial], total: int, label: str) -> None:
        done = total - len(missing)
        diverged = 0
        tasks = [partial(trial.train, self.device) for trial in missing]
        work = sum(trial.cost for trial in missing)
        with (
            bar(
                work, f"{label}: {done} of {total} trainings", self.progress, self._clock
            ) as advance,
            closing(self.executor.run(tasks)) as ended,
        ):
            for index, trained, error in ended:
                record: Record = trained if error is None else missing[index].failed(error)
                # The others would fail alike.
                if record.status == "failed":
                    raise failure(record)
                self.store.add(record)
                done += 1
                diverged += record.status == "diverged"
                state = f"{label}: {done} of {total} trainings"
                if diverged:
                    state += f", {diverged} diverged"
                advance(missing[index].cost, state)


def _held(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials of tasks whose hashes are read now, once for each task."""
    tasks = dict[int, Task]()
    return [trial.held(tasks) for trial in trials]


def as_sweep(sweep: Sweep | None) -> Sweep:
    """Return the sweep that a verb was given, or make one in memory."""
    if sweep is None:
        return Sweep()
    if not isinstance(sweep, Sweep):
        hint = ""
        if isinstance(sweep, str | Path):
            hint = f" Pass nfd.Sweep({str(sweep)!r})."
        raise InputTypeError(
            f"sweep must be an nfd.Sweep or None; got {sweep!r} of {type(sweep).__name__}.{hint}"
        )
    return sweep


@dataclass
class _OtherCode:
    """Stored trials of a family that differ from those asked for only in code."""

    count: int = 0
    parts: set[str] = field(default_factory=set)
    was_recorded: bool = True
    was_warned_of: bool = False

    def add(self, stored: Mapping[str, str], asked: Mapping[str, str]) -> None:
        """Count a trial, by the hashes of its stored code and of the code that was asked for."""
        self.count += 1
        self.was_recorded = self.was_recorded and bool(stored)
        self.parts |= {name for name in {**stored, **asked} if stored.get(name) != asked.get(name)}

    def sentence(self, family: str, out: str | Path | None) -> str:
        """Say which runs are not used, why, and what to do."""
        runs = f"{self.count} runs"
        them = "they were"
        if self.count == 1:
            runs = "1 run"
            them = "it was"
        stored = f"{runs} of {family} stored in {out}"
        trained = f"so {them} not used, and trained anew"
        if not self.was_recorded:
            return f"Note: {stored} came from a version of nfd that did not record code, {trained}."
        return (
            f"Note: the code of {listed(sorted(self.parts))} has changed since {stored}, "
            f"{trained}. If no change was meant, restore the code: the stored runs are then used "
            "again."
        )


def _without_code(settings: Mapping[str, Any]) -> str:
    """Name a trial by its settings but for its code."""
    return hashed({name: value for name, value in settings.items() if name != CODE})


def failure(broken: Record) -> Exception:
    """Return the error for a trial that failed.

    It is an error of input where the trial's was; otherwise it says what went wrong in training.
    """
    whole = broken.error or "no result"
    kind, _, words = whole.partition(": ")
    if broken.trace is None and kind in _OF_INPUT:
        return _OF_INPUT[kind](words)
    if broken.trace is None:
        return StateError(_ended_by(whole))
    # Only the first line of a mistake of ours: the others stand beside its trace.
    first, *lines = whole.splitlines()
    error = RuntimeError(_ended_by(first))
    error.add_note("\n".join(["In the process that trained it:", *lines, broken.trace]))
    return error


def _ended_by(reason: str) -> str:
    return (
        f"A run could not be trained, so the sweep ended: {reason.rstrip('.')}. "
        "The rest is kept; start again to try it again."
    )


def upset_in(record: Record) -> bool:
    """Whether training diverged, or its loss rose to twice the first on the way."""
    return (
        record.status == "diverged"
        or record.metrics["highest_loss"] > 2 * record.metrics["first_loss"]
    )
