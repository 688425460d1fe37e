"""Networks of the held-out bank with a residual stream, which grow in width and depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tests.self_test_bank.held_out_models import mlp
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

MakeLayer = Callable[[int], nn.Module]
HEAD = 8


def split(x: Tensor, size: int = HEAD) -> Tensor:
    """Heads of a sequence: ``[b, n, d]`` to ``[b, heads, n, size]``."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """The opposite of ``split``."""
    return x.transpose(1, 2).flatten(2)


class Rms(nn.Module):
    """A root-mean-square norm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


# ---- layers that mix tokens


class Fused(nn.Module):
    """Attention by one matrix of queries, keys and values."""

    def __init__(self, width: int, causal: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part) for part in self.qkv(x).chunk(3, -1))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


class Grouped(nn.Module):
    """Rotary attention in which two heads share keys and values, without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wq = nn.Linear(width, width, bias=False)
        self.wkv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def turned(self, x: Tensor) -> Tensor:
        """The heads turned by angles that grow with the position."""
        half = x.shape[-1] // 2
        speeds = 10.0 ** -torch.arange(half, dtype=x.dtype)
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * speeds
        a = x[..., :half]
        b = x[..., half:]
        return torch.cat(
            [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1
        )

    def forward(self, x: Tensor) -> Tensor:
        q = self.turned(split(self.wq(x)))
        k, v = (split(part).repeat_interleave(2, 1) for part in self.wkv(x).chunk(2, -1))
        return self.wo(merged(F.scaled_dot_product_attention(q, self.turned(k), v, is_causal=True)))


class Wrapped(nn.Module):
    """PyTorch's own attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(width, width // HEAD, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x, x, x, need_weights=False)[0]


class Relative(nn.Module):
    """Attention with learned vectors for distances beside the keys."""

    def __init__(self, width: int, length: int = 6) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.distances = nn.Embedding(2 * length - 1, HEAD)
        places = torch.arange(length)
        self.register_buffer("apart", places[:, None] - places + length - 1)

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.query(x))
        k = split(self.key(x))
        v = split(self.value(x))
        near = torch.einsum("bhid,ijd->bhij", q, self.distances(self.apart))
        weights = ((q @ k.transpose(-1, -2) + near) / HEAD**0.5).softmax(-1)
        return self.out(merged(weights @ v))


class PerHead(nn.Module):
    """A stack of matrices with one of each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.wq = nn.Parameter(torch.randn(heads, width, HEAD) / width**0.5)
        self.wk = nn.Parameter(torch.randn(heads, width, HEAD) / width**0.5)
        self.wv = nn.Parameter(torch.randn(heads, width, HEAD) / width**0.5)
        self.wo = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x[:, None] @ w for w in (self.wq, self.wk, self.wv))
        weights = (q @ k.transpose(-1, -2) / HEAD**0.5).softmax(-1)
        return merged(weights @ v) @ self.wo


class BiasTable(nn.Module):
    """Attention with a learned number for every head and distance."""

    def __init__(self, width: int, length: int = 6) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.table = nn.Embedding(length, width // HEAD)
        places = torch.arange(length)
        self.register_buffer("apart", (places[:, None] - places).abs())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part) for part in self.qkv(x).chunk(3, -1))
        mask = self.table(self.apart).permute(2, 0, 1)
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))))


class GrowingHeads(nn.Module):
    """Two heads, whose size grows with the width, and logits over this size."""

    def __init__(self, width: int, power: float = 1.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.size = width // 2
        self.scale = 4 / self.size**power if power == 1.0 else self.size**-power

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, self.size) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.out(merged(weights @ v))


class Normed(nn.Module):
    """Attention with norms of queries, keys, and of what the heads return."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.q_norm = Rms(HEAD)
        self.k_norm = Rms(HEAD)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_norm(split(self.q(x)))
        k = self.k_norm(split(self.k(x)))
        v = split(self.v(x))
        return self.o(self.norm(merged(F.scaled_dot_product_attention(q, k, v))))


