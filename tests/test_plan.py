"""Plans: literal rates, roles of known and unknown models, what survives wrapping, and optimizers
that are made.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual, Transformer, gpt2, train
from torch import Tensor, nn
from torch.optim import lr_scheduler

import nfd
from nfd.scaling.optimizers import LAWS
from nfd.scaling.rules import RULES, SPECTRAL, Power, Role

M = 4.0
ELL = 9.0
TOKENS = torch.arange(12).view(2, 6) % 11
VECTORS = torch.linspace(-1, 1, 10).view(2, 5)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)
    )


def residual(
    width: int = 32, depth: int = 4, rule: str = "depth-mup", **options: Any
) -> tuple[nn.Module, nfd.Plan]:
    model = Residual(width, depth)
    options = {"make_model": Residual, "base": (16, 2), "sample": VECTORS} | options
    return model, nfd.plan(model, rule=rule, **options)


# ---- value: the table, written out

A = {"mup": 0.0, "depth-mup": 0.5, "depth-mup-inner": 0.5, "complete-p": 1.0}
MATRIX_STD = {
    "input": lambda a: 1,
    "hidden": lambda a: M**-0.5,
    "outer": lambda a: M**-0.5 * ELL**-a,
}
MATRIX_STD |= {
    "inner": lambda a: M**-0.5,
    "readout": lambda a: 1 / M,
    "embedding": lambda a: 1,
    "tied": lambda a: 1,
}


def expected_rate(role: str, rule: str, optimizer: str, *, vector: bool) -> float:
    """In width as in Tensor Programs V, Table 3 (Yang et al.), over fan-in and fan-out."""
    a = A[rule]
    aware = rule == "depth-mup-inner"
    ell = ELL if rule != "mup" else 1.0
    sgd = optimizer == "sgd"
    depth = {
        "outer": ell**-1,
        "inner": (ell**a if sgd else 1.0)
        if aware
        else (ell ** (2 * a - 1) if sgd else ell ** (a - 1)),
    }.get(role, 1.0)
    if vector:
        width = 1.0 if role == "readout" or not sgd else M
    elif role in ("input", "embedding", "tied"):
        width = M if sgd else 1.0
    elif role == "readout":
        width = 1 / M
    else:
        width = 1.0 if sgd or optimizer == "muon" else 1 / M
    return width * depth


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "lion", "muon"])
@pytest.mark.parametrize("rule", list(A))
@pytest.mark.parametrize(
    "role", ["input", "embedding", "tied", "hidden", "outer", "inner", "readout"]
)
def test_rates_are_those_of_the_table(role: Role, rule: str, optimizer: Any) -> None:
    chosen = RULES[rule]
    ell = ELL if rule != "mup" else 1.0
    fans = {"input": (1, M), "embedding": (1, M), "tied": (1, M), "readout": (M, 1)}.get(
        role, (M, M)
    )
    law = LAWS[optimizer] if optimizer != "muon" or role in SPECTRAL else LAWS["adamw"]
    assert chosen.rate(role, law).at(*fans, ELL) == pytest.approx(
        expected_rate(role, rule, optimizer, vector=False), rel=1e-12
    )
    assert chosen.std(role).at(*fans, ell) == pytest.approx(MATRIX_STD[role](A[rule]), rel=1e-12)
    epsilon = {"readout": 1.0, "inner": 1 / M * ell ** -A[rule]}.get(role, 1 / M)
    assert chosen.epsilon(role).at(*fans, ELL) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("rule", list(A))
def test_biases_follow_their_matrices(rule: str, optimizer: str) -> None:
    _, plan = residual(64, 18, rule, optimizer=optimizer)
    for name, role in (
        ("embed", "input"),
        ("blocks.3.up", "inner"),
        ("blocks.3.down", "outer"),
        ("head", "readout"),
    ):
        assert plan.roles[f"{name}.weight"] == plan.roles[f"{name}.bias"] == role
        expected = expected_rate(role, rule, optimizer, vector=True)
        assert plan.rate(f"{name}.bias") == pytest.approx(expected, rel=1e-12)
        expected = expected_rate(role, rule, optimizer, vector=False)
        assert plan.rate(f"{name}.weight") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rule", ["mup", "depth-mup", "depth-mup-inner", "complete-p", "standard"])
def test_at_the_base_nothing_changes(rule: str) -> None:
    model, plan = residual(16, 2, rule)
    assert all(
        plan.rate(name) == plan.epsilon(name) == plan.weight_decay(name) == 1
        for name in plan.entries
    )
    assert all(plan.factor(name, plan.powers(name)[0]) == 1 for name in plan.entries)
    groups = plan.param_groups(model, lr=0.01, weight_decay=0.1)
    # Matrices, and vectors.
    assert len(groups) == 2
    for group in groups:
        assert {k: group[k] for k in ("lr", "weight_decay", "eps")} == {
            "lr": 0.01,
            "weight_decay": 0.1,
            "eps": 1e-8,
        }
    assert not plan.multipliers


@pytest.mark.parametrize("rule", ["depth-mup", "depth-mup-inner", "complete-p"])
def test_the_networks_of_nfd_have_the_rates_of_their_own(rule: str) -> None:
    net = nfd.ResNet(
        5, 3, 16, 4, block="two-layer", branch_exponent=1.0 if rule == "complete-p" else 0.5
    )
    plan = nfd.plan(net, rule=rule, optimizer="sgd")
    own = {id(p): g["lr"] for g in net.param_groups(0.1, rule) for p in g["params"]}
    for group in plan.param_groups(net, lr=0.1):
        assert all(own[id(p)] == pytest.approx(group["lr"]) for p in group["params"])
    adam = nfd.plan(net, rule=rule, optimizer="adam")
    a = net.branch_exponent
    assert adam.rate("outer.0.weight") == pytest.approx(16**-0.5 * 4 ** (a - 1))
    assert adam.rate("inner.0.weight") == pytest.approx(
        16**-0.5 * (1 if rule == "depth-mup-inner" else 4 ** (a - 1))
    )
    assert adam.std("outer.2.weight") == adam.std("U") == 1
    doubled = nfd.plan(net, rule=rule, optimizer="sgd", base=(8, 4))
    assert doubled.rate("U") == 2


# ---- roles


def test_post_norm_models_have_width_rules_only() -> None:
    def post_norm(width: int, depth: int) -> nn.Module:
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2), depth, enable_nested_tensor=False
        )

    sizes: dict[str, Any] = {
        "make_model": post_norm,
        "base": (16, 2),
        "sample": torch.randn(3, 2, 32),
    }
    plan = nfd.plan(post_norm(32, 2), rule="mup", **sizes)
    assert plan.roles["layers.0.linear2.weight"] == "hidden"
    noted = [
        any("heads are assumed to keep their size" in note for note in p.notes)
        for p in (plan, residual()[1])
    ]
    assert noted == [True, False]
    assert "1/d" in plan.explain()
    with pytest.raises(
        ValueError, match=r"goes through NativeLayerNorm(?s:.*)rule='mup'(?s:.*)norm_first=True"
    ):
        nfd.plan(post_norm(32, 2), rule="depth-mup", **sizes)


def test_what_cannot_be_decided_is_asked() -> None:
    model = Residual(32, 4)
    with pytest.raises(
        ValueError, match=r"cannot decide.*:\n  blocks.\*.up.weight: no sample.*(\n.*)*roles="
    ):
        nfd.plan(model, make_model=Residual, base=(16, 2))
    roles = {"blocks.*.up.*": "inner", "blocks.*.down.*": "outer"}
    by_hand = nfd.plan(model, make_model=Residual, base=(16, 2), roles=roles)
    assert by_hand.roles == nfd.plan(model, base=Residual(16, 2), sample=VECTORS).roles
    with pytest.raises(ValueError, match="needs residual blocks"):
        nfd.plan(mlp(32), base=mlp(8))

    class Bare(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, width))

    with pytest.raises(ValueError, match="w: a bare parameter: input, embedding or readout"):
        nfd.plan(Bare(8, 1), rule="mup", make_model=Bare, base=(4, 1))
    plan = nfd.plan(Bare(8, 1), rule="mup", make_model=Bare, base=(4, 1), roles={"w": "readout"})
    assert plan.rate("w") == 0.5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Pass base="),
        ({"base": (4, 2)}, "with make_model="),
        ({"rule": "depthmup", "base": (4, None)}, "Did you mean 'depth-mup'"),
        ({"optimizer": "adamx", "base": (4, None)}, "optimizer must be one of"),
        ({"base": (0, None)}, "the width of base must be at least 1"),
        (
            {"make_model": Residual, "base": (4, 2), "blocks": "layers.*"},
            r"no match for 'layers.\*'.*blocks.\*",
        ),
        (
            {"make_model": Residual, "base": (4, 2), "roles": {"up.*": "inner"}},
            r"no match for 'up.\*'. Did you mean '\*\*.up.\*'\? Names look like",
        ),
        ({"base": (4, 2), "roles": {"head.*": "output"}}, "must be one of"),
        ({"make_model": Residual}, "make_model needs base="),
        (
            {"make_model": lambda w, d: 3, "base": (4, None)},
            "must return a torch.nn.Module; got int",
        ),
        ({"base": Residual(8, 2), "make_model": Residual}, "pass it alone"),
        ({"rule": "ntk", "base": (4, None)}, "nfd.ResNet"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        nfd.plan(Residual(32, 4), **{"sample": VECTORS} | options)


def test_a_rule_for_another_multiplier_is_refused() -> None:
    with pytest.raises(ValueError, match="branch_exponent=1"):
        nfd.plan(nfd.ResNet(5, 3, 8, 2), rule="complete-p")


def test_a_model_with_deferred_layers_is_refused_by_name() -> None:
    """D, [0, 0] at the start, was planned as a matrix, and drawn by ``apply_``."""

    def mixed(
        width: int, depth: int, linear: Callable[[int, int], nn.Module] = nfd.DeferredLinear
    ) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, width), *[linear(width, width) for _ in range(depth)], nn.Linear(width, 3)
        )

    own = nfd.ResNet(5, 3, 8, 2, weights="deferred")
    for model, names in ((own, "'outer.0', 'outer.1'"), (mixed(8, 4), "'1', '2', '3' and 1 more")):
        with pytest.raises(ValueError, match=f"these layers are deferred: {names}"):
            nfd.plan(model, rule="mup", make_model=mixed, base=(4, None))
    with pytest.raises(ValueError, match=r"deferred: '1'\."):
        nfd.plan(mixed(8, 1, nn.Linear), rule="mup", base=mixed(8, 1))
    dense = mixed(8, 1, nn.Linear)
    plan = nfd.plan(dense, rule="mup", base=mixed(4, 1, nn.Linear))
    layer = mixed(8, 1)
    with pytest.raises(ValueError, match=r"Let nfd\.defer\(model, plan\) make its layer"):
        plan.apply_(mixed(8, 1, lambda n, m: nfd.DeferredLinear(n, m, bias=True)))
    with pytest.raises(ValueError, match=r"missing: '1\.bias'"):
        plan.apply_(layer)
    with pytest.raises(ValueError, match="'adamw' acts on every entry"):
        plan.param_groups(mixed(8, 1, lambda n, m: nfd.DeferredLinear(n, m, bias=True)), lr=0.1)
    with pytest.raises(ValueError, match="these layers are deferred"):
        nfd.check(
            mixed, [(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))], [8, 16], [1], rule="mup"
        )


class Routed(nn.Module):
    """Two experts, of which the sample reaches one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.as_tensor(self.experts[0](torch.relu(self.up(h))))


