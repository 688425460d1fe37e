"""``nfd plan``: the table, the stored plan, whether one fits, and lines that train, run as they are written."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual

import nfd
from nfd.cli.main import main

MODULE = """
import torch
import nfd
from tests.models import Residual as make
batches = [(torch.randn(8, 5), torch.randint(0, 3, (8,)))] * 2
class answering(make):
    def forward(self, x, labels=None):
        outputs = super().forward(x)
        return outputs if labels is None else {"loss": torch.nn.functional.cross_entropy(outputs, labels)}
adagrad = nfd.OptimizerLaw("planned-adagrad", torch.optim.Adagrad, classes=("Adagrad",), epsilon=True)
unmade = nfd.OptimizerLaw("planned-unmade")
"""
SIZES = ["--width=16", "--depth=4", "--base-width=8", "--base-depth=2", "--batches=planned_models:batches"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "planned_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planned_models", raising=False)
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(nfd.scaling.laws._TABLE))
    return tmp_path


def planned(*options: str, model: str = "planned_models:make") -> nfd.Plan:
    assert main(["plan", model, *SIZES, *options]) == 0
    return nfd.Plan.load("out/plan/plan.json")


def lines_run(namespace: dict[str, Any]) -> dict[str, Any]:
    exec((Path("out/plan/lines.py")).read_text(), namespace)
    return namespace


def test_the_plan_is_that_of_python_is_printed_and_stored(capsys: pytest.CaptureFixture[str]) -> None:
    stored = planned("--rule", "complete-p", "--decay", "raw")
    torch.manual_seed(0)
    sample = torch.zeros(2, 5)
    there = {"make_model": Residual, "base_width": 8, "base_depth": 2, "sample": sample}
    assert stored == nfd.plan(Residual(16, 4), rule="complete-p", decay="raw", **there)
    shown = capsys.readouterr().out
    assert str(stored) in shown
    result = json.loads(Path("out/plan/result.json").read_text())
    assert nfd.Plan.from_dict(result["plan"]) == stored
    assert result["lines"] in shown
    assert planned("--config", "out/plan/config.toml") == stored


def test_a_plan_that_fits_and_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned()
    fits = ["plan", "planned_models:make", "--fits", "out/plan/plan.json", "--out", "fits"]

    def compared(width: int, depth: int) -> tuple[int, dict[str, Any]]:
        code = main([*fits, "--width", str(width), "--depth", str(depth)])
        return code, json.loads(Path("fits/result.json").read_text())

    code, same = compared(16, 4)
    assert (code, same["fits"], same["missing"], same["not_planned"], same["reshaped"]) == (0, True, [], [], {})
    code, deeper = compared(16, 5)
    assert (code, deeper["missing"], deeper["reshaped"]) == (1, [], {})
    assert deeper["not_planned"] == sorted(name for name in Residual(2, 5).state_dict() if ".4." in name)
    code, shallower = compared(16, 3)
    assert (code, shallower["not_planned"]) == (1, [])
    assert shallower["missing"] == sorted(name for name in plan.entries if ".3." in name)
    code, wider = compared(24, 4)
    assert (code, wider["missing"], wider["not_planned"]) == (1, [], [])
    shapes = {name: list(p.shape) for name, p in Residual(24, 4).named_parameters()}
    differing = {name for name, entry in plan.entries.items() if list(entry.shape) != shapes[name]}
    assert {name: shape["network"] for name, shape in wider["reshaped"].items()} == {n: shapes[n] for n in differing}
    assert 0 < len(differing) < len(shapes)
    assert "was planned as" in capsys.readouterr().out


RUN = ["--batch", "64", "256", "--tokens", "1e4", "1e5", "--schedule", "warmup=8", "fall=cosine"]
RUN += ["--critical-batch", "300", "--laws", "tokens-rate=off"]


def test_a_plan_of_a_run_is_that_of_python_and_its_lines_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    stored = planned("--rule", "complete-p", "--lr", "0.01", *RUN)
    run = nfd.plan(
        Residual(16, 4), rule="complete-p", make_model=Residual, base_width=8, base_depth=2, sample=torch.zeros(2, 5),
        batch=(64, 256), tokens=(1e4, 1e5), schedule=nfd.RateSchedule(8, "cosine"), critical_batch=300,
        laws={"tokens-rate": False},
    ).run  # fmt: skip
    assert stored.run == run is not None
    assert str(stored) in capsys.readouterr().out
    assert planned("--config", "out/plan/config.toml") == stored
    names = lines_run({})
    scheduler, groups = names["scheduler"], names["optimizer"].param_groups
    assert run.schedule is not None
    assert run.steps is not None
    assert scheduler.get_last_lr() == pytest.approx([run.schedule(0, run.steps) * g["initial_lr"] for g in groups])


def test_a_stored_plan_fits_its_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    planned(*RUN)
    fits = ["plan", "planned_models:make", "--fits", "out/plan/plan.json", "--out", "fits", "--width=16", "--depth=4"]

    def compared(*run: str) -> tuple[int, dict[str, Any]]:
        return main([*fits, *run]), json.loads(Path("fits/result.json").read_text())["run"]

    assert compared() == compared(*RUN) == compared(*RUN[:3]) == (0, {})
    assert compared("--batch", "64", "512") == (1, {"batch": {"planned": [64, 256], "asked": [64, 512]}})
    code, differing = compared(*RUN[:-3], "100", "--laws", "batch-rate=off")
    assert (code, sorted(differing)) == (1, ["batch-rate", "critical_batch"])
    assert "was planned for critical_batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "plan needs a constructor"),
        (["planned_models:make", "--fits", "planned_models.py"], "is not a plan"),
        (["planned_models:make", "--fits", "nowhere.json"], "No such file"),
        (["planned_models:make", "--fits", "plan.json", "--rule", "mup"], "got rule='mup', which"),
        (["planned_models:make", "--fits", "plan.json", "--for", "megatron"], "got framework='megatron'"),
        (["planned_models:other"], "has no 'other'"),
        (["planned_models:make", "--schedule", "warmup=8"], "schedule is for a run"),
        (["planned_models:make", *RUN, "--schedule", "warm=8"], "a name in schedule"),
        (["planned_models:make", *RUN, "--schedule", "warmup=soon"], "warmup must be a whole number"),
        (["planned_models:make", *RUN, "--laws", "tokens=off"], "a name in laws"),
        (["planned_models:make", *RUN, "--laws", "tokens-rate=no"], "like tokens-rate=off"),
    ],
    ids=str,
)
def test_what_is_no_plan_and_no_constructor_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--lr", "0.01", "--weight-decay", "0.1"),
        ("--optimizer", "planned_models:adagrad", "--seed", "3"),
        ("--optimizer", "planned_models:unmade"),
    ],
    ids=str,
)
def test_the_lines_for_pytorch_run(options: tuple[str, ...]) -> None:
    plan = planned("--rule", "mup", *options)
    namespace = lines_run({"lr": 0.01, "make_optimizer": torch.optim.SGD})
    expected = Residual(16, 4)
    plan.apply_(expected, seed=3 if "--seed" in options else 0)
    assert all(map(torch.equal, namespace["model"].parameters(), expected.parameters()))
    groups = namespace["optimizer"].param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (group["lr"], group["weight_decay"])
        for group in plan.param_groups(expected, 0.01, 0.1 if "--weight-decay" in options else 0.0)
    ]
    plan.check_rates(namespace["optimizer"])


def assert_scheduled(plan: nfd.Plan, optimizer: Any, steps: int) -> None:
    """Rates after some steps are those of the plan's schedule."""
    assert plan.run is not None
    assert plan.run.schedule is not None
    assert plan.run.steps is not None
    factor = plan.run.schedule(steps, plan.run.steps)
    assert 0 < factor < 1
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([factor * group["initial_lr"] for group in optimizer.param_groups])


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's own
def test_the_lines_for_the_trainer_run(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plan = planned("--for", "trainer", "--lr", "0.01", *RUN, model="planned_models:answering")
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=2, report_to=[], save_strategy="no", use_cpu=True,
        max_grad_norm=0.0, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    data = [{"x": torch.ones(5), "labels": torch.tensor(k)} for k in (0, 1)]
    namespace = lines_run({"arguments": arguments, "train_dataset": data})
    start = Residual(16, 4)
    plan.apply_(start)
    assert namespace["trainer"].state.global_step == 1
    assert_scheduled(plan, namespace["optimizer"], 1)
    assert not any(map(torch.equal, namespace["model"].parameters(), start.parameters()))


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_the_lines_for_lightning_run() -> None:
    lightning = pytest.importorskip("lightning")
    plan = planned("--for", "lightning", "--lr", "0.01", *RUN)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    arguments = {
        "max_steps": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    batches = torch.utils.data.DataLoader([(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))], batch_size=None)
    namespace = lines_run({"Module": Module, "arguments": arguments, "loader": batches})
    start = Residual(16, 4)
    plan.apply_(start)
    assert namespace["trainer"].global_step == 1
    assert_scheduled(plan, namespace["trainer"].optimizers[0], 1)
    assert not any(map(torch.equal, namespace["model"].parameters(), start.parameters()))


def test_the_lines_for_muon_have_both_rates() -> None:
    planned("--optimizer", "muon", "--lr", "0.02", "--adamw-lr", "0.003")
    groups = lines_run({})["optimizer"].param_groups
    tuned = {(group["use_muon"], round(group["lr"] / group["lr_scale"], 9)) for group in groups}
    assert tuned == {(True, 0.02), (False, 0.003)}
    assert main(["plan", "planned_models:make", "--adamw-lr", "0.003"]) == 2  # of adamw itself


def megatron_rates(group: dict[str, Any], progress: float, decay: float) -> tuple[float, float]:
    """Rate and decay as Megatron's ``OptimizerParamScheduler`` sets them: a cosine from max_lr to min_lr."""
    share = (1 + math.cos(math.pi * progress)) / 2
    return group["min_lr"] + share * (group["max_lr"] - group["min_lr"]), decay * group.get("wd_mult", 1.0)


@pytest.mark.parametrize("decay", ["constant-product", "independent"])
def test_the_lines_for_megatron_keep_the_ratios_under_its_scheduler(decay: str) -> None:
    plan = planned("--for", "megatron", "--lr", "0.01", "--weight-decay", "0.1", "--decay", decay)
    groups = lines_run({"min_lr": 0.001})["groups"]
    expected = plan.param_groups(Residual(16, 4), lr=0.01, weight_decay=0.1)
    assert len({group["lr"] for group in expected}) > 1
    for progress, rate in ((0.0, 0.01), (0.5, 0.0055), (1.0, 0.001)):
        for group, own in zip(groups, expected, strict=True):
            now = megatron_rates(group, progress, 0.1)
            assert now == pytest.approx((rate * own["lr_scale"], own["weight_decay"]), rel=1e-12)