class SoftCap(nn.Module):
    """Attention whose logits are capped by a hyperbolic tangent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.q(x))
        k = split(self.k(x))
        v = split(self.v(x))
        logits = 20 * torch.tanh(q @ k.transpose(-1, -2) / HEAD**0.5 / 20)
        return self.o(merged(logits.softmax(-1) @ v))


class Retention(nn.Module):
    """Products of queries and decaying keys without a softmax, normed by heads and gated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.g, self.o = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.norm = nn.GroupNorm(width // HEAD, width)

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.q(x))
        k = split(self.k(x))
        v = split(self.v(x))
        places = torch.arange(x.shape[1], dtype=x.dtype)
        apart = (places[:, None] - places).clamp(min=0)
        decay = torch.tril(0.8**apart)
        mixed = merged((q @ k.transpose(-1, -2) / HEAD**0.5 * decay) @ v)
        normed = self.norm(mixed.transpose(1, 2)).transpose(1, 2)
        return self.o(F.silu(self.g(x)) * normed)


class MinGru(nn.Module):
    """A gated recurrence whose gates see the inputs only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.new = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x).sigmoid()
        values = self.new(x)
        state = torch.zeros_like(x[:, 0])
        states = list[Tensor]()
        for gate, value in zip(gates.unbind(1), values.unbind(1), strict=True):
            state = (1 - gate) * state + gate * value
            states.append(state)
        return self.out(torch.stack(states, 1))


class LinearUnit(nn.Module):
    """A diagonal linear recurrence with learned decays, and a skip of its input by a learned
    vector.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, width, bias=False)
        self.decay = nn.Parameter(torch.linspace(-1.0, 2.0, width))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        values = self.into(x)
        keep = self.decay.sigmoid()
        state = torch.zeros_like(values[:, 0])
        states = list[Tensor]()
        for value in values.unbind(1):
            state = keep * state + (1 - keep) * value
            states.append(state)
        return self.out(F.gelu(torch.stack(states, 1) + self.skip * values))


class LongFilter(nn.Module):
    """Gates and a long convolution, whose filters a small network of the position makes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.three = nn.Linear(width, 3 * width)
        self.filters = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, width))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, v = self.three(x).chunk(3, -1)
        places = torch.arange(x.shape[1], dtype=x.dtype)
        waves = torch.cos(places[:, None] * torch.arange(4, dtype=x.dtype))
        filters = self.filters(waves) / x.shape[1] ** 0.5
        index = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).clamp(min=0)
        causal = torch.tril(torch.ones(len(index), len(index), dtype=x.dtype))
        mixed = torch.einsum("ijd,bjd->bid", filters[index] * causal[..., None], b * v)
        return self.out(a * mixed)


class ShortConv(nn.Module):
    """A causal convolution by channel between a gate and a matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.into(x).chunk(2, -1)
        mixed = self.conv(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.out(mixed * F.gelu(gate))


class ConvModule(nn.Module):
    """The convolution of a conformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Conv1d(width, 2 * width, 1)
        self.conv = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.glu(self.widen(x.transpose(1, 2)), 1)
        return self.out(F.silu(self.norm(self.conv(h)))).transpose(1, 2)


class Pooling(nn.Module):
    """The mean of neighbours less the token itself, without weights."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x.transpose(1, 2), 3, 1, 1, count_include_pad=False).transpose(1, 2) - x


class TokenShift(nn.Module):
    """The channel mixing of RWKV: each token is blended with the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blend_k = nn.Parameter(torch.full((width,), 0.5))
        self.blend_r = nn.Parameter(torch.full((width,), 0.5))
        self.key = nn.Linear(width, 2 * width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.blend_k + before * (1 - self.blend_k))
        r = self.receptance(x * self.blend_r + before * (1 - self.blend_r))
        return r.sigmoid() * self.value(F.relu(k).square())


# ---- layers of single tokens


class Dense(nn.Module):
    """Two matrices with an activation between them."""

    def __init__(
        self, width: int, factor: int = 2, act: Callable[[Tensor], Tensor] = F.gelu
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, factor * width)
        self.down = nn.Linear(factor * width, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Glu(nn.Module):
    """A gate and a value from one matrix."""

    def __init__(self, width: int, act: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.both = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.both(x).chunk(2, -1)
        return self.down(self.act(gate) * value)


class Subnormed(nn.Module):
    """Two matrices with a norm after the activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.relu(self.up(x))))


