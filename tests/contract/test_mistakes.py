"""Mistakes on the command line and in the user's file: what arrived, what was expected, what to do,
in their words.
"""

from __future__ import annotations

import shlex

import pytest
from tests.contract.common import run
from tests.contract.test_commands import SETUP

INSIDES = (
    "pydantic",
    "ValidationError",
    "FieldInfo",
    "Annotated",
    "typing.",
    "<class",
    "tyro",
    "Config",
    "Traceback",
)
SMALL = "--widths 8 16 --depths 1 --seeds 2 --executor inline"
LINES = [  # what is typed, and what the answer must hold
    # values of the wrong kind, for every kind of option
    ("transfer setup.py --lr abc", "--lr numbers 'abc'"),
    ("transfer setup.py --lr 0.1,x", "--lr numbers 'x'"),
    ("check setup.py --lr abc", "--lr number 'abc'"),
    ("check setup.py --widths abc", "--widths whole 'abc' 64"),
    ("check setup.py --widths 8.5 16", "--widths whole '8.5'"),
    ("check setup.py --seeds 2 3", "3 --"),
    ("check setup.py --seeds", "--seeds expected one"),
    ("check setup.py --at end", "--at whole 'end'"),
    ("transfer setup.py --workers many", "--workers whole 'many'"),
    ("transfer setup.py --seeds None", "--seeds whole 'None'"),
    ("transfer setup.py --executor cloud", "executor processes inline ray slurm 'cloud'"),
    ("transfer setup.py --rules mup2", "rules complete-p 'mup2' 'mup'"),
    ("check setup.py --rule mup/adam", "rule complete-p 'mup/adam'"),
    ("check setup.py --noise maybe", "'maybe' --"),
    ("check setup.py --noise=maybe", "'maybe' --"),
    ("predict setup.py --width broad", "--width whole 'broad'"),
    ("predict setup.py --weights light", "--weights structured 'light'"),
    ("predict setup.py --depth 2.5", "depth 2.5 whole"),
    ("plan setup.py --batch 3", "--batch expected 2"),
    ("transfer setup.py --axes decay", "--axes name=value decay"),
    ("transfer setup.py --axes steps=few", "--axes numbers 'few'"),
    ("scaling-law setup.py --best parameters", "--best name=value parameters"),
    ("scaling-law setup.py --best watts=3", "'watts' parameters"),
    ("scaling-law setup.py --at width=big", "--at width 'big' whole"),
    # values beyond their range
    ("check setup.py --widths 0", "widths 1 0"),
    ("check setup.py --widths -4", "widths 1 -4"),
    ("check setup.py --widths", "--widths one"),
    ("check setup.py --steps 0", "steps 1 0"),
    ("check setup.py --device gpu", "device 'gpu' cuda"),
    ("transfer setup.py --lr", "lr three []"),
    ("transfer setup.py --lr -0.1 0.1 0.3", "lr greater -0.1"),
    ("check setup.py --optimizer adm", "optimizer 'adm' 'adam'"),
    # words that mean nothing here
    ("check setup.py --widht 8", "--widht --widths"),
    ("transfer setup.py --eta-c 0.1 0.2 0.3", "--eta-c nfd transfer"),
    ("check setup.py more", "'more' --"),
    ("chekc", "'chekc' 'check'"),
    ("capacity setup.py", "'capacity' scaling-law"),
    ("paper fgure 1", "'fgure' 'figure'"),
    # files that are not there, or are something else
    ("check", "Python setup.py"),
    ("check nowhere.py", "'nowhere.py' make_model batches"),
    ("check setpu.py", "'setpu.py' make_model batches"),
    ("check setup", "'setup' setup.py"),
    ("check setup:make_model", "'setup:make_model' Python"),
    ("check notes.txt", "'notes.txt' Python"),
    ("plan setup.py --fits nowhere.json", "nowhere.json"),
    ("plan setup.py --fits notes.txt", "notes.txt plan"),
    ("transfer --from nowhere.csv", "nowhere.csv"),
    ("transfer setup.py --from nowhere.csv", "--from setup.py"),
    ("transfer --from nowhere.csv --rules mup", "--from --rules"),
    ("scaling-law --from nowhere.csv --widths 8 16", "--from --widths"),
    ("report", "report directory"),
    ("report nowhere", "directory exists"),
    ("report empty", "result 'empty'"),
]
FILES = {  # what stands at the end of the user's file, and what the answer must hold
    "del make_model": "neither family make_model",
    "del batches": "neither task batches",
    "make_modle = make_model; del make_model": "make_modle Did you mean make_model neither",
    "make_model = lambda width: ResidualMLP(width, 1)": "make_model (width, depth) (width)",
    "def make_model(width, depth): ResidualMLP(width, "
    "depth)": "make_model torch.nn.Module NoneType",
    "make_model = 3": "make_model (width, depth) int",
    "make_model = ResidualMLP(8, 1)": "make_model function ResidualMLP",
    "batches = []": "batches (inputs, targets) none",
    "batches = 3": "batches (inputs, targets) int",
    "batches = batches[0]": "batches list",
    "eval_batches = [3]": "eval_batches (inputs, targets)",
    "loss = lambda outputs: outputs.mean()": "loss (outputs, targets) (outputs)",
    "loss = 'l2'": "loss cross-entropy 'l2'",
    "schedule = lambda: 1.0": "schedule step ()",
    "make_optimizer = lambda: None": "make_optimizer groups",
    "roles = {'haed.*': 'readout'}": "roles 'haed.*'",
    "blocks = 'layers.*'": "blocks 'layers.*'",
    "weight_decay = 'no'": "weight_decay 'no'",
    "init_scale = 'no'": "init_scale 'no'",
}
RAISING = {  # the same, where the user's own code raises: with its line and words
    "def make_model(width, depth): raise KeyError('no "
    "preset')": "KeyError no preset setup.py in make_model",
    "def loss(outputs, targets): raise ArithmeticError('not "
    "today')": "ArithmeticError not today setup.py line 37",
    "batches = undefined": "NameError undefined setup.py",
    "import nothing_of_this_name": "ModuleNotFoundError nothing_of_this_name setup.py",
    "def broken(:": "setup.py, line 37 invalid syntax",
    "import sys; sys.exit(0)": "sys.exit",
    "make_model = lambda width, depth: nn.Linear(3, width)": "make_model inputs 64",
}
RIGHT = [
    "--version",
    "--help",
    "transfer --help",
    "plan setup.py --width 16 --depth 1 --base 8,1 --seed=3",
]

