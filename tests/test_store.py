"""A store keeps what was added, whole groups at a time, through crashes, full disks and strangers' files."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.waiting import PATIENCE, calls

from nfd.core.errors import FileError
from nfd.store import database, lock, store
from nfd.store.blobs import pack, unpack
from nfd.store.store import Record, Store


def run(i: int, group: str = "g", status: str = "done", **changes: Any) -> Record:
    config = {"width": 64 * (i % 4 + 1), "rule": "depth-mup", "seed": i, "init": None}
    loss = np.exp(-np.arange(200) / 50).astype("f4") + np.float32(i)
    fields = {"config": config, "metrics": {"loss": 0.1 * i}, "curves": {"loss": loss}, "seconds": 1.5}
    return Record(f"key-{i}", group, status, **{**fields, **changes})


def filled(directory: Path, groups: int = 4) -> Path:
    """A closed store with groups of three runs."""
    with Store.open(directory) as runs:
        for g in range(groups):
            runs.add(run(3 * g + i, f"group-{g}") for i in range(3))
    return directory / "runs.sqlite"


def contents(directory: Path) -> dict[str, str]:
    """Every file of a directory and the hash of its bytes, less the empty file that a lock may leave."""
    files = [p for p in directory.iterdir() if p.is_file() and p.name != "runs.lock"]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A Python process with ``Store``, ``Record`` and its arguments at hand."""
    start = "import sys, os, numpy as np\nfrom nfd.store.store import Record, Store\n"
    command = [sys.executable, "-c", start + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


ADDING = """
with Store.open(sys.argv[1]) as runs:
    g = len(runs)
    while True:
        loss = np.random.default_rng(g).standard_normal(1000).astype("f4")
        runs.add(Record(f"{g}.{i}", str(g), "done", {"seed": i}, {"loss": 1.0}, {"loss": loss}) for i in range(3))
        print(g, flush=True)
        g += 1
"""


# Stops when so many groups are promised and so many runs of the next are written; a group has three, so that with three
# only the commit is missing.
STOPPING = """
import nfd.store.store as module, sqlite3, time
promised, runs_of_a_group, seen = int(sys.argv[2]), int(sys.argv[3]), 0
def stop():
    print("stopped", flush=True)
    time.sleep(1e5)
def counted(record, real=module.encode):
    global seen
    if seen == 3 * promised + runs_of_a_group:
        stop()
    seen += 1
    return real(record)
module.encode = counted
real_transaction = module.transaction
from contextlib import contextmanager
@contextmanager
def transaction(database):
    with real_transaction(database):
        yield
        if runs_of_a_group == 3 and seen == 3 * promised + 3:
            stop()
module.transaction = transaction
"""

# What was added comes back.


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    numbers = {"nan": math.nan, "up": math.inf, "down": -math.inf, "zero": -0.0, "tenth": 0.1, "tiny": 5e-324}
    odd = np.arange(20, dtype="f8")[::2] / 3
    curves = {
        "loss": torch.tensor([1.0, math.nan, math.inf, -0.0], requires_grad=True),
        "rate": odd,
        "big": odd.astype(">f4"),
        "none": np.zeros(0, dtype="f4"),
        "scalar": np.ones(1),
    }
    config = {"a": None, "b": [1, 2.5, True], "c": {"d": "é\n\ud800"}, "e": 10**30}
    record = Record("k", "g", "diverged", config, numbers, curves, "file \udcff\x00", 0.25, "in a file")
    with Store.open(tmp_path / "a ?#%20 é") as runs:
        runs.add([record])
    with Store.read(tmp_path / "a ?#%20 é") as runs:
        (back,) = runs.records()
        found = runs.curves("k")
        rate = runs.curve("k", "rate")
    assert {n: x.hex() for n, x in back.metrics.items()} == {n: x.hex() for n, x in numbers.items()}
    assert back.config == config
    assert (back.status, back.error, back.seconds, back.group, back.curves) == ("diverged", record.error, 0.25, "g", {})
    assert list(found) == list(curves)
    assert {n: x.dtype for n, x in found.items()} == {
        "loss": torch.float32, "rate": torch.float64, "big": torch.float32, "none": torch.float32,
        "scalar": torch.float64,
    }  # fmt: skip
    assert found["loss"].numpy().tobytes() == curves["loss"].detach().numpy().tobytes()
    assert rate.tolist() == odd.tolist()
    assert found["big"].tolist() == odd.astype("f4").tolist()
    assert (len(found["none"]), found["scalar"].tolist()) == (0, [1.0])
    assert list(contents(tmp_path / "a ?#%20 é")) == ["runs.sqlite"]


def test_runs_are_listed_in_order_and_by_config(tmp_path: Path) -> None:
    with Store.open(tmp_path) as runs:
        runs.add([run(9, config={"width": 64, "bias": True, "init": None, "sizes": [1, 2]}), run(3, status="failed")])
        runs.add([run(5), run(1, status="diverged")])

        def listed(status: str | None = None, **where: Any) -> list[str]:
            return [r.key for r in runs.records(where, status)]

        assert listed() == ["key-9", "key-3", "key-5", "key-1"]
        assert listed(width=64) == ["key-9"]
        assert listed(width=[256, 128]) == ["key-3", "key-5", "key-1"]
        assert listed("done", init=None) == ["key-9", "key-5"]
        assert listed(width=128, seed=(1, 9)) == ["key-1"]
        assert listed(sizes=[[1, 2]]) == ["key-9"]
        assert (listed(bias=True), listed(bias=1)) == (["key-9"], [])
        assert runs.keys() == {"key-1", "key-3", "key-5", "key-9"}
        assert runs.keys("failed") == {"key-3"}
        assert len(runs) == 4
        with pytest.raises(ValueError, match=r"where must name fields of config; got 'widht'. Did you mean 'width'?"):
            listed(widht=64)
        with pytest.raises(ValueError, match="status must be one of 'done', 'diverged', 'failed'; got 'Done'"):
            listed("Done")
        with pytest.raises(ValueError, match="curve of run 'key-9' must be one of 'loss'; got 'los'"):
            runs.curve("key-9", "los")
        with pytest.raises(ValueError, match="run 'key-7' is not in"):
            runs.curves("key-7")


def test_a_key_is_added_once_and_can_be_forgotten(tmp_path: Path) -> None:
    with Store.open(tmp_path) as runs:
        runs.add([run(0), run(1, status="failed", error="out of memory"), run(2)])
        with pytest.raises(ValueError, match=r"run 'key-1' is in .* already, or comes twice. To replace it, forget it"):
            runs.add([run(3), run(1)])
        with pytest.raises(ValueError, match=r"run 'key-4' is in .* already, or comes twice"):
            runs.add([run(4), run(5), run(4)])
        with pytest.raises(ValueError, match="run 'key-9' is not in"):
            runs.forget(["key-1", "key-9"])
        with pytest.raises(TypeError, match="got the text 'key-1'"):
            runs.forget("key-1")
        assert runs.keys() == {"key-0", "key-1", "key-2"}
        runs.forget(runs.keys("failed"))
        runs.add([run(1)])
        runs.add([])
        assert [r.key for r in runs.records(status="done")] == ["key-0", "key-2", "key-1"]
        assert runs.curve("key-1", "loss")[0] == 2.0  # its own curve, not that of the run before it


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "ok"}, "status of run 'key-0' cannot be stored: .* 'done', 'diverged' or 'failed'; got 'ok'"),
        ({"group": " "}, "group of run 'key-0' cannot be stored: .*must be a name that can be printed; got ' '"),
        ({"error": OSError("x")}, r"error of run .*valid string; got OSError\('x'\)"),
        ({"seconds": math.nan}, "seconds of run .*finite number; got nan"),
        ({"seconds": -1.0}, "seconds of run .*greater than or equal to 0; got -1.0"),
        ({"config": {"x": math.inf}}, "config of run .*not JSON compliant"),
        ({"config": {"x": {1}}}, "config.x of run .*not a valid JSON value"),
        ({"config": {"x": (1, 2)}}, "config.x of run .*not a valid JSON value"),
        ({"config": {1: 2}}, "config.1.* of run .*valid string; got 1"),
        ({"metrics": {"x": "1"}}, "metrics.x of run .*valid number; got '1'"),
        ({"metrics": {"x": True}}, "metrics.x of run .*valid number; got True"),
        ({"metrics": {"": 1.0}}, "metrics.* of run .*must be a name that can be printed; got ''"),
        ({"curves": {"\n": np.zeros(2)}}, "of run .*must be a name that can be printed"),
        (
            {"curves": {"x": np.zeros((2, 2))}},
            r"'x' must be a vector of float32 or float64; got float64 of shape \[2, 2",
        ),
        ({"curves": {"x": torch.zeros(2, dtype=torch.bfloat16)}}, r"got bfloat16 of shape \[2\]. Convert it first"),
        ({"curves": {"x": [1.0]}}, "got list"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with Store.open(tmp_path) as runs:
        with pytest.raises(ValueError, match=said):
            runs.add([run(1), run(0, **changes)])
        with pytest.raises(ValueError, match=r"key of run '' cannot be stored: .*must be a name"):
            runs.add([Record("", "g", "done", {}, {})])
        assert len(runs) == 0


def test_a_damaged_curve_is_refused_at_every_byte() -> None:
    blob = pack("loss", np.linspace(0, 1, 50, dtype="f4"))
    for place in range(len(blob)):
        worse = bytearray(blob)
        worse[place] ^= 16
        with pytest.raises(ValueError, match="Curve 'loss' is damaged"):
            unpack("loss", bytes(worse))
    for length in range(len(blob)):
        with pytest.raises(ValueError, match="damaged"):
            unpack("loss", blob[:length])


def test_an_interruption_leaves_a_group_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, encode = iter([None, KeyboardInterrupt()]), store.encode

    def second_fails(record: Record) -> tuple[Any, ...]:
        problem = next(calls)
        if problem:
            raise problem
        return encode(record)

    with Store.open(tmp_path) as runs:
        runs.add([run(0)])
        with monkeypatch.context() as patch:
            patch.setattr(store, "encode", second_fails)
            with pytest.raises(KeyboardInterrupt):
                runs.add([run(1), run(2), run(3)])
        assert runs.keys() == {"key-0"}
        runs.add([run(1), run(2), run(3)])
        assert len(runs) == 4


# One driver, many readers.


def test_a_second_driver_is_refused_at_once_and_told_who_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as runs:
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waited for {seconds} s"))
            with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on .*, since 2.*reading is possible"):
                Store.open(tmp_path)
        code = "try:\n Store.open(sys.argv[1])\nexcept BlockingIOError as error:\n print(error)"
        said, _ = child(code, tmp_path).communicate(timeout=PATIENCE)
        assert f"process {os.getpid()} on " in said
        (tmp_path / "runs.driver").write_text("{")
        with pytest.raises(BlockingIOError, match="a process that has not yet said its name"):
            Store.open(tmp_path)
        runs.add([run(0)])
    with Store.open(tmp_path) as runs:
        assert len(runs) == 1


@pytest.mark.parametrize("name", ["runs.driver", "runs.lock"])
def test_a_file_of_another_program_is_not_taken_for_a_lock(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("notes of mine")
    with pytest.raises(FileError, match=rf"{name} would be replaced, and was not made by nfd\. Nothing was changed"):
        Store.open(tmp_path)
    assert contents(tmp_path).keys() | {name} == {name}
    assert (tmp_path / name).read_text() == "notes of mine"
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(FileError, match="was not made by nfd"):
        Store.open(tmp_path)


@pytest.mark.parametrize("note", ["", "{", '{"pid": 1, "host": "there", "since": "then"}\n'])
def test_what_a_killed_driver_left_is_taken_for_ours(note: str, tmp_path: Path) -> None:
    (tmp_path / "runs.lock").touch()
    (tmp_path / "runs.driver").write_text(note)
    with Store.open(tmp_path):
        assert json.loads((tmp_path / "runs.driver").read_text())["pid"] == os.getpid()


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    holder = child("runs = Store.open(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.read()", tmp_path, stdin=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(BlockingIOError, match=f"process {holder.pid} on"):
        Store.open(tmp_path)
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    assert (tmp_path / "runs.driver").exists()  # a note is not a lock
    with Store.open(tmp_path) as runs:
        runs.add([run(0)])
        assert json.loads((tmp_path / "runs.driver").read_text())["pid"] == os.getpid()


def test_readers_follow_a_driver_and_change_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path) as driver, Store.read(tmp_path) as early:
        assert len(early) == 0
        driver.add([run(0), run(1)])
        with Store.read(tmp_path) as late:
            assert early.keys() == late.keys() == {"key-0", "key-1"}
            driver.add([run(2)])
            assert (len(early), len(late)) == (3, 3)
            with pytest.raises(PermissionError, match=r"Store.read cannot add runs"):
                late.add([run(3)])
            with pytest.raises(PermissionError, match=r"Store.read cannot forget runs"):
                late.forget(["key-0"])
            assert late._database is not None
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                late._database.execute("DELETE FROM runs")
    assert list(contents(tmp_path)) == ["runs.sqlite"]
    before = contents(tmp_path)
    with Store.read(tmp_path) as late:
        assert late.curve("key-2", "loss")[0] == 3.0
    assert contents(tmp_path) == before
    with pytest.raises(ValueError, match=r"is closed. Open it again"):
        len(late)
    with pytest.raises(ValueError, match="is closed"):
        late.add([run(3)])
    late.close()


def test_another_program_that_holds_the_file_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAIT", 0.05)
    with (
        Store.open(tmp_path) as runs,
        closing(sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="another program holds it; nothing of this was added") as raised:
            runs.add([run(0)])
        assert raised.value.errno == errno.EBUSY
        other.execute("ROLLBACK")
        runs.add([run(0)])
        assert len(runs) == 1


def test_nothing_depends_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9, 0, -(10**7)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for module in (lock, store):
        monkeypatch.setattr(module, "timestamp", lambda: time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(next(clock))))
    for i in range(3):
        with Store.open(tmp_path) as runs:
            runs.add([run(2 * i), run(2 * i + 1)])
    with closing(sqlite3.connect(tmp_path / "runs.sqlite")) as raw:
        created = [row[0] for row in raw.execute("SELECT created FROM runs ORDER BY id")]
    assert created == sorted(created, reverse=True)
    assert created[0] > created[-1]
    with Store.read(tmp_path) as runs:
        assert [r.key for r in runs.records()] == [f"key-{i}" for i in range(6)]


# Places where a store cannot be.


def test_where_there_is_no_sweep(tmp_path: Path) -> None:
    for place in ("", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            FileNotFoundError, match=r"No sweep in .*: there is no runs.sqlite. Run nfd sweep there first"
        ):
            Store.read(place)
    assert contents(tmp_path) == {}
    with pytest.raises(ValueError, match="out must name a directory"):
        Store.open("")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="out must be a directory that can be written"):
        Store.open(tmp_path / "file")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url)")
        other.execute("PRAGMA journal_mode = WAL")


