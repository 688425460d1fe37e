"""What the commands that train many networks share: where they are trained, and how a sweep is stopped and started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from nfd.cli.ending import INTERRUPTED
from nfd.cli.options import DeviceOptions
from nfd.core.errors import UsageError
from nfd.core.names import ExecutorName, TrackerName
from nfd.runs.config import Count
from nfd.store.database import FILE

if TYPE_CHECKING:
    from nfd.runs.executors import Executor
    from nfd.runs.sweep import Sweep

_LOADED = "nfd.runs.replicates"  # with all that a run of any kind needs


class ExecutorOptions(DeviceOptions):
    """Options that change no number: where networks are trained."""

    executor: ExecutorName = "processes"
    """where networks are trained: processes of this machine, inline (this process), or ray (a cluster)"""
    workers: Count | None = None
    """number of processes; by default as many as the cores allow"""
    threads: Count = 1
    """threads of each"""
    address: str | None = None
    """address of a Ray cluster; by default one is started here"""
    gpus: Annotated[float, Field(ge=0, le=64)] = 0.0
    """GPUs that a task takes, for Ray's placement"""

    @cached_property
    def chosen_executor(self) -> Executor:
        """The executor that the options describe."""
        from nfd.runs.executors import executor_named

        if self.gpus and self.device in ("cpu", None):
            idle = "a computation on the CPU" if self.device is None else "--device cpu"
            raise UsageError(f"--gpus {self.gpus:g} reserves GPUs, which {idle} leaves idle. Add --device cuda.")
        return executor_named(
            self.executor, workers=self.workers, threads=self.threads, address=self.address, gpus=self.gpus
        )

    def sweep(self, directory: Path) -> Sweep:
        """The sweep in ``directory``, ready to run."""
        from nfd.runs.sweep import Sweep
        from nfd.runs.trackers import tracker_named

        trackers = [tracker_named(name, directory) for name in self.trackers()]
        return Sweep(directory, self.chosen_executor, device=self.device, trackers=trackers, progress=True)

    def trackers(self) -> Sequence[str]:
        """The names of the trackers that log every run."""
        return ()

    def runs_in(self, directory: Path) -> Path:
        """Where the runs are kept of a command that writes to ``directory``."""
        return directory

    def guarded(self, directory: Path, work: Callable[[], int]) -> int:
        runs = self.runs_in(directory)
        with self.chosen_executor as executor:
            if self.trains and not (runs / FILE).exists():  # a command that goes on may have nothing to train
                executor.prepare(_LOADED)
            return resumable(runs, work)


class SweepOptions(ExecutorOptions):
    """Options that change no number: executors and trackers."""

    track: tuple[TrackerName, ...] = ()
    """trackers to log every run to: tensorboard, wandb (offline)"""

    def trackers(self) -> Sequence[str]:
        return self.track


def resumable(directory: Path, work: Callable[[], int]) -> int:
    """``work``'s exit code, or 130 and where things stand when it is interrupted."""
    from nfd.core.interruptions import uninterrupted

    try:
        with uninterrupted():  # inside an import an interruption can be lost
            import nfd.runs.sweep  # noqa: F401
        return work()
    except KeyboardInterrupt:
        state = f"{_kept(directory)} kept in {directory}"
        print(f"nfd: interrupted; {state}. The same command continues from there.", file=sys.stderr)
        return INTERRUPTED


def _kept(directory: Path) -> str:
    from nfd.store.store import Store

    try:
        with Store.read(directory) as store:
            count = len(store)
    except (OSError, UsageError):  # it came before the store was made
        count = 0
    return f"{count} run{' is' if count == 1 else 's are'}"
