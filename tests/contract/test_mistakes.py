"""Mistakes on the command line: each is told what arrived, what was expected and what to do, in the user's words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract.common import NFD, ResidualMLP, batches
from tests.contract.test_shell import MODEL, SETUP

import nfd

INSIDES = ("pydantic", "ValidationError", "FieldInfo", "Annotated", "typing.", "<class", "tyro", "Config", "Traceback")

OWN = """
from setup_of_mine import ResidualMLP, batches, make_model

def raising(width, depth):
    raise KeyError("no preset for this width")

def narrow(width):
    return make_model(width, 1)

def nothing(width, depth):
    make_model(width, depth)

def loss(outputs):
    return outputs.mean()

def schedule():
    return 1.0

none = []
number = 3
"""
SMALL = "--widths 8 16 --depths 1"
MISTAKES = [  # what is typed, and what the answer must hold
    # values of the wrong kind, for every kind of option
    (f"transfer {MODEL} --lr abc", "--lr numbers 'abc'"),
    (f"transfer {MODEL} --lr 0.1,x", "--lr numbers 'x'"),
    (f"check {MODEL} --lr abc", "--lr number 'abc'"),
    ("transfer --eta-c fast", "--eta-c numbers 'fast'"),
    (f"check {MODEL} --widths abc", "--widths whole 'abc' 64"),
    (f"check {MODEL} --widths 8.5 16", "--widths whole '8.5'"),
    (f"check {MODEL} --seeds two", "--seeds whole 'two'"),
    (f"check {MODEL} --seeds 2 3", "--seeds whole 2 3"),
    (f"check {MODEL} --seeds", "--seeds whole none"),
    (f"check {MODEL} --at end", "--at whole 'end'"),
    (f"transfer {MODEL} --workers many", "--workers whole 'many'"),
    (f"transfer {MODEL} --seeds None", "--seeds whole 'None'"),
    (f"transfer {MODEL} --adamw-lr fast", "--adamw-lr number 'fast'"),
    (f"transfer {MODEL} --executor cloud", "--executor processes inline ray 'cloud'"),
    (f"transfer {MODEL} --rules mup2", "--rules complete-p 'mup2' 'mup'"),
    (f"check {MODEL} --rule mup/adam", "--rule complete-p 'mup/adam'"),
    (f"check {MODEL} --noise maybe", "--noise 'maybe' alone"),
    (f"check {MODEL} --noise=maybe", "--noise 'maybe' alone"),
    (f"predict {MODEL} --width broad", "width whole auto 'broad'"),
    (f"predict {MODEL} --memory lots", "memory GiB 'lots'"),
    (f"plan {MODEL} --batch 3", "--batch 2 numbers 3"),
    (f"plan {MODEL} --roles inner", "roles =inner 'inner'"),
    # values beyond their range
    (f"check {MODEL} --widths 0", "widths 1 0"),
    (f"check {MODEL} --widths -4", "widths 1 -4"),
    (f"check {MODEL} --widths", "widths ascending []"),
    (f"transfer {MODEL} --lr", "lr three []"),
    (f"transfer {MODEL} --lr -0.1 0.1 0.3", "lr greater -0.1"),
    (f"check {MODEL} --optimizer adm", "optimizer 'adm' 'adam'"),
    (f"check {MODEL} {SMALL} --loss l2", "loss cross-entropy 'l2'"),
    # words that mean nothing here
    (f"check {MODEL} --widht 8", "--widht --widths"),
    (f"transfer {MODEL} --eta-c 0.1 0.2 0.3", "--eta-c nfd transfer"),
    ("transfer --adamw-lr 0.1", "--adamw-lr package.module:make_model"),
    (f"check {MODEL} more", "'more' --"),
    ("chekc", "'chekc' 'check'"),
    # code that is not there, or is something else
    ("check", "constructor make_model"),
    ("check nowhere:make_model", "'nowhere' make_model"),
    ("check setup_of_min:make_model", "'setup_of_min' 'setup_of_mine'"),
    ("check setup_of_mine.py:make_model", "setup_of_mine:make_model file"),
    ("check setup_of_mine:make_modle", "'make_modle' 'make_model'"),
    ("check setup_of_mine", "package.module:name 'setup_of_mine'"),
    (f"check own:narrow {SMALL}", "(width, depth) (width)"),
    (f"check own:nothing {SMALL}", "torch.nn.Module NoneType"),
    (f"check own:number {SMALL}", "(width, depth) int"),
    (f"check {MODEL} {SMALL} --batches setup_of_mine:batch", "'batch' 'batches'"),
    (f"check {MODEL} {SMALL} --batches own:none", "batches (inputs, targets) none"),
    (f"check {MODEL} {SMALL} --batches own:number", "batches (inputs, targets) int"),
    (f"check {MODEL} {SMALL} --batches runs.csv", "batches package.module:name 'runs.csv'"),
    (f"check {MODEL} {SMALL} --loss own:loss", "loss (outputs, targets) (outputs)"),
    (f"check {MODEL} {SMALL} --schedule own:schedule", "schedule step ()"),
]

RUNNER = """
import contextlib, io, json, runpy, shlex, sys

