"""One model, written in many ways, has one plan; and what only looks alike has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import nfd

SYMBOLS = 11
IDS = torch.randint(SYMBOLS, (3, 6), generator=torch.Generator().manual_seed(0))
Way = Callable[..., Tensor]
Numbers = tuple[float, float, float]


class Block(nn.Module):
    """A pre-norm block; ``adds(block, h, z)`` adds the last matrix times z to the stream."""

    def __init__(self, width: int, depth: int, adds: Way, norm: Way | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm is None else Norm(width, norm)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.depth = depth
        self.adds = adds
        self.frozen = nn.Parameter(torch.tensor(1 / depth), requires_grad=False)
        self.register_buffer("share", torch.tensor(1 / depth))

    def forward(self, h: Tensor) -> Tensor:
        return self.adds(self, h, torch.relu(self.up(self.norm(h))))


class Norm(nn.Module):
    """A norm of its own, with a gain: ``norm(h, gain, width)``."""

    def __init__(self, width: int, norm: Way) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.norm = norm

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h, self.weight, h.shape[-1])


def usual(block: Any, h: Tensor, z: Tensor) -> Tensor:
    """The branch over the depth, as a product and a sum."""
    out: Tensor = h + block.down(z) / block.depth
    return out


class Language(nn.Module):
    """Ids to numbers through residual blocks.

    Args:
        adds: how blocks add their branch.
        norm: how blocks normalise; None for ``nn.LayerNorm``.
        reads: the readout, of the normalised stream and the parameter w; None for ``nn.Linear``.
        readout: the shape of w, a function of width.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        adds: Way = usual,
        norm: Way | None = None,
        reads: Way | None = None,
        readout: Callable[[int], tuple[int, ...]] = lambda width: (SYMBOLS, width),
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.ModuleList(Block(width, depth, adds, norm) for _ in range(depth))
        self.final = nn.LayerNorm(width)
        self.w = nn.Parameter(torch.randn(readout(width)) / width**0.5)
        self.reads = functional.linear if reads is None else reads

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.reads(self.final(h), self.w)


def planned(
    rule: str = "complete-p",
    make: Any = Language,
    sample: Any = IDS,
    optimizer: str = "adamw",
    roles: dict[str, str] | None = None,
    **options: Any,
) -> nfd.Plan:
    """The plan of a model four times as wide and as deep as its base."""

    def built(width: int, depth: int) -> nn.Module:
        torch.manual_seed(0)
        return make(width, depth, **options)

    settings: dict[str, Any] = {
        "rule": rule,
        "optimizer": optimizer,
        "roles": roles,
        "sample": sample,
    }
    return nfd.plan(built(64, 8), make_model=built, base=(16, 2), **settings)


def numbers(plan: nfd.Plan, name: str) -> Numbers:
    """Factors of the start, the rate and epsilon of a tensor."""
    return plan.start_factor(name), plan.rate(name), plan.epsilon(name)


def differing(plan: nfd.Plan, other: nfd.Plan) -> dict[str, tuple[Numbers, Numbers]]:
    """The tensors of one name that have other factors in another plan; without those that do not
    train.
    """
    names = [name for name in plan.entries if name in other.entries and not name.endswith("frozen")]
    pairs = {name: (numbers(plan, name), numbers(other, name)) for name in names}
    return {
        name: pair for name, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=1e-4)
    }


# ---- constants

YES = torch.ones(1, dtype=torch.bool)
CONSTANTS: dict[str, Way] = {
    "add alpha": lambda b, h, z: torch.add(h, b.down(z), alpha=1 / b.depth),
    "add_ alpha": lambda b, h, z: h.clone().add_(b.down(z), alpha=1 / b.depth),
    "sub alpha": lambda b, h, z: torch.sub(h, -b.down(z), alpha=1 / b.depth),
    "negative alpha": lambda b, h, z: h.sub(b.down(z), alpha=-1 / b.depth),
    "branch first": lambda b, h, z: torch.add(b.down(z) / b.depth, h),
    "rsub alpha": lambda b, h, z: torch.rsub(b.down(z), h, alpha=1 / b.depth),
    "addcmul value": lambda b, h, z: torch.addcmul(h, b.down(z), torch.ones(1), value=1 / b.depth),
    "addcmul tensor": lambda b, h, z: torch.addcmul(h, b.share, b.down(z)),
    "addcdiv": lambda b, h, z: torch.addcdiv(h, b.down(z), torch.tensor(float(b.depth))),
    "stack and sum": lambda b, h, z: torch.stack([h, b.down(z) / b.depth]).sum(0),
    "stack of three": lambda b, h, z: torch.stack(
        [b.down(z) / b.depth, h, torch.zeros_like(h)], -1
    ).sum(-1),
    "stack and mean": lambda b, h, z: 2 * torch.stack([h, b.down(z) / b.depth]).mean(0),
    "built-in sum": lambda b, h, z: sum([h, b.down(z) / b.depth]),
    "index_add": lambda b, h, z: h.index_add(1, torch.arange(6), b.down(z), alpha=1 / b.depth),
    "scatter_add": lambda b, h, z: h.scatter_add(
        1, torch.arange(6)[:, None].expand_as(h), b.down(z) / b.depth
    ),
    "index_put": lambda b, h, z: h.index_put(
        (torch.arange(3),), b.down(z) / b.depth, accumulate=True
    ),
    "some tokens": lambda b, h, z: torch.slice_scatter(
        h, h[:, 2:] + b.down(z)[:, 2:] / b.depth, 1, 2
    ),
    "where of streams": lambda b, h, z: torch.where(
        torch.arange(6)[:, None] > 1, h + b.down(z) / b.depth, h
    ),
    "rows of a stack": lambda b, h, z: torch.stack(
        [x + b.down(y) / b.depth for x, y in zip(h, z, strict=True)]
    ),
    "mul": lambda b, h, z: h + b.down(z).mul(1 / b.depth),
    "lerp of streams": lambda b, h, z: torch.lerp(h, h + b.down(z), 1 / b.depth),
    "lerp of streams tensor": lambda b, h, z: torch.lerp(h, h + b.down(z), b.share),
    "twice the stream": lambda b, h, z: 2 * h - h + b.down(z) / b.depth,
    "there and back": lambda b, h, z: (h / b.depth + b.down(z) / b.depth**2) * b.depth,
    "halves": lambda b, h, z: (h + h + 2 * b.down(z) / b.depth) / 2,
    "einsum of three": lambda b, h, z: h + torch.einsum("btn,mn,->btm", z, b.down.weight, b.share),
    "addmm": lambda b, h, z: torch.addmm(h[0], z[0], b.down.weight.t(), alpha=1 / b.depth)[None],
    "baddbmm": lambda b, h, z: torch.baddbmm(
        h, z, b.down.weight.t().expand(len(h), -1, -1), alpha=1 / b.depth
    ),
    "baddbmm of zeros": lambda b, h, z: (
        h
        + torch.baddbmm(
            torch.zeros(1), z, b.down.weight.t().expand(len(h), -1, -1), beta=0, alpha=1 / b.depth
        )
    ),
    "addcmul of zeros": lambda b, h, z: h + torch.addcmul(torch.zeros(1), b.down(z), b.share),
    "add of zeros": lambda b, h, z: h + torch.zeros_like(h).add_(b.down(z), alpha=1 / b.depth),
    "lerp": lambda b, h, z: h + torch.lerp(torch.zeros(1), b.down(z), 1 / b.depth),
    "lerp tensor": lambda b, h, z: h + torch.lerp(torch.zeros(1), b.down(z), b.share),
    "where": lambda b, h, z: h + torch.where(YES, b.down(z) / b.depth, b.down(z)),
    "where of one": lambda b, h, z: h + (lambda y: torch.where(YES, y / b.depth, y))(b.down(z)),
    "where not": lambda b, h, z: h + (lambda y: torch.where(~YES, y, y / b.depth))(b.down(z)),
    "masked_fill": lambda b, h, z: h + (b.down(z) / b.depth).masked_fill(~YES, 0.0),
    "einsum": lambda b, h, z: h + torch.einsum("btn,->btn", b.down(z), b.share),
    "buffer": lambda b, h, z: h + b.share * b.down(z),
    "frozen parameter": lambda b, h, z: h + b.frozen * b.down(z),
    "full": lambda b, h, z: h + b.down(z) * torch.full_like(h, 1 / b.depth),
    "in place": lambda b, h, z: h + b.down(z).div_(b.depth),
    "twice": lambda b, h, z: h + b.down(z) / b.depth**0.5 / b.depth**0.5,
    "in float64": lambda b, h, z: h + (b.down(z).double() / b.depth).float(),
    "of the weight": lambda b, h, z: h + functional.linear(z, b.down.weight / b.depth),
    "of the input": lambda b, h, z: h + b.down(z / b.depth),
}


