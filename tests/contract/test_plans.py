"""What a plan makes of models that others write: computed matrices, blocks in any container, tensors with structure."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
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


def planned(make: Make, width: int = 32, depth: int = 8, **options: Any) -> tuple[nn.Module, nfd.Plan]:
    """A model four times as wide and as deep as its base, and its plan."""
    model = make(width, depth)
    sizes = {"make_model": make, "base_width": 8, "base_depth": 2, "sample": X}
    return model, nfd.plan(model, **{"rule": "complete-p", **sizes, **options})


def bare(module: nn.Module) -> nn.Module:
    return module


class Branch(nn.Module):
    """A block whose last matrix may be wrapped."""

    def __init__(self, width: int, last: nn.Module) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), last

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(self.down(torch.relu(self.up(self.norm(x)))))


def residual(branch: Wrap = bare, head: Wrap = bare, kind: type[nn.Linear] = nn.Linear) -> Make:
    """A constructor of networks of such blocks."""

    class Model(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.embed = nn.Linear(5, width)
            self.blocks = nn.ModuleList(Branch(width, branch(kind(width, width))) for _ in range(depth))
            self.norm, self.head = nn.LayerNorm(width), head(nn.Linear(width, 3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = block(h)
            return torch.as_tensor(self.head(self.norm(h)))

    return Model


# ---- matrices that are computed from other parameters ------------------------------------------------------------


def old(wrap: Callable[..., Any]) -> Wrap:
    """Without PyTorch's warning that it is old."""

    def wrapped(module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(module)  # type: ignore[no-any-return]

    return wrapped


class LowRank(nn.Module):
    """A parametrization of the user's own: the matrix and a product of two small ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, width)), nn.Parameter(torch.zeros(width, 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x)


def low_rank(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", LowRank(module.in_features))  # type: ignore[arg-type]
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
    with pytest.raises(ValueError, match=rf"blocks\.\*\.down\.weight by {kind}.*remove_parametrizations"):
        planned(residual(branch=WRAPS[name]), rule=rule)
    if name != "LowRank":  # which is square
        with pytest.raises(ValueError, match=rf"head\.weight by {kind}"):
            planned(residual(head=WRAPS[name]), rule=rule)
    with pytest.raises(ValueError, match=rf"down\.weight by {kind}"):
        nfd.check(residual(branch=WRAPS[name]), [8, 16], [2], batches=[(X, torch.zeros(4, 3))], lr=0.1, rule=rule)


def test_what_stands_beside_or_is_only_masked_is_planned_as_before() -> None:
    """Vectors, frozen matrices and pruned ones; and every parametrization that was removed again."""

    def masked(module: nn.Module) -> nn.Module:
        return prune.random_unstructured(module, "weight", 0.5)  # type: ignore[no-any-return,no-untyped-call]

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
        assert plan.std(f"blocks.1.down.{name}") == pytest.approx(start / 4 / 2)  # by depth and width
        assert torch.isfinite(plan.apply_(model)(X)).all()
    assert planned(residual(branch=positive))[1].multipliers["blocks.1.down"] == 1 / 4  # no tensor scales that bias
    assert planned(residual(branch=frozen))[1].roles["blocks.1.up.weight"] == "inner"


def test_the_standard_rule_leaves_parametrized_matrices_as_they_are() -> None:
    model, plan = planned(residual(branch=parametrizations.weight_norm), rule="standard")
    before = model.get_submodule("blocks.1.down").weight.clone()  # type: ignore[operator, union-attr]
    plan.apply_(model, seed=1)
    assert torch.equal(model.get_submodule("blocks.1.down").weight, before)  # type: ignore[arg-type]


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
    """A bias behind a matrix that is normalised was taken for what writes the stream, and the matrix was not scaled."""
    make = residual(kind=kind)
    assert ratio_of_branches(make, 32) / ratio_of_branches(make, 2) == pytest.approx(1 / 16, rel=0.35)


# ---- blocks in any container -------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block with twice as many features inside."""

    inside = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, self.inside * width)
        self.down = nn.Linear(self.inside * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(self.down(torch.relu(self.up(self.norm(x)))))


class Mixer(Block):
    """A block of another kind, with tensors of the same names and other shapes."""

    inside = 3


class NoSkip(Block):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.down(torch.relu(self.up(self.norm(x)))))


