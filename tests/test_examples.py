"""Every example runs at a small size, and the notebooks are their scripts."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import re
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from nfd.training.recipe import Recipe
from tests.handmade import Answer, made, noise
from tests.waiting import PATIENCE

import nfd
from nfd.core.estimates import Interval, mean
from nfd.data.digits import digits
from nfd.paper.runs import RunConfig
from nfd.training.task import Task

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


# The scripts in cells: what stands in place of their parameters, what they print, and how many images they write.
SMALL = {
    "million_wide": ("WIDTHS, STEPS = [32, 64], 2", r"width +64: loss [\d.]+ -> [\d.]+", 1),
    "check_transformer": (
        "WIDTHS, DEPTHS, STEPS, SEEDS, LARGE, LARGE_STEPS = [16, 32], [1, 2], 2, 2, (32, 3), 2",
        r"(?s)Rule 'standard'.*inner_update .*Plan 'complete-p' for adamw: width x2, depth x3.*step 1: loss",
        0,
    ),
    "transfer_learning_rate": (
        "SMALL, LARGE, RATES, STEPS, SEEDS = (16, 2), (32, 3), [1e-3, 1e-2], 5, 2",
        r"(?s)PyTorch's own scaling: best rate .*complete-p: best rate 0.01 small, 0.01 large; regret",
        1,
    ),
    "how_big": (
        "WIDTHS, DEPTHS, SEEDS, STEPS, LIMIT_WIDTH = [8, 16, 32], [2, 3, 4], 2, 5, 64",
        r"(?s)floor .*infinite width, depth 4, by the law: .*by nfd.predict: .*1,000,000 parameters: width \d+",
        0,
    ),
    "reproduce_paper": (
        "DEPTHS, NETWORKS, WIDTH = [2], 4, 32",
        r"(?s)infinite depth: 4.121803 and 3.297443.*depth   2: .*, exact 1.200.*figure-1a",
        3,
    ),
}


def cells(name: str) -> nbformat.NotebookNode:
    return jupytext.read(EXAMPLES / f"{name}.py")


def shrunk(notebook: nbformat.NotebookNode, parameters: str) -> nbformat.NotebookNode:
    """With ``parameters`` after the cell that is tagged so, as Jupyter's tools do it."""
    (place,) = (k for k, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
    names = {line.split(" = ")[0] for line in notebook.cells[place].source.splitlines()}
    assert set(parameters.split(" = ")[0].split(", ")) <= names
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    return notebook


def test_every_script_in_cells_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py") if "# %%" in path.read_text()} == set(SMALL)
    assert {path.stem for path in (EXAMPLES / "notebooks").iterdir()} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_scripts_in_cells(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    parameters, printed, images = SMALL[name]
    sources = [cell.source for cell in shrunk(cells(name), parameters).cells if cell.cell_type == "code"]
    exec(compile("\n".join(sources), f"{name}.py", "exec"), {})
    assert re.search(printed, capsys.readouterr().out)
    assert [path.stat().st_size > 5000 for path in tmp_path.rglob("*.png")] == [True] * images


@pytest.mark.parametrize("name", SMALL)
def test_notebooks_are_their_scripts(name: str) -> None:
    """Remade by ``make notebooks``; without outputs, which would be of somebody's machine."""
    found = nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(found)
    kept = [(cell.cell_type, cell.source, cell.metadata) for cell in found.cells]
    assert kept == [(cell.cell_type, cell.source, cell.metadata) for cell in cells(name).cells]
    assert all(not cell.outputs and cell.execution_count is None for cell in found.cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
@pytest.mark.parametrize("name", SMALL)
def test_notebooks_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = shrunk(nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", as_version=4), SMALL[name][0])
    where = {"metadata": {"path": str(tmp_path)}}
    done = NotebookClient(notebook, timeout=int(PATIENCE), kernel_name="python3", resources=where).execute()
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs]
    assert re.search(SMALL[name][1], "\n".join(shown))
    drawn = [output for output in outputs if output.output_type == "execute_result"]
    assert len(drawn) == (1 if name in ("million_wide", "transfer_learning_rate") else 0)


@pytest.mark.slow
def test_two_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["two_limits.py", "--depths", "2", "--samples", "2", "--scale", "0.01", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.syspath_prepend(EXAMPLES)
    (tmp_path / "two-limits.md").write_text("the page as git has it")
    runpy.run_path(str(EXAMPLES / "two_limits.py"), run_name="__main__")
    page = (tmp_path / "two-limits.md").read_text()
    assert page.count("| 2 | ") == 1
    assert "| width n | " in page
    assert not re.search(r"\{(samples|horizon|size|table|verdicts|steps|start|slopes|grid|orders)\b", page)


def test_the_page_of_open_statements_is_made_of_the_claims() -> None:
    of = runpy.run_path(str(EXAMPLES / "undecided_page.py"))
    docs = EXAMPLES.parent / "docs"
    rows = {row["id"]: row for row in json.loads((docs / "claims.json").read_text())["rows"]}
    assert of["page"](json.loads((docs / "undecided.json").read_text()), rows) == (docs / "undecided.md").read_text()
    assert {name for name, row in rows.items() if row["verdict"] == "undecided"} <= set(
        re.findall(r"^- \*\*(.*?)\*\*", (docs / "undecided.md").read_text(), re.MULTILINE)
    )
    samples = torch.tensor([0.0, 1.0, 2.0])
    of_mean = mean(samples)
    assert of["seeds_to_settle"](of_mean.value, of_mean.stderr, 3, of_mean.high - 1e-9) == 4
    assert of["seeds_to_settle"](of_mean.value, of_mean.stderr, 3, of_mean.high + 1e-3) == 3
    assert of["seeds_to_settle"](1.0, 0.1, 3, 1.0) == math.inf


def test_two_limits_over_settings(tmp_path: Path) -> None:
    """The page has the kernels that the formula has for relu, and the section takes the place of what stands there."""
    of = runpy.run_path(str(EXAMPLES / "two_limits_settings.py"))
    page = (EXAMPLES.parent / "docs/two-limits.md").read_text()
    assert of["kernels"]() in page
    for T in of["HORIZONS"]:
        cells = [f"{1 + (T / 4) / (1 + T / (2 * L)):.3f}" for L in of["DEPTHS"]]
        assert f"| relu | {T:g} | {' | '.join(cells)} | {1 + T / 4:.3f} |" in page
    assert all(name in page for name in of["LOSSES"])
    text = of["gaps"]([of["Setting"](depth=2)], 8, 3)
    assert text.count("\n") == 2
    assert len(text.splitlines()[-1].split(" | ")) == len(of["LOOKS"]) + 1


def test_the_first_step_by_hand_has_the_ratio_of_its_formula() -> None:
    change = runpy.run_path(str(EXAMPLES / "first_step_by_hand.py"))["change"]
    own, other = (torch.tensor([change(128, 4, 1.0, is_own, seed) for seed in range(12)]) for is_own in (True, False))
    ratio = float(own.mean() / other.mean())
    error = float((own - ratio * other).std() / 12**0.5 / other.mean().abs())
    assert abs(ratio - 1.2222) < 4 * error < 0.2  # 1 + (T/4) / (1 + T/(2L)); 1 by Theorem 1


@pytest.mark.slow
def test_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["checks.py", "--size", "small", "--out", str(tmp_path)])
    (tmp_path / "checks.md").write_text("the page as git has it")
    runpy.run_path(str(EXAMPLES / "checks.py"), run_name="__main__")
    page = (tmp_path / "checks.md").read_text()
    assert page.count("\nRule '") == page.count("\n## ") == 8
    assert page.count("inner_update") >= 8


def test_the_watched_run_is_told_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    folder = EXAMPLES.parent / "docs/howto"
    known = json.loads((folder / "watched-run.json").read_text())
    assert importlib.import_module("watched_run_page").page(known) == (folder / "watched-run.md").read_text()
    begin = known["setting"]["read"]
    assert known["wrong"]["alerts"][0]["step"] <= begin
    assert not known["sound"]["alerts"]
    assert not known["saved"]["alerts"]
    assert known["wrong"]["losses"][:begin] == known["mended"]["losses"][:begin]
    assert len(known["saved"]["losses"]) == len(known["sound"]["losses"]) - begin
    assert known["sound"]["held_out"] < known["saved"]["held_out"] < known["wrong"]["held_out"]


@pytest.mark.slow
def test_the_watched_run_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("watched_run")
    for name, size in {"STEPS": 4, "EVERY": 2, "READ": 2, "WIDTH": 128, "DEPTH": 4}.items():
        monkeypatch.setattr(example, name, size)
    example.main(tmp_path, small=True)
    page = (tmp_path / "watched-run.md").read_text()
    assert page.count("```bash") == 4
    assert "| the same, begun again once the alert is read |" in page
    assert all((tmp_path / f"{name}.html").exists() for name in ("sound", "wrong", "mended", "saved"))


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's and Lightning's own
@pytest.mark.parametrize(
    ("name", "library"), [("plan_with_trainer", "transformers"), ("plan_with_lightning", "lightning")]
)
def test_plans_ride_in_trainers(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--width", "32", "--depth", "3", "--steps", "3"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "loss: " in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("shard", "processes"), [("fsdp2", 1), ("ddp", 2), ("fsdp2", 2)])
def test_a_plan_rides_in_torchrun(shard: str, processes: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    script = [str(EXAMPLES / "plan_with_torchrun.py"), "--shard", shard]
    small = ["--width", "32", "--depth", "2", "--steps", "3"]
    done = subprocess.run([*command, *script, *small], capture_output=True, text=True, timeout=PATIENCE, env=ALONE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{shard}, {processes} processes" in done.stdout


def transfer_gpt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, as it is beside the others."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("transfer_gpt")


def test_transfer_of_a_gpt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rules that are one along an axis are trained once; what was done is read, and what is missing is named."""
    example = transfer_gpt(monkeypatch)
    monkeypatch.setattr(example, "EVALUATED", 1)
    monkeypatch.setattr(example.wide_gpt, "HEAD", 8)
    ladder = example.Ladder("adamw", "mup", (8, 16), (1,), (0.004, 0.032, 0.256), 2, seeds=2)
    ladders = example.under(("mup", "complete-p"), ladder)
    jobs = [*ladders, example.Check(ladder, (1, 2), 2), example.Larger(ladder, 24)]
    assert len(example.distinct([*jobs, *example.under(("standard",), ladder)])[0]) == 4
    chosen, _ = example.distinct(jobs)
    *_, known = example.results(chosen, tmp_path, None)
    monkeypatch.setattr(nfd, "transfer", None)
    assert [*example.results(chosen, tmp_path, None)][-1] == known  # nothing is done again
    example.main(jobs, tmp_path, tmp_path / "transformers.md", train=False)
    page = (tmp_path / "transformers.md").read_text()
    assert page.count("| AdamW, mup, complete-p |") == 2  # best rates and the larger network
    assert "step 1 | step 2" in page
    assert "Not run" not in page
    assert "{" not in page
    assert (tmp_path / "transformers-width-adamw.png").stat().st_size > 5000
    results = example.transfer_gpt_page.Results(known, {}, ["muon-width-mup"])
    assert "Not run: `muon-width-mup`" in example.transfer_gpt_page.limits(results)


@pytest.mark.parametrize(
    ("value", "low", "high", "faults", "meaning"),
    [
        (-0.9, -1.2, -0.7, {"GROWS", "COLLAPSES"}, "yes: growth, and a drift"),
        (0.5, 0.2, 0.7, set(), "no: a drift without a fault"),
        (-0.2, -0.3, -0.1, set(), "no: a drift without a fault, too small for a check to call it one"),
        (0.1, -0.1, 0.2, {"COLLAPSES"}, "no: a collapse without a drift"),
        (0.1, -0.1, 0.2, {"GROWS"}, "no: growth without a drift"),
        (0.1, -0.1, 0.2, set(), "yes: no fault, and no significant drift"),
        (0.1, None, None, {"GROWS"}, "the drift is not known"),
    ],
)
def test_whether_a_check_foresaw_a_drift(
    value: float,
    low: float | None,
    high: float | None,
    faults: set[str],
    meaning: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = transfer_gpt(monkeypatch).transfer_gpt_page
    assert page.foresight({"value": value, "low": low, "high": high}, faults) == meaning


def muon_limit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, as it is beside the others."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("muon_limit")


def small_study(example: ModuleType) -> Any:
    """Networks of widths 8 to 24, the widest with structured weights, and depths 2 and 4."""
    sizes = {"widths": (8, 16, 24), "depths": (2, 4), "checked": (8, 16), "at": (1, 2), "batch": 8, "seeds": (2, 2)}
    return example.Setting(**sizes | {"structured_from": 24, "limit": 32, "adamw_lr": 1e-3, "lr": (("muon", 0.5),)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A StructuredLinear of size")  # it is small here
def test_muon_in_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cases of every kind are measured once, and are on the page; what is not measured is not."""
    example = muon_limit(monkeypatch)
    monkeypatch.setattr(example.wide_gpt, "HEAD", 8)
    setting = small_study(example)
    wide = example.Case(setting, "muon", "complete-p", "width")
    deep = example.Case(setting, "muon", "complete-p", "depth")
    gpt = example.OfGpt(setting, "muon", "depth-mup", "depth", 0.5)
    asked = [wide, deep, example.replace(deep, trains=("inner",)), example.Limit(wide), gpt]
    assert {type(job) for job in asked} == {type(job) for job in example.jobs(setting)}
    example.main(setting, asked, tmp_path)
    page = (tmp_path / "muon.md").read_text()
    assert "| Muon, depth, complete-p |" in page
    assert "inner matrices from the start of `complete-p`" in page
    assert "outer matrices from the start" not in page
    assert "the infinitely wide network under" in page
    assert "| complete-p, p = +0.5 |" in page or "| depth-mup, p = +0.5 |" in page
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"muon-{name}.png" for name in ("width", "depth", "inner")
    }
    monkeypatch.setattr(nfd, "transfer", None)
    example.main(setting, asked, tmp_path)  # nothing is done again
    assert (tmp_path / "muon.md").read_text() == page


def test_a_power_of_depth_is_on_the_rates_of_muon_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    example = muon_limit(monkeypatch)
    case = example.Case(small_study(example), "muon", "depth-mup", "depth")

    def rates(power: float) -> dict[str, float]:
        groups = example.replace(case, power=power).family.build(8, 8, 0).groups(1.0)
        return {group["roles"][0]: group["lr"] for group in groups}

    assert rates(0.0) == pytest.approx({"input": 1.0, "inner": 4**-0.5, "outer": 4**-1})
    assert rates(0.5) == pytest.approx({"input": 1.0, "inner": 1.0, "outer": 4**-0.5})


@pytest.mark.parametrize("role", ["inner", "outer"])
def test_matrices_that_do_not_train_stay_at_the_start_of_the_rule(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = muon_limit(monkeypatch)
    case = example.Case(small_study(example), "muon", "complete-p", "depth", trains=(role,))
    recipe = Recipe(case.family, Task.of(case.batches))
    member = case.family.build(8, 4, 0)
    before = {name: p.detach().clone() for name, p in member.module.named_parameters()}
    list(recipe.rows(member, 0.1, 0.0, case.batches, None))
    moved = {name for name, p in member.module.named_parameters() if not torch.equal(p, before[name])}
    assert {name.split(".")[2] for name in moved if name.startswith("1.")} == {role}
    whole = example.replace(case, trains=example.ROLES).family.build(8, 4, 0)
    for name, p in whole.module.named_parameters():
        assert torch.equal(p, before[name])


def test_the_page_of_muon_is_made_of_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all cases, at the setting that the script has now."""
    example, docs = muon_limit(monkeypatch), EXAMPLES.parent / "docs"
    results = example.muon_limit_page.Results(docs / "muon.json")
    setting = example.full()
    assert results.setting == json.loads(json.dumps(asdict(setting)))
    assert set(results.cases) == {job.name for job in example.jobs(setting) if isinstance(job, example.Case)}
    assert example.muon_limit_page.text(results, "images/") == (docs / "muon.md").read_text()


def test_whether_the_powers_of_the_plan_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They do where the interval of the drift holds zero, and not beside it."""
    example = muon_limit(monkeypatch)
    page, numbers = example.muon_limit_page, importlib.import_module("muon_limit_numbers")
    name = numbers.case_name("muon", "depth-mup", "depth", trains=("inner",))

    def line(low: float, high: float) -> str:
        drift = numbers.row("drift", Interval((low + high) / 2, math.nan, low, high))
        numbers.write_numbers(tmp_path / "muon.json", {}, {name: [drift]})
        (only,) = page.powers(page.Results(tmp_path / "muon.json"))
        return str(only)

    assert line(-0.1, 0.1).endswith("-0.50 [-0.60, -0.40]; the plan's -0.5 agrees.")
    assert line(0.1, 0.3).endswith("-0.30 [-0.40, -0.20]; the plan's -0.5 does not agree.")
    assert line(math.nan, math.nan).endswith("may agree.")


@pytest.mark.filterwarnings("ignore:A StructuredLinear of size")  # it is small here
def test_epochs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page has networks, limit and kernels; the second time nothing is trained, and the page is the same."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("epochs")
    command = ["epochs.py", "--size", "small", "--out", str(tmp_path / "out"), "--page", str(tmp_path / "page")]
    monkeypatch.setattr(sys, "argv", command)
    example.main()
    page = (tmp_path / "page/epochs.md").read_text()
    assert page.count("stored weights |") == page.count("| structured weights |") == 2
    assert page.count("| NTK |") == page.count("| NNGP |") == 2
    assert "{" not in page
    assert all((tmp_path / f"out/epochs-{name}.png").stat().st_size > 5000 for name in ("error", "loss"))
    monkeypatch.setattr(nfd.paper.runs, "train_group", None)
    example.main()
    assert (tmp_path / "page/epochs.md").read_text() == page


def test_kernels_beside_epochs_are_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example, page = (importlib.import_module(name) for name in ("epochs", "epochs_page"))
    fitted = digits().part(60, 50, 0)
    ridge, error = example.kernel_error(fitted, fitted, "ntk", 3)
    x, targets = fitted.inputs.double(), torch.nn.functional.one_hot(fitted.labels).double()
    K = nfd.kernel(x, kind="ntk", depth=3)
    weights = torch.linalg.solve(K + ridge * K.diagonal().mean() * torch.eye(60), targets - targets.mean(0))
    answers = (nfd.kernel(fitted.test_inputs.double(), x, kind="ntk", depth=3) @ weights).argmax(1)
    assert error.value == pytest.approx(100 * float((answers != fitted.test_labels).double().mean()))
    kernel = {"kernel": "ntk", "value": 60.0, "low": 59.0, "high": 61.0}
    assert "5.0 points above it" in page.beside_kernel(55.0, 1.0, kernel)
    assert "5.0 points below it" in page.beside_kernel(65.0, 1.0, kernel)
    assert "not significantly different" in page.beside_kernel(59.0, 1.0, kernel)


def test_the_figure_of_the_wide_gpt_is_drawn_from_runs_and_from_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The law is that which was planted; a run that was stopped is left out."""
    monkeypatch.syspath_prepend(EXAMPLES)
    figure = importlib.import_module("wide_gpt_figure")
    runs = tmp_path / "runs"
    runs.mkdir()
    about = {"layers": figure.LAYERS, "tokens": figure.TOKENS, "seconds": 60.0, "gib": 1.0, "rank": 9}
    steps, stream = figure.TOKENS // 256, torch.Generator().manual_seed(0)
    for weights, width, seed in itertools.product(figure.KINDS, (64, 128, 256, 512, 1024), range(3)):
        loss = 2.4 + 10 / width + 1e-3 * float(torch.randn((), generator=stream))
        run = about | {"weights": weights, "width": width, "seed": seed, "steps": steps, "losses": [9.0] + [loss] * 57}
        (runs / f"{weights}-{width}-{seed}.json").write_text(json.dumps(run))
    stopped = about | {"weights": "dense", "width": 64, "seed": 9, "steps": 3, "losses": [9.0] * 3}
    (runs / "stopped.json").write_text(json.dumps(stopped))
    figure.main(runs, str(tmp_path / "made"))
    rows = figure.read(tmp_path / "made/wide-gpt.csv")
    assert len(rows) == 30
    law = figure.law_of([row for row in rows if row["weights"] == "structured"])
    assert law.floor.low < 2.4 < law.floor.high
    assert law.floor.high - law.floor.low < 0.01
    assert "structured, width 1,024: limit 2.4" in capsys.readouterr().out
    assert (tmp_path / "made/wide-gpt.png").stat().st_size > 5000
    figure.main(None, str(tmp_path / "again"))
    assert (tmp_path / "again/wide-gpt.csv").read_bytes() == figure.TABLE.read_bytes()


def test_what_the_page_says_of_the_wide_gpt_is_in_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    figure = importlib.import_module("wide_gpt_figure")
    page = " ".join((EXAMPLES.parent / "docs/howto/wide.md").read_text().split())
    rows = figure.read(figure.TABLE)
    dense, structured = (figure.law_of([row for row in rows if row["weights"] == kind]) for kind in figure.KINDS)
    bias = structured.excess(max(row["width"] for row in rows))
    assert f"limit is {dense.floor.unsigned} by the dense widths and {structured.floor.unsigned} by" in page
    assert f"off by {bias}." in page


@pytest.mark.filterwarnings("ignore:A StructuredLinear of size")  # it is small here
@pytest.mark.filterwarnings("ignore:Layers with resolution=0.2")  # as its page says
def test_a_wide_gpt_trains_as_the_dense_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Two draws of one model: apart by less than half of what they learn."""
    main = runpy.run_path(str(EXAMPLES / "wide_gpt.py"))["main"]
    structured, dense = (main(128, 2, 768, stored, 0.02, 3e-3) for stored in (False, True))
    assert "largest rank" in capsys.readouterr().out
    learned = min(losses[0] - losses[-1] for losses in (structured, dense))
    assert learned > 0
    assert abs(structured[-1] - dense[-1]) < learned / 2


def test_the_laws_of_a_recipe_are_measured_and_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("recipe")
    monkeypatch.setattr(example, "EVALUATED", 2)
    runs = [example.Run("batch", 1, 32 * 2, 2.0**power, seed) for power in (-7, -5, -3) for seed in (0, 1)]
    monkeypatch.setattr(example, "questions", lambda: runs)
    example.main(tmp_path, train=True)
    told = capsys.readouterr().out
    assert "best lr against rows; the law says +0.5" in told
    monkeypatch.setattr(example.Run, "trained", lambda run: pytest.fail("trained again"))
    example.main(tmp_path, train=True)
    assert capsys.readouterr().out == told
    assert {run.betas for run in runs} == {(0.9 ** (1 / 8), 0.99 ** (1 / 8))}
    monkeypatch.setattr(example, "BRANCH", 32 * 8)
    example.branched(at=(1,), sizes=(2, 8), seeds=2)
    told = capsys.readouterr().out
    assert "after 1 steps, 2 sequences" in told
    assert "+0.0000 +- 0.0000 over 8" in told  # the run that branches is left as it was


def test_published_numbers_are_fitted_and_the_toy_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rates and losses of others by our fitters; the toy's exponents are those of theory, and the page holds them."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("against_others")
    monkeypatch.setattr(example, "TOY_DEPTHS", (2, 16))
    monkeypatch.setattr(example, "TOY_SEEDS", 2)
    monkeypatch.setattr(example, "TOY_WIDTH", 32)
    monkeypatch.setattr(example, "TOY_EPSILONS", (1e-8,))
    uniform, cured = example.toy()
    assert abs(uniform["value"] + 0.5) < 0.05
    assert abs(cured["value"]) < 0.05
    assert all(abs(row["ours"] / row["theirs"] - 1) < 0.05 for row in example.optima())
    assert [round(row["slope"], 1) for row in example.drifts()] == [-1.0, 0.2]
    assert all(row["low"] < row["theirs"] < row["high"] for row in example.laws())
    example.main(tmp_path, {"optima": example.optima})
    page = (tmp_path / "against-others.md").read_text()
    assert "| marin #7381 | GQA, width 1,024 | 0.97 | 0.96 | -1% |" in page
    assert page == (EXAMPLES.parent / "docs/against-others.md").read_text()


def test_a_coordinate_check_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    page = importlib.import_module("against_others_page")
    flat, growing = ({"value": v, "low": v - 0.1, "high": v + 0.1} for v in (0.0, 0.5))
    row = {"optimizer": "adam", "layer": "second", "step": 4, "theirs": flat, "ours": flat, "standard": growing}
    assert page.mup([row]).endswith("| yes |")
    assert page.mup([row | {"ours": growing}]).endswith("| no |")
    assert "1 of our plan" in page.mup_verdict([row])
    assert "0 of the" in page.mup_verdict([row])


def test_published_arrays_are_fitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("against_others")
    depths = 2.0 ** np.arange(1, 13)
    for name, power in (("param_diff_05", -0.5), ("param_diff_1", 0.0)):
        np.save(tmp_path / f"{name}.npy", np.exp(0.1 * np.arange(3))[:, None] * depths**power)
    assert [round(row["value"], 6) for row in example.completep(tmp_path)] == [-0.5, -0.5, 0.0, 0.0]


def test_inner_layers_of_a_gpt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No seed chooses its own rate; differences are of the same seeds; the page is that of the stored numbers."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example, page = (importlib.import_module(name) for name in ("inner_layers_gpt", "inner_layers_gpt_page"))
    losses = torch.tensor([[1.0, 2.0], [3.0, 5.0], [6.0, 4.5]])  # [seeds, rates]
    assert example.chosen_by_others(losses).tolist() == [1.0, 5.0, 6.0]
    answers = [
        {"optimizer": "sgd", "rule": rule, "losses": {"2": values}}
        for rule, values in (("depth-mup", [1.0, 2.0]), ("complete-p", [1.5, 2.6]))
    ]
    assert round(page.gain(answers, answers[1], 2).value, 6) == 0.55
    (tmp_path / example.NUMBERS).write_text((EXAMPLES.parent / "docs" / example.NUMBERS).read_text())
    page.write(tmp_path, example.NUMBERS)
    assert (tmp_path / "inner-layers-gpt.md").read_text() == (EXAMPLES.parent / "docs/inner-layers-gpt.md").read_text()


def test_settings_that_are_left_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page is that of the stored numbers; its sentences follow the rows; a copy that stays fixed is compared."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example, page = (importlib.import_module(name) for name in ("open_settings", "open_settings_page"))
    (tmp_path / example.NUMBERS).write_text((EXAMPLES.parent / "docs" / example.NUMBERS).read_text())
    page.write(tmp_path, example.NUMBERS)
    assert (tmp_path / "open-settings.md").read_text() == (EXAMPLES.parent / "docs/open-settings.md").read_text()

    def row(name: str, progress: float, gap: float, power: float) -> dict[str, Any]:
        return {"value": name, "progress": {"low": progress}, "gaps": [{"low": gap}], "exponent": {"high": power}}

    said = page.answers([row("a", 1.0, 0.1, 0.2), row("b", 1.0, 0.04, -0.1), row("c", 0.0, 0.1, -1.0)], 32)
    assert re.search(r"With 1 of 2 choices the whole interval .* below that with b\. .* to be compared with c\.", said)
    assert "With 1 of 2 choices the gap shrinks significantly with depth. It does with b." in said

    def answer(config: RunConfig) -> Answer:
        gap = 0.0 if config.feedback == "shared" else 0.4 / config.depth
        loss = 1.0 + noise(config)
        return {"train_loss": loss}, {"loss": [loss + gap * (math.log(10) - loss)] * config.steps}

    runs = made(answer, feedback=["shared", "static"], depth=[2, 4], steps=4)
    gaps = example.measured(example.Choice("", ""), example.compared(runs), 10)
    assert [round(gap["value"], 3) for gap in gaps["gaps"]] == [0.2, 0.1]
    assert round(gaps["exponent"]["value"], 3) == -1.0


def test_how_far_equation_8_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page is that of the stored numbers; exponents and ratios at the largest depth are those of the runs."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example, page = (importlib.import_module(name) for name in ("eq8", "eq8_page"))
    (tmp_path / example.NUMBERS).write_text((EXAMPLES.parent / "docs" / example.NUMBERS).read_text())
    page.write(tmp_path, example.NUMBERS)
    assert (tmp_path / "eq8.md").read_text() == (EXAMPLES.parent / "docs/eq8.md").read_text()

    def answer(config: RunConfig) -> Answer:
        power = -0.5 if config.rule == "depth-mup" else 0.0
        curves = {name: [config.depth**power * (1 + noise(config))] for name in example.METERS}
        return {}, {"loss": [2.3], "measured_after": [1], **curves}

    runs = made(answer, block="two-layer", rule=list(example.RULES), depth=[4, 16, 64], steps=1)
    rows = {row["rule"]: row for row in example.measured(runs) if row["meter"] == "inner_update"}
    assert [round(rows[rule]["exponent"]["value"], 6) for rule in example.RULES] == [-0.5, 0.0, 0.0]
    assert rows["depth-mup"]["ratio"] is None
    assert round(rows["complete-p"]["ratio"]["value"], 6) == 8.0


@pytest.mark.slow
def test_inner_layers_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("inner_layers_gpt")
    example.main(example.Setting(depths=(2, 4), deeper=(2, 4), steps=3, seeds=2), tmp_path, ("sgd",))
    uniform, eq8, complete = json.loads((tmp_path / example.NUMBERS).read_text())["answers"]
    assert [answer["rule"] for answer in (uniform, eq8, complete)] == list(example.RULES)
    assert uniform["inner"][1]["value"] < 0.85 * complete["inner"][1]["value"]