script, said = sys.argv[1], []
for line in json.load(sys.stdin):
    sys.argv, written = [script, *shlex.split(line)], io.StringIO()
    with contextlib.redirect_stderr(written), contextlib.redirect_stdout(written):
        try:
            code = runpy.run_path(script, run_name="__main__") and 0
        except SystemExit as ended:
            code = ended.code
    said.append((code, written.getvalue()))
json.dump(said, sys.stdout)
"""


def answers(lines: list[str], folder: Path) -> list[tuple[int, str]]:
    """Exit code and output of each line, by the installed script, which one process runs again and again."""
    command = [sys.executable, "-c", RUNNER, str(NFD)]
    told = subprocess.run(command, cwd=folder, input=json.dumps(lines), stdout=subprocess.PIPE, text=True, check=True)
    return [(code, text) for code, text in json.loads(told.stdout)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The answer to every mistake, and to lines that hold none."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "setup_of_mine.py").write_text(SETUP)
    (folder / "own.py").write_text(OWN)
    lines = [*(line for line, _ in MISTAKES), *RAISING, *RIGHT]
    return dict(zip(lines, answers(lines, folder), strict=True))


RAISING = [f"check own:raising {SMALL}", "plan own:raising --width 16 --base-width 8"]
RIGHT = ["--version", "transfer --help", f"plan {MODEL} --width 16 --depth 1 --base-width 8 --lr 1e-3 --seed=3"]


@pytest.mark.parametrize(("line", "holds"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_the_users_words(line: str, holds: str, told: dict[str, tuple[int, str]]) -> None:
    code, text = told[line]
    assert code == 2
    assert text.startswith("nfd: ")
    assert [word for word in holds.split() if word not in text] == []
    assert [word for word in INSIDES if word in text] == []
    assert len(text.splitlines()) < 4


@pytest.mark.parametrize("line", RAISING)
def test_an_error_of_the_users_constructor_reaches_the_user(line: str, told: dict[str, tuple[int, str]]) -> None:
    code, text = told[line]
    assert code == 2
    assert all(part in text for part in ("own.py", "in raising", "no preset for this width", "your code"))
    assert "bug in nfd" not in text


@pytest.mark.parametrize("line", RIGHT)
def test_a_line_without_a_mistake_is_done(line: str, told: dict[str, tuple[int, str]]) -> None:
    code, text = told[line]
    assert code == 0, text


def test_functions_of_the_wrong_form_are_refused_by_name() -> None:
    def check(**options: Any) -> nfd.Check:
        return nfd.check(ResidualMLP, [8, 16], [1], batches(1, 4), **options)

    for name, wrong in (("loss", lambda outputs: outputs.mean()), ("schedule", lambda: 1.0)):
        with pytest.raises(TypeError, match=name):
            check(**{name: wrong})
