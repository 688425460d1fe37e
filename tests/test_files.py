"""Files are whole or absent; pages cannot be broken by what they show."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nfd
from nfd.core.files import prepare_directory, staged, write_bytes, write_csv, write_json, write_text
from nfd.core.ownership import MARKER, made_here
from nfd.questions.finding import Axes
from nfd.report.charts import Series, curves
from nfd.report.page import Section, page


def names_in(directory: Path) -> set[str]:
    """The files beside the list of those that are ours."""
    return {path.name for path in directory.iterdir()} - {MARKER}


def test_staged_files_appear_together_and_what_they_replace_goes(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with staged(tmp_path) as folder:
        write_text(folder / "old.csv", "old")
    with staged(tmp_path, replaced=["old.csv", "a.json", "never.csv"]) as folder:
        write_json(folder / "a.json", {"value": 1})
        assert not (tmp_path / "a.json").exists()
    assert names_in(tmp_path) == {"a.json", "mine.txt"}
    (tmp_path / "loss-mine.csv").write_text("kept")
    with staged(tmp_path) as folder:
        write_text(folder / "loss-mup.csv", "old")
    with staged(tmp_path, replaced=["loss-*.csv"]):
        pass
    assert names_in(tmp_path) == {"a.json", "mine.txt", "loss-mine.csv"}


def rewritten(directory: Path) -> None:
    with staged(directory, replaced=["a.json", "old.csv"]) as folder:
        write_json(folder / "a.json", {"value": 2})
        write_bytes(folder / "b.bin", b"half")


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    with staged(tmp_path) as folder:
        write_json(folder / "a.json", {"value": 1})
        write_text(folder / "old.csv", "old")
    calls = iter([None, fault])

    def second_fails(*_: object) -> None:
        problem = next(calls)
        if problem:
            raise problem

    monkeypatch.setattr("nfd.core.files.os.fsync", second_fails)
    with pytest.raises(type(fault)) as raised:
        rewritten(tmp_path)
    assert isinstance(fault, KeyboardInterrupt) or "nothing was changed in it" in str(raised.value)
    assert json.loads((tmp_path / "a.json").read_text()) == {"value": 1}
    assert names_in(tmp_path) == {"a.json", "old.csv"}


def test_a_directory_in_the_way_is_noticed_before_the_first_move(tmp_path: Path) -> None:
    (tmp_path / "b.bin").mkdir()
    with pytest.raises(OSError, match=r"b.bin is a directory where a file should go; nothing was changed"):
        rewritten(tmp_path)
    assert names_in(tmp_path) == {"b.bin"}


def test_the_files_of_two_writers_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def slowly(*names: Path) -> None:
        time.sleep(0.005)
        replace(*names)

    def write(name: str) -> None:
        with staged(tmp_path) as folder:
            for k in range(8):
                (folder / f"{k}.txt").write_text(name)
            both.wait()

    monkeypatch.setattr("nfd.core.staging.os.replace", slowly)
    monkeypatch.setattr("nfd.core.staging._PATIENCE", 600.0)  # on a busy machine the moves of one writer may take long
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, "ab"))
    assert len({(tmp_path / f"{k}.txt").read_text() for k in range(8)}) == 1


def test_a_directory_that_another_program_has_locked_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("nfd.core.staging._PATIENCE", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with staged(tmp_path) as folder:
            write_text(folder / "a.txt", "written")
    finally:
        os.close(held)
    assert names_in(tmp_path) == {"a.txt"}


def test_an_interruption_waits_for_the_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupted(*names: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        replace(*names)

    monkeypatch.setattr("nfd.core.staging.os.replace", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            rewritten(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert names_in(tmp_path) == {"a.json", "b.bin"}


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out must be a name in UTF-8"):
        prepare_directory(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"x": [math.nan, 1.0, (math.inf,)], "y": {"z": None}})
    assert json.loads(path.read_text()) == {"x": [None, 1.0, [None]], "y": {"z": None}}


def test_csv_and_directories(tmp_path: Path) -> None:
    deep = prepare_directory(tmp_path / "a" / "b")
    assert write_csv(deep / "t.csv", [{"x": 1, "y": "p,q"}]).read_bytes() == b'x,y\r\n1,"p,q"\r\n'
    signed = write_csv(deep / "s.csv", [{"-0.5": "-1e-3", "b": "-1+2", "c": -2.5, "d": "+1", "e": "-x"}])
    assert signed.read_bytes() == b"-0.5,b,c,d,e\r\n-1e-3,'-1+2,-2.5,+1,'-x\r\n"
    assert write_csv(deep / "e.csv", []).exists()
    uneven = write_csv(deep / "u.csv", [{"x": 1}, {"x": 2, "y": 3}])
    assert uneven.read_bytes() == b"x,y\r\n1,\r\n2,3\r\n"


def test_hostile_names_stay_text() -> None:
    evil = "</script><script>alert(1)</script>"
    rows = [{"series": evil, "step": 0, "loss": 1.0, "low": 0.9, "high": 1.1}]
    chart = curves(rows, [Series(evil, "#000000")], Axes("step", "loss", evil, evil, "curves"))
    text = page(evil, [Section(evil, [evil], chart, [{evil: evil}], evil)])
    assert "<script>alert" not in text
    assert text.count("</script>") == 2


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """The folder of a writer at work stays: its lock is held."""
    killed = """
