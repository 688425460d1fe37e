"""Transformers and other networks of sequences, each of a width and a depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tests.self_test_bank.models import CLASSES, FEATURES, HEAD, LENGTH, VOCAB
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def split(x: Tensor, size: int = HEAD) -> Tensor:
    """Heads of one size, before positions."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """Heads side by side again."""
    return x.transpose(1, 2).flatten(2)


def causal(length: int) -> Tensor:
    """Which positions each position sees."""
    return torch.ones(length, length, dtype=torch.bool).tril()


# ---- decoders


class NanoBlock(nn.Module):
    """A block of nanoGPT: fused queries, keys and values, and four times the width between."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_out = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.c_proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGpt(nn.Module):
    """nanoGPT with its starts: 0.02, and by depth lower where the stream is written."""

    def __init__(
        self, width: int, depth: int, tied: bool = True, bias: bool = False, starts: bool = True
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        self.wpe = nn.Embedding(LENGTH, width)
        self.h = nn.ModuleList(NanoBlock(width, bias) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width, bias=bias)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        for name, module in self.named_modules() if starts else ():
            if isinstance(module, nn.Linear | nn.Embedding):
                last = name.endswith(("c_proj", "c_out"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * depth) if last else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if tied:
            self.wte.weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Conv1D(nn.Module):
    """The linear map of GPT-2, whose matrix is inputs by outputs."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(before, after))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class Gpt2(nn.Module):
    """GPT-2 with its transposed matrices, and a head of its own."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.ln_1 = nn.LayerNorm(width)
            self.ln_2 = nn.LayerNorm(width)
            self.attn = nn.ModuleDict(
                {"c_attn": Conv1D(width, 3 * width), "c_proj": Conv1D(width, width)}
            )
            self.mlp = nn.ModuleDict(
                {"c_fc": Conv1D(width, 4 * width), "c_proj": Conv1D(4 * width, width)}
            )

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = map(split, self.attn["c_attn"](self.ln_1(x)).chunk(3, -1))
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(HEAD)
            scores = scores.masked_fill(~causal(x.shape[1]), -math.inf)
            x = x + self.attn["c_proj"](joined(scores.softmax(-1) @ v))
            hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
            return x + self.mlp["c_proj"](hidden)

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        self.wpe = nn.Embedding(LENGTH, width)
        self.h = nn.ModuleList(self.Block(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    cos = angles.cos()
    sin = angles.sin()
    a = x[..., :half]
    b = x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class LlamaAttention(nn.Module):
    """Rotary positions; every key serves ``group`` queries; queries and keys normed where asked."""

    def __init__(
        self, width: int, group: int = 1, keys: int | None = None, qk_norm: bool = False
    ) -> None:
        super().__init__()
        self.keys = keys or width // HEAD // group
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, self.keys * HEAD, bias=False)
        self.v_proj = nn.Linear(width, self.keys * HEAD, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(HEAD) if qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q = rotated(self.q_norm(split(self.q_proj(x))))
        k = rotated(self.k_norm(split(self.k_proj(x))))
        v = split(self.v_proj(x))
        times = q.shape[1] // self.keys
        k, v = (part.repeat_interleave(times, 1) for part in (k, v))
        return self.o_proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class LlamaMlp(nn.Module):
    """Gated by SiLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    """Llama, with grouped keys, normed queries, a tied head or other layers where asked."""

    class Layer(nn.Module):
        def __init__(self, width: int, **options: int | bool | None) -> None:
            super().__init__()
            self.input_layernorm = nn.RMSNorm(width)
            self.post_attention_layernorm = nn.RMSNorm(width)
            self.self_attn = LlamaAttention(width, **options)
            self.mlp = LlamaMlp(width)

        def forward(self, hidden: Tensor) -> Tensor:
            residual = hidden
            hidden = residual + self.self_attn(self.input_layernorm(hidden))
            residual = hidden
            return residual + self.mlp(self.post_attention_layernorm(hidden))

    def __init__(
        self,
        width: int,
        depth: int,
        tied: bool = False,
        root: bool = False,
        **options: int | bool | None,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(self.Layer(width, **options) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
            nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.root = math.sqrt(width) if root else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids) * self.root
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Heads(nn.Module):
    """Attention whose number of heads is fixed, so that heads grow, over a power of their size."""

    def __init__(self, width: int, power: float, heads: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = heads
        self.power = power
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (split(part(y), y.shape[-1] // self.heads) for part in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** self.power).softmax(-1)
        return x + self.o(joined(weights @ v))


class FeedForward(nn.Module):
    """Two layers behind a norm, added to what they read."""

    def __init__(self, width: int, act: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.act = act
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class Mixer(nn.Module):
    """Tokens through blocks, each a mixer of positions and a feed-forward layer."""

    class Block(nn.Module):
        def __init__(self, width: int, mixer: Callable[[int], nn.Module]) -> None:
            super().__init__()
            self.mix = mixer(width)
            self.ff = FeedForward(width)

        def forward(self, x: Tensor) -> Tensor:
            return self.ff(self.mix(x))

    def __init__(
        self,
        width: int,
        depth: int,
        mixer: Callable[[int], nn.Module],
        positions: str = "learned",
        outputs: int = VOCAB,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = None
        if positions == "learned":
            self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        if positions == "waves":
            steps = torch.arange(LENGTH)[:, None]
            angles = steps * 100.0 ** (-torch.arange(width // 2) / (width // 2))
            waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
            self.register_buffer("waves", waves)
        self.blocks = nn.Sequential(*[self.Block(width, mixer) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions
        if hasattr(self, "waves"):
            x = x + self.waves
        return self.head(self.norm(self.blocks(x)))


class AlibiAttention(nn.Module):
    """Attention with a slope of distance for every head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part) for part in self.in_proj(self.norm(x)).chunk(3, -1))
        steps = torch.arange(x.shape[1])
        distance = (steps[:, None] - steps).clamp(min=0)
        bias = -self.slopes[:, None, None] * distance
        bias = bias.masked_fill(~causal(len(steps)), -math.inf)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out_proj(joined(out))


class TorchAttention(nn.Module):
    """PyTorch's own attention behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.mha = nn.MultiheadAttention(width, width // HEAD, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln(x)
        return x + self.mha(y, y, y, need_weights=False)[0]


class EinsumAttention(nn.Module):
    """Projections as tensors of width, heads and head size, as in JAX."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(width, heads, HEAD) / width**0.5) for _ in range(3)
        )
        self.out = nn.Parameter(torch.randn(heads, HEAD, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (torch.einsum("btd,dhk->bhtk", y, w) for w in (self.query, self.key, self.value))
        weights = (torch.einsum("bhqk,bhtk->bhqt", q, k) / HEAD**0.5).softmax(-1)
        seen = torch.einsum("bhqt,bhtk->bqhk", weights, v)
        return x + torch.einsum("bqhk,hkd->bqd", seen, self.out)


class LinearAttention(nn.Module):
    """Attention without a softmax: sums over the past of keys times values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q = split(self.q(y))
        k = split(self.k(y))
        v = split(self.v(y))
        q = F.elu(q) + 1
        k = F.elu(k) + 1
        state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        over = (q * k.cumsum(2)).sum(-1, keepdim=True)
        out = torch.einsum("bhtd,bhtde->bhte", q, state) / over
        return x + self.o(joined(out))


class GatedRecurrence(nn.Module):
    """A linear recurrence whose gates depend on the input, as in minGRU and HGRN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.candidate, self.forget, self.gate, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        new = torch.tanh(self.candidate(y))
        keep = torch.sigmoid(self.forget(y))
        state = torch.zeros_like(new[:, 0])
        states = []
        for t in range(y.shape[1]):
            state = keep[:, t] * state + (1 - keep[:, t]) * new[:, t]
            states.append(state)
        return x + self.out(torch.stack(states, 1) * F.silu(self.gate(y)))


class SelectiveScan(nn.Module):
    """A state space whose steps, inputs and outputs depend on the input, as in Mamba."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, 2 * width, bias=False)
        self.conv1d = nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.to_b = nn.Linear(width, states, bias=False)
        self.to_c = nn.Linear(width, states, bias=False)
        self.dt_proj = nn.Linear(width, width)
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step = F.softplus(self.dt_proj(u))
        b = self.to_b(u)
        c = self.to_c(u)
        keep = torch.exp(-step[..., None] * self.A_log.exp())
        drive = (step * u)[..., None] * b[:, :, None]
        state = torch.zeros_like(drive[:, 0])
        seen = []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + drive[:, t]
            seen.append((state * c[:, t, None]).sum(-1))
        y = torch.stack(seen, 1) + self.D * u
        return x + self.out_proj(y * F.silu(gate))


class DiagonalStates(nn.Module):
    """A diagonal state space of fixed size for every channel, as in S4D."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.C = nn.Parameter(torch.randn(width, states) / states**0.5)
        self.D = nn.Parameter(torch.ones(width))
        self.output_linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        steps = torch.arange(y.shape[1])
        powers = torch.exp(-torch.exp(self.log_decay)[..., None] * steps)
        kernel = (self.C[..., None] * powers).sum(1)
        lags = steps[:, None] - steps
        kernel = torch.where(lags >= 0, kernel[:, lags.clamp(min=0)], 0.0)
        out = torch.einsum("dts,bsd->btd", kernel, y) + self.D * y
        return x + self.output_linear(F.gelu(out))


class FourierMixing(nn.Module):
    """The real part of a Fourier transform over positions, then a layer, as in FNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.fft(self.norm(x), dim=1, norm="ortho").real
        return x + self.lin(mixed)


class GatedPositions(nn.Module):
    """A map over positions, of fixed size, that gates half of the channels, as in gMLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate_norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.spatial = nn.Conv1d(LENGTH, LENGTH, 1)
        nn.init.normal_(self.spatial.weight, std=0.05)
        nn.init.ones_(self.spatial.bias)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.into(self.norm(x))).chunk(2, -1)
        return x + self.out(u * self.spatial(self.gate_norm(v)))


class RecurrentMixing(nn.Module):
    """A GRU of PyTorch and a projection, behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.proj(self.rnn(self.norm(x))[0])


class ParallelLayer(nn.Module):
    """Attention and feed-forward beside one another behind one norm, as in GPT-J and PaLM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.fc_in = nn.Linear(width, 3 * width)
        self.fc_out = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln(x)
        q, k, v = (split(part) for part in self.qkv(y).chunk(3, -1))
        seen = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return x + self.attn_out(joined(seen)) + self.fc_out(F.gelu(self.fc_in(y)))


class LowRankBlock(nn.Module):
    """A frozen layer and two thin matrices beside it, of which the second starts at zero."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)
        self.A = nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.B = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.lin(F.gelu(y)) + y @ self.A.T @ self.B.T


# ---- encoders, and pairs


class TorchEncoder(nn.Module):
    """PyTorch's encoder over vectors, normed before or after its branches."""

    def __init__(self, width: int, depth: int, norm_first: bool = True, act: str = "relu") -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        layer = nn.TransformerEncoderLayer(
            width,
            width // HEAD,
            2 * width,
            0.0,
            activation=act,
            batch_first=True,
            norm_first=norm_first,
        )
        last = nn.LayerNorm(width) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, depth, last, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(series)).mean(1))


