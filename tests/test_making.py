"""From a plan to a model that is ready and an optimizer that steps it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models import Residual, Transformer, train
from torch import nn
from torch.optim import lr_scheduler

import nfd

VECTORS, TOKENS = torch.linspace(-1, 1, 40).view(8, 5), torch.arange(12).view(2, 6) % 11
LABELS = torch.arange(8) % 3


def planned(optimizer: str, **options: Any) -> tuple[Residual, nfd.Plan]:
    model = Residual(32, 4)
    made = {"make_model": Residual, "base": (16, 2), "sample": VECTORS} | options
    plan = nfd.plan(model, rule="complete-p", optimizer=optimizer, **made)
    return model, plan


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> list[float]:
    return train(model, optimizer, [(VECTORS, LABELS)] * count)


# ---- apply_ ------------------------------------------------------------------------------------------------------


def test_applying_a_plan_inserts_its_multipliers_once() -> None:
    def tied(width: int, depth: int) -> nn.Module:
        model = Transformer(width, depth, tied=True)
        model.norm = nn.LayerNorm(width, elementwise_affine=False)  # no gain could take the factor of the head
        return model

    model = tied(32, 2)
    plan = nfd.plan(model, rule="mup", make_model=tied, base=(8, 2), sample=TOKENS)
    by_hand = copy.deepcopy(model)
    replace(plan, multipliers={}).apply_(by_hand, seed=3)
    by_hand.head = nfd.Scaled(by_hand.head, plan.multipliers["head"])
    assert plan.apply_(model, seed=3) is model
    assert torch.equal(model(TOKENS), by_hand(TOKENS))
    assert model.head.weight is model.tokens.weight
    before = model(TOKENS)
    plan.apply_(model, seed=3)  # the multiplier is not inserted twice
    assert torch.equal(model(TOKENS), before)
    plan.apply_(model, seed=4)
    assert not torch.equal(model(TOKENS), before)
    assert plan.param_groups(model, lr=0.1)


# ---- make_optimizer ----------------------------------------------------------------------------------------------


def test_options_of_another_optimizer_are_refused() -> None:
    model, plan = planned("adamw")
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        plan.make_optimizer(model, lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="adamw_lr is for what Muon leaves"):
        plan.make_optimizer(model, lr=0.1, adamw_lr=0.1)
    with pytest.raises(ValueError, match="eps is Adam's"):
        planned("sgd")[1].param_groups(model, lr=0.1, eps=1e-6)
    assert "eps" not in planned("sgd")[1].param_groups(model, lr=0.1)[0]
    with pytest.raises(ValueError, match="adamw_lr must be at least 0"):
        planned("muon")[1].make_optimizer(model, lr=0.1, adamw_lr=-0.1)
    with pytest.raises(ValueError, match=r"optimizer='lion' is not built here.*make= of plan.make_optimizer"):
        planned("lion")[1].make_optimizer(model, lr=0.1)


# ---- Muon and AdamW as one ---------------------------------------------------------------------------------------


def muon(**options: Any) -> tuple[Residual, torch.optim.Optimizer, nfd.Plan]:
    model, plan = planned("muon")
    plan.apply_(model, seed=1)
    made = {"lr": 0.02, "adamw_lr": 0.003, "weight_decay": 0.1} | options
    return model, plan.make_optimizer(model, **made), plan


def test_muon_and_adamw_step_as_they_would_apart() -> None:
    model, ready, plan = muon(momentum=0.9, betas=(0.8, 0.9))
    twin = copy.deepcopy(model)
    groups = plan.param_groups(twin, lr=0.02, adamw_lr=0.003, weight_decay=0.1)
    apart = [
        torch.optim.Muon([g for g in groups if g["use_muon"]], momentum=0.9),
        torch.optim.AdamW([g for g in groups if not g["use_muon"]], betas=(0.8, 0.9)),
    ]
    losses = steps(model, ready, 5)
    for expected in losses:
        for optimizer in apart:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(VECTORS), LABELS)
        loss.backward()
        for optimizer in apart:
            optimizer.step()
        assert float(loss.detach()) == expected
    assert losses[-1] < losses[0]


def test_two_rates_and_a_scaled_epsilon() -> None:
    model, ready, plan = muon()
    names = {id(p): name for name, p in model.named_parameters()}
    for group in ready.param_groups:
        for p in group["params"]:
            name = names[id(p)]
            assert group["lr"] == pytest.approx((0.02 if group["use_muon"] else 0.003) * plan.rate(name))
            if not group["use_muon"]:
                assert group["eps"] == pytest.approx(1e-8 * plan.epsilon(name))
    assert {g["use_muon"] for g in ready.param_groups} == {True, False}
    one_rate = plan.make_optimizer(model, lr=0.02)
    assert {g["lr"] for g in one_rate.param_groups if "input" in g["roles"]} == {0.02}


def test_the_state_of_both_is_saved_and_loaded() -> None:
    model, ready, _ = muon()
    steps(model, ready, 3)
    saved, weights = copy.deepcopy(ready.state_dict()), copy.deepcopy(model.state_dict())
    expected = steps(model, ready, 3)
    again, other, _ = muon()
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    assert steps(again, other, 3) == expected
    assert len(saved["state"]) == len(list(model.parameters()))
    fresh, forgetful, _ = muon()
    fresh.load_state_dict(weights)
    assert steps(fresh, forgetful, 3) != expected
    with pytest.raises(ValueError, match="groups of parameters; expected"):
        other.load_state_dict({"state": {}, "param_groups": []})


# ---- the ratios of its rates: kept by schedules that multiply, and missed where something else sets rates -----------

STEPS = 6

Scheduler = Callable[[torch.optim.Optimizer], Callable[[], None]]


def by_class(kind: Any, **options: Any) -> Scheduler:
    return lambda optimizer: kind(optimizer, **options).step


def one_cycle(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    return lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=STEPS + 1, cycle_momentum=False).step


def loop(rate: Callable[[dict[str, Any]], float]) -> Scheduler:
    def made(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            for group in optimizer.param_groups:
                group["lr"] = rate(group)

        return step

    return made


KEPT: dict[str, Scheduler] = {
    "a warm-up from zero": by_class(lr_scheduler.LambdaLR, lr_lambda=lambda step: step / STEPS),
    "a cosine to zero": by_class(lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "one cycle with a peak for each group": one_cycle,
    "a loop that multiplies by lr_scale": loop(lambda group: 0.003 * group["lr_scale"]),
}
LOST: dict[str, Scheduler] = {
    "one peak for all groups": by_class(
        lr_scheduler.OneCycleLR, max_lr=0.01, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "a cosine to a rate of its own": by_class(lr_scheduler.CosineAnnealingLR, T_max=STEPS, eta_min=1e-3),
    "a loop that sets one rate": loop(lambda group: 0.003),
}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_lost_ratios_are_warned_of_once(name: str, optimizer: str) -> None:
    model, plan = planned(optimizer)
    made = plan.make_optimizer(model, lr=0.003, **({"adamw_lr": 0.001} if optimizer == "muon" else {}))
    advance = (KEPT | LOST)[name](made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            steps(model, made, 1)
            advance()
    warned = [str(warning.message) for warning in caught if "the plan's" in str(warning.message)]
    assert len(warned) == (name in LOST)
    if name in LOST:
        assert "max_lr=[" in warned[0]
        with pytest.raises(ValueError, match=r"no longer the plan's: groups \d+ and \d+"):
            plan.check_rates(made)
    else:
        plan.check_rates(made)