def test_an_expert_that_did_not_run_has_the_role_of_another() -> None:
    def make(width: int, depth: int) -> nn.Module:
        ends = nn.LayerNorm(width), nn.Linear(width, 3)
        return nn.Sequential(nn.Linear(5, width), *(Routed(width) for _ in range(depth)), *ends)

    roles = nfd.plan(make(32, 4), make_model=make, base=(16, 2), sample=VECTORS).roles
    assert [roles[f"2.experts.{k}.weight"] for k in range(2)] == ["outer", "outer"]


# ---- using a plan


def test_rate_times_decay_is_that_of_the_base_unless_a_tensor_is_spared() -> None:
    model, plan = residual()
    for group in plan.param_groups(model, lr=0.01, weight_decay=0.1):
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.1 * 0.01)
    bare = plan.param_groups(model, lr=0.01, weight_decay=0.1, no_decay=("**.bias",))
    assert any(g["weight_decay"] == 0 and all(p.dim() == 1 for p in g["params"]) for g in bare)
    spared = plan.param_groups(model, lr=0.01, weight_decay=0.1, no_decay="vectors")
    assert all((g["weight_decay"] == 0) == (p.dim() == 1) for g in spared for p in g["params"])


def test_adam_refuses_a_decay_that_no_size_keeps() -> None:
    model, plan = residual(optimizer="adam")
    with pytest.raises(ValueError, match="adamw"):
        plan.param_groups(model, lr=0.1, weight_decay=0.1)


