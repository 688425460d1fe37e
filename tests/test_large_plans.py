"""Large models, logs and stores: calls in proportion to their size, few numbers drawn."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nfd
from benchmarks import growth
from nfd.core.random import RepeatedDraws
from nfd.scaling.adapters import first_of_adapters
from nfd.scaling.base import instance
from nfd.scaling.model import tensors
from nfd.store import Record, Store
from nfd.watch.schedules import Rate, ScheduleCheck


def calls_of(action: Callable[[], object]) -> int:
    """Count the Python functions that are entered, and the resumptions of generators."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


class Mixture(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, 4, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        gates = self.router(x).softmax(-1)
        for e in range(4):
            h = h + gates[..., e, None] * self.down[e](torch.relu(self.up[e](x)))
        return h


def mixture(width: int, depth: int) -> nn.Module:
    blocks = nn.Sequential(*[Mixture(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(5, width), blocks, nn.Linear(width, 3))


def planned(depth: int) -> nfd.Plan:
    with torch.device("meta"):
        model = mixture(64, depth)
    sample = torch.linspace(-1, 1, 10).view(2, 5)
    plan = nfd.plan(model, make_model=mixture, base=(16, 2), sample=sample)
    assert all(plan.rate(name) > 0 for name in plan.entries)
    return plan


def test_calls_of_a_plan_grow_as_its_tensors() -> None:
    planned(4)  # what is made once
    shallow, deep, deepest = (calls_of(lambda depth=depth: planned(depth)) for depth in (8, 32, 64))
    for_a_block = (deep - shallow) / 24
    assert (deepest - deep) / 32 == pytest.approx(for_a_block, rel=0.05)


def test_calls_of_names_of_wrapped_models_grow_as_the_tensors() -> None:
    calls = []
    for depth in (16, 32):
        plan = planned(depth)
        names = [f"module.{name}" for name in plan.entries]
        calls.append(calls_of(lambda plan=plan, names=names: [plan.rate(n) for n in names]))
    assert calls[1] < 2.2 * calls[0]


def adapted(layers: int) -> nn.Module:
    """Frozen layers with adapters beside them, and a frozen embedding at the root."""
    model = nn.Module()
    model.embed = nn.Linear(4, 8, bias=False).requires_grad_(False)
    for number in range(layers):
        layer = nn.Module()
        layer.base = nn.Linear(8, 8, bias=False).requires_grad_(False)
        layer.lora_A = nn.Linear(8, 2, bias=False)
        layer.lora_B = nn.Linear(2, 8, bias=False)
        nn.init.zeros_(layer.lora_B.weight)
        model.add_module(f"layer{number}", layer)
        model.add_module(f"plain{number}", nn.Linear(8, 3, bias=False))
    return model


def test_adapters_are_found_in_proportion_to_the_tensors() -> None:
    infos = {layers: tensors(adapted(layers)) for layers in (50, 100)}
    calls = [calls_of(lambda of=of: first_of_adapters(of)) for of in infos.values()]
    assert calls[1] < 2.2 * calls[0]
    found = first_of_adapters(infos[50])
    assert found["layer7.lora_A.weight"] == "layer7.base.weight"
    assert len(found) == 50


def large(width: int, depth: int) -> nn.Module:
    table = nn.Embedding(300, 16 * width)
    blocks = [nn.Linear(16 * width, 16 * width) for _ in range(depth)]
    return nn.Sequential(table, *blocks)


def test_draws_of_large_tensors_repeat_and_keep_shapes_and_sizes() -> None:
    drawn = instance(large, 64, 1, seed=0)
    repeated = instance(large, 64, 1, seed=0, repeats_draws=True)
    for name, parameter in repeated.named_parameters():
        p = parameter.detach()
        like = drawn.get_parameter(name).detach()
        assert p.shape == like.shape
        # a uniform or normal size of 65,537 numbers
        assert float(p.square().mean().sqrt()) == pytest.approx(
            float(like.square().mean().sqrt()), rel=0.05
        )
        if p.dim() == 2:
            assert len(torch.unique(p[:, :8], dim=0)) == len(p)
            assert len(torch.unique(p)) <= 65537 < p.numel() / 4


def test_small_tensors_and_other_draws_are_as_without() -> None:
    torch.manual_seed(0)
    small = nn.Linear(64, 64)
    torch.manual_seed(0)
    with RepeatedDraws():
        again = nn.Linear(64, 64)
        stack = nn.init.kaiming_uniform_(tensor=torch.empty(3, 300, 400), a=math.sqrt(5))
    assert torch.equal(small.weight, again.weight)
    assert float(stack.abs().max()) <= (300 * 400) ** -0.5


# ---- what comes after a plan: in proportion to tensors, looks and trials, counted


def watched(depth: int) -> Callable[[], None]:
    model = mixture(16, depth)
    sample = torch.linspace(-1, 1, 10).view(2, 5)
    plan = nfd.plan(model, make_model=mixture, base=(8, 2), sample=sample)
    plan.apply_(model)
    optimizer = plan.make_optimizer(model, lr=1e-4)

    def attach_and_look() -> None:
        watch = nfd.Watch(model, plan, sample, every=1)
        model(sample).square().mean().backward()
        optimizer.step()
        watch.step(1.0)
        assert watch.failed is None

    return attach_and_look


def test_calls_of_a_watch_grow_as_the_tensors() -> None:
    watched(2)()  # what is made once
    calls = [calls_of(watched(depth)) for depth in (4, 8, 16)]
    assert calls[2] - calls[1] < 2.2 * (calls[1] - calls[0])


class Counted(list[float]):
    """A schedule that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def test_a_schedule_is_compared_once_at_every_look() -> None:
    factors = Counted([1.0] * 64)
    check = ScheduleCheck(factors, lr=None)
    for step in range(1, 65):
        check.note(step, Rate(1e-3, 1e-3))
    assert factors.reads == 64
    assert check.since is None
    check.note(64, Rate(1e-4, 1e-3))
    assert check.since == 64


def test_a_search_parses_what_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = nfd.Task([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))])
    family = nfd.resnets(4, 2)
    trials = [nfd.Trial(family, task, 8, 2, seed, 0.1) for seed in range(7)]
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        sweep.run(trials[:3])
    listed = []
    records = Store.records

    def counted(store: Store) -> list[Record]:
        listed.append(1)
        return records(store)

    monkeypatch.setattr(Store, "records", counted)
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        for trial in trials:
            sweep.run([trial])
        assert len(sweep.reused) == 3
    assert len(listed) == 1


def test_a_power_and_its_interval_are_those_of_the_line() -> None:
    sizes = (10, 100, 1000, 10_000)
    power, low, high = growth.fitted(sizes, [3 * size**1.5 for size in sizes])
    assert (power, low, high) == pytest.approx((1.5, 1.5, 1.5), abs=1e-6)
    power, low, high = growth.fitted(
        sizes, [size * f for size, f in zip(sizes, (1, 2, 1, 2), strict=True)]
    )
    assert low < 1 < power < high


def test_stored_powers_are_not_above_the_algorithms() -> None:
    rows = json.loads(growth.STORED.read_text())["rows"]
    assert {row["quantity"] for row in rows} <= {*growth.QUANTITIES}
    assert [row["quantity"] for row in rows if row["is_fault"]] == []
