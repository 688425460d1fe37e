"""The documentation: what it names exists, what it tells to run runs, what it shows was made by a command."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import math
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image
from sklearn.datasets import load_digits
from tests.models import UpDown
from tests.waiting import PATIENCE

import nfd
from nfd.cli.commands import COMMANDS, parsed
from nfd.cli.commands import command as command_named
from nfd.cli.main import main
from nfd.data.digits import digits
from nfd.paper.settings import grid_of
from nfd.scaling import laws

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
PYTHON = sys.executable

# ---- blocks of code ------------------------------------------------------------------------------------------

DIRECTIVES = {"{toctree}", "{eval-rst}", "{math}", "{nfd-help}", "{nfd-settings}", "{note}", "{warning}"}
SHOWN = {"text", "math", "diff", *DIRECTIVES}
RUN = {"python", "bash", "toml"}

# Pages whose Python takes longer than a few seconds, run by `make test-all`.
LONG = {"README.md", "docs/tutorial.md"}

# Pages that show a mistake, and the warning that it gives.
WARNS = {"README.md": "the AdamW does not have the groups of the plan"}

# Lines of shell that no test runs, and why. All others are run.
NOT_RUN = {
    "git clone <this repository> nfd": "needs the address of the repository",
    "cd nfd": "goes with the clone",
    "make demo": "installs an environment and then runs nfd study, which tests/test_study.py does",
    "nfd check mypackage.module:make_model": "the module is the reader's; tests/test_check.py runs the command on ours",
    "nfd plan mypackage.module:make_model": "as above, tests/test_plan_command.py",
    "nfd transfer mypackage.module:make_model": "as above, tests/test_transfer_model.py",
    "nfd predict mypackage.module:make_model": "as above, tests/test_predict_model.py",
    "nfd capacity mypackage.module:make_model": "as above, tests/test_capacity_model.py",
    "nfd transfer watched_run:make_model": "the example runs it, tests/test_examples.py",
    "nfd check watched_run:make_model": "as above",
    "nfd plan watched_run:make_model": "as above",
    "nfd sweep width=64 depth=4,8,16,32": "half a minute; docs/sweeps.md says what it makes",
    "nfd sweep width=64 depth=32": "as above",
    "nfd transfer --rules depth-mup depth-mup-inner --block two-layer --widths 64": "half a minute; README runs others",
    "nfd figure all --size paper --device cuda --out out/paper": "needs a GPU, and hours of it",
}

# What makes a command take seconds.
SMALL = {
    "study": "--steps 2 --depths 2 4 --limit-width 32 --replicates 3 --widths 8 16 --seeds 2 --block-depths 2 4 8 "
    "--block-width 16 --block-seeds 2",
    "predict": "--steps 2 --width 32 --replicates 2",
    "transfer": "--widths 8 16 --depths 2 4 --steps 4 --seeds 2 --rules depth-mup --executor inline",
    "capacity": "--limit-width 32 --replicates 3 --executor inline",
    "sweep": "--executor inline",
    "figure": "--size smoke --executor inline",
    "claims": "--size smoke --executor inline",
}
SMALL_GRID = "--widths 8 16 32 --depths 2 3 4 --steps 4 --seeds 2 --horizons 0.5 1"  # of a capacity without a sweep


@dataclass(frozen=True)
class Block:
    """A block of code of a page; an indented one has no language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks_of(page: str) -> list[Block]:
    tokens = MarkdownIt().disable("inline").parse((ROOT / page).read_text())
    return [
        Block(page, (token.map or [0])[0] + 1, token.info.split()[0] if token.info.strip() else "", token.content)
        for token in tokens
        if token.type in ("fence", "code_block")
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@dataclass(frozen=True)
class Line:
    """One command of a block of shell."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        return next((why for start, why in NOT_RUN.items() if str(self).startswith(start)), None)


def lines_of(block: Block) -> Iterator[Line]:
    if block.language != "bash":
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in line.split(" && "):
            words = shlex.split(command, comments=True)
            if words:
                yield Line(block.page, (words[0].removeprefix(".venv/bin/"), *words[1:]))


def lines() -> list[Line]:
    """What stands on several pages once, where it stands first: how-tos lead, since later lines need earlier ones."""
    first = dict[tuple[str, ...], Line]()
    for block in sorted(BLOCKS, key=lambda block: not block.page.startswith("docs/howto/")):
        for line in lines_of(block):
            first.setdefault(line.words, line)
    return list(first.values())


LINES = lines()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in RUN | SHOWN | {""}, f"{block}: {block.language!r} is neither run nor shown"
        if block.language in ("", "text"):
            assert not re.search(r"(?m)^(\$ |>>> |nfd [a-z]|python |import |from \w+ import)", block.text), block


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in LONG else [])
        for page in PAGES
        if any(block.language == "python" for block in blocks_of(page))
    ],
)
def test_the_python_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From top to bottom, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    with pytest.warns(RuntimeWarning, match=WARNS[page]) if page in WARNS else nullcontext():
        for block in blocks_of(page):
            if block.language == "python":
                exec(compile("\n" * block.line + block.text, page, "exec"), namespace)


def grids_of(page: str) -> list[tuple[str, str]]:
    """The blocks of TOML of a page with the name of the file in their first line."""
    found = [block for block in blocks_of(page) if block.language == "toml"]
    return [(block.text.split()[1].rstrip(":"), block.text) for block in found]


@pytest.mark.parametrize("page", [page for page in PAGES if grids_of(page)])
def test_grids_are_ones_that_a_sweep_takes(page: str, tmp_path: Path) -> None:
    for name, text in grids_of(page):
        (tmp_path / name).write_text(text)
        assert len(grid_of(tmp_path / name)) > 1


def prepared(line: Line, folder: Path) -> list[str]:
    """The arguments of an ``nfd`` line, with what it reads there: named TOML blocks of its page, settings, data."""
    for name, text in grids_of(line.page):
        (folder / name).write_text(re.sub(r"steps = \d+", "steps = 4", text))
    for option, value in zip(line.words, line.words[1:], strict=False):
        if option == "--config" and "/" in value and not (folder / value).exists():
            (folder / value).parent.mkdir(parents=True, exist_ok=True)
            (folder / value).write_text(command_named(line.words[1]).settings_type()().toml())
    if "--from" in line.words:
        (folder / "runs.csv").write_text(table_of_runs(line.words[1]))
    data = cifar10(folder / "cifar") if "cifar10" in line.words else images(folder / "images")
    return [str(data) if word == "DIR" else word for word in line.words[1:]]


def table_of_runs(command: str) -> str:
    """A log that the command takes: of several rates at each size, or of one."""
    rates = (0.1, 0.2, 0.4, 0.8) if command == "transfer" else (0.1,)
    lines = [
        f"{n},{L},{rate},{s},{2 + 4 / n + 1 / L + (rate - 0.3) ** 2 + 0.01 * math.sin(9 * s + n + 5 * L)}"
        for n in (8, 16, 32, 64)
        for L in (2, 4, 8, 16)
        for rate in rates
        for s in range(3)
    ]
    return "\n".join(["width,depth,config/learning_rate,seed,eval/loss", *lines])


def cifar10(folder: Path) -> Path:
    """Noise in the binary layout of CIFAR-10."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        labels = np.arange(20, dtype=np.uint8)[:, None] % 10
        (folder / name).write_bytes(np.hstack([labels, rng.integers(0, 256, (20, 3072), dtype=np.uint8)]).tobytes())
    return folder


def images(folder: Path) -> Path:
    """Thirty of scikit-learn's digits of each class, in a folder per class."""
    if not folder.exists():
        digits = load_digits()
        for label in range(10):
            (folder / str(label)).mkdir(parents=True)
            for k, picture in enumerate(digits.images[digits.target == label][:30]):
                Image.fromarray((picture * 15).astype(np.uint8)).save(folder / str(label) / f"{k}.png")
    return folder


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_line_of_shell_is_one_that_its_program_takes(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *rest = line.words
    if program == "nfd":
        parsed(prepared(line, tmp_path))
    elif program == "make":
        assert re.search(rf"(?m)^{rest[0]}:", (ROOT / "Makefile").read_text())
    elif program in ("python", "torchrun"):
        takes_script(rest)
    else:
        assert line.reason is not None, f"{line.page}: {line} is neither run nor listed in NOT_RUN"


def takes_script(rest: list[str]) -> None:
    """A module that exists, or a script that tests/test_examples.py runs, with options that it names."""
    if rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None
        return
    place = next(k for k, word in enumerate(rest) if word.endswith(".py"))
    source = (ROOT / rest[place]).read_text()
    assert re.search(rf"\b{Path(rest[place]).stem}\b", (ROOT / "tests/test_examples.py").read_text())
    assert all(word.lstrip("-") in source for word in rest[place + 1 :] if word.startswith("--"))


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({line.page for line in LINES}))
def test_the_commands_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From top to bottom, in one directory, at a small size."""
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        if line.page == page and line.words[0] == "nfd" and line.reason is None:
            arguments = prepared(line, tmp_path)
            small = [] if "--from" in arguments else SMALL.get(arguments[0], "").split()
            if arguments[0] == "capacity" and "--from" not in arguments and arguments[1:2] != ["out/mine"]:
                small += SMALL_GRID.split()
            assert main([*arguments, *small]) == 0, line


def test_every_reason_is_needed() -> None:
    for start in NOT_RUN:
        assert any(str(line).startswith(start) for line in LINES), start
    assert {block.page for block in BLOCKS if block.language == "python"} >= LONG


# ---- the map of the code ---------------------------------------------------------------------------------------


def test_the_files_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    names = set(re.findall(r"`([a-z0-9_/]+\.(?:py|html))`", page))
    assert len(names) > 40
    missing = [name for name in names if not any((ROOT / place / name).is_file() for place in ("src/nfd", "."))]
    assert not missing
    packages = {path.parent.name for path in (ROOT / "src/nfd").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`([a-z]+)`", page))


# ---- images --------------------------------------------------------------------------------------------------

CHARTS = tomllib.loads((ROOT / "docs/images/charts.toml").read_text())


def test_every_image_is_made_by_a_command() -> None:
    used = {
        (ROOT / page).parent.joinpath(link).resolve()
        for page in PAGES
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / page).read_text())
    }
    listed = {ROOT / "docs/images" / name for name in CHARTS}
    assert used == listed == set((ROOT / "docs/images").glob("*.png"))


@pytest.mark.parametrize("page", PAGES)
def test_every_image_has_a_text_in_its_place(page: str) -> None:
    for text in re.findall(r"!\[([^\]]*)\]\(", (ROOT / page).read_text()):
        assert len(text.split()) >= 4, text


def called(names: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
    """Calls of functions with these last names in the library and in the examples, with where they stand."""
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(names):
                yield f"{path.name}:{node.lineno}", node


def test_every_axis_has_a_title() -> None:
    axes = list(called(("Axes",)))
    assert len(axes) > 30
    for place, call in axes:
        titles = [*call.args[2:4], *(k.value for k in call.keywords if k.arg in ("x_title", "y_title"))]
        assert len(titles) == 2, place
        assert not any(isinstance(title, ast.Constant) and not str(title.value).strip() for title in titles), place
    channels = [(place, call) for place, call in called(("alt.X", "alt.Y"))]
    for place, call in channels:
        assert any(keyword.arg == "title" for keyword in call.keywords), place


@pytest.mark.parametrize("name", [name for name, chart in CHARTS.items() if "version" not in chart])
def test_commands_of_images_are_ones_that_programs_take(name: str, tmp_path: Path) -> None:
    chart = CHARTS[name]
    program, *rest = shlex.split(chart["command"])
    if program == "nfd":
        command = parsed(prepared(Line("README.md", (program, *rest)), tmp_path))
        assert Path(chart["file"]).parent == Path(command.out)
    else:
        takes_script(rest)
        script = Path(*rest[1].split(".")).with_suffix(".py") if rest[0] == "-m" else Path(rest[0])
        assert re.search(rf'(?m)^OUT = "{Path(chart["file"]).parent}"$', (ROOT / script).read_text())


def test_charts_are_remade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script copies what commands write, runs a command once, and leaves what needs data that are not given."""
    made = runpy.run_path(str(ROOT / "docs/charts.py"))
    write = f"{shlex.quote(PYTHON)} -c \"open('drawn', 'a').write('x')\""
    charts = {name: {"command": write.replace(shlex.quote(PYTHON), "python"), "file": "drawn"} for name in "ab"}
    charts["c"] = {"command": "nfd figure 5 --data-dir DIR", "file": "drawn"}
    scope = made["main"].__globals__
    monkeypatch.setitem(scope, "ROOT", tmp_path)
    monkeypatch.setitem(scope, "IMAGES", tmp_path)
    monkeypatch.setitem(scope, "CHARTS", charts)
    monkeypatch.setattr(sys, "argv", ["charts.py"])
    assert made["main"]() == 0
    assert [(tmp_path / name).read_text() for name in "ab"] == ["x", "x"]
    assert not (tmp_path / "c").exists()
    assert "c is left as it is" in capsys.readouterr().out


# ---- what is named exists ------------------------------------------------------------------------------------

ROWS = [line for line in (ROOT / "docs/equations.md").read_text().splitlines() if line.startswith("| ") and "`" in line]
MAPPED = [row for row in ROWS if "tests/" in row]


@pytest.mark.parametrize("row", MAPPED, ids=lambda row: row.split("|")[1].strip()[:30])
def test_every_object_and_test_exists(row: str) -> None:
    _, _, objects, tests, *_ = row.split("|")
    for name in re.findall(r"`([\w.]+)`", objects):
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute), name
    for path, test in re.findall(r"`(tests/\w+\.py)::(\w+)`", tests):
        assert f"def {test}(" in (ROOT / path).read_text(), test