def test_a_plan_is_stored_and_read(tmp_path: Path) -> None:
    model, plan = residual()
    plan.save(tmp_path / "plan.json")
    assert nfd.Plan.load(tmp_path / "plan.json") == plan
    torch.save({"model": model.state_dict(), "plan": plan.to_dict()}, tmp_path / "checkpoint.pt")
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert nfd.Plan.from_dict(stored["plan"]) == plan
    for text in (
        "",
        "[]",
        "{}",
        '{"format": 1}',
        json.dumps(plan.to_dict() | {"depth": "2"}),
        "[" * 100_000,
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match="plan"):
            nfd.Plan.load(tmp_path / "bad.json")


def test_another_model_is_refused() -> None:
    _, plan = residual()
    with pytest.raises(
        ValueError, match=r"not the one planned: missing: 'blocks.3.*not planned|missing"
    ):
        plan.param_groups(Residual(32, 3), lr=0.1)
    with pytest.raises(ValueError, match="was planned as"):
        plan.apply_(Residual(64, 4))


def test_groups_survive_copies_compilation_and_schedulers() -> None:
    model, plan = residual()
    frozen = copy.deepcopy(model)
    frozen.embed.weight.requires_grad_(False)
    named = {id(p): n for n, p in frozen.named_parameters()}
    assert "embed.weight" not in {
        named[id(p)] for g in plan.param_groups(frozen, lr=0.1) for p in g["params"]
    }
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(plan.param_groups(compiled, lr=0.1))
    before = [g["lr"] for g in optimizer.param_groups]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([lr / 2 for lr in before])