@pytest.mark.parametrize("way", [name for name in CONSTANTS if name != "addmm"])
def test_a_constant_is_seen_however_it_is_written(way: str) -> None:
    assert not differing(planned(adds=CONSTANTS[way]), planned())


def test_residual_sums_that_are_written_as_one_product_are_seen() -> None:
    one = planned(adds=CONSTANTS["addmm"], sample=IDS[:1])
    two = planned(sample=IDS[:1])
    assert not differing(one, two)


STREAMS_THAT_FADE: dict[str, Way] = {
    "mean": lambda b, h, z: torch.stack([h, b.down(z)]).mean(0),
    "lerp": lambda b, h, z: torch.lerp(h, b.down(z), 0.5),
    "root of a half": lambda b, h, z: (h + b.down(z)) * 0.5**0.5,
    "baddbmm": lambda b, h, z: torch.baddbmm(
        h, z, b.down.weight.t().expand(len(h), -1, -1), beta=0.5
    ),
}


@pytest.mark.parametrize("way", STREAMS_THAT_FADE)
def test_a_stream_that_constants_multiply_at_every_block_has_no_limit_of_depth(way: str) -> None:
    with pytest.raises(ValueError, match=r"multiplied by numbers other than 1.*rule='mup'"):
        planned(adds=STREAMS_THAT_FADE[way])
    assert planned("mup", adds=STREAMS_THAT_FADE[way]).roles["blocks.1.down.weight"] == "hidden"


def test_a_constant_that_is_the_same_at_every_size_changes_nothing() -> None:
    fixed = planned(adds=lambda b, h, z: torch.add(h, b.down(z), alpha=0.5))
    without = planned(adds=lambda b, h, z: h + b.down(z))
    assert not differing(fixed, without)
    name = "blocks.1.down.weight"
    assert numbers(planned(), name)[0] == pytest.approx(4 * numbers(without, name)[0])


def test_where_that_chooses_both_is_said_and_not_made_up_for() -> None:
    def adds(block: Any, h: Tensor, z: Tensor) -> Tensor:
        y = block.down(z)
        return h + torch.where(torch.arange(len(y))[:, None, None] > 0, y / block.depth, y)

    plan = planned(adds=adds)
    assert plan.own_factor("blocks.1.down.weight") == 1
    assert any(
        "more than one way" in note and "blocks.*.down.weight" in note for note in plan.notes
    )
    assert not any(
        "more than one way" in note for note in planned(adds=CONSTANTS["where of one"]).notes
    )


# ---- norms


def unit(h: Tensor) -> Tensor:
    """Rows of length 1."""
    return functional.normalize(h, dim=-1)


def length(h: Tensor) -> Tensor:
    return h.norm(dim=-1, keepdim=True)


def mean_square(h: Tensor) -> Tensor:
    return h.pow(2).mean(-1, keepdim=True) + 1e-6


def written_layer_norm(h: Tensor, g: Tensor, n: int) -> Tensor:
    mean = h.mean(-1, keepdim=True)
    deviation = h.var(-1, keepdim=True, unbiased=False)
    return (h - mean) / (deviation + 1e-5).sqrt() * g


NORMS: dict[str, Way] = {
    "normalize g c": lambda h, g, n: unit(h) * g * n**0.5,
    "normalize c g": lambda h, g, n: unit(h) * n**0.5 * g,
    "g c normalize": lambda h, g, n: n**0.5 * g * unit(h),
    "normalize (g c)": lambda h, g, n: unit(h) * (g * n**0.5),
    "normalize g over c": lambda h, g, n: unit(h) * g / n**-0.5,
    "x / x.norm() c g": lambda h, g, n: h / length(h) * n**0.5 * g,
    "x / x.norm() g c": lambda h, g, n: h / length(h) * g * n**0.5,
    "x / (x.norm() / c)": lambda h, g, n: h / (length(h) / n**0.5) * g,
    "x (c / x.norm())": lambda h, g, n: h * (n**0.5 / length(h)) * g,
    "vector_norm": lambda h, g, n: (
        h / torch.linalg.vector_norm(h, dim=-1, keepdim=True) * g * n**0.5
    ),
    "root of sum": lambda h, g, n: h / h.square().sum(-1, keepdim=True).sqrt() * g * n**0.5,
    "root of x x": lambda h, g, n: h * (h * h).sum(-1, keepdim=True).rsqrt() * g * n**0.5,
    "rsqrt": lambda h, g, n: h * torch.rsqrt(mean_square(h)) * g,
    "g rsqrt": lambda h, g, n: g * (h * torch.rsqrt(mean_square(h))),
    "power": lambda h, g, n: h * mean_square(h).pow(-0.5) * g,
    "over sqrt": lambda h, g, n: h / mean_square(h).sqrt() * g,
    "in float64": lambda h, g, n: (h.double() * torch.rsqrt(mean_square(h.double()))).float() * g,
    "rms_norm": lambda h, g, n: functional.rms_norm(h, (n,), g),
    "rms_norm without": lambda h, g, n: functional.rms_norm(h, (n,)) * g,
    "layer_norm": lambda h, g, n: functional.layer_norm(h, (n,), g),
    "layer_norm without": lambda h, g, n: functional.layer_norm(h, (n,)) * g,
    "layer_norm by hand": written_layer_norm,
    "std": lambda h, g, n: (h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + 1e-5) * g,
}


@pytest.mark.parametrize("way", NORMS)
def test_a_norm_is_seen_however_it_is_written(way: str) -> None:
    plan = planned(norm=NORMS[way])
    assert not differing(plan, planned())
    assert not any("blocks.*.up" in note for note in plan.notes)


