"""Checks name the tensors that scale otherwise than they should, plans the heads that grow, watches
the decays.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from tests.bestiary.beasts import BEASTS, FewHeads, FewHeadsByRoot
from tests.bestiary.gpt import BASE_DEPTH, BASE_WIDTH, GPT, Attention, Size, adamw, batches
from tests.contract.common import batches as digits
from torch import nn

import nfd

BY_NAME = {beast.name: beast for beast in BEASTS}
SAMPLE = batches()[0][0]


def suspects(name: str, *, sound: bool) -> set[tuple[str, str, bool]]:
    """Tensor, what it is and whether it grows, of a bug or of its twin."""
    beast = BY_NAME[name]
    make_model, task = beast.make(sound)
    check = nfd.check(
        make_model,
        task.first(3),
        [32, 64, 128],
        [2],
        lr=beast.lr,
        rule="standard",
        seeds=2,
        remedy=False,
    )
    assert check.ok == (not check.suspects)
    assert all(f"{s.tensor}: " in check.wrong[0] for s in check.suspects[:1])
    return {(s.tensor, s.what, s.excess.value > 0) for s in check.suspects}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("head_rate_by_root", {("head.weight", "update", True)}),
        (
            "embedding_rate_by_root",
            {("tokens.weight", "update", False), ("places.weight", "update", False)},
        ),
        (
            "fan_of_a_stack",
            {("blocks.*.mlp.up", "start", False), ("blocks.*.mlp.down", "start", False)},
        ),
        ("attention_by_root", {("blocks.*.attn.qkv.weight", "attention", True)}),
    ],
)
def test_a_bug_has_suspects_and_its_twin_has_none(
    name: str, expected: set[tuple[str, str, bool]]
) -> None:
    assert suspects(name, sound=False) == expected
    assert suspects(name, sound=True) == set()


def planned(attention: type[nn.Module], rule: str = "mup") -> nfd.Plan:
    """A plan of the GPT at four times the width of its base."""
    make: Any = lambda width, depth: GPT(Size(width, depth), attention=partial(attention))  # noqa: E731
    return nfd.plan(
        make(4 * BASE_WIDTH, BASE_DEPTH),
        (BASE_WIDTH, BASE_DEPTH),
        make_model=make,
        rule=rule,
        sample=SAMPLE,
    )


def test_a_plan_says_by_how_much_logits_of_growing_heads_are_too_large() -> None:
    grown = planned(FewHeadsByRoot)
    assert grown.logits == {
        f"blocks.{k}.attn.qkv.weight": pytest.approx(2.0) for k in range(BASE_DEPTH)
    }
    assert any("heads grow" in note for note in grown.notes)
    assert nfd.Plan.from_dict(grown.to_dict()) == grown
    sound = planned(FewHeads)
    assert sound.logits == {}
    assert not any("heads" in note for note in sound.notes)


class UnitAttention(Attention):
    """Weights of variance one, with their scale in the forward pass, as in u-muP."""

    def split(self, x: torch.Tensor) -> Any:
        scaled = self.qkv(x) * x.shape[-1] ** -0.5
        return (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in scaled.chunk(3, -1))


def test_a_factor_behind_queries_is_the_models_own() -> None:
    plan = planned(UnitAttention)
    assert [plan.own_factor(f"blocks.{k}.attn.qkv.weight") for k in (0, 1)] == pytest.approx(
        [0.5, 0.5]
    )
    assert plan.logits == {}


class Unknown(torch.optim.Optimizer):
    """Signs, by a class that nobody knows."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


def test_updates_of_an_unknown_optimizer_are_judged_by_the_law_that_is_said() -> None:
    beast = BY_NAME["head_rate_by_root"]
    make_model, _ = beast.make(True)
    task = nfd.Task(batches()[:2], make_optimizer=Unknown)
    sizes = ([32, 64, 128], [2])
    options: Any = {"lr": 1e-3, "rule": "standard", "seeds": 2, "remedy": False}
    silent = nfd.check(make_model, task, *sizes, **options)
    assert "Unknown" in silent.unjudged
    assert all(suspect.what != "update" for suspect in silent.suspects)
    told = nfd.check(make_model, task, *sizes, optimizer="lion", **options)
    assert {s.tensor for s in told.suspects if s.what == "update"} >= {
        "head.weight",
        "blocks.*.mlp.up.weight",
    }
    assert not told.unjudged


@pytest.mark.parametrize(
    ("decay", "told"),
    [
        (lambda scale, vector: 0.1 / scale, ""),
        (lambda scale, vector: 0.0 if vector else 0.1 / scale, ""),
        (lambda scale, vector: 0.0, ""),
        (lambda scale, vector: 0.1, "decay otherwise than planned"),
        (lambda scale, vector: 0.0 if vector == "bias" else 0.1 / scale, "pulls gains to 0"),
    ],
)
def test_a_watch_tells_decays_that_are_not_planned(decay: Any, told: str) -> None:
    make: Any = lambda width, depth: GPT(Size(width, depth))  # noqa: E731
    model = make(64, BASE_DEPTH)
    plan = nfd.plan(model, (BASE_WIDTH, BASE_DEPTH), make_model=make, sample=SAMPLE)
    plan.apply_(model)
    watch = nfd.Watch(model, plan, SAMPLE)
    kinds = {
        id(p): ("bias" if name.endswith("bias") else "gain") if p.dim() < 2 else ""
        for name, p in model.named_parameters()
    }
    groups = [
        {"params": [p], "lr": group["lr"], "weight_decay": decay(group["lr_scale"], kinds[id(p)])}
        for group in plan.param_groups(model, lr=1e-3)
        for p in group["params"]
    ]
    optimizer = torch.optim.AdamW(groups)
    model(SAMPLE).sum().backward()
    optimizer.step()
    with pytest.warns(RuntimeWarning, match=told) if told else nullcontext():
        watch.step()
    alerts = [str(alert) for alert in watch.alerts]
    assert len(alerts) == bool(told)
    assert all(told in alert for alert in alerts)


