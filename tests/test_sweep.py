"""A sweep loses nothing, repeats nothing and changes no number, whatever happens to it while it runs."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pty
import random
import re
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.progress import Progress
from tests import stopped
from tests.waiting import INTERRUPTIBLE, PATIENCE, calls, children, wait_for, wait_for_the_end_of

from nfd.cli.main import main
from nfd.cli.sweeping import resumable
from nfd.core.progress import bar
from nfd.data import load as loading
from nfd.runs import records as experiment
from nfd.runs import trained
from nfd.runs.executors.executor import Executor, Inline, Outcome, unnoticed
from nfd.runs.executors.processes import Processes
from nfd.runs.export import listing, rows, with_updates, write_runs
from nfd.runs.grid import grid, grid_of
from nfd.runs.records import runs_of
from nfd.runs.run import groups
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.runs.trackers import tracker_named
from nfd.store import database, lock, store
from nfd.store.store import Record, Store

SMALL: dict[str, Any] = {"width": 8, "depth": 1, "batch": 4, "steps": 5}
WILD = 1e12  # a rate at which every network diverges

# Momentum is not shared in a group: 2 x 4 x 5 groups of two runs, of which one diverges.
LONG: dict[str, Any] = {
    "width": [8, 16],
    "depth": [1, 2, 3, 4],
    "momentum": [0.0, 0.2, 0.4, 0.6, 0.8],
    "eta_c": [0.1, WILD],
    "steps": 40,
}
TOTAL = 80


def toml(path: Path, settings: dict[str, Any] = LONG) -> Path:
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    return path


def contents(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that the runs of a store hold but the time they took."""
    with Store.read(directory) as runs:
        return {
            r.key: (r.group, r.status, r.config, repr(r.metrics), r.error, curves(runs, r.key)) for r in runs.records()
        }


def curves(runs: Store, key: str) -> dict[str, bytes]:
    return {name: curve.numpy().tobytes() for name, curve in runs.curves(key).items()}


def history(directory: Path) -> dict[str, tuple[Any, ...]]:
    """What changes when a run is trained again: when it was stored, and how long it took."""
    with closing(sqlite3.connect(directory / "runs.sqlite")) as file:
        return {key: tuple(rest) for key, *rest in file.execute("SELECT key, id, seconds, created FROM runs")}


