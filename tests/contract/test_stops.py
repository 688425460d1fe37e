"""Sweeps that are stopped: by signals, kills, full memory and disks; the same call goes on, with
the same numbers.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests.contract.common import NFD, ResidualMLP, batches, run_process, write_setup

import nfd

# Networks that wait in a worker until the file `go` is there, after they have said who they are.
SETUP = """
import os, time
from pathlib import Path
from common import ResidualMLP, batches as drawn

HERE = Path(__file__).parent
os.environ.setdefault("DRIVER", str(os.getpid()))  # workers inherit it

class Waiting(ResidualMLP):
    def forward(self, x):
        if os.environ["DRIVER"] != str(os.getpid()) and not (HERE / "go").exists():
            (HERE / "pid").write_text(str(os.getpid()))
            while not (HERE / "go").exists():
                time.sleep(0.01)
            {then}
        return super().forward(x)

make_model, version, batches = Waiting, "1", drawn(3, 8)
"""
WORDS = "--widths 8 16 --depths 2 --rules complete-p --lr 0.001 0.02 0.4 --seeds 2".split()  # noqa: SIM905
ONE = ("--workers", "1")
RAY = ("--executor", "ray")
SLURM = ("--executor", "slurm", "--slurm", "cluster=local", "jobs=1")
ONCE = """
            if not (HERE / "lost").exists():
                (HERE / "lost").touch()
                raise MemoryError
