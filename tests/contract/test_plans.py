"""What a plan makes of models that others write: computed matrices, blocks in any container,
tensors with structure.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import nfd

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
Wrap = Callable[[nn.Module], nn.Module]
Make = Callable[[int, int], nn.Module]


def planned(
    make: Make, width: int = 32, depth: int = 8, **options: Any
) -> tuple[nn.Module, nfd.Plan]:
    """A model four times as wide and as deep as its base, and its plan."""
    model = make(width, depth)
    sizes = {"make_model": make, "base": (8, 2), "sample": X}
    return model, nfd.plan(model, **{"rule": "complete-p", **sizes, **options})


def bare(module: nn.Module) -> nn.Module:
    return module


class Block(nn.Module):
    """A residual block with so many times the features inside."""

    inside = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, self.inside * width)
        self.down = nn.Linear(self.inside * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Named(nn.Module):
    """Embedding, blocks and head by names of their own."""

    def __init__(self, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.Sequential(self.embed, *self.blocks, self.norm, self.head)(x)


def residual(branch: Wrap = bare, head: Wrap = bare, kind: type[nn.Linear] = nn.Linear) -> Make:
    """A constructor of networks whose blocks end, and that end themselves, with a matrix that may
    be wrapped.
    """

    def make(width: int, depth: int) -> nn.Module:
        model = Named(width, [Block(width) for _ in range(depth)])
        for block in model.blocks:
            block.down = branch(kind(width, width))
        model.head = head(model.head)
        return model

    return make


# ---- matrices that are computed from other parameters


def old(wrap: Callable[..., Any]) -> Wrap:
    """Without PyTorch's warning that it is old."""

    def wrapped(module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(module)

    return wrapped


class LowRank(nn.Module):
    """A parametrization of the user's own: the matrix and a product of two small ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, width))
        self.b = nn.Parameter(torch.zeros(width, 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x)


class PositiveShift(nn.Linear):
    """Its bias is positive, and added in its own code."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) + functional.softplus(self.bias)


def low_rank(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", LowRank(module.in_features))
    return module


WRAPS = {
    "WeightNorm, old": old(weight_norm),
    "WeightNorm": parametrizations.weight_norm,
    "SpectralNorm, old": old(spectral_norm),
    "SpectralNorm": parametrizations.spectral_norm,
    "Orthogonal": parametrizations.orthogonal,
    "LowRank": low_rank,
}


@pytest.mark.parametrize("rule", ["mup", "complete-p"])
@pytest.mark.parametrize("name", list(WRAPS))
def test_a_parametrized_matrix_is_refused_by_name(name: str, rule: str) -> None:
    kind = name.split(",")[0]
    with pytest.raises(
        ValueError, match=rf"blocks\.\*\.down\.weight by {kind}.*remove_parametrizations"
    ):
        planned(residual(branch=WRAPS[name]), rule=rule)
    if name != "LowRank":  # which is square
        with pytest.raises(ValueError, match=rf"head\.weight by {kind}"):
            planned(residual(head=WRAPS[name]), rule=rule)
    with pytest.raises(ValueError, match=rf"down\.weight by {kind}"):
        nfd.check(
            residual(branch=WRAPS[name]), [(X, torch.zeros(4, 3))], [8, 16], [2], 0.1, rule=rule
        )


def test_what_stands_beside_or_is_only_masked_is_planned_as_before() -> None:
    """Vectors, frozen matrices and pruned ones; and every parametrization that was removed
    again.
    """

    def masked(module: nn.Module) -> nn.Module:
        return prune.random_unstructured(module, "weight", 0.5)

    def positive(module: nn.Module) -> nn.Module:
        return parametrize.register_parametrization(module, "bias", Positive())

    def removed(module: nn.Module) -> nn.Module:
        return parametrize.remove_parametrizations(parametrizations.weight_norm(module), "weight")

    def frozen(module: nn.Module) -> nn.Module:
        return parametrizations.spectral_norm(module).requires_grad_(False)

    for wrap, name in ((masked, "weight_orig"), (removed, "weight")):
        model, plan = planned(residual(branch=wrap))
        assert plan.roles[f"blocks.1.down.{name}"] == "outer"
        start = plan.entries[f"blocks.1.down.{name}"].start.std
        # by depth and width
        assert plan.std(f"blocks.1.down.{name}") == pytest.approx(start / 4 / 2)
        assert torch.isfinite(plan.apply_(model)(X)).all()
    # no tensor scales that bias
    for make in (residual(branch=positive), residual(kind=PositiveShift)):
        assert planned(make)[1].multipliers["blocks.1.down"] == 1 / 4
    assert planned(residual(branch=frozen))[1].roles["blocks.1.up.weight"] == "inner"


def test_the_standard_rule_leaves_parametrized_matrices_as_they_are() -> None:
    model, plan = planned(residual(branch=parametrizations.weight_norm), rule="standard")
    before = model.get_submodule("blocks.1.down").weight.clone()
    plan.apply_(model, seed=1)
    assert torch.equal(model.get_submodule("blocks.1.down").weight, before)


class ByHandNormed(nn.Linear):
    """Its rows are normalised in its own code."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight / self.weight.norm(dim=1, keepdim=True), self.bias)


class ByHandSpectral(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        direction = functional.normalize(torch.ones(self.in_features), dim=0)
        return functional.linear(x, self.weight / (self.weight @ direction).norm(), self.bias)


def ratio_of_branches(make: Make, depth: int) -> float:
    """The RMS of what a planned network's blocks add, over that of the stream they add it to."""
    torch.manual_seed(0)
    model, plan = planned(make, depth=depth)
    plan.apply_(model)
    ratios = []

    def see(_module: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        ratios.append(float((out - args[0]).norm() / args[0].norm()))

    for block in model.get_submodule("blocks").children():
        block.register_forward_hook(see)
    with torch.no_grad():
        model(X)
    return max(ratios)


@pytest.mark.parametrize("kind", [nn.Linear, ByHandNormed, ByHandSpectral])
def test_a_branch_shrinks_with_depth_however_its_matrix_is_written(kind: type[nn.Linear]) -> None:
    """A bias behind a matrix that is normalised was taken for what writes the stream, and the
    matrix was not scaled.
    """
    make = residual(kind=kind)
    assert ratio_of_branches(make, 32) / ratio_of_branches(make, 2) == pytest.approx(
        1 / 16, rel=0.35
    )


# ---- blocks in any container


class Mixer(Block):
    """A block of another kind, with tensors of the same names and other shapes."""

    inside = 2


class NoSkip(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def kinds(width: int, depth: int, alternating: bool) -> list[nn.Module]:
    """Two blocks a unit of depth where two kinds alternate."""
    return [
        kind(width) for _ in range(depth) for kind in ((Block, Mixer) if alternating else (Block,))
    ]


def sequential(width: int, depth: int, alternating: bool = False) -> nn.Module:
    ends = nn.LayerNorm(width), nn.Linear(width, 3)
    return nn.Sequential(nn.Linear(5, width), *kinds(width, depth, alternating), *ends)


def by_key(width: int, depth: int, alternating: bool = False) -> nn.Module:
    blocks = {f"block{k}": block for k, block in enumerate(kinds(width, depth, alternating))}
    return nn.Sequential(
        OrderedDict(
            embed=nn.Linear(5, width), **blocks, norm=nn.LayerNorm(width), head=nn.Linear(width, 3)
        )
    )


def numbers(plan: nfd.Plan) -> list[tuple[Any, ...]]:
    """What a plan says of every tensor, in the order of the model."""
    return [
        (plan.roles[n], plan.factor(n, plan.powers(n).std), plan.rate(n), plan.weight_decay(n))
        for n in plan.roles
    ]


def on_meta(make: Make, width: int = 32, depth: int = 8) -> nn.Module:
    with torch.device("meta"):
        return make(width, depth)


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("make", [sequential, by_key])
def test_a_network_in_one_sequential_has_the_plan_of_one_with_named_parts(
    make: Any, alternating: bool
) -> None:
    """Whatever says what the base is; the head has another number in the base, and kinds that share
    names are apart.
    """

    def own(width: int, depth: int) -> nn.Module:
        return make(width, depth, alternating)

    expected = planned(lambda width, depth: Named(width, kinds(width, depth, alternating)))[1]
    _, plan = planned(own)
    assert numbers(plan) == numbers(expected)
    matrices = [
        entry for name, entry in plan.entries.items() if name.endswith(("up.weight", "down.weight"))
    ]
    assert {(entry.ratios.fan_in, entry.ratios.fan_out) for entry in matrices} == {(4, 4)}
    assert (plan.width, plan.depth, len(plan.blocks)) == (4, 4, len(expected.blocks))
    options: dict[str, Any] = {"rule": "complete-p", "sample": X}
    assert numbers(nfd.plan(on_meta(own), make_model=own, base=(8, 2), **options)) == numbers(plan)
    assert numbers(nfd.plan(own(32, 8), base=own(8, 2), **options)) == numbers(plan)
    assert nfd.plan(own(32, 8), base=own(8, 8), **options).depth == 1


@pytest.mark.parametrize("alternating", [False, True])
def test_a_base_without_a_depth_is_as_deep_as_the_model(alternating: bool) -> None:
    """Two blocks may be a unit of depth: the base was made of twice as many."""
    for build in (sequential, lambda w, d, a: Named(w, kinds(w, d, a))):

        def make(width: int, depth: int, build: Any = build) -> nn.Module:
            return build(width, depth, alternating)

        plan = nfd.plan(make(32, 8), rule="complete-p", make_model=make, base=(8, None), sample=X)
        assert (plan.width, plan.depth, plan.base) == (4, 1, (8, 8))


def test_one_block_of_another_kind_is_a_block_and_the_base_must_have_one() -> None:
    def hybrid(width: int, depth: int) -> nn.Module:
        blocks = [Mixer(width) if k == 1 else Block(width) for k in range(depth)]
        return nn.Sequential(nn.Linear(5, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 3))

    _, plan = planned(hybrid)
    assert plan.blocks == tuple("12345678")
    assert plan.roles["2.down.weight"] == plan.roles["3.down.weight"] == "outer"
    for model in (hybrid(32, 8), on_meta(hybrid)):
        with pytest.raises(ValueError, match=r"no block of the kind that '2\..*base="):
            nfd.plan(model, rule="complete-p", make_model=hybrid, base=(8, 1), sample=X)


def test_blocks_that_add_nothing_to_their_input_are_refused_with_what_to_pass() -> None:
    def plain(width: int, depth: int) -> nn.Module:
        ends = nn.LayerNorm(width), nn.Linear(width, 3)
        return nn.Sequential(nn.Linear(5, width), *(NoSkip(width) for _ in range(depth)), *ends)

    with pytest.raises(ValueError, match=r"does not pass its input on(?s:.*)Pass blocks="):
        planned(plain)
    roles = planned(plain, rule="mup")[1].roles
    assert (roles["0.weight"], roles["3.up.weight"], roles["10.weight"]) == (
        "input",
        "hidden",
        "readout",
    )
    with pytest.raises(ValueError, match="one module alone"):
        nfd.plan(sequential(8, 1), rule="complete-p", base=sequential(4, 1), sample=X)


def test_a_check_of_one_sequential_sees_its_blocks() -> None:
    batches = [(X, torch.tensor([0, 1, 2, 0]))]
    found = nfd.check(sequential, batches, [8, 16], [2, 4], 0.01, seeds=2)
    assert not found.failures
    # of what blocks do
    assert {"inner_update", "stream_update"} <= {row["meter"] for row in found.table}


# ---- tensors with structure


class StateSpace(nn.Module):
    """A block with what Mamba, xLSTM and others begin with care, for heads of eight features."""

    def __init__(self, width: int, place: int) -> None:
        super().__init__()
        heads = width // 8
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        step = torch.exp(torch.empty(heads).uniform_(-7, -2))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.arange(1.0, heads + 1).log())  # one head shows 0
        self.forget = nn.Linear(width, heads)
        self.spread = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(width, 1))
        self.mix, self.back = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.weight_of_place = nn.Parameter(torch.tensor(1 / (1 + place)))
        self.noisy_gain = nn.Parameter(1 + 0.02 * torch.randn(width))
        with torch.no_grad():
            self.forget.bias.copy_(torch.linspace(3.0, 6.0, heads))
            nn.init.eye_(self.mix.weight)
            nn.init.eye_(self.back.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.noisy_gain * self.norm(x)
        decay = torch.exp(-functional.softplus(self.dt_bias) * self.A_log.exp()) * torch.sigmoid(
            self.forget(y)
        )
        y = self.up(self.mix(y)) * decay.repeat_interleave(8, -1) * torch.exp(-self.spread).mean(-1)
        return x + self.weight_of_place * self.down(torch.relu(y)) + self.back(torch.tanh(y))


class StateSpaces(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        angles = torch.arange(7.0)[:, None] / 10 ** (torch.arange(width) / width)
        self.waves = nn.Parameter(angles.sin())
        self.blocks = nn.ModuleList(StateSpace(width, place) for place in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.waves[0]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


KEPT = (
    "dt_bias",
    "A_log",
    "forget.bias",
    "spread",
    "mix.weight",
    "weight_of_place",
    "noisy_gain",
    "waves",
)


def built(make: Make, seed: int, width: int = 32, depth: int = 8) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(width, depth)


def named(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("rule", ["mup", "complete-p"])
@pytest.mark.parametrize("base_depth", [1, 2])
def test_what_a_constructor_begins_with_structure_stays(rule: str, base_depth: int) -> None:
    """At one head of the base as well, where a vector is one number; matrices and plain biases are
    drawn.
    """
    models = [built(StateSpaces, seed) for seed in (0, 1)]
    before = [named(model) for model in models]
    sizes = {"make_model": StateSpaces, "base": (8, base_depth), "sample": X}
    plan = nfd.plan(models[0], rule=rule, **sizes)
    after = [named(plan.apply_(model, seed=3)) for model in models]
    for name, value in after[0].items():
        if name.endswith(KEPT):
            assert torch.equal(value, before[0][name]), name
            assert plan.rate(name) > 0
        elif "back" not in name:
            assert torch.equal(value, after[1][name]), name  # by the seed of the plan alone
            assert value.std() == 0 or not torch.equal(value, before[0][name]), name
    assert not torch.equal(after[0]["blocks.0.dt_bias"], after[1]["blocks.0.dt_bias"])
    (note,) = (note for note in plan.notes if note.startswith("Kept"))
    assert "dt_bias" in note
    assert "up.weight" not in str([note for note in plan.notes if "onstructor" in note])
    places = {f"blocks.{k}.weight_of_place": 1 / (1 + k) for k in range(8)}
    assert {name: float(after[0][name]) for name in places} == pytest.approx(places)


def test_a_matrix_with_structure_is_scaled_where_the_rule_scales_it() -> None:
    """The identity at the end of a branch has its factor of depth, once, however often the plan is
    applied.
    """
    model, plan = planned(StateSpaces)
    assert plan.roles["blocks.3.back.weight"] == "outer"
    for _ in range(2):
        plan.apply_(model)
        torch.testing.assert_close(
            model.get_parameter("blocks.3.back.weight").detach(), torch.eye(32) / 4
        )
    assert "kept, RMS" in plan.explain()
    shallow = nfd.plan(model, rule="mup", make_model=StateSpaces, base=(8, 2), sample=X)
    torch.testing.assert_close(
        shallow.apply_(built(StateSpaces, 0)).get_parameter("blocks.3.back.weight"), torch.eye(32)
    )


def test_a_bias_of_a_layer_of_pytorch_begins_as_in_the_base() -> None:
    """Its own law has the fan-in, which the rule replaces; one that the constructor draws otherwise
    is as it was.
    """
    model, plan = planned(residual(), 128, base=(32, 2))
    before = named(model)
    plan.apply_(model, seed=1)
    for name in ("up", "down"):
        bias = torch.stack(
            [model.get_parameter(f"blocks.{k}.{name}.bias").detach() for k in range(8)]
        )
        expected = (3 * 32) ** -0.5 / (4 if name == "down" else 1)
        assert float(bias.square().mean().sqrt()) == pytest.approx(expected, rel=0.3)
        assert not torch.equal(bias[0], before[f"blocks.0.{name}.bias"])
    assert not any("onstructor" in note for note in plan.notes)


def test_without_a_constructor_vectors_stay_and_matrices_are_drawn() -> None:
    model = built(StateSpaces, 0)
    before = named(model)
    after = named(
        nfd.plan(model, rule="complete-p", sample=X, base=built(StateSpaces, 5, 8, 2)).apply_(model)
    )
    assert all(
        torch.equal(after[n], before[n])
        for n in after
        if n.endswith(("dt_bias", "A_log", "forget.bias", "gain"))
    )
    assert not torch.equal(after["blocks.0.up.weight"], before["blocks.0.up.weight"])


def test_a_constructor_that_seeds_itself_has_its_matrices_drawn() -> None:
    """All of its tensors are alike at two seeds, which says nothing of a structure."""

    def seeded(width: int, depth: int) -> nn.Module:
        return built(residual(), 0, width, depth)

    model, plan = planned(seeded)
    before = named(model)
    after = named(plan.apply_(model, seed=1))
    assert not any(
        torch.equal(after[n], before[n]) for n in after if n.endswith("weight") and "norm" not in n
    )
    assert not any("Kept" in note for note in plan.notes)


class Decaying(Block):
    """A block with one vector that is drawn by a law of its own."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.dt_bias = nn.Parameter(torch.empty(width).uniform_(-7, -2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * torch.sigmoid(self.dt_bias)) + x


def decaying(width: int, depth: int) -> nn.Module:
    ends = nn.LayerNorm(width), nn.Linear(width, 3)
    return nn.Sequential(nn.Linear(5, width), *(Decaying(width) for _ in range(depth)), *ends)


def test_a_model_without_numbers_is_refused_by_the_names_of_what_is_kept() -> None:
    model, plan = planned(decaying, rule="mup")
    with pytest.raises(ValueError, match=r"1\.dt_bias.*meta_matrices"):
        plan.apply_(on_meta(decaying))
    with nfd.meta_matrices():
        unbuilt = decaying(32, 8)
    assert unbuilt.get_parameter("1.up.weight").is_meta
    begun = named(plan.apply_(unbuilt, seed=1))
    expected = named(plan.apply_(model, seed=1))
    for name, value in begun.items():
        assert torch.equal(value, expected[name]) or name.endswith("dt_bias"), name
    assert all(bool((begun[f"{k}.dt_bias"] < -2).all()) for k in range(1, 9))


def test_members_of_a_family_begin_by_their_seed() -> None:
    family = nfd.Family(decaying, base=(8, 2), rule="mup", optimizer="adamw", sample=X)
    first, again, other = (named(family.build(32, 4, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in ("1.dt_bias", "1.up.weight", "1.up.bias"):
        assert not torch.equal(first[name], other[name])
    assert all(bool((p["1.dt_bias"] < -2).all()) for p in (first, other))


def hugging_face(kind: str) -> Make:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    common: dict[str, Any] = {
        "vocab_size": 11,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }

    def make(width: int, depth: int) -> nn.Module:
        sizes = common | {"hidden_size": width, "num_hidden_layers": depth, "num_heads": width // 8}
        if kind == "Mamba2":
            sizes |= {"num_heads": width // 4, "head_dim": 8, "state_size": 8, "n_groups": 1}
        elif kind == "Rwkv":
            sizes |= {"attention_hidden_size": width, "context_length": 16, "rescale_every": 0}
        else:
            sizes |= {"num_blocks": depth, "chunkwise_kernel": "chunkwise--native_autograd"}
            sizes |= {"sequence_kernel": "native_sequence__native", "step_kernel": "native"}
        return getattr(transformers, f"{kind}Model")(
            getattr(transformers, f"{kind}Config")(**sizes)
        )

    return make


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("Mamba2", ("mixer.dt_bias", "mixer.A_log", "mixer.D")),
        ("Rwkv", ("attention.time_decay", "attention.time_mix_key", "feed_forward.time_mix_key")),
        ("xLSTM", ("mlstm_layer.fgate_preact.bias", "mlstm_layer.igate_preact.bias")),
    ],
)
def test_recurrent_models_keep_how_they_forget(kind: str, kept: tuple[str, ...]) -> None:
    ids = torch.randint(11, (1, 16), generator=torch.Generator().manual_seed(0))
    make = hugging_face(kind)
    sample = {"input_ids": ids, "use_cache": False}
    model = built(make, 0, 32, 4)
    before = named(model)
    plan = nfd.plan(model, rule="mup", make_model=make, base=(16, 2), sample=sample)
    after = named(plan.apply_(model))
    names = [name for name in after if name.endswith(kept)]
    assert len(names) == 4 * len(kept)
    assert all(torch.equal(after[name], before[name]) for name in names)
    drawn = [n for n, e in plan.entries.items() if e.matrix is not None and plan.std(n)]
    assert len(drawn) >= 8
    assert not any(torch.equal(after[name], before[name]) for name in drawn)


# ---- which optimizer a plan gives each tensor


class DiT(nn.Module):
    """A diffusion transformer: its blocks and its last layer are modulated by an embedding of time
    and class.
    """

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width, elementwise_affine=False)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            shift, scale, gate = self.modulation(condition)[:, None].chunk(3, -1)
            return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Linear(12, width)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(self.Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, 12)

    def forward(self, patches: Tensor, time: Tensor, label: Tensor) -> Tensor:
        x = self.patch(patches)
        condition = self.time(time) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + scale) + shift)


def stack(width: int, depth: int) -> nn.Module:
    """Layers without residual blocks."""
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), *inner, nn.Linear(width, 4))


def stepped_by_muon(model: nn.Module, plan: nfd.Plan) -> set[str]:
    """Names of the matrices that Muon steps."""
    groups = plan.make_optimizer(model, lr=0.02, adamw_lr=1e-3).param_groups
    taken = {id(p) for group in groups if group["use_muon"] for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in taken}


def without_decay_of_vectors(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """A usual optimizer: no decay for groups whose tensors all have fewer than two dimensions."""
    groups = list(groups)
    for group in groups:
        if all(p.dim() < 2 for p in group["params"]):
            group["weight_decay"] = 0.0
    return torch.optim.AdamW(groups, weight_decay=0.1)


@pytest.mark.parametrize("rule", ["standard", "mup", "complete-p"])
def test_a_rule_for_whole_groups_finds_vectors_apart_from_matrices(rule: str) -> None:
    model, plan = planned(residual(), rule=rule)
    optimizer = plan.make_optimizer(model, lr=1e-3, make=without_decay_of_vectors)
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert (group["weight_decay"] == 0) == (p.dim() < 2)
    # Nothing else sets tensors apart that are stepped alike.
    groups = plan.param_groups(model, lr=1e-3, weight_decay=0.1)
    settings = [(g["lr"], g["weight_decay"], g["eps"], g["params"][0].dim() < 2) for g in groups]
    assert len(settings) == len(set(settings))


class Tied(nn.Module):
    """An embedding that is the head as well, after a norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = nn.Sequential(self.embed, *self.blocks, self.norm)(x)
        return h @ self.embed.weight.T


def test_an_answer_says_what_becomes_of_decay_clipping_and_constants() -> None:
    def answered(make: Make, **options: Any) -> tuple[dict[str, str], str]:
        _, plan = planned(make, **options)
        assert len(str(plan.answer).splitlines()) <= 15
        return dict(plan.answer.table[0]), plan.answer.because

    row, because = answered(residual())
    assert row["decay"][1:] == row["learning rate"].removeprefix("÷")
    assert "initial std" in row
    assert "If you clip gradients, do so by tensor" in because
    row, because = answered(Tied, sample=torch.tensor([[0, 1, 2]]))
    assert "initial scale" in row
    # SGD has no decay that a plan scales.
    row, because = answered(residual(), optimizer="sgd")
    assert "decay" not in row
    assert "clip" in because
    row, because = answered(residual(), rule="standard")
    assert "decay" not in row
    assert "clip" not in because


def test_a_pattern_that_fits_nothing_is_answered_by_wider_ones() -> None:
    model, plan = planned(residual())
    names = {p: name for name, p in model.named_parameters()}
    with pytest.raises(
        ValueError, match=r"no match for 'norm'\. Did you mean (.*)\? A '\*'"
    ) as said:
        plan.param_groups(model, lr=1e-3, weight_decay=0.1, no_decay="norm")
    wider = re.findall(r"'([^']*norm[^']*)'", str(said.value).partition("Did you mean")[2])
    groups = plan.param_groups(model, lr=1e-3, weight_decay=0.1, no_decay=wider)
    spared = {names[p] for group in groups if not group["weight_decay"] for p in group["params"]}
    assert spared == {name for name in names.values() if "norm" in name}

    roles = {"up.weight": "inner"}
    with pytest.raises(ValueError, match=r"no match for 'up\.weight'\. Did you mean '\*\*\.up"):
        planned(residual(), roles=roles)
    # Where no wider pattern fits, none is suggested.
    with pytest.raises(ValueError, match="no match for 'gain'") as unknown:
        plan.param_groups(model, lr=1e-3, weight_decay=0.1, no_decay="gain")
    assert "Did you mean" not in str(unknown.value)


@pytest.mark.parametrize("rule", ["standard", "mup", "complete-p"])
def test_muon_steps_the_matrices_of_blocks_and_adamw_those_of_the_condition(rule: str) -> None:
    model = DiT(32, 4)
    sample = (torch.randn(2, 5, 12), torch.randn(2, 16), torch.tensor([0, 1]))
    plan = nfd.plan(
        model,
        rule=rule,
        make_model=DiT,
        base=(16, 2),
        optimizer="muon",
        blocks="blocks.*",
        sample=sample,
    )
    inside = {
        f"blocks.{k}.{name}.weight" for k in range(4) for name in ("mlp.0", "mlp.2", "modulation.1")
    }
    assert stepped_by_muon(model, plan) == inside
    outside = next(note for note in plan.notes if "go to adamw" in note)
    assert "time.2.weight" in outside
    assert "modulation.1.weight" in outside


def test_muon_steps_the_inner_matrices_of_a_network_without_blocks() -> None:
    model = stack(32, 2)
    plan = nfd.plan(model, rule="mup", make_model=stack, base=(8, 2), optimizer="muon")
    assert stepped_by_muon(model, plan) == {"2.weight", "4.weight"}


# ---- what is stored, and which number is which


def stored_plan() -> dict[str, Any]:
    """A plan of a larger run, as plain numbers."""
    _, plan = planned(residual(), batch=(8, 16), tokens=(100, 1000))
    return plan.to_dict()


def at(stored: Any, place: tuple[Any, ...], value: float) -> Any:
    """The same with another number at a place; tuples become lists, as in JSON."""
    if not place:
        return value
    first, *rest = place
    if isinstance(stored, dict):
        return stored | {first: at(stored[first], tuple(rest), value)}
    return [at(part, tuple(rest), value) if k == first else part for k, part in enumerate(stored)]


ENTRY = ("entries", "embed.weight")
POSITIVE = [
    ("width",),
    ("depth",),
    ("base", 0),
    (*ENTRY, "ratios", "fan_in"),
    (*ENTRY, "ratios", "depth"),
    (*ENTRY, "own_factor"),
    ("run", "batch", 1),
    ("run", "factors", 0, "value"),
]


@pytest.mark.parametrize(
    "place", [*POSITIVE, (*ENTRY, "start", "std"), (*ENTRY, "multiplier", "depth")]
)
def test_a_stored_plan_with_not_a_number_is_refused_by_its_field(place: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=rf"{place[-1]}'?\]? must be"):
        nfd.Plan.from_dict(at(stored_plan(), place, math.nan))


@pytest.mark.parametrize("place", [*POSITIVE, (*ENTRY, "start", "std")])
def test_a_stored_plan_with_a_negative_number_is_refused_by_its_field(
    place: tuple[Any, ...],
) -> None:
    with pytest.raises(ValueError, match=rf"{place[-1]}'?\]? must be (greater than|at least) 0"):
        nfd.Plan.from_dict(at(stored_plan(), place, -2.0))


def test_a_stored_plan_keeps_numbers_that_may_be_zero_or_negative() -> None:
    stored = stored_plan()
    for place, value in (
        ((*ENTRY, "multiplier", "depth"), -1.0),
        ((*ENTRY, "start", "constant"), -1.0),
    ):
        assert nfd.Plan.from_dict(at(stored, place, value)).entries
    assert nfd.Plan.from_dict(at(stored, (*ENTRY, "start", "std"), 0.0)).std("embed.weight") == 0


def test_a_base_that_is_deeper_than_wide_is_said_to_look_swapped() -> None:
    _, swapped = planned(residual(), base=(2, 8))
    (note,) = [note for note in swapped.notes if "swapped" in note]
    assert "x16 as wide and x1 as deep" in note
    assert "base=(8, 2)" in note
    assert not any("swapped" in note for note in planned(residual())[1].notes)


# ---- numbers on the stream, and tensors that do not train


class Mixing(nn.Module):
    """A stream that learned numbers multiply before every block, as in nanochat; pre-norm blocks,
    or post-norm ones.
    """

    def __init__(
        self, width: int, depth: int, mixes: bool = True, post: bool = False, kept: float = 1.0
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.head = nn.Linear(width, 3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.after = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth if post else 0))
        if mixes:
            self.kept = nn.Parameter(torch.full((depth,), kept))
            self.first = nn.Parameter(torch.zeros(depth))
        self.mixes = mixes
        self.post = post

    def forward(self, x: Tensor) -> Tensor:
        h = first = functional.rms_norm(self.embed(x), (self.embed.out_features,))
        for k, block in enumerate(self.blocks):
            h = self.kept[k] * h + self.first[k] * first if self.mixes else h
            h = self.after[k](block(h)) if self.post else block(h)
        return self.head(h)


def test_learned_numbers_on_the_stream_are_named_and_not_called_a_norm() -> None:
    with pytest.raises(
        ValueError, match=r"multiplied by 'kept', which are not all 1 at first.*rule='mup'"
    ) as told:
        planned(partial(Mixing, kept=1.1))
    assert "norm" not in str(told.value)
    assert planned(Mixing)[1].rate("kept") == 1 / planned(Mixing)[1].depth
    assert planned(Mixing, rule="mup")[1].rate("kept") == 1
    assert planned(partial(Mixing, mixes=False))[1].roles["blocks.1.down.weight"] == "outer"
    with pytest.raises(ValueError, match=r"normalises after adding.*norm_first=True"):
        planned(partial(Mixing, mixes=False, post=True))


def test_a_bias_that_does_not_train_needs_no_role() -> None:
    """As the bias by which Ernie 4.5 chooses among experts, of two dimensions, which no gradient
    reaches.
    """

    class Chosen(Block):
        trains = False

        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.choice = nn.Parameter(torch.zeros(1, 4), requires_grad=self.trains)

    class Trained(Chosen):
        trains = True

    def made(kind: type[Block]) -> Make:
        return lambda width, depth: Named(width, [kind(width) for _ in range(depth)])

    _, plan = planned(made(Chosen))
    assert plan.rate("blocks.1.choice") == 1
    assert any("do not train" in note and "choice" in note for note in plan.notes)
    assert plan.roles["blocks.1.down.weight"] == "outer"
    with pytest.raises(ValueError, match="choice: the sample never reached it"):
        planned(made(Trained))


# ---- a part that keeps its rates


class Seeing(nn.Module):
    """A tower of one size, and blocks that grow and read what it sees."""

    def __init__(
        self, width: int, depth: int, *, frozen: bool = False, grows: bool = False
    ) -> None:
        super().__init__()
        side = width if grows else 8
        self.tower = nn.Sequential(nn.Linear(5, side), nn.LayerNorm(side), nn.Linear(side, side))
        self.tower.requires_grad_(not frozen)
        self.decoder = Reading(side, width, depth)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.tower(x))


class Reading(nn.Module):
    """What comes after the tower."""

    def __init__(self, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.project = nn.Linear(side, width)
        parts = [(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(depth)]
        self.blocks = nn.ModuleList(nn.Sequential(*pair) for pair in parts)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.project(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


def test_a_part_of_one_size_keeps_its_rates_and_a_frozen_one_its_weights() -> None:
    model, plan = planned(Seeing)
    of_tower = [name for name in plan.entries if name.startswith("tower.")]
    assert {(plan.rate(name), plan.start_factor(name)) for name in of_tower} == {(1, 1)}
    assert plan.rate("decoder.blocks.0.1.weight") == pytest.approx(1 / 16)
    _, grown = planned(partial(Seeing, grows=True))
    assert grown.rate("tower.2.weight") == pytest.approx(1 / 4)

    before = model.tower[2].weight.clone()
    plan.apply_(model)
    assert not torch.equal(model.tower[2].weight, before)
    model, plan = planned(partial(Seeing, frozen=True))
    before = model.tower[2].weight.clone()
    plan.apply_(model)
    assert torch.equal(model.tower[2].weight, before)


def test_a_part_that_grows_keeps_its_rates_beside_the_plan_of_the_rest() -> None:
    model = Seeing(32, 8, grows=True)
    plan = nfd.plan(
        model.decoder,
        base=(8, 2),
        make_model=lambda width, depth: Reading(width, width, depth),
        sample=model.tower(X).detach(),
    )
    tower = {"params": list(model.tower.parameters()), "lr": 1e-4}
    optimizer = torch.optim.AdamW([*plan.param_groups(model.decoder, lr=1e-3), tower])
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[model.tower[2].weight] == 1e-4
    assert rates[model.decoder.blocks[0][1].weight] == pytest.approx(1e-3 / 16)
    assert len(rates) == len(list(model.parameters()))


# ---- optimizers of models without numbers


def test_an_optimizer_of_a_model_on_meta_is_warned_of() -> None:
    model = on_meta(sequential)
    plan = nfd.plan(model, make_model=sequential, base=(8, 2), sample=X)
    with pytest.warns(UserWarning, match="on the meta device.*call make_optimizer after"):
        plan.make_optimizer(model, lr=0.01)


def test_an_optimizer_that_is_made_after_the_numbers_trains() -> None:
    model = on_meta(sequential)
    plan = nfd.plan(model, make_model=sequential, base=(8, 2), sample=X)
    plan.apply_(model, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = plan.make_optimizer(model, lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(X).square().mean().backward()
    optimizer.step()
    assert any(not p.equal(before[name]) for name, p in model.named_parameters())


# ---- models that are not written as modules


def perceptron(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))


def lazy(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(width), nn.ReLU(), nn.LazyLinear(2))


def called(width: int, depth: int) -> nn.Module:
    model = lazy(width, depth)
    model(X)
    return model


def exported(model: nn.Module) -> nn.Module:
    return torch.export.export(model, (X,)).module()


COMPILED: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "traced": (lambda model: torch.jit.trace(model, X), "torch.jit traced or scripted"),
    "scripted": (torch.jit.script, "torch.jit traced or scripted"),
    "exported": (exported, "torch.export made"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", COMPILED)
def test_compiled_models_are_refused_with_what_to_pass(way: str) -> None:
    compiled, words = COMPILED[way]
    model = perceptron(32, 2)
    base = perceptron(8, 2)
    with pytest.raises(ValueError, match=f"model is .*{words}.*Pass the module"):
        nfd.plan(compiled(model), base, rule="mup", sample=X)
    with pytest.raises(ValueError, match=f"base is .*{words}"):
        nfd.plan(model, compiled(base), rule="mup", sample=X)
    graph = torch.fx.symbolic_trace(model)
    assert nfd.plan(graph, base, rule="mup", sample=X).roles["2.weight"] == "readout"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_part_is_refused_by_its_name() -> None:
    def with_part(width: int, depth: int) -> nn.Module:
        scripted = torch.jit.script(nn.Linear(width, 2))
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), scripted)

    with pytest.raises(ValueError, match=r"model\.2 is .*torch\.jit.*Pass the module"):
        planned(with_part, rule="mup")
    assert planned(perceptron, rule="mup")[1].roles["2.weight"] == "readout"


class Hidden(nn.Module):
    """A model whose outputs show autograd no weight, as ``way`` hides them."""

    def __init__(self, width: int, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.layers(x))


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "detached": Tensor.detach,
    "whole numbers": lambda x: x.argmax(-1),
}


@pytest.mark.parametrize("way", HIDDEN)
@pytest.mark.parametrize("rule", ["complete-p", "mup", "standard"])
def test_a_sample_that_shows_no_weight_is_not_taken_for_none(way: str, rule: str) -> None:
    """Roles by shape alone would stand where the sample was given to read them."""
    with pytest.raises(ValueError, match="sample= shows nothing of the model"):
        planned(lambda width, depth: Hidden(width, HIDDEN[way]), rule=rule)


def test_a_sample_is_followed_under_no_grad_around_the_plan_and_through_frozen_weights() -> None:
    def frozen(width: int, depth: int) -> nn.Module:
        model = Hidden(width, nn.Identity())
        model.layers[0].requires_grad_(False)
        return model

    with torch.no_grad():
        _, plan = planned(frozen, rule="mup")
    assert plan.roles["layers.2.weight"] == "readout"


def test_lazy_layers_are_refused_until_they_have_a_size() -> None:
    with pytest.raises(ValueError, match=r"lazy parameters.*'0\.weight'"):
        nfd.plan(lazy(32, 2), (8, 2), make_model=lazy, rule="mup", sample=X)
    plan = nfd.plan(called(32, 2), (8, 2), make_model=called, rule="mup", sample=X)
    assert plan.roles["2.weight"] == "readout"


# ---- lists of parameters


class InLists(nn.Module):
    """Residual layers whose matrices are in lists of parameters."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(5, width)
        self.up = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(depth))
        self.down = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for up, down in zip(self.up, self.down, strict=True):
            h = h + torch.relu(functional.layer_norm(h, h.shape[-1:]) @ up) @ down
        return h


@pytest.mark.parametrize("rule", ["complete-p", "mup"])
def test_lists_of_parameters_that_are_longer_in_the_model_are_named(rule: str) -> None:
    with pytest.raises(ValueError, match=r"'up\.\d'.*Lists of parameters.*nn\.ModuleList"):
        planned(InLists, rule=rule)


def test_lists_of_parameters_of_one_length_are_planned() -> None:
    plan = nfd.plan(InLists(32, 2), (8, 2), make_model=InLists, rule="mup", sample=X)
    assert plan.roles["up.1"] == "hidden"


def test_a_constructor_that_does_not_use_the_width_is_refused() -> None:
    def fixed(width: int, depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))

    def wide(width: int, depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))

    with pytest.raises(ValueError, match=r"does it use its first argument, width"):
        nfd.plan(fixed(32, 1), (8, 1), make_model=fixed, rule="mup", sample=X)
    assert nfd.plan(wide(8, 1), (8, 1), make_model=wide, rule="mup", sample=X).width == 1
