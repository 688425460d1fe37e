"""``Slurm`` trains the trials of a sweep in jobs of Slurm, which submitit submits.

A job has several tasks and writes the outcome of each to a file as it ends. The driver reads these
files, so that a job that is killed costs only what it was at.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import time as clock
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from nfd.core.checks import check_choice, check_count
from nfd.core.errors import InputError, StateError
from nfd.runs.executors import Executor, Inline, Outcomes, Processes, Task, packed

# seconds between two looks at the files of the jobs
_LOOK = 0.5
# submitit and this module call them.
_PROGRAMS = ("sbatch", "srun", "sacct", "scancel")


class Slurm(Executor):
    """An executor that trains in jobs of Slurm: ``nfd.Sweep(out, executor=nfd.Slurm(...))``.

    Jobs share the trials that can be trained at once, one after the other. What a job has trained
    is stored as it ends. One that is killed, preempted or out of time is submitted again with the
    rest; a trial that two jobs could not end is an error with the path of the log. It needs
    submitit (``pip install 'nfd[slurm]'``) and Slurm's accounting, and starts from a login node.

    Args:
        time: limit of each job, in minutes or as ``"2:00:00"``.
        cpus: cores of each job. Without GPUs it trains as many networks at once.
        gpus: GPUs of each job; pass ``device="cuda"`` to the sweep.
        jobs: at most this many jobs at once.
        folder: for logs and data, which every node must see.
        setup: lines of shell before each job, such as ``["module load cuda"]``.
        cluster: ``"local"`` runs the jobs as processes of this machine, to try them.
        sbatch: other options of ``sbatch``, such as ``partition="gpu"``, ``mem="16G"`` or
            ``account="mine"``.

    Raises:
        ImportError: without submitit.
        ValueError: without the programs of Slurm, and for other values.
    """

    def __init__(
        self,
        *,
        time: int | str = 60,
        cpus: int = 1,
        gpus: int = 0,
        jobs: int = 8,
        folder: str | Path = "out/slurm",
        setup: Sequence[str] = (),
        cluster: Literal["slurm", "local"] = "slurm",
        **sbatch: str | int | bool,
    ) -> None:
        cpus = check_count("cpus", cpus)
        gpus = check_count("gpus", gpus, minimum=0)
        self._jobs = check_count("jobs", jobs)
        self._is_local = check_choice("cluster", cluster, ("slurm", "local")) == "local"
        minutes = _minutes(time)
        try:
            submitit: Any = importlib.import_module("submitit")
        except ImportError as error:
            raise ImportError(
                f"The executor 'slurm' needs submitit ({error}). Install it: pip install "
                "'nfd[slurm]'"
            ) from error
        missing = [program for program in _PROGRAMS if shutil.which(program) is None]
        if missing and not self._is_local:
            raise InputError(
                f"The executor 'slurm' needs {missing[0]}, which is not on the PATH. Start from a "
                "login node of the cluster, or try nfd.Slurm(cluster='local')."
            )
        self._networks_per_job = cpus if gpus == 0 else 1
        self.slots = self._jobs * self._networks_per_job
        self._folder = Path(folder).absolute()
        self._submitit = submitit.AutoExecutor(self._folder, cluster=cluster)
        self._submitit.update_parameters(
            name="nfd",
            timeout_min=minutes,
            cpus_per_task=cpus,
            gpus_per_node=gpus or None,
            slurm_array_parallelism=self._jobs,
            slurm_setup=list(setup),
            slurm_additional_parameters=sbatch,
        )

    def run(self, tasks: Sequence[Task]) -> Outcomes:
        count = min(self._jobs, len(tasks))
        # The costliest tasks come first: deal them out like cards.
        at_work = self._submit(tasks, [list(range(job, len(tasks), count)) for job in range(count)])
        lost_once = set[int]()
        try:
            while at_work:
                for job in list(at_work):
                    # Ask this first: an ended job has written all its outcomes.
                    has_ended = job.has_ended()
                    yield from job.new_outcomes()
                    if not has_ended:
                        continue
                    at_work.remove(job)
                    job.clear()
                    interrupted = set(job.waiting[: self._networks_per_job])
                    for index in sorted(interrupted & lost_once):
                        job.waiting.remove(index)
                        yield index, None, job.loss()
                    lost_once |= interrupted
                    if job.waiting:
                        at_work += self._submit(tasks, [job.waiting])
                clock.sleep(_LOOK)
        finally:
            for job in at_work:
                job.cancel(self._is_local)

    def _submit(self, tasks: Sequence[Task], shares: Sequence[list[int]]) -> list[_Job]:
        """Submit one job for each list of tasks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        messages = list[Path]()
        outcomes = list[list[Path]]()
        for share in shares:
            message = self._folder / f"{uuid.uuid4().hex}_tasks.pkl"
            message.write_bytes(packed([tasks[index] for index in share]))
            messages.append(message)
            outcomes.append([message.with_name(f"{message.stem}_{index}.pkl") for index in share])
        work = partial(_work, at_once=self._networks_per_job, search=list(sys.path))
        try:
            submitted = self._submitit.map_array(work, messages, outcomes)
        except RuntimeError as error:
            # Programs that fail are its FailedJobError, a RuntimeError.
            raise StateError(f"Slurm did not take the jobs: {str(error).strip()}") from error
        jobs = list[_Job]()
        for job, share, message, files in zip(submitted, shares, messages, outcomes, strict=True):
            jobs.append(_Job(job, list(share), message, dict(zip(share, files, strict=True))))
        return jobs


