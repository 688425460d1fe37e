"""Trials: anyone's networks as runs of a sweep, against plain training by the plan; names, resuming, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual, Transformer
from torch import Tensor, nn

import nfd
from nfd.core.machine import threads
from nfd.families.constructed import ConstructedFamily
from nfd.families.family import Family
from nfd.families.paper import PaperFamily
from nfd.runs.executors.processes import Processes
from nfd.runs.grid import grid
from nfd.runs.sweep import Sweep
from nfd.runs.trials import Trial
from nfd.store.rows import Record
from nfd.store.store import Store
from nfd.training.recipe import Recipe
from nfd.training.schedule import factors_of
from nfd.training.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:A StructuredLinear of size")  # these are small

STREAM = torch.Generator().manual_seed(0)
STEPS = 12
VECTORS = [(torch.randn(6, 5, generator=STREAM), torch.randint(0, 3, (6,), generator=STREAM)) for _ in range(STEPS + 3)]
TOKENS = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(0, 11, (4, 3, 8), generator=STREAM)]
TASK = Task.of(VECTORS[:STEPS], eval_batches=VECTORS[STEPS:])


def family(make_model: Any = Residual, **options: Any) -> ConstructedFamily:
    about: dict[str, Any] = {"rule": "complete-p", "optimizer": "adamw", "sample": VECTORS[0][0]}
    return ConstructedFamily(make_model, (8, 2), **about | options)


def recipe(made: Family | None = None, **options: Any) -> Recipe:
    about: dict[str, Any] = {"task": TASK}
    return Recipe(made or family(), **about | options)


def trial(given: Recipe | None = None, **options: Any) -> Trial:
    about: dict[str, Any] = {"width": 16, "depth": 4, "seed": 1, "lr": 0.01}
    return Trial(given or recipe(), **about | options)


def trained(*trials: Trial, out: Path | None = None, **options: Any) -> list[Record]:
    with Sweep(out, **options) as sweep:
        records = sweep.run_all({"all": trials})["all"]
        return [replace(record, curves={**sweep.store.curves(record.key)}) for record in records]


def loop(given: Trial, member: Any, scheduler: Any = None) -> list[float]:
    """The losses of plain training, with the optimizer that the plan makes."""
    optimizer = member.plan.make_optimizer(member.module, lr=given.lr, weight_decay=given.weight_decay)
    stepped = None if scheduler is None else scheduler(optimizer)
    losses = []
    for x, y in given.recipe.task.batches:
        optimizer.zero_grad()
        loss = given.recipe.task.value(member.module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if stepped is not None:
            stepped.step()
    return losses


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "muon"])
def test_a_trial_is_plain_training_by_the_plan(optimizer: str) -> None:
    given = trial(recipe(family(optimizer=optimizer)), weight_decay=0.1 if optimizer == "adamw" else 0.0)
    (record,) = trained(given)
    member = given.recipe.family.build(16, 4, seed=1)
    with threads(1):  # as in the sweep: Muon computes in 16 bits, and shows the order of sums
        losses = loop(given, member)
    assert record.status == "done"
    assert record.curves["loss"].tolist() == pytest.approx(losses)
    assert record.metrics["first_loss"] == pytest.approx(losses[0])
    assert record.metrics["highest_loss"] == pytest.approx(max(losses))
    assert record.metrics["train_loss"] == pytest.approx(losses[-1])  # a tenth of twelve steps is one
    with torch.no_grad():
        expected = [float(nn.functional.cross_entropy(member.module(x), y)) for x, y in VECTORS[STEPS:]]
    assert record.metrics["test_loss"] == pytest.approx(sum(expected) / 3)


def test_the_paper_s_networks_and_anyone_s_are_trials_alike() -> None:
    task = Task.of(TOKENS)
    made = family(Transformer, sample=TOKENS[0][0])
    paper = PaperFamily(nfd.ResNet, 5, 3)
    records = trained(trial(recipe(made, task=task)), trial(recipe(paper), lr=0.1))
    assert [record.status for record in records] == ["done", "done"]
    assert "test_loss" not in records[0].metrics
    assert len(records[0].curves["loss"]) == 4
    assert len({record.key for record in records}) == 2


def test_a_trial_without_stored_weights_has_a_name_of_its_own_and_repeats() -> None:
    given = trial(recipe(family(optimizer="sgd")), weights="structured")
    one, two = (trained(given)[0] for _ in range(2))
    assert torch.equal(one.curves["loss"], two.curves["loss"])
    assert one.config["weights"] == "structured"
    assert given.key != replace(given, weights="dense").key
    assert replace(given, weights="dense").key == trial(recipe(family(optimizer="sgd"))).key


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)


def test_a_schedule_is_that_of_pytorch() -> None:
    by_step = trial(recipe(schedule=lambda step: 0.5 ** (step // 5)))
    by_scheduler = trial(recipe(schedule=halving))
    plain = loop(by_step, by_step.recipe.family.build(16, 4, seed=1), halving)
    one, two = trained(by_step), trained(by_scheduler)
    assert one[0].curves["loss"].tolist() == pytest.approx(plain)
    assert by_step.key == by_scheduler.key  # the same factors
    assert torch.equal(one[0].curves["loss"], two[0].curves["loss"])
    assert by_step.key != trial().key


def test_rates_that_a_scheduler_names_are_those_of_the_base() -> None:
    cosine = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=3, eta_min=0.02)
    assert factors_of(cosine, 4, lr=0.1)[::3] == pytest.approx((1.0, 0.2))
    once = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=10, cycle_momentum=False)
    assert max(factors_of(once, 10, lr=0.05)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (3, "schedule must be a function of the step"),
        (lambda optimizer: "cosine", "called with an optimizer it returned str"),
        (torch.optim.lr_scheduler.ReduceLROnPlateau, "needs no measurement"),
        (partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=4), "cycle_momentum=False"),
        (lambda step: 1.0 - step, r"schedule\(2\) must be at least 0"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        factors_of(schedule, 4, 0.1)


# ---- names -----------------------------------------------------------------------------------------------------------


class Scaled(Residual):
    """A model whose code has a number in it."""

    gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


class Sloped:
    """A loss and an optimizer whose code has a number in it."""

    smoothing, momentum = 0.1, 0.5

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out, y, label_smoothing=self.smoothing)

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=self.momentum)


def test_the_name_of_a_trial_is_all_that_decides_its_numbers() -> None:
    others = [
        trial(width=32),
        trial(depth=2),
        trial(seed=2),
        trial(lr=0.02),
        trial(weight_decay=0.1),
        trial(recipe(family(rule="mup"))),
        trial(recipe(family(optimizer="adam"))),
        trial(recipe(family(version="2"))),
        trial(recipe(task=Task.of(VECTORS[1 : STEPS + 1], eval_batches=VECTORS[STEPS:]))),
        trial(recipe(task=Task.of(VECTORS[:STEPS]))),
        trial(recipe(task=Task.of(VECTORS[:STEPS], loss=Sloped().loss))),
        trial(recipe(make_optimizer=Sloped().make)),
        trial(recipe(schedule=lambda step: 0.5)),
    ]
    names = [trial().key, *(other.key for other in others)]
    assert len(set(names)) == len(names)
    assert trial().key == names[0]
    moved = Task.of([(x.clone().numpy(), y) for x, y in VECTORS[:STEPS]], eval_batches=iter(VECTORS[STEPS:]))
    assert trial(recipe(task=moved)).key == names[0]


@pytest.mark.parametrize(
    ("owner", "name", "value", "options"),
    [
        (Scaled, "gain", 1.01, {}),
        (Sloped, "smoothing", 0.11, {"task": Task.of(VECTORS[:STEPS], loss=Sloped().loss)}),
        (Sloped, "momentum", 0.51, {"make_optimizer": Sloped().make}),
    ],
)
def test_another_version_of_the_code_is_another_trial(
    owner: Any, name: str, value: float, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(version: str | None = None) -> Trial:
        return trial(recipe(family(Scaled, version=version), version=version, **options))

    before = given().key
    (old,) = trained(given(), out=tmp_path)
    monkeypatch.setattr(owner, name, value)
    (new,) = trained(given(), out=tmp_path)
    assert given().key not in (before, old.key)
    assert new.metrics != old.metrics
    assert given("1").key != given("2").key


def first_loss(out: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(out, y)


def other_loss(out: Any, y: Any) -> Any:
    return 2 * first_loss(out, y)


def test_a_version_stands_for_no_other_loss_or_optimizer() -> None:
    """Which function it is was the caller's choice, and is no version of one."""
    tasks = [replace(TASK, loss=loss) for loss in (first_loss, other_loss, "cross-entropy")]
    makers = (torch.optim.AdamW, torch.optim.SGD, partial(torch.optim.SGD, momentum=0.5), None)
    assert len({trial(recipe(version="1", task=task)).key for task in tasks}) == len(tasks)
    assert len({trial(recipe(version="1", make_optimizer=made)).key for made in makers}) == len(makers)


