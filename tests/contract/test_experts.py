"""Mixtures of experts: their plans, sweeps over their numbers, and what a check says of experts
that learn nothing.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nfd

VOCABULARY = 16
IDS = torch.randint(VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(0))


class Mixture(nn.Module):
    """A router that scores E experts by a sigmoid, of which a token adds up k.

    Args:
        kind: how experts are held and applied: ``"bmm"``, ``"grouped"``, ``"index"``, or a
            ``"list"`` of modules.
        turned: whether a stacked matrix is [E, out, in].
        router: ``"linear"``, or a bare parameter, ``"rows"`` [E, n] or ``"columns"`` [n, E].
        bias: of the scores that choose: a ``"buffer"``, or a ``"parameter"`` that no gradient
            reaches.
        hidden: units of an expert; twice the width if None.
        among: how many of the experts the router chooses from.
        favour: what the first expert's score has over that of others.
    """

    def __init__(
        self,
        width: int,
        kind: str = "index",
        turned: bool = False,
        router: str = "linear",
        bias: str = "",
        shared: bool = False,
        hidden: int | None = None,
        experts: int = 4,
        top_k: int = 2,
        among: int | None = None,
        favour: float = 0.0,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.turned = turned
        self.top_k = top_k
        self.among = among
        self.favour = favour
        units = hidden or 2 * width
        self.router: nn.Module | None = (
            nn.Linear(width, experts, bias=False) if router == "linear" else None
        )
        if router != "linear":
            rows = torch.randn(experts, width) / width**0.5
            self.gate = nn.Parameter(rows if router == "rows" else rows.T.contiguous())
        self.by_rows = router == "rows"
        if kind == "list":
            self.experts = nn.ModuleList(feed_forward(width, units) for _ in range(experts))
        else:
            up = torch.randn(experts, width, units) / width**0.5
            down = torch.randn(experts, units, width) / units**0.5
            self.up, self.down = (
                nn.Parameter(w.transpose(1, 2).contiguous() if turned else w) for w in (up, down)
            )
        self.bias: Any = nn.Parameter(torch.zeros(experts)) if bias == "parameter" else None
        if bias == "buffer":
            self.register_buffer("offset", torch.zeros(experts))
            self.bias = self.offset
        self.shared = feed_forward(width, units) if shared else None
        self.balance = torch.zeros(())

    def stacked(self, weight: Tensor) -> Tensor:
        """A stack as [E, in, out]."""
        return weight.transpose(1, 2) if self.turned else weight

    def forward(self, h: Tensor) -> Tensor:
        x = h.flatten(0, -2)
        if self.router is not None:
            scores = self.router(x)
        else:
            scores = nn.functional.linear(x, self.gate) if self.by_rows else x @ self.gate
        scores = torch.cat([scores[:, :1] + self.favour, scores[:, 1:]], 1).sigmoid()
        chosen = (
            (scores if self.bias is None else scores + self.bias)[:, : self.among]
            .topk(self.top_k, -1)
            .indices
        )
        weights = scores.gather(-1, chosen)
        gates = torch.zeros_like(scores).scatter(-1, chosen, weights)
        self.balance = scores.mean(0).square().sum()
        out = torch.zeros_like(x) if self.shared is None else self.shared(x)
        if self.kind == "bmm":
            made = torch.relu(torch.bmm(x.expand(len(self.up), *x.shape), self.stacked(self.up)))
            out = out + (gates.T[..., None] * torch.bmm(made, self.stacked(self.down))).sum(0)
        elif self.kind == "grouped":
            order = chosen.flatten().argsort()
            ends = chosen.flatten().bincount(minlength=len(self.up)).cumsum(0).int()
            up = self.stacked(self.up).bfloat16()
            down = self.stacked(self.down).bfloat16()
            rows = order // self.top_k
            made = torch.relu(nn.functional.grouped_mm(x[rows].bfloat16(), up, offs=ends))
            made = (
                nn.functional.grouped_mm(made, down, offs=ends).float()
                * weights.flatten()[order, None]
            )
            out = out.index_add(0, rows, made)
        else:
            for e in range(gates.shape[1]):
                rows = gates[:, e].nonzero().squeeze(-1)
                if len(rows):
                    made = (
                        self.experts[e](x[rows])
                        if self.kind == "list"
                        else self.of_stack(x[rows], e)
                    )
                    out = out.index_add(0, rows, gates[rows, e, None] * made)
        return out.view_as(h)

    def of_stack(self, x: Tensor, e: int) -> Tensor:
        return torch.relu(x @ self.stacked(self.up)[e]) @ self.stacked(self.down)[e]


def feed_forward(width: int, units: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, units), nn.ReLU(), nn.Linear(units, width))


class Block(nn.Module):
    def __init__(self, width: int, **about: Any) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.moe = Mixture(width, **about)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.moe(self.norm(h))
        return out


class Model(nn.Module):
    """Logits of the next token, and where asked for the loss that spreads tokens over experts."""

    def __init__(
        self,
        width: int,
        depth: int,
        experts: int = 4,
        top_k: int = 2,
        balanced: bool = True,
        **about: Any,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.norm = nn.RMSNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, experts=experts, top_k=top_k, **about) for _ in range(depth)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.balanced = balanced

    def forward(self, ids: Tensor) -> Any:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        balances = [block.moe.balance for block in self.blocks]
        return (logits, torch.stack(balances).sum()) if self.balanced else logits


# ---- plans

HELD: list[dict[str, Any]] = [
    *(
        {"kind": kind, "turned": turned}
        for kind in ("bmm", "grouped", "index")
        for turned in (False, True)
    ),
    {"router": "rows"},
    {"router": "columns"},
    {"bias": "buffer"},
    {"bias": "parameter"},
    {"shared": True},
    {"balanced": False},
    {"kind": "list", "experts": 16, "top_k": 1},
]


def planned(optimizer: str, **about: Any) -> nfd.Plan:
    """Four times as wide and twice as deep as its base, under complete-p."""
    make: Any = partial(Model, **about)
    torch.manual_seed(0)
    return nfd.plan(
        make(32, 4),
        rule="complete-p",
        make_model=make,
        base=(8, 2),
        sample=IDS,
        optimizer=optimizer,
    )


@pytest.mark.parametrize("about", HELD, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_roles_and_rates_follow_what_experts_do_and_not_how_they_are_held(
    optimizer: str, about: Any
) -> None:
    plan = planned(optimizer, **about)
    # Muon's rates do not follow width where shapes keep their ratio
    of_muon = {"up": 1.0, "down": 1 / 2}
    for name, entry in plan.entries.items():
        last = name.split(".moe.")[-1]
        if ".moe." not in name or entry.is_vector:
            continue
        if "router" in last or "gate" in last:
            assert (entry.role, plan.rate(name), plan.is_muon(name)) == ("inner", 1 / 4, False)
            assert (entry.fan_in, entry.ratios.fan_out) == (32, 1)
            continue
        does = "up" if last == "up" or last.endswith("0.weight") else "down"
        assert entry.role == {"up": "inner", "down": "outer"}[does], name
        assert entry.fan_in == {"up": 32, "down": 64}[does]
        assert plan.std(name) == pytest.approx(entry.start.std * {"up": 1 / 2, "down": 1 / 4}[does])
        assert plan.is_muon(name) == (optimizer == "muon" and len(entry.shape) == 2)
        assert plan.rate(name) == (
            of_muon[does] if plan.is_muon(name) else {"up": 1 / 4, "down": 1 / 8}[does]
        )
    if optimizer == "muon" and about.get("kind") != "list":  # Muon of PyTorch takes matrices alone
        assert any("go to adamw" in note and "blocks.*.moe.up" in note for note in plan.notes)


def test_an_expert_without_a_token_has_the_roles_of_the_others_in_every_layer() -> None:
    """One token reaches one expert of each block; layers of all others are matched by place, not by
    any number.
    """
    make: Any = partial(Model, kind="list", experts=8, top_k=1)
    plan = nfd.plan(
        make(32, 2), rule="complete-p", make_model=make, base=(8, 2), sample=IDS[:1, :1]
    )
    for layer, role in (("0", "inner"), ("2", "outer")):
        names = [
            f"blocks.{b}.moe.experts.{e}.{layer}.{of}"
            for b in (0, 1)
            for e in range(8)
            for of in ("weight", "bias")
        ]
        assert {plan.roles[name] for name in names} == {role}


def test_a_bias_that_only_chooses_is_planned_and_left_alone() -> None:
    plan = planned("adamw", bias="parameter")
    name = "blocks.1.moe.bias"
    assert (plan.roles[name], plan.constant(name), plan.rate(name)) == ("vector", 0.0, 1.0)


# ---- sweeps over the number of experts


class Steeper(nn.Module):
    """A bowl whose curvature is the number of experts, so that the best rate falls as one over
    it.
    """

    def __init__(self, width: int, depth: int, experts: int = 4, *, top_k: int = 1) -> None:
        super().__init__()
        self.place = nn.Parameter(1 + 0.1 * torch.rand(1))
        self.unused = nn.Linear(1, width)
        self.curvature = experts / top_k

    def forward(self, x: Tensor) -> Tensor:
        return self.curvature * (x * self.place).square() / 2 + 0 * self.unused(x).sum()


def height(out: Tensor, _: Tensor) -> Tensor:
    return out.mean() + 0.1


BOWL = nfd.Task([(torch.ones(4, 1), torch.ones(4, 1))] * 3, height)
RATES = [2.0**k for k in range(-5, 2)]


def swept(
    axes: dict[str, Any], sweep: nfd.Sweep | None = None, make_model: Any = Steeper
) -> nfd.Transfer:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd", name="steeper")
    return nfd.transfer(family, BOWL, [4], [2], RATES, axes=axes, seeds=2, sweep=sweep)


def test_a_keyword_of_make_model_is_an_axis() -> None:
    answer = swept({"experts": (2, 4, 8), "top_k": (1, 2, 4)})
    for axis, power in (("experts", -1), ("top_k", 1)):
        drift = answer.drift("standard", axis)
        assert drift.low <= power <= drift.high
        assert not drift.low <= 0 <= drift.high
    assert answer.best("standard", 4, 2, experts=8).value == pytest.approx(1 / 8, rel=0.2)
    assert "when experts doubles, the best rate is multiplied by 0.5" in " ".join(
        answer.answer.details
    )
    # and keywords that are bound stay
    fixed = swept({"experts": (2, 4)}, make_model=partial(Steeper, top_k=2))
    assert fixed.best("standard", 4, 2, experts=4).value == pytest.approx(1 / 2, rel=0.2)


def test_an_unknown_axis_is_named_with_all_that_can_vary() -> None:
    with pytest.raises(
        ValueError, match=r"'batch_size'.*'experts', 'top_k'; got 'expert'. Did you mean 'experts'"
    ):
        swept({"expert": (2, 4)})
    with pytest.raises(ValueError, match="got 'width'"):
        swept({"width": (2, 4)})


def test_stored_trials_of_different_values_never_mix(tmp_path: Path) -> None:
    def best(make_model: Any, axes: dict[str, Any]) -> tuple[dict[float, float], int]:
        with nfd.Sweep(tmp_path) as sweep:
            answer = swept(axes, sweep, make_model)
            (name,) = axes
            found = {v: answer.best("standard", 4, 2, **{name: v}).value for v in axes[name]}
            return found, len(sweep.reused)

    first, reused = best(Steeper, {"experts": (2, 8)})
    assert reused == 0
    again, reused = best(Steeper, {"experts": (2, 8)})
    assert (again, reused > 0) == (first, True)
    assert first[8] == pytest.approx(first[2] / 4, rel=0.2)
    others, _ = best(Steeper, {"top_k": (2, 8)})
    assert others[8] > 8 * first[8]
    # the family's own keywords tell it apart too
    bound, _ = best(partial(Steeper, top_k=4), {"experts": (2, 8)})
    assert bound[8] == pytest.approx(4 * first[8], rel=0.2)


# ---- experts that learn nothing


def texts(steps: int, rows: int = 8, length: int = 16) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (steps, rows, length + 1), generator=draws)
    return [(part[:, :-1], part[:, 1:]) for part in ids]


def task(steps: int, rows: int = 8) -> nfd.Task:
    """Texts as long as the vocabulary is large, so that the axis of the classes must be said."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())

    return nfd.Task(texts(steps, rows), loss=loss)