class TorchSeq2Seq(nn.Module):
    """PyTorch's encoder and decoder over tokens, with norms before branches."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCAB, width)
        self.target = nn.Embedding(VOCAB, width)
        sizes = (width, width // HEAD, 2 * width, 0.0)
        encoder = nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=True)
        decoder = nn.TransformerDecoderLayer(*sizes, batch_first=True, norm_first=True)
        last = nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(encoder, depth, last, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, depth, nn.LayerNorm(width))
        self.generator = nn.Linear(width, VOCAB)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        memory = self.encoder(self.source(source))
        out = self.decoder(self.target(target), memory, tgt_mask=mask, tgt_is_causal=True)
        return self.generator(out)


class T5Attention(nn.Module):
    """Attention without a scale, of one sequence or of two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        for part in (self.q, self.k):
            nn.init.normal_(part.weight, std=(width * HEAD**0.5) ** -0.5)

    def forward(self, x: Tensor, other: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        seen = y if other is None else other
        q = split(self.q(y))
        k = split(self.k(seen))
        v = split(self.v(seen))
        scores = q @ k.transpose(-1, -2)
        scores = scores if bias is None else scores + bias
        return x + self.o(joined(scores.softmax(-1) @ v))


class T5Mlp(nn.Module):
    """Two layers without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.wi = nn.Linear(width, 2 * width, bias=False)
        self.wo = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wo(F.relu(self.wi(self.norm(x))))


class T5(nn.Module):
    """An encoder and a decoder with relative positions and cross-attention."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCAB, width)
        self.bias = nn.Embedding(2 * LENGTH, width // HEAD)
        self.encoder = nn.ModuleList(
            nn.ModuleList([T5Attention(width), T5Mlp(width)]) for _ in range(depth)
        )
        self.decoder = nn.ModuleList(
            nn.ModuleList([T5Attention(width), T5Attention(width), T5Mlp(width)])
            for _ in range(depth)
        )
        self.encoder_norm = nn.RMSNorm(width)
        self.decoder_norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        steps = torch.arange(source.shape[1])
        bias = self.bias(steps[:, None] - steps + LENGTH).permute(2, 0, 1)
        x = self.shared(source)
        y = self.shared(target)
        for attention, mlp in self.encoder:
            x = mlp(attention(x, bias=bias))
        x = self.encoder_norm(x)
        for attention, cross, mlp in self.decoder:
            hidden = bias.masked_fill(~causal(len(steps)), -math.inf)
            y = mlp(cross(attention(y, bias=hidden), other=x))
        return self.lm_head(self.decoder_norm(y))


class Vit(nn.Module):
    """A vision Transformer with a class token, or the mean of its patches."""

    def __init__(self, width: int, depth: int, token: bool = True) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if token else None
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5 if token else 4, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(TorchAttention(width), FeedForward(width)) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 0] if self.cls_token is not None else x.mean(1))