class SharedAndRouted(nn.Module):
    """An expert for all tokens, and three that a router weighs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = Glu(width, F.silu)
        self.experts = nn.ModuleList(Glu(width, F.silu) for _ in range(3))
        self.router = nn.Linear(width, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).sigmoid()
        total = self.shared(x)
        for index, expert in enumerate(self.experts):
            total = total + weights[..., index, None] * expert(x)
        return total


class SoftSlots(nn.Module):
    """Soft mixture of experts: learned slots take weighted means of the tokens, and tokens those of
    the slots.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(width, 3) / width**0.5)
        self.experts = nn.ModuleList(Dense(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.slots
        taken = logits.softmax(1).transpose(1, 2) @ x
        answers = torch.stack([expert(taken[:, i]) for i, expert in enumerate(self.experts)], 1)
        return logits.softmax(-1) @ answers


# ---- blocks and models


class Block(nn.Module):
    """A layer of tokens and one of single tokens, each behind a norm."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.mix = mix(width)
        self.norm2 = norm(width)
        self.feed = feed(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Parallel(nn.Module):
    """Both layers read one norm, and are added at once."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norm = norm(width)
        self.mix = mix(width)
        self.feed = feed(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.mix(h) + self.feed(h)


class NormedAfter(nn.Module):
    """Norms at the ends of branches, as in OLMo 2 and Swin v2."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.mix = mix(width)
        self.norm1 = norm(width)
        self.feed = feed(width)
        self.norm2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.mix(x))
        return x + self.norm2(self.feed(x))


class NormedStream(nn.Module):
    """Norms on the stream, as in the first transformers."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.mix = mix(width)
        self.norm1 = norm(width)
        self.feed = feed(width)
        self.norm2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.mix(x))
        return self.norm2(x + self.feed(x))


class Scaled(nn.Module):
    """Branches times learned vectors that start small."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.mix = mix(width)
        self.norm2 = norm(width)
        self.feed = feed(width)
        self.gamma1 = nn.Parameter(torch.full((width,), 0.1))
        self.gamma2 = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma1 * self.mix(self.norm1(x))
        return x + self.gamma2 * self.feed(self.norm2(x))


class Conformer(nn.Module):
    """Half steps of two layers around attention and a convolution, and a norm of the branches
    only.
    """

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(width) for _ in range(4))
        self.layers = nn.ModuleList([feed(width), mix(width), ConvModule(width), feed(width)])

    def forward(self, x: Tensor) -> Tensor:
        for factor, norm, layer in zip((0.5, 1.0, 1.0, 0.5), self.norms, self.layers, strict=True):
            x = x + factor * layer(norm(x))
        return x


class OverDepth(nn.Module):
    """A block whose branches are divided by a power of the depth in the forward pass."""

    def __init__(
        self, width: int, mix: MakeLayer, feed: MakeLayer, norm: MakeLayer = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.mix = mix(width)
        self.norm2 = norm(width)
        self.feed = feed(width)
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.factor * self.mix(self.norm1(x))
        return x + self.factor * self.feed(self.norm2(x))


MakeBlock = Callable[..., nn.Module]


class Words(nn.Module):
    """A language model of these blocks."""

    def __init__(
        self,
        width: int,
        depth: int,
        mix: MakeLayer = Fused,
        feed: MakeLayer = Dense,
        block: MakeBlock = Block,
        norm: MakeLayer = nn.LayerNorm,
        positions: bool = False,
        tied: float = 0.0,
        power: float = 0.0,
        final: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.positions = nn.Parameter(0.02 * torch.randn(6, width)) if positions else None
        self.blocks = nn.ModuleList(block(width, mix, feed, norm) for _ in range(depth))
        self.norm = norm(width) if final else nn.Identity()
        self.head = nn.Linear(width, 20, bias=False)
        if tied:
            nn.init.normal_(self.embed.weight, std=tied)
            self.head.weight = self.embed.weight
        for one in self.blocks:
            one.factor = depth**-power

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        for one in self.blocks:
            x = one(x)
        return self.head(self.norm(x))


class Numbers(nn.Module):
    """A network of these blocks over vectors, whose mean over time answers."""

    def __init__(
        self,
        width: int,
        depth: int,
        mix: MakeLayer = Fused,
        feed: MakeLayer = Dense,
        block: MakeBlock = Block,
        norm: MakeLayer = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(5, width)
        self.blocks = nn.Sequential(*(block(width, mix, feed, norm) for _ in range(depth)))
        self.norm = norm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(series))).mean(1))


def unmasked(width: int) -> nn.Module:
    """Attention from everywhere to everywhere."""
    return Fused(width, causal=False)


class ResidualVectors(nn.Module):
    """Residual blocks over vectors, each made by a function."""

    def __init__(self, width: int, depth: int, branch: MakeLayer) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.branches = nn.ModuleList(branch(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for branch in self.branches:
            h = h + branch(h)
        return self.head(self.norm(h))


def tabular_branch(width: int) -> nn.Module:
    """Batch norm and two layers with dropout, as in ResNets for tables."""
    return nn.Sequential(
        nn.BatchNorm1d(width),
        nn.Linear(width, 2 * width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, width),
        nn.Dropout(0.0),
    )


def silu_branch(width: int) -> nn.Module:
    """A norm and two layers without biases."""
    return nn.Sequential(Rms(width), *mlp(width, 2 * width, width, act=nn.SiLU, bias=False))


def deep_branch(width: int) -> nn.Module:
    """A norm and four layers."""
    return nn.Sequential(nn.LayerNorm(width), *mlp(width, width, width, width, width, act=nn.Tanh))


def activated_branch(width: int) -> nn.Module:
    """One matrix behind a norm and an activation."""
    return nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width))


class ManyTables(nn.Module):
    """A residual network over the sum of four embeddings and numbers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, width) for _ in range(4))
        self.numbers = nn.Linear(3, width)
        self.blocks = nn.ModuleList(silu_branch(width) for _ in range(depth))
        self.norm = Rms(width)
        self.click = nn.Linear(width, 1)
        self.buy = nn.Linear(width, 1)

    def forward(self, items: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        h = self.numbers(numbers)
        for index, table in enumerate(self.tables):
            h = h + table(items[:, index])
        for block in self.blocks:
            h = h + block(h)
        h = self.norm(h)
        return self.click(h), self.buy(h)


class TimedBranch(nn.Module):
    """A branch that adds a time embedding after its first matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.of_time = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x)) + self.of_time(time)))


class VectorDenoiser(nn.Module):
    """A denoiser of vectors: waves of time, embedded, enter every block."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.stem = nn.Linear(6, width)
        self.blocks = nn.ModuleList(TimedBranch(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 6)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * 2.0 ** torch.arange(4, dtype=x.dtype)
        moment = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, moment)
        return self.head(self.norm(h))


class PatchSeries(nn.Module):
    """Patches of a series as tokens with learned positions; a flattened head forecasts."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.places = nn.Parameter(torch.zeros(1, 6, width))
        nn.init.normal_(self.places, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // HEAD, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, depth, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(6 * width, 5)

    def forward(self, series: Tensor) -> Tensor:
        h = self.encoder(self.patches(series.unflatten(1, (6, 4))) + self.places)
        return self.head(h.flatten(1))


class Distilled(nn.Module):
    """Image patches by a convolution, a class and a distillation token, and two heads."""

    def __init__(self, width: int, depth: int, registers: int = 0, std: float = 0.5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.extra = nn.Parameter(std * torch.randn(1, 2 + registers, width))
        self.places = nn.Parameter(std * torch.randn(1, 6 + registers, width))
        self.blocks = nn.ModuleList(Block(width, unmasked, Dense) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, 4) for _ in range(2))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.extra.expand(len(images), -1, -1), patches], 1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.heads[0](x[:, 0]), self.heads[1](x[:, 1])


class MaskedImages(nn.Module):
    """A masked autoencoder: an encoder of kept patches, and a decoder with mask tokens."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Linear(12, width)
        self.places = nn.Parameter(0.5 * torch.randn(6, width))
        self.encoder = nn.ModuleList(Block(width, unmasked, Dense) for _ in range(depth))
        self.between = nn.Linear(width, width)
        self.mask = nn.Parameter(0.5 * torch.randn(width))
        self.decoder_places = nn.Parameter(0.5 * torch.randn(6, width))
        self.decoder = nn.ModuleList(Block(width, unmasked, Dense) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.last_norm = nn.LayerNorm(width)
        self.pixels = nn.Linear(width, 12)

    def forward(self, patches: Tensor) -> Tensor:
        x = (self.patch(patches) + self.places)[:, :3]
        for block in self.encoder:
            x = block(x)
        x = self.between(self.norm(x))
        x = torch.cat([x, self.mask.expand(len(x), 3, -1)], 1) + self.decoder_places
        for block in self.decoder:
            x = block(x)
        return self.pixels(self.last_norm(x))


class LongSkips(nn.Module):
    """A U-shaped transformer: each late block reads an early stream by a matrix of both."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(5, width)
        self.down = nn.ModuleList(Block(width, unmasked, Dense) for _ in range(depth))
        self.join = nn.Linear(2 * width, width)
        self.up = nn.ModuleList(Block(width, unmasked, Dense) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        early = x
        for block in self.down:
            x = block(x)
        x = self.join(torch.cat([x, early], -1))
        for block in self.up:
            x = block(x)
        return self.head(self.norm(x))


class Speech(nn.Module):
    """Two convolutions and an encoder of sound, and a decoder of words that reads it; fixed waves
    as positions.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(4, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.words = nn.Embedding(20, width)
        angles = torch.arange(6)[:, None] / 100.0 ** (torch.arange(width // 2) / (width // 2))
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], -1))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        heads = width // HEAD
        encoder = nn.TransformerEncoderLayer(width, heads, 2 * width, **options)
        decoder = nn.TransformerDecoderLayer(width, heads, 2 * width, **options)
        self.encoder = nn.TransformerEncoder(
            encoder, depth, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(decoder, depth, nn.LayerNorm(width))
        self.head = nn.Linear(width, 20)

    def forward(self, sound: Tensor, words: Tensor) -> Tensor:
        heard = F.gelu(self.conv2(F.gelu(self.conv1(sound)))).transpose(1, 2)
        memory = self.encoder(heard + self.waves[: heard.shape[1]])
        return self.head(self.decoder(self.words(words) + self.waves[: words.shape[1]], memory))


class Repeated(nn.Module):
    """One block applied as often as the network is deep, after a small embedding that a matrix
    widens.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.widen = nn.Linear(8, width)
        self.block = Block(width, unmasked, Dense)
        self.depth = depth
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 20)

    def forward(self, words: Tensor) -> Tensor:
        x = self.widen(self.embed(words))
        for _ in range(self.depth):
            x = self.block(x)
        return self.head(self.norm(x))


class ConvBlock(nn.Module):
    """Two convolutions behind norms; the second may be one of groups of fixed size."""

    def __init__(self, width: int, groups: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, width)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(
            width, width, 3, padding=1, groups=width // 8 if groups else 1, bias=False
        )
        self.conv2 = nn.Conv2d(
            width, width, 1 if groups else 3, padding=0 if groups else 1, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class Player(nn.Module):
    """A residual tower over a board, with a policy and a value."""

    def __init__(self, width: int, depth: int, groups: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.tower = nn.Sequential(*(ConvBlock(width, groups) for _ in range(depth)))
        self.norm = nn.GroupNorm(4, width)
        self.policy = nn.Sequential(nn.Conv2d(width, 2, 1), nn.Flatten())
        self.value = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1), nn.Tanh()
        )

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.norm(self.tower(self.stem(board))))
        return self.policy(h), self.value(h.mean((2, 3)))


class ConvMixer(nn.Module):
    """Convolutions by channel on the stream, and matrices of channels, both as residuals."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.spatial = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(1, width),
                nn.Conv2d(width, width, 3, padding=1, groups=width),
                nn.GELU(),
            )
            for _ in range(depth)
        )
        self.channel = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(1, width),
                nn.Conv2d(width, width, 1),
                nn.GELU(),
                nn.Conv2d(width, width, 1),
            )
            for _ in range(depth)
        )
        self.norm = nn.GroupNorm(1, width)
        self.head = nn.Linear(width, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images)
        for spatial, channel in zip(self.spatial, self.channel, strict=True):
            x = x + channel(spatial(x))
        return self.head(self.norm(x).mean((2, 3)))