def test_code_that_cannot_be_told_apart_needs_a_version() -> None:
    rate = iter(range(1, 1000))

    def restless(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=1 / next(rate))

    with pytest.raises(ValueError, match=r"the training of Residual gives different results.*Pass version="):
        _ = trial(recipe(make_optimizer=restless)).key
    assert trial(recipe(make_optimizer=restless, version="1")).key


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_batches_hold_numbers_and_texts(value: Any) -> None:
    with pytest.raises(TypeError, match="batches must hold tensors, numbers and texts"):
        _ = Task.of([({"x": VECTORS[0][0], "more": value}, VECTORS[0][1])]).fingerprint


# ---- in a sweep ------------------------------------------------------------------------------------------------------


def several() -> list[Trial]:
    """With functions that live here alone."""
    gain = 0.5

    def make_model(width: int, depth: int) -> nn.Module:
        return nn.Sequential(Residual(width, depth), nn.Dropout(0.2), Gain(gain))

    class Gain(nn.Module):
        def __init__(self, gain: float) -> None:
            super().__init__()
            self.gain = gain

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x

    given = recipe(
        family(make_model),
        task=Task.of(VECTORS[:STEPS], loss=lambda out, y: nn.functional.cross_entropy(out, y)),
        make_optimizer=lambda groups: torch.optim.AdamW(groups, betas=(0.8, 0.9)),
        schedule=lambda step: 1 / (1 + step),
    )
    return [trial(given, seed=seed) for seed in range(3)]


