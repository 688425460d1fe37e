"""Families, tasks, trials and sweeps: what they build, name, train and keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from tests.models import train
from torch import nn

import nfd

TASK = nfd.Task(batches(steps=6, size=8))
FAMILY = nfd.Family(ResidualMLP, base=(16, 2), sample=TASK.sample)


# ---- families


def test_a_built_network_has_the_initial_weights_of_its_plan() -> None:
    model = FAMILY.build(64, 4, seed=1)
    plan = FAMILY.plan(64, 4)
    again = FAMILY.build(64, 4, seed=1)
    other = FAMILY.build(64, 4, seed=2)
    for name, p in model.named_parameters():
        assert torch.equal(p, again.get_parameter(name))
        std = plan.entries[name].start.std
        if p.dim() > 1:
            assert not torch.equal(p, other.get_parameter(name))
            assert p.std().item() == pytest.approx(plan.std(name), rel=0.2), (name, std)


def test_a_size_is_planned_once_and_anew_under_another_rule() -> None:
    family = nfd.Family(ResidualMLP, base=(16, 2), rule="complete-p", sample=TASK.sample)
    plan = family.plan(64, 4)
    assert family.under("complete-p").plan(64, 4) is plan
    other = family.under("mup").plan(64, 4)
    assert other.rule == "mup"
    # Complete-P alone scales rates with depth.
    assert plan.rate("blocks.0.3.weight") == other.rate("blocks.0.3.weight") / 2


def test_building_moves_no_random_stream() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    FAMILY.build(16, 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("weights", ["dense", "deferred", "structured"])
def test_every_kind_of_weights_is_built_by_both_families(weights: Any) -> None:
    for family in (FAMILY.under(optimizer="sgd"), nfd.resnets(64, 10)):
        assert family.build(32, 2, weights=weights)(batches(1)[0][0]).shape == (32, 10)


def test_muon_steps_the_hidden_matrices_of_the_papers_networks() -> None:
    plan = nfd.resnets(64, 10, block="two-layer", optimizer="muon").plan(32, 2)
    assert {name for name in plan.entries if plan.is_muon(name)} == {
        f"{part}.{k}.weight" for part in ("inner", "outer") for k in (0, 1)
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"make_model": 3}, "make_model"),
        ({"make_model": ResidualMLP, "base": 16}, "base"),
        ({"make_model": ResidualMLP, "base": (0, 2)}, "base"),
        ({"make_model": ResidualMLP, "rule": "mupp"}, "mup"),
        ({"make_model": ResidualMLP, "optimizer": "adamm"}, "adam"),
        ({"make_model": ResidualMLP, "version": 2}, "version"),
    ],
)
def test_a_family_that_is_none_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        nfd.Family(**arguments)


# ---- tasks


def test_batches_are_taken_as_users_have_them() -> None:
    x, y = batches(1)[0]
    for given in ([(x.numpy(), y.numpy())], iter([(x, y)]), [[x, y]]):
        assert nfd.Task(given).about == "1 step of 32 samples [32, 64]"
    (doubles, _), *_ = nfd.Task([(x.double().numpy(), y.numpy())]).batches
    torch.testing.assert_close(doubles, x)  # as networks are in single precision


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"batches": []}, "batches"),
        ({"batches": batches(1)[0]}, "list"),
        ({"batches": batches(1), "loss": "mae"}, "loss"),
        ({"batches": batches(1), "schedule": 3}, "schedule"),
        ({"batches": batches(1), "make_optimizer": lambda: None}, "groups"),
        ({"batches": batches(1), "weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_a_task_that_is_none_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        nfd.Task(**arguments)


# ---- trials and sweeps


def trial(**more: Any) -> nfd.Trial:
    settings: dict[str, Any] = {
        "family": FAMILY,
        "task": TASK,
        "width": 16,
        "depth": 2,
        "seed": 0,
        "lr": 1e-2,
    }
    return nfd.Trial(**settings | more)


def losses(trials: list[nfd.Trial], **options: Any) -> list[torch.Tensor]:
    with nfd.Sweep(progress=False, **options) as sweep:
        sweep.run(trials)
        return [sweep.curves(own)["loss"] for own in trials]


def test_the_name_of_a_trial_is_what_decides_its_numbers() -> None:
    names = {
        trial().key,
        trial(width=32).key,
        trial(seed=1).key,
        trial(lr=2e-2).key,
        trial(stop=3).key,
        trial(every=2).key,
        trial(task=nfd.Task(batches(steps=6, size=8, seed=1))).key,
        trial(task=nfd.Task(batches(steps=6, size=8), weight_decay=0.1)).key,
        trial(task=nfd.Task(batches(steps=6, size=8), schedule=lambda step: 1 / (1 + step))).key,
        trial(family=FAMILY.under("mup")).key,
        trial(family=nfd.Family(ResidualMLP, base=(16, 2), version="2")).key,
    }
    assert len(names) == 11
    assert trial().key == trial(family=nfd.Family(ResidualMLP, base=(16, 2))).key


def test_a_trial_is_the_loop_that_a_user_would_write() -> None:
    model = FAMILY.build(16, 2, seed=0)
    plan = FAMILY.plan(16, 2)
    seen = train(model, plan.make_optimizer(model, lr=1e-2), batches(steps=6, size=8))
    (own,) = losses([trial()])
    torch.testing.assert_close(own, torch.tensor(seen, dtype=torch.float64), rtol=1e-5, atol=0)


def test_many_at_once_have_the_losses_of_each_alone() -> None:
    trials = [trial(seed=seed, lr=lr) for seed in (0, 1) for lr in (1e-3, 1e-2)]
    for together, alone in zip(losses(trials), [losses([own])[0] for own in trials], strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)


def test_what_is_stored_is_not_trained_again(tmp_path: Path) -> None:
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        first = sweep.run([trial()])
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        assert sweep.missing([trial(), trial(seed=1)]) == 1
        assert sweep.run([trial()]) == first


def test_evaluation_and_its_curves() -> None:
    task = nfd.Task(batches(steps=6, size=8), eval_batches=batches(2, size=16, seed=3))
    with nfd.Sweep(progress=False) as sweep:
        (record,) = sweep.run([trial(task=task, every=2)])
        curves = sweep.curves(trial(task=task, every=2))
    assert curves["tested_after"].tolist() == [0, 2, 4, 6]
    assert curves["test_loss"][-1].item() == pytest.approx(record.metrics["test_loss"], rel=1e-6)
    assert 0 <= record.metrics["test_accuracy"] <= 1


@dataclass(frozen=True)
class Norms(nfd.Observer):
    """Sizes of a matrix after every step."""

    matrix: str

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"matrix": self.matrix}

    def begin(self, member: Any, task: nfd.Task) -> nfd.Observation:
        return _Norms(member.module.get_parameter(self.matrix))


class _Norms(nfd.Observation):
    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight
        self.seen = [weight.norm().item()]

    def after(self, row: Any) -> None:
        self.seen.append(self.weight.norm().item())

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        return {"last_norm": self.seen[-1]}, {"norms": torch.tensor(self.seen)}, {"of": "a matrix"}


def test_an_observer_of_ones_own_stands_in_record_and_name() -> None:
    observed = trial(observe=(Norms("head.weight"),))
    assert observed.key != trial().key != trial(observe=(Norms("embed.weight"),)).key
    with nfd.Sweep(progress=False) as sweep:
        (record,) = sweep.run([observed])
        norms = sweep.curves(observed)["norms"]
    assert len(norms) == 7
    assert record.metrics["last_norm"] == pytest.approx(norms[-1].item())
    assert record.observed == [{"of": "a matrix"}]


def test_a_training_that_diverges_is_a_result() -> None:
    with nfd.Sweep(progress=False) as sweep:
        (record,) = sweep.run([trial(family=FAMILY.under(optimizer="sgd"), lr=1e6)])
    assert record.status == "diverged"
    assert record.metrics["train_loss"] == float("inf")


def test_a_family_travels_to_other_processes() -> None:
    sent = cloudpickle.loads(cloudpickle.dumps(trial()))
    assert sent.key == trial().key


def test_workers_give_the_numbers_of_this_process() -> None:
    trials = [trial(width=16), trial(width=24)]
    for here, there in zip(losses(trials), losses(trials, workers=2), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-6, atol=0)


def test_a_model_that_raises_is_named(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, 10)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("not today")

    with (
        nfd.Sweep(progress=False) as sweep,
        pytest.raises(ValueError, match="ArithmeticError: not today"),
    ):
        sweep.run([trial(family=nfd.Family(Broken, base=(16, 2), rule="standard"))])


@pytest.mark.parametrize("sweep", ["out", Path("out"), 3])
def test_a_sweep_that_is_none_is_refused_with_what_to_pass(sweep: Any) -> None:
    with pytest.raises(
        TypeError, match=r"sweep must be an nfd\.Sweep or None; got .*(out|3)"
    ) as refused:
        nfd.check(
            ResidualMLP, [(torch.ones(2, 64), torch.zeros(2).long())], [8, 16], [1], sweep=sweep
        )
    assert ("Pass nfd.Sweep('out')" in str(refused.value)) == (sweep != 3)