class Swin(nn.Module):
    """Attention within windows of an image, shifted in every second block, on one stage."""

    class Block(nn.Module):
        def __init__(self, width: int, shift: int) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.norm2 = nn.LayerNorm(width)
            self.shift = shift
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.table = nn.Parameter(torch.zeros(9, width // HEAD))
            self.fc1 = nn.Linear(width, 2 * width)
            self.fc2 = nn.Linear(2 * width, width)
            rows = torch.arange(4) // 2
            columns = torch.arange(4) % 2
            index = (rows[:, None] - rows + 1) * 3 + columns[:, None] - columns + 1
            self.register_buffer("index", index)

        def forward(self, x: Tensor) -> Tensor:
            b, h, w, c = x.shape
            y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
            y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
            q, k, v = (split(part) for part in self.qkv(y).chunk(3, -1))
            bias = self.table[self.index].permute(2, 0, 1)
            y = self.proj(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=bias)))
            y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.blocks = nn.ModuleList(self.Block(width, k % 2) for k in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean((1, 2)))


class Perceiver(nn.Module):
    """Latent vectors, moved by the mean of the inputs, that read the inputs in every block."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.inputs_norm = nn.LayerNorm(width)
            self.q = nn.Linear(width, width)
            self.kv = nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)
            self.ff = FeedForward(width)

        def forward(self, latents: Tensor, inputs: Tensor) -> Tensor:
            q = split(self.q(self.norm(latents)))
            k, v = (split(part) for part in self.kv(self.inputs_norm(inputs)).chunk(2, -1))
            latents = latents + self.out(joined(F.scaled_dot_product_attention(q, k, v)))
            return self.ff(latents)

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.latents = nn.Parameter(torch.randn(5, width))
        self.mean = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(self.Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        inputs = self.embed(series)
        x = self.latents + self.mean(series.mean(1, keepdim=True))
        for block in self.blocks:
            x = block(x, inputs)
        return self.head(self.norm(x).mean(1))


class Dit(nn.Module):
    """A diffusion Transformer, whose time and class shift, scale and gate every branch."""

    class Block(nn.Module):
        def __init__(self, width: int, zero: bool) -> None:
            super().__init__()
            self.norm1, self.norm2 = (
                nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)
            )
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.fc1 = nn.Linear(width, 2 * width)
            self.fc2 = nn.Linear(2 * width, width)
            self.ada = nn.Linear(width, 6 * width)
            if zero:
                nn.init.zeros_(self.ada.weight)
                nn.init.zeros_(self.ada.bias)

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c)[:, None].chunk(6, -1)
            y = self.norm1(x) * (1 + scale1) + shift1
            q, k, v = (split(part) for part in self.qkv(y).chunk(3, -1))
            x = x + gate1 * self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
            y = self.norm2(x) * (1 + scale2) + shift2
            return x + gate2 * self.fc2(F.gelu(self.fc1(y)))

    def __init__(self, width: int, depth: int, zero: bool = True) -> None:
        super().__init__()
        self.x_embedder = nn.Linear(FEATURES, width)
        self.t_embedder = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.y_embedder = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(self.Block(width, zero) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.final = nn.Linear(width, FEATURES)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(8) / 2)
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        c = F.silu(self.t_embedder(waves) + self.y_embedder(y))
        x = self.x_embedder(x)
        for block in self.blocks:
            x = block(x, c)
        return self.final(self.norm(x))


class Tabular(nn.Module):
    """Numbers and categories as tokens, as in the FT-Transformer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, width) / FEATURES**0.5)
        self.bias = nn.Parameter(torch.zeros(FEATURES, width))
        self.categories = nn.Embedding(VOCAB, width)
        self.cls = nn.Parameter(0.1 * torch.randn(width))
        self.layers = nn.ModuleList(
            nn.ModuleDict({"attention": TorchAttention(width), "ffn": FeedForward(width)})
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor, ids: Tensor) -> Tensor:
        numbers = rows[..., None] * self.weight + self.bias
        cls = self.cls.expand(len(rows), 1, -1)
        x = torch.cat([cls, numbers, self.categories(ids)], 1)
        for layer in self.layers:
            x = layer["ffn"](layer["attention"](x))
        return self.head(F.relu(self.norm(x[:, 0])))