def checked(steps: int = 4, rows: int = 8, seeds: int = 3, **about: Any) -> nfd.Check:
    make: Any = partial(Model, balanced=False, **about)
    settings: dict[str, Any] = {"rule": "mup", "optimizer": "adamw", "lr": 1e-3, "seeds": seeds}
    return nfd.check(make, task(steps, rows), [16, 32], [2], **settings, remedy=False)


def told(check: nfd.Check) -> dict[str, nfd.Failure]:
    own = {failure.event.kind: failure for failure in check.failures}
    return {kind: own[kind] for kind in ("experts-dead", "router-collapsed") if kind in own}


@pytest.mark.parametrize(
    ("kind", "router"), [("index", "linear"), ("bmm", "rows"), ("list", "linear")]
)
def test_experts_that_no_token_reaches_are_named(kind: str, router: str) -> None:
    found = told(checked(kind=kind, router=router, experts=8, top_k=2, among=6))
    assert found.keys() == {"experts-dead"}
    failure = found["experts-dead"]
    holder = "blocks.0.moe.experts" if kind == "list" else "blocks.0.moe"
    assert (failure.event.layer, failure.event.size, failure.event.step) == (
        f"expert 6 of {holder}",
        1 / 4,
        4,
    )
    assert failure.networks == failure.of == 6
    assert f"no token reached expert 6 of {holder}" in str(failure)


