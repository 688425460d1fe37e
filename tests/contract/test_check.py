"""Checks: verdicts of what is true and what is false, meters by hand, late looks, own losses,
refusals, the command.
"""

from __future__ import annotations

import json
import math
import random
import shlex
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run
from tests.models import (
    IDS,
    SHIFTED,
    ConvNet,
    Language,
    Residual,
    encoder,
    gpt2,
    shifted_loss,
    train,
)
from torch import Tensor, nn
from torch.nn import functional

import nfd


class Gaining(Residual):
    """Multiplies the stream between its blocks."""

    def __init__(self, width: int, depth: int, gain: float) -> None:
        super().__init__(width, depth)
        self.gain = gain

    def streams(self, x: Tensor) -> list[Tensor]:
        h = [self.embed(x)]
        for block in self.blocks:
            h.append(block(self.gain * h[-1]))
        return h


def vectors(steps: int, batch: int = 16) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(batch, 5, generator=g), torch.randint(0, 3, (batch,), generator=g))
        for _ in range(steps)
    ]


def checked(make_model: Any = Residual, task: Any = None, **options: Any) -> nfd.Check:
    """A check at widths 8 and 16 and depth 2 with two seeds, or as the options say.

    It does not train by the plan that should mend a fault, unless they ask for that.
    """
    settings: dict[str, Any] = {"widths": [8, 16], "depths": [2], "rule": "mup", "seeds": 2}
    settings["remedy"] = False
    return nfd.check(make_model, vectors(2) if task is None else task, **{**settings, **options})


def told(check: nfd.Check) -> str:
    """The answer and all its details."""
    return "\n".join(check.answer.sentences)


def verdicts(check: nfd.Check, step: int | None = None) -> dict[tuple[str, str], str]:
    looked = check.steps if step is None else step
    return {
        (row["meter"], row["axis"]): row["verdict"] for row in check.table if row["step"] == looked
    }


def row_of(check: nfd.Check, meter: str, axis: str) -> dict[str, Any]:
    return next(row for row in check.table if (row["meter"], row["axis"]) == (meter, axis))


def kinds(check: nfd.Check) -> list[str]:
    return [failure.event.kind for failure in check.failures]


# ---- rules that are right and wrong


@pytest.mark.parametrize(
    ("rule", "inner", "together"),
    [
        ("depth-mup", "COLLAPSES", 0.0),
        ("depth-mup-inner", "STABLE", 0.5),
        ("complete-p", "STABLE", 0.0),
    ],
)
def test_inner_updates_of_two_layer_blocks_go_as_eq_8_says(
    rule: Any, inner: str, together: float
) -> None:
    """One rate for all starves inner matrices with depth; under Eq. 8 what they do together grows
    as sqrt(L).
    """
    family = nfd.resnets(5, 3, block="two-layer", rule=rule)
    check = nfd.check(family, vectors(10, 64), [64], [4, 8, 16, 32], seeds=3, remedy=False)
    row = row_of(check, "inner_update", "depth")
    joint = row_of(check, "function_update_inner", "depth")
    assert row["verdict"] == inner
    assert row["slope"] == pytest.approx(-0.5 if inner == "COLLAPSES" else 0.0, abs=0.1)
    assert joint["slope"] == pytest.approx(together, abs=0.12)
    assert (joint["verdict"] == "GROWS") == (together > 0)
    assert check.ok == (rule == "complete-p")
    if rule == "depth-mup":
        assert row["since"] == 4
        assert f"{100 * (1 - 8 ** row['slope']):.0f} % [" in row["cause"]
        assert "from depth 4 to 32" in row["cause"]
        assert "Eq. 8" in row["cause"]


def test_standard_rates_grow_with_size_and_those_of_mup_and_complete_p_do_not() -> None:
    sizes: dict[str, Any] = {
        "task": vectors(4),
        "widths": [32, 64, 128],
        "depths": [2, 4, 8],
        "optimizer": "sgd",
    }
    found = {
        rule: checked(rule=rule, lr=lr, remedy=rule != "mup", **sizes)
        for rule, lr in (("standard", 0.1), ("mup", 0.3), ("complete-p", 0.3))
    }
    words = {rule: verdicts(check) for rule, check in found.items()}
    assert words["standard"]["inner_update", "width"] == "GROWS"
    assert "rates do not follow it" in row_of(found["standard"], "inner_update", "width")["cause"]
    assert (
        words["standard"]["stream_update", "depth"]
        == words["mup"]["stream_update", "depth"]
        == "GROWS"
    )
    assert not {"GROWS", "COLLAPSES"} & {
        word for (_, axis), word in words["mup"].items() if axis == "width"
    }
    assert [check.ok for check in found.values()] == [False, False, True]
    assert str(found["complete-p"]).startswith("✓ SCALES  Every measured quantity keeps its scale")
    undecided = sum(
        row["verdict"] == "UNCERTAIN" and row["step"] == found["complete-p"].steps
        for row in found["complete-p"].table
    )
    told = f" {undecided} {'is' if undecided == 1 else 'are'} not decided"
    assert (told in found["complete-p"].answer.because) == (undecided > 0)
    standard = found["standard"]
    assert str(standard).startswith("✗ WILL NOT SCALE AS IT IS  ")
    assert (standard.cure, found["complete-p"].cure) == ("complete-p", None)
    assert "With the plan complete-p none " in standard.answer.because


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_a_gpt_drifts_with_depth_under_mup_and_not_under_complete_p() -> None:
    dicts = [{"input_ids": ids, "labels": ids} for ids in IDS]
    options: dict[str, Any] = {
        "task": dicts,
        "widths": [32],
        "depths": [2, 4, 8],
        "seeds": 3,
        "optimizer": "adamw",
    }
    drifts, planned = (
        checked(gpt2, rule=rule, lr=3e-3, **options) for rule in ("mup", "complete-p")
    )
    for meter in ("activation_update", "stream_update"):
        assert verdicts(drifts)[meter, "depth"] == "GROWS"
    assert not drifts.ok
    assert planned.ok


