"""What ``nfd`` says of a case: four judges, each of which returns a row.

A row has what was ``said``: ``ok``, ``wrong``, ``open`` (not decided) or ``refused``, and ``why``.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import nfd
from calibration.sound_bank.by_hand import ByHand, broken_model, power
from calibration.sound_bank.cases import BASE, Case, Mistake
from nfd.core.tables import Row
from nfd.laws.rule_transfer import TOLERANCE

Variant = Literal["planned", "by hand", "broken", "unscaled"]

CHECK_STEPS = 5
CHECKED = {
    "width": ((32, 64, 128, 256), (2,)),
    "both": ((32, 64, 128), (2, 4, 8)),
}
# Of the planned model over its base.
PLANNED = {"width": (128, 2), "both": (128, 6)}
TRANSFER_STEPS = 20
TRANSFERRED = {"width": ((32, 128), (2,)), "depth": ((32,), (2, 8)), "far": ((32, 512), (2,))}
TRUE_SEEDS = range(1000, 1005)
OCTAVES = range(-4, 3)
# Of the base: a rate at which nothing is learnt.
NO_RATE = 1e-9
BOOTSTRAPS = 2000
WATCH_STEPS = 16
LOOKS = (1, 2, 4, 6, 8, 10, 12, 14, 16)
WATCHED = {
    "width": ((32, 64), (2,), (128, 2)),
    "both": ((32, 64), (2, 4), (96, 6)),
}
WATCH_SEEDS = {"width": 3, "both": 2}
BREAKS_AT = 6


def family_of(case: Case, variant: Variant, first: tuple[int, int] = BASE) -> nfd.Family:
    """The networks of a case: by a plan under its rule, without any, or as a user scales them."""
    if variant == "planned":
        return nfd.Family(case.make_model, first, case.rule, case.optimizer)
    if variant == "unscaled":
        return nfd.Family(case.make_model, first, "standard", case.optimizer)
    make_model = ByHand(case, is_broken=variant == "broken")
    return nfd.Family(make_model, first, "standard", case.optimizer)


def task_of(case: Case, variant: Variant, steps: int, seed: int = 0) -> nfd.Task:
    """The training of a case."""
    options = dict(case.options)
    if variant not in ("planned", "unscaled"):
        by_hand = ByHand(case, is_broken=variant == "broken")
        options = {name: options[name] for name in ("schedule",) if name in options}
        options["make_optimizer"] = by_hand.make_optimizer
    return nfd.Task(case.batches(steps, seed), loss=case.loss, **options)


@contextmanager
def timed(row: Row) -> Iterator[None]:
    """Note the seconds, and a refusal."""
    started = time.perf_counter()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ValueError, TypeError, RuntimeError) as error:
        row["said"] = "refused"
        row["why"] = f"{type(error).__name__}: {error}"[:600]
    row["seconds"] = round(time.perf_counter() - started, 2)


# ---- a check


def checked(case: Case, variant: Variant) -> Row:
    """The verdict of a check."""
    row: Row = {}
    widths, depths = CHECKED[case.axes]
    with timed(row), nfd.Sweep(progress=False) as sweep:
        check = nfd.check(
            family_of(case, variant),
            task_of(case, variant, CHECK_STEPS),
            widths,
            depths,
            case.lr,
            remedy=False,
            sweep=sweep,
        )
        row["said"] = "ok" if check.ok else "wrong"
        if check.ok and check.answer.tone == "open":
            row["said"] = "open"
        row["why"] = "; ".join(check.wrong[:3])[:600] or check.answer.title
    return row


# ---- a self-test


def plan_of(case: Case, width: int, depth: int, model: nn.Module | None = None) -> nfd.Plan:
    """The plan of a size."""
    return nfd.plan(
        case.make_model(width, depth) if model is None else model,
        BASE,
        make_model=case.make_model,
        rule=case.rule,
        optimizer=case.optimizer,
        sample=nfd.Task(case.batches(1, 0), loss=case.loss).sample,
    )


def self_tested(case: Case, variant: Variant) -> Row:
    """The verdict of a self-test."""
    row: Row = {}
    width, depth = PLANNED[case.axes]
    with timed(row):
        plan = plan_of(case, width, depth)
        make_model: Callable[[int, int], nn.Module] = case.make_model
        if variant == "broken":
            assert case.mistake is not None
            if case.mistake.code and not case.mistake.of_plan:
                make_model = broken_model(case)
            plan = mistaken(plan, case.mistake, width / BASE[0], depth / BASE[1])
        test = plan.self_test(make_model, nfd.Task(case.batches(1, 0), loss=case.loss).sample)
        row["said"] = "ok" if test.ok else "wrong"
        row["why"] = "; ".join(map(str, test.off[:3]))[:600]
    return row


def mistaken(plan: nfd.Plan, mistake: Mistake, wider: float, deeper: float) -> nfd.Plan:
    """The plan with a mistake of the initial weights and rates."""
    entries = dict(plan.entries)
    for name, entry in entries.items():
        of_plan = power(mistake.of_plan, name, wider, deeper)
        start = of_plan * power(mistake.std, name, wider, deeper)
        rate = of_plan * power(mistake.rate, name, wider, deeper)
        # An entry has no number for its rate. A factor of the forward pass that the plan believes
        # to make up for divides initial weights and, by the degree of the optimizer, rates.
        own = rate ** (-1 / (1 + plan.law_for(name).degree))
        constant = entry.start.constant
        begins = replace(
            entry.start,
            std=entry.start.std * start * own,
            constant=None if constant is None else constant * start * own,
        )
        entries[name] = replace(entry, start=begins, own_factor=entry.own_factor * own)
    return replace(plan, entries=entries)


# ---- a transfer


def transferred(case: Case, variant: Variant, axis: str) -> Row:
    """The verdict of a transfer, and the truth where it may be false."""
    row: Row = {"axis": axis}
    widths, depths = TRANSFERRED[axis]
    family = family_of(case, variant)
    with timed(row), nfd.Sweep(progress=False) as sweep:
        task = task_of(case, variant, TRANSFER_STEPS)
        moved = nfd.transfer(family, task, widths, depths, rules=(family.rule,), sweep=sweep)
        verdict = moved.verdict(family.rule)
        row["said"] = {"TRANSFERS": "ok", "COSTS": "wrong", "UNCERTAIN": "open"}[verdict]
        row["why"] = moved.answer.title
        regret = moved.of(family.rule).regret
        if regret is not None:
            share = regret.share
            row["cost"] = [share.value, share.low, share.high]
        advised = moved.best(family.rule, widths[0], depths[0]).value
        if math.isfinite(advised) and (variant != "planned" or verdict == "COSTS"):
            row |= truth(family, task, (widths[-1], depths[-1]), advised, sweep)
    return row


def truth(
    family: nfd.Family, task: nfd.Task, size: tuple[int, int], advised: float, sweep: nfd.Sweep
) -> Row:
    """What the advised rate costs the large network, from fresh seeds at a full grid.

    It is the share of its progress, with an interval from repeated draws of the seeds.
    """
    rates = [NO_RATE, *(advised * 2.0**k for k in OCTAVES)]
    trials = [nfd.Trial(family, task, *size, seed, lr) for lr in rates for seed in TRUE_SEEDS]
    records = sweep.run(trials)
    losses = np.array([r.metrics["train_loss"] for r in records]).reshape(len(rates), -1)
    guess = losses[0].mean()
    scores = np.where(np.isfinite(losses[1:]), np.minimum(losses[1:], guess), guess)
    place = OCTAVES.index(0)
    draws = np.random.default_rng(0).integers(len(TRUE_SEEDS), size=(BOOTSTRAPS, len(TRUE_SEEDS)))

    def cost(of: Any) -> float:
        means = of.mean(1)
        return float((means[place] - means.min()) / max(guess - means.min(), 1e-12))

    costs = [cost(scores[:, draw]) for draw in draws]
    low, high = np.quantile(costs, (0.025, 0.975))
    return {"true": cost(scores), "true_low": float(low), "true_high": float(high)}


def is_surely_worse(row: Row) -> bool:
    """Whether the large network surely loses a tenth of its progress at the advised rate."""
    return float(row.get("true_low", 0.0)) > TOLERANCE


def is_surely_fine(row: Row) -> bool:
    """Whether it surely loses less."""
    return float(row.get("true_high", 1.0)) < TOLERANCE


# ---- a watch

Break = Callable[[nn.Module, torch.optim.Optimizer, str], None]


def matrix_of(model: nn.Module, plan: nfd.Plan, seed: int) -> str:
    """A matrix that trains, chosen by seed; between growing sizes where there is one."""
    shown = {name: e for name, e in plan.entries.items() if not (e.is_vector or e.is_frozen)}
    names = [name for name, entry in shown.items() if entry.matrix is not None] or [*shown]
    return random.Random(seed).choice(names)


def gains_of(model: nn.Module) -> list[nn.Parameter]:
    """The gains of its norms."""
    kinds = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm2d)
    gains = list[nn.Parameter]()
    for module in model.modules():
        if isinstance(module, kinds) and module.weight is not None:
            gains.append(module.weight)
    return gains


BREAKS = {
    "rate": "the rate of a group is 30 times as large",
    "zero": "a matrix is set to zero",
    "frozen": "a matrix stops training",
    "detached": "a matrix never trains",
    "shrunk": "the gain of a norm is a tenth",
    "nan": "one input is not a number",
    "scale": "inputs are 30 times as large",
    "stuck": "one batch comes again and again",
    "labels": "targets are those of other samples",
    "start": "initial weights are not the plan's",
}


def fits(case: Case, broken: str) -> bool:
    """Whether a network can be broken so."""
    inputs, _ = case.batches(1, 0)[0]
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if broken in ("nan", "scale"):
        return any(tensor.is_floating_point() for tensor in tensors)
    if broken == "shrunk":
        return bool(gains_of(case.make_model(*BASE)))
    if broken == "labels":
        # The loss of two views knows no targets.
        return isinstance(case.loss, str)
    return True


def watched(case: Case, broken: Sequence[str]) -> dict[str, Row]:
    """The alerts of a watch on a sound training of a larger size, and on broken ones."""
    widths, depths, large = WATCHED[case.axes]
    rows = {name: Row() for name in ("sound", *broken)}
    first = rows["sound"]
    small: nfd.Check | None = None
    with timed(first), nfd.Sweep(progress=False) as sweep:
        task = task_of(case, "planned", WATCH_STEPS)
        small = nfd.check(
            family_of(case, "planned"),
            task,
            widths,
            depths,
            case.lr,
            seeds=WATCH_SEEDS[case.axes],
            at=LOOKS,
            remedy=False,
            sweep=sweep,
        )
        first |= trained(case, task, small, large, None)
        first["small"] = "ok" if small.ok else "wrong"
    for name in broken:
        if small is None:
            rows[name] |= {"said": "refused", "why": first["why"]}
            continue
        with timed(rows[name]):
            rows[name] |= trained(case, task, small, large, name)
    return rows


def trained(
    case: Case, task: nfd.Task, small: nfd.Check, size: tuple[int, int], broken: str | None
) -> Row:
    """Train a large network under a watch, and list its alerts."""
    seed = 77
    torch.manual_seed(seed)
    model = case.make_model(*size)
    plan = plan_of(case, *size, model=model)
    plan.apply_(model, seed=seed)
    name = matrix_of(model, plan, len(case.name))
    matrix = dict(model.named_parameters())[name]
    if broken == "start":
        with torch.no_grad():
            matrix.mul_(size[0] / BASE[0])
    if broken == "detached":
        matrix.requires_grad = False
    optimizer = plan.make_optimizer(
        model, case.lr, task.weight_decay, make=task.make_optimizer, adamw_lr=task.adamw_lr
    )
    watch = nfd.Watch(model, plan, task.sample, every=2, expected=small, seed=seed)
    rates = [group["lr"] for group in optimizer.param_groups]
    factors = task.factors(case.lr) or (1.0,) * WATCH_STEPS
    for step, (inputs, targets) in enumerate(task.batches):
        is_broken = step >= BREAKS_AT
        if is_broken and broken is not None:
            inputs, targets = spoiled(broken, task, inputs, targets)
        if step == BREAKS_AT:
            spoil(broken, model, matrix)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factors[step]
        if broken == "rate" and is_broken:
            group_of(optimizer, matrix)["lr"] *= 30
        optimizer.zero_grad()
        loss = task.value(call(model, inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if broken == "frozen" and is_broken:
            matrix.grad = None
        optimizer.step()
        watch.step(loss)
    alerts = [f"step {a.step} {a.cause} {a.layer} {a.meter}" for a in watch.alerts]
    said = {"good": "ok", "bad": "wrong", "open": "open"}[watch.answer.tone]
    row: Row = {
        "said": "wrong" if alerts else said,
        "why": "; ".join(alerts[:3]) or watch.answer.title,
        "alerts": len(alerts),
    }
    if broken is not None:
        row |= {"layer": name, "named": any(name.rpartition(".")[0] in a for a in alerts)}
    if watch.failed is not None:
        row["failed"] = watch.failed
    return row


def group_of(optimizer: torch.optim.Optimizer, matrix: nn.Parameter) -> dict[str, Any]:
    """The group of a matrix."""
    groups = [g for g in optimizer.param_groups if any(p is matrix for p in g["params"])]
    return groups[0]


def call(model: nn.Module, inputs: Any) -> Any:
    """What a model makes of inputs."""
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def spoiled(broken: str, task: nfd.Task, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """A batch as it comes from a broken loader."""
    if broken == "stuck":
        return task.batches[BREAKS_AT]
    if broken == "labels":
        return inputs, targets.roll(1, 0)
    if broken in ("nan", "scale"):
        return mapped(inputs, broken), targets
    return inputs, targets


def mapped(inputs: Any, broken: str) -> Any:
    """Inputs whose numbers are broken."""
    if isinstance(inputs, tuple):
        return tuple(mapped(tensor, broken) for tensor in inputs)
    if not inputs.is_floating_point():
        return inputs
    if broken == "scale":
        return 30 * inputs
    with_nan: Tensor = inputs.clone()
    with_nan[(0,) * inputs.ndim] = math.nan
    return with_nan


@torch.no_grad()
def spoil(broken: str | None, model: nn.Module, matrix: nn.Parameter) -> None:
    """Break a model in the middle of its training."""
    if broken == "zero":
        matrix.zero_()
    if broken == "shrunk":
        gains = gains_of(model)
        gains[len(gains) // 2].mul_(0.1)


def sizes_of_trials(case: Case) -> list[tuple[int, int]]:
    """Two sizes at which every network of a case is built in a test."""
    widths, depths = CHECKED[case.axes]
    return [*product(widths[:1], depths[:1]), (widths[1], depths[-1])]


JUDGES: Mapping[str, Callable[..., Row]] = {"check": checked, "self-test": self_tested}