"""


def wait_for(path: Path) -> str:
    """The text of a file, once it is there."""
    for _ in range(6000):
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"there is no {path.name}")


def begun(folder: Path, then: str = "pass", workers: Sequence[str] = ONE) -> subprocess.Popen[str]:
    """A command whose worker has begun to train, and waits."""
    write_setup(folder, SETUP.format(then=then))
    command = ["env", "--default-signal=INT", str(NFD), "transfer", "setup.py", *WORDS, *workers]
    driver = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(folder / "pid")
    return driver


def table(folder: Path) -> str:
    """What the command answers when it is run to its end."""
    (folder / "go").touch()
    done = run_process("transfer", "setup.py", *WORDS, *ONE, folder=folder)
    assert done.returncode == 0, done.stderr
    return (folder / "out/transfer/transfer.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The answer of a command that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_setup(folder, SETUP.format(then="pass"))
    return table(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workers"),
    [(signal.SIGTERM, ONE), (signal.SIGINT, ONE), (signal.SIGKILL, ONE), (signal.SIGINT, SLURM)],
)
def test_a_stopped_command_goes_on_and_its_workers_end(
    how: signal.Signals, workers: Sequence[str], tmp_path: Path, whole: str
) -> None:
    if workers == SLURM:
        pytest.importorskip("submitit")
    with begun(tmp_path, workers=workers) as driver:
        worker = int(wait_for(tmp_path / "pid"))
        driver.send_signal(how)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == (-how if how == signal.SIGKILL else 130), said
    assert "Traceback" not in said
    for _ in range(3000):
        if (
            not Path(f"/proc/{worker}").exists()
            or " Z " in Path(f"/proc/{worker}/stat").read_text()
        ):
            break
        time.sleep(0.02)
    else:
        raise AssertionError("its worker lives")
    assert table(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "package"), [(ONE, "torch"), (RAY, "ray"), (SLURM, "submitit")]
)
def test_a_killed_worker_costs_nothing(
    workers: Sequence[str], package: str, tmp_path: Path, whole: str
) -> None:
    pytest.importorskip(package)
    with begun(tmp_path, workers=workers) as driver:
        os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, said = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    assert (tmp_path / "out/transfer/transfer.csv").read_text() == whole


@pytest.mark.slow
def test_a_trial_whose_worker_dies_twice_ends_the_command_and_says_so(tmp_path: Path) -> None:
    with begun(tmp_path) as driver:
        while driver.poll() is None:
            if (tmp_path / "pid").exists() and (worker := (tmp_path / "pid").read_text()):
                (tmp_path / "pid").unlink()
                os.kill(int(worker), signal.SIGKILL)
            time.sleep(0.02)
        _, said = driver.communicate()
    assert driver.returncode == 2, said
    assert "died twice" in said


@dataclass(frozen=True)
class Dying(nfd.Observer):
    """Notes every worker that begins a trial, and kills it; one of them leaves a child behind that
    lives on.
    """

    folder: Path
    leaves_a_child: bool = False

    def begin(self, member: object, task: nfd.Task) -> nfd.Observation:
        (self.folder / f"{os.getpid()}").touch()
        if self.leaves_a_child:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            (self.folder / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
        return nfd.Observation()


@pytest.mark.slow
def test_doomed_trials_end_the_sweep_at_the_second_death_of_one(tmp_path: Path) -> None:
    doomed = [replace(trial, observe=(Dying(tmp_path),)) for trial in trials(6)]
    with (
        nfd.Sweep(workers=1, progress=False) as sweep,
        pytest.raises(RuntimeError, match="the process that trained it died twice"),
    ):
        sweep.run(doomed)
    assert len(list(tmp_path.iterdir())) == 2  # six trials would each have died once before


@pytest.mark.slow
def test_the_death_of_a_worker_shows_while_a_child_of_it_lives(tmp_path: Path) -> None:
    doomed = [replace(trials(1)[0], observe=(Dying(tmp_path, leaves_a_child=True),))]
    with (
        nfd.Sweep(workers=1, progress=False) as sweep,
        pytest.raises(RuntimeError, match="died twice"),
    ):
        sweep.run(doomed)
    # Signal 0 only asks whether the child is there, and so that the pipe was held open while the
    # sweep ended.
    os.kill(int((tmp_path / "child").read_text()), 0)


@pytest.mark.slow
def test_a_worker_without_memory_ends_the_command_in_words_and_the_next_goes_on(
    tmp_path: Path, whole: str
) -> None:
    with begun(tmp_path, ONCE.strip()) as driver:
        (tmp_path / "go").touch()
        _, said = driver.communicate(timeout=300)
    if driver.returncode:  # where it was trained with others, they are trained one by one instead
        assert driver.returncode == 2
        assert "memory" in said.lower()
        assert "bug in nfd" not in said
    assert table(tmp_path) == whole


FAMILY = nfd.Family(ResidualMLP, (8, 2), sample=batches(1, 4)[0][0])
TASK = nfd.Task(batches(2, 4))


def trials(seeds: int) -> list[nfd.Trial]:
    return [nfd.Trial(FAMILY, TASK, 8, 2, seed, 0.01) for seed in range(seeds)]


@dataclass(frozen=True)
class Large(nfd.Observer):
    """A text of 1 MiB beside each record; the first worker that sends one is killed in the
    middle.
    """

    killed: Path

    def begin(self, member: object, task: nfd.Task) -> nfd.Observation:
        if not self.killed.exists():
            send = Connection._send

            def half(line: Any, content: bytes) -> None:
                if len(content) < 2**20:
                    return send(line, content)
                self.killed.touch()
                send(line, content[: 2**19])
                return os.kill(os.getpid(), signal.SIGKILL)

            Connection._send = half
        return Text()


class Text(nfd.Observation):
    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        return {}, {}, "x" * 2**20


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_sends_a_result_costs_nothing(tmp_path: Path) -> None:
    def too_late(*_: object) -> None:
        raise TimeoutError("the sweep waits for a worker that is dead")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(120)
    try:
        with nfd.Sweep(workers=1, progress=False) as sweep:
            records = sweep.run(
                [replace(trial, observe=(Large(tmp_path / "killed"),)) for trial in trials(2)]
            )
    finally:
        signal.alarm(0)
    assert (tmp_path / "killed").exists()
    assert [record.observed for record in records] == [["x" * 2**20]] * 2


def test_a_write_that_was_cut_off_leaves_what_was_committed(tmp_path: Path) -> None:
    """Every place at which a log of commits can end, as after a power cut: whole commits, and none
    of them halved.
    """
    with nfd.Sweep(tmp_path / "a", progress=False) as sweep:
        for count in (1, 3):
            sweep.run(trials(count))
        database = (tmp_path / "a" / "runs.sqlite").read_bytes()
        log = (tmp_path / "a" / "runs.sqlite-wal").read_bytes()
        expected = sweep.curves(trials(1)[0])["loss"].tolist()
    counts = set()
    for end in [*range(0, len(log), 997), len(log)]:
        folder = tmp_path / str(end)
        folder.mkdir()
        (folder / "runs.sqlite").write_bytes(database)
        (folder / "runs.sqlite-wal").write_bytes(log[:end])
        with nfd.Sweep(folder, progress=False) as sweep:
            missing = sweep.missing(trials(3))
            assert missing == 3 or sweep.curves(trials(1)[0])["loss"].tolist() == expected
            counts.add(missing)
    assert counts == {3, 2, 1, 0}


@pytest.mark.slow
def test_a_second_driver_is_refused_by_the_number_of_the_first(tmp_path: Path) -> None:
    with begun(tmp_path) as driver:
        try:
            done = run_process("transfer", "setup.py", *WORDS, *ONE, folder=tmp_path)
        finally:
            driver.kill()
            driver.communicate()
    assert done.returncode == 2
    assert f"process {driver.pid}" in done.stderr
    assert "choose another directory" in done.stderr


@pytest.mark.slow
def test_a_store_of_another_experiment_is_told(tmp_path: Path, whole: str) -> None:
    write_setup(tmp_path, SETUP.format(then="pass"))
    assert table(tmp_path) == whole
    told = (*WORDS, *ONE, "--verbose")
    again = run_process("transfer", "setup.py", *told, folder=tmp_path).stdout
    assert "runs were stored in out/transfer and not trained again" in again
    write_setup(tmp_path, SETUP.format(then="pass").replace('"1", drawn', '"2", drawn'))
    other = run_process("transfer", "setup.py", *told, folder=tmp_path).stdout
    assert "is of this model and task: other version." in other


@pytest.mark.parametrize("damage", [b"theirs", b"SQLite format 3\0" + bytes(200)])
def test_what_is_no_store_is_refused_and_stays(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").write_bytes(damage)
    with pytest.raises(ValueError, match=r"runs\.sqlite"), nfd.Sweep(tmp_path):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"runs.sqlite": damage}


@pytest.mark.parametrize("damaged", [slice(5000, 7000), slice(6000, None)])
def test_a_damaged_store_is_named_with_what_to_do(damaged: slice, tmp_path: Path) -> None:
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        sweep.run(trials(2))
    content = bytearray((tmp_path / "runs.sqlite").read_bytes())
    content[damaged] = b"\xff" * 2000 if damaged.stop else b""
    (tmp_path / "runs.sqlite").write_bytes(content)
    with (
        pytest.raises(ValueError, match=r"runs\.sqlite is damaged .* choose another directory"),
        nfd.Sweep(tmp_path),
    ):
        pass


def test_a_store_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.sqlite") as raw:
        raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    with (
        pytest.raises(ValueError, match=r"runs\.sqlite was made by another program"),
        nfd.Sweep(tmp_path),
    ):
        pass


def test_a_full_disk_is_told_and_what_was_stored_is_safe(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        first = sweep.run(trials(1))
        resource.setrlimit(
            resource.RLIMIT_FSIZE, ((tmp_path / "runs.sqlite-wal").stat().st_size, before[1])
        )
        try:
            with pytest.raises(OSError, match=r"what was stored before is safe.*runs\.sqlite"):
                sweep.run(trials(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert sweep.missing(trials(3)) == 2
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        assert sweep.run(trials(3))[:1] == first


def test_a_sweep_that_this_process_has_open_is_not_to_be_waited_for(tmp_path: Path) -> None:
    with (
        nfd.Sweep(tmp_path),
        pytest.raises(BlockingIOError, match="a sweep of this process has it open"),
        nfd.Sweep(tmp_path),
    ):
        pass
    with nfd.Sweep(tmp_path):
        pass


def test_a_sweep_that_another_thread_uses_is_refused_in_words() -> None:
    with nfd.Sweep() as sweep, ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="a sweep is of the thread that opened it"):
            pool.submit(sweep.missing, []).result()
        assert sweep.missing([]) == 0