def test_the_explanation_says_what_was_decided_and_why() -> None:
    text = nfd.plan(WITHOUT_GAIN(32, 4), base=WITHOUT_GAIN(16, 2), sample=TOKENS).explain()
    assert "layers.*.d.weight x4" in text
    assert "writes the residual stream" in text
    assert "in^-1 l^-1 = 0.25" in text
    assert "multiplier  head: 0.5" in text
    assert "clip" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("note")) <= 200


# ---- what must be asked, kept or told apart


def test_a_head_registered_before_its_embedding_is_tied_all_the_same() -> None:
    class HeadFirst(Transformer):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            tokens = self.tokens
            del self.tokens
            self.head = nn.Linear(width, 11, bias=False)
            self.tokens = tokens
            self.head.weight = tokens.weight
            self._modules = {"head": self._modules.pop("head"), **self._modules}

    plan = nfd.plan(HeadFirst(64, 2), rule="mup", make_model=HeadFirst, base=(16, 2), sample=TOKENS)
    assert plan.roles["head.weight"] == "tied"
    assert plan.entries["head.weight"].ratios.fan_out == 4
    assert plan.constant("norm.weight") == 0.25


def test_planning_leaves_modes_and_random_numbers_alone() -> None:
    model = Residual(32, 3)
    model.head.eval()
    state = torch.get_rng_state()
    nfd.plan(model, make_model=Residual, base=(16, 3), sample=VECTORS)
    assert model.training
    assert not model.head.training
    assert torch.equal(state, torch.get_rng_state())