# ---- tensors whose updates are no evidence


class BiasedKeys(Attention):
    """Queries, keys and values by layers with biases, as in GPT-2, BERT and Qwen."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        del self.qkv
        self.q, self.k, self.v = (size.linear(size.width, size.width, bias=True) for _ in range(3))

    def split(self, x: torch.Tensor) -> Any:
        return (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )


@pytest.mark.parametrize(("eps", "is_sound"), [(1e-8, True), (1e-3, False)])
def test_biases_of_keys_that_softmax_does_not_see_say_nothing_of_epsilon(
    eps: float, is_sound: bool
) -> None:
    """Their gradient is rounding, of which 1e-8 is 170 times as much at width 128. Others show a
    large epsilon.
    """
    make_model: Any = lambda width, depth: GPT(Size(width, depth), attention=BiasedKeys)  # noqa: E731
    task = nfd.Task(batches(steps=3), make_optimizer=partial(adamw, eps=eps))
    options: Any = {"rule": "standard", "seeds": 2, "remedy": False}
    check = nfd.check(make_model, task, [32, 64, 128], [2], lr=3e-3, **options)
    epsilons = {suspect.tensor for suspect in check.suspects if suspect.what == "epsilon"}
    assert check.ok == (not epsilons) == is_sound
    assert "blocks.*.attn.k.bias" not in epsilons
    assert is_sound or "blocks.*.mlp.up.weight" in epsilons


class Unseen(nn.Module):
    """Has tensors that what follows cancels, and one that hardly counts, beside some that do."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(1))
        self.gain = nn.Parameter(torch.ones(width))
        self.tiny = nn.Parameter(torch.ones(width))
        self.small = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.batch_norm(self.embed(x))
        seen = (self.queries(h) @ self.keys(h).T / h.shape[-1]).softmax(-1) @ h
        h = nn.functional.rms_norm(self.scale * (h + seen), h.shape[-1:], self.gain, 1e-8)
        return self.head(h + 1e-11 * self.tiny * h.square() + 1e-5 * self.small * h.square())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_told_from_small_gradients(dtype: torch.dtype) -> None:
    """In float32 a factor on the loss also shows the radius that a norm ignores; 16 bits lose it in
    rounding.
    """
    make_model: Any = lambda width, depth: Unseen(width, depth).to(dtype)  # noqa: E731
    pixels = [(x.to(dtype), y) for x, y in digits(2)]
    options: Any = {"rule": "standard", "seeds": 2, "remedy": False}
    check = nfd.check(make_model, pixels, [16, 32], [1], lr=1e-3, **options)
    for run in check.runs:
        faint = {row["tensor"] for row in run["tensors"] if row["is_faint"]}
        assert faint == {"embed.bias", "keys.bias", "scale", "tiny"}


class LoudHead(nn.Module):
    """Blocks of a user's own muP. Initial outputs of size one at width 32, which fall with width,
    lead all batches.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        size = Size(width, depth)
        self.embed = nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        size.mark(self.embed.weight, "input")
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                size.linear(width, 2 * width, bias=True),
                nn.GELU(),
                size.linear(2 * width, width, bias=True),
            )
            for _ in range(depth)
        )
        self.head = size.linear(width, 10, "head")
        for p in self.parameters():
            if not hasattr(p, "kind"):
                size.mark(p, "vector")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


class Shrinking(torch.optim.AdamW):
    """Gives vectors a share of their step that falls with width, which no rate shows."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        vectors = [p for group in self.param_groups for p in group["params"] if p.dim() == 1]
        before = [p.clone() for p in vectors]
        super().step(closure)
        for p, start in zip(vectors, before, strict=True):
            p.lerp_(start, 1 - p.m**-0.35)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, Shrinking])
def test_steps_whose_signs_agree_less_are_no_fault_and_smaller_steps_are(kind: Any) -> None:
    """Both leave less of ten steps in biases as they widen, about width^-0.3."""

    def make_optimizer(groups: Any) -> torch.optim.Optimizer:
        parts = [
            {"params": [p], "lr": group["lr"] * p.rate} for group in groups for p in group["params"]
        ]
        return kind(parts, eps=1e-12, weight_decay=0.0)

    task = nfd.Task(digits(10), make_optimizer=make_optimizer)
    options: Any = {"rule": "standard", "optimizer": "adamw", "seeds": 3, "remedy": False}
    check = nfd.check(LoudHead, task, [32, 64, 128], [2], lr=1e-3, **options)
    left = {
        run["width"]: row["change"]
        for run in check.runs
        for row in run["tensors"]
        if row["tensor"] == "norm.bias"
    }
    assert left[128] < 0.8 * left[32]
    suspects = {suspect.tensor: suspect.cause for suspect in check.suspects}
    assert check.ok == (not suspects) == (kind is torch.optim.AdamW)
    assert kind is torch.optim.AdamW or "its learning rate is sound" in suspects["norm.bias"]