def test_functions_reach_other_processes_and_change_no_number(tmp_path: Path) -> None:
    here = trained(*several())
    there = trained(*several(), out=tmp_path, executor=Processes(1))
    assert here == [replace(record, seconds=mine.seconds) for record, mine in zip(there, here, strict=True)]
    for one, two in zip(here, there, strict=True):
        assert torch.equal(one.curves["loss"], two.curves["loss"])
    assert len({record.metrics["train_loss"] for record in here}) == 3


def test_a_sweep_trains_runs_of_every_kind_and_resumes_them(tmp_path: Path) -> None:
    runs = [*several(), *grid(width=8, depth=2, steps=4, batch=4, seed=[0, 1])]
    with Sweep(tmp_path) as sweep:
        assert sweep.missing(runs) == 5
        sweep.run(runs[1:4])
        assert sweep.missing(runs) == 2
        records = sweep.run(runs)
        again = sweep.run(runs)
    assert records == again
    assert [record.config["seed"] for record in records] == [0, 1, 2, 0, 1]
    with Store.read(tmp_path) as store:
        assert len(store) == 5


def test_a_trial_that_diverges_is_a_result() -> None:
    (record,) = trained(trial(recipe(family(optimizer="sgd")), lr=1e12))
    assert record.status == "diverged"
    assert record.metrics["train_loss"] == record.metrics["test_loss"] == math.inf
    assert record.metrics["diverged_at"] == len(record.curves["loss"]) - 1 < STEPS


class Faulty(Residual):
    """Deep ones raise."""

    def forward(self, x: Tensor) -> Tensor:
        if len(self.blocks) > 2:
            raise ValueError("too deep for me")
        return super().forward(x)


@pytest.mark.parametrize(
    "executor", [None, pytest.param(Processes(2), marks=pytest.mark.slow)], ids=["inline", "processes"]
)
def test_an_error_in_the_users_code_shows_its_line_once_and_ends_the_sweep(executor: Any, tmp_path: Path) -> None:
    given = recipe(family(Faulty, version="1"))
    trials = [trial(given, depth=depth, seed=seed) for depth in (4, 2) for seed in range(4)]
    with (
        pytest.raises(RuntimeError, match=r"make_model\(16, 4\) could not be trained.*too deep for me") as raised,
        Sweep(tmp_path, executor) as sweep,
    ):
        sweep.run(trials)
    text = str(raised.value)
    assert text.count(__file__) == 1
    assert "in forward" in text
    assert text.count("too deep for me") == 1
    with Store.read(tmp_path) as store:
        assert 1 <= len(store) < len(trials)


def test_a_loss_is_one_number() -> None:
    task = Task.of(VECTORS[:STEPS], loss=lambda out, y: nn.functional.cross_entropy(out, y, reduction="none"))
    with pytest.raises(RuntimeError, match="loss must return the mean over the batch"):
        trained(trial(recipe(version="1", task=task)))
