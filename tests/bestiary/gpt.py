"""A small GPT with its own muP and CompleteP, as users write them: starts, rates and decays of the
published tables.

Every parameter carries what its constructor knows, its kind and the factor of its rate, as
``infshape`` of microsoft/mup does, so that a function of parameter groups can find it. Tokens are
the grey levels of coarse digits, in reading order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import nfd
from nfd.data import digits

BASE_WIDTH = 32
BASE_DEPTH = 2
HEAD = 16
LEVELS = 8
TOKENS = 16
EXPERTS = 4
Optimizer = torch.optim.Optimizer


class Row(NamedTuple):
    """Powers of the ratio m of widths and of the ratio l of depths, in a start and in AdamW's
    rate.
    """

    std: float = 0.0
    rate: float = 0.0
    std_l: float = 0.0
    rate_l: float = 0.0


# Yang et al., Tensor Programs V, table 3, and Dey et al., CompleteP, with 1/l folded into what
# writes the stream. A matrix from a growing to a fixed number of coordinates, such as a router, is
# one of output: the row of the head.
TABLE: Mapping[str, Row] = {
    "input": Row(),
    "vector": Row(),
    "hidden": Row(-0.5, -1.0),
    "outer": Row(-0.5, -1.0, -1.0, -1.0),
    "head": Row(-1.0, -1.0),
}


class Size:
    """The size of a network, and a user's table that scales it."""

    def __init__(self, width: int, depth: int, table: Mapping[str, Row] = TABLE) -> None:
        self.width = width
        self.depth = depth
        self.table = table
        self.m = width / BASE_WIDTH
        self.l = depth / BASE_DEPTH

    def mark(self, p: nn.Parameter, kind: str) -> nn.Parameter:
        """The parameter, which now knows its kind and the factor of its rate."""
        row: Any = self.table.get(kind, Row())
        # type: ignore[attr-defined]
        p.kind = kind
        p.m = self.m
        p.rate = self.m**row.rate * self.l**row.rate_l
        return p

    def draw(self, p: nn.Parameter, kind: str, base_std: float) -> nn.Parameter:
        """The same, drawn with the table's standard deviation."""
        row = self.table[kind]
        nn.init.normal_(p, std=base_std * self.m**row.std * self.l**row.std_l)
        return self.mark(p, kind)

    def linear(self, n_in: int, n_out: int, kind: str = "hidden", bias: bool = False) -> nn.Linear:
        """A layer whose base has weights of variance 1/in, and less where it writes the stream."""
        layer = nn.Linear(n_in, n_out, bias=bias)
        self.draw(
            layer.weight,
            kind,
            math.sqrt(self.m / n_in) * (0.3 if kind in ("outer", "down") else 1.0),
        )
        if bias:
            nn.init.zeros_(self.mark(layer.bias, "vector"))
        return layer


