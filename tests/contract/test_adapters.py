"""Adapters beside frozen matrices, of peft and by hand: their plan, and the rank as an axis."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nfd

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
ALPHA = 16
Factor = Callable[[int], float]


class Block(nn.Module):
    """A pre-norm block of two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Network(nn.Module):
    """What is tuned finely: two blocks between an embedding and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.blocks(self.embed(x)))


class ByHand(nn.Module):
    """A frozen layer with an adapter beside it."""

    def __init__(self, frozen: nn.Linear, rank: int, factor: float) -> None:
        super().__init__()
        self.frozen = frozen
        self.reads = nn.Linear(frozen.in_features, rank, bias=False)
        self.writes = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.writes.weight)
        self.factor = factor

    def forward(self, x: Tensor) -> Any:
        return self.frozen(x) + self.factor * self.writes(self.reads(x))


def by_hand(width: int, rank: int = 4, factor: Factor = lambda rank: ALPHA / rank) -> nn.Module:
    """Every layer of the blocks and the head with an adapter."""
    model = Network(width).requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.up = ByHand(block.up, rank, factor(rank))
        block.down = ByHand(block.down, rank, factor(rank))
    model.head = ByHand(model.head, 2, 1.0)
    return model


def by_peft(width: int, rank: int = 4, **options: Any) -> nn.Module:
    # It loads transformers, which other processes of the tests can do without.
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=["up", "down", "head"], **options)
    return get_peft_model(Network(width), config)


def named(plan: nfd.Plan, *parts: str) -> list[str]:
    """The tensors of a plan whose names hold one of these parts."""
    return [name for name in plan.entries if any(f".{part}." in name for part in parts)]


FIRST = ("lora_A", "reads")
SECOND = ("lora_B", "writes")


@pytest.mark.parametrize("make", [by_peft, by_hand])
def test_an_adapter_starts_as_published_and_has_a_rate_for_a_and_for_b(make: Any) -> None:
    torch.manual_seed(0)  # a few dozen entries tell the size at the start
    plan = nfd.plan(make(64), make(16), rule="mup", sample=X)
    firsts = named(plan, *FIRST)
    seconds = named(plan, *SECOND)
    assert len(firsts) == len(seconds) == 5
    for name in firsts:
        inputs = plan.entries[name].shape[1]
        # kaiming_uniform_(a=sqrt(5)), as nn.Linear
        assert plan.std(name) == pytest.approx((3 * inputs) ** -0.5, rel=0.2)
        assert plan.rate(name) == 1 / 4
    for name in seconds:
        assert plan.constant(name) == 0
        assert plan.rate(name) == 1


@pytest.mark.parametrize("make", [by_peft, by_hand])
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_other_optimizers_have_rates_of_their_own(make: Any, optimizer: str) -> None:
    plan = nfd.plan(make(64), make(16), rule="mup", sample=X, optimizer=optimizer)
    (first,) = [name for name in named(plan, *FIRST) if "blocks.0.up" in name]
    (second,) = [name for name in named(plan, *SECOND) if "blocks.0.up" in name]
    # Muon leaves matrices with a side that keeps its size to AdamW.
    expected = {"sgd": (1 / 4, 4), "muon": (1 / 4, 1)}
    assert (plan.rate(first), plan.rate(second)) == expected[optimizer]


@pytest.mark.parametrize("make", [by_peft, partial(by_peft, use_dora=True), by_hand])
def test_what_is_frozen_stays_and_the_network_starts_as_the_frozen_one(make: Any) -> None:
    model = make(64)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    outputs = model(X)
    plan = nfd.plan(model, make(16), rule="mup", sample=X)
    plan.apply_(model, seed=1)
    assert torch.equal(model(X), outputs)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], p) for name, p in frozen.items())
    optimizer = plan.make_optimizer(model, lr=1e-3)
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert stepped == {id(p) for p in after.values() if p.requires_grad}


class Tied(nn.Module):
    """An embedding that is the head as well, around a layer with an adapter."""

    def __init__(self, width: int, *, trains: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.layer = ByHand(nn.Linear(width, width), 2, 1.0)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.layer.frozen.requires_grad_(requires_grad=False)
        self.embed.requires_grad_(requires_grad=trains)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layer(self.embed(ids)))


def test_a_frozen_head_gets_no_factor() -> None:
    """A factor would change what was trained; one that trains has it."""
    ids = torch.arange(7)[None]
    for trains in (False, True):
        make = partial(Tied, trains=trains)
        plan = nfd.plan(make(64), make(16), rule="mup", sample=ids)
        assert plan.multipliers == ({"head": 1 / 4} if trains else {})


class AfterFrozen(nn.Module):
    """A bottleneck after a frozen layer, of the sizes of an adapter beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.frozen = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.reads = nn.Linear(width, 4)
        self.writes = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Any:
        return x + self.writes(torch.relu(self.reads(self.frozen(self.norm(x)))))