class Clip(nn.Module):
    """An encoder of images and one of texts, whose normalised answers are as wide as they are."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.words = nn.Embedding(VOCAB, width)
        self.visual, self.text = (
            nn.ModuleList(
                nn.Sequential(TorchAttention(width), FeedForward(width)) for _ in range(depth)
            )
            for _ in range(2)
        )
        self.visual_norm = nn.LayerNorm(width)
        self.text_norm = nn.LayerNorm(width)
        self.visual_proj = nn.Linear(width, width, bias=False)
        self.text_proj = nn.Linear(width, width, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        y = self.words(ids)
        for visual, text in zip(self.visual, self.text, strict=True):
            x = visual(x)
            y = text(y)
        x = F.normalize(self.visual_proj(self.visual_norm(x).mean(1)), dim=-1)
        y = F.normalize(self.text_proj(self.text_norm(y).mean(1)), dim=-1)
        return self.logit_scale.exp() * x @ y.T


class Bert(nn.Module):
    """An encoder of tokens, places and segments, with norms on their sum and before branches."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCAB, width)
        self.place = nn.Embedding(LENGTH, width)
        self.segment = nn.Embedding(2, width)
        self.embed_norm = nn.LayerNorm(width)
        self.layer = nn.ModuleList(
            nn.Sequential(TorchAttention(width), FeedForward(width)) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1])
        x = self.word(input_ids) + self.place(places) + self.segment(token_type_ids)
        x = self.embed_norm(x)
        for layer in self.layer:
            x = layer(x)
        return self.classifier(torch.tanh(self.pooler(self.norm(x)[:, 0])))