@pytest.mark.parametrize("opened", [Store.open, Store.read])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (foreign, "is a database of another program: its application_id is 00000000, not 6e666473"),
        (
            lambda path: path.write_text("key,loss\n" * 99),
            "is not a database, or a damaged one: it begins with b'key,loss",
        ),
        (lambda path: path.write_bytes(b""), "is not a database, or a damaged one: it begins with b''"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(50)), "is not a database, or a damaged one"),
        (lambda path: path.mkdir(), "must be a file with the runs of a sweep; it is something else"),
        (os.mkfifo, "must be a file with the runs of a sweep; it is something else"),
    ],
)
def test_what_is_not_ours_stays_as_it_was(
    tmp_path: Path, make: Callable[[Path], object], said: str, opened: Callable[[Path], Store]
) -> None:
    make(tmp_path / "runs.sqlite")
    names, before = sorted(os.listdir(tmp_path)), contents(tmp_path)
    with pytest.raises(ValueError, match=f"{said}.*It was not changed. Move it away or choose another directory"):
        opened(tmp_path)
    assert (sorted(os.listdir(tmp_path)), contents(tmp_path)) == (names, before)


def long_run(i: int) -> Record:
    return run(i, curves={"loss": np.random.default_rng(i).standard_normal(5000)})


def everything(directory: Path) -> Any:
    with Store.read(directory) as runs:
        records = runs.records()
        return [(repr(r), {n: x.tolist() for n, x in runs.curves(r.key).items()}) for r in records]


