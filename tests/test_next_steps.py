"""What follows an answer: commands of the shell that are taken, and Python that runs, with the names of who asked."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nfd.cli.capacity import ModelCapacityCommand
from nfd.cli.check import CheckCommand
from nfd.cli.commands import parsed
from nfd.cli.options import Options
from nfd.cli.transfer import ModelTransferCommand
from nfd.meters.outcome import Check
from nfd.questions.capacity import Capacity
from nfd.questions.capacity_answers import answers_of
from nfd.questions.costs import Cost, Costs
from nfd.questions.law_fit import fit_law
from nfd.questions.next_steps import NextStep, NextSteps
from nfd.questions.optimum import Scores
from nfd.questions.regret import Regret
from nfd.questions.rule_transfer import RuleTransfer
from nfd.questions.sweep_settings import ModelCapacityConfig, ModelTransferConfig
from nfd.questions.transfer import Transfer
from nfd.runs.model_settings import CheckConfig, ModelPredictConfig

SIZES: dict[str, Any] = {"widths": (8, 16), "depths": (2, 4)}


def as_typed(step: NextStep) -> Options:
    """The command, as the shell would make it."""
    program, *arguments = shlex.split(step.command)
    assert program == "nfd"
    return parsed(arguments)


# ---- after a check -----------------------------------------------------------------------------------------------


def after_check(check: Check, **settings: Any) -> list[NextStep]:
    config = CheckConfig(**SIZES | {"rule": check.rule, "seeds": 2} | settings)
    return NextSteps("models:make").after_check(config, check)


def judged_as(rule: str, *faults: tuple[str, str, str]) -> Check:
    """A check of these verdicts: meter, axis and word."""
    table = [{"meter": meter, "axis": axis, "verdict": word, "step": 3} for meter, axis, word in faults]
    runs = [{"width": n, "depth": d, "seed": 0, "rows": []} for n in (8, 16) for d in (2, 4)]
    return Check(table, runs, [], rule, "adamw", "lr", 0.01, (3,), 2, "3 steps of 8 samples [8, 64]")


def test_a_fault_with_a_cure_leads_to_a_check_under_it() -> None:
    grows = judged_as("mup", ("stream_update", "depth", "GROWS"), ("inner_update", "depth", "STABLE"))
    again, transfer, plan = after_check(grows, optimizer="adamw", lr=0.01, roles=("head.*=readout",))
    settings = as_typed(again)
    assert isinstance(settings, CheckCommand)
    assert (settings.rule, settings.widths, settings.depths, settings.seeds) == ("complete-p", (8, 16), (2, 4), 2)
    assert (settings.model, settings.lr, settings.roles) == ("models:make", 0.01, ("head.*=readout",))
    asked = as_typed(transfer)
    assert isinstance(asked, ModelTransferCommand)
    assert (asked.model, asked.rules, asked.seeds) == ("models:make", ("mup", "complete-p"), 3)  # for a verdict
    assert (asked.widths, asked.depths, asked.lr) == ((8, 16), (2, 4), (0.0025, 0.005, 0.01, 0.02, 0.04))
    assert (asked.optimizer, asked.roles) == ("adamw", ("head.*=readout",))
    assert "rule='complete-p'" in plan.command
    assert "roles={'head.*': 'readout'}," in plan.command
    assert "make_optimizer(model, lr=lr)" in plan.command


def test_no_fault_leads_to_later_steps_and_no_other_rule() -> None:
    sound = judged_as("mup", ("stream_update", "depth", "STABLE"), ("loss", "width", "COLLAPSES"))
    late, transfer, _ = after_check(sound, steps=4)
    settings = as_typed(late)
    assert isinstance(settings, CheckCommand)
    assert (settings.rule, settings.at, settings.steps) == ("mup", (1, 4, 40), None)
    asked = as_typed(transfer)
    assert isinstance(asked, ModelTransferCommand)
    assert (asked.rules, asked.steps) == (("mup",), None)  # a check is too short for a best rate
    incurable = judged_as("complete-p", ("stream_update", "depth", "GROWS"))
    assert not any(step.command.startswith("nfd check") for step in after_check(incurable))


# ---- after a transfer --------------------------------------------------------------------------------------------


def transfer_with(regret: float, *, noise: float = 0.01, at: float = 0.0) -> Transfer:
    """Best rates of 2**-7 at both sizes, shifted at the larger, and what the first costs there in nats."""
    rates, stream = torch.arange(-10.0, -3.0), torch.Generator().manual_seed(0)

    def cell(best: float) -> Scores:
        losses = 1 + 0.05 * (rates - best) ** 2 + 0.001 * torch.randn(3, 7, generator=stream)
        return Scores(rates, losses, torch.zeros(3, 7, dtype=torch.bool), math.log(10))

    small, large = cell(-7.0), cell(-7.0 + at)
    drawn = 1 + torch.tensor([regret, 0.0]) + noise * torch.randn(6, 2, generator=stream)
    new = Scores(torch.tensor([-7.0, -7.0 + at]), drawn, torch.zeros(6, 2, dtype=torch.bool), large.guess)
    cost = Regret(2.0**-7, 2.0 ** (-7 + at), new, large)
    return Transfer((RuleTransfer("complete-p", {(8, 2): small, (16, 4): large}, cost, "lr"),), "", "loss")


def after_transfer(transfer: Transfer, **settings: Any) -> list[NextStep]:
    config = ModelTransferConfig(**SIZES | {"rules": ("complete-p",), "seeds": 3} | settings)
    return NextSteps("models:make", "cpu", "out/mine").after_transfer(config, transfer)


def test_a_rule_that_transfers_leads_to_its_capacity_and_its_plan() -> None:
    capacity, plan = after_transfer(transfer_with(0.0), weight_decay=0.1, loss="mse")
    asked = as_typed(capacity)
    assert isinstance(asked, ModelCapacityCommand)
    assert (asked.model, asked.rule, asked.weight_decay, asked.loss) == ("models:make", "complete-p", 0.1, "mse")
    assert asked.lr == pytest.approx(2**-7, rel=0.05)
    assert (asked.widths, asked.depths, asked.device) == ((8, 16, 32), (2, 4, 8), "cpu")  # enough for a law
    assert "weight_decay=0.1" in plan.command


def test_an_open_verdict_leads_to_more_seeds_in_the_same_place() -> None:
    (again,) = after_transfer(transfer_with(0.15, noise=0.3))
    asked = as_typed(again)
    assert isinstance(asked, ModelTransferCommand)
    assert (asked.seeds, asked.out, asked.rules) == (6, "out/mine", ("complete-p",))


def test_a_rule_that_costs_leads_to_a_check_of_it() -> None:
    (check,) = after_transfer(transfer_with(0.8, at=2.0), blocks="layers.*")
    asked = as_typed(check)
    assert isinstance(asked, CheckCommand)
    assert (asked.rule, asked.blocks, asked.optimizer) == ("complete-p", "layers.*", None)  # the default of both


# ---- after a capacity --------------------------------------------------------------------------------------------


def answered(power: float, **settings: Any) -> list[NextStep]:
    """What follows a capacity of losses with this power of width."""
    stream = torch.Generator().manual_seed(1)
    losses = {
        (n, L): [0.7 + 8 / n**power + 0.5 / L + 0.002 * float(torch.randn((), generator=stream)) for _ in range(4)]
        for n in (16, 32, 64, 128)
        for L in (2, 4, 8)
    }
    costs = Costs({"parameters": Cost(0, 10, 0, 1)}, 16)
    capacity = Capacity(fit_law(losses, paired=False), losses, "", costs=costs, lr=0.001, rate_name="lr")
    config = ModelCapacityConfig(**{"widths": (16, 32, 64, 128), "depths": (2, 4, 8)} | settings)
    return NextSteps("models:make", out="out/mine").after_capacity(config, answers_of(config, capacity))


def test_a_law_that_holds_leads_to_its_rate_and_to_the_best_size() -> None:
    transfer, plan = answered(1.0, rule="depth-mup", parameters="100k")
    asked = as_typed(transfer)
    assert isinstance(asked, ModelTransferCommand)
    assert (asked.rules, asked.widths) == (("depth-mup",), (16, 32, 64, 128))
    assert "rule='depth-mup'" in plan.command
    assert "model = make(width" not in plan.command
    (tuned,) = answered(1.0, lr=0.001)
    assert "plan.make_optimizer(model, lr=0.001)" in tuned.command


def test_a_law_that_fails_leads_to_larger_sizes_in_the_same_place() -> None:
    (again,) = answered(0.3)
    asked = as_typed(again)
    assert isinstance(asked, ModelCapacityCommand)
    assert (asked.widths, asked.depths, asked.out) == ((16, 32, 64, 128, 256), (2, 4, 8, 16), "out/mine")


@pytest.mark.parametrize("adamw_lr", [None, 0.01])
def test_a_prediction_leads_to_real_sizes_and_to_the_plan(adamw_lr: float | None) -> None:
    config = ModelPredictConfig(
        base_width=16, width=64, depth=8, base_depth=4, optimizer="muon", rule="depth-mup", adamw_lr=adamw_lr
    )
    *capacity, plan = NextSteps("models:make").after_predict(config, 0.02)
    assert len(capacity) == (adamw_lr is None)  # nfd capacity takes one rate
    for step in capacity:
        asked = as_typed(step)
        assert isinstance(asked, ModelCapacityCommand)
        assert (asked.widths, asked.depths, asked.lr) == ((16, 32, 64), (4, 8, 16), 0.02)
        assert (asked.rule, asked.optimizer) == ("depth-mup", "muon")
    assert "base_width=16,\n    base_depth=4," in plan.command
    assert ("lr=0.02, adamw_lr=0.01)" in plan.command) == (adamw_lr is not None)


# ---- Python ------------------------------------------------------------------------------------------------------

MODULE = """
import torch
from tests.models import Residual as make
batches = [(torch.randn(8, 5), torch.randint(0, 3, (8,)))] * 2
def fresh(): return batches
def stepped(groups): return torch.optim.SGD(groups)
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"batches": "asked_models:batches", "roles": ("head.*=readout",)},
        {"batches": "asked_models:fresh", "blocks": "blocks.*", "weight_decay": 0.1},
        {"batches": "asked_models:batches", "optimizer": "sgd", "make_optimizer": "asked_models:stepped"},
    ],
    ids=str,
)
def test_the_lines_of_a_plan_run(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "asked_models", raising=False)
    config = CheckConfig(**SIZES | {"optimizer": "adamw", "rule": "mup"} | settings)
    check = judged_as("mup", ("stream_update", "depth", "STABLE"))
    plan = NextSteps("asked_models:make").after_check(config, check)[-1]
    namespace: dict[str, Any] = {"width": 16, "depth": 4, "lr": 0.01}
    exec(plan.command, namespace)
    rates = [group["lr"] for group in namespace["optimizer"].param_groups]
    assert 0.01 in rates  # a plan leaves some rates of the base, and changes others
    assert len({*rates}) > 1
