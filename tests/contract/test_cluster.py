"""Sweeps in jobs of a cluster, by submitit's local executor: the same numbers, and errors that say
where the log is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract.common import ResidualMLP, batches, run, write_setup
from tests.waiting import PATIENCE

import nfd

FAMILY = nfd.Family(ResidualMLP, (8, 2), sample=batches(1, 4)[0][0])
TASK = nfd.Task(batches(2, 4))
TRIALS = [nfd.Trial(FAMILY, TASK, 8, 2, seed, 0.01) for seed in range(4)]


def trained(trials: list[nfd.Trial], out: Path, slurm: nfd.Slurm | None = None) -> list[object]:
    """All that is stored of trials but how long they took."""
    with nfd.Sweep(out, executor=slurm, progress=False) as sweep:
        sweep.run(trials)
        records = [sweep.record(trial) for trial in trials]
    curves = [{name: curve.tolist() for name, curve in r.curves.items()} for r in records]
    return [(r.metrics, curve) for r, curve in zip(records, curves, strict=True)]


def stored(trials: list[nfd.Trial], out: Path) -> list[bool]:
    with nfd.Sweep(out, progress=False) as sweep:
        return [sweep.missing([trial]) == 0 for trial in trials]


def local(folder: Path, jobs: int = 1, cpus: int = 1) -> nfd.Slurm:
    pytest.importorskip("submitit")
    return nfd.Slurm(cluster="local", jobs=jobs, cpus=cpus, folder=folder / "logs")


def test_a_job_trains_as_this_process_does(tmp_path: Path) -> None:
    slurm = local(tmp_path)
    assert trained(TRIALS, tmp_path / "jobs", slurm) == trained(TRIALS, tmp_path / "here")
    # One job had all four trials. Of it only the logs stay.
    assert sorted(path.suffix for path in (tmp_path / "logs").iterdir()) == [".err", ".out"]


@pytest.mark.slow
def test_jobs_share_trials_and_one_of_two_cores_trains_two(tmp_path: Path) -> None:
    slurm = local(tmp_path, jobs=2, cpus=2)
    assert trained(TRIALS, tmp_path / "jobs", slurm) == trained(TRIALS, tmp_path / "here")
    assert len(list((tmp_path / "logs").glob("*.err"))) == 2


@dataclass(frozen=True)
class Dying(nfd.Observer):
    """Kills the process that begins a trial, as often as it is asked to."""

    folder: Path
    times: int

    def begin(self, member: object, task: nfd.Task) -> nfd.Observation:
        deaths = len(list(self.folder.glob("death-*")))
        if deaths < self.times:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nfd.Observation()


@dataclass(frozen=True)
class Raising(nfd.Observer):
    """Raises an error as a trial begins."""

    def begin(self, member: object, task: nfd.Task) -> nfd.Observation:
        raise KeyError("of mine")


def second(observer: nfd.Observer) -> list[nfd.Trial]:
    """The trials, the second with an observer."""
    return [TRIALS[0], replace(TRIALS[1], observe=(observer,)), *TRIALS[2:]]


@pytest.mark.slow
def test_a_job_that_is_killed_once_loses_nothing(tmp_path: Path) -> None:
    trials = second(Dying(tmp_path, 1))
    in_jobs = trained(trials, tmp_path / "jobs", local(tmp_path))
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert in_jobs == trained(trials, tmp_path / "here")
    assert len(list((tmp_path / "logs").glob("*.err"))) == 2


@pytest.mark.slow
def test_a_trial_that_two_jobs_could_not_end_is_an_error_with_its_log(tmp_path: Path) -> None:
    trials = second(Dying(tmp_path, 9))
    with pytest.raises(RuntimeError, match=r"two jobs ended .* read \S+/logs/\d+_0_log\.err"):
        trained(trials, tmp_path / "jobs", local(tmp_path))
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert stored(trials, tmp_path / "jobs") == [True, False, False, False]


@pytest.mark.slow
def test_a_trial_that_raises_ends_the_sweep_and_what_was_trained_is_kept(tmp_path: Path) -> None:
    trials = second(Raising())
    with pytest.raises(ValueError, match=r"KeyError: 'of mine' .*test_cluster\.py, line"):
        trained(trials, tmp_path / "jobs", local(tmp_path))
    assert stored(trials, tmp_path / "jobs")[:2] == [True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "sbatch, which is not on the PATH. Start from a login node"),
        ({"cluster": "local", "time": "2h"}, "time must be minutes, or a text such as '2:00:00'"),
        ({"cluster": "local", "jobs": 0}, "jobs"),
        ({"cluster": "pbs"}, "cluster must be one of 'slurm', 'local'; got 'pbs'"),
    ],
)
def test_what_cannot_be_submitted_is_refused_before_any_training(
    options: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=words):
        nfd.Slurm(folder=tmp_path / "logs", **options)
    assert not (tmp_path / "logs").exists()


def test_without_submitit_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ImportError, match=r"pip install 'nfd\[slurm\]'"):
        nfd.Sweep(executor="slurm")


SIZES = ("--widths", "8", "16", "--depths", "1", "--seeds", "2")


@pytest.mark.slow
def test_the_command_takes_options_of_jobs(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    write_setup(
        tmp_path,
        "from common import ResidualMLP as make_model, batches as drawn\nbatches = drawn(2)\n",
    )
    where = ("--executor", "slurm", "--slurm", "cluster=local", "jobs=1")
    ended = run("check", "setup.py", *SIZES, *where, folder=tmp_path)
    assert ended.returncode in (0, 1), ended.stderr
    assert list((tmp_path / "out/slurm").glob("*_log.out"))
    here = run("check", "setup.py", *SIZES, "--out", "here", folder=tmp_path)
    results = [tmp_path / out / "meters.csv" for out in ("out/check", "here")]
    assert results[0].read_text() == results[1].read_text()
    assert here.returncode == ended.returncode


def test_options_of_jobs_need_their_executor(tmp_path: Path) -> None:
    write_setup(tmp_path, "from common import ResidualMLP as make_model, batches\n")
    ended = run("check", "setup.py", "--slurm", "jobs=1", folder=tmp_path)
    assert ended.returncode == 2
    assert "--slurm goes with --executor slurm; got processes" in ended.stderr


# Stand-ins for the programs of Slurm: jobs are processes, of which arrays have one each.
SBATCH = """
import os, pathlib, re, subprocess, sys
text = pathlib.Path(sys.argv[1]).read_text()
state = pathlib.Path(os.environ["STATE"])
number = str(100 + len(list(state.glob("script-*"))))
(state / f"script-{number}").write_text(text)
array = re.search(r"--array=0-(\\d+)", text)
for index in range(int(array[1]) + 1) if array else [None]:
    name = number if index is None else f"{number}_{index}"
    environment = {**os.environ, "SLURM_JOB_ID": number}
    if index is not None:
        environment |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(index)}
    job = subprocess.Popen(
        ["bash", sys.argv[1]], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )
    (state / f"job-{name}").write_text(str(job.pid))