@pytest.mark.parametrize("how", ["noise", "zeros", "one byte", "cut"])
def test_damage_is_refused_or_harmless_wherever_it_is(tmp_path: Path, how: str) -> None:
    """Each page in turn: never a wrong answer. SQLite notices broken structure, checksums notice broken content."""
    whole = filled(tmp_path, groups=30)
    with Store.open(tmp_path) as runs:
        runs.add([run(900, config={"text": "long " * 5000}), long_run(901)])
    good, right = whole.read_bytes(), everything(tmp_path)
    noise = random.Random(7)
    refused = 0
    for place in range(0, len(good), 4096):
        bad = bytearray(good)
        if how == "cut":
            del bad[place + noise.randrange(4096) :]
        elif how == "one byte":
            bad[place + noise.randrange(4096)] ^= 255
        else:
            bad[place : place + 4096] = bytes(4096) if how == "zeros" else noise.randbytes(4096)
        whole.write_bytes(bad)
        before = contents(tmp_path)
        try:
            assert everything(tmp_path) == right
        except ValueError as error:
            refused += 1
            assert any(word in str(error) for word in ("damaged", "written by version", "another program"))  # noqa: PT017
        assert contents(tmp_path) == before
        if how == "cut":
            with pytest.raises(ValueError, match="It was not changed"):
                Store.open(tmp_path)
            assert contents(tmp_path) == before
    pages = len(good) // 4096
    assert pages >= 20
    assert refused >= (0.5 if how == "one byte" else 1) * pages