class Stochastic(torch.optim.AdamW):
    """AdamW whose weights of 16 bits are rounded up or down by chance, which keeps updates in the
    mean.
    """

    def __init__(self, groups: Any) -> None:
        super().__init__(groups)
        self.weights = {
            p: p.detach().float() for group in self.param_groups for p in group["params"]
        }

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        before = {p: p.detach().clone() for p in self.weights}
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                update = (
                    (state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)).float().clamp(-1, 1)
                )
                wanted = before[p].float() - group["lr"] * update
                digit = torch.finfo(p.dtype).eps * torch.exp2(
                    wanted.abs().clamp_min(1e-30).log2().floor()
                )
                p.copy_((wanted / digit + torch.rand_like(wanted)).floor() * digit)


@pytest.mark.parametrize(
    ("dtype", "make_optimizer", "is_rounded"),
    [
        (torch.bfloat16, None, True),
        (torch.float32, None, False),
        (torch.bfloat16, Stochastic, False),
    ],
)
def test_updates_that_16_bits_round_away_are_named_in_place_of_lazy_training(
    dtype: torch.dtype, make_optimizer: Any, is_rounded: bool
) -> None:
    """At a rate of 3e-4 two steps change 0.9 of the entries of matrices of width 64, and 0.6 of
    width 256.
    """
    make: Any = lambda width, depth: ResidualMLP(width, depth).to(dtype)  # noqa: E731
    pairs = [(x.to(dtype), y) for x, y in batches(2)]
    task = nfd.Task(pairs, make_optimizer=make_optimizer)
    check = nfd.check(make, task, [64, 256], [2], lr=3e-4, seeds=2, optimizer="adamw")
    rounded = {suspect.tensor for suspect in check.suspects if suspect.what == "rounding"}
    assert rounded == ({"blocks.*.1.weight", "blocks.*.3.weight"} if is_rounded else set())
    assert ("weights of 16 bits round updates away" in told(check)) == is_rounded
    assert "lazy training" not in told(check)


class GemmaNorm(nn.Module):
    """A norm whose gain is stored as g of 1 + g."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, h: Tensor) -> Tensor:
        return functional.rms_norm(h, h.shape[-1:], eps=1e-6) * (1 + self.weight)


class SandwichBlock(nn.Module):
    """A norm before and behind the branch, as in Gemma 3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = GemmaNorm(width)
        self.behind = GemmaNorm(width)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        z = self.before(h)
        return h + self.behind(self.down(functional.gelu(self.gate(z)) * self.up(z)))


