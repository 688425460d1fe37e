"""The list of wrong edits keeps in step with the code, and what runs it tells noticed from survived."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests import wrong_edits
from tests.wrong_edits import PAGE, ROOT, Edit, applied, edits, judged, key_of, page

AREAS = (
    *("cli", "core", "families", "integrations", "limits", "meters", "nets"),
    *("paper", "questions", "report", "runs", "scaling", "training", "watch"),
)
TOY = Edit("half", "toy.py", "x / 2", "x / 4", "A quarter.", ("test_toy.py::test_half",))


def test_every_edit_fits_the_code_and_names_tests_that_exist() -> None:
    found = edits()
    assert len(found) >= 60
    assert {edit.file.split("/")[0] for edit in found} == set(AREAS)
    for edit in found:
        assert applied((ROOT / edit.path).read_text(), edit) != (ROOT / edit.path).read_text(), edit.name
        assert edit.why.endswith(".")
        for test in edit.tests:
            file, *_, name = test.split("::")
            assert re.search(rf"^ *def {name}\(", (ROOT / "tests" / file).read_text(), flags=re.MULTILINE), test


def test_the_page_lists_every_edit_and_explains_every_survivor() -> None:
    """Made by ``make wrong-edits``."""
    text = PAGE.read_text()
    listed = re.findall(r"^\| ([a-z0-9-]+) \| `", text, flags=re.MULTILINE)
    assert listed == [edit.name for edit in edits()]
    assert "not tested" not in text
    assert "not explained" not in text
    shares = re.search(r"Of (\d+) edits \d+ are noticed by the tests named for them, (\d+) ", text)
    assert shares is not None
    assert int(shares[2]) >= 0.95 * int(shares[1])


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository of one function with one test that looks at it, and one that does not."""
    (tmp_path / "src/nfd").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = ['tests']\n")
    (tmp_path / "src/nfd/toy.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "src/nfd/__init__.py").write_text("")
    looks = "from nfd.toy import half\n\n\ndef test_half():\n    assert half(2) == 1\n"
    (tmp_path / "tests/test_toy.py").write_text(f"{looks}\n\ndef test_zero():\n    assert half(0) == 0\n")
    return tmp_path


def test_a_wrong_edit_is_noticed_by_the_test_that_looks(toy: Path) -> None:
    before = (toy / TOY.path).read_text()
    found = judged(toy, TOY)
    assert (found.verdict, found.by) == ("noticed", "test_toy.py::test_half")
    assert (toy / TOY.path).read_text() == before


@pytest.mark.parametrize(
    ("edit", "suite", "verdict"),
    [
        (replace(TOY, new="x * 0.5"), True, "survived"),  # nothing changes
        (replace(TOY, tests=("test_toy.py::test_zero",)), True, "noticed by the suite"),
        (replace(TOY, tests=("test_toy.py::test_zero",)), False, "not tested"),
    ],
)
def test_what_the_named_tests_pass_goes_to_the_suite(edit: Edit, suite: bool, verdict: str, toy: Path) -> None:
    assert judged(toy, edit, suite=suite).verdict == verdict


def test_an_edit_that_does_not_fit_is_refused(toy: Path) -> None:
    with pytest.raises(ValueError, match="stands there 0 times"):
        judged(toy, replace(TOY, old="x / 3"))
    with pytest.raises(ValueError, match="stands there 2 times"):
        applied("x / 2 + x / 2", TOY)
    with pytest.raises(ValueError, match="no Python"):
        judged(toy, replace(TOY, new="x /"))
    with pytest.raises(RuntimeError, match="pytest could not run"):
        judged(toy, replace(TOY, tests=("test_toy.py::test_none",)))
    assert "x / 2" in (toy / TOY.path).read_text()


def test_an_outcome_is_of_an_edit_its_file_and_its_tests(toy: Path) -> None:
    keys = [key_of(TOY, toy), key_of(replace(TOY, new="x"), toy)]
    for name in ("src/nfd/toy.py", "tests/test_toy.py"):
        (toy / name).write_text((toy / name).read_text() + "# more\n")
        keys.append(key_of(TOY, toy))
    assert len(set(keys)) == 4


def test_the_page_counts_and_explains() -> None:
    names = [replace(TOY, name=name) for name in "abcd"]
    names[2] = replace(names[2], survives="It changes nothing.")
    verdicts = ["noticed", "noticed by the suite", "survived"]
    made = page(names, {name: {"verdict": v, "by": "test_x"} for name, v in zip("abc", verdicts, strict=True)})
    assert "Of 4 edits 1 are noticed by the tests named for them, 2 (50.0%) by the default suite." in made
    assert "- **c**: It changes nothing." in made
    assert "**not tested**" in made


def test_names_must_differ(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    entry = '[[edit]]\nname = "a"\nfile = "x.py"\nold = "1"\nnew = "2"\nwhy = "Two."\ntests = []\n'
    path.write_text(entry)
    assert [edit.name for edit in wrong_edits.edits(path)] == ["a"]
    path.write_text(entry + entry)
    with pytest.raises(ValueError, match="got twice: a"):
        wrong_edits.edits(path)
