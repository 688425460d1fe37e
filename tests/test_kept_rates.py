"""The ratios of a plan's rates: kept by schedules that multiply, and missed where something else sets rates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import Transformer
from torch.optim import lr_scheduler

import nfd

IDS = torch.arange(24).view(4, 6) % 11
STEPS = 6

Scheduler = Callable[[torch.optim.Optimizer], Callable[[], None]]


def planned(optimizer: str = "adamw") -> tuple[torch.nn.Module, nfd.Plan]:
    model = Transformer(64, 4)
    sizes: dict[str, Any] = {"make_model": Transformer, "base": (16, 2)}
    return model, nfd.plan(model, rule="complete-p", optimizer=optimizer, sample=IDS, **sizes)


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


def trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module, schedule: Scheduler) -> list[str]:
    """What is warned of in some steps."""
    advance = schedule(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(IDS).square().mean().backward()
            optimizer.step()
            advance()
    return [str(warning.message) for warning in caught if "the plan's" in str(warning.message)]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_lost_ratios_are_warned_of_once(name: str, optimizer: str) -> None:
    model, plan = planned(optimizer)
    made = plan.make_optimizer(model, lr=0.003, **({"adamw_lr": 0.001} if optimizer == "muon" else {}))
    warned = trained(made, model, (KEPT | LOST)[name])
    assert len(warned) == (name in LOST)
    if name in LOST:
        assert "max_lr=[" in warned[0]
        with pytest.raises(ValueError, match=r"no longer the plan's: groups \d+ and \d+"):
            plan.check_rates(made)
    else:
        plan.check_rates(made)
