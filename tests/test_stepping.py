"""Rates of a training that are not those of its plan: told at the first step, whatever steps it."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import Residual
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import _global_optimizer_post_hooks

import nfd
from nfd.watch import Cause

LR = 0.01
X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))

Make = Callable[[nn.Module, nfd.Plan], Any]


class Wrapped(Optimizer):
    """Another library's wrapper, which is not set up as an optimizer of PyTorch."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        """That of the optimizer."""
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """That of the optimizer."""
        self.optimizer.zero_grad(set_to_none)


def planned(optimizer: str = "adamw", rule: str = "complete-p") -> tuple[nn.Module, nfd.Plan]:
    model = Residual(16, 4)
    base = {} if rule == "standard" else {"base": (8, 2)}
    plan = nfd.plan(model, rule=rule, optimizer=optimizer, sample=X, **base)  # type: ignore[arg-type]
    return plan.apply_(model), plan


def train(
    model: nn.Module, optimizers: Any, watch: nfd.Watch, steps: int = 2, schedule: Callable[[int], float] | None = None
) -> list[str]:
    """Returns what is warned of."""
    own = optimizers if isinstance(optimizers, list) else [optimizers]
    schedulers = [] if schedule is None else [LambdaLR(optimizer, schedule) for optimizer in own]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            model(X).square().mean().backward()
            for part in (*own, *schedulers):
                part.step()
            watch.step()
            model.zero_grad()
    return [str(warning.message) for warning in caught]


def plain(model: nn.Module, plan: nfd.Plan) -> Optimizer:
    return AdamW(model.parameters(), lr=LR)


SOUND: dict[str, Make] = {
    "the optimizer of the plan": lambda model, plan: plan.make_optimizer(model, lr=LR),
    "Adam with its groups": lambda model, plan: Adam(plan.param_groups(model, lr=LR)),
    "the same rates by hand": lambda model, plan: AdamW(
        [{"params": group["params"], "lr": group["lr"]} for group in plan.param_groups(model, LR)]
    ),
    "an optimizer for each group": lambda model, plan: [AdamW([group]) for group in plan.param_groups(model, LR)],
    "wrapped": lambda model, plan: Wrapped(plan.make_optimizer(model, lr=LR)),
    "one that does not step the model": lambda model, plan: [
        plan.make_optimizer(model, lr=LR),
        AdamW([nn.Parameter(torch.ones(2))], lr=1.0),
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_rates_of_the_plan_are_no_alert(name: str) -> None:
    model, plan = planned()
    optimizers, watch = SOUND[name](model, plan), nfd.Watch(model, plan, X)
    assert train(model, optimizers, watch, schedule=lambda step: step / 2) == []  # the first step has no rate
    assert watch.alerts == []


def test_one_rate_is_right_where_the_rule_has_one_and_muon_has_two() -> None:
    for rule, optimizer, make in (
        ("standard", "adamw", plain),
        ("standard", "adamw", lambda model, plan: SGD(model.parameters(), lr=LR)),
        ("complete-p", "muon", lambda model, plan: plan.make_optimizer(model, lr=LR, adamw_lr=LR / 7)),
    ):
        model, plan = planned(optimizer, rule)
        watch = nfd.Watch(model, plan, X)
        assert train(model, make(model, plan), watch) == []
        assert watch.alerts == []


WRONG: dict[str, Make] = {
    "no groups": plain,
    "groups without rates": lambda model, plan: AdamW(
        [{"params": group["params"]} for group in plan.param_groups(model, 1.0)], lr=LR
    ),
    "wrapped": lambda model, plan: Wrapped(plain(model, plan)),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_rate_for_all_tensors_is_told_at_the_first_step_that_has_a_rate(name: str) -> None:
    model, plan = planned()
    optimizer, watch = WRONG[name](model, plan), nfd.Watch(model, plan, X, every=9)
    warned = train(model, optimizer, watch, 3, schedule=lambda step: max(step - 1, 0))
    (alert,) = watch.alerts
    assert (alert.step, alert.cause) == (2, Cause.OPTIMIZER)
    assert {other.tensor: other.planned for other in alert.tensors} == pytest.approx(
        {name: LR * plan.rate(name) for name in plan.entries if plan.rate(name) != 1}
    )
    assert warned == [str(alert)]
    assert "the AdamW does not have the groups of the plan" in str(alert)
    assert f"blocks.*.down.weight (4 tensors) has rate 0.01, planned {LR / 4:g}" in str(alert)
    assert "plan.make_optimizer" in alert.remedy
    state = json.loads(json.dumps(watch.state_dict(start=False)))
    resumed = nfd.Watch(model, plan, X, every=9, own_start=True)
    resumed.load_state_dict(state)
    assert train(model, optimizer, resumed) == []  # it is known
    assert resumed.alerts == watch.alerts


def test_an_optimizer_of_another_kind_is_named() -> None:
    for optimizer, make, kind, names in (
        ("adamw", SGD, "sgd", "'embed.weight', 'embed.bias', 'blocks.0.up.weight' and 17 more"),
        ("muon", AdamW, "adamw", "'blocks.0.up.weight', 'blocks.1.up.weight', 'blocks.2.up.weight' and 5 more"),
    ):
        model, plan = planned(optimizer)
        watch = nfd.Watch(model, plan, X)
        (warned,) = train(model, make(plan.param_groups(model, LR)), watch)
        assert f"step 1: the plan is for {optimizer}; the optimizer of {names} is {make.__name__}." in warned
        assert f"plan for {kind!r}" in warned


def test_groups_of_the_plan_that_lost_their_ratios_are_named() -> None:
    model, plan = planned()
    groups = plan.param_groups(model, LR)
    for group in groups:
        group["lr"] *= 3 if any(p is model.get_parameter("head.weight") for p in group["params"]) else 1
    watch = nfd.Watch(model, plan, X)
    (warned,) = train(model, AdamW(groups), watch)  # the optimizer itself
    assert "no longer the plan's: groups" in warned
    (alert,) = watch.alerts
    assert alert.cause is Cause.RATE
    (other,) = alert.tensors
    assert (other.tensor, alert.layer) == ("head.weight", "head")
    assert (other.value, other.planned) == pytest.approx(
        (3 * LR * plan.rate("head.weight"), LR * plan.rate("head.weight"))
    )


def test_no_hook_stays() -> None:
    before = len(_global_optimizer_post_hooks)
    for steps in (2, 0):  # once it knows the optimizer, and with the watch
        model, plan = planned()
        watch = nfd.Watch(model, plan, X)
        assert len(_global_optimizer_post_hooks) == before + 1
        train(model, plan.make_optimizer(model, lr=LR), watch, steps)
        assert len(_global_optimizer_post_hooks) == before + (not steps)
    del watch
    gc.collect()
    assert len(_global_optimizer_post_hooks) == before
