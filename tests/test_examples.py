"""Every example runs at a small size, and the notebooks are their scripts."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
import torch
from tests.waiting import PATIENCE

import nfd
from makers import watched_run, watched_run_page
from nfd.report.shown import Shown

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


# Scripts in cells: what stands in place of their parameters, what they print and show, and how many
# images they write.
ANSWER = "[✓✗?] [A-Z]"
SMALL = {
    "check_transformer": (
        "WIDTHS, DEPTHS, STEPS, SEEDS, LARGE, LARGE_STEPS = [16, 32], [1, 2], 2, 2, (32, 3), 2",
        rf"(?s){ANSWER}.*{ANSWER}.*head\.weight.*step 1: loss",
        0,
    ),
    "first_step_by_hand": (
        "WIDTH, SEEDS, HORIZONS, DEPTHS = 32, 2, (1.0,), (4,)",
        r"1.0   4 +[\d.]+ \+- [\d.]+ +1.222",
        0,
    ),
    "forecast_from_logs": (
        "DEPTH = 2",
        rf"(?s){ANSWER}.*forecast [\d.]+ \(95 %.*happened 1.\d+.*that was tried: 0.0.*{ANSWER}",
        0,
    ),
    "kernels_in_training": (
        "WIDTH, REPLICATES, STEPS = 32, 2, 2",
        r"(?s)digit \d: output [+-][\d.]+ \[.*standard: after 2 steps features moved by [\d.]+ \[",
        0,
    ),
    "million_wide": ("WIDTHS, STEPS = [32, 64], 2", r"width +64: loss [\d.]+ -> [\d.]+", 1),
    "plan_with_lightning": (
        "BASE, WIDTH, DEPTH, STEPS = (16, 2), 32, 3, 3",
        r"(?s)small, lr.*defaults: loss: .*the plan: loss: ",
        0,
    ),
    "plan_with_trainer": (
        "BASE, WIDTH, DEPTH, STEPS = (16, 2), 32, 3, 4",
        r"(?s)small, lr.*defaults: loss: .*the plan: loss: ",
        0,
    ),
    "reproduce_paper": (
        "DEPTHS, NETWORKS, WIDTH = [2], 4, 32",
        r"(?s)infinite depth: 4.121803 and 3.297443.*depth   2: .*, exact 1.200.*figure-1a",
        6,
    ),
    "scaling_law": (
        "WIDTHS, DEPTHS, STEPS, SEEDS = [8, 16, 32], [1, 2, 3], 16, 3",
        rf"(?s){ANSWER}.*infinitely large: .*width 256, depth 8: .*{ANSWER}",
        0,
    ),
    "transfer_learning_rate": (
        "WIDTHS, DEPTH, RATES, STEPS, SEEDS = [64, 128], 1, [2e-3, 8e-3, 3.2e-2], 4, 2",
        ANSWER,
        1,
    ),
    "what_will_it_cost": (
        "WIDTHS, STEPS, BUDGETS = [16, 32], 60, [16, 30]",
        rf"(?s)of width 32 takes.*{ANSWER}.*trainings, then \d+ in all.*{ANSWER}.*1 more seed with",
        0,
    ),
    "watch_a_run": (
        "WIDTH, DEPTH, STEPS, EVERY = 64, 4, 3, 1",
        rf"(?s){ANSWER}.*{ANSWER}.*✗ .*make_optimizer",
        0,
    ),
}
NEEDS = {"plan_with_lightning": "lightning", "plan_with_trainer": "transformers"}


def cells(name: str) -> nbformat.NotebookNode:
    return jupytext.read(EXAMPLES / f"{name}.py")


def sources(name: str, parameters: str) -> list[str]:
    """The code of a script, with ``parameters`` after the cell that is tagged so, as Jupyter's
    tools do it.
    """
    code = [cell for cell in cells(name).cells if cell.cell_type == "code"]
    (place,) = (k for k, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", ()))
    known = {
        one for line in code[place].source.splitlines() for one in line.split(" = ")[0].split(", ")
    }
    assert set(parameters.split(" = ")[0].split(", ")) <= known
    return (
        [cell.source for cell in code[: place + 1]]
        + [parameters]
        + [cell.source for cell in code[place + 1 :]]
    )


def show(cell: str, place: str, names: dict[str, Any]) -> None:
    """Run a cell, and print what its last line shows, as a notebook does.

    An answer is shown with its picture.
    """
    tree = ast.parse(cell)
    shown = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        shown = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, place, "exec"), names)
    if shown is None:
        return
    value = eval(compile(shown, place, "eval"), names)
    if isinstance(value, Shown):
        assert "<svg" in value._repr_html_() or isinstance(value, nfd.Plan)
        print(value)


def test_every_script_in_cells_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py") if "# %%" in path.read_text()} == set(SMALL)
    assert {path.stem for path in (EXAMPLES / "notebooks").iterdir()} == set(SMALL)


# for a quick suite
SLOW = ("plan_with_lightning", "reproduce_paper", "scaling_law", "transfer_learning_rate")


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's and Lightning's own
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SMALL]
)
def test_scripts_in_cells(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(EXAMPLES.parent if name == "forecast_from_logs" else tmp_path)
    parameters, printed, images = SMALL[name]
    names = dict[str, Any]()
    for cell in sources(name, parameters):
        show(cell, f"{name}.py", names)
    assert re.search(printed, capsys.readouterr().out)
    written = [path for path in tmp_path.rglob("*") if path.suffix in (".png", ".svg")]
    assert [path.stat().st_size > 5000 for path in written] == [True] * images


@pytest.mark.parametrize("name", SMALL)
def test_notebooks_are_their_scripts(name: str) -> None:
    """Remade and executed by ``make notebooks``."""
    found = nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(found)
    kept = [(cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in found.cells]
    assert kept == [
        (cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in cells(name).cells
    ]
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert [out for cell in code for out in cell.outputs]
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120


def test_the_first_step_by_hand_has_the_ratio_of_its_formula() -> None:
    namespace = dict[str, Any]()
    exec("\n".join(sources("first_step_by_hand", "HORIZONS, DEPTHS = (), ()")), namespace)
    change = namespace["change"]
    own, other = (
        torch.tensor([change(128, 4, 1.0, is_own, seed) for seed in range(12)])
        for is_own in (True, False)
    )
    ratio = float(own.mean() / other.mean())
    error = float((own - ratio * other).std() / 12**0.5 / other.mean().abs())
    assert abs(ratio - 1.2222) < 4 * error < 0.2  # 1 + (T/4) / (1 + T/(2L)); 1 by Theorem 1


@pytest.mark.slow
def test_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["checks", "--size", "small", "--out", str(tmp_path)])
    (tmp_path / "checks.md").write_text("the page as git has it")
    runpy.run_module("makers.checks", run_name="__main__")
    page = (tmp_path / "checks.md").read_text()
    assert page.count("\n| two-layer, ") == 5
    # against depth and against width
    assert page.count("\n| GPT-2, ") == page.count("\n| plain blocks, ") + 2 == 4


def test_the_watched_run_is_told_by_its_numbers() -> None:
    numbers = json.loads(watched_run.NUMBERS.read_text())
    assert (
        watched_run_page.page(numbers)
        == (EXAMPLES.parent / "docs/howto/watched-run.md").read_text()
    )


@pytest.mark.slow
def test_the_watched_run_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, size in {"STEPS": 4, "EVERY": 2, "READ": 2, "WIDTH": 128, "DEPTH": 4}.items():
        monkeypatch.setattr(watched_run, name, size)
    watched_run.main(tmp_path, small=True)
    page = (tmp_path / "watched-run.md").read_text()
    assert page.count("```bash") == 3
    assert "| the same, begun again once the alert is read |" in page
    assert all(
        (tmp_path / f"{name}.html").exists() for name in ("sound", "wrong", "mended", "saved")
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("shard", "processes"), [("fsdp2", 1), ("ddp", 2), ("fsdp2", 2)])
@pytest.mark.parametrize("more", [[], ["--defaults"]])
def test_a_plan_rides_in_torchrun(shard: str, processes: int, more: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "--standalone",
    ]
    script = [str(EXAMPLES / "plan_with_torchrun.py"), "--shard", shard]
    small = ["--width", "32", "--depth", "2", "--steps", "3", *more]
    done = subprocess.run(
        [*command, *script, *small], capture_output=True, text=True, timeout=PATIENCE, env=ALONE
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{shard}, {processes} processes" in done.stdout


@pytest.mark.filterwarnings("ignore:Layers with resolution=0.2")  # as its page says
def test_a_wide_gpt_trains_as_the_dense_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Two draws of one model: apart by less than half of what they learn."""
    main = runpy.run_path(str(EXAMPLES / "wide_gpt.py"))["main"]
    structured, dense = (main(128, 2, 768, stored, 0.02, 3e-3) for stored in (False, True))
    assert "largest rank" in capsys.readouterr().out
    learned = min(losses[0] - losses[-1] for losses in (structured, dense))
    assert learned > 0
    assert abs(structured[-1] - dense[-1]) < learned / 2