def test_experts_that_all_learn_are_not() -> None:
    for kind in ("bmm", "list"):
        assert not told(checked(kind=kind, experts=8, top_k=2, seeds=2))


class Favouring(nn.Linear):
    """A router whose first expert is ahead of all others."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores + 20 * nn.functional.one_hot(torch.tensor(0), scores.shape[-1])


def collapsing(width: int, depth: int, above: int = 0) -> nn.Module:
    """Routers collapse in networks that are wider than ``above``."""
    model = Model(width, depth, experts=8, top_k=2, balanced=False)
    for block in model.blocks if width > above else ():
        block.moe.router = Favouring(width, 8, bias=False)
    return model


@pytest.mark.parametrize(("above", "networks"), [(0, 6), (16, 3)])
def test_a_router_that_chooses_one_expert_is_named(above: int, networks: int) -> None:
    make: Any = partial(collapsing, above=above)
    options: Any = {"rule": "mup", "optimizer": "adamw", "lr": 1e-3, "remedy": False}
    check = nfd.check(make, task(4), [16, 32], [2], seeds=3, **options)
    failure = told(check)["router-collapsed"]
    assert failure.event.layer == "blocks.0.moe.router"
    assert failure.event.size == 1
    assert failure.networks == networks
    assert "chooses one expert first for 100% of the tokens" in str(failure)
    assert not check.ok


@pytest.mark.parametrize(
    ("experts", "top_k", "rows"), [(4, 1, 1), (16, 1, 8), (64, 1, 1), (64, 2, 8)]
)
def test_chance_is_not_taken_for_a_fault(experts: int, top_k: int, rows: int) -> None:
    """Of 64 experts and 16 tokens a step most have no token; no sound mixture is accused."""
    assert not told(checked(steps=2, rows=rows, experts=experts, top_k=top_k))


def test_a_gradient_that_is_not_asked_for_is_no_fault() -> None:
    def frozen(width: int, depth: int) -> nn.Module:
        model = Model(width, depth, kind="list", experts=4, balanced=False)
        for block in model.blocks:
            block.moe.experts[1].requires_grad_(False)
        return model

    options: Any = {"rule": "mup", "optimizer": "adamw", "lr": 1e-3, "remedy": False}
    check = nfd.check(frozen, task(4), [16, 32], [2], seeds=2, **options)
    assert not told(check)
    assert math.isfinite(check.runs[0]["loss"])


# ---- an expert that is unlike the others


def only_one_unlike(kind: str, width: int, depth: int) -> nn.Module:
    """A mixture of eight experts in each block, the third of which is unlike the others."""
    model = Model(width, depth, kind="list", experts=8)
    for block in model.blocks:
        expert = block.moe.experts[2]
        if kind == "another start":
            with torch.no_grad():
                expert[0].weight.mul_(10)
        elif kind == "frozen":
            expert.requires_grad_(False)
        elif kind == "another width":
            block.moe.experts[2] = feed_forward(width, 8 * width)
        elif kind == "shared":
            block.moe.experts[3] = expert
    return model


@pytest.mark.parametrize(
    "kind", ["like the others", "another start", "frozen", "another width", "shared"]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_one_unlike_expert_is_told_from_its_like(kind: str, device: str) -> None:
    make: Any = partial(only_one_unlike, kind)
    with torch.device(device):
        model = make(32, 2)
    plan = nfd.plan(model, rule="complete-p", make_model=make, base=(8, 2), sample=IDS)
    of = {e: f"blocks.1.moe.experts.{e}.0.weight" for e in range(8)}
    entries = {e: plan.entries[name] for e, name in of.items() if name in plan.entries}
    rest = [entry for e, entry in entries.items() if e != 2]
    unlike = entries[2]

    # a row and a rate for every expert, whatever stood for it
    assert len(entries) == (7 if kind == "shared" else 8)
    assert all(plan.rate(of[e]) == 1 / 4 for e in entries)
    assert {(entry.shape, entry.is_frozen, entry.role) for entry in rest} == {
        (rest[0].shape, False, "inner")
    }
    # eight draws of 8 x 16 numbers differ by a tenth or so
    stds = [entry.start.std for entry in rest]
    assert max(stds) < 1.5 * min(stds)

    assert (unlike.start.std > 5 * max(stds)) == (kind == "another start")
    assert unlike.is_frozen == (kind == "frozen")
    assert (unlike.shape != rest[0].shape) == (kind == "another width")
    assert (of[3] not in plan.entries) == (kind == "shared")