def test_a_damaged_database_with_a_log_stays_as_it_was(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as runs:
        runs.add([run(i) for i in range(20)])
        assert runs._database is not None
        runs._database.execute("PRAGMA wal_checkpoint")
        runs.add([run(20)])
        (tmp_path / "b").mkdir()
        for name in ("runs.sqlite", "runs.sqlite-wal"):
            shutil.copy(tmp_path / "a" / name, tmp_path / "b")
    with (tmp_path / "b" / "runs.sqlite").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 7)  # every page but the first; the log replaces only some of them
    before = contents(tmp_path / "b")
    for opened in (Store.read, Store.open):
        with pytest.raises(ValueError, match=r"runs.sqlite is damaged .*. It was not changed. Restore it from a copy"):
            opened(tmp_path / "b")
        assert contents(tmp_path / "b") == before


def test_listing_does_not_read_curves(tmp_path: Path) -> None:
    with closing(sqlite3.connect(filled(tmp_path))) as raw, raw:
        raw.execute("UPDATE curves SET content = x'00' WHERE run = 2")
        raw.execute("UPDATE runs SET seconds = 9 WHERE id = 12")
    with Store.read(tmp_path) as runs:
        with pytest.raises(ValueError, match=r"Curve 'loss of run number 2 in .*runs.sqlite' is damaged: its 1 bytes"):
            runs.curves("key-1")
        assert len(runs.keys()) == 12
        with pytest.raises(
            ValueError, match=r"Run 'key-11' in .*runs.sqlite is damaged: its row does not match its checksum"
        ):
            runs.records()


