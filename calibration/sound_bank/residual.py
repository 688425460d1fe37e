"""Residual networks, whose width and depth grow: sound under CompleteP.

Every block adds branches to a stream. A plan divides branches by the depth; ``factor`` does so in
the code of a user who scales by hand, and is 1 otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from calibration.sound_bank.data import CLASSES, COORDINATES, FEATURES, LENGTH, NODES, SYMBOLS

HEAD = 16
EXPERTS = 4
SLOTS = 4
WINDOW = 4
MakeBranch = Callable[[int], nn.Module]


# ---- branches: modules of a stream [.., tokens, width] without its norm


class Ffn(nn.Module):
    """Two layers."""

    def __init__(
        self, width: int, times: float = 2, act: Callable[[Tensor], Tensor] = F.gelu
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, int(times * width))
        self.down = nn.Linear(int(times * width), width)
        self.act = act

    def forward(self, h: Tensor) -> Any:
        return self.down(self.act(self.up(h)))


def squared_relu(x: Tensor) -> Tensor:
    """The square of ReLU."""
    return F.relu(x).square()


class GatedFfn(nn.Module):
    """One matrix makes values and gates."""

    def __init__(self, width: int, act: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.both = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.act = act

    def forward(self, h: Tensor) -> Any:
        value, gate = self.both(h).chunk(2, -1)
        return self.down(value * self.act(gate))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions of [batch, heads, tokens, size]."""
    half = x.shape[-1] // 2
    speed = 100 ** -(torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Attention(nn.Module):
    """Attention of heads of 16 coordinates.

    Args:
        keys: heads of keys and values; 0 for as many as of queries. rotary: turns queries and keys.
        normed: norms them. window: how far a token sees back; 0 for all. causal: whether it sees
            only earlier ones. sigmoid: weights by a sigmoid in place of a softmax.
    """

    def __init__(
        self,
        width: int,
        keys: int = 0,
        rotary: bool = False,
        normed: bool = False,
        window: int = 0,
        causal: bool = True,
        sigmoid: bool = False,
        shared: int = 0,
    ) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.keys = keys or (self.heads // shared if shared else self.heads)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, self.keys * HEAD, bias=False)
        self.v = nn.Linear(width, self.keys * HEAD, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.rotary, self.normed, self.window = rotary, normed, window
        self.causal, self.sigmoid = causal, sigmoid

    def forward(self, h: Tensor) -> Any:
        q = self.q(h).unflatten(-1, (self.heads, HEAD)).transpose(1, 2)
        k = self.k(h).unflatten(-1, (self.keys, HEAD)).transpose(1, 2)
        v = self.v(h).unflatten(-1, (self.keys, HEAD)).transpose(1, 2)
        if self.normed:
            q, k = F.rms_norm(q, (HEAD,)), F.rms_norm(k, (HEAD,))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        k = k.repeat_interleave(self.heads // self.keys, 1)
        v = v.repeat_interleave(self.heads // self.keys, 1)
        logits = q @ k.transpose(-1, -2) / HEAD**0.5
        time = torch.arange(h.shape[1])
        ago = time[:, None] - time
        hidden = (ago < 0) & self.causal
        if self.window:
            hidden = hidden | (ago.abs() >= self.window)
        if self.sigmoid:
            weights = torch.sigmoid(logits - 2).masked_fill(hidden, 0.0)
        else:
            weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class GrowingHeads(nn.Module):
    """Attention of two heads that grow: logits are divided by their size to the power 1."""

    def __init__(self, width: int, power: float = 1.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.power = power

    def forward(self, h: Tensor) -> Any:
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.qkv(h).chunk(3, -1))
        scale = HEAD**-0.5 * (q.shape[-1] / HEAD) ** -self.power
        weights = (scale * q @ k.transpose(-1, -2)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TalkingHeads(nn.Module):
    """Heads whose logits are mixed before the softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.talk = nn.Linear(self.heads, self.heads, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Any:
        parts = self.qkv(h).unflatten(-1, (3, self.heads, HEAD))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-1, -2) / HEAD**0.5
        logits = self.talk(logits.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        read = logits.softmax(-1) @ v
        return self.out(read.transpose(1, 2).flatten(2))


class Differential(nn.Module):
    """The difference of two softmaxes, the second times a learned number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Attention(width, rotary=True)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.share = nn.Parameter(torch.full((width // HEAD, 1, 1), 0.5))

    def forward(self, h: Tensor) -> Any:
        one = self.first
        q1, k1, q2, k2, v = (
            layer(h).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (one.q, one.k, self.q, self.k, one.v)
        )
        hidden = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        weights = [
            (rotated(q) @ rotated(k).transpose(-1, -2) / HEAD**0.5)
            .masked_fill(hidden, -torch.inf)
            .softmax(-1)
            for q, k in ((q1, k1), (q2, k2))
        ]
        read = (weights[0] - self.share * weights[1]) @ v
        return one.o(read.transpose(1, 2).flatten(2))


class Latent(nn.Module):
    """Keys and values are made from a narrower code, a quarter of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width, bias=False)
        self.code = nn.Linear(width, width // 4, bias=False)
        self.norm = nn.RMSNorm(width // 4)
        self.k = nn.Linear(width // 4, width, bias=False)
        self.v = nn.Linear(width // 4, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Any:
        code = self.norm(self.code(h))
        q, k, v = (
            x.unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for x in (self.q(h), self.k(code), self.v(code))
        )
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(read.transpose(1, 2).flatten(2))


class Retention(nn.Module):
    """Attention without a softmax, whose weights decay in time, each head at a rate of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.gate, self.o = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.norm = nn.RMSNorm(HEAD)

    def forward(self, h: Tensor) -> Any:
        q, k, v = (
            layer(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        time = torch.arange(h.shape[1])
        ago = time[:, None] - time
        keep = 1 - 2.0 ** -(2 + torch.arange(q.shape[1]) % 4)
        decay = keep[:, None, None] ** ago.clamp(min=0) * (ago >= 0)
        read = self.norm((q @ k.transpose(-1, -2) / HEAD**0.5 * decay) @ v)
        return self.o(F.silu(self.gate(h)) * read.transpose(1, 2).flatten(2))


class LearnedDecay(nn.Module):
    """A running mean of every feature, which forgets at a learned rate, and a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.speed = nn.Parameter(torch.linspace(-2, 2, width))

    def forward(self, h: Tensor) -> Any:
        keep = torch.sigmoid(self.speed)
        v = self.value(h)
        state = torch.zeros_like(v[:, 0])
        states = []
        for t in range(h.shape[1]):
            state = keep * state + (1 - keep) * v[:, t]
            states.append(state)
        return self.out(torch.stack(states, 1) * torch.sigmoid(self.gate(h)))


class LongFilter(nn.Module):
    """Every feature has a filter over all earlier times; a gate after it, as in Hyena."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 2 * width)
        self.filter = nn.Parameter(torch.randn(width, LENGTH) / LENGTH**0.5)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Any:
        v, gate = self.into(h).chunk(2, -1)
        T = h.shape[1]
        ago = torch.arange(T)[:, None] - torch.arange(T)
        kernel = self.filter[:, ago.clamp(min=0)] * (ago >= 0)
        return self.out(torch.einsum("nts,bsn->btn", kernel, v) * gate)


class Pooling(nn.Module):
    """The mean of near tokens without the token itself, times a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, h: Tensor) -> Any:
        near = F.avg_pool1d(h.transpose(1, 2), 3, 1, 1, count_include_pad=False).transpose(1, 2)
        return self.gain * (near - h)


class LocalConv(nn.Module):
    """Conformer's module: gated pointwise, depthwise in time, pointwise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(width, 2 * width, 1)
        self.along = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Any:
        x = self.along(F.glu(self.into(h.transpose(1, 2)), 1)).transpose(1, 2)
        return self.out(F.silu(self.norm(x)))


class SoftMoe(nn.Module):
    """Slots read a mixture of all tokens, each expert works on its slots, tokens read these."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slots = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Ffn(width) for _ in range(EXPERTS))

    def forward(self, h: Tensor) -> Any:
        logits = self.slots(h)
        into = logits.softmax(1).transpose(1, 2) @ h
        done = torch.stack([e(into[:, k]) for k, e in enumerate(self.experts)], 1)
        return logits.softmax(-1) @ done


class TopTwo(nn.Module):
    """The two best of four experts, weighed by the router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(GatedFfn(width, F.silu) for _ in range(EXPERTS))

    def forward(self, h: Tensor) -> Any:
        best, which = self.router(h).topk(2, -1)
        weights = torch.zeros(*h.shape[:-1], EXPERTS).scatter(-1, which, best.softmax(-1))
        outputs = torch.stack([expert(h) for expert in self.experts], -1)
        return (outputs * weights[..., None, :]).sum(-1)


class Fused(nn.Module):
    """Queries, keys, values and the hidden layer from one matrix, both results through one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 5 * width)
        self.out = nn.Linear(3 * width, width)

    def forward(self, h: Tensor) -> Any:
        qkv, hidden = self.into(h).tensor_split([3 * h.shape[-1]], -1)
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in qkv.chunk(3, -1))
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(torch.cat([read, F.gelu(hidden)], -1))


class OneMatrix(nn.Module):
    """A matrix after a nonlinearity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Any:
        return self.matrix(torch.tanh(h))


class Gate(nn.Module):
    """A branch times a sigmoid gate of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = Ffn(width, 1, torch.tanh)
        self.gate = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Any:
        return torch.sigmoid(self.gate(h)) * self.value(h)


class BilinearFfn(nn.Module):
    """The product of two linear maps, through a third."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Linear(width, width, bias=False)
        self.b = nn.Linear(width, width, bias=False)
        self.c = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Any:
        return self.c(self.a(h) * self.b(h))


class SpatialConv(nn.Module):
    """Two convolutions in space with group norms between, of [batch, width, height, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, width)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, h: Tensor) -> Any:
        return self.two(F.silu(self.norm(self.one(h))))


class DepthwiseSpace(nn.Module):
    """A large depthwise convolution, then two pointwise ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.up = nn.Conv2d(width, 3 * width, 1)
        self.down = nn.Conv2d(3 * width, width, 1)

    def forward(self, h: Tensor) -> Any:
        return self.down(F.hardswish(self.up(self.space(h))))


# ---- networks


class Block(nn.Module):
    """Branches, one after the other, each after a norm."""

    def __init__(
        self, width: int, makers: tuple[MakeBranch, ...], norm: MakeBranch, factor: float
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(width) for _ in makers)
        self.branches = nn.ModuleList(make(width) for make in makers)
        self.factor = factor

    def forward(self, h: Tensor) -> Any:
        for norm, branch in zip(self.norms, self.branches, strict=True):
            h = h + self.factor * branch(norm(h))
        return h


def digit(width: int) -> nn.Module:
    """The embedding of a digit's pixels."""
    return nn.Linear(64, width)


class Stream(nn.Module):
    """Tokens or vectors through blocks.

    Args:
        branches: the makers of the branches of a block. read: what makes the stream.
        outputs: of the head. pool: over tokens, before the head. tied: whether the head is the
            embedding. times: what the stream is multiplied with, by width.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        branches: tuple[MakeBranch, ...] = (Ffn,),
        read: MakeBranch = digit,
        outputs: int = CLASSES,
        pool: bool = False,
        norm: MakeBranch = nn.LayerNorm,
        last: MakeBranch | None = None,
        tied: bool = False,
        places: int = 0,
        cap: float = 0.0,
        times: Callable[[int], float] | None = None,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.read = read(width)
        self.places = nn.Parameter(0.5 * torch.randn(places, width)) if places else None
        self.blocks = nn.ModuleList(Block(width, branches, norm, factor) for _ in range(depth))
        self.norm = (last or norm)(width)
        self.head = nn.Linear(width, outputs, bias=not tied)
        if tied:
            self.head.weight = self.read.get_parameter("weight")
        self.pool, self.cap = pool, cap
        self.times = times(width) if times else 1.0

    def forward(self, x: Tensor) -> Any:
        h = self.read(x)
        if self.times != 1.0:
            h = self.times * h
        if self.places is not None:
            h = h + self.places
        for block in self.blocks:
            h = block(h)
        if self.pool:
            h = h.mean(1)
        logits = self.head(self.norm(h))
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits


def symbols(width: int) -> nn.Module:
    """The embedding of symbols."""
    return nn.Embedding(SYMBOLS, width)


def pixels(width: int) -> nn.Module:
    """The embedding of rows of pixels."""
    return nn.Linear(8, width)


class VitBlock(nn.Module):
    """A block of a ViT with a learned gain on every branch."""

    def __init__(self, dim: int, factor: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, dim // HEAD, batch_first=True)
        self.ls1 = nn.Parameter(torch.full((dim,), 0.5))
        self.ln2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)
        self.ls2 = nn.Parameter(torch.full((dim,), 0.5))
        self.factor = factor

    def forward(self, x: Tensor) -> Any:
        y = self.ln1(x)
        x = x + self.factor * self.ls1 * self.attn(y, y, y, need_weights=False)[0]
        return x + self.factor * self.ls2 * self.fc2(F.gelu(self.fc1(self.ln2(x))))


class RegisterVit(nn.Module):
    """A ViT of patches with registers and a token of the class."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.special = nn.Parameter(0.5 * torch.randn(1, 3, width))
        self.pos = nn.Parameter(0.5 * torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(VitBlock(width, factor) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        h = torch.cat([self.special.expand(len(h), -1, -1), h], 1)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 0]))


class GatedGcn(nn.Module):
    """Messages through gates of both ends, then a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.here = nn.Linear(width, width)
        self.there = nn.Linear(width, width)
        self.message = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, adjacency: Tensor) -> Any:
        gates = torch.sigmoid(self.here(h)[:, :, None] + self.there(h)[:, None])
        gates = gates * adjacency[..., None]
        seen = (gates * self.message(h)[:, None]).sum(2) / (gates.sum(2) + 1)
        return self.out(F.relu(self.own(h) + seen))


class GraphAttention(nn.Module):
    """Attention of all nodes, whose logits know the edges by a number for each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.edge = nn.Parameter(torch.zeros(width // HEAD, 1, 1))
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, adjacency: Tensor) -> Any:
        q, k, v = (p.unflatten(-1, (-1, HEAD)).transpose(1, 2) for p in self.qkv(h).chunk(3, -1))
        bias = self.edge * adjacency[:, None]
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(read.transpose(1, 2).flatten(2))


class GraphBlock(nn.Module):
    """A branch that sees the neighbours, and one that does not."""

    def __init__(self, width: int, make: MakeBranch, factor: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mixing = make(width)
        self.norm2 = nn.LayerNorm(width)
        self.ffn = Ffn(width, act=F.silu)
        self.factor = factor

    def forward(self, h: Tensor, adjacency: Tensor) -> Any:
        h = h + self.factor * self.mixing(self.norm1(h), adjacency)
        return h + self.factor * self.ffn(self.norm2(h))


class GraphNet(nn.Module):
    """A residual network of nodes."""

    def __init__(
        self, width: int, depth: int, make: MakeBranch = GatedGcn, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.read = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(GraphBlock(width, make, factor) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Any:
        h = self.read(x)
        for block in self.blocks:
            h = block(h, adjacency)
        return self.head(self.norm(h))


class PointBlock(nn.Module):
    """Attention with a weight for every feature, which sees where points lie."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.place = nn.Linear(COORDINATES, width)
        self.weigh = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.factor = factor

    def forward(self, h: Tensor, points: Tensor) -> Any:
        x = self.norm(h)
        where = self.place(points[:, :, None] - points[:, None])
        scores = self.weigh(F.relu(self.q(x)[:, :, None] - self.k(x)[:, None] + where))
        read = (scores.softmax(2) * (self.v(x)[:, None] + where)).sum(2)
        return h + self.factor * self.out(read)


class PointTransformer(nn.Module):
    """Vector attention of points."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        self.read = nn.Linear(COORDINATES, width)
        self.blocks = nn.ModuleList(PointBlock(width, factor) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, points: Tensor) -> Any:
        h = self.read(points)
        for block in self.blocks:
            h = block(h, points)
        return self.head(self.norm(h).mean(1))


class Images(nn.Module):
    """A residual network of images."""

    def __init__(
        self, width: int, depth: int, make: MakeBranch = SpatialConv, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.read = nn.Conv2d(1, width, 3, stride=2, padding=1)
        norm = partial(nn.GroupNorm, 1)
        self.blocks = nn.ModuleList(Block(width, (make,), norm, factor) for _ in range(depth))
        self.norm = norm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.read(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean((2, 3)))


class Coarsened(nn.Module):
    """Blocks at fine tokens, blocks at half as many, and again fine ones."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        makers = (partial(Attention, causal=False), Ffn)
        self.read = nn.Linear(8, width)
        self.before = nn.ModuleList(
            Block(width, makers, nn.LayerNorm, factor) for _ in range(depth)
        )
        self.middle = nn.ModuleList(
            Block(width, makers, nn.LayerNorm, factor) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.read(x)
        for block in self.before:
            h = block(h)
        fine = h
        h = h.unflatten(1, (-1, 2)).mean(2)
        for block in self.middle:
            h = block(h)
        h = fine + h.repeat_interleave(2, 1)
        return self.head(self.norm(h).mean(1))


class Conditioned(nn.Module):
    """Vectors whose every block sees the mean of a context, through a matrix of its own."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        self.read = nn.Linear(FEATURES, width)
        self.query = nn.Sequential(nn.Linear(1, width), nn.SiLU())
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.of_query = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)
        self.factor = factor

    def forward(self, values: Tensor, query: Tensor) -> Any:
        h = self.read(values)
        c = self.query(query)
        for norm, up, of_query, down in zip(
            self.norms, self.up, self.of_query, self.down, strict=True
        ):
            h = h + self.factor * down(F.silu(up(norm(h)) + of_query(c)))
        return self.head(self.norm(h))


class ValueResidual(nn.Module):
    """A GPT whose values are mixed with those of the first block, by a learned number."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        self.wte = nn.Embedding(SYMBOLS, width)
        self.h = nn.ModuleList(ValueBlock(width, factor) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, ids: Tensor) -> Any:
        h = self.wte(ids)
        first = None
        for block in self.h:
            h, v = block(h, first)
            first = v if first is None else first
        return self.lm_head(self.ln_f(h))


class ValueBlock(nn.Module):
    """A block of ``ValueResidual``."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.share = nn.Parameter(torch.tensor(0.5))
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 2 * width)
        self.fc_out = nn.Linear(2 * width, width)
        self.factor = factor

    def forward(self, h: Tensor, first: Tensor | None) -> Any:
        q, k, v = (
            part.unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for part in self.qkv(self.ln_1(h)).chunk(3, -1)
        )
        own = v
        v = self.share * v + (1 - self.share) * (own if first is None else first)
        read = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        h = h + self.factor * self.proj(read.transpose(1, 2).flatten(2))
        h = h + self.factor * self.fc_out(squared_relu(self.fc(self.ln_2(h))))
        return h, own


class TwoSenses(nn.Module):
    """Two residual stacks, of rows and of columns, whose ends are joined."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        makers = (partial(Attention, causal=False), Ffn)
        self.rows = nn.Linear(8, width)
        self.columns = nn.Linear(8, width)
        self.row_blocks = nn.ModuleList(
            Block(width, makers, nn.LayerNorm, factor) for _ in range(depth)
        )
        self.column_blocks = nn.ModuleList(
            Block(width, makers, nn.LayerNorm, factor) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        a = self.rows(x)
        b = self.columns(x.transpose(1, 2))
        for one, two in zip(self.row_blocks, self.column_blocks, strict=True):
            a = one(a)
            b = two(b)
        return self.head(self.norm(torch.cat([a.mean(1), b.mean(1)], -1)))


class SeveralTokens(nn.Module):
    """A GPT with two heads, of the next symbol and of the one after it."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        makers = (partial(Attention, rotary=True), partial(Ffn, act=F.silu))
        self.embed = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.ModuleList(Block(width, makers, nn.RMSNorm, factor) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(width, SYMBOLS, bias=False) for _ in range(2))

    def forward(self, ids: Tensor) -> Any:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        logits = [head(norm(h)) for head, norm in zip(self.heads, self.norms, strict=True)]
        return torch.stack(logits, 2)


class PyTorchEncoder(nn.Module):
    """PyTorch's pre-norm encoder over symbols, causal, with a learned table of places."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(SYMBOLS, width)
        self.place = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, width // HEAD, 2 * width, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor) -> Any:
        T = ids.shape[1]
        h = self.token(ids) + self.place(torch.arange(T))
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return self.out(self.out_norm(self.layers(h, mask=mask, is_causal=True)))


class OneToken(nn.Module):
    """Nodes of a graph, mixed over nodes and over features by turns, without attention."""

    def __init__(self, width: int, depth: int, factor: float = 1.0) -> None:
        super().__init__()
        self.read = nn.Linear(FEATURES, width)
        self.over_nodes = nn.ModuleList(nn.Linear(NODES, NODES) for _ in range(depth))
        self.over_features = nn.ModuleList(Ffn(width, act=F.elu) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)
        self.factor = factor

    def forward(self, x: Tensor, adjacency: Tensor) -> Any:
        h = self.read(x)
        for k, (nodes, features) in enumerate(
            zip(self.over_nodes, self.over_features, strict=True)
        ):
            mixed = nodes(self.norms[2 * k](h).transpose(1, 2)).transpose(1, 2)
            h = h + self.factor * (adjacency @ mixed) / 3
            h = h + self.factor * features(self.norms[2 * k + 1](h))
        return self.head(self.norm(h))