print(f"Submitted batch job {number}")
"""
SRUN = """
import os, subprocess, sys
name = os.environ["SLURM_JOB_ID"]
if "SLURM_ARRAY_TASK_ID" in os.environ:
    name += "_" + os.environ["SLURM_ARRAY_TASK_ID"]
words = sys.argv[1:]
out = words[words.index("--output") + 1].replace("%A_%a", name).replace("%j", name)
err = words[words.index("--error") + 1].replace("%A_%a", name).replace("%j", name)
command = words[words.index("--error") + 2 :]
with open(out.replace("%t", "0"), "a") as o, open(err.replace("%t", "0"), "a") as e:
    sys.exit(subprocess.run(command, stdout=o, stderr=e).returncode)
"""
SACCT = """
import os, pathlib
print("JobID|State|NodeList")
for path in pathlib.Path(os.environ["STATE"]).glob("job-*"):
    status = pathlib.Path(f"/proc/{path.read_text()}/stat")
    lives = status.exists() and " Z " not in status.read_text()
    print(f"{path.name[4:]}|{'RUNNING' if lives else 'TIMEOUT'}|here")
"""
SCANCEL = """
import os, pathlib, signal, sys
path = pathlib.Path(os.environ["STATE"]) / f"job-{sys.argv[1]}"
try:
    os.killpg(int(path.read_text()), signal.SIGTERM)
except ProcessLookupError:
    pass
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins for the programs of Slurm keep their scripts and jobs."""
    pytest.importorskip("submitit")
    (tmp_path / "state").mkdir()
    (tmp_path / "bin").mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL}
    for name, code in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.slow
def test_options_reach_sbatch_and_a_job_out_of_time_is_named(state: Path, tmp_path: Path) -> None:
    slurm = nfd.Slurm(
        time="1:30:00",
        jobs=2,
        folder=tmp_path / "logs",
        setup=["export READY=1"],
        partition="gpu",
        mem="16G",
    )
    assert trained(TRIALS, tmp_path / "jobs", slurm) == trained(TRIALS, tmp_path / "here")
    script = (state / "script-100").read_text()
    for line in ("--array=0-1%2", "--time=90", "--partition=gpu", "--mem=16G", "--job-name=nfd"):
        assert f"#SBATCH {line}\n" in script
    assert "\nexport READY=1\n" in script
    trials = second(Dying(tmp_path, 9))
    with pytest.raises(RuntimeError, match=r"the state of job 10\d is TIMEOUT\. Pass more time="):
        trained(trials, tmp_path / "killed", slurm)
    jobs = [Path(f"/proc/{path.read_text()}/stat") for path in state.glob("job-*")]
    deadline = time.monotonic() + PATIENCE
    while not all(map(has_ended, jobs)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(has_ended, jobs))


def has_ended(process: Path) -> bool:
    """Whether a process is gone or a zombie, by its file in /proc."""
    try:
        return " Z " in process.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