def nfd(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [*INTERRUPTIBLE, sys.executable, "-m", "nfd", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)


def stored(directory: Path) -> int:
    """How many runs a store holds at the moment, without opening it as we do."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{directory / 'runs.sqlite'}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM runs").fetchone()[0])
    return 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """An uninterrupted sweep over LONG, in this process."""
    directory = tmp_path_factory.mktemp("whole")
    with Sweep(directory) as sweep:
        sweep.run(grid(**LONG))
    found = contents(directory)
    assert len(found) == TOTAL
    assert {status for _, status, *_ in found.values()} == {"done", "diverged"}
    return found


# Stopped and started again.


def killed(arguments: Sequence[object], point: str, count: int) -> None:
    """Start the command and kill it, with kill -9, at a point of its life."""
    driver = stopped.start(point, count, *arguments)
    workers = children(driver.pid)
    driver.kill()
    driver.communicate(timeout=PATIENCE)
    assert driver.returncode == -signal.SIGKILL
    wait_for_the_end_of(workers)


@pytest.mark.parametrize(
    ("how", "points"),
    [
        (["--executor=inline"], ["written", "half"]),  # with workers a transfer is killed
        pytest.param(["--workers=1"], ["written", "half"], marks=pytest.mark.slow),
        pytest.param(["--workers=2"], list(stopped.POINTS) * 3, marks=pytest.mark.slow),
        pytest.param(["--executor=inline"], list(stopped.POINTS) * 3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_sweep_goes_on_where_it_was(
    how: Sequence[str], points: Sequence[str], tmp_path: Path, whole: dict[str, tuple[Any, ...]]
) -> None:
    """kill -9 of the driver at each point; then to the end, against an uninterrupted sweep, bit for bit."""
    chance, out = random.Random(len(points)), tmp_path / "out"
    arguments = ["sweep", toml(tmp_path / "grid.toml"), "--out", out]
    before: dict[str, tuple[Any, ...]] = {}
    for point, option in zip(points, itertools.cycle(how), strict=False):
        times = 1 if point == "opened" else chance.randrange(2, 4)  # of a group of two runs, the second is half of it
        killed([*arguments, option], point, times)
        now = history(out) if (out / "runs.sqlite").exists() else {}
        assert before.items() <= now.items()  # nothing lost, nothing repeated
        counts = [group for group, *_ in contents(out).values()]
        assert all(counts.count(group) == 2 for group in counts)
        before = now
    assert 0 < len(before) < TOTAL
    assert main([*map(str, arguments), "--executor", "inline"]) == 0
    assert before.items() <= history(out).items()
    assert contents(out) == whole


class Hunted(Processes):
    """Processes of which one is killed whenever certain tasks are handed out: idle, or in the middle of another."""

    def __init__(self, workers: int, doomed: Set[int]) -> None:
        super().__init__(workers, attempts=20)
        self.doomed, self.chance, self.hits = doomed, random.Random(0), 0

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        def hunt(index: int) -> None:
            started(index)
            if index in self.doomed:  # who has handed out a task has a worker
                worker = self.chance.choice(multiprocessing.active_children())
                worker.kill()
                self.hits += 1

        yield from super().run(work, tasks, hunt)


@pytest.mark.parametrize(
    ("workers", "doomed"),
    [(1, {3}), *(pytest.param(2, doomed, marks=pytest.mark.slow) for doomed in ({3, 11}, set(range(0, 40, 2))))],
)
def test_killed_workers_cost_nothing_but_time(
    workers: int, doomed: set[int], tmp_path: Path, whole: dict[str, tuple[Any, ...]]
) -> None:
    executor = Hunted(workers, doomed)
    with Sweep(tmp_path, executor) as sweep:
        sweep.run(grid(**LONG))
    assert executor.hits == len(doomed)
    assert contents(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_executors_change_no_number(workers: int, tmp_path: Path, whole: dict[str, tuple[Any, ...]]) -> None:
    with Sweep(tmp_path, Processes(workers)) as sweep:
        sweep.run(grid(**LONG))
    assert contents(tmp_path) == whole


def interrupted(driver: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C as a terminal sends it: to the driver and to all its workers."""
    workers = children(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    said = driver.communicate(timeout=PATIENCE)
    wait_for_the_end_of(workers)
    return said


TRANSFER = shlex.split("--widths 8 16 --depths 1 --rules depth-mup --eta-c 0.1 0.2 0.4 --seeds 3 --steps 200")


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("sweep", "--workers=1"),
        *(pytest.param("transfer", how, marks=pytest.mark.slow) for how in ("--executor=inline", "--workers=2")),
    ],
)
def test_ctrl_c_says_where_things_stand(command: str, how: str, tmp_path: Path) -> None:
    given = [str(toml(tmp_path / "grid.toml"))] if command == "sweep" else TRANSFER
    arguments = [command, *given, "--out", str(tmp_path / "out")]
    driver = stopped.start("kept", 2, *arguments, how, start_new_session=True)
    out, said = interrupted(driver)
    kept = stored(tmp_path / "out")
    assert (driver.returncode, out) == (130, "")
    assert re.fullmatch(
        rf"nfd: interrupted; {kept} runs? (is|are) kept in .*out\. The same command continues from there\.\n", said
    )
    before = history(tmp_path / "out")
    assert 0 < len(before) < TOTAL
    assert main([*arguments, "--executor", "inline"]) == 0
    assert before.items() <= history(tmp_path / "out").items()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sweep", "transfer"])
def test_ctrl_c_in_the_first_seconds(command: str, tmp_path: Path) -> None:
    """From when our code runs; before, Python is still starting."""
    given = [toml(tmp_path / "grid.toml")] if command == "sweep" else TRANSFER
    for k in range(12):
        directory = tmp_path / str(k)
        driver = nfd(command, *given, "--out", directory, start_new_session=True)
        wait_for(directory.exists)
        time.sleep(0.2 * k)
        _, said = interrupted(driver)
        assert driver.returncode in (130, 0), said
        assert "Traceback" not in said
        assert said.startswith("nfd: interrupted; ") or driver.returncode == 0
        assert said.count("\n") == 1 or driver.returncode == 0


def test_an_interruption_before_the_store_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert resumable(tmp_path / "none", work) == 130
    assert "interrupted; 0 runs are kept in" in capsys.readouterr().err


