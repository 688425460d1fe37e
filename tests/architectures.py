"""Architectures as people build them, small: where the skip stands and what lies on it differ."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10


class Attention(nn.Module):
    """Heads of 8, with normalised queries and keys where asked."""

    def __init__(self, width: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.q_norm, self.k_norm = (nn.LayerNorm(8) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(y.transpose(1, 2).flatten(2))


class LayerScale(nn.Module):
    """``gamma * x``."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(start * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def mlp(width: int) -> nn.Sequential:
    """Two layers with GELU."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class VitBlock(nn.Module):
    """Parts of a block of a ViT, which the model adds up itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attn = Attention(width, qk_norm=True)
        self.mlp = mlp(width)
        self.ls1 = LayerScale(width, 0.5)
        self.ls2 = LayerScale(width, 0.5)


class VisionTransformer(nn.Module):
    """A ViT with a class token, learned positions, QK-norm and LayerScale, whose skips stand in its
    own forward.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(VitBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = x + block.ls1(block.attn(block.norm1(x)))
            x = x + block.ls2(block.mlp(block.norm2(x)))
        return self.head(self.norm(x)[:, 0])


class Listed(nn.Module):
    """Layers as lists of a norm, a branch and a residual, attention and MLP in turn, as in
    x-transformers.
    """

    class Residual(nn.Module):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return x + residual

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        branches = [part for _ in range(depth) for part in (Attention(width), mlp(width))]
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.ModuleList([nn.LayerNorm(width), None]), branch, self.Residual()])
            for branch in branches
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for (norm, _), branch, residual in self.layers:
            x = residual(branch(norm(x)), x)
        return self.head(self.norm(x)).mean(1)


class ParallelBlock(nn.Module):
    """Attention and MLP side by side behind one norm, as in GPT-J and PaLM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y) + self.mlp(y)


class Experts(nn.Module):
    """A router and two of four experts a token, in stacked matrices, the narrow side of fixed
    size.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, width, 8) / width**0.5)
        self.down = nn.Parameter(torch.randn(4, 8, width) / 8**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for k in range(4):
            own = torch.where(chosen == k, weights, 0.0).sum(-1, keepdim=True)
            out = out + own * (torch.relu(x @ self.up[k]) @ self.down[k])
        return out


class SandwichBlock(nn.Module):
    """A norm between the branch and the stream, as in OLMo 2 and Swin v2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = mlp(width)
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.mlp(x))


class ExpertsBlock(nn.Module):
    """Pre-norm experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.experts = Experts(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(self.norm(x))


class RecurrentBlock(nn.Module):
    """A GRU and a projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.proj(self.gru(self.norm(x))[0])


class StateSpaceBlock(nn.Module):
    """A diagonal state space of four states a channel, gated, as in S4D and Mamba."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.log_decay = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(width, 1))
        self.read = nn.Parameter(torch.ones(width, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        keep = torch.exp(-torch.exp(self.log_decay))
        state = 0.0
        answers = []
        for t in range(y.shape[1]):
            state = keep * state + y[:, t, :, None]
            answers.append((state * self.read).sum(-1))
        return x + self.out(torch.stack(answers, 1) * nn.functional.silu(gate))


class Tokens(nn.Module):
    """Tokens to classes, through blocks of one kind."""

    def __init__(self, block: type[nn.Module], width: int, depth: int, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        self.blocks = nn.Sequential(*[block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids)))).mean(1)


class PreactivationBlock(nn.Module):
    """Norm, activation and convolution, twice; a projection where the size changes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        return skip + self.conv2(torch.relu(self.norm2(self.conv1(y))))


class PreactivationResNet(nn.Module):
    """Two stages, of which the second begins with a projection."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        sizes = [(width, width, 1), (width, 2 * width, 2)]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *[
                    PreactivationBlock(a if k == 0 else b, b, s if k == 0 else 1)
                    for k in range(depth)
                ]
            )
            for a, b, s in sizes
        )
        self.norm = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(torch.relu(self.norm(x)).mean((2, 3)))
