"""The documentation: what it names exists, what it tells to run runs, and the site is built from
it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from tests.models import UpDown
from tests.waiting import PATIENCE

import nfd
from nfd.cli import COMMANDS, read_command
from nfd.core.errors import UsageError
from nfd.data import digits
from nfd.scaling import optimizers as laws

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
)
SHOWN = {
    "text",
    "math",
    "diff",
    "{toctree}",
    "{eval-rst}",
    "{math}",
    "{nfd-help}",
    "{claims}",
    "{note}",
    "{warning}",
}
LONG = {"README.md", "docs/index.md", "docs/tutorial.md"}  # pages whose Python takes longer
LONG |= {
    f"docs/howto/{name}.md"
    for name in (
        "cluster",
        "limit",
        "plan",
        "scaling-law",
        "train-this-size",
        "transfer",
        "transformer",
        "trl",
    )
}
# Pages of frameworks that not every environment has; timm needs a torchvision that fits PyTorch.
NEEDS = {"docs/howto/timm.md": "timm.optim"}
# Pages of frameworks that call what their own dependencies will change.
OUTDATED = {"docs/howto/lightning.md", "docs/howto/lora.md", "docs/howto/trl.md"}
WARNS = {  # pages that show a mistake
    "docs/howto/watch.md": r"2 layers do not train \(1\.2\.up, 1\.2\.down\)",
}


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    place: str
    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    tokens = MarkdownIt().disable("inline").parse((ROOT / page).read_text())
    return [
        Block(f"{page}:{(token.map or [0])[0] + 1}", (token.info.split() or [""])[0], token.content)
        for token in tokens
        if token.type in ("fence", "code_block")
    ]


def python_of(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in {"python", "bash", "yaml", "{include}", "", *SHOWN}, block.place
        if block.language in ("", "text"):  # shown, so no test runs it
            assert not re.search(
                r"(?m)^(\$ |>>> |nfd [a-z]|python |import |from \w+ import)", block.text
            ), block.place


# Characters of a line of code on the site, beyond which it scrolls.
COLUMNS = 88
# Pages whose output of earlier versions is wider, and the README.
WIDE_OUTPUT = {
    "docs/tutorial.md",
    *(
        f"docs/howto/{name}.md"
        for name in (
            "plan",
            "scaling-law",
            "transfer",
            "watch",
            "watched-run",
        )
    ),
}


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > COLUMNS]


@pytest.mark.parametrize("page", sorted({*PAGES, "CONTRIBUTING.md"} - {"README.md"}))
def test_code_of_a_page_is_shown_without_scrolling(page: str) -> None:
    """A diff shows lines of a file as they are there."""
    for block in blocks_of(page):
        is_code = block.language in {"python", "bash", "yaml"}
        is_output = block.language in {"", "text"}
        if is_code or (is_output and page not in WIDE_OUTPUT):
            assert not too_wide(block.text), block.place


def test_a_line_that_scrolls_would_be_noticed() -> None:
    line = "x" * COLUMNS
    assert not too_wide(line)
    assert too_wide(f"{line}x") == [f"{line}x"]


def marks_of(page: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] if page in LONG else []
    if page in OUTDATED:
        marks.append(pytest.mark.filterwarnings("ignore::FutureWarning"))
    return marks


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks_of(page)) for page in PAGES if python_of(page)]
)
def test_the_python_of_a_page_runs(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From top to bottom, in one namespace."""
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason="`make zoo` runs this page in its environment")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    with pytest.warns(RuntimeWarning, match=WARNS[page]) if page in WARNS else nullcontext():
        for block in python_of(page):
            exec(compile(block.text, block.place, "exec"), namespace)


# ---- commands


def lines_of(page: str) -> Iterator[list[str]]:
    """The commands of the blocks of shell of a page."""
    for block in blocks_of(page):
        if block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from (
                    words
                    for part in line.split(" && ")
                    if (words := shlex.split(part, comments=True))
                )


# How lines of programs that are not ours begin.
OTHERS = [
    ["git", "clone"],
    ["cd", "nfd"],
    ["pip", "install"],
    ["uv", "venv"],
    ["uv", "pip"],
    ["uv", "add"],
    ["conda", "create"],
    ["conda", "activate"],
    ["ray", "start"],
]


def check_taken(words: list[str]) -> None:
    """Raise unless the program takes these words: a command of ours, or a script that is there with
    these options.
    """
    program, *rest = words
    if program == "nfd":
        read_command([str(ROOT) if word == "DIR" else word for word in rest])
    elif program == "make":
        assert re.search(rf"(?m)^{rest[0]}:", (ROOT / "Makefile").read_text()), words
    elif program in ("python", "torchrun"):
        module = rest[1].replace(".", "/") if rest[0] == "-m" else ""
        if module:
            module += "/__main__.py" if (ROOT / module).is_dir() else ".py"
        script = module or next(word for word in rest if word.endswith(".py"))
        options = [
            word
            for word in rest[rest.index(rest[1] if module else script) + 1 :]
            if word.startswith("--")
        ]
        source = (ROOT / script).read_text()
        assert all(option.lstrip("-") in source for option in options), words
    else:
        assert words[:2] in OTHERS, words


@pytest.mark.parametrize("page", [page for page in PAGES if any(True for _ in lines_of(page))])
def test_commands_of_a_page_are_ones_that_their_programs_take(page: str) -> None:
    for words in lines_of(page):
        check_taken(words)