class Reward(nn.Module):
    """A decoder whose last position gives one number."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.model = Llama(width, depth)
        self.model.lm_head = nn.Identity()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.score(self.model(ids))[:, -1, 0]


class Actions(nn.Module):
    """Returns, states and actions in turn through a decoder, as in the Decision Transformer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed_return = nn.Linear(1, width)
        self.embed_state = nn.Linear(FEATURES, width)
        self.embed_action = nn.Linear(3, width)
        self.embed_time = nn.Embedding(LENGTH, width)
        self.embed_ln = nn.LayerNorm(width)
        self.h = nn.ModuleList(NanoBlock(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.act = nn.Linear(width, 3)

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        time = self.embed_time(torch.arange(states.shape[1]))
        parts = [
            self.embed_return(returns) + time,
            self.embed_state(states) + time,
            self.embed_action(actions) + time,
        ]
        x = self.embed_ln(torch.stack(parts, 2).flatten(1, 2))
        for block in self.h:
            x = block(x)
        return torch.tanh(self.act(self.ln_f(x)[:, 1::3]))


# ---- unusual spellings, which a plan may or may not read as they are meant


class FusedMultiQuery(nn.Module):
    """Queries of all heads, and one key and value, from one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, width + 2 * HEAD)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).split([x.shape[-1], HEAD, HEAD], -1)
        q = split(q)
        k, v = (part[:, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
        return x + self.out(joined(F.scaled_dot_product_attention(q, k, v)))


class CosineAttention(nn.Module):
    """Two heads that grow, whose queries and keys are normalised, times a learned temperature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.tau = nn.Parameter(torch.tensor(5.0))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        size = x.shape[-1] // 2
        q, k = (F.normalize(split(part(y), size), dim=-1) for part in (self.q, self.k))
        weights = (self.tau * q @ k.transpose(-1, -2)).softmax(-1)
        return x + self.o(joined(weights @ split(self.v(y), size)))
