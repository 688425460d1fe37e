"""A small causal Transformer as people write it, and sequences that it can learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 16
HEAD = 16


class Block(nn.Module):
    """Pre-norm attention and MLP; heads have 16 features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, HEAD)
        q, k, v = (z.view(shape).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        added: Tensor = self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x + added


class Transformer(nn.Module):
    """Tokens [b, positions] to logits of the next ones [b, positions, tokens]."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        h: Tensor = self.embed(tokens)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(self.norm(h))
        return logits


def sequences(count: int, length: int, seed: int) -> Tensor:
    """Sequences [count, length] whose next token is, four times in five, decided by the last."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, TOKENS, (count, length), generator=generator)
    is_ruled = torch.rand(count, length, generator=generator) < 0.8
    for position in range(1, length):
        ruled = follows[tokens[:, position - 1]]
        tokens[:, position] = torch.where(is_ruled[:, position], ruled, tokens[:, position])
    return tokens