# Versions.


@pytest.mark.parametrize("opened", [Store.open, Store.read])
@pytest.mark.parametrize(("version", "whose"), [(0, "the"), (7, "a newer")])
def test_another_version_is_refused_by_number(
    tmp_path: Path, version: int, whose: str, opened: Callable[[Path], Store]
) -> None:
    with closing(sqlite3.connect(filled(tmp_path))) as raw:
        raw.execute(f"PRAGMA user_version = {version}")
    before = contents(tmp_path)
    said = f"written by version {version} of the store; this nfd reads version 1. It was not changed. Use {whose} nfd"
    with pytest.raises(ValueError, match=said):
        opened(tmp_path)
    assert contents(tmp_path) == before


def test_a_store_of_version_1_is_read_and_written(tmp_path: Path) -> None:
    """The file was made by version 0.1.0 of the library and is kept as it was."""
    shutil.copy(Path(__file__).parent / "stores" / "version-1" / "runs.sqlite", tmp_path)
    for opened in (Store.read, Store.open):
        with opened(tmp_path) as runs:
            records, loss = runs.records(), runs.curve("a", "loss")
            assert (loss.dtype, loss.tolist()) == (torch.float32, [1.5, 0.25])
            assert runs.curve("a", "rate").tolist() == [1 / 3]
            assert runs.curve("b", "loss").tolist() == [1.0, math.inf]
        assert [(r.key, r.group, r.status, r.seconds) for r in records] == [
            ("a", "g", "done", 1.5), ("b", "g", "diverged", 2.0), ("c", "h", "failed", 0.0),
        ]  # fmt: skip
        assert records[0].config == {"width": 8, "rule": "mup", "eta_c": 0.1, "data_dir": None, "sizes": [1, 2]}
        assert records[0].metrics == {"loss": 0.1, "tiny": 5e-324}
        assert repr(records[1].metrics) == "{'up': inf, 'down': -inf, 'none': nan}"
        assert records[2].error == "OSError: no \udcff\n"
    with Store.open(tmp_path) as runs:
        runs.add([run(0)])
        assert len(runs) == 4