class RMSNorm(nn.Module):
    """A norm with a gain, of the model's own class as in Llama."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.weight = size.mark(nn.Parameter(torch.ones(size.width)), "norm")

    def forward(self, h: Tensor) -> Tensor:
        """Of RMS 1, times the gain."""
        return F.rms_norm(h, self.weight.shape, self.weight)


class Attention(nn.Module):
    """Causal attention whose heads keep their size."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        n = size.width
        self.heads = n // HEAD
        self.qkv = size.linear(n, 3 * n)
        self.proj = size.linear(n, n, "outer")

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Values, mixed by heads of the same size at every width."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def split(self, x: Tensor) -> Any:
        """Queries, keys and values, each by its heads."""
        return (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the stream."""
        return self.proj(self.attend(*self.split(x)).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two layers with a bias inside."""

    def __init__(self, size: Size, kinds: tuple[str, str] = ("hidden", "outer")) -> None:
        super().__init__()
        self.up = size.linear(size.width, 2 * size.width, kinds[0], bias=True)
        self.down = size.linear(2 * size.width, size.width, kinds[1])

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the stream."""
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Pre-norm attention and layers."""

    def __init__(
        self, size: Size, attention: Callable[[Size], nn.Module], mlp: Callable[[Size], nn.Module]
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(size)
        self.attn = attention(size)
        self.norm2 = RMSNorm(size)
        self.mlp = mlp(size)

    def forward(self, h: Tensor) -> Tensor:
        """The stream behind this block."""
        h = h + self.attn(self.norm1(h))
        return h + self.mlp(self.norm2(h))


class GPT(nn.Module):
    """Embeddings, blocks, a norm and a head."""

    def __init__(
        self,
        size: Size,
        attention: Callable[[Size], nn.Module] = Attention,
        mlp: Callable[[Size], nn.Module] = MLP,
    ) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(LEVELS, size.width)
        self.places = nn.Embedding(TOKENS - 1, size.width)
        for table in (self.tokens, self.places):
            size.draw(table.weight, "input", 0.7)
        self.blocks = nn.ModuleList(Block(size, attention, mlp) for _ in range(size.depth))
        self.norm = RMSNorm(size)
        self.head = size.linear(size.width, LEVELS, "head")

    def logits(self, h: Tensor) -> Tensor:
        """What the head makes of the normalised stream."""
        return self.head(h)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token."""
        h = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.logits(self.norm(h))


# ---- how users train it


def batches(seed: int = 0, steps: int = 5, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Grey levels of digits in 4 x 4 pixels, and the next ones."""
    pixels = digits().batches(size=size, steps=steps, seed=seed)[0].unflatten(-1, (8, 8))
    coarse = F.avg_pool2d(pixels, 2).flatten(2)
    ids = torch.bucketize(coarse, torch.linspace(-0.8, 1.6, LEVELS + 1)[1:-1])
    return [(x[:, :-1], x[:, 1:]) for x in ids]


def parameters(groups: list[dict[str, Any]]) -> list[Any]:
    """Those of groups."""
    return [p for group in groups for p in group["params"]]


def is_decayed(p: Any) -> bool:
    """Whether a user's rule of thumb decays it: matrices, but for embeddings."""
    return p.ndim > 1 and p.kind != "input"


def adamw(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    """AdamW at the table's rates, its decay as strong at every size."""
    lr = groups[0]["lr"]
    decay = groups[0]["weight_decay"]
    return torch.optim.AdamW(
        [
            {
                "params": [p],
                "lr": lr * p.rate,
                "weight_decay": decay / p.rate if is_decayed(p) else 0.0,
            }
            for p in parameters(groups)
        ],
        **options,
    )


def orthogonal(gradient: Tensor) -> Tensor:
    """Nearly the same with singular values of 1, by the quintic of Jordan et al. (Muon)."""
    if gradient.shape[0] > gradient.shape[1]:
        return orthogonal(gradient.T).T
    x = gradient / gradient.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.775 * gram) @ x
    return x


class Muon(torch.optim.AdamW):
    """Orthogonal updates where a group has a ``shape``, which is a factor of rows and columns;
    AdamW elsewhere.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update."""
        for group in self.param_groups:
            for p in group["params"] if group["shape"] else ():
                p -= group["lr"] * group["shape"](*p.shape) * orthogonal(p.grad)
                p.grad = None  # AdamW passes over it
        return super().step(closure)


def muon(
    groups: list[dict[str, Any]], shape: Callable[[int, int], float], adamw_lr: float = 3e-3
) -> Optimizer:
    """Muon for the matrices of blocks, AdamW at the table's rates for the rest."""
    lr = groups[0]["lr"]
    return Muon(
        [
            {
                "params": [p],
                "lr": lr * p.rate if own else adamw_lr * p.rate,
                "shape": shape if own else None,
            }
            for p in parameters(groups)
            for own in [p.kind in ("hidden", "outer", "few")]
        ],
        weight_decay=0.0,
    )


MUON_TABLE = dict(TABLE) | {"hidden": Row(-0.5), "outer": Row(-0.5, 0.0, -1.0, -1.0)}


def task(
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer], seed: int = 0, **options: Any
) -> nfd.Task:
    """Five steps on digits."""
    return nfd.Task(batches(seed), make_optimizer=make_optimizer, **options)