# Faults of the place.


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """The one line that a command says when it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([str(a) for a in arguments]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("nfd: ")
    return said


def test_a_second_driver_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["sweep", toml(tmp_path / "grid.toml", SMALL), "--out", tmp_path, "--executor", "inline"]
    with Sweep(tmp_path) as first:
        said = said_by(capsys, *given)
        assert f"Another sweep is writing to '{tmp_path}': process {os.getpid()} on " in said
        assert len(first.run(grid(**SMALL))) == 1  # it has noticed nothing
    assert main([str(a) for a in given]) == 0


def spoil(kind: str, path: Path) -> str:
    """Make the file of a store something else; what is said of it."""
    if kind == "text":
        path.write_text("no database at all, but some text" * 9)
        return "is not a database, or a damaged one"
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:5000])
        return "is damaged"
    if kind == "noise":
        content = bytearray(path.read_bytes())
        content[4096:8192] = random.Random(0).randbytes(4096)
        path.write_bytes(content)
        return "is damaged"
    if kind == "foreign":
        path.unlink()
        statement = "CREATE TABLE bookmarks (url)"
    else:
        statement = f"PRAGMA user_version = {7 if kind == 'newer' else 0}"
    with closing(sqlite3.connect(path)) as file:
        file.execute(statement)
        file.commit()
    return {"foreign": "is a database of another program", "newer": "Use a newer nfd"}.get(kind, "written by version 0")


@pytest.mark.parametrize("kind", ["text", "cut", "noise", "foreign", "newer", "older"])
def test_what_is_no_store_of_ours_is_refused_and_stays(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "out"
    with Sweep(directory) as sweep:
        sweep.run(grid(**SMALL, seed=[0, 1]))
    because = spoil(kind, directory / "runs.sqlite")
    before = hashlib.sha256((directory / "runs.sqlite").read_bytes()).digest()
    path = toml(tmp_path / "grid.toml", SMALL)
    for given in (["sweep", path, "--out", directory, "--executor", "inline"], ["runs", directory]):
        assert because in said_by(capsys, *given)
    assert hashlib.sha256((directory / "runs.sqlite").read_bytes()).digest() == before
    assert {p.name for p in directory.iterdir()} <= {"runs.sqlite", "runs.lock"}


def test_a_full_disk_stops_a_sweep_that_can_be_resumed(
    tmp_path: Path,
    whole: dict[str, tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, opened = database.for_driver, list[int]()

    def small(path: Path) -> sqlite3.Connection:
        connection = real(path)
        opened.append(connection.execute("PRAGMA max_page_count = 12").fetchone()[0])
        return connection

    given = ["sweep", str(toml(tmp_path / "grid.toml")), "--out", str(tmp_path / "out"), "--executor", "inline"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "for_driver", small)
        said = said_by(capsys, *given)
    assert opened == [12]
    assert "the disk is full; nothing of this was added or removed, what was committed before is safe" in said
    assert "Free space and resume the sweep" in said
    before = history(tmp_path / "out")
    assert 0 < len(before) < TOTAL
    assert main(given) == 0
    assert before.items() <= history(tmp_path / "out").items()
    assert contents(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_small_disk(executor: str, tmp_path: Path, whole: dict[str, tuple[Any, ...]]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small disk ({mounted.stderr.strip()})")
    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(850_000))
        given = ["sweep", toml(tmp_path / "grid.toml"), "--out", disk / "out", "--executor", executor]
        driver = nfd(*given)
        out, said = driver.communicate(timeout=PATIENCE)
        assert (driver.returncode, out) == (2, ""), said
        assert re.search("(the disk is full|reading or writing failed).*safe.*resume", said)
        assert said.count("\n") == 1
        before = history(disk / "out")
        assert 0 < len(before) < TOTAL
        print(f"\ndisk full after {len(before)} of {TOTAL} runs ({executor})")
        filler.unlink()
        driver = nfd(*given)
        _, said = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == 0, said
        assert before.items() <= history(disk / "out").items()
        assert contents(disk / "out") == whole
    finally:
        subprocess.run(["umount", disk], check=True)


class Meddling(Executor):
    """An executor that does something before each task but the first."""

    slots = 1

    def __init__(self, meddle: Callable[[], object]) -> None:
        self.meddle = meddle

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        for outcome in Inline().run(work, tasks, started):
            yield outcome
            self.meddle()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_store_that_vanishes_stops_the_sweep(how: str, tmp_path: Path) -> None:
    """SQLite alone would go on for a week, into a file without a name."""
    directory = tmp_path / "out"

    def vanish() -> None:
        shutil.rmtree(directory) if how == "removed" else directory.rename(tmp_path / "moved")
        if how == "replaced":
            Sweep(directory).store.close()

    with (
        pytest.raises(FileNotFoundError, match=r"removed, moved or replaced after it was opened.*resume the sweep"),
        Sweep(directory, Meddling(vanish)) as sweep,
    ):
        sweep.run(grid(**SMALL, momentum=[0.0, 0.1, 0.2]))
    if how != "removed":
        assert stored(tmp_path / "moved") == 1
    assert stored(directory) == 0


def images(directory: Path, seed: int) -> None:
    for number, name in itertools.product(range(10), "ab"):
        (directory / name).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng([seed, number, ord(name)]).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / name / f"{number}.png")


def test_data_that_change_under_a_sweep_stop_it(tmp_path: Path) -> None:
    """Runs are named by their data: those of other data are other runs."""
    data, out = tmp_path / "data", tmp_path / "out"
    images(data, 0)

    def change() -> None:
        images(data, 1)
        experiment._loaded.cache_clear()  # as in a worker that starts now

    configs = grid(**SMALL, data="images", data_dir=str(data), momentum=[0.0, 0.1])
    with pytest.raises(ValueError, match=r"changed while the sweep was running.*start the sweep again"):
        Sweep(out, Meddling(change)).__enter__().run(configs)
    assert stored(out) == 1
    experiment._loaded.cache_clear()
    with Sweep(out) as sweep:
        records = sweep.run(configs)
    assert stored(out) == 3
    assert [r.config["momentum"] for r in records] == [0.0, 0.1]
    experiment._loaded.cache_clear()


def test_a_clock_that_goes_backward_changes_nothing(
    tmp_path: Path, whole: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(2e9, -86400.0)

    class Backward(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Backward:
            return cls.fromtimestamp(next(clock), UTC)

    monkeypatch.setattr(time, "time", lambda: next(clock))
    monkeypatch.setattr(lock, "datetime", Backward)
    configs = grid(**LONG)
    for part in (configs[:60], configs):
        with Sweep(tmp_path) as sweep:
            sweep.run(part)
    created = [text for *_, text in sorted(history(tmp_path).values())]
    assert created[0] > created[-1]
    assert all(seconds >= 0 for _, seconds, _ in history(tmp_path).values())
    assert contents(tmp_path) == whole


# Runs that fail, and trackers that fail.


def test_a_run_that_raises_is_recorded_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built, built_now = trained.member, list[int]()

    def member_or_error(config: RunConfig, dataset: Any, device: str) -> Any:
        built_now.append(config.seed)
        if config.seed == 1:
            raise RuntimeError("no memory for this one")
        return built(config, dataset, device)

    settings = {**SMALL, "seed": [0, 1, 2], "momentum": [0.0, 0.5]}
    given = ["sweep", str(toml(tmp_path / "grid.toml", settings)), "--out", str(tmp_path), "--executor", "inline"]
    with monkeypatch.context() as patch:
        patch.setattr(trained, "member", member_or_error)
        assert main(given) == 70
        first = capsys.readouterr()
        assert "6 runs: 4 done, 2 failed." in first.out
        assert first.out.count("failed: RuntimeError: no memory for this one") == 2
        assert f"nfd runs {tmp_path} --status failed lists them" in first.out
        assert main(["runs", str(tmp_path), "--status", "failed"]) == 0
        assert "RuntimeError: no memory for this one" in capsys.readouterr().out
        assert main(["runs", str(tmp_path), "--where", "seed=1", "--status", "done"]) == 0
        before = history(tmp_path)
        # another grid leaves the failure where it is
        with Sweep(tmp_path) as sweep:
            sweep.run(grid(**SMALL, seed=7))
        assert before.items() <= history(tmp_path).items()
        built_now.clear()
        assert main(given) == 70
        assert set(built_now) == {1}
    capsys.readouterr()
    assert main(given) == 0
    assert "6 runs: 6 done." in capsys.readouterr().out
    with Sweep(tmp_path / "other") as sweep:
        sweep.run(grid(**SMALL, seed=7))
        sweep.run(grid(**settings))
    found, expected = contents(tmp_path), contents(tmp_path / "other")
    # the group of those that were tried again is named by them; their numbers are the same
    assert {key: run[1:] for key, run in found.items()} == {key: run[1:] for key, run in expected.items()}


def test_a_failure_is_tried_once_in_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(config: RunConfig, dataset: Any, device: str) -> Any:
        tries.append(config.seed)
        raise RuntimeError("never")

    monkeypatch.setattr(trained, "member", fail)
    for _ in range(2):
        with Sweep(tmp_path) as sweep:
            for _ in range(3):
                (record,) = sweep.run(grid(**SMALL))
                assert record.status == "failed"
    assert len(tries) == 2


class Told:
    """A tracker that lives in a list; it can fail or be interrupted once."""

    def __init__(self, kept: dict[str, Record], fault: BaseException | None = None) -> None:
        self.kept, self.fault = kept, fault

    def __repr__(self) -> str:
        return "the list"

    def known(self) -> set[str]:
        return set(self.kept)

    def log(self, record: Record) -> None:
        if self.fault and len(self.kept) == 1:
            raise self.fault
        self.kept[record.key] = record

    def close(self) -> None:
        if self.fault:
            raise self.fault


def test_a_tracker_that_fails_does_not_end_the_sweep_and_is_told_later(tmp_path: Path) -> None:
    kept: dict[str, Record] = {}
    configs = grid(**SMALL, momentum=[0.0, 0.1, 0.2])
    with (
        pytest.warns(RuntimeWarning, match=r"the list failed \(OSError: service is away\). The sweep continues"),
        Sweep(tmp_path, trackers=[Told(kept, OSError("service is away"))]) as sweep,
    ):
        assert len(sweep.run(configs)) == 3
    assert len(kept) == 1
    with Sweep(tmp_path, trackers=[Told(kept)]) as sweep:
        records = sweep.run(configs[:2])
        assert len(kept) == 2
        records = sweep.run(configs)
    assert [kept[r.key] for r in records] == records
    assert all(len(record.curves["loss"]) == SMALL["steps"] for record in kept.values())


def test_an_interruption_between_store_and_tracker_loses_neither(tmp_path: Path) -> None:
    kept: dict[str, Record] = {}
    configs = grid(**SMALL, momentum=[0.0, 0.1, 0.2])
    with pytest.raises(KeyboardInterrupt), Sweep(tmp_path, trackers=[Told(kept, KeyboardInterrupt())]) as sweep:
        sweep.run(configs)
    assert (stored(tmp_path), len(kept)) == (2, 1)
    with Sweep(tmp_path, trackers=[Told(kept)]) as sweep:
        sweep.run(configs)
    assert (stored(tmp_path), len(kept)) == (3, 3)


def test_tensorboard_holds_the_rows_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs pip install 'nfd[tensorboard]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
    configs = grid(**SMALL, eta_c=[0.1, WILD])
    for _ in range(2):  # the second time there is nothing new
        with Sweep(tmp_path, trackers=[tracker_named("tensorboard", tmp_path)]) as sweep:
            records = sweep.run(configs)
    assert {p.name for p in (tmp_path / "tensorboard").iterdir()} == {record.key for record in records}
    with Store.read(tmp_path) as runs:
        for record in records:
            events = module.EventAccumulator(str(tmp_path / "tensorboard" / record.key))
            events.Reload()
            assert set(events.Tags()["scalars"]) == {"loss", *record.metrics}
            curve = [event.value for event in events.Scalars("loss")]
            assert np.array_equal(curve, runs.curve(record.key, "loss").numpy(), equal_nan=True)
            for name, value in record.metrics.items():
                assert [event.value for event in events.Scalars(name)] == [pytest.approx(value, rel=1e-6)]
    # an interrupted draft is made anew, and is no run
    key = records[0].key
    (tmp_path / "tensorboard" / key).rename(tmp_path / "tensorboard" / f".{key}")
    with Sweep(tmp_path, trackers=[tracker_named("tensorboard", tmp_path)]) as sweep:
        sweep.run(configs)
    assert {p.name for p in (tmp_path / "tensorboard").iterdir()} == {record.key for record in records}


@pytest.mark.slow
def test_wandb_offline_holds_the_rows_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, where every name that is not this machine's cannot be reached."""
    pytest.importorskip("wandb", reason="needs pip install 'nfd[wandb]'")
    path = toml(tmp_path / "grid.toml", {**SMALL, "eta_c": [0.1, WILD]})
    given = ["sweep", path, "--out", tmp_path / "out", "--executor", "inline", "--track", "wandb"]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    for _ in range(2):
        driver = nfd(*given)
        out, said = driver.communicate(timeout=PATIENCE)
        assert (driver.returncode, said) == (0, ""), out
    directories = list((tmp_path / "out" / "wandb").glob("offline-run-*"))
    with Store.read(tmp_path / "out") as runs:
        records = runs.records()
    assert sorted(path.name.rpartition("-")[2] for path in directories) == sorted(record.key for record in records)
    for directory in directories:
        (binary,) = directory.glob("*.wandb")
        content = binary.read_bytes()
        assert all(name in content for name in (b"train_loss", b"test_loss", b"loss", b"eta_c"))


