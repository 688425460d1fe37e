"""Models in plain PyTorch, as the literature has them: recurrent, on graphs, of long filters, and a
small GPT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 32


class ResidualLSTM(nn.Module):
    """A language model of pre-norm LSTMs, each on the residual stream, as in deep speech and
    translation models.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.lstms = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, lstm, out in zip(self.norms, self.lstms, self.outs, strict=True):
            x = x + out(lstm(norm(x))[0])
        return self.head(self.norm(x))


class MessagePassing(nn.Module):
    """One step on a graph: messages of the neighbours by the adjacency matrix, beside the node
    itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.message = nn.Linear(width, width, bias=False)
        self.own = nn.Linear(width, width)
        self.update = nn.Linear(width, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.norm(x)
        mean = adjacency @ self.message(h) / adjacency.sum(-1, keepdim=True).clamp(min=1)
        return x + self.update(nn.functional.relu(mean + self.own(h)))


class GraphNet(nn.Module):
    """Classes of nodes from features and a batch of adjacency matrices."""

    def __init__(self, width: int, depth: int, features: int = 5, classes: int = 4) -> None:
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.layers = nn.ModuleList(MessagePassing(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, classes)

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        x = self.encode(features)
        for layer in self.layers:
            x = layer(x, adjacency)
        return self.classify(self.norm(x))


class S4D(nn.Module):
    """A diagonal state space as a long convolution by FFT, as in S4D-Lin (Gu et al., 2022), real
    parts alone trained in logarithms."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.empty(width).uniform_(-7.0, -2.3))
        self.log_decay = nn.Parameter(torch.full((width, states), 0.5).log())
        self.frequency = nn.Parameter(torch.pi * torch.arange(states).repeat(width, 1).float())
        self.read = nn.Parameter(torch.randn(width, states, 2))
        self.skip = nn.Parameter(torch.randn(width))

    def forward(self, u: Tensor) -> Tensor:  # [batch, length, width]
        length = u.shape[1]
        step = self.log_step.exp()[:, None]
        a = torch.complex(-self.log_decay.exp(), self.frequency)
        c = torch.view_as_complex(self.read) * (torch.exp(a * step) - 1) / a
        powers = torch.exp((a * step)[..., None] * torch.arange(length, device=u.device))
        kernel = 2 * torch.einsum("hn,hnl->hl", c, powers).real
        y = torch.fft.irfft(
            torch.fft.rfft(u.mT, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length
        )
        return y[..., :length].mT + self.skip * u


class LongConvBlock(nn.Module):
    """A gated long convolution in the residual stream, as in Hyena and gated state spaces."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.s4d = S4D(width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        return x + self.out(nn.functional.gelu(self.s4d(u)) * torch.sigmoid(gate))


class LongConv(nn.Module):
    """A classifier of sequences: the mean over time of a stack of long convolutions."""

    def __init__(self, width: int, depth: int, channels: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Linear(channels, width)
        self.blocks = nn.Sequential(*(LongConvBlock(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, classes)

    def forward(self, signal: Tensor) -> Tensor:
        return self.decoder(self.norm(self.blocks(self.encoder(signal))).mean(1))


class CausalSelfAttention(nn.Module):
    """Fused queries, keys and values; heads of 16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, width // 16, 16).transpose(1, 2)
            for t in self.c_attn(x).split(width, dim=2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class GPTBlock(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=False)
        self.ln_2 = nn.LayerNorm(width, bias=False)
        self.attn = CausalSelfAttention(width)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(width, 4 * width, bias=False),
                "c_proj": nn.Linear(4 * width, width, bias=False),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    """A decoder with learned positions and the embedding as its head, begun as GPT-2 is: what
    writes the stream begins smaller by the root of the number of branches."""

    def __init__(self, width: int, depth: int, length: int = 16) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(GPTBlock(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(
                    p, std=0.02 / (2 * depth) ** 0.5 if name.endswith("c_proj.weight") else 0.02
                )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