class GemmaLike(nn.Module):
    """A tied head, and embeddings that begin at 0.02 and are multiplied by the root of the
    width.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(SandwichBlock(width) for _ in range(depth))
        self.norm = GemmaNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) * self.embed.embedding_dim**0.5
        for block in self.blocks:
            h = block(h)
        return functional.linear(self.norm(h), self.embed.weight)


class SiglipLike(nn.Module):
    """A learned query pools the stream, and cosines to a vector of each class are multiplied by a
    learned scale.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, width),
                nn.GELU("tanh"),
                nn.Linear(width, width),
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.probe = nn.Parameter(torch.randn(1, 1, width))
        self.pool = nn.MultiheadAttention(width, width // 8, batch_first=True)
        self.classes = nn.Parameter(torch.randn(3, width))
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        h = self.norm(h)
        pooled, _ = self.pool(self.probe.expand(len(h), -1, -1), h, h, need_weights=False)
        cosines = (
            functional.normalize(pooled[:, 0], dim=-1)
            @ functional.normalize(self.classes, dim=-1).T
        )
        return self.scale.exp() * cosines


def patches(steps: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(2)
    return [
        (torch.randn(16, 4, 5, generator=g), torch.randint(0, 3, (16,), generator=g))
        for _ in range(steps)
    ]


def words(steps: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(2)
    return [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(11, (steps, 8, 9), generator=g)]


@pytest.mark.parametrize(("make", "task"), [(GemmaLike, words(4)), (SiglipLike, patches(4))])
@pytest.mark.parametrize(("rule", "is_sound"), [("complete-p", True), ("mup", False)])
def test_twins_of_gemma_3_and_siglip_are_sound_by_depth_and_without_factors_are_not(
    make: Any, task: Any, rule: str, is_sound: bool
) -> None:
    """What training changes differs in direction from block to block behind norms: LIMIT at most,
    under the plan.
    """
    check = checked(
        make, task, rule=rule, optimizer="adamw", lr=2e-3, widths=[32], depths=[2, 4, 8], seeds=2
    )
    assert check.ok == is_sound, str(check)
    assert (verdicts(check)["activation_update", "depth"] == "GROWS") != is_sound


class NormedBranches(nn.Module):
    """Norms behind branches only, as OLMo 2 has them, over weights of one standard deviation at
    every width.
    """

    def __init__(self, width: int, depth: int, std: float) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.head = nn.Linear(width, 3)
        self.up = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(depth))
        for part in (*self.up, *self.down):
            nn.init.normal_(part.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for up, down, norm in zip(self.up, self.down, self.norms, strict=True):
            h = h + norm(down(torch.relu(up(h))))
        return self.head(h)


@pytest.mark.parametrize(("std", "is_named"), [(1e-3, True), (0.3, False)])
def test_norms_whose_epsilon_no_start_reaches_are_named_beside_a_fault(
    std: float, is_named: bool
) -> None:
    make = partial(NormedBranches, std=std)
    check = checked(
        make, rule="complete-p", lr=1e-2, optimizer="adamw", depths=[2, 8], task=vectors(3)
    )
    assert check.ok != is_named
    assert [text for text in check.wrong if "the epsilon of norms.* is" in text] == (
        check.wrong if is_named else []
    )
    assert "check roles" not in told(check)


class Fading(torch.optim.AdamW):
    """AdamW that from its fifth step on pulls weights back to their start, so that ``kept`` of
    every step is left.
    """

    def __init__(self, groups: Any, power: float) -> None:
        super().__init__(groups)
        self.steps, parameters = 0, [p for group in self.param_groups for p in group["params"]]
        self.start = [(p, p.detach().clone()) for p in parameters]
        self.kept = (64 / max(p.shape[0] for p in parameters)) ** power

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        super().step()
        self.steps += 1
        for p, start in self.start if self.steps >= 5 else ():
            p.lerp_(start, 1 - self.kept)


@pytest.mark.parametrize(("power", "late"), [(0.0, "STABLE"), (0.6, "COLLAPSES")])
def test_a_collapse_that_comes_late_is_seen_late(power: float, late: str) -> None:
    task = nfd.Task(vectors(1, 32) * 8, make_optimizer=lambda groups: Fading(groups, power))
    check = checked(
        task=task, widths=[32, 64, 128, 256], optimizer="adamw", lr=1e-3, seeds=4, at=(1, 8)
    )
    assert [verdicts(check, step)["update_to_weight", "width"] for step in (1, 8)] == [
        "STABLE",
        late,
    ]
    assert check.ok == (late == "STABLE")


# ---- failures


@pytest.mark.parametrize(
    ("make_model", "options", "kind", "said"),
    [
        (Residual, {"lr": 1e-2}, None, "Nothing is wrong so far"),
        (
            partial(Gaining, gain=4.0),
            {"depths": [2, 8], "lr": 1e-6},
            "gradients-explode",
            "gradients explode",
        ),
        (
            partial(Gaining, gain=0.1),
            {"depths": [2, 8], "lr": 1e-6},
            "gradients-vanish",
            "gradients vanish",
        ),
        (
            Residual,
            {"lr": 3.0, "optimizer": "adamw", "task": vectors(1) * 6},
            "loss-rose",
            "rate is too large",
        ),
        (Residual, {"lr": 1e6, "task": vectors(12)}, "not-finite", "not finite, first in"),
        (
            Residual,
            {"lr": 9e19, "task": vectors(1), "rule": "standard"},
            "not-finite",
            "after step 1, not finite",
        ),
    ],
)
def test_what_breaks_a_training_is_named(
    make_model: Any, options: dict[str, Any], kind: str, said: str
) -> None:
    check = checked(make_model, **options)
    assert said in told(check)
    assert (kinds(check) == []) if kind is None else (kind in kinds(check))
    if kind is not None:
        assert not check.ok


def test_matrices_that_nothing_moves_and_random_numbers_are_told() -> None:
    class Frozen(Residual):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.get_parameter("blocks.0.up.weight").requires_grad_(False)

    class Dropping(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    frozen, drawing, plain = (checked(make) for make in (Frozen, Dropping, Residual))
    assert (frozen.unmoved, frozen.draws) == (["blocks.0.up.weight"], False)
    assert "no training moved 'blocks.0.up.weight'" in told(frozen)
    assert (drawing.unmoved, drawing.draws) == ([], True)
    assert "draws random numbers" in told(drawing)
    assert plain.notes == []


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.random, random.random])
def test_what_a_model_draws_follows_from_the_seed_alone(draw: Any) -> None:
    class Drawing(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (1.0 + draw()) if self.training else x)

    first = checked(Drawing)
    draw()
    assert checked(Drawing).runs == first.runs
    assert first.draws
    state = torch.get_rng_state(), random.getstate()
    checked(Drawing)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()


def test_networks_of_two_sizes_begin_independently() -> None:
    runs = checked(widths=[16], depths=[2, 4], task=vectors(1), seeds=12).runs
    sizes = [[run["activation"] for run in runs if run["depth"] == depth] for depth in (2, 4)]
    # shared draws make it 0.9 and more
    assert abs(float(torch.corrcoef(torch.tensor(sizes))[0, 1])) < 0.7


def attention(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(11, width), encoder(width, depth), nn.Linear(width, 11))


@pytest.mark.parametrize(("make_model", "optimizer"), [(ConvNet, "adamw"), (attention, "muon")])
def test_every_kind_of_module_is_measured(make_model: Any, optimizer: str) -> None:
    g = torch.Generator().manual_seed(0)
    images = [(torch.randn(8, 3, 6, 6, generator=g) + 3, torch.arange(8))] * 2
    options: dict[str, Any] = {
        "task": images if make_model is ConvNet else SHIFTED[:2],
        "rule": "complete-p",
    }
    check = checked(make_model, **options, depths=[2, 4], optimizer=optimizer, lr=1e-3, at=(1, 2))
    meters = {meter for meter, _ in verdicts(check)}
    assert meters >= {
        "inner_update",
        "stream_update",
        "function_update",
        "function_update_inner",
        "gradient",
        "loss",
    }
    assert all(
        math.isfinite(run[meter]) and run[meter] > 0 for run in check.runs for meter in meters
    )
    aligned = [row["alignment"] for row in check.rows if row["matrix"] and "alignment" in row]
    assert aligned
    assert all(0 < value <= 1 + 1e-3 for value in aligned)
    if make_model is ConvNet:  # batch statistics that move are no learning
        still = checked(make_model, **options, optimizer=optimizer, lr=1e-12)
        assert all(run["activation_update"] < 1e-5 * run["activation"] for run in still.runs)


def test_what_cannot_be_read_is_not_measured() -> None:
    def plain(width: int, depth: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    check = checked(plain, depths=[1])
    for meter in ("inner_update", "stream_update", "function_update_inner"):
        assert verdicts(check)[meter, "width"] == "NOT MEASURED"
        assert "pass blocks=" in row_of(check, meter, "width")["cause"]
    assert math.isfinite(row_of(check, "update_to_weight", "width")["slope"])
    assert "NOT MEASURED" not in verdicts(checked()).values()


# ---- meters by hand


def rms(*values: Tensor) -> float:
    return float(torch.cat([value.flatten() for value in values]).square().mean().sqrt())


def test_meters_are_what_they_say() -> None:
    """Eqs. 27, 33 and 34, and the rest of the table, of networks that the test trains itself."""
    task = nfd.Task(vectors(2))
    x = vectors(2)[0][0]
    family = nfd.Family(Residual, base=(8, 2), sample=task.sample)
    check = nfd.check(family, task, [8, 16], [3], lr=0.01, seeds=2)
    assert len(check.runs) == 4
    for seen in check.runs:
        model: Any = family.build(seen["width"], 3, seed=seen["seed"])
        start = deepcopy(model)
        optimizer = family.plan(seen["width"], 3).make_optimizer(model, lr=0.01)
        h = start.streams(x)
        ends = torch.autograd.grad(
            nn.functional.cross_entropy(start.head(h[-1]), task.batches[0][1]), (h[0], h[-1])
        )
        losses = train(model, optimizer, task.batches)
        back = deepcopy(model)
        inner = []
        stream = []
        ratios = []
        with torch.no_grad():
            for block, before, reset, z in zip(
                model.blocks, start.blocks, back.blocks, model.streams(x), strict=False
            ):
                moved = block.up.weight - before.up.weight
                inner.append(z @ moved.T)
                stream.append(
                    3 * torch.relu(block.up(z)) @ (block.down.weight - before.down.weight).T
                )
                ratios.append(
                    torch.linalg.matrix_norm(moved, 2)
                    / torch.linalg.matrix_norm(before.up.weight, 2)
                )
                reset.up.weight.copy_(before.up.weight)
            expected = {
                "activation": rms(model.streams(x)[-1]),
                "activation_update": rms(model.streams(x)[-1] - h[-1]),
                "inner_update": rms(*inner),
                "stream_update": rms(*stream),
                "function_update": rms(model(x) - start(x)),
                "function_update_inner": rms(model(x) - back(x)),
                "gradient": rms(ends[0]) / rms(ends[1]),
                "loss": losses[-1],
            }
        assert {name: seen[name] for name in expected} == pytest.approx(expected, rel=1e-3)
        # by power iteration
        assert seen["update_to_weight"] == pytest.approx(rms(torch.stack(ratios)), rel=0.05)


# ---- several steps


def test_a_look_at_a_step_is_a_check_of_that_length_and_holds_every_matrix() -> None:
    options: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-2}
    several = checked(task=vectors(4), at=(1, 3), **options)
    alone = checked(task=vectors(1), **options)
    assert (several.steps, several.at, alone.at, alone.growth) == (3, (1, 3), (1,), [])
    for one, other in zip(several.rows, [row for row in alone.rows for _ in (1, 3)], strict=True):
        if one["step"] == 1:
            (same,) = [
                r for r in alone.rows if all(r[k] == one[k] for k in ("width", "seed", "matrix"))
            ]
            assert [one[k] for k in same if k != "step"] == [
                same[k] for k in same if k != "step"
            ], other
    names = [
        "",
        "embed.weight",
        *(f"blocks.{k}.{of}.weight" for k in range(2) for of in ("up", "down")),
        "head.weight",
    ]
    places = [(row["width"], row["seed"], row["step"], row["matrix"]) for row in several.rows]
    assert places == [
        (n, s, t, name) for n in (8, 16) for s in range(2) for t in (1, 3) for name in names
    ]
    assert all(
        0 < row["alignment"] <= 1 + 1e-5
        for row in several.rows
        if row["role"] in ("inner", "outer", "readout")
    )


def test_growth_with_the_step_is_the_power_of_the_step() -> None:
    """Under a linear loss and SGD nothing but the rate decides how far outputs of a linear model
    move: as step^1.
    """
    task = nfd.Task(vectors(1) * 8, loss=lambda out, y: 1e-4 * out.sum())
    for schedule, power in ((None, 1.0), (lambda step: float(step < 1), 0.0)):
        given = (
            task
            if schedule is None
            else nfd.Task(vectors(1) * 8, loss=task.loss, schedule=schedule)
        )
        check = checked(task=given, optimizer="sgd", lr=1e-3, at=(1, 2, 4, 8), seeds=3)
        (row,) = [row for row in check.growth if row["meter"] == "function_update"]
        assert row["slope"] == pytest.approx(power, abs=0.02)
        assert row["axis"] == "step"


@pytest.mark.parametrize("lr", [1e-2, 2e-2])
@pytest.mark.parametrize("schedule", [None, lambda step: 1 - step / 8])
def test_what_to_change_has_rates_as_the_user_gave_them(lr: float, schedule: Any) -> None:
    """And not the rate of the last step, an eighth of it."""
    task = nfd.Task(SHIFTED, schedule=schedule)
    check = nfd.check(
        Language, task, [8, 32], [2], lr, rule="standard", optimizer="adamw", remedy=False
    )
    rates = [change for change in check.changes if change.quantity == "learning rate"]
    assert rates
    for change in rates:
        assert (change.now, change.sound) == pytest.approx((lr, lr / 4))


# ---- batches, losses, optimizers


def test_dicts_of_hugging_face_are_trained_on_the_loss_that_the_model_returns() -> None:
    dicts = [{"input_ids": ids, "labels": ids} for ids in IDS[:2]]
    own = checked(Language, dicts, optimizer="adamw")
    given = checked(
        Language, nfd.Task([(ids, ids) for ids in IDS[:2]], loss=shifted_loss), optimizer="adamw"
    )
    for meter in ("loss", "inner_update", "function_update"):
        assert [run[meter] for run in own.runs] == pytest.approx(
            [run[meter] for run in given.runs], rel=1e-5
        )
    assert not own.copies
    assert not given.copies
    copied = checked(Language, [(ids, ids) for ids in IDS[:1]], optimizer="adamw")
    assert copied.copies
    assert "copy its input" in told(copied)


class Masked(Residual):
    """Takes a mask as its second argument, or by keyword."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x * mask)


def test_inputs_may_be_tuples_and_dicts() -> None:
    pairs = vectors(2)
    mask = torch.ones(16, 1)
    several = [((x, mask), y) for x, y in pairs], [({"x": x, "mask": mask}, y) for x, y in pairs]
    alone = checked(task=pairs).runs
    for task in several:
        for seen, wanted in zip(checked(Masked, task).runs, alone, strict=True):
            for meter in ("loss", "inner_update", "function_update"):
                assert seen[meter] == pytest.approx(wanted[meter], rel=1e-5)


def test_what_muon_leaves_to_adamw_has_a_rate_of_its_own() -> None:
    """At a rate of zero the readout stays; at the rate itself nothing changes."""

    def readouts(rate: float | None) -> list[dict[str, Any]]:
        check = checked(
            task=nfd.Task(vectors(2), adamw_lr=rate), rule="complete-p", optimizer="muon", lr=0.02
        )
        return [row for row in check.rows if row["role"] == "readout"]

    assert all(row["change"] == 0 for row in readouts(0.0))
    assert readouts(0.02) == readouts(None)
    assert all(row["change"] > 0 for row in readouts(None))
    with pytest.raises(
        ValueError, match="adamw_lr is for what Muon leaves to AdamW; got optimizer='sgd'"
    ):
        checked(task=nfd.Task(vectors(2), adamw_lr=0.1), optimizer="sgd")


def test_optimizers_and_arrays_of_ones_own_are_taken() -> None:
    arrays = [(x.numpy(), y.numpy()) for x, y in vectors(2)]
    sgd = nfd.Task(arrays, make_optimizer=lambda groups: torch.optim.SGD(groups))
    assert checked(task=sgd, optimizer="sgd", lr=0.1).runs == checked(optimizer="sgd", lr=0.1).runs
    own = checked(task=nfd.Task(arrays, make_optimizer=torch.optim.RMSprop), optimizer="adamw")
    assert "RMSprop, lr" in told(own)
    halved = nfd.Task(arrays, schedule=lambda step: 0.5)
    losses = [
        [run["loss"] for run in checked(task=task, lr=lr).runs]
        for task, lr in ((halved, 0.2), (arrays, 0.1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for make_optimizer, said in (
        (lambda groups: groups, "must return an optimizer; got list"),
        (lambda model: torch.optim.SGD(model.parameters()), "raised AttributeError"),
    ):
        with pytest.raises(TypeError, match=f"^make_optimizer {said}.* from the parameter groups"):
            checked(task=nfd.Task(arrays, make_optimizer=make_optimizer))


# ---- refusals


def test_seeds_that_give_one_network_are_refused() -> None:
    def fixed(width: int, depth: int) -> nn.Module:
        torch.manual_seed(3)
        return Residual(width, depth)

    with pytest.raises(
        ValueError, match=r"make_model\(8, 2\) gives the same network for seeds 0 and 1"
    ):
        checked(fixed, rule="standard")
    assert checked(fixed).table  # the rule draws the start anew


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"widths": [8]}, "two sizes or more"),
        ({"widths": [16, 8]}, "widths must be ascending"),
        ({"widths": 8}, "widths must be a list"),
        ({"task": []}, "batches must be"),
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"rule": "depth"}, "rule must be one of"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"at": (0, 1)}, "at must be at least 1"),
        ({"at": (2, 1)}, "at must be ascending"),
        ({"at": (1, 9)}, r"at=\[1, 9\] and 2 batches"),
        ({"at": 3}, "at must be a list"),
        ({"make_model": lambda w, d: Residual(8, d)}, "does it use its first argument, width"),
        ({"make_model": lambda w, d: None}, "must return a torch.nn.Module"),
        ({"make_model": Residual(8, 2)}, "not a model"),
        (
            {"task": [(torch.full((2, 5), math.nan), torch.tensor([0, 1]))]},
            r"batches\[0\] must be finite",
        ),
        (
            {"task": [((torch.ones(2, 5), [np.array([math.inf])]), torch.tensor([0, 1]))]},
            r"\[0\]\[1\]\[0\] must be",
        ),
        (
            {"task": [(torch.randn(2, 7), torch.tensor([0, 1]))]},
            r"trained on batches\[0\].*\[2, 7\].*models.py",
        ),
        ({"task": {"x": torch.ones(2, 5)}}, r"Put it into a list"),
        ({"make_model": Language, "task": [(IDS[0] + 40, IDS[0])]}, "IndexError"),
    ],
)
def test_bad_requests_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=said):
        checked(**options)


# ---- sweeps


def test_networks_in_a_sweep_are_not_trained_again(tmp_path: Path) -> None:
    calls: list[int] = []

    class Counted(Residual):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:  # a plan looks at it in eval mode
                calls.append(len(x))
            return super().forward(x)

    found = []
    for widths in ([8], [8, 16], [8, 16]):
        with nfd.Sweep(tmp_path, progress=False) as sweep:
            family = nfd.Family(Counted, base=(8, 1), rule="mup")
            found.append(nfd.check(family, vectors(2), widths, [1, 2], seeds=2, sweep=sweep))
        calls.append(0)
    ends = [place for place, count in enumerate(calls) if count == 0]
    assert 0 < ends[0] < ends[1] == ends[2] - 1
    assert found[2].table == found[1].table == checked(Counted, widths=[8, 16], depths=[1, 2]).table


# ---- the command

SETUP = """
import nfd, torch
family = nfd.resnets(5, 3, block="two-layer", rule="RULE")
g = torch.Generator().manual_seed(1)
batches = [
    (torch.randn(64, 5, generator=g), torch.randint(0, 3, (64,), generator=g)) for _ in range(5)
]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "code"), [("depth-mup", 1), ("complete-p", 0)])
def test_the_command_says_writes_and_exits(rule: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(SETUP.replace("RULE", rule))
    sizes = ["--widths", "64", "--depths", "4", "16", "64", "--at", "1", "5", "--out", "found"]
    done = run("check", "setup.py", *sizes, folder=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("✗" if code else "✓")
    result = json.loads((tmp_path / "found/result.json").read_text())
    assert (result["ok"], result["rule"], result["optimizer"]) == (not code, rule, "sgd")
    assert {"meter", "slope", "low", "high", "verdict", "cause"} <= result["table"][0].keys()
    words = {
        row["step"]: row["verdict"] for row in result["table"] if row["meter"] == "inner_update"
    }
    assert words == dict.fromkeys((1, 5), "COLLAPSES" if code else "STABLE")
    if not code:
        # What to run next is a command; this option ends it before it trains.
        advised = shlex.split(result["answer"]["next"]["code"])[1:]
        told = run(*advised, "--columns", "lr=x", folder=tmp_path).stderr
        assert "--columns is for a table of runs" in told


# ---- verdicts of ``nfd.check`` on networks that are sound, and on networks that are broken by
# construction

Groups = list[dict[str, Any]]


def slowed(groups: Groups, power: float) -> Groups:
    """With every rate of the plan times ``width^power`` over that of width 16."""
    width = max(
        p.shape[1]
        for group in groups
        for p in group["params"]
        if p.dim() == 2 and p.shape[0] in (10, 128)
    )
    return [group | {"lr": group["lr"] * (width / 16) ** power} for group in groups]


def rates(power: float) -> Any:
    return lambda groups: torch.optim.AdamW(slowed(groups, power))


def forgets(groups: Groups) -> torch.optim.Optimizer:
    """AdamW that trains the square matrices of blocks at the base's rate at every width."""
    parts = []
    for group in groups:
        square = [p for p in group["params"] if p.dim() == 2 and p.shape[0] == p.shape[1]]
        others = [p for p in group["params"] if not any(p is own for own in square)]
        parts += (
            [group | {"params": square, "lr": group["lr"] / group["lr_scale"]}] if square else []
        )
        parts += [group | {"params": others}] if others else []
    return torch.optim.AdamW(parts)


WIDTHS: dict[str, Any] = {
    "depths": [2],
    "rule": "complete-p",
    "optimizer": "adamw",
    "lr": 3e-3,
    "seeds": 3,
}


@cache
def sound_in_width() -> nfd.Check:
    return nfd.check(ResidualMLP, batches(5), [16, 32, 64, 128], **WIDTHS)


def test_one_forgotten_rate_is_found_at_two_widths_and_a_sound_plan_is_not_blamed() -> None:
    """Even where the rule in use should prevent it."""
    near = nfd.check(ResidualMLP, nfd.Task(batches(5), make_optimizer=forgets), [32, 64], **WIDTHS)
    assert row_of(near, "inner_update", "width")["verdict"] == "GROWS"
    assert not near.ok
    assert sound_in_width().ok


class Signum(torch.optim.Optimizer):
    """Steps by the sign of a momentum."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(group["lr"] * momentum.mul_(0.9).add_(p.grad, alpha=0.1).sign())


class Text(ResidualMLP):
    """Bytes to the next ones, each by itself."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.embed = nn.Embedding(128, width)
        self.head = nn.Linear(width, 128)


def text(steps: int) -> list[tuple[Tensor, Tensor]]:
    source = torch.tensor(list(Path(json.__file__).read_bytes())) % 128
    windows = source[: steps * 8 * 17].view(steps, 8, 17)
    return [(ids[:, :-1], ids[:, 1:]) for ids in windows]


def test_lazy_training_is_found_and_the_update_of_the_function_that_falls_alone_is_no_fault() -> (
    None
):
    widths = [16, 32, 64, 128]
    lazy = nfd.check(
        ResidualMLP, nfd.Task(batches(5), make_optimizer=rates(-0.5)), widths, **WIDTHS
    )
    assert row_of(lazy, "inner_update", "width")["verdict"] == "COLLAPSES"
    assert not lazy.ok
    sound = nfd.check(Text, text(3), widths, **WIDTHS)
    row = row_of(sound, "function_update_inner", "width")
    assert 8 ** row["slope"] < 0.5
    assert row["verdict"] == "LIMIT"
    assert f"falls by {100 * (1 - 8 ** row['slope']):.0f} % [" in row["cause"]
    assert sound.ok


@pytest.mark.parametrize("power", [0.0, -0.5])
def test_updates_whose_directions_alone_fall_are_no_collapse_and_rates_that_fall_are(
    power: float,
) -> None:
    """Random bytes, 128 in a batch: more directions than the layers have coordinates."""
    law = nfd.OptimizerLaw("signum", lambda groups: Signum(slowed(groups, power)), states=1)
    g = torch.Generator().manual_seed(0)
    noise = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(128, (4, 8, 17), generator=g)]
    nfd.register_optimizer(law, replace=True)
    options: Any = {"rule": "mup", "optimizer": "signum", "remedy": False}
    found = nfd.check(Text, noise, [32, 64, 128], [2], 1e-3, **options)
    row = row_of(found, "inner_update", "width")
    assert 4 ** row["slope"] < 0.7
    assert row["verdict"] == ("COLLAPSES" if power else "LIMIT")
    assert found.ok == (not power)


class OnEdges(nn.Module):
    """A layer whose every edge has a function of its own: three powers with coefficients."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.edges = nn.Parameter(torch.randn(width, width, 3) / (3 * width) ** 0.5)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.embed(x))
        powers = torch.stack([h, h**2, h**3], -1)
        out: Tensor = self.head(torch.einsum("bik,oik->bo", powers, self.edges))
        return out


@pytest.mark.parametrize("power", [0.0, -0.5])
def test_coefficients_of_edges_are_one_matrix_and_no_stack(power: float) -> None:
    """An output sums over both other dimensions."""
    task = nfd.Task(batches(3), make_optimizer=rates(power))
    found = nfd.check(OnEdges, task, [16, 64, 128], **{**WIDTHS, "rule": "mup"}, remedy=False)
    row = row_of(found, "update_to_weight", "width")
    assert row["slope"] == pytest.approx(power, abs=0.15)
    assert row["verdict"] == ("COLLAPSES" if power else "STABLE")


def test_an_update_of_the_function_that_falls_faster_than_independent_parts_do_is_a_collapse() -> (
    None
):
    found = nfd.check(
        ResidualMLP, nfd.Task(batches(5), make_optimizer=rates(-1.0)), [16, 32, 64, 128], **WIDTHS
    )
    assert row_of(found, "function_update", "width")["verdict"] == "COLLAPSES"


# ---- no more networks than decide


def trained(sweep: nfd.Sweep, widths: list[int], depths: list[int], **options: Any) -> nfd.Check:
    """A check of residual MLPs on digits, without another rule's networks."""
    settings: dict[str, Any] = {"lr": 3e-3, "remedy": False, "sweep": sweep}
    return nfd.check(
        ResidualMLP, batches(options.pop("steps", 5)), widths, depths, **settings, **options
    )


@pytest.mark.parametrize("rule", ["complete-p", "standard"])
def test_what_is_clear_takes_at_most_half_of_the_networks(rule: str) -> None:
    sizes: Any = ([16, 32, 64, 128], [2, 4, 8])
    with nfd.Sweep(progress=False) as sweep:
        few = trained(sweep, *sizes, rule=rule)
        count = len(sweep.store.records())
        again = trained(sweep, *sizes, rule=rule)
        assert len(sweep.store.records()) == count
        every = trained(sweep, *sizes, rule=rule, seeds=3)
        # The stored ones are used.
        assert len(sweep.store.records()) == len(every.runs) == 36
    assert count == len(few.runs) <= 18
    assert few.ok == every.ok == (rule == "complete-p")
    assert few.answer.state == every.answer.state
    assert few.cure == every.cure
    assert again.table == few.table
    assert few.answer.about.endswith(f"{few.seeds} seeds · {count} of 36 networks")
    assert "of 36" not in every.answer.about
    # What is to be run next asks for the sizes of the call, and lets it decide again.
    assert "seeds" not in few.answer.next.code
    assert "[16, 128], [2, 8]" in few.answer.next.code


def test_the_networks_of_a_remedy_are_no_more_than_decide() -> None:
    check = nfd.check(ResidualMLP, batches(5), [16, 32, 64, 128], [2, 4, 8], 3e-3, rule="standard")
    assert check.remedy is not None
    assert not check.remedy.faults
    assert len(check.remedy.runs) <= 18


def test_what_is_not_clear_takes_all_networks_and_says_what_else_to_run() -> None:
    with nfd.Sweep(progress=False) as sweep:
        check = trained(sweep, [16, 24, 32], [2], steps=2)
        assert len(sweep.store.records()) == len(check.runs) == 9
    assert check.answer.tone == "open"
    assert "short trainings" in check.answer.next.label
    assert check.answer.about.endswith("widths 16, 24, 32 · depth 2 · 3 seeds")


def test_given_seeds_and_looks_for_a_watch_train_every_network() -> None:
    with nfd.Sweep(progress=False) as sweep:
        given = trained(sweep, [16, 32, 64], [2], seeds=4)
        assert len(sweep.store.records()) == len(given.runs) == 12
        assert given.seeds == 4
        looks = trained(sweep, [16, 32, 64], [2], at=(1, 5))
    assert len(looks.runs) == 9


# ---- the answer


def test_an_answer_says_what_to_change_and_the_plan_mends_it() -> None:
    """Under PyTorch's defaults, at widths over a factor of 4 and depths over a factor of 4."""
    check = nfd.check(
        ResidualMLP, batches(4), [16, 32, 64], [2, 4, 8], lr=3e-3, rule="standard", seeds=2
    )
    answer = check.answer
    assert (answer.tone, answer.state) == ("bad", "Will not scale as it is")
    assert answer.title.endswith("need another learning rate or initial scale")
    assert len(str(check).splitlines()) <= 15
    changes = {(change.tensor, change.quantity): change for change in check.changes}
    outer = changes["blocks.*.3.weight", "learning rate"]
    assert (outer.values, outer.factor, outer.axes) == ("0.003 → 0.000188", "÷ 16", "width · depth")
    head = changes["head.weight", "initial std"]
    assert (head.factor, head.axes) == ("÷ 2", "√width")
    assert head.now == pytest.approx(2 * head.sound, rel=0.1)
    assert "blocks.*.0.weight" not in {tensor for tensor, _ in changes}
    assert check.remedy is not None
    assert not check.remedy.faults
    assert answer.next is not None
    _, *planning = answer.next.code.splitlines()
    model = ResidualMLP(64, 8)
    names = {
        "nfd": nfd,
        "model": model,
        "make_model": ResidualMLP,
        "batches": batches(4),
        "lr": 1.0,
    }
    exec("\n".join(planning), names)
    assert names["plan"].rate("blocks.0.3.weight") == pytest.approx(1 / 16)
    assert {group["lr"] for group in names["optimizer"].param_groups} >= {1 / 16, 1.0}
    unmended = nfd.check(
        ResidualMLP,
        batches(4),
        [16, 32, 64],
        [2, 4, 8],
        lr=3e-3,
        rule="standard",
        seeds=2,
        remedy=False,
    )
    assert unmended.remedy is None
    assert (unmended.table, unmended.runs) == (check.table, check.runs)


class Attending(nn.Module):
    """A residual block of attention whose heads have a size, or a number, that stays."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return x + self.proj((weights @ v).transpose(1, 2).flatten(-2))


class Attentive(nn.Module):
    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Attending(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.unflatten(-1, (16, 4)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("heads_grow", [False, True])
def test_what_no_plan_sets_is_to_be_edited_first(heads_grow: bool) -> None:
    make_model: Any = lambda width, depth: Attentive(width, depth, width // 8 if heads_grow else 4)  # noqa: E731
    data: Any = nfd.Task(batches(3), weight_decay=0.1) if heads_grow else batches(3)
    check = nfd.check(make_model, data, [32, 64, 128], [2], lr=4e-3, rule="standard", seeds=2)
    answer = check.answer
    assert answer.next is not None
    assert ("attention logits" in {change.quantity for change in check.changes}) != heads_grow
    assert answer.but.startswith("no plan can set the attention logits") != heads_grow
    assert ("let the number of heads grow" in answer.next.label) != heads_grow
    # The rest of the advice is of the task: its data and its decay.
    assert ("nfd.transfer(make_model, task," in answer.next.code) == heads_grow
    assert ("lr=lr, weight_decay=0.1)" in answer.next.code) == heads_grow
    assert ("nfd.check(make_model, batches," in answer.next.code) != heads_grow


def test_what_is_not_decided_says_what_to_run() -> None:
    check = nfd.check(ResidualMLP, batches(2), [16, 32], [2], lr=3e-3, seeds=2)
    assert check.ok
    assert check.answer.tone == "open"
    assert check.answer.state == "Not decided yet"
    assert check.answer.next is not None
    assert "nfd.check(make_model, batches, [16, 32" in check.answer.next.code
    assert "short trainings" in check.answer.next.label


def test_an_answer_shows_itself_in_notebooks_and_tables() -> None:
    sound = sound_in_width()
    for check in (sound, checked(lr=1e6, task=vectors(12))):
        shown = check._repr_html_()
        assert check.answer.title in shown
        assert check.answer.brief in repr(check)
        assert len(repr(check)) < 160
    assert sound.plot().to_dict()["vconcat"]
    columns = {"meter", "axis", "step", "slope", "low", "high", "verdict", "since"}
    assert columns <= sound.table[0].keys()


def test_its_table_is_a_data_frame() -> None:
    pytest.importorskip("pandas")
    check = checked()
    assert len(check.to_pandas()) == len(check.table)
    assert {"meter", "slope", "verdict"} <= {*check.to_pandas().columns}


@pytest.fixture(scope="module")
def of_ends() -> nfd.Check:
    """A check that the ends of its sizes decide, with what mends it."""
    return nfd.check(ResidualMLP, batches(4), [16, 32, 128], [2], lr=3e-3, rule="standard")


def test_an_answer_says_which_sizes_were_left_out(of_ends: nfd.Check) -> None:
    assert "Not trained: width 32." in of_ends.answer.because
    everything = nfd.check(
        ResidualMLP, batches(2), [16, 32], [2], lr=3e-3, seeds=2, remedy=False, rule="standard"
    )
    assert "Not trained" not in everything.answer.because


def test_an_answer_says_which_optimizer_was_assumed(of_ends: nfd.Check) -> None:
    assert "Assumed: adamw, betas 0.9 and 0.999, no decay, constant rate" in of_ends.answer.because
    check = partial(nfd.check, ResidualMLP, widths=[16, 32], depths=[2], seeds=2, remedy=False)
    falling = nfd.Task(batches(2), weight_decay=0.1, schedule=lambda step: 1 / (1 + step))
    assert "decay 0.1, your schedule" in check(task=falling, lr=1e-3).answer.because
    ours = nfd.Task(batches(2), make_optimizer=lambda groups: torch.optim.AdamW(groups))
    assert "Assumed" not in check(task=ours, lr=1e-3).answer.because


def test_no_exponent_is_said_that_the_networks_do_not_tell(of_ends: nfd.Check) -> None:
    assert of_ends.remedy is not None
    undecided = [row for row in of_ends.remedy.table if row["verdict"] == "UNCERTAIN"]
    said = f"{len(undecided)} {'is' if len(undecided) == 1 else 'are'} not decided."
    assert of_ends.answer.because.count(said) == bool(undecided)
    assert "95 %" in of_ends.answer.because
    open_rows = []
    for row in of_ends.table:
        slope = row["slope"]
        open_rows.append({**row, "low": slope - 9, "high": slope + 9, "verdict": "UNCERTAIN"})
    remedy = replace(of_ends.remedy, table=open_rows)
    unclear = replace(of_ends, judged=open_rows, remedy=remedy)
    assert f"{len(open_rows)} are not decided." in unclear.answer.because
    sentences = " ".join([unclear.answer.because, *unclear.answer.details])
    assert "95 %:" not in sentences
    assert "not decided, UNCERTAIN" in sentences


def test_a_constant_has_an_initial_value_and_no_std(of_ends: nfd.Check) -> None:
    def titles(*quantities: str) -> set[str]:
        first, second, *_ = of_ends.changes
        changes = [replace(first, quantity=quantities[0]), replace(second, quantity=quantities[1])]
        return {name for row in replace(of_ends, changes=changes).answer.table for name in row}

    assert "initial std" in titles("initial std", "learning rate")
    assert "initial value" in titles("initial value", "learning rate")
    assert "initial std or value" in titles("initial value", "initial std")


def test_an_answer_with_all_of_it_has_15_lines(of_ends: nfd.Check) -> None:
    assert len(str(of_ends).splitlines()) <= 15