class Factored(nn.Module):
    """A layer that is trained as a product of low rank, beside another that trains too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.full = nn.Linear(width, width)
        self.reads = nn.Linear(width, 4, bias=False)
        self.writes = nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.writes.weight)

    def forward(self, x: Tensor) -> Any:
        h = self.norm(x)
        return x + self.full(h) + self.writes(self.reads(h))


@pytest.mark.parametrize("block", [AfterFrozen, Factored])
def test_a_bottleneck_and_a_product_that_trains_are_not_adapters(block: Any) -> None:
    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), block(width), block(width), nn.Linear(width, 3))

    plan = nfd.plan(make(64), make(16), rule="mup", sample=X, blocks=["1", "2"])
    for name in named(plan, "reads"):
        if name.endswith("weight"):
            # A fixed number of outputs: in^-1.
            assert plan.start_factor(name) == 1 / 4


FACTORS: dict[str, Factor] = {
    "alpha/r": lambda rank: ALPHA / rank,
    "alpha/sqrt(r)": lambda rank: ALPHA / math.sqrt(rank),
    "none": lambda rank: 1.0,
}


@pytest.mark.parametrize(
    ("factor", "rate"), [("alpha/r", 1), ("alpha/sqrt(r)", 1 / 2), ("none", 1 / 4)]
)
def test_the_rank_is_an_axis_and_the_plan_knows_the_factor(factor: str, rate: float) -> None:
    """Four times the rank: B sums four times as many entries, and the factor undoes a part."""

    def make(rank: int, depth: int) -> nn.Module:
        return by_hand(32, rank, FACTORS[factor])

    plan = nfd.plan(make(16, 2), base=(4, 2), make_model=make, rule="mup", sample=X)
    blocks = [name for name in plan.entries if name.startswith("blocks")]
    assert plan.width == 4
    for name in blocks:
        if ".reads." in name:
            assert (plan.rate(name), plan.start_factor(name)) == (1, 1)
        if ".writes." in name:
            assert plan.rate(name) == pytest.approx(rate)


def test_peft_says_its_factor_by_use_rslora() -> None:
    for options, rate in (({}, 1), ({"use_rslora": True}, 1 / 2)):
        plan = nfd.plan(by_peft(32, 16, **options), by_peft(32, 4, **options), rule="mup", sample=X)
        rates = [plan.rate(name) for name in named(plan, "lora_B") if "blocks" in name]
        assert rates == pytest.approx([rate] * 4)


def test_transfer_asks_whether_the_best_rate_follows_the_rank() -> None:
    """``make_model`` takes the rank where it else takes the width."""
    frozen = Network(16).state_dict()

    def make(rank: int, depth: int) -> nn.Module:
        model = by_peft(16, rank)
        model.base_model.model.load_state_dict(
            {f"{name}": value for name, value in frozen.items()}, strict=False
        )
        return model

    labels = torch.tensor([0, 1, 2, 0])
    rates = [2.0**k for k in range(-9, -2)]
    answer = nfd.transfer(make, [(X, labels)] * 8, [2, 8], [2], rates, rules=["mup"], seeds=2)
    drift = answer.drift("mup", "width")
    assert drift.low <= drift.value <= drift.high
    assert sorted(size[0] for size in answer.of("mup").cells) == [2, 8]


def test_exported_rows_leave_frozen_tensors_as_they_are(tmp_path: Path) -> None:
    plan = nfd.plan(by_peft(64), by_peft(16), rule="mup", sample=X)
    text = plan.to("json")
    rows = json.loads(text)["groups"]
    of_pattern = {row["pattern"].removeprefix("base_model.model."): row for row in rows}
    first = of_pattern["blocks.*.up.lora_A.default.weight"]
    second = of_pattern["blocks.*.up.lora_B.default.weight"]
    layer = of_pattern["blocks.*.up.base_layer.weight"]
    assert (first["init"], first["init_factor"], first["factors"]["lr"]) == ("drawn", 1 / 2, 1 / 4)
    assert (second["init"], second["init_value"], second["factors"]["lr"]) == ("constant", 0, 1)
    assert (layer["init"], layer["init_value"], layer["init_factor"]) == ("kept", None, 1)
    plan.save(tmp_path / "plan.json")
    loaded = nfd.Plan.load(tmp_path / "plan.json")
    assert {name: loaded.std(name) for name in plan.entries} == {
        name: plan.std(name) for name in plan.entries
    }
