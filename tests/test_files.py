"""Files are whole or absent, and a directory of something else stays as it is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import nfd
from nfd.core.files import prepare_results, replace_file, staged, write_csv, write_json, write_text


def names_in(directory: Path) -> set[str]:
    """The files of a directory, but for hidden ones."""
    return {path.name for path in directory.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_leaves_everything_as_it_was(tmp_path: Path, fault: BaseException) -> None:
    with staged(tmp_path) as folder:
        write_json(folder / "a.json", {"value": 1})
        assert not (tmp_path / "a.json").exists()

    def rewritten() -> None:
        with staged(tmp_path) as folder:
            write_json(folder / "a.json", {"value": 2})
            raise fault

    with pytest.raises(type(fault)) as raised:
        rewritten()
    assert isinstance(fault, KeyboardInterrupt) or "nothing was changed in it" in str(raised.value)
    assert json.loads((tmp_path / "a.json").read_text()) == {"value": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"a.json"}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "text")
    assert path.read_bytes() == b"old"
    assert [beside.name for beside in path.parent.iterdir()] == ["a"]


def test_a_directory_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    with pytest.raises(OSError, match=r"holds 'notes.txt', which nfd did not make. Nothing was changed.*--out DIR"):
        prepare_results(tmp_path)
    assert names_in(tmp_path) == {"notes.txt"}
    ours = prepare_results(tmp_path / "out")
    write_text(ours / "a.csv", "ours")
    assert prepare_results(ours) == ours
    with nfd.Sweep(tmp_path / "sweep"):
        pass
    prepare_results(tmp_path / "sweep")


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"x": [math.nan, 1.0, (math.inf,)], "y": {"z": None}})
    assert json.loads(path.read_text()) == {"x": [None, 1.0, [None]], "y": {"z": None}}


def test_csv_and_directories(tmp_path: Path) -> None:
    deep = prepare_results(tmp_path / "a" / "b")
    assert write_csv(deep / "t.csv", [{"x": 1, "y": "p,q"}]).read_bytes() == b'x,y\r\n1,"p,q"\r\n'
    assert write_csv(deep / "e.csv", []).exists()
    uneven = write_csv(deep / "u.csv", [{"x": 1}, {"x": 2, "y": 3}])
    assert uneven.read_bytes() == b"x,y\r\n1,\r\n2,3\r\n"
