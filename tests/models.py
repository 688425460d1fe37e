"""Models as users write them, small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm attention and MLP, with names that tell nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.a = nn.Linear(width, 3 * width)
        self.b = nn.Linear(width, width, bias=False)
        self.c = nn.Linear(width, 4 * width)
        self.d = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.a(self.n1(x)).chunk(3, -1)
        x = x + self.b(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.d(torch.relu(self.c(self.n2(x))))


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, width: int, depth: int, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width, padding_idx=0)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=not tied)
        if tied:
            self.head.weight = self.tokens.weight

    def features(self, ids: Tensor) -> Tensor:
        """The stream behind the last layer."""
        x: Tensor = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.features(ids)))


class UpDown(nn.Module):
    """``h + W_2 relu(W_1 h)``."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=bias)
        self.down = nn.Linear(2 * width, width, bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(torch.relu(self.up(h)))


class Residual(nn.Module):
    """Pre-norm MLP blocks on vectors."""

    def __init__(self, width: int, depth: int, bias: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width, bias=bias)
        self.blocks = nn.ModuleList(UpDown(width, bias) for _ in range(depth))
        self.head = nn.Linear(width, 3, bias=bias)

    def streams(self, x: Tensor) -> list[Tensor]:
        """The stream before the first block and behind every one."""
        h = [self.embed(x)]
        for block in self.blocks:
            h.append(block(h[-1]))
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.streams(x)[-1])


class Language(nn.Module):
    """Next tokens, as a model of Hugging Face: with labels it shifts them and returns its loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11)
        self.blocks = nn.Sequential(*[UpDown(width) for _ in range(depth)])

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.norm(self.blocks(self.tokens(input_ids))))
        return (
            logits if labels is None else {"loss": shifted_loss(logits, labels), "logits": logits}
        )


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every token by the logits before it."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


IDS = torch.randint(1, 11, (8, 6, 8), generator=torch.Generator().manual_seed(0))
SHIFTED = [(ids[:, :-1], ids[:, 1:]) for ids in IDS]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, watch: Any = None
) -> list[float]:
    """Losses of a training by a loop as users write it, one per batch."""
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        if watch is not None:
            watch.step()
        losses.append(loss.item())
    return losses


class ConvBlock(nn.Module):
    """Pre-activation, with a depthwise and a grouped convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.mix = nn.Conv2d(channels, 2 * channels, 1, groups=2)
        self.out = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(torch.relu(self.mix(self.spatial(self.norm(x)))))


class ConvNet(nn.Module):
    """Images to logits."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.Sequential(*[ConvBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def encoder(width: int, depth: int) -> nn.Module:
    """Pre-norm encoder of PyTorch with heads of 8 features, without dropout, from features to
    features.
    """
    layer = nn.TransformerEncoderLayer(
        width, width // 8, 2 * width, norm_first=True, batch_first=True, dropout=0.0
    )
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)


def gemma2(width: int, depth: int) -> Any:
    """Gemma 2 of Hugging Face with heads of 8 features, one of them for keys and values."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma2Config(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 8,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=2 * width,
        vocab_size=32,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return transformers.Gemma2ForCausalLM(config)


def gpt2(width: int, depth: int) -> Any:
    """GPT-2 of Hugging Face with heads of 8 features, without dropout."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_embd=width,
        n_layer=depth,
        n_head=width // 8,
        n_positions=8,
        vocab_size=16,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)