def test_the_table_is_not_empty() -> None:
    assert len(MAPPED) >= 10


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_it_lets_its_reader_do(page: str) -> None:
    """In a paragraph after the title, before any note of how the page was made."""
    title, _, _, opening, text, *_ = MarkdownIt().parse((ROOT / page).read_text())
    assert (title.type, opening.type) == ("heading_open", "paragraph_open")
    assert not text.content.startswith("*Made by")
    assert re.search(
        r"(?i)\b(you|yours?)\b|^(choose|compare|decide|draw|find|follow|look up|scale|train)\b", text.content
    )


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        assert link.startswith("http") or (path.parent / link).exists(), link


def test_every_random_stream_is_listed() -> None:
    listed = (ROOT / "docs/equations.md").read_text()
    calls = r"(?:generator|derive)\([\w.]*seed, \"(\w+)\"|normal(?:_\([^\n]*?|\(side, \w+, )\"(\w+)\""
    used: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        used |= {name for names in re.findall(calls, path.read_text()) for name in names if name}
    assert {"reveal", "passing", "evaluate", "halving"} <= used
    assert all(f"`{name}`" in listed for name in used), used


def test_the_reference_has_every_public_name_and_command() -> None:
    listed = re.findall(r"\.\. auto(?:class|function|data):: ([\w.]+)", (ROOT / "docs/api.md").read_text())
    public = {f"nfd.{name}" for name in nfd.__all__} - {"nfd.integrations"}  # a package, whose names are listed
    assert {name for name in listed if name.count(".") == 1} == public
    for name in listed:
        module, attribute = name.rsplit(".", 1)
        assert getattr(importlib.import_module(module), attribute).__doc__, name
    commands = re.findall(r"```\{nfd-help\} (\w+)\n", (ROOT / "docs/commands.md").read_text())
    assert commands == list(COMMANDS)


