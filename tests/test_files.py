"""Files are whole or absent, and a directory of something else stays as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import nfd
from nfd.core.files import prepare_results, replace_file, staged, write_json, write_text


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


def test_a_link_stays_and_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "a").write_bytes(b"old")
    link.symlink_to(tmp_path / "a")
    replace_file(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is neither"):
        replace_file(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").is_fifo()


def test_a_directory_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    with pytest.raises(
        OSError, match=r"holds 'notes.txt', which nfd did not make. Nothing was changed.*--out DIR"
    ):
        prepare_results(tmp_path)
    assert names_in(tmp_path) == {"notes.txt"}
    ours = prepare_results(tmp_path / "out")
    write_text(ours / "a.csv", "ours")
    assert prepare_results(ours) == ours
    with nfd.Sweep(tmp_path / "sweep"):
        pass
    prepare_results(tmp_path / "sweep")