# Grids and groups.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht = 3", "widht is not a setting. Did you mean 'width'?"),
        ("width = []", "width must be a value or a list of different ones; got none"),
        ("width = [8, 16, 8]", "width must be a value or a list of different ones; got 8 more than once"),
        ("eta_c = [1, 0.5, 1.0]", "eta_c must be a value or a list of different ones; got 1 more than once"),
        ("rule = ['mup', 'mup']", "got 'mup' more than once"),
        ("rule = ['mup', 'depth-mup-inner']", "rule='depth-mup-inner' needs block='two-layer'"),
        ("optimizer = 'adam'\nmomentum = [0.0, 0.5]", "momentum is for optimizer='sgd'"),
        ("width 3", "is not TOML: Expected '='"),
        ("[networks]\nwidth = 8", "networks is a table; settings stand at the top level"),
        ("seed = 1.0", "seed must be a whole number; got 1.0"),
        ("seed = [[1, 2]]", "seed must be a whole number; got [1, 2]"),
        ("eta_c = [0.1, nan]", "eta_c must be finite; got nan"),
        ("eta_c = inf", "eta_c must be finite; got inf"),
        ("width = true", "width must be a whole number; got True"),
        ("seed = [" + "1," * 5000 + "]", "got 1 more than once"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused_before_anything_is_made(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.toml").write_text(text)
    said = said_by(capsys, "sweep", tmp_path / "grid.toml", "--out", tmp_path / "out")
    assert message in said
    assert "grid.toml" in said
    assert len(said) < 400
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_grid_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in said_by(capsys, "sweep", tmp_path / "none.toml")
    assert "Is a directory" in said_by(capsys, "sweep", tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "is not TOML" in said_by(capsys, "sweep", tmp_path / "bytes")
    assert "sweep needs the TOML file of a grid" in said_by(capsys, "sweep")


def test_a_grid_has_at_most_a_million_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"seed": list(range(1001)), "data_seed": list(range(1000))}
    told: list[str] = []
    path = toml(tmp_path / "grid.toml", axes)
    work = calls(lambda: told.append(said_by(capsys, "sweep", path, "--out", tmp_path / "out")))
    assert "a grid has at most 1,000,000 runs; got 1,001,000. Split it" in told[0]
    assert work < 200_000  # it is refused before any run is made


def test_a_batch_larger_than_the_data_fails_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = toml(tmp_path / "grid.toml", {**SMALL, "batch": [4, 5000]})
    assert main(["sweep", str(path), "--out", str(tmp_path), "--executor", "inline"]) == 1
    shown = capsys.readouterr().out
    assert "2 runs: 1 done, 1 failed." in shown or "2 runs: 1 failed, 1 done." in shown
    assert "batch size must be at most the 1437 training samples; got 5000" in shown


def test_numbers_are_the_same_run_however_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("eta_c = [1, 2]\nmomentum = 0\nhorizon = 1\nwidth = 8\n")
    (tmp_path / "b.toml").write_text("eta_c = [1.0, 2.0]\nmomentum = 0.0\nhorizon = 1.0\nwidth = [8]\n")
    assert grid_of(tmp_path / "a.toml") == grid_of(tmp_path / "b.toml")
    assert list(runs_of(grid_of(tmp_path / "a.toml"))) == list(runs_of(grid_of(tmp_path / "b.toml")))


def test_a_run_that_is_asked_for_twice_is_trained_once(tmp_path: Path) -> None:
    twice = [*grid(**SMALL, seed=[0, 1]), *grid(**SMALL, seed=[1, 2])]
    with Sweep(tmp_path) as sweep:
        records = sweep.run(twice)
        assert [r.config["seed"] for r in records] == [0, 1, 1, 2]
        assert len(sweep.store) == 3
        before = history(tmp_path)
        sweep.run(twice)
        assert history(tmp_path) == before


def test_groups_are_fixed_by_the_plan() -> None:
    runs = list(runs_of(grid(width=[8, 16], depth=[1, 2], seed=list(range(20)), eta_c=[0.1, 0.2], steps=5)))
    plan = groups(runs)
    assert {len(group.keys) for group in plan} == {32, 8}
    assert sorted(key for group in plan for key in group.keys) == sorted(run.key for run in runs)
    assert [group.cost for group in plan] == sorted((group.cost for group in plan), reverse=True)
    for group in plan:
        assert len({(run.settings["width"], run.settings["depth"]) for run in group.runs}) == 1
    # what is left after a stop, which is whole groups, is trained in the same groups
    for stop in range(len(plan)):
        done = {key for group in plan[:stop] for key in group.keys}
        assert groups(runs, done) == plan[stop:]
    assert groups(runs, {run.key for run in runs}) == []


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")  # small on purpose
def test_what_cannot_be_stacked_is_alone() -> None:
    for settings in ({"weights": "deferred"}, {"width": 2048}):
        assert {len(group.keys) for group in groups(runs_of(grid(**SMALL | settings, seed=[0, 1, 2])))} == {1}


def test_another_order_or_more_values_repeat_nothing(tmp_path: Path) -> None:
    """Guaranteed: a run that is stored is never trained again, and a plan, stopped or not, has the same bits.

    In another order, or among other values, a run may be trained in another group; groups change no bit on the
    machines that we know, where each network's products are computed as they are alone, so that is tested here too.
    """
    small = grid(**SMALL, seed=list(range(20)), eta_c=[0.1, 0.2])
    large = grid(**SMALL, eta_c=[0.1, 0.15, 0.2], seed=list(range(25)))
    shuffled = random.Random(0).sample(large, len(large))
    assert {g.key for g in groups(runs_of(large))} != {g.key for g in groups(runs_of(shuffled))}
    with Sweep(tmp_path / "a") as sweep:
        sweep.run(small)
        before = history(tmp_path / "a")
        sweep.run(large)
        after = history(tmp_path / "a")
        sweep.run(shuffled)
    assert before.items() <= after.items() == history(tmp_path / "a").items()
    with Sweep(tmp_path / "b") as sweep:
        sweep.run(shuffled)
    found, expected = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert {key: run[1:] for key, run in found.items()} == {key: run[1:] for key, run in expected.items()}


def test_every_data_set_is_read_once_in_whatever_order(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def load(name: str, *rest: Any, **options: Any) -> Any:
        read.append(options["seed"])
        return found(name, *rest, **options)

    found = loading.load
    monkeypatch.setattr(experiment, "load", load)
    experiment._loaded.cache_clear()
    configs = grid(**SMALL, seed=[0, 1, 2], data_seed=list(range(8)))
    assert len({run.key for run in runs_of(configs)}) == 24
    assert read == list(range(8))


# Listing and exporting.


def listed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["runs", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("swept")
    axes = {"width": [8, 12, 16], "rule": ["mup", "depth-mup"], "eta_c": [0.1, 0.3, WILD], "momentum": [0.0, 0.5]}
    with Sweep(directory) as sweep:
        sweep.run(grid(**SMALL | axes))
    return directory


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("", 36),
        ("width=16", 12),
        ("width=16 rule=mup", 6),
        ("width=16 rule=mup weights=dense momentum=0.0", 3),
        ("width=16 rule=mup weights=dense momentum=0", 3),
        ("width=8,16", 24),
        ("width=8 width=16", 24),
        ("width=8,16 rule=mup,depth-mup eta_c=0.1,3e-1", 16),
        ("eta_c=1e12", 12),
        ("data_dir=None image_size=", 36),
        ("rule=mup --status diverged", 6),
        ("--status failed", 0),
    ],
)
def test_runs_are_filtered_by_settings(where: str, count: int, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = where.replace("--status", "| --status").split("|")
    arguments = [*(["--where", *given[0].split()] if given[0].strip() else []), *"".join(given[1:]).split()]
    *lines, last = listed(capsys, swept, *arguments)
    assert last == f"{count} of 36 runs."
    assert len(lines) == (count + 1 if count else 0)


def test_what_nobody_has_is_named(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, swept, "--where", "width=64", "rule=muup", "depth=1") == [
        "0 of 36 runs.",
        "No run has this width; there are 16, 12, 8.",
        "No run has this rule; there are mup, depth-mup.",
    ]
    assert "takes settings such as width=128; got 'width'" in said_by(capsys, "runs", swept, "--where", "width")
    assert "is not a setting of a run. Did you mean 'width'?" in said_by(capsys, "runs", swept, "--where", "widht=1")


def test_a_list_shows_where_runs_differ_and_ends_somewhere(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines, last = listed(capsys, swept, "--limit", 5, "--where", "momentum=0.5")
    assert head.split() == ["status", "eta_c", "rule", "train_loss", "test_loss", "test_accuracy"] or "width" in head
    assert len(lines) == 5
    assert last == "18 of 36 runs; 13 more with --limit 18."
    assert "limit must be at least 1" in said_by(capsys, "runs", swept, "--limit", 0)


def test_where_there_is_no_sweep(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No sweep in" in said_by(capsys, "runs", tmp_path)
    assert "No sweep in" in said_by(capsys, "runs", tmp_path / "none")
    assert "needs the directory of a sweep" in said_by(capsys, "runs")
    assert "would replace files of the sweep" in said_by(capsys, "runs", swept, "--out", f"{swept}/../{swept.name}")
    assert list(tmp_path.iterdir()) == []
    with Sweep(tmp_path):
        pass
    assert listed(capsys, tmp_path, "--where", "width=8", "--out", tmp_path / "o")[0] == "0 of 0 runs."


def test_exports_read_back_equal(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that are not finite are ``inf`` in CSV and IEEE infinities in Parquet; None is empty and null."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pip install 'nfd[parquet]'")
    shown = listed(capsys, swept, "--out", tmp_path, "--limit", 1)
    assert shown[-3:] == [f"Wrote {tmp_path / name}" for name in ("runs.csv", "result.json", "runs.parquet")]
    with Store.read(swept) as runs:
        table = rows(runs.records())
    assert parquet.read_table(tmp_path / "runs.parquet").to_pylist() == table
    with (tmp_path / "runs.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(table) == 36
    for text, row in zip(read, table, strict=True):
        assert list(text) == list(row)
        for name, value in row.items():
            assert text[name] == ("" if value is None else str(value))
            assert value is None or isinstance(value, bool) or type(value)(text[name]) == value
    assert {row["test_loss"] for row in table if row["status"] == "diverged"} == {math.inf}
    assert any(text["test_loss"] == "inf" for text in read)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["runs"], result["status"]) == (36, {"done": 24, "diverged": 12})


def test_the_work_of_listing_and_exporting_is_that_of_its_runs(tmp_path: Path) -> None:
    """Ten thousand runs take a second, because each takes few calls: ten times as many take ten times the work."""
    config = RunConfig().model_dump()
    metrics = {"first_loss": 2.3, "train_loss": 1.2345678, "test_loss": math.inf, "test_accuracy": 0.5}
    loss = np.linspace(2, 1, 1000, dtype="f4")

    def works(groups_of_100: int) -> tuple[int, int, int]:
        """Calls of reading, of listing and of exporting."""
        directory = tmp_path / str(groups_of_100)
        with Store.open(directory) as runs:
            for g in range(groups_of_100):
                runs.add(
                    Record(f"{g}-{i}", str(g), "done", {**config, "seed": i, "width": g + 1}, metrics, {"loss": loss})
                    for i in range(100)
                )
        records: list[Record] = []
        with Store.read(directory) as runs:
            reading = calls(lambda: records.extend(runs.records({"rule": "depth-mup"})))
        lines: list[str] = []
        shown = calls(lambda: lines.extend(listing(records)))
        assert len(lines) == 100 * groups_of_100 + 1
        return reading, shown, calls(lambda: write_runs(records, directory, "test", parquet=True))

    works(1)  # what is imported on the way
    for few, many in zip(works(2), works(20), strict=True):
        assert many <= 10 * few
        assert many < 500 * 2000


# The display.


@contextmanager
def terminal() -> Iterator[list[bytes]]:
    """stderr is a terminal of 100 columns; what was shown there is in the list at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    shown: list[bytes] = []

    def follow() -> None:
        with suppress(OSError):  # nobody writes any more
            while content := os.read(master, 4096):
                shown.append(content)

    reader, before = threading.Thread(target=follow), sys.stderr
    reader.start()
    with os.fdopen(slave, "w") as sys.stderr:
        try:
            yield shown
        finally:
            sys.stderr = before
    reader.join(PATIENCE)
    os.close(master)


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Ticking(Executor):
    """Inline, with three seconds on the clock for each task, a group of two runs."""

    slots = 1

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        for outcome in Inline().run(work, tasks, started):
            self.clock.seconds += 3.0
            yield replace(outcome, value=[replace(record, seconds=1.5) for record in outcome.value])


def display(directory: Path, clock: Clock) -> None:
    configs = grid(**SMALL, momentum=[0.0, 0.1, 0.2], eta_c=[0.1, WILD])
    with Sweep(directory) as sweep:
        sweep.run(configs[:2])
    with Sweep(directory, Ticking(clock), progress=True) as sweep:
        sweep.run(configs)


def test_a_terminal_shows_done_running_diverged_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Drawn(Progress):
        """Drawn at every change, and by our clock."""

        def __init__(self, *columns: Any, **options: Any) -> None:
            super().__init__(*columns, **options, auto_refresh=False, get_time=clock)

        def update(self, *arguments: Any, **options: Any) -> None:
            super().update(*arguments, **options)
            self.refresh()

    monkeypatch.setattr("rich.progress.Progress", Drawn)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with terminal() as content:
        display(tmp_path, clock)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(content).decode())
    assert "sweep: 2 of 6 runs, 2 running" in shown  # two were there
    assert re.search(r"sweep: 4 of 6 runs, 2 running, 1 diverged .* 0:00:03 gone, 0:00:03 left", shown), shown
    assert "sweep: 6 of 6 runs, 0 running, 2 diverged" in shown


def test_a_log_has_a_line_each_half_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    monkeypatch.setattr("nfd.core.progress.time.monotonic", clock)
    with bar("sizes") as shown:
        shown.plan(4.0, "sizes: 0 of 4 runs")
        for seconds in (29.0, 1.0, 29.0):
            clock.seconds += seconds
            shown.advance(1.0)
    assert capsys.readouterr() == ("", "sizes: 0 of 4 runs: 50% after 0:00:30, about 0:00:30 left\n")


def test_a_short_sweep_prints_nothing_into_a_pipe(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    display(tmp_path, Clock())
    assert capfd.readouterr() == ("", "")


def test_a_sweep_reads_its_own_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = grid(width=[2, 3, 4], depth=1, steps=1, batch=2)
    with Sweep(tmp_path) as sweep:
        sweep.run(runs)
        read = list[str]()
        monkeypatch.setattr(sweep.store, "records", lambda: pytest.fail("the whole store was read"))
        record = sweep.store.record
        monkeypatch.setattr(sweep.store, "record", lambda key: read.append(key) or record(key))
        assert [found.config["width"] for found in sweep.run(runs[1:] + runs[1:])] == [3, 4, 3, 4]
        assert len(read) == 2


def test_exports_hold_the_last_updates(tmp_path: Path) -> None:
    shared = {"width": 4, "depth": 2, "batch": 2, "steps": 2, "every": 1, "block": "two-layer"}
    with Sweep(tmp_path, Inline()) as sweep:
        (plain,), (measured,) = (sweep.run(grid(**shared, meter=meter)) for meter in ("none", "updates"))
        run = with_updates(measured, sweep.store)
        curves = sweep.store.curves(measured.key)
        assert with_updates(plain, sweep.store) is plain
    names = ("inner_update", "stream_update", "function_update_inner", "function_update")
    assert {name: run.metrics[name] for name in names} == {name: float(curves[name][-1]) for name in names}
    assert all(float(curves[name][0]) != run.metrics[name] for name in names)
    write_runs([run], tmp_path, "test", parquet=False)
    assert {*names} <= {*(tmp_path / "runs.csv").read_text().splitlines()[0].split(",")}
    assert any("stream_update" in line for line in listing([run]))
