"""Schedules of the learning rate as plain factors, one per step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from nfd.core.errors import InputError, InputTypeError, check_real, check_takes
from nfd.scaling.run import ramp

Schedule = Callable[..., Any]
"""From the step to a factor, or from an optimizer to a scheduler. One that also takes ``steps`` gets their number."""


def factors_of(schedule: Schedule, steps: int, lr: float) -> tuple[float, ...]:
    """What a schedule makes of the rate of the base, over that rate, at every step.

    Every group of parameters follows in proportion, so that a rule holds at every step. A rate that a scheduler names
    itself, such as ``eta_min``, is one of the base.

    Args:
        schedule: a function from the step to a factor, or from an optimizer to a scheduler of ``torch.optim``.
        steps: how many. lr: the rate of the base.

    Raises:
        ValueError, TypeError: where it is neither, or schedules more than rates.
    """
    if knows_steps(schedule):
        schedule = partial(schedule, steps=steps)
    check_takes("schedule", schedule, "step_or_optimizer")
    try:
        factor: Any = schedule(0)
    except Exception:  # whatever a scheduler's constructor raises where an optimizer should be
        factor = None
    if isinstance(factor, int | float):
        return tuple(check_real(f"schedule({step})", schedule(step), least=0.0) for step in range(steps))
    return tuple(rate / lr for rate in _rates(schedule, steps, lr))


def knows_steps(schedule: Schedule) -> bool:
    """Whether a schedule has an argument ``steps``, how many there are, so that it fits runs of any length."""
    try:
        taken = inspect.signature(schedule).parameters
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False
    return "steps" in taken and taken["steps"].default is inspect.Parameter.empty


def warmed(factors: Sequence[float] | None, steps: int, warmup: float) -> tuple[float, ...] | None:
    """The factors with a linear warm-up: of its ``w = warmup * steps`` steps, step t has a share ``(t + 1) / (w + 1)``.

    Args:
        factors: of a schedule, None for ones. warmup: share of the steps.

    Raises:
        ValueError: where there is a warm-up and it is shorter than a step.
    """
    rising = round(warmup * steps)
    if warmup and not rising:
        raise InputError(f"warmup must be at least one step; got {warmup:g} of {steps} steps. Take more, or 0.")
    if not rising:
        return None if factors is None else tuple(factors)
    given = [1.0] * steps if factors is None else factors
    return tuple(factor * ramp(t, rising) for t, factor in enumerate(given))


def _rates(schedule: Schedule, steps: int, lr: float) -> list[float]:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr, weight_decay=0.0)
    others = _others(optimizer)
    scheduler = schedule(optimizer)
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) or isinstance(
        scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
    ):
        raise InputTypeError(
            "schedule must be a function from the step to a factor, or from an optimizer to a scheduler of torch.optim "
            f"that needs no measurement; called with an optimizer it returned {type(scheduler).__name__}."
        )
    rates = []
    for step in range(steps):
        rates.append(check_real(f"rate of schedule at step {step}", optimizer.param_groups[0]["lr"], least=0.0))
        if _others(optimizer) != others:
            raise InputError("schedule must change rates alone; for OneCycleLR pass cycle_momentum=False.")
        optimizer.step()
        scheduler.step()
    return rates


def _others(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [optimizer.param_groups[0][name] for name in ("betas", "weight_decay")]