@dataclass
class _Job:
    """A job of the cluster and its tasks."""

    # submitit's
    job: Any
    # Tasks without an outcome, in the order in which they are done.
    waiting: list[int]
    message: Path
    outcomes: dict[int, Path]

    def has_ended(self) -> bool:
        """Whether nothing more will come from it. Also shows files of other nodes."""
        if self.job.done():
            return True
        # submitit waits for preempted jobs, as if each were queued again.
        return bool(self.job.state.startswith("PREEMPTED"))

    def new_outcomes(self) -> list[tuple[int, Any, str | None]]:
        """Read the outcomes that were not read before; errors come last, as they end a sweep."""
        ended = [index for index in self.waiting if self.outcomes[index].exists()]
        self.waiting = [index for index in self.waiting if index not in ended]
        read = [(index, *cloudpickle.loads(self.outcomes[index].read_bytes())) for index in ended]
        return sorted(read, key=lambda outcome: outcome[2] is not None)

    def loss(self) -> str:
        """Say that it ended before its task did, why, and where its log is."""
        log: Path = self.job.paths.stderr
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        words = [line.strip() for line in lines if line.strip()]
        last = f", and its log ends with {words[-1]!r}" if words else ""
        self.job.get_info(mode="force")
        return (
            f"JobLost: two jobs ended while they trained it; the state of job {self.job.job_id} is "
            f"{self.job.state}{last}. Pass more time= or mem= to nfd.Slurm if it ran out of them, "
            f"or read {log}"
        )

    def clear(self) -> None:
        """Remove all but its logs."""
        paths = self.job.paths
        data = (self.message, *self.outcomes.values(), paths.submitted_pickle, paths.result_pickle)
        for path in data:
            path.unlink(missing_ok=True)

    def cancel(self, is_local: bool) -> None:
        """End it, and leave no process of this machine."""
        if not is_local:
            self.job.cancel(check=False)
        elif not self.job.done():
            # Its own way is SIGINT, of which submitit's process prints a traceback.
            os.kill(int(self.job.job_id), signal.SIGTERM)
            self.job.wait()
        self.clear()


def _work(message: Path, outcomes: Sequence[Path], at_once: int, search: Sequence[str]) -> None:
    """Do the tasks of a message, as a job, and write each outcome to its file.

    ``search`` is where the driver finds modules, such as the one of the model beside its script.
    """
    # At its time limit submitit would raise an error inside of the task, and it ignores SIGTERM.
    # What has ended is in its file: end at once.
    for announced in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(announced, signal.SIG_DFL)
    sys.path.extend(path for path in search if path not in sys.path)
    tasks: list[Task] = cloudpickle.loads(message.read_bytes())
    # A job that Slurm has queued again did some of them before.
    waiting = [number for number, path in enumerate(outcomes) if not path.exists()]
    executor: Executor = Inline()
    if at_once > 1:
        executor = Processes(at_once)
    with executor:
        for number, value, error in executor.run([tasks[number] for number in waiting]):
            outcome = outcomes[waiting[number]]
            unfinished = outcome.with_suffix(".part")
            unfinished.write_bytes(packed((value, error)))
            os.replace(unfinished, outcome)


def _minutes(time: int | str) -> int:
    """Read a time limit in minutes, or as days, hours, minutes and seconds, as minutes."""
    if not isinstance(time, str):
        return check_count("time", time)
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", time)
    if parts is None:
        raise InputError(
            f"time must be minutes, or a text such as '2:00:00' or '1-12:00:00'; got {time!r}."
        )
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return check_count("time", 60 * (24 * days + hours) + minutes + (seconds > 0))