def test_a_store_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nfd.store.database.os.replace", fails)
        with pytest.raises(OSError, match="No space left"):
            Store.open(tmp_path)
    assert contents(tmp_path) == {}
    (tmp_path / "runs.sqlite.new").write_text("left by a crash")
    path = filled(tmp_path)
    assert list(contents(tmp_path)) == ["runs.sqlite"]
    path.rename(tmp_path / "runs.sqlite-wal")
    with pytest.raises(
        ValueError, match=r"runs.sqlite-wal holds runs of a database that is gone. Put runs.sqlite back"
    ):
        Store.open(tmp_path)
    with closing(sqlite3.connect(filled(tmp_path / "b"))) as raw:
        facts = [
            raw.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version", "journal_mode")
        ]
    assert facts == [0x6E666473, 1, "wal"]
    with Store.open(tmp_path / "b") as runs:
        assert runs._database is not None
        assert runs._database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


# Full disks and crashes.


def test_a_full_database_keeps_what_it_has_and_goes_on_later(tmp_path: Path) -> None:
    with Store.open(tmp_path) as runs, Store.read(tmp_path) as reader:
        runs.add([run(0), run(1)])
        assert runs._database is not None
        pages = runs._database.execute("PRAGMA page_count").fetchone()[0]
        runs._database.execute(f"PRAGMA max_page_count = {pages + 15}")  # a long run takes ten pages
        with pytest.raises(OSError, match=r"the disk is full; nothing of this was added.*is safe.*resume") as raised:
            runs.add([long_run(2), long_run(3), long_run(4)])
        assert raised.value.errno == errno.ENOSPC
        assert raised.value.filename == str(tmp_path / "runs.sqlite")
        assert runs.keys() == reader.keys() == {"key-0", "key-1"}
        assert runs.curve("key-1", "loss")[0] == 2.0
        runs._database.execute("PRAGMA max_page_count = 100000")
        runs.add([long_run(2), long_run(3), long_run(4)])
        assert len(reader) == 5


FILLING = """
import errno, resource
def group(g):
    loss = np.random.default_rng(g).standard_normal(5000)
    return [Record(f"{g}.{i}", str(g), "done", {}, {}, {"loss": loss}) for i in range(3)]
with Store.open(sys.argv[1]) as runs:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    for g in range(99):
        try:
            runs.add(group(g))
        except OSError as error:
            assert error.errno == errno.EIO, error
            assert "reading or writing failed; nothing of this was added" in str(error), error
            assert "runs.sqlite" in str(error), error
            break
    assert 3 <= g < 12 and len(runs) == 3 * g, g
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    runs.add(group(g))
print(3 * (g + 1))
"""


def test_a_limit_on_the_size_of_files_is_survived(tmp_path: Path) -> None:
    said, _ = child(FILLING, tmp_path).communicate(timeout=PATIENCE)
    assert said.strip().isdigit(), said
    with Store.open(tmp_path) as runs:
        assert len(runs) == int(said)
        assert all(len(runs.curve(key, "loss")) == 5000 for key in runs.keys())  # noqa: SIM118


def fill(runs: Store) -> None:
    for i in range(0, 300, 3):
        runs.add([long_run(i), long_run(i + 1), long_run(i + 2)])


