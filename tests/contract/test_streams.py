"""The residual stream is measured alike, wherever a model writes its skip connection."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from tests.contract.common import batches
from tests.models import train
from torch import Tensor, nn

import nfd

BATCHES = batches(6)
SAMPLE = BATCHES[0][0]
OF_BLOCKS = ("stream_update", "first_update")
# block: the skip connection stands in the blocks
STYLES = ("block", "parent", "dropout", "pooled", "norm")


class Block(nn.Module):
    def __init__(self, width: int, style: str, multiplier: float) -> None:
        super().__init__()
        self.norm = (
            nn.Identity() if style == "norm" else nn.LayerNorm(width, elementwise_affine=False)
        )
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.adds = style == "block"
        self.multiplier = multiplier

    def forward(self, h: Tensor) -> Tensor:
        branch: Tensor = self.down(torch.relu(self.up(self.norm(h))))
        return h + self.multiplier * branch if self.adds else branch


class Residual(nn.Module):
    """Rows of the images are positions. The weights are the same in every style.

    Args:
        style: "block": blocks return the stream; else the model adds what they return: "parent": in
            front of a module; "dropout": behind a dropout; "pooled": the mean over positions
            follows, and no module takes the last stream; "norm": the model also has the norm that
            they read.
        power, start: branches, and what enters the first block, are multiplied by depth to these
            powers.
    """

    def __init__(
        self, width: int, depth: int, style: str = "parent", power: float = 0.0, start: float = 0.0
    ) -> None:
        super().__init__()
        self.style = style
        self.multiplier = depth**power
        self.start = depth**start
        self.embed = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width, style, self.multiplier) for _ in range(depth))
        self.before = nn.LayerNorm(width, elementwise_affine=False)
        self.behind = nn.Dropout(0.0)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start * self.embed(x.unflatten(-1, (8, 8)))
        for block in self.blocks:
            branch = block(self.before(h) if self.style == "norm" else h)
            branch = self.behind(branch) if self.style == "dropout" else branch
            h = branch if self.style == "block" else h + self.multiplier * branch
        h = self.norm(h.mean(-2)) if self.style == "pooled" else self.norm(h).mean(-2)
        return self.head(h)


@cache
def checked(
    style: str, power: float, rule: str = "mup", start: float = 0.0, least: int = 2
) -> nfd.Check:
    make = partial(Residual, style=style, power=power, start=start)
    depths = [least, 2 * least, 4 * least]
    family = nfd.Family(make, (32, least), rule, "adamw", blocks="blocks.*")
    return nfd.check(family, BATCHES[:3], [32], depths, lr=3e-3, seeds=2, remedy=False)


def of_depth(check: nfd.Check) -> dict[str, tuple[float, str]]:
    return {
        row["meter"]: (row["slope"], row["verdict"])
        for row in check.table
        if row["axis"] == "depth"
    }


# ---- a check


@pytest.mark.parametrize("style", ["parent", "dropout", "norm"])
@pytest.mark.parametrize(("power", "rule"), [(0.0, "complete-p"), (-0.5, "mup")])
def test_a_check_reads_the_same_stream(style: str, power: float, rule: str) -> None:
    inside = checked("block", power, rule)
    outside = checked(style, power, rule)
    for meter in ("activation", "activation_update", "gradient", *OF_BLOCKS):
        numbers = [[run[meter] for run in check.runs] for check in (inside, outside)]
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-3), meter
    assert rounded_alike(outside) == rounded_alike(inside) or style == "norm"


def rounded_alike(check: nfd.Check) -> list[dict[str, Any]]:
    """The rows of all meters but those that are a difference of what blocks return: a block that
    returns the stream rounds it with the stream, one that returns its branch does not."""
    return [row for row in check.table if row["meter"] not in OF_BLOCKS]


def test_one_block_is_told_by_what_follows_it() -> None:
    inside, outside = (checked(style, 0.0, "complete-p", least=1) for style in ("block", "parent"))
    assert rounded_alike(outside) == rounded_alike(inside)


@pytest.mark.parametrize("style", STYLES)
def test_a_sound_model_is_sound_and_a_broken_one_is_called_out(style: str) -> None:
    sound = of_depth(checked(style, 0.0, "complete-p"))
    grows = of_depth(checked(style, 1.0))
    fades = of_depth(checked(style, -2.0, start=-1.0))
    for meter in ("activation", "activation_update"):
        assert sound[meter][1] not in ("GROWS", "COLLAPSES")
        assert grows[meter][1] == "GROWS"
    assert fades["activation"][1] == "COLLAPSES"
    assert max(abs(found["gradient"][0]) for found in (sound, fades)) < 0.25


# ---- a factor in the forward pass


def with_gain(block: nn.Module, width: int, value: float) -> None:
    block.register_parameter("gain", nn.Parameter(torch.full((width,), value)))


FACTORS = {
    "times": lambda h, y, c, gain: h + c * y,
    "alpha": lambda h, y, c, gain: torch.add(h, y, alpha=c),
    "lerp": lambda h, y, c, gain: torch.lerp(h, h + y, c),
    "gain": lambda h, y, c, gain: h + gain * y,
}


class Factored(Residual):
    """Branches by a factor of (2 / depth)^power, spelt in one of several ways, in the blocks or
    behind them.
    """

    def __init__(self, width: int, depth: int, spelt: str, where: str, power: float) -> None:
        super().__init__(width, depth, "parent")
        self.factor = (2 / depth) ** power
        self.add = FACTORS[spelt]
        self.where = where
        for block in self.blocks:
            with_gain(block, width, self.factor)
            if where == "inside":
                block.register_forward_hook(self.added)

    def added(self, block: Any, inputs: tuple[Tensor, ...], branch: Tensor) -> Tensor:
        return self.add(inputs[0], branch, self.factor, block.gain)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unflatten(-1, (8, 8)))
        for block in self.blocks:
            h = block(h) if self.where == "inside" else self.added(block, (h,), block(h))
        return self.head(self.norm(h)).mean(-2)


def of_branches(spelt: str, where: str, power: float) -> float:
    """The exponent in depth of ``stream_update`` after the first step of AdamW at one rate for all
    depths.
    """
    make = partial(Factored, spelt=spelt, where=where, power=power)
    task = nfd.Task(BATCHES[:1], make_optimizer=lambda groups: torch.optim.AdamW(groups, eps=1e-12))
    roles = {"blocks.*.down.weight": "outer", "blocks.*.up.weight": "inner"}
    options: Any = {"rule": "standard", "seeds": 2, "blocks": "blocks.*", "roles": roles}
    check = nfd.check(make, task, [16], [2, 8], 1e-3, **options, remedy=False)
    return of_depth(check)["stream_update"][0]


@pytest.mark.parametrize("where", ["inside", "behind"])
@pytest.mark.parametrize("spelt", FACTORS)
def test_a_factor_of_branches_counts_wherever_and_however_it_is_written(
    spelt: str, where: str
) -> None:
    """L branches that move alike come to L times their factor: no growth with 2 / L, as L without.
    The first step of Adam has these exponents but for how gradients align, over all cases within
    0.12."""
    assert of_branches(spelt, where, power=1.0) == pytest.approx(0.0, abs=0.15)
    assert of_branches(spelt, where, power=0.0) == pytest.approx(1.0, abs=0.15)


@cache
def trained_long(power: float) -> nfd.Check:
    """Blocks of a factor (2 / depth)^power that learn one batch by heart, at one rate for all
    depths.
    """
    make = partial(Factored, spelt="times", where="inside", power=power)
    task = nfd.Task(
        BATCHES[:1] * 10, make_optimizer=lambda groups: torch.optim.AdamW(groups, eps=1e-12)
    )
    roles = {"blocks.*.down.weight": "outer", "blocks.*.up.weight": "inner"}
    options: Any = {"rule": "standard", "seeds": 3, "blocks": "blocks.*", "roles": roles}
    return nfd.check(make, task, [32], [2, 4, 8], 1e-2, **options, remedy=False)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "STABLE"), (0.5, "GROWS"), (0.0, "GROWS")])
def test_the_first_update_has_the_exponent_of_the_rates_after_many_steps(
    power: float, verdict: str
) -> None:
    """1 - power, but for how gradients align; what is left after ten steps is less, as updates
    cancel.
    """
    rows = of_depth(trained_long(power))
    assert rows["first_update"][0] == pytest.approx(1 - power, abs=0.15)
    assert rows["first_update"][1] == verdict
    if power < 1:
        assert rows["stream_update"][0] < rows["first_update"][0] - 0.1
        assert not trained_long(power).ok


def test_the_first_update_is_the_first_that_moves_the_stream() -> None:
    """A readout that starts at zero gives blocks no gradient before the second step; one row,
    whatever is looked at.
    """

    class FromZero(Factored):
        def __init__(self, width: int, depth: int, power: float) -> None:
            super().__init__(width, depth, "times", "inside", power)
            nn.init.zeros_(self.head.weight)

    task = nfd.Task(BATCHES[:3], make_optimizer=lambda groups: torch.optim.AdamW(groups, eps=1e-12))
    options: dict[str, Any] = {"rule": "standard", "seeds": 2, "blocks": "blocks.*"}
    for make in (
        partial(FromZero, power=0.0),
        partial(Factored, spelt="times", where="inside", power=0.0),
    ):
        first = 2 if make.func is FromZero else 1
        check = nfd.check(make, task, [16], [2, 8], 1e-3, at=(1, 2, 3), remedy=False, **options)
        assert [row["step"] for row in check.table if row["meter"] == "first_update"] == [3]
        looks = [row for row in check.rows if row["step"] == first and "stream_update" in row]
        assert [row["stream_update"] for row in looks] == [
            run["first_update"] for run in check.runs
        ]
        assert all(row["stream_update"] > 0 for row in looks)


# ---- a watch


@pytest.mark.parametrize("style", ["parent", "dropout", "norm"])
def test_a_watch_reads_the_same_stream(style: str) -> None:
    inside = watched("block")
    outside = watched(style)
    assert {meter for _, meter, _ in inside} >= {"activation", "activation_update", "added"}
    # the sum is rounded elsewhere, and Adam divides by small numbers
    assert outside == pytest.approx(inside, rel=1e-3)


@cache
def watched(style: str) -> dict[tuple[int, str, str | None], float]:
    torch.manual_seed(0)
    make = partial(Residual, style=style, power=-0.5)
    model = make(16, 3)
    plan = nfd.plan(
        model,
        rule="mup",
        optimizer="adamw",
        make_model=make,
        base=(8, 3),
        sample=SAMPLE,
        blocks="blocks.*",
    )
    plan.apply_(model)
    watch = nfd.Watch(model, plan, SAMPLE, every=2)
    train(model, plan.make_optimizer(model, lr=3e-3), BATCHES[:4], watch)
    meters = ("activation", "activation_update", "added")
    return {
        (row.step, row.meter, row.layer): row.value for row in watch.rows if row.meter in meters
    }


@pytest.mark.parametrize("style", ["block", "parent"])
def test_a_branch_that_starts_at_zero_is_a_branch(style: str) -> None:
    torch.manual_seed(0)
    model = Residual(16, 2, style)
    for block in model.blocks:
        assert isinstance(block, Block)
        nn.init.zeros_(block.down.weight)
        nn.init.zeros_(block.down.bias)
    plan = nfd.plan(
        model,
        rule="standard",
        optimizer="adamw",
        make_model=Residual,
        base=(8, None),
        sample=SAMPLE,
    )
    watch = nfd.Watch(model, plan, SAMPLE, every=1, own_start=True)
    watch.step()
    stream = model.embed(SAMPLE.unflatten(-1, (8, 8))).square().mean().sqrt().item()
    sizes = [row.value for row in watch.rows if row.meter == "activation"]
    assert sizes == pytest.approx([stream] * len(sizes), rel=1e-5)