@pytest.mark.parametrize(
    "line", ["nfd capacity setup.py", "nfd check setup.py --batches b", "python examples/no.py"]
)
def test_a_command_that_is_gone_would_be_noticed(line: str) -> None:
    with pytest.raises((UsageError, OSError)):
        check_taken(line.split())


# ---- what is named exists


def found(name: str) -> object:
    """What a dotted name stands for: a module, something in it, or a field of a class."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for part in parts[k:]:
            if part in getattr(thing, "__annotations__", {}):
                return thing
            thing = getattr(thing, part)
        return thing
    raise AttributeError(name)


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_names_of_the_library_exist(page: str) -> None:
    for name in set(re.findall(r"`(nfd(?:\.\w+)+)", (ROOT / page).read_text())):
        found(name)


@pytest.mark.parametrize("name", ["nfd.ModelFamily", "nfd.limits.nothing.predict"])
def test_a_name_that_is_gone_would_be_noticed(name: str) -> None:
    with pytest.raises(AttributeError):
        found(name)


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        assert link.startswith("http") or (path.parent / link).exists(), link


def test_files_that_the_architecture_names_are_there() -> None:
    names = set(re.findall(r"`([a-z0-9_/]+\.py)`", (ROOT / "docs/architecture.md").read_text()))
    assert len(names) > 30
    assert not [
        name
        for name in names
        if not any((ROOT / place / name).is_file() for place in ("src/nfd", "."))
    ]


def test_images_are_used_and_described() -> None:
    used = set()
    for page in PAGES:
        for text, link in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / page).read_text()):
            assert len(text.split()) >= 4, text
            used.add((ROOT / page).parent.joinpath(link).resolve())
    assert used == {path for path in (ROOT / "docs/images").iterdir() if path.suffix != ".csv"}


def test_the_reference_has_every_public_name_once() -> None:
    listed = re.findall(
        r"auto\w+:: ([\w.]+)", "".join(map(Path.read_text, (ROOT / "docs/api").iterdir()))
    )
    assert len(listed) == len(set(listed))
    public = {f"nfd.{name}" for name in nfd.__all__} - {"nfd.integrations"}
    public |= {f"nfd.integrations.{name}" for name in nfd.integrations.__all__}
    assert public <= set(listed)
    assert {name for name in listed if name.count(".") == 1} <= public
    assert all(found(name).__doc__ for name in listed)
    commands = re.findall(r"```\{nfd-help\} ([\w -]+)\n", (ROOT / "docs/commands.md").read_text())
    assert sorted(commands) == sorted(COMMANDS)


# ---- docstrings

FITS = ("fit_transfer", "fit_rate_law", "fit_scaling_law", "fit_ladder")
VERBS = ("check", "transfer", "scaling_law", "predict", "plan", *FITS)
LONG_EXAMPLES = {
    "Check",
    "Prediction",
    "Task",
    "Sweep",
    "check",
    "predict",
    "scaling_law",
    "transfer",
}


def example_of(name: str) -> str:
    """The code of the example in the docstring of a public name; empty where there is none."""
    text = (inspect.getdoc(getattr(nfd, name)) or "").partition("Example::\n")[2]
    return textwrap.dedent(re.split(r"\n(?=\S)", text)[0])


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_explained_in_a_minute(name: str) -> None:
    text = inspect.getdoc(getattr(nfd, name)) or ""
    assert len(text.split()) <= 350
    assert text.index("Example::") < text.index("Args:")


@pytest.mark.parametrize("name", [name for name in nfd.__all__ if example_of(name)])
def test_an_example_is_shown_without_scrolling(name: str) -> None:
    assert not too_wide(example_of(name))


def test_functions_have_examples() -> None:
    assert all(example_of(name) for name in nfd.__all__ if inspect.isfunction(getattr(nfd, name)))


def residual(width: int, depth: int) -> torch.nn.Module:
    """The reader's model: blocks on digits."""
    blocks = torch.nn.Sequential(*[UpDown(width) for _ in range(depth)])
    return torch.nn.Sequential(torch.nn.Linear(64, width), blocks, torch.nn.Linear(width, 10))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG_EXAMPLES else [])
        for name in nfd.__all__
        if example_of(name)
    ],
)
def test_the_example_of_a_docstring_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a small model of the reader's, its plan and optimizer, and batches."""
    monkeypatch.chdir(tmp_path)
    inputs, targets = digits().batches(size=8, steps=2, seed=0)
    model = residual(32, 2)
    plan = nfd.plan(model, make_model=residual, base=(16, 2), sample=inputs[0])
    reader = {
        "nfd": nfd,
        "torch": torch,
        "math": math,
        "make_model": residual,
        "inputs": inputs,
        "targets": targets,
    }
    reader |= {"x": inputs[0], "y": targets[0], "batches": list(zip(inputs, targets, strict=True))}
    exec(
        example_of(name),
        reader | {"model": model, "plan": plan, "optimizer": plan.make_optimizer(model, lr=1e-3)},
    )
    laws.LAWS.pop("my-adamw", None)


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-E",
        "-W",
        "--keep-going",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(build, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = (
        r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//"
        r"|@import|url\([\"']?(?:https?:)?//"
    )
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        assert not re.search(loaded, path.read_text()), path
    assert "Train small networks" in (tmp_path / "commands.html").read_text()
    assert '<tr id="theorem-1"' in (tmp_path / "claims.html").read_text()