def test_transposed_grouped_and_bilinear_fans() -> None:
    class Fans(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(width, width, 3, groups=width)
            self.pair = nn.Bilinear(width, width, width)
            self.gate = nn.Parameter(torch.randn(8, width))

    plan = nfd.plan(
        Fans(32, 1),
        rule="mup",
        make_model=Fans,
        base=(8, 1),
        roles={"gate": "hidden", "up.*": "hidden"},
    )
    found = {name: (e.ratios.fan_in, e.ratios.fan_out) for name, e in plan.entries.items()}
    assert found["up.weight"] == (1, 4)
    assert found["pair.weight"] == (16, 4)
    assert found["gate"] == (4, 1)


def test_a_plan_does_not_depend_on_where_the_random_stream_stands() -> None:
    """The base is made from a seed of its own, so that two plans of one model start it alike."""
    model = Residual(32, 4)
    sample = torch.randn(2, 5)
    plans = []
    for _ in range(2):
        plans.append(nfd.plan(model, rule="mup", make_model=Residual, base=(8, 2), sample=sample))
        torch.randn(7)
    assert [plans[0].std(name) for name in plans[0].entries] == [
        plans[1].std(name) for name in plans[1].entries
    ]


_BASES = [{"base": (8, 2)}, {"base": (8, None)}, {"base": (4, 4)}]


@pytest.mark.parametrize("sizes", _BASES)
def test_a_constructor_with_swapped_arguments_is_refused(sizes: dict[str, int]) -> None:
    model = Residual(16, 4)
    sample = torch.zeros(2, 5)
    assert (
        nfd.plan(model, make_model=Residual, sample=sample, **sizes).width == 16 / sizes["base"][0]
    )
    with pytest.raises(ValueError, match=r"are they \(depth, width\)"):
        nfd.plan(model, make_model=lambda d, w: Residual(w, d), sample=sample, **sizes)


def test_a_constructor_of_networks_of_nfd_is_asked_for_their_base() -> None:
    net = nfd.ResNet(5, 3, 16, 4)
    planned = nfd.plan(net, make_model=lambda w, d: nfd.ResNet(5, 3, 2 * w, d), base=(4, 2))
    assert (planned.width, planned.depth) == (2, 2)
    with pytest.raises(ValueError, match=r"are they \(depth, width\)"):
        nfd.plan(net, make_model=lambda d, w: nfd.ResNet(5, 3, w, d), base=(4, 2))
    with pytest.raises(ValueError, match="Build both alike"):
        nfd.plan(net, make_model=Residual, base=(4, 2))


def test_a_sample_that_is_not_finite_is_refused_wherever_it_stands() -> None:
    bad = torch.full((2, 5), float("nan"))
    for sample in (bad, (bad,), {"x": bad}):
        with pytest.raises(ValueError, match="must be finite"):
            nfd.plan(Residual(16, 4), base=Residual(8, 2), sample=sample)


class ByDepth(Transformer):
    """Its writing matrices begin at 0.02 / sqrt(2L), as those of GPT-2."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        for layer in self.layers:
            for matrix, std in ((layer.a, 0.02), (layer.b, 0.02 * (2 * depth) ** -0.5)):
                nn.init.normal_(matrix.weight, std=std)


def test_a_start_that_depends_on_depth_is_kept_under_mup() -> None:
    model = ByDepth(64, 32)
    sizes = {"make_model": ByDepth, "base": (32, 2)}
    plan = nfd.plan(model, rule="mup", sample=TOKENS, **sizes)
    base = nfd.plan(ByDepth(32, 2), rule="mup", sample=TOKENS, **sizes)
    for matrix, power in (("a", 0), ("b", 0.5), ("d", 0)):
        name = f"layers.1.{matrix}.weight"
        ratio = plan.std(name) / base.std(name)
        assert ratio == pytest.approx(2**-0.5 * (2 / 32) ** power, rel=0.05)
        assert all(plan.std(f"layers.{k}.{matrix}.weight") == plan.std(name) for k in range(32))
    (note,) = (note for note in plan.notes if "by depth" in note)
    assert "layers.0.b.weight" in note
    assert "layers.0.a.weight" not in note
    given = nfd.plan(model, rule="mup", base=ByDepth(32, 2), sample=TOKENS)
    assert any("pass make_model=, and that is kept" in note for note in given.notes)
    deep_rule = nfd.plan(model, rule="depth-mup", sample=TOKENS, **sizes)
    assert deep_rule.std("layers.1.b.weight") == pytest.approx(
        2**-0.5 * (2 / 32) ** 0.5 * base.std("layers.1.b.weight")
    )
    assert not any("by depth" in note for note in (*deep_rule.notes, *base.notes))


# ---- an embedding that is the head: its factor in the norm that feeds it alone, or in a wrapper

WRAPPED = "is the head as well, and no affine norm is seen to feed it alone"


class Tied(Transformer):
    """A Transformer whose embedding is its head, behind a norm of one's own."""

    def __init__(
        self, width: int, depth: int, norm: Callable[[int], nn.Module] = nn.LayerNorm
    ) -> None:
        super().__init__(width, depth, tied=True)
        self.norm = norm(width)


class RMSNorm(nn.Module):
    """As Llama's: the gain, which may be stored as ``1 + g``, times a normalised copy of another
    type.
    """

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        z = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        gain = self.weight + self.offset if self.offset else self.weight
        return gain * z.to(x.dtype)


class TwoHeads(Tied):
    """Another head reads the same norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.value = nn.Linear(width, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(super().features(ids))
        return self.head(x) + self.value(x)


class NormTwice(Tied):
    """The norm acts on embeddings, too."""

    def features(self, ids: Tensor) -> Tensor:
        return nn.Sequential(self.norm, *self.layers)(self.tokens(ids))  # type: ignore[no-any-return]


class Shown(Tied):
    """The normalised stream is an output, too."""

    def forward(self, ids: Tensor) -> Any:
        x = self.norm(super().features(ids))
        return self.head(x), x


LLAMA, GEMMA = (partial(Tied, norm=partial(RMSNorm, offset=offset)) for offset in (0.0, 1.0))
WITHOUT_GAIN = partial(Tied, norm=partial(nn.LayerNorm, elementwise_affine=False))
FROZEN = partial(Tied, norm=lambda width: nn.LayerNorm(width).requires_grad_(requires_grad=False))


def tied(make: Any, optimizer: str = "adamw") -> tuple[nn.Module, nfd.Plan]:
    torch.manual_seed(0)
    model = make(64, 2)
    sizes: dict[str, Any] = {"make_model": make, "base": (16, 2)}
    return model, nfd.plan(model, rule="mup", optimizer=optimizer, sample=TOKENS, **sizes)


@pytest.mark.parametrize(
    ("make", "norm"), [(Tied, {"norm.weight", "norm.bias"}), (LLAMA, {"norm.weight"})]
)
def test_a_norm_that_feeds_the_head_alone_takes_its_factor(make: Any, norm: set[str]) -> None:
    _, plan = tied(make)
    assert not plan.multipliers
    assert {name for name, entry in plan.entries.items() if entry.multiplier != Power()} == norm
    assert plan.constant("norm.weight") == 0.25
    assert all(
        (plan.rate(name), plan.weight_decay(name), plan.epsilon(name)) == (0.25, 4, 1)
        for name in norm
    )


@pytest.mark.parametrize("make", [GEMMA, WITHOUT_GAIN, TwoHeads, NormTwice, Shown, FROZEN])
def test_a_head_is_wrapped_where_no_norm_can_take_its_factor(make: Any) -> None:
    _, plan = tied(make)
    assert plan.multipliers == {"head": 0.25}
    assert any(WRAPPED in note for note in plan.notes)


def test_without_a_sample_the_head_is_wrapped_and_a_note_asks_for_one() -> None:
    plan = nfd.plan(Tied(64, 2), rule="mup", make_model=Tied, base=(16, 2))
    assert plan.multipliers == {"head": 0.25}
    assert any(WRAPPED in note and "sample=" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("optimizer", "decay"), [("adamw", 0.1), ("adam", 0.0), ("sgd", 0.1), ("muon", 0.1)]
)
def test_both_ways_train_the_same_function(optimizer: str, decay: float) -> None:
    """Thirty steps, bit for bit: the ratio of widths is a power of two."""
    model, folded = tied(Tied, optimizer)
    entries = {name: replace(entry, multiplier=Power()) for name, entry in folded.entries.items()}
    wrapped = replace(folded, entries=entries, multipliers={"head": 0.25})
    losses = []
    for plan in (folded, wrapped):
        own = plan.apply_(copy.deepcopy(model), seed=3)
        optimizer_of_plan = plan.make_optimizer(own, lr=0.01, weight_decay=decay)
        losses.append(train(own, optimizer_of_plan, [(TOKENS, TOKENS.roll(1, 1))] * 30))
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_a_folded_model_is_saved_and_loaded_as_it_is(tmp_path: Path) -> None:
    """By Hugging Face's own methods, with no wrapper that they could lose."""
    model: Any = gpt2(32, 2)
    nfd.plan(model, rule="mup", make_model=gpt2, base=(16, 2)).apply_(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(
        loaded.eval()(TOKENS).logits, model.eval()(TOKENS).logits, rtol=0, atol=0
    )


def test_a_checkpoint_of_a_wrapped_model_is_loaded_after_the_plan(tmp_path: Path) -> None:
    model, plan = tied(WITHOUT_GAIN)
    plan.apply_(model).eval()
    plan.save(tmp_path / "plan.json")
    loaded = nfd.Plan.load(tmp_path / "plan.json").apply_(WITHOUT_GAIN(64, 2), seed=1).eval()
    loaded.load_state_dict(model.state_dict())
    torch.testing.assert_close(loaded(TOKENS), model(TOKENS), rtol=0, atol=0)


INPUTS = torch.linspace(-1, 1, 40).view(8, 5)
LABELS = torch.arange(8) % 3


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> list[float]:
    return train(model, optimizer, [(INPUTS, LABELS)] * count)


# ---- apply_


def test_applying_a_plan_inserts_its_multipliers_once() -> None:
    model, plan = tied(WITHOUT_GAIN)
    by_hand = copy.deepcopy(model)
    replace(plan, multipliers={}).apply_(by_hand, seed=3)
    by_hand.head = nfd.Scaled(by_hand.head, plan.multipliers["head"])
    assert plan.apply_(model, seed=3) is model
    assert torch.equal(model(TOKENS), by_hand(TOKENS))
    assert model.head.weight is model.tokens.weight
    before = model(TOKENS)
    plan.apply_(model, seed=3)  # the multiplier is not inserted twice
    assert torch.equal(model(TOKENS), before)
    plan.apply_(model, seed=4)
    assert not torch.equal(model(TOKENS), before)
    assert plan.param_groups(model, lr=0.1)


# ---- make_optimizer


def test_options_of_another_optimizer_are_refused() -> None:
    model, plan = residual(rule="complete-p", optimizer="adamw")
    with pytest.raises(
        ValueError, match=r"optimizer='adamw' has no option 'momentum'.*option of 'sgd' or 'muon'"
    ):
        plan.make_optimizer(model, lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="make takes no option 'momentum'"):
        plan.make_optimizer(
            model, lr=0.1, momentum=0.9, make=lambda groups: torch.optim.AdamW(groups)
        )
    with pytest.raises(ValueError, match="adamw_lr is for what Muon leaves"):
        plan.make_optimizer(model, lr=0.1, adamw_lr=0.1)
    with pytest.raises(ValueError, match="eps is Adam's"):
        residual(rule="complete-p", optimizer="sgd")[1].param_groups(model, lr=0.1, eps=1e-6)
    assert (
        "eps" not in residual(rule="complete-p", optimizer="sgd")[1].param_groups(model, lr=0.1)[0]
    )
    with pytest.raises(ValueError, match="adamw_lr must be at least 0"):
        residual(rule="complete-p", optimizer="muon")[1].make_optimizer(
            model, lr=0.1, adamw_lr=-0.1
        )
    with pytest.raises(
        ValueError, match=r"optimizer='lion' is not built here.*make= of plan.make_optimizer"
    ):
        residual(rule="complete-p", optimizer="lion")[1].make_optimizer(model, lr=0.1)


# ---- Muon and AdamW as one


def muon(**options: Any) -> tuple[Residual, torch.optim.Optimizer, nfd.Plan]:
    model, plan = residual(rule="complete-p", optimizer="muon")
    plan.apply_(model, seed=1)
    made = {"lr": 0.02, "adamw_lr": 0.003, "weight_decay": 0.1} | options
    return model, plan.make_optimizer(model, **made), plan


def test_muon_and_adamw_step_as_they_would_apart() -> None:
    model, ready, plan = muon(momentum=0.9, betas=(0.8, 0.9))
    twin = copy.deepcopy(model)
    groups = plan.param_groups(twin, lr=0.02, adamw_lr=0.003, weight_decay=0.1)
    apart = [
        torch.optim.Muon([g for g in groups if g["use_muon"]], momentum=0.9),
        torch.optim.AdamW([g for g in groups if not g["use_muon"]], betas=(0.8, 0.9)),
    ]
    losses = steps(model, ready, 5)
    for expected in losses:
        for optimizer in apart:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(INPUTS), LABELS)
        loss.backward()
        for optimizer in apart:
            optimizer.step()
        assert float(loss.detach()) == expected
    assert losses[-1] < losses[0]


def test_two_rates_and_a_scaled_epsilon() -> None:
    model, ready, plan = muon()
    names = {id(p): name for name, p in model.named_parameters()}
    for group in ready.param_groups:
        for p in group["params"]:
            name = names[id(p)]
            assert group["lr"] == pytest.approx(
                (0.02 if group["use_muon"] else 0.003) * plan.rate(name)
            )
            if not group["use_muon"]:
                assert group["eps"] == pytest.approx(1e-8 * plan.epsilon(name))
    assert {g["use_muon"] for g in ready.param_groups} == {True, False}
    one_rate = plan.make_optimizer(model, lr=0.02)
    assert {g["lr"] for g in one_rate.param_groups if "input" in g["roles"]} == {0.02}


def test_the_state_of_both_is_saved_and_loaded() -> None:
    model, ready, _ = muon()
    steps(model, ready, 3)
    saved = copy.deepcopy(ready.state_dict())
    weights = copy.deepcopy(model.state_dict())
    expected = steps(model, ready, 3)
    again, other, _ = muon()
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    assert steps(again, other, 3) == expected
    assert len(saved["state"]) == len(list(model.parameters()))
    fresh, forgetful, _ = muon()
    fresh.load_state_dict(weights)
    assert steps(fresh, forgetful, 3) != expected
    with pytest.raises(ValueError, match="groups of parameters; expected"):
        other.load_state_dict({"state": {}, "param_groups": []})


# ---- the ratios of its rates: kept by schedules that multiply, and missed where something else
# sets rates

STEPS = 6

Scheduler = Callable[[torch.optim.Optimizer], Callable[[], None]]


def one_cycle(optimizer: torch.optim.Optimizer, rates: Any) -> Callable[[], None]:
    return lr_scheduler.OneCycleLR(
        optimizer, max_lr=rates, total_steps=STEPS + 1, cycle_momentum=False
    ).step


def loop(
    optimizer: torch.optim.Optimizer, rate: Callable[[dict[str, Any]], float]
) -> Callable[[], None]:
    def step() -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate(group)

    return step


def by_timm(optimizer: torch.optim.Optimizer, has_base_rates: bool) -> Callable[[], None]:
    """What a scheduler of timm does, which multiplies the first rates by ``lr_scale``."""
    for group in optimizer.param_groups:
        if has_base_rates:
            group["lr"] /= group["lr_scale"]
        group["initial_lr"] = group["lr"]
    step = loop(optimizer, lambda group: group["initial_lr"] * group["lr_scale"])
    step()
    return step


KEPT: dict[str, Scheduler] = {
    "a warm-up from zero": lambda o: (
        lr_scheduler.LambdaLR(o, lr_lambda=lambda step: step / STEPS).step
    ),
    "a cosine to zero": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS).step,
    "one cycle with a peak for each group": lambda o: one_cycle(
        o, [group["lr"] for group in o.param_groups]
    ),
    "a loop that multiplies by lr_scale": lambda o: loop(
        o, lambda group: 0.003 * group["lr_scale"]
    ),
    "one that multiplies by lr_scale, of the base's rates": lambda o: by_timm(o, True),
}
LOST: dict[str, Scheduler] = {
    "one peak for all groups": lambda o: one_cycle(o, 0.01),
    "a cosine to a rate of its own": lambda o: (
        lr_scheduler.CosineAnnealingLR(o, T_max=STEPS, eta_min=1e-3).step
    ),
    "a loop that sets one rate": lambda o: loop(o, lambda group: 0.003),
    "one that multiplies by lr_scale once more": lambda o: by_timm(o, False),
}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_lost_ratios_are_warned_of_once(name: str, optimizer: str) -> None:
    model, plan = residual(rule="complete-p", optimizer=optimizer)
    made = plan.make_optimizer(
        model, lr=0.003, **({"adamw_lr": 0.001} if optimizer == "muon" else {})
    )
    advance = (KEPT | LOST)[name](made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            steps(model, made, 1)
            advance()
    warned = [str(warning.message) for warning in caught if "the plan's" in str(warning.message)]
    assert len(warned) == (name in LOST)
    if name in LOST:
        words = ("max_lr=[", "eta_min", "lr * group", "/= group")
        named = dict(zip(LOST, words, strict=True))[name]
        assert [word for word in words if word in warned[0]] == [named]
        with pytest.raises(ValueError, match=r"no longer the plan's: groups \d+ and \d+"):
            plan.check_rates(made)
    else:
        plan.check_rates(made)


def test_a_plan_shows_itself_in_a_notebook_and_gives_its_table() -> None:
    model = Residual(32, 2)
    plan = nfd.plan(model, (8, 2), make_model=Residual, sample=torch.randn(2, 5))
    assert repr(plan).startswith("<Plan: ✓ Planned: Train width 32, depth 2 by this plan")
    assert str(plan) == plan.explain()
    assert "plan.apply_(model, seed=0)" in plan._repr_html_()
    row = next(row for row in plan.table if plan.rate(row["tensor"]) != 1)
    assert row["rate"] == plan.rate(row["tensor"])
    assert [*row] == ["tensor", "role", "std", "rate", "epsilon", "weight_decay"]
    with pytest.raises(ValueError, match="has no chart"):
        plan.plot()