@pytest.mark.parametrize("way", NORMS)
def test_a_final_norm_is_seen_however_it_is_written(way: str) -> None:
    class Final(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.final = Norm(width, NORMS[way])

    assert not differing(planned(make=Final), planned())


def test_what_rows_of_length_one_lack_is_the_matrix_behind_them() -> None:
    """Entries of n^-1/2 go in: starts and rates of the matrix are larger by the root of the
    width.
    """
    short = planned(norm=lambda h, g, n: unit(h) * g)
    usual_ = planned()
    pairs = differing(short, usual_)
    assert {name.rpartition(".")[0] for name in pairs} == {f"blocks.{k}.up" for k in range(8)}
    (std, rate, _), (usual_std, usual_rate, _) = pairs["blocks.0.up.weight"]
    assert (std, rate) == pytest.approx((2 * usual_std, 2 * usual_rate))


def test_a_factor_behind_a_sound_norm_is_still_that_of_the_matrix() -> None:
    large = planned(norm=lambda h, g, n: functional.rms_norm(h, (n,)) * g * n**0.5)
    (std, rate, _), (usual_std, usual_rate, _) = differing(large, planned())["blocks.0.up.weight"]
    assert (std, rate) == pytest.approx((usual_std / 2, usual_rate / 2))


def test_a_gate_is_no_norm() -> None:
    """Data times a function of their own mean keep their size: the constant is a factor of the
    matrix.
    """
    gated = planned(norm=lambda h, g, n: h * torch.sigmoid(h.mean(-1, keepdim=True)) * g * n**0.5)
    (std, _, _), (usual_std, _, _) = differing(gated, planned())["blocks.0.up.weight"]
    assert std == pytest.approx(usual_std / 2)


# ---- vectors that are readouts


def vector(width: int) -> tuple[int, ...]:
    return (width,)


def row(width: int) -> tuple[int, ...]:
    return (1, width)


def column(width: int) -> tuple[int, ...]:
    return (width, 1)


READOUTS: dict[str, tuple[Way, Callable[[int], tuple[int, ...]]]] = {
    "h @ w": (lambda h, w: h @ w, vector),
    "matmul": (torch.matmul, vector),
    "column": (lambda h, w: h @ w[:, None], vector),
    "unsqueeze": (lambda h, w: h @ w.unsqueeze(-1), vector),
    "linear of a vector": (functional.linear, vector),
    "linear of a row": (functional.linear, row),
    "linear of w[None]": (lambda h, w: functional.linear(h, w[None]), vector),
    "column parameter": (lambda h, w: h @ w, column),
    "einsum": (lambda h, w: torch.einsum("btn,n->bt", h, w), vector),
    "einsum of a row": (lambda h, w: torch.einsum("btn,kn->btk", h, w), row),
    "product and sum": (lambda h, w: (h * w).sum(-1), vector),
    "sum of a row": (lambda h, w: (w * h).sum(-1, keepdim=True), row),
    "torch.sum": (lambda h, w: torch.sum(h.mul(w), 2), vector),
    "mean times n": (lambda h, w: (h * w).mean(-1) * h.shape[-1], vector),
    "mv": (lambda h, w: torch.mv(h.flatten(0, 1), w), vector),
    "dot": (lambda h, w: torch.stack([torch.dot(x, w) for x in h.flatten(0, 1)]), vector),
    "inner": (torch.inner, vector),
    "tensordot": (lambda h, w: torch.tensordot(h, w, 1), vector),
    "vecdot": (lambda h, w: torch.linalg.vecdot(h, w), vector),
    "bmm": (lambda h, w: torch.bmm(h, w.expand(len(h), -1)[..., None]), vector),
    "addmv": (lambda h, w: torch.addmv(torch.zeros(18), h.flatten(0, 1), w), vector),
    "with a bias": (lambda h, w: (h * w).sum(-1) + 1.0, vector),
    "masked": (lambda h, w: (h * w).masked_fill(~YES, 0.0).sum(-1), vector),
}


@pytest.mark.parametrize("way", READOUTS)
def test_a_vector_that_outputs_sum_over_is_a_readout(way: str) -> None:
    reads, shape = READOUTS[way]
    plan = planned(reads=reads, readout=shape)
    assert plan.roles["w"] == "readout"
    assert numbers(plan, "w") == pytest.approx(numbers(planned(readout=row), "w"))
    assert numbers(plan, "w") == pytest.approx((1 / 4, 1 / 4, 1))
    assert not differing(plan, planned(readout=row))


def test_a_mean_over_the_features_has_the_factor_of_its_readout() -> None:
    plan = planned(reads=lambda h, w: (h * w).mean(-1), readout=vector)
    assert numbers(plan, "w")[:2] == pytest.approx((1, 1))


def test_a_readout_that_is_a_vector_is_drawn_stored_and_stepped_as_one(tmp_path: Any) -> None:
    plan = planned(reads=lambda h, w: h @ w, readout=vector)
    plan.save(tmp_path / "plan.json")
    assert nfd.Plan.load(tmp_path / "plan.json") == plan
    model = plan.apply_(Language(64, 8, reads=torch.matmul, readout=vector), seed=0)
    # of 64 numbers: 6 sd's are .53
    assert model.w.detach().std() == pytest.approx(plan.std("w"), rel=0.3)
    groups = plan.param_groups(model, lr=1.0)
    assert [group["lr"] for group in groups if any(p is model.w for p in group["params"])] == [0.25]
    # all of one dimension
    spared = plan.param_groups(model, lr=1.0, weight_decay=0.1, no_decay="vectors")
    assert [
        group["weight_decay"] for group in spared if any(p is model.w for p in group["params"])
    ] == [0]


NO_READOUTS: dict[str, tuple[Way, Callable[[int], tuple[int, ...]]]] = {
    "gain and mean over tokens": (lambda h, w: (h * w).mean(1), vector),
    "gain and sum over tokens": (lambda h, w: (h * w).sum(1), vector),
    "offset": (lambda h, w: h + w, vector),
    "each head reads its own": (lambda h, w: (h * w).unflatten(-1, (-1, 8)).sum(-1), vector),
    "heads": (lambda h, w: (h.unflatten(-1, (-1, 8)) * w.view(-1, 8)).sum(-1), vector),
    "scale": (lambda h, w: (h * w).sum(-1), lambda width: (1,)),
}


@pytest.mark.parametrize("way", NO_READOUTS)
def test_a_vector_that_acts_entry_by_entry_is_none(way: str) -> None:
    reads, shape = NO_READOUTS[way]
    plan = planned(reads=reads, readout=shape)
    assert plan.roles["w"] == "vector"
    assert numbers(plan, "w")[:2] == pytest.approx((1, 1))


class Attending(nn.Module):
    """A block whose attention vector ``score(block, x)`` scales a branch, as in graph networks."""

    def __init__(self, width: int, score: Way, vector: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width, bias=False)
        self.a = vector(width)
        self.down = nn.Linear(width, width, bias=False)
        self.score = score

    def forward(self, h: Tensor) -> Tensor:
        x = self.up(self.norm(h))
        weights = torch.softmax(self.score(self, functional.leaky_relu(x, 0.2)), 1)
        return h + self.down(torch.relu(x * weights[..., None]))


def attends(score: Way, vector: Any) -> nfd.Plan:
    class Graph(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, 0)
            self.blocks = nn.ModuleList(Attending(width, score, vector) for _ in range(depth))

    return planned(make=Graph)


ATTENTIONS: dict[str, tuple[Way, Any]] = {
    "row": (lambda b, x: (x * b.a).sum(-1), lambda n: nn.Parameter(torch.randn(1, n) / n**0.5)),
    "vector": (lambda b, x: x @ b.a, lambda n: nn.Parameter(torch.randn(n) / n**0.5)),
    "one head": (
        lambda b, x: (x[..., None, :] * b.a).sum(-1)[..., 0],
        lambda n: nn.Parameter(torch.randn(1, 1, n) / n**0.5),
    ),
    "einsum": (
        lambda b, x: torch.einsum("bth,h->bt", x, b.a),
        lambda n: nn.Parameter(torch.randn(n) / n**0.5),
    ),
}


@pytest.mark.parametrize("way", ATTENTIONS)
def test_the_attention_vector_of_a_graph_network_is_a_matrix_of_one_row(way: str) -> None:
    plan = attends(*ATTENTIONS[way])
    linear = attends(lambda b, x: b.a(x)[..., 0], lambda n: nn.Linear(n, 1, bias=False))
    assert numbers(plan, "blocks.1.a") == pytest.approx(numbers(linear, "blocks.1.a.weight"))
    assert numbers(plan, "blocks.1.a")[:2] == pytest.approx((1 / 4, 1 / 4))
    assert not differing(plan, linear)


def test_attention_vectors_of_heads_that_keep_their_size_keep_their_start() -> None:
    def score(block: Any, x: Tensor) -> Tensor:
        return (x.unflatten(-1, (-1, 8)) * block.a).sum(-1).mean(-1)

    plan = attends(score, lambda n: nn.Parameter(torch.randn(1, n // 8, 8)))
    assert numbers(plan, "blocks.1.a")[:2] == pytest.approx((1, 1))


# ---- learned queries


class Pooled(nn.Module):
    """Inputs to numbers through attention of a learned query: ``first(model, query, x)`` is what it
    enters first.
    """

    def __init__(
        self, width: int, depth: int, first: Way, shape: Callable[[int], tuple[int, ...]]
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.ModuleList(Block(width, depth, usual, None) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.query = nn.Parameter(torch.randn(shape(width)))
        self.before = nn.LayerNorm(width)
        self.place = nn.Parameter(torch.randn(width))
        self.bare = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, width // 8, batch_first=True)
        self.head = nn.Linear(width, SYMBOLS)
        self.first = first

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(self.first(self, self.query, self.norm(h)).mean(1))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 8)).transpose(1, 2)


def attended(model: Any, q: Tensor, x: Tensor) -> Tensor:
    """Attention of queries [1 or batch, number, width]."""
    q = q.expand(len(x), -1, -1)
    y = functional.scaled_dot_product_attention(heads(q), heads(model.k(x)), heads(model.v(x)))
    return y.transpose(1, 2).flatten(2)


def by_hand(model: Any, q: Tensor, x: Tensor) -> Tensor:
    q = q.expand(len(x), -1, -1)
    weights = torch.softmax(heads(q) @ heads(model.k(x)).mT / 8**0.5, -1)
    return (weights @ heads(model.v(x))).transpose(1, 2).flatten(2)


def of_width(*sizes: int) -> Callable[[int], tuple[int, ...]]:
    return lambda width: (*sizes, width)


QUERIES: dict[str, tuple[Way, Callable[[int], tuple[int, ...]]]] = {
    "expand": (lambda m, q, x: attended(m, m.q(q.expand(len(x), -1, -1)), x), of_width(1, 1)),
    "repeat": (lambda m, q, x: attended(m, m.q(q.repeat(len(x), 1, 1)), x), of_width(1, 1)),
    "row": (lambda m, q, x: attended(m, m.q(q)[None], x), of_width(1)),
    "vector": (lambda m, q, x: attended(m, m.q(q)[None, None], x), vector),
    "latents": (lambda m, q, x: attended(m, m.q(q)[None], x), of_width(5)),
    "batch of latents": (
        lambda m, q, x: attended(m, m.q(q.expand(len(x), -1, -1)), x),
        of_width(1, 5),
    ),
    "norm first": (lambda m, q, x: attended(m, m.q(m.before(q)), x), of_width(1, 5)),
    "with a place": (lambda m, q, x: attended(m, m.q(q + m.place), x), of_width(1, 5)),
    "scaled": (lambda m, q, x: attended(m, m.q(3 * q), x), of_width(1, 5)),
    "einsum": (
        lambda m, q, x: attended(m, torch.einsum("bkn,mn->bkm", q, m.q.weight), x),
        of_width(1, 5),
    ),
    "bare matrix": (lambda m, q, x: attended(m, q @ m.bare, x), of_width(1, 1)),
    "module": (lambda m, q, x: m.attention(q.expand(len(x), -1, -1), x, x)[0], of_width(1, 5)),
    "self attention": (
        lambda m, q, x: m.attention(*3 * (torch.cat([q.expand(len(x), -1, -1), x], 1),))[0],
        of_width(1, 5),
    ),
    "attention first": (attended, of_width(1, 5)),
    "attention by hand first": (by_hand, of_width(1, 1)),
    "latents by hand first": (by_hand, of_width(1, 5)),
}


@pytest.mark.parametrize("way", QUERIES)
def test_a_learned_query_is_an_embedding(way: str) -> None:
    first, shape = QUERIES[way]
    plan = planned(make=Pooled, first=first, shape=shape)
    assert plan.roles["query"] in ("embedding", "vector")
    assert numbers(plan, "query")[:2] == pytest.approx((1, 1))
    assert not differing(
        plan, planned(make=Pooled, first=first, shape=shape, roles={"query": "embedding"})
    )
    for name in ("q.weight", "k.weight"):
        assert numbers(plan, name)[:2] == pytest.approx((1 / 2, 1 / 4)), name


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_learned_query_is_an_embedding_under_every_optimizer(optimizer: str) -> None:
    first, shape = QUERIES["expand"]
    options: dict[str, Any] = {
        "make": Pooled,
        "optimizer": optimizer,
        "first": first,
        "shape": shape,
    }
    plan = planned(**options)
    given = planned(**options, roles={"query": "embedding"})
    assert plan.roles["query"] == "embedding"
    assert not differing(plan, given)


@pytest.mark.parametrize("fused", [True, False])
def test_a_query_that_one_head_compares_whole_is_a_readout_of_its_keys(fused: bool) -> None:
    """The sum over n entries is divided by their root: the factors of 1/n lack that of the root."""

    def first(model: Any, q: Tensor, x: Tensor) -> Tensor:
        keys = model.k(x)
        values = model.v(x)
        q = q.expand(len(x), -1, -1)
        if fused:
            return functional.scaled_dot_product_attention(q, keys, values)
        return torch.softmax(q @ keys.mT / q.shape[-1] ** 0.5, -1) @ values

    plan = planned("mup", Pooled, first=first, shape=of_width(1, 1))
    assert plan.roles["query"] == "readout"
    assert numbers(plan, "query")[:2] == pytest.approx((1 / 2, 1 / 2))


def test_a_table_that_enters_a_matrix_is_an_embedding() -> None:
    """As the queries of DETR, which are the weight of an ``nn.Embedding`` that nothing looks up."""

    class Detector(Pooled):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth, QUERIES["latents"][0], of_width(5))
            self.queries = nn.Embedding(5, width)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(
                self.first(self, self.queries.weight, self.norm(self.embed(ids))).mean(1)
            )

    plan = planned("mup", Detector, roles={"query": "embedding"})
    assert plan.roles["queries.weight"] == "embedding"
    assert numbers(plan, "queries.weight")[:2] == pytest.approx((1, 1))


def test_a_product_of_two_matrices_has_no_query() -> None:
    """A readout that is computed from a matrix and a vector: both are weights."""

    class Composed(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.c = nn.Parameter(torch.randn(width, width))
            self.d = nn.Parameter(torch.randn(width))

        def forward(self, ids: Tensor) -> Tensor:
            return self.final(self.embed(ids)) @ (self.c @ self.d)

    plan = planned("mup", Composed, roles={"w": "readout"})
    assert plan.roles["c"] == "hidden"
    assert plan.roles["d"] == "readout"


# ---- heads that are tied, distances, and blocks within and without


class Tied(Language):
    """The embedding is the head, ``head(model, h)``; the final norm takes what the head lacks."""

    def __init__(self, width: int, depth: int, head: Way) -> None:
        super().__init__(width, depth)
        self.head = head
        del self.w

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(self, self.final(h))


HEADS: dict[str, tuple[Way, float]] = {
    "plain": (lambda m, h: functional.linear(h, m.embed.weight), 1 / 4),
    "over n": (lambda m, h: h @ m.embed.weight.t() / h.shape[-1], 1),
    "normalised": (lambda m, h: h @ unit(m.embed.weight).t(), 1 / 2),
    "normalised by hand": (lambda m, h: h @ (m.embed.weight / length(m.embed.weight)).t(), 1 / 2),
    "cosine": (lambda m, h: functional.linear(unit(h), unit(m.embed.weight)), 1),
    "distance over n": (
        lambda m, h: -torch.cdist(h, m.embed.weight[None]).square() / h.shape[-1],
        1,
    ),
}


@pytest.mark.parametrize("way", HEADS)
def test_the_norm_before_a_tied_head_takes_what_the_head_lacks(way: str) -> None:
    """Rows of the head have entries of order one, or n^-1/2 where they are normalised; the factor
    is 1/n over that.
    """
    head, factor = HEADS[way]
    plan = planned(make=Tied, head=head)
    assert plan.roles["embed.weight"] == "tied"
    assert numbers(plan, "embed.weight")[:2] == pytest.approx((1, 1))
    assert numbers(plan, "final.weight")[0] == pytest.approx(factor)
    assert not plan.multipliers


DISTANCES: dict[str, tuple[Way, float]] = {
    "cdist squared over n": (lambda h, w: -(torch.cdist(h, w[None]) ** 2) / h.shape[-1], 1),
    "cdist squared": (lambda h, w: -torch.cdist(h, w[None]).square(), 1 / 4),
    "cdist": (lambda h, w: -torch.cdist(h, w[None]), 1 / 2),
    "cdist over the root": (lambda h, w: -torch.cdist(h, w[None]) / h.shape[-1] ** 0.5, 1),
    "mean of squares": (lambda h, w: -(h[..., None, :] - w).square().mean(-1), 1),
    "sum of squares over n": (lambda h, w: -((w - h[..., None, :]) ** 2).sum(-1) / h.shape[-1], 1),
    "sum of squares": (lambda h, w: -(h[..., None, :] - w).pow(2).sum(-1), 1 / 4),
    "norm": (lambda h, w: -(h[..., None, :] - w).norm(dim=-1), 1 / 2),
    "root of a sum": (lambda h, w: -(h[..., None, :] - w).pow(2).sum(-1).sqrt(), 1 / 2),
    "written out": (lambda h, w: (2 * h @ w.t() - w.square().sum(-1)) / h.shape[-1], 1),
}


@pytest.mark.parametrize("way", DISTANCES)
def test_prototypes_are_a_readout_with_the_constant_of_their_distance(way: str) -> None:
    """Logits move by ``h dp`` times the constant: 1/n in all, of which the constant may be all,
    half or none.
    """
    reads, factor = DISTANCES[way]
    plan = planned(reads=reads)
    assert plan.roles["w"] == "readout"
    assert numbers(plan, "w")[:2] == pytest.approx((factor, factor))


def test_what_is_subtracted_and_normalised_is_no_prototype() -> None:
    class Centred(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.centre = nn.Parameter(torch.zeros(width))
            self.final = nn.Sequential(Minus(self.centre), nn.LayerNorm(width))

    class Minus(nn.Module):
        def __init__(self, centre: nn.Parameter) -> None:
            super().__init__()
            self.centre = centre

        def forward(self, h: Tensor) -> Tensor:
            return h - self.centre

    plan = planned(make=Centred)
    assert plan.roles["centre"] == "vector"
    assert numbers(plan, "centre")[:2] == pytest.approx((1, 1))


class Autoencoder(nn.Module):
    """One matrix that reads and, turned, writes."""

    def __init__(self, width: int, depth: int, writes: Way, normed: bool = False) -> None:
        super().__init__()
        self.encode = nn.Linear(7, width)
        self.writes = writes
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.writes(self.norm(torch.relu(self.encode(x))), self.encode.weight)


ROWS = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))


def test_tied_ends_of_an_autoencoder_take_their_factor_or_are_refused() -> None:
    over_n = planned("mup", Autoencoder, ROWS, writes=lambda h, w: h @ w / h.shape[-1])
    assert over_n.roles["encode.weight"] == "tied"
    assert numbers(over_n, "encode.weight")[:2] == pytest.approx((1, 1))
    by_norm = planned(
        "mup", Autoencoder, ROWS, writes=lambda h, w: functional.linear(h, w.t()), normed=True
    )
    assert by_norm.constant("norm.weight") == pytest.approx(1 / 4)
    assert numbers(by_norm, "encode.weight")[:2] == pytest.approx((1, 1))
    with pytest.raises(
        ValueError, match=r"'encode.weight' is the head as well.*divide its output by the width"
    ):
        planned("mup", Autoencoder, ROWS, writes=lambda h, w: h @ w)


class Inside(nn.Module):
    """A block whose branch holds two residual blocks and a matrix behind them: a residual in a
    residual.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Block(width, 1, usual, None) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        y = h
        for part in self.parts:
            y = part(y)
        return h + self.out(y)


class Nested(Language):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, 0)
        self.blocks = nn.ModuleList(Inside(width, depth) for _ in range(depth))


class Global(Language):
    """All blocks lie in one branch, past which the stream has a skip of its own, as in image
    restoration.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth, adds=lambda block, h, z: h + block.down(z))
        self.last = nn.Linear(width, width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        first = h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.reads(self.final(first + self.last(h)), self.w)


def test_a_residual_in_a_residual_keeps_its_size() -> None:
    """The matrix behind it has 1/L; with 1/L inside, too, what is inside would fade as the depth
    grows.
    """
    plan = planned(make=Nested)
    assert numbers(plan, "blocks.1.out.weight")[:2] == pytest.approx((1 / 8, 1 / 16))
    assert plan.roles["blocks.1.parts.0.down.weight"] == "inner"
    assert numbers(plan, "blocks.1.parts.0.down.weight")[:2] == pytest.approx((1 / 2, 1 / 4))
    outside = planned(make=Global)
    assert outside.roles["blocks.1.down.weight"] == "outer"
    assert numbers(outside, "blocks.1.down.weight")[:2] == pytest.approx((1 / 8, 1 / 16))


class Shared(Language):
    """Blocks that are applied again and again; ``kinds`` of them, or one that is no list."""

    def __init__(self, width: int, depth: int, kinds: int = 2) -> None:
        super().__init__(width, 0)
        blocks = [Block(width, 1, usual, None) for _ in range(kinds)]
        self.blocks = nn.ModuleList(blocks)
        self.times = depth // kinds
        if kinds == 1:
            del self.blocks
            self.block = blocks[0]

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for _ in range(self.times):
            for block in self.blocks if hasattr(self, "blocks") else [self.block]:
                h = block(h)
        return self.reads(self.final(h), self.w)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_blocks_that_are_applied_again_are_as_deep_as_blocks_of_their_own(optimizer: str) -> None:
    plain = planned(adds=lambda block, h, z: h + block.down(z), optimizer=optimizer)
    two = planned(make=Shared, optimizer=optimizer)
    assert two.depth == plain.depth == 4
    # Rates are equal. Epsilon follows the gradient, which is a sum over 4 times as many uses.
    again = {f"blocks.{k}.{tensor}" for k in (0, 1) for tensor in OF_BLOCK}
    assert {*differing(two, plain)} == again
    for name in again:
        start, rate, epsilon = numbers(plain, name)
        assert numbers(two, name) == pytest.approx((start, rate, 4 * epsilon))
    assert any("again and again" in note for note in two.notes)
    one = nfd.plan(
        Shared(64, 8, 1),
        make_model=lambda width, depth: Shared(width, depth, 1),
        base=(16, 2),
        sample=IDS,
        blocks="block",
        optimizer=optimizer,
    )
    assert numbers(one, "block.down.weight") == pytest.approx(numbers(two, "blocks.0.down.weight"))
    assert not any("again and again" in note for note in plain.notes)


OF_BLOCK = ("norm.weight", "norm.bias", "up.weight", "down.weight")


class Held(Shared):
    """A list that holds the same blocks several times, as ALBERT's could."""

    def __init__(self, width: int, depth: int, kinds: int = 2) -> None:
        super().__init__(width, depth, 2)
        self.blocks = nn.ModuleList(self.blocks[k % kinds] for k in range(depth))
        self.times = 1


@pytest.mark.parametrize("kinds", [1, 2])
def test_a_list_that_holds_a_block_again_is_planned_as_one_that_is_applied_again(
    kinds: int,
) -> None:
    held = planned(make=Held, kinds=kinds)
    two = planned(make=Shared)
    assert held.depth == two.depth == 4
    for tensor in OF_BLOCK:
        name = f"blocks.0.{tensor}"
        assert numbers(held, name) == pytest.approx(numbers(two, name))
    with pytest.raises(ValueError, match=r"'blocks.0' is applied again and again"):
        planned(make=Held, kinds=kinds, optimizer="sgd")


def test_checks_of_blocks_that_are_applied_again_say_why_they_need_one_depth() -> None:
    batches = [(IDS, IDS)]
    with pytest.raises(ValueError, match=r"same tensors.*applies again and again are planned"):
        nfd.check(Shared, batches, [16], [2, 4], lr=1e-3)


class SharingOne(Shared):
    """Blocks of their own that share one matrix, which acts in each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth, depth)
        for block in self.blocks:
            block.up = self.blocks[0].up


def test_of_blocks_that_share_a_matrix_only_its_gradient_adds_up() -> None:
    plain = planned(adds=lambda block, h, z: h + block.down(z))
    plan = planned(make=SharingOne)
    assert plan.depth == 4
    assert {*differing(plan, plain)} == {"blocks.0.up.weight"}
    assert plan.epsilon("blocks.0.up.weight") == pytest.approx(
        4 * plain.epsilon("blocks.0.up.weight")
    )


@pytest.mark.parametrize("make", [Shared, Held])
def test_epsilon_follows_the_gradient_of_blocks_that_are_applied_again(
    make: type[Shared],
) -> None:
    def gradients(depth: int) -> tuple[nfd.Plan, dict[str, float]]:
        plan = nfd.plan(make(64, depth), make_model=make, base=(64, 4), sample=IDS)
        squares = dict.fromkeys(("up.weight", "down.weight"), 0.0)
        for seed in range(8):
            model = make(64, depth)
            plan.apply_(model, seed=seed)
            functional.cross_entropy(model(IDS).flatten(0, -2), IDS.flatten()).backward()
            for tensor in squares:
                gradient = model.get_parameter(f"blocks.0.{tensor}").grad
                squares[tensor] += gradient.square().mean().item()
        return plan, squares

    _, shallow = gradients(4)
    plan, deep = gradients(32)
    for tensor, square in deep.items():
        measured = (square / shallow[tensor]) ** 0.5
        # Measured 0.9 to 1.1 times; without the sum over uses it would be 8 times.
        assert measured == pytest.approx(plan.epsilon(f"blocks.0.{tensor}"), rel=0.4)


class TwoStreams(Language):
    """Blocks of an encoder, whose stream every block of the decoder reads."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, 0)
        self.encoder = nn.ModuleList(Block(width, 1, usual, None) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, 1, usual, None) for _ in range(depth))
        self.reading = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        memory = self.embed(ids)
        h = self.embed(ids.flip(1))
        for block in self.encoder:
            memory = block(memory)
        for block, read in zip(self.decoder, self.reading, strict=True):
            h = block(h + read(torch.tanh(memory * h)))
        return self.reads(self.final(h), self.w)


def test_blocks_that_many_blocks_of_another_stream_read_count_once() -> None:
    plan = planned(make=TwoStreams)
    assert plan.rate("encoder.0.down.weight") == pytest.approx(1 / 16)
    assert plan.rate("decoder.0.down.weight") == pytest.approx(1 / 16)
    assert not any("again and again" in note for note in plan.notes)


def test_shared_blocks_are_named_where_none_are_found_and_refused_where_no_limit_is() -> None:
    with pytest.raises(ValueError, match=r"'block.norm.weight' acts in 8 branches.*blocks='block'"):
        planned(make=Shared, kinds=1)
    with pytest.raises(ValueError, match=r"'blocks.0' is applied again and again.*'complete-p'"):
        planned("depth-mup", make=Shared)
    with pytest.raises(
        ValueError, match=r"'blocks.0' is applied again and again.*optimizer='adamw'"
    ):
        planned(make=Shared, optimizer="sgd")
    assert planned("mup", make=Shared, optimizer="sgd").depth == 1


# ---- learned numbers on the stream


class Mixing(Language):
    """A stream to which ``mixes(model, k, h, states)`` is done before block k; ``states``: after
    each block.
    """

    def __init__(
        self, width: int, depth: int, mixes: Way, kept: float = 1.0, first: float = 0.0
    ) -> None:
        super().__init__(width, depth, adds=lambda block, h, z: h + block.down(z))
        self.kept = nn.Parameter(torch.full((depth,), kept))
        self.first = nn.Parameter(torch.full((depth,), first))
        self.skips = nn.Parameter(torch.ones(depth // 2))
        self.pairs = nn.Parameter(torch.tensor([[kept, first]]).repeat(depth, 1))
        self.one = nn.Parameter(torch.tensor(kept))
        self.channels = nn.Parameter(torch.full((depth, width), kept))
        self.mixes = mixes

    def forward(self, ids: Tensor) -> Tensor:
        h = functional.rms_norm(self.embed(ids), (self.final.normalized_shape[0],))
        states = [h]
        for k, block in enumerate(self.blocks):
            h = block(self.mixes(self, k, h, states))
            states.append(h)
        return self.reads(self.final(h), self.w)


def back(model: Any, k: int, states: list[Tensor]) -> Tensor:
    """The state to which block k of the second half goes back."""
    return states[len(model.blocks) - k]


def is_late(model: Any, k: int) -> bool:
    return 2 * k >= len(model.blocks)


def skip_of(model: Any, k: int) -> Tensor:
    number: Tensor = model.skips[k - len(model.blocks) // 2]
    return number


NUMBERS: dict[str, tuple[Way, dict[str, str]]] = {
    "nanochat": (
        lambda m, k, h, s: m.kept[k] * h + m.first[k] * s[0],
        {"kept": "skip", "first": "outer"},
    ),
    "addcmul": (
        lambda m, k, h, s: torch.addcmul(h * m.kept[k], m.first[k], s[0]),
        {"kept": "skip", "first": "outer"},
    ),
    "pairs": (lambda m, k, h, s: m.pairs[k, 0] * h + m.pairs[k, 1] * s[0], {"pairs": "skip"}),
    "for each feature": (lambda m, k, h, s: m.channels[k] * h, {"channels": "skip"}),
    "one for all": (lambda m, k, h, s: h * m.one, {"one": "skip"}),
    "U-net": (
        lambda m, k, h, s: h + skip_of(m, k) * back(m, k, s) if is_late(m, k) else h,
        {"skips": "outer"},
    ),
    "U-net by addcmul": (
        lambda m, k, h, s: torch.addcmul(h, skip_of(m, k), back(m, k, s)) if is_late(m, k) else h,
        {"skips": "outer"},
    ),
}


@pytest.mark.parametrize("way", NUMBERS)
def test_learned_numbers_on_the_stream_move_as_one_over_the_depth(way: str) -> None:
    """L of them, each moved by d, multiply the stream by (1 + d)^L; what they add to it has the
    factor of a branch.
    """
    mixes, roles = NUMBERS[way]
    given = {
        name: "vector"
        for name in ("kept", "first", "skips", "pairs", "one", "channels")
        if name not in roles
    }
    plan = planned(make=Mixing, mixes=mixes, roles=given)
    for name, role in roles.items():
        assert plan.roles[name] == role
        assert numbers(plan, name)[:2] == pytest.approx((1 if role == "skip" else 1 / 4, 1 / 4)), (
            name
        )
    without = planned(adds=lambda block, h, z: h + block.down(z))
    assert not differing(plan, without)
    if way != "one for all":
        by_gradients = planned(make=Mixing, mixes=mixes, roles=given, optimizer="sgd")
        assert by_gradients.rate(next(iter(roles))) == pytest.approx(
            1 if way == "for each feature" else 1 / 4
        )
    other = planned("mup", make=Mixing, mixes=mixes, roles=given)
    assert all(numbers(other, name)[:2] == pytest.approx((1, 1)) for name in roles)


def test_numbers_that_add_an_earlier_stream_begin_smaller_in_a_deeper_model() -> None:
    given = dict.fromkeys(("skips", "pairs", "one", "channels"), "vector")
    plan = planned(make=Mixing, mixes=NUMBERS["nanochat"][0], first=0.2, roles=given)
    assert plan.constant("first") == pytest.approx(0.05)
    assert plan.constant("kept") == 1
    given = dict.fromkeys(("kept", "first", "pairs", "one", "channels"), "vector")
    model = Mixing(64, 8, NUMBERS["U-net"][0])
    plan = planned(make=Mixing, mixes=NUMBERS["U-net"][0], roles=given)
    assert plan.apply_(model, seed=0).skips.tolist() == pytest.approx([0.25] * 4)


def test_numbers_on_the_stream_that_no_rule_scales_are_refused() -> None:
    given = dict.fromkeys(("skips", "pairs", "one", "channels"), "vector")
    with pytest.raises(ValueError, match=r"multiplied by 'kept', which are not all 1 at first"):
        planned(make=Mixing, mixes=NUMBERS["nanochat"][0], kept=0.9, roles=given)
    with pytest.raises(ValueError, match=r"first: adds an earlier part.*rule='complete-p'"):
        planned("depth-mup", make=Mixing, mixes=NUMBERS["nanochat"][0], first=0.2, roles=given)
    given = dict.fromkeys(("skips", "kept", "first", "one", "channels"), "vector")
    with pytest.raises(
        ValueError, match=r"pairs: it multiplies the stream, and what is added.*two tensors"
    ):
        planned(make=Mixing, mixes=NUMBERS["pairs"][0], first=0.2, roles=given)
    given = dict.fromkeys(("skips", "kept", "first", "pairs", "channels"), "vector")
    with pytest.raises(
        ValueError, match=r"'one' multiplies the stream at every block.*a number for each block"
    ):
        planned(make=Mixing, mixes=NUMBERS["one for all"][0], optimizer="sgd", roles=given)


def test_a_number_that_acts_once_is_no_number_of_depth() -> None:
    given = dict.fromkeys(("skips", "kept", "first", "pairs", "channels"), "vector")
    once = planned(make=Mixing, mixes=lambda m, k, h, s: m.one * h if k == 1 else h, roles=given)
    assert once.roles["one"] == "vector"
    assert once.rate("one") == 1


# ---- products of data with data


class Products(nn.Module):
    """Rows of a table, of which each is compared with each, ``compare(x)``, before a network reads
    what comes of it.
    """

    def __init__(self, width: int, depth: int, compare: Way) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.compare = compare
        self.first = nn.Linear(36, width)
        self.last = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.compare(self.embed(ids)).flatten(1))))


PRODUCTS: dict[str, tuple[Way, float]] = {
    "over n": (lambda x: x @ x.mT / x.shape[-1], 1),
    "over the root": (lambda x: x @ x.mT / x.shape[-1] ** 0.5, 1 / 2),
    "unscaled": (lambda x: x @ x.mT, 1 / 4),
    "einsum over n": (lambda x: torch.einsum("bin,bjn->bij", x, x) / x.shape[-1], 1),
    "cosines": (lambda x: unit(x) @ unit(x).mT, 1),
    "cosines over the root": (lambda x: unit(x) @ unit(x).mT / x.shape[-1] ** 0.5, 2),
    "rms_norm over n": (
        lambda x: (lambda y: y @ y.mT)(functional.rms_norm(x, x.shape[-1:])) / x.shape[-1],
        1,
    ),
    "mean": (lambda x: torch.softmax(x, -1) @ x.mT, 1),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_what_reads_products_has_the_factor_of_their_number(way: str) -> None:
    """A sum of n products is of order n once these fit each other; a mean is of order one."""
    compare, factor = PRODUCTS[way]
    plan = planned("mup", make=Products, compare=compare)
    assert numbers(plan, "first.weight")[:2] == pytest.approx((factor, factor))


class Cosines(nn.Module):
    """Attention of two heads that grow: ``compare(q)`` is done to queries and keys, a learned
    number multiplies.
    """

    def __init__(self, width: int, compare: Way, by_logits: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.tau = nn.Parameter(torch.tensor(5.0))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.compare = compare
        self.by_logits = by_logits

    def forward(self, h: Tensor) -> Tensor:
        y = self.norm(h)
        q, k, v = (
            part(y).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q = self.compare(q)
        k = self.compare(k)
        logits = self.tau * (q @ k.mT) if self.by_logits else self.tau * q @ k.mT
        return h + self.o((torch.softmax(logits, -1) @ v).transpose(1, 2).flatten(2))


def of_cosines(compare: Way, by_logits: bool) -> nfd.Plan:
    class Model(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, 0)
            self.blocks = nn.ModuleList(Cosines(width, compare, by_logits) for _ in range(depth))

    return planned(make=Model)


@pytest.mark.parametrize("by_logits", [True, False])
def test_cosines_of_growing_heads_are_of_order_one(by_logits: bool) -> None:
    plan = of_cosines(unit, by_logits)
    assert numbers(plan, "blocks.1.tau")[:2] == pytest.approx((1, 1))
    assert not any("heads grow" in note for note in plan.notes)
    root = of_cosines(lambda x: x / x.shape[-1] ** 0.25, by_logits)
    (note,) = [note for note in root.notes if "heads grow" in note]
    assert "are 2 times as large" in note


# ---- low-rank products of parameters


class LowRank(nn.Module):
    """A block of two thin matrices, A [n, r] and B [r, n]: ``adds(block, h, x)`` for normalised
    x.
    """

    def __init__(self, width: int, depth: int, rank: int, adds: Way) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rank = rank
        self.depth = depth
        self.adds = adds
        self.A = nn.Parameter(torch.randn(width, rank) / width**0.5)
        self.B = nn.Parameter(torch.randn(rank, width) / rank**0.5)

    def forward(self, h: Tensor) -> Tensor:
        return self.adds(self, h, self.norm(h))


def of_rank(rank: Callable[[int], int], adds: Way, rule: str) -> nfd.Plan:
    class Model(Language):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, 0)
            self.blocks = nn.ModuleList(
                LowRank(width, depth, rank(width), adds) for _ in range(depth)
            )

    return planned(rule, make=Model)


def in_turn(block: Any, h: Tensor, x: Tensor) -> Tensor:
    """The two matrices one after the other, as two layers are."""
    y: Tensor = x @ block.A @ block.B
    return h + y / block.rank / block.depth


LOW_RANK: dict[str, Way] = {
    "product": lambda b, h, x: h + x @ (b.A @ b.B) / b.rank / b.depth,
    "linear": lambda b, h, x: h + functional.linear(x, (b.A @ b.B).t()) / b.rank / b.depth,
    "linear turned": lambda b, h, x: h + functional.linear(x, b.B.t() @ b.A.t()) / b.rank / b.depth,
    "over r first": lambda b, h, x: h + x @ (b.A @ b.B / b.rank) / b.depth,
    "einsum": lambda b, h, x: h + x @ torch.einsum("nr,rm->nm", b.A, b.B) / b.rank / b.depth,
    "einsum of three": lambda b, h, x: (
        h + torch.einsum("btn,nr,rm->btm", x, b.A, b.B) / b.rank / b.depth
    ),
    "bmm": lambda b, h, x: (
        h + torch.bmm(x, torch.bmm(b.A[None], b.B[None]).expand(len(x), -1, -1)) / b.rank / b.depth
    ),
}


@pytest.mark.parametrize("rule", ["mup", "complete-p"])
@pytest.mark.parametrize("rank", [lambda width: 4, lambda width: width // 4, lambda width: width])
@pytest.mark.parametrize("way", LOW_RANK)
def test_a_product_of_two_parameters_is_planned_as_two_layers(
    way: str, rank: Callable[[int], int], rule: str
) -> None:
    plan = of_rank(rank, LOW_RANK[way], rule)
    layers = of_rank(rank, in_turn, rule)
    assert not differing(plan, layers)


def test_the_factor_that_acts_first_reads_and_the_last_one_writes() -> None:
    def turned(block: Any, h: Tensor, x: Tensor) -> Tensor:
        y: Tensor = functional.linear(x, block.A @ block.B)
        return h + y

    plan = of_rank(lambda width: width // 4, turned, "complete-p")
    assert plan.roles["blocks.1.B"] == "inner"
    assert plan.roles["blocks.1.A"] == "outer"
    assert numbers(plan, "blocks.1.A")[:2] == pytest.approx((1 / 8, 1 / 16))
    assert numbers(plan, "blocks.1.B")[:2] == pytest.approx((1 / 2, 1 / 4))


# ---- streams that are added up anew, and layers in one tensor


class TwoBranches(nn.Module):
    """Two branches a block; ``stream(embedded, branches)`` adds them up."""

    def __init__(self, width: int, depth: int, stream: Way) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.position = nn.Parameter(0.02 * torch.randn(IDS.shape[1], width))
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    nn.LayerNorm(width),
                    nn.Linear(width, 2 * width),
                    nn.ReLU(),
                    nn.Linear(2 * width, width),
                )
                for _ in range(2)
            )
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, SYMBOLS))
        self.stream = stream

    def forward(self, ids: Tensor) -> Tensor:
        branches = [branch for block in self.blocks for branch in block]
        out: Tensor = self.head(self.stream(self.embed(ids) + self.position, branches))
        return out


Branches = list[Callable[[Tensor], Tensor]]


def kept_stream(h: Tensor, branches: Branches) -> Tensor:
    for branch in branches:
        h = h + branch(h)
    return h


def listed(add: Callable[[list[Tensor]], Tensor]) -> Way:
    """The stream as a list of summands."""

    def stream(h: Tensor, branches: Branches) -> Tensor:
        parts = [h]
        for branch in branches:
            parts.append(branch(add(parts)))
        return add(parts)

    return stream


def beside(h: Tensor, branches: Branches) -> Tensor:
    """The sum of all branches beside the input."""
    changes = torch.zeros_like(h)
    for branch in branches:
        changes = changes + branch(h + changes)
    return h + changes


def subtracted(h: Tensor, branches: Branches) -> Tensor:
    changes = torch.zeros_like(h)
    for branch in branches:
        changes = changes + branch(h - changes)
    return h - changes


def listed_beside(h: Tensor, branches: Branches) -> Tensor:
    changes: list[Tensor] = []
    for branch in branches:
        changes.append(branch(h + sum(changes)))
    return h + sum(changes)


def two_sums(h: Tensor, branches: Branches) -> Tensor:
    first = second = torch.zeros_like(h)
    for k in range(0, len(branches), 2):
        first = first + branches[k](h + first + second)
        second = second + branches[k + 1](h + first + second)
    return h + first + second


SUMMANDS: dict[str, Way] = {
    "sum of a list": listed(lambda parts: torch.as_tensor(sum(parts))),
    "latest first": listed(lambda parts: torch.as_tensor(sum(parts[::-1]))),
    "sum of a stack": listed(lambda parts: torch.stack(parts).sum(0)),
    "mean of a stack": listed(lambda parts: torch.stack(parts).mean(0) * len(parts)),
    "beside the input": beside,
    "subtracted": subtracted,
    "a list beside the input": listed_beside,
    "two sums": two_sums,
}


@pytest.mark.parametrize("way", SUMMANDS)
def test_a_stream_that_is_added_up_anew_is_one_stream(way: str) -> None:
    twin = planned(make=TwoBranches, stream=kept_stream)
    assert twin.roles["blocks.1.0.3.weight"] == "outer"
    assert not differing(planned(make=TwoBranches, stream=SUMMANDS[way]), twin)


def test_branches_that_read_only_the_input_are_not_of_one_stream() -> None:
    """Sums of the same shape that no branch reads: the last matrix is one of many summands."""

    def wide(h: Tensor, branches: Branches) -> Tensor:
        return h + torch.as_tensor(sum(branch(h) for branch in branches))

    twin = planned("mup", make=TwoBranches, stream=kept_stream)
    assert not differing(planned("mup", make=TwoBranches, stream=wide), twin)


class Layers(nn.Module):
    """Layers whose matrices and biases are held in one tensor each, or by modules."""

    def __init__(self, width: int, depth: int, take: Way | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, SYMBOLS, bias=False)
        self.take = take
        for layer in self.layers:
            nn.init.zeros_(layer.bias)
        if take is not None:
            self.weight = nn.Parameter(torch.stack([layer.weight for layer in self.layers]))
            self.bias = nn.Parameter(torch.stack([layer.bias for layer in self.layers]))
            del self.layers

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for k, norm in enumerate(self.norms):
            if self.take is None:
                h = h + self.layers[k](norm(h))
            else:
                h = h + functional.linear(norm(h), *self.take(self, k))
        return self.head(h)


TAKEN: dict[str, Way] = {
    "index": lambda m, k: (m.weight[k], m.bias[k]),
    "unbind": lambda m, k: (m.weight.unbind()[k], m.bias.unbind()[k]),
    "slice": lambda m, k: (m.weight[k : k + 1][0], m.bias[k : k + 1][0]),
    "chunk": lambda m, k: tuple(p.chunk(len(m.norms))[k][0] for p in (m.weight, m.bias)),
}


@pytest.mark.parametrize("way", TAKEN)
def test_layers_in_one_tensor_are_planned_as_layers_or_refused(way: str) -> None:
    stacked = planned("mup", make=Layers, take=TAKEN[way])
    twin = planned("mup", make=Layers, take=None)
    for name in ("weight", "bias"):
        of_layer = numbers(twin, f"layers.1.{name}")
        if name == "weight":
            assert numbers(stacked, name) == pytest.approx(of_layer, rel=1e-4)
        else:
            # The start is zero.
            assert stacked.rate(name) == pytest.approx(of_layer[1])
            assert stacked.epsilon(name) == pytest.approx(of_layer[2])
    with pytest.raises(ValueError, match=r"'weight', 'bias' hold a slice.*nn\.ModuleList"):
        planned(make=Layers, take=TAKEN[way])


class OfEveryLayer(Language):
    """A table of vectors, one for each layer, that are added to the stream."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.layer = nn.Parameter(torch.randn(depth, width))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for k, block in enumerate(self.blocks):
            h = block(h + self.layer[k])
        return self.reads(self.final(h), self.w)


def test_what_every_layer_adds_to_the_stream_may_be_one_table() -> None:
    assert planned(make=OfEveryLayer).roles["layer"] == "embedding"


# ---- matrices that are made of parameters


class OfParameters(Language):
    """A matrix [n, n] before the readout: ``matrix(model, n)``."""

    def __init__(
        self, width: int, depth: int, matrix: Way, shapes: Callable[[int], dict[str, Any]]
    ) -> None:
        super().__init__(width, depth)
        for name, part in shapes(width).items():
            setattr(self, name, part)
        self.matrix = matrix
        self.register_buffer("task", torch.ones(8))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.reads(torch.relu(self.final(h) @ self.matrix(self, h.shape[-1]).t()), self.w)


def entries(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)


def of_gains(*gains: int) -> Callable[[int], dict[str, Any]]:
    """A matrix, and gains of these sizes, -1 for the width."""
    return lambda n: {
        "m": entries(n, n),
        "g": nn.Parameter(torch.ones([n if k == -1 else k for k in gains])),
    }


MADE: dict[str, tuple[Way, Callable[[int], dict[str, Any]], str]] = {
    "flat": (lambda m, n: m.m.view(n, n), lambda n: {"m": entries(n * n)}, "'m' is kept as"),
    "flat and scaled": (
        lambda m, n: 2 * m.m.reshape(n, n).t(),
        lambda n: {"m": entries(n * n)},
        "'m' is kept as",
    ),
    "generated": (
        lambda m, n: m.make(m.task).view(n, n) / n**0.5,
        lambda n: {"make": nn.Linear(8, n * n)},
        "outputs of 'make.weight'",
    ),
    "generated from a table": (
        lambda m, n: m.make.weight[0].view(n, n),
        lambda n: {"make": nn.Embedding(3, n * n)},
        "outputs of 'make.weight'",
    ),
    "rows of norm one and gains": (
        lambda m, n: m.m / m.m.norm(dim=1, keepdim=True) * m.g,
        of_gains(-1, 1),
        "'m' over the norms of its rows, times 'g'",
    ),
    "gains first": (
        lambda m, n: m.g[:, None] * m.m / m.m.square().sum(1, keepdim=True).sqrt(),
        of_gains(-1),
        "times 'g'",
    ),
    "normalize": (
        lambda m, n: m.g[:, None] * functional.normalize(m.m, dim=1),
        of_gains(-1),
        "times 'g'",
    ),
}


@pytest.mark.parametrize("rule", ["complete-p", "mup"])
@pytest.mark.parametrize("way", MADE)
def test_a_matrix_that_no_factor_of_its_parameters_scales_is_refused(way: str, rule: str) -> None:
    matrix, shapes, words = MADE[way]
    with pytest.raises(ValueError, match=words):
        planned(rule, make=OfParameters, matrix=matrix, shapes=shapes)
    planned("standard", make=OfParameters, matrix=matrix, shapes=shapes)


HELD: dict[str, tuple[Way, Callable[[int], dict[str, Any]]]] = {
    "itself": (lambda m, n: m.m, lambda n: {"m": entries(n, n)}),
    "viewed in heads": (
        lambda m, n: m.m.view(n, n // 8, 8).flatten(1),
        lambda n: {"m": entries(n, n)},
    ),
    "rows of norm one": (lambda m, n: functional.normalize(m.m, dim=1), of_gains(1)),
    "times one number": (lambda m, n: m.g * functional.normalize(m.m, dim=1), of_gains(1)),
    "gains without a norm": (lambda m, n: m.g[:, None] * m.m, of_gains(-1)),
    "roots of gains": (lambda m, n: m.g[:, None].sqrt() * m.m, of_gains(-1)),
    "a diagonal": (lambda m, n: torch.diag(m.g) @ m.m, of_gains(-1)),
}


@pytest.mark.parametrize("way", HELD)
def test_a_matrix_that_is_a_parameter_is_planned(way: str) -> None:
    matrix, shapes = HELD[way]
    plan = planned(make=OfParameters, matrix=matrix, shapes=shapes)
    assert plan.roles["m"] == "hidden"


def test_outputs_that_grow_as_the_square_of_the_width_may_be_features() -> None:
    def made(width: int) -> dict[str, Any]:
        return {"make": nn.Linear(8, width * width), "m": entries(width, width)}

    def matrix(model: Any, width: int) -> Tensor:
        return model.m + model.make(model.task).mean()

    assert planned(make=OfParameters, matrix=matrix, shapes=made).roles["make.weight"] == "input"