class ContinuousFilter(nn.Module):
    """SchNet: neighbours times filters that a network of their distance makes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, width, bias=False)
        self.filters = nn.Sequential(nn.Linear(5, width), nn.Softplus(), nn.Linear(width, width))
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, h: Tensor, bumps: Tensor) -> Tensor:
        sent = torch.einsum("ijd,jd->id", self.filters(bumps), self.into(self.norm(h)))
        return h + self.second(F.softplus(self.first(sent / len(h) ** 0.5)))


class Molecule(nn.Module):
    """Kinds of atoms and their distances to an energy, a sum over atoms."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(ContinuousFilter(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.energy = mlp(width, width // 2, 1, act=nn.Softplus)

    def forward(self, atoms: Tensor, places: Tensor) -> Tensor:
        apart = torch.cdist(places, places)
        bumps = torch.exp(-((apart[..., None] - torch.arange(5, dtype=apart.dtype)) ** 2))
        h = self.atoms(atoms)
        for block in self.blocks:
            h = block(h, bumps)
        return self.energy(self.norm(h)).sum(0)


class GraphBlock(nn.Module):
    """A graph transformer: sums over neighbours and attention with biases of edges, in parallel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.local = mlp(width, width, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.edge = nn.Linear(1, width // HEAD)
        self.feed = Dense(width, act=F.relu)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (split(part[None])[0] for part in self.qkv(h).chunk(3, -1))
        logits = q @ k.transpose(-1, -2) / HEAD**0.5 + self.edge(adjacency[..., None]).permute(
            2, 0, 1
        )
        attended = self.out(merged((logits.softmax(-1) @ v)[None])[0])
        x = x + self.local(h + adjacency @ h / 3) + attended
        return x + self.feed(self.norm2(x))


class GraphTransformer(nn.Module):
    """Nodes with features, residual graph blocks, and an answer at every node."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(5, width)
        self.layers = nn.ModuleList(GraphBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        x = self.read(nodes)
        for layer in self.layers:
            x = layer(x, adjacency)
        return self.head(self.norm(x))


class CrossReader(nn.Module):
    """A decoder of words whose blocks read a short encoded context by attention of their own."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.context = mlp(4, width, width, act=nn.GELU)
        self.words = nn.Embedding(20, width)
        self.attend = nn.ModuleList(Fused(width) for _ in range(depth))
        self.read = nn.ModuleList(
            nn.MultiheadAttention(width, width // HEAD, batch_first=True) for _ in range(depth)
        )
        self.feed = nn.ModuleList(Glu(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * depth + 1))
        self.head = nn.Linear(width, 20)

    def forward(self, context: Tensor, words: Tensor) -> Tensor:
        memory = self.context(context)
        x = self.words(words)
        norms = iter(self.norms)
        for attend, read, feed in zip(self.attend, self.read, self.feed, strict=True):
            x = x + attend(next(norms)(x))
            x = x + read(next(norms)(x), memory, memory, need_weights=False)[0]
            x = x + feed(next(norms)(x))
        return self.head(next(norms)(x))


class EarlyExits(nn.Module):
    """One head behind the stream after every block, and the mean of all answers, or their sum."""

    def __init__(self, width: int, depth: int, mean: bool = True) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.branches = nn.ModuleList(silu_branch(width) for _ in range(depth))
        self.norm = Rms(width)
        self.head = nn.Linear(width, 3)
        self.mean = mean

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(x)
        total = torch.zeros((), dtype=x.dtype)
        for branch in self.branches:
            h = h + branch(h)
            total = total + self.head(self.norm(h))
        return self.head(self.norm(h)), total / (len(self.branches) if self.mean else 1)


class SelfSupervised(nn.Module):
    """Two views through one residual encoder and a projector, compared at a learned temperature."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.branches = nn.ModuleList(silu_branch(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.project = mlp(width, width, width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def encoded(self, x: Tensor) -> Tensor:
        """The unit vectors of one view."""
        h = self.stem(x)
        for branch in self.branches:
            h = h + branch(h)
        return F.normalize(self.project(self.norm(h)), dim=-1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.encoded(first) @ self.encoded(second).T * self.log_scale.exp()


class FrozenWords(nn.Module):
    """A language model whose embedding does not train."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.embed.weight.requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width, Grouped, Glu, Rms) for _ in range(depth))
        self.norm = Rms(width)
        self.head = nn.Linear(width, 20, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TowerAndTable(nn.Module):
    """A sequence of items through blocks; scores of all items by the table that embeds them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.items = nn.Embedding(20, width)
        nn.init.normal_(self.items.weight, std=0.5)
        self.places = nn.Embedding(6, width)
        self.blocks = nn.ModuleList(Block(width, Fused, Dense) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, items: Tensor) -> Tensor:
        x = self.items(items) + self.places(torch.arange(items.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, -1] @ self.items.weight.T


class TokensAndChannels(nn.Module):
    """Linear maps over time of a fixed length, and maps over channels, as in a mixer of series."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(5, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.times = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
        self.channels = nn.ModuleList(Dense(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, series: Tensor) -> Tensor:
        x = self.stem(series)
        for index, (times, channels) in enumerate(zip(self.times, self.channels, strict=True)):
            x = x + times(self.norms[2 * index](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * index + 1](x))
        return self.head(self.norm(x).mean(1))