Answers = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The exit code and the words for every mistake, and for lines that hold none."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("mine")
    asked = {line: (line, "") for line in [*dict(LINES), *RIGHT]}
    asked |= {end: (f"check setup.py {SMALL}", f"\n{end}\n") for end in [*FILES, *RAISING]}
    answers = Answers()
    for name, (line, end) in asked.items():
        (folder / "setup.py").write_text(SETUP + end)
        done = run(*shlex.split(line), folder=folder)
        answers[name] = (done.returncode, done.stderr + done.stdout)
    return answers


def holds(text: str, words: str) -> bool:
    return not [word for word in words.split() if word not in text]


@pytest.mark.parametrize(("typed", "words"), [*LINES, *FILES.items()])
def test_a_mistake_is_told_in_the_users_words(typed: str, words: str, told: Answers) -> None:
    code, text = told[typed]
    assert code == 2, text
    assert text.startswith("nfd: ")
    assert holds(text, words), text
    assert [word for word in INSIDES if word in text] == []
    assert len(text.splitlines()) < 4


@pytest.mark.parametrize(("end", "words"), RAISING.items())
def test_an_error_of_the_users_code_is_shown_with_its_line(
    end: str, words: str, told: Answers
) -> None:
    code, text = told[end]
    assert code == 2, text
    assert holds(text, words), text
    assert "bug in nfd" not in text


@pytest.mark.parametrize("line", RIGHT)
def test_a_line_without_a_mistake_is_done(line: str, told: Answers) -> None:
    code, text = told[line]
    assert code == 0, text