@pytest.mark.slow
def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        with Store.open(tmp_path) as runs:
            filler = tmp_path / "filler"
            filler.write_bytes(bytes(2**19))
            with pytest.raises(OSError, match="the disk is full; nothing of this was added") as raised:
                fill(runs)
            assert raised.value.errno == errno.ENOSPC
            added = len(runs)
            assert added >= 3
            assert added % 3 == 0
        with Store.read(tmp_path) as runs:
            assert len(runs) == added
        filler.unlink()
        with Store.open(tmp_path) as runs:
            runs.add([long_run(500)])
            assert len(runs) == added + 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_driver_loses_nothing_and_halves_nothing(tmp_path: Path, times: int) -> None:
    """Killed with a group promised, another written in full or by halves and not committed, or wherever it is then."""
    chance = random.Random(times)
    promised = 0
    for _ in range(times):
        groups, runs_of_a_group = chance.randrange(1, 5), chance.randrange(4)
        driver = child(STOPPING + ADDING, tmp_path, groups, runs_of_a_group)
        assert driver.stdout is not None
        promised += len(list(itertools.takewhile(lambda line: line != "stopped\n", driver.stdout)))
        driver.send_signal(signal.SIGKILL)
        driver.communicate(timeout=PATIENCE)
        with Store.read(tmp_path) as runs:
            assert len(runs) == 3 * promised
        with Store.open(tmp_path) as runs:
            named = [r.group for r in runs.records()]
            assert {named.count(g) for g in named} == {3}
            assert all(len(runs.curve(key, "loss")) == 1000 for key in runs.keys())  # noqa: SIM118
            assert runs._database is not None
            assert runs._database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert promised >= times


# Where nothing can be written.


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that any user can reach: tests by root read it as nobody."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def as_nobody(code: str, directory: Path) -> str:
    """What the code prints when it may write nothing; root, whom permissions do not bind, steps down first."""
    down = "import urllib.parse\n"  # pathlib's, loaded late and perhaps from where nobody may read
    down += "if os.geteuid() == 0:\n os.setgroups([])\n os.setgid(65534)\n os.setuid(65534)\n"
    said, _ = child(down + code, directory, cwd="/").communicate(timeout=PATIENCE)
    return said.strip()


READING = "runs = Store.read(sys.argv[1])\nprint(len(runs), len(runs.records()), runs.path.name)\nruns.close()"


def test_a_directory_that_cannot_be_written_is_read(open_directory: Path) -> None:
    path = filled(open_directory)
    before = contents(open_directory)
    for file_mode, directory_mode in ((0o444, 0o555), (0o644, 0o555), (0o444, 0o777)):
        path.chmod(file_mode)
        open_directory.chmod(directory_mode)
        assert as_nobody(READING, open_directory) == "12 12 runs.sqlite"
        assert contents(open_directory) == before
    path.chmod(0o644)
    open_directory.chmod(0o555)
    refused = "try:\n Store.open(sys.argv[1])\nexcept ValueError as error:\n print(error)"
    assert "out must be a directory that can be written" in as_nobody(refused, open_directory)


def test_a_driver_at_work_is_read_by_one_who_cannot_write(open_directory: Path) -> None:
    with Store.open(open_directory) as runs:
        runs.add([run(0), run(1)])
        open_directory.chmod(0o555)
        assert as_nobody(READING, open_directory) == "2 2 runs.sqlite"
        copy = open_directory.with_name(open_directory.name + "-copy")
        copy.mkdir()
        try:
            for name in ("runs.sqlite", "runs.sqlite-wal"):  # a log without its index cannot be read in place
                shutil.copy(open_directory / name, copy)
            copy.chmod(0o555)
            code = "try:\n Store.read(sys.argv[1])\nexcept OSError as error:\n print(error)"
            assert "not all of it can be read here. Copy its directory and read the copy" in as_nobody(code, copy)
        finally:
            shutil.rmtree(copy)


# Speed.


def test_the_work_of_opening_is_that_of_one_run_and_of_listing_that_of_each(tmp_path: Path) -> None:
    """Ten thousand runs are opened and listed in a second, because they take few calls each."""
    loss = np.exp(-np.arange(1000) / 300).astype("f4")

    def works(count: int) -> tuple[int, int, int]:
        """Calls of opening, of listing all and of listing some."""
        directory = tmp_path / str(count)
        with Store.open(directory) as runs:
            runs.add(run(i, curves={"loss": loss}) for i in range(count))
        opened: list[Store] = []
        opening = calls(lambda: opened.append(Store.read(directory)))
        with opened[0] as runs:
            listing = calls(runs.records)
            some = calls(lambda: runs.records({"width": [64, 128], "init": None}, "done"))
            assert len(runs.records()) == count
            assert len(runs.records({"width": [64, 128], "init": None}, "done")) == count // 2
        return opening, listing, some

    works(4)  # what is imported on the way
    (opening, listing, some), (opening_many, listing_many, some_many) = works(100), works(1000)
    assert opening_many == opening
    assert listing_many < min(10 * listing, 100 * 1000)
    assert some_many < min(10 * some, 200 * 1000)
