"""Factors of width and depth in a model's own forward pass, such as Gemma's on embeddings: a plan
makes up for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import gemma2, train
from torch import Tensor, nn

import nfd

IDS = 8
SYMBOLS = 24
BASE = 16
WIDTH = 64
Factor = Callable[[int], float]  # of a size


def one(_: int) -> float:
    """No factor."""
    return 1.0


def root(size: int) -> float:
    """As Gemma multiplies embeddings."""
    return math.sqrt(size)


def per_root(size: int) -> float:
    """As T5 multiplies what its tied head reads."""
    return 1 / math.sqrt(size)


def at(size: int, factor: Factor) -> Factor:
    """The factor of one size, at every size."""
    return lambda _: factor(size)


class Language(nn.Module):
    """Ids to logits through pre-norm blocks, with factors where models have them."""

    class Block(nn.Module):
        def __init__(self, width: int, branch: float, inside: float) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, width)
            self.down = nn.Linear(width, width)
            self.branch = branch
            self.inside = inside

        def forward(self, h: Tensor) -> Tensor:
            u = torch.relu(self.up(self.norm(h)) * self.inside)
            return h + self.branch * self.down(u)

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        tied: bool = False,
        embedding: Factor = one,
        before_head: Factor = one,
        behind_head: Factor = one,
        branch: Factor = one,
        inside: Factor = one,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.place = nn.Parameter(0.3 * torch.randn(IDS, width))
        self.blocks = nn.ModuleList(
            self.Block(width, branch(depth), inside(width)) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS, bias=not tied)
        self.embedding, self.before_head, self.behind_head = (
            f(width) for f in (embedding, before_head, behind_head)
        )
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) * self.embedding + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h) * self.before_head) / (1 / self.behind_head)


def ids(seed: int = 0) -> Tensor:
    return torch.randint(SYMBOLS, (4, IDS), generator=torch.Generator().manual_seed(seed))


def planned(
    make: Any, size: tuple[int, int], rule: str = "complete-p", **options: Any
) -> tuple[nn.Module, nfd.Plan]:
    """A model and its plan, of a base of width 16 and depth 2."""
    torch.manual_seed(0)
    model = make(*size)
    sizes: dict[str, Any] = {"make_model": make, "base": (BASE, 2), "sample": ids()}
    return model, nfd.plan(model, rule=rule, **(sizes | options))


def losses(
    make: Any, size: tuple[int, int], rule: str = "complete-p", optimizer: str = "adamw"
) -> list[float]:
    """Losses of a training by the plan."""
    model, plan = planned(make, size, rule, optimizer=optimizer)
    plan.apply_(model, seed=0)
    stepped = plan.make_optimizer(model, lr=0.2 if optimizer == "sgd" else 0.01, weight_decay=0.1)
    return train(model, stepped, [(ids(seed), ids(seed + 9)) for seed in range(4)])


def notes_on(plan: nfd.Plan, name: str) -> list[str]:
    """Notes of a plan on a factor of a tensor."""
    return [note for note in plan.notes if "forward pass multiplies" in note and name in note]


PLACES = [
    ({}, "embedding", root, "embed.weight"),
    ({}, "before_head", per_root, "head.weight"),
    ({}, "behind_head", per_root, "head.weight"),
    ({}, "inside", per_root, "blocks.*.up.weight"),
    ({"tied": True}, "embedding", root, "embed.weight"),
    ({"tied": True}, "before_head", per_root, "embed.weight"),
]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize(("options", "place", "factor", "name"), PLACES)
def test_a_model_with_a_factor_of_width_trains_as_one_that_keeps_that_of_the_base(
    options: dict[str, Any], place: str, factor: Factor, name: str, optimizer: str
) -> None:
    own, kept = (partial(Language, **options, **{place: f}) for f in (factor, at(BASE, factor)))
    of_own, of_kept = (losses(make, (WIDTH, 4), optimizer=optimizer) for make in (own, kept))
    assert of_own == pytest.approx(of_kept, rel=2e-4)
    assert notes_on(planned(own, (WIDTH, 4))[1], name)
    assert not notes_on(planned(kept, (WIDTH, 4))[1], name)


@pytest.mark.parametrize(("options", "place", "factor", "name"), PLACES)
def test_a_factor_that_does_not_change_changes_nothing(
    options: dict[str, Any], place: str, factor: Factor, name: str
) -> None:
    constant, without = (
        planned(partial(Language, **options, **more), (WIDTH, 4))[1]
        for more in ({place: at(7, factor)}, {})
    )
    assert constant.to_dict() == without.to_dict()
    assert not notes_on(constant, name)


def test_a_factor_of_depth_on_branches_is_not_counted_twice_and_is_kept_under_mup() -> None:
    own, kept, plain = (partial(Language, branch=f) for f in (per_root, at(2, per_root), one))
    assert losses(own, (BASE, 8)) == pytest.approx(losses(kept, (BASE, 8)), rel=2e-4)
    under_mup, without = (planned(make, (WIDTH, 8), "mup")[1] for make in (own, plain))
    assert under_mup.to_dict() == without.to_dict()


@pytest.mark.parametrize("unbuilt", [False, True])
def test_factors_are_found_where_blocks_and_others_share_one_sequential(unbuilt: bool) -> None:
    class Times(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, h: Tensor) -> Tensor:
            return h * self.factor

    def make(width: int, depth: int) -> nn.Module:
        blocks = [Language.Block(width, 1.0, 1.0) for _ in range(depth)]
        ends = [nn.LayerNorm(width), nn.Linear(width, SYMBOLS), Times(per_root(width))]
        return nn.Sequential(nn.Embedding(SYMBOLS, width), Times(root(width)), *blocks, *ends)

    with torch.device("meta" if unbuilt else "cpu"):
        model = make(WIDTH, 5)
    plan = nfd.plan(model, rule="complete-p", make_model=make, base=(BASE, 2), sample=ids())
    own = {name: plan.own_factor(name) for name in plan.entries if plan.own_factor(name) != 1}
    assert own == pytest.approx({"0.weight": 2.0, "8.weight": 0.5, "8.bias": 0.5})


@pytest.mark.parametrize("place", ["embedding", "inside"])
def test_a_model_on_the_meta_device_has_the_same_plan(place: str) -> None:
    make = partial(Language, **{place: root})
    with torch.device("meta"):
        unbuilt = make(WIDTH, 4)
    plan = nfd.plan(unbuilt, rule="complete-p", make_model=make, base=(BASE, 2), sample=ids())
    built = planned(make, (WIDTH, 4))[1]
    for name in built.entries:
        assert plan.std(name) == pytest.approx(built.std(name), rel=1e-6)
        assert plan.rate(name) == pytest.approx(built.rate(name), rel=1e-6)
    assert plan.own_factor("embed.weight") == pytest.approx(2.0 if place == "embedding" else 1.0)


def test_a_plan_says_when_it_cannot_know() -> None:
    make = partial(Language, embedding=root)
    with torch.device("meta"):
        unbuilt = make(WIDTH, 2)
    by_base = nfd.plan(unbuilt, rule="complete-p", base=make(BASE, 2), sample=ids())
    assert any("make_model=" in note and "forward pass" in note for note in by_base.notes)
    unseen = planned(make, (WIDTH, 2), "mup", sample=None, roles={"place": "embedding"})[1]
    assert any("sample=" in note and "forward pass" in note for note in unseen.notes)
    seen = planned(make, (WIDTH, 2), "mup")[1]
    assert not any("not known" in note for note in seen.notes)


def test_it_is_stored_shown_and_not_taken_twice_from_a_model_that_was_begun(tmp_path: Path) -> None:
    make = partial(Language, tied=True, embedding=root)
    model, plan = planned(make, (WIDTH, 2))
    plan.save(tmp_path / "plan.json")
    stored = nfd.Plan.load(tmp_path / "plan.json")
    assert stored == plan
    assert stored.own_factor("embed.weight") == 2.0
    assert plan.rate("embed.weight") == 0.5
    assert "x 0.5 = 0.5" in plan.explain()
    # a factor of the plan's kind, and not of the model
    wrapped = nn.Sequential(nfd.Scaled(make(WIDTH, 2), 3.0))
    again = nfd.plan(
        wrapped,
        rule="complete-p",
        base=nn.Sequential(make(BASE, 2)),
        sample=ids(),
        blocks="0.blocks.*",
    )
    assert again.own_factor("0.embed.weight") == 2.0
    assert again.own_factor("0.blocks.0.up.weight") == 1.0
    assert again.rate("0.norm.weight") == plan.rate("norm.weight")
    plan.apply_(model)
    begun = nfd.plan(model, deepcopy(model), rule="complete-p", sample=ids())
    assert begun.own_factor("embed.weight") == 1.0


# ---- what a check sees


@pytest.mark.parametrize(
    ("factor", "rule", "verdict"),
    [(root, "standard", "GROWS"), (one, "standard", "STABLE"), (root, "complete-p", "STABLE")],
)
def test_a_check_judges_the_stream_before_the_first_block(
    factor: Factor, rule: str, verdict: str
) -> None:
    """Behind the last block normalised branches hide how small the stream began."""

    class Normed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up = nn.Linear(width, width)
            self.norm = nn.LayerNorm(width)

        def forward(self, h: Tensor) -> Tensor:
            return h + self.norm(torch.relu(self.up(h)))

    def make(width: int, depth: int) -> nn.Module:
        model = Language(width, 0, embedding=factor)
        model.blocks = nn.ModuleList(Normed(width) for _ in range(depth))
        nn.init.normal_(model.embed.weight, std=0.02)
        nn.init.normal_(model.place, std=0.02)
        return model

    batches = [(ids(seed), ids(seed + 9)) for seed in range(2)]
    options: dict[str, Any] = {"rule": rule, "optimizer": "adamw", "lr": 1e-3, "seeds": 3}
    found = nfd.check(make, batches, [32, 64, 128, 256], [2], **options, remedy=False)
    rows = {row["meter"]: row for row in found.table}
    assert rows["first_activation"]["verdict"] == verdict
    assert rows["activation"]["verdict"] == "STABLE"
    sizes = {run["width"]: run["first_activation"] for run in found.runs}
    assert (sizes[256] > 2 * sizes[32]) == (verdict == "GROWS")


# ---- models of Hugging Face


def t5(width: int, depth: int, tied: bool = True) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=width,
        d_kv=8,
        d_ff=width,
        num_layers=depth,
        num_heads=width // 8,
        vocab_size=SYMBOLS,
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def given(make: Any) -> dict[str, Tensor]:
    return {"input_ids": ids()} | ({"decoder_input_ids": ids(1)} if make is t5 else {})


def test_the_stream_of_gemma_begins_alike_at_every_width() -> None:
    sizes = []
    for width in (32, 256):
        model, plan = planned(gemma2, (width, 2), base=(32, None), sample=given(gemma2))
        plan.apply_(model)
        hook = model.model.layers[0].register_forward_pre_hook(
            lambda _, args: sizes.append(args[0].square().mean().sqrt().item())
        )
        model(**given(gemma2))
        hook.remove()
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
    assert notes_on(plan, "embed_tokens")


def test_the_head_of_t5_lacks_what_t5_gives_it() -> None:
    """Tied, it has n^-1/2 of the 1/n; not tied, it has none."""
    tied = planned(t5, (128, 2), base=(32, None), sample=given(t5))[1]
    assert not tied.multipliers  # the norm before it takes the other half
    assert tied.constant("decoder.final_layer_norm.weight") == pytest.approx(0.5)
    assert notes_on(tied, "shared.weight")
    untied = planned(partial(t5, tied=False), (128, 2), base=(32, None), sample=given(t5))[1]
    assert not untied.multipliers
    assert not notes_on(untied, "weight")


def test_a_step_changes_the_logits_of_t5_alike_at_every_width() -> None:
    changes = []
    for width in (32, 256):
        model, plan = planned(t5, (width, 2), base=(32, None), sample=given(t5))
        plan.apply_(model)
        optimizer = plan.make_optimizer(model, lr=3e-3)
        before = model(**given(t5)).logits
        nn.functional.cross_entropy(before.flatten(0, 1), ids(2).flatten()).backward()
        optimizer.step()
        changes.append(float((model(**given(t5)).logits - before).detach().square().mean().sqrt()))
    assert changes[1] > 0.4 * changes[0]  # divided twice by the width it is 0.2