import os, sys
from pathlib import Path
from nfd.core.files import staged
with staged(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("x")
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    with staged(tmp_path) as first:
        assert not left.exists()
        with staged(tmp_path) as second:
            assert first.exists()
            write_text(second / "b", "2")
        write_text(first / "a", "1")
    assert names_in(tmp_path) == {"a", "b"}


KILLED_AT = """
import os, sys
from pathlib import Path
from nfd.core.files import prepare_directory, staged, write_text
directory, calls = Path(sys.argv[1]), iter(range(int(sys.argv[2])))
def dying(call):
    def stopped(*arguments, **options):
        if next(calls, None) is None:
            os._exit(9)
        return call(*arguments, **options)
    return stopped
with staged(directory, replaced=["a", "b", "c", "old"]) as folder:
    for name in "abc":
        write_text(folder / name, "new")
    os.replace, os.unlink, os.rename, os.rmdir = map(dying, (os.replace, os.unlink, os.rename, os.rmdir))
"""


@pytest.mark.parametrize("steps", range(8))
def test_a_writer_killed_at_any_move_leaves_no_mix_to_the_next_one(tmp_path: Path, steps: int) -> None:
    """Renaming the folder, removing an old file, four moves, removing the folder: killed before each, and after all."""
    with staged(tmp_path) as folder:
        for name in ("a", "b", "old"):
            write_text(folder / name, "old")
    code = subprocess.run([sys.executable, "-c", KILLED_AT, str(tmp_path), str(steps)], check=False).returncode
    assert code == (9 if steps < 7 else 0)
    prepare_directory(tmp_path, ["a", "b", "c", "old"])  # as the next command does
    old, new = {"a": "old", "b": "old", "old": "old"}, dict.fromkeys("abc", "new")
    files = {name: (tmp_path / name).read_text() for name in names_in(tmp_path)}
    assert files == (old if steps == 0 else new)
    assert made_here(tmp_path) == {*files, MARKER}


def test_a_complete_folder_that_we_did_not_make_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    (tmp_path / ".complete-x").mkdir()
    (tmp_path / ".complete-x" / "notes.txt").write_text("another's")
    with pytest.raises(OSError, match=r"notes.txt would be replaced, and was not made by nfd"):
        prepare_directory(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "theirs"


def test_a_disk_that_fails_in_the_middle_of_the_moves_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, calls = os.replace, iter(range(2))

    def fails(*names: Path) -> None:
        if next(calls, None) is None:
            raise OSError(5, "Input/output error")
        replace(*names)

    with staged(tmp_path) as folder:
        write_json(folder / "a.json", {"value": 1})
        write_text(folder / "old.csv", "old")
    with monkeypatch.context() as patch:
        patch.setattr("nfd.core.staging.os.replace", fails)
        with pytest.raises(OSError, match=r"old and new files are mixed in it; the next command .* moves the rest"):
            rewritten(tmp_path)
    prepare_directory(tmp_path)
    assert names_in(tmp_path) == {"a.json", "b.bin"}
    assert json.loads((tmp_path / "a.json").read_text()) == {"value": 2}


def test_a_link_of_the_name_of_an_unfinished_folder_is_not_followed(tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    write_text(outside / "kept", "1")
    (out / ".unfinished-x").symlink_to(outside)
    with staged(out):
        pass
    assert (outside / "kept").exists()


# ---- files that others made ----------------------------------------------------------------------------------


def written(directory: Path, *names: str) -> None:
    with staged(directory) as folder:
        for name in names:
            write_text(folder / name, "ours")


def test_a_file_that_we_did_not_make_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("theirs")
    (tmp_path / "notes.txt").write_text("theirs")
    with pytest.raises(OSError, match=r"config.toml would be replaced, and was not made by nfd. Nothing was changed"):
        written(tmp_path, "a.csv", "config.toml")
    assert names_in(tmp_path) == {"config.toml", "notes.txt"}
    with pytest.raises(OSError, match=r"config.toml would be replaced.*--out DIR"):
        prepare_directory(tmp_path, ["config.toml"])
    written(prepare_directory(tmp_path, ["a.csv", "loss-*.csv"]), "a.csv")
    written(prepare_directory(tmp_path, ["a.csv"]), "a.csv")  # our own
    with pytest.raises(OSError, match=r"config.toml would be replaced"):  # still theirs, though the directory is ours
        written(tmp_path, "config.toml")
    with staged(tmp_path, replaced=["config.toml", "a.csv"]) as folder:
        write_text(folder / "b.csv", "ours")
    assert (tmp_path / "config.toml").read_text() == "theirs"
    assert names_in(tmp_path) == {"config.toml", "notes.txt", "b.csv"}
    assert made_here(tmp_path) == {"b.csv", MARKER}


@pytest.mark.parametrize(
    ("name", "content", "ours"),
    [
        ("result.json", b'{"command": "nfd study --steps 3"}', True),
        ("result.json", b'{"command": "make nfd"}', False),
        ("result.json", b'{"value": 1}', False),
        ("result.json", b"no JSON", False),
        ("runs.sqlite", b"SQLite format 3".ljust(68, b"\0") + b"nfds", True),
        ("runs.sqlite", b"SQLite format 3".ljust(100, b"\0"), False),
        (MARKER, b'{"made_by": "another", "files": ["config.toml"]}', False),
        (MARKER, b'{"made_by": "nfd", "files": ["config.toml"]}', True),
    ],
)
def test_directories_of_the_first_version_are_ours(tmp_path: Path, name: str, content: bytes, ours: bool) -> None:
    (tmp_path / "config.toml").write_text("old")
    (tmp_path / name).write_bytes(content)
    if ours:
        written(tmp_path, "config.toml")
        assert (tmp_path / "config.toml").read_text() == "ours"
        assert "config.toml" in made_here(tmp_path)
    else:
        with pytest.raises(OSError, match="was not made by nfd"):
            written(tmp_path, "config.toml")
        assert (tmp_path / "config.toml").read_text() == "old"


def test_a_plan_replaces_a_plan_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = nfd.plan(nfd.ResNet(3, 2, 8, 2), rule="depth-mup", optimizer="sgd")
    for _ in range(2):
        plan.save(path)
    assert nfd.Plan.load(path) == plan
    for content in ('{"my": "data"}', "my notes"):
        path.write_text(content)
        with pytest.raises(OSError, match="is not a plan and would be replaced"):
            plan.save(path)
        assert path.read_text() == content
