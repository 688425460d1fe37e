"""Files are whole or absent; pages cannot be broken by what they show."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nfd
from nfd.core.files import prepare_directory, staged, write_bytes, write_csv, write_json, write_text
from nfd.core.ownership import MARKER, made_here


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