class Named(nn.Module):
    """The reference: embedding, blocks and head by names of their own."""

    def __init__(self, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(5, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(nn.Sequential(self.embed, *self.blocks, self.norm, self.head)(x))


def kinds(width: int, depth: int, alternating: bool) -> list[nn.Module]:
    """Two blocks a unit of depth where two kinds alternate."""
    return [kind(width) for _ in range(depth) for kind in ((Block, Mixer) if alternating else (Block,))]


def sequential(width: int, depth: int, alternating: bool = False) -> nn.Module:
    ends = nn.LayerNorm(width), nn.Linear(width, 3)
    return nn.Sequential(nn.Linear(5, width), *kinds(width, depth, alternating), *ends)


def by_key(width: int, depth: int, alternating: bool = False) -> nn.Module:
    blocks = {f"block{k}": block for k, block in enumerate(kinds(width, depth, alternating))}
    return nn.Sequential(
        OrderedDict(embed=nn.Linear(5, width), **blocks, norm=nn.LayerNorm(width), head=nn.Linear(width, 3))
    )


def numbers(plan: nfd.Plan) -> list[tuple[Any, ...]]:
    """What a plan says of every tensor, in the order of the model."""
    return [(plan.roles[n], plan.factor(n, plan.powers(n).std), plan.rate(n), plan.weight_decay(n)) for n in plan.roles]


def on_meta(make: Make, width: int = 32, depth: int = 8) -> nn.Module:
    with torch.device("meta"):
        return make(width, depth)


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("make", [sequential, by_key])
def test_a_network_in_one_sequential_has_the_plan_of_one_with_named_parts(make: Any, alternating: bool) -> None:
    """Whatever says what the base is; the head has another number in the base, and kinds that share names are apart."""

    def own(width: int, depth: int) -> nn.Module:
        return make(width, depth, alternating)  # type: ignore[no-any-return]

    expected = planned(lambda width, depth: Named(width, kinds(width, depth, alternating)))[1]
    _, plan = planned(own)
    assert numbers(plan) == numbers(expected)
    matrices = [entry for name, entry in plan.entries.items() if name.endswith(("up.weight", "down.weight"))]
    assert {(entry.ratios.fan_in, entry.ratios.fan_out) for entry in matrices} == {(4, 4)}
    assert (plan.width, plan.depth, len(plan.blocks)) == (4, 4, len(expected.blocks))
    options: dict[str, Any] = {"rule": "complete-p", "sample": X}
    assert numbers(nfd.plan(on_meta(own), make_model=own, base_width=8, base_depth=2, **options)) == numbers(plan)
    assert numbers(nfd.plan(own(32, 8), base=own(8, 2), **options)) == numbers(plan)
    assert nfd.plan(own(32, 8), base=own(8, 8), **options).depth == 1


@pytest.mark.parametrize("alternating", [False, True])
def test_a_base_without_a_depth_is_as_deep_as_the_model(alternating: bool) -> None:
    """Two blocks may be a unit of depth: the base was made of twice as many."""
    for build in (sequential, lambda w, d, a: Named(w, kinds(w, d, a))):

        def make(width: int, depth: int, build: Any = build) -> nn.Module:
            return build(width, depth, alternating)  # type: ignore[no-any-return]

        plan = nfd.plan(make(32, 8), rule="complete-p", make_model=make, base_width=8, sample=X)
        assert (plan.width, plan.depth, plan.base) == (4, 1, (8, 8))


def test_one_block_of_another_kind_is_a_block_and_the_base_must_have_one() -> None:
    def hybrid(width: int, depth: int) -> nn.Module:
        blocks = [Mixer(width) if k == 1 else Block(width) for k in range(depth)]
        return nn.Sequential(nn.Linear(5, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 3))

    _, plan = planned(hybrid)
    assert plan.blocks == tuple("12345678")
    assert plan.roles["2.down.weight"] == plan.roles["3.down.weight"] == "outer"
    for model in (hybrid(32, 8), on_meta(hybrid)):
        with pytest.raises(ValueError, match=r"no block of the kind that '2\..*base_depth"):
            nfd.plan(model, rule="complete-p", make_model=hybrid, base_width=8, base_depth=1, sample=X)


def test_blocks_that_add_nothing_to_their_input_are_refused_with_what_to_pass() -> None:
    def plain(width: int, depth: int) -> nn.Module:
        ends = nn.LayerNorm(width), nn.Linear(width, 3)
        return nn.Sequential(nn.Linear(5, width), *(NoSkip(width) for _ in range(depth)), *ends)

    with pytest.raises(ValueError, match=r"does not pass its input on(?s:.*)Pass blocks="):
        planned(plain)
    roles = planned(plain, rule="mup")[1].roles
    assert (roles["0.weight"], roles["3.up.weight"], roles["10.weight"]) == ("input", "hidden", "readout")
    with pytest.raises(ValueError, match="blocks='1'"):
        nfd.plan(sequential(8, 1), rule="complete-p", base=sequential(4, 1), sample=X)


def test_a_check_of_one_sequential_sees_its_blocks() -> None:
    batches = [(X, torch.tensor([0, 1, 2, 0]))]
    found = nfd.check(
        sequential, [8, 16], [2, 4], batches=batches, rule="complete-p", optimizer="adamw", lr=0.01, seeds=2
    )
    assert not found.failures
    assert {"inner_update", "stream_update"} <= {row["meter"] for row in found.table}  # of what blocks do