def residual(width: int, depth: int) -> torch.nn.Module:
    """The reader's model: blocks on digits."""
    blocks = torch.nn.Sequential(*[UpDown(width) for _ in range(depth)])
    return torch.nn.Sequential(torch.nn.Linear(64, width), blocks, torch.nn.Linear(width, 10))


def example_of(name: str) -> str:
    """The code of the example in the docstring of a public name; empty where there is none."""
    _, _, example = (inspect.getdoc(getattr(nfd, name)) or "").partition("Example::\n")
    return textwrap.dedent(example)


EXAMPLES = [name for name in nfd.__all__ if example_of(name)]
LONG_EXAMPLES = {"Check", "LossPrediction", "Prediction", "capacity", "check", "predict", "transfer"}


def test_functions_have_examples() -> None:
    functions = {name for name in nfd.__all__ if inspect.isfunction(getattr(nfd, name))}
    assert functions <= set(EXAMPLES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG_EXAMPLES else []) for name in EXAMPLES]
)
def test_the_example_of_a_docstring_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a small model of the reader's, its plan and optimizer, and batches."""
    monkeypatch.chdir(tmp_path)
    inputs, targets = digits().batches(size=8, steps=2, seed=0)
    sample = {"sample": inputs[0], "make_model": residual, "base_width": 16, "base_depth": 2}
    model = residual(32, 2)
    plan = nfd.plan(model, rule="complete-p", **sample)
    reader = {"nfd": nfd, "torch": torch, "math": math, "make_model": residual, "inputs": inputs, "targets": targets}
    reader |= {"x": inputs[0], "y": targets[0], "batches": list(zip(inputs, targets, strict=True))}
    exec(example_of(name), reader | {"model": model, "plan": plan, "optimizer": plan.make_optimizer(model, lr=1e-3)})
    laws._TABLE.pop("my-adamw", None)


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    build = [PYTHON, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//|@import|url\([\"']?(?:https?:)?//"
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        assert not re.search(loaded, path.read_text()), path
    assert "Figures and claims" in (tmp_path / "howto/paper.html").read_text()
    assert "Train a constructor" in (tmp_path / "commands.html").read_text()
