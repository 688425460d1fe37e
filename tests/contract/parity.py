"""Forty small trainings, whose losses version 0.2.0 wrote down: the same numbers are promised ever
after.

The functions ``paper_training`` and ``planned_training`` are the only places that call the library.

    python -m tests.contract.parity  # writes parity.json anew: where numbers change on purpose
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import nfd

LOSSES = Path(__file__).with_suffix(".json")
STEPS = 4
BATCH = 8
INPUTS = 12
CLASSES = 5
WIDTH = 32
DEPTH = 4
WIDE = 256  # of layers without stored weights: more than the rows that pass through them
ALL = 1e-9  # a resolution at which structured layers drop nothing
BASE = 16, 2
EXPONENTS = {"mup": 0.0, "depth-mup": 0.5, "depth-mup-inner": 0.5, "complete-p": 1.0}
PAPER_RATES = {"sgd": 0.3, "adam": 0.01, "adamw": 0.01, "muon": 0.02}
RATES = {"sgd": 0.5, "adamw": 0.01, "muon": 0.02}

Case = dict[str, Any]


def data() -> list[tuple[Tensor, Tensor]]:
    """Normal inputs and random classes, one batch per step."""
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, BATCH, INPUTS, generator=stream, dtype=torch.float64)
    return list(zip(x, torch.randint(CLASSES, (STEPS, BATCH), generator=stream), strict=True))


class MLP(nn.Module):
    """Blocks of two layers, without biases or norms."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, width, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width, bias=False),
                nn.Tanh(),
                nn.Linear(2 * width, width, bias=False),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Attention(nn.Module):
    """Pre-norm self-attention over the inputs as tokens, and a gated block after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 8
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x in self.qkv(self.before(h)).chunk(3, -1)
        )
        read = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = h + self.proj(read)
        normed = self.between(h)
        return h + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    """Four tokens of three numbers each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width, bias=False)
        self.layers = nn.ModuleList(Attention(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unflatten(-1, (4, 3)))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h).mean(1))


class Convolution(nn.Module):
    """Convolutions over a line of twelve points, without a residual stream."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [1, *[width] * depth]
        self.layers = nn.ModuleList(
            nn.Conv1d(a, b, 3, padding=1, bias=False) for a, b in pairwise(sizes)
        )
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(1)
        for layer in self.layers:
            h = torch.relu(layer(h))
        return self.head(h.mean(-1))


MODELS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "mlp": MLP,
    "transformer": Transformer,
    "convolution": Convolution,
}


def cases() -> Iterator[tuple[str, Case]]:
    """Names and settings of all trainings."""
    paper: list[Case] = [
        {"block": "one-layer", "rule": rule} for rule in ("mup", "depth-mup", "complete-p")
    ]
    paper += [{"block": "two-layer", "rule": rule} for rule in EXPONENTS]
    paper += [{"activation": name} for name in ("tanh", "gelu", "erf")]
    paper += [{"order": "post"}, {"horizon": 2.0}]
    for block in ("one-layer", "two-layer"):
        paper += [{"block": block, "feedback": feedback} for feedback in ("independent", "static")]
        paper += [{"block": block, "optimizer": name} for name in ("adam", "muon")]
        paper += [{"block": block, "weights": weights} for weights in ("deferred", "structured")]
        paper += [{"block": block, "weights": "deferred", "feedback": "independent"}]
    paper += [
        {"momentum": 0.9},
        {"weights": "deferred", "momentum": 0.9},
        {"weights": "structured", "momentum": 0.9},
    ]
    own: list[Case] = [
        {"model": model, "optimizer": o} for model in ("mlp", "transformer") for o in RATES
    ]
    own += [{"model": "transformer", "rule": rule} for rule in ("standard", "mup", "depth-mup")]
    own += [{"model": "convolution", "rule": "mup", "optimizer": name} for name in ("sgd", "adamw")]
    for weights in ("deferred", "structured"):
        own += [
            {"model": model, "optimizer": "muon", "weights": weights}
            for model in ("mlp", "transformer")
        ]
    own += [{"model": "mlp", "optimizer": "sgd", "weights": "deferred"}]
    for case in (*paper, *own):
        yield " ".join(f"{name}={value}" for name, value in case.items()), case


def losses(case: Case) -> list[float]:
    """The loss of every batch before its update, and that of the first after the last."""
    return planned_training(**case) if "model" in case else paper_training(**case)


def paper_training(
    rule: str = "depth-mup",
    optimizer: str = "sgd",
    weights: str = "dense",
    momentum: float = 0.0,
    **settings: Any,
) -> list[float]:
    """Train a network of the paper at the rate of width 1 and depth 1."""
    net = nfd.ResNet(
        INPUTS,
        CLASSES,
        width=WIDTH if weights == "dense" else WIDE,
        depth=DEPTH,
        branch_exponent=EXPONENTS[rule],
        weights=weights,
        resolution=ALL if weights == "structured" else None,
        seed=3,
        dtype=torch.float64,
        **settings,
    )
    rate = PAPER_RATES[optimizer]
    stepper: torch.optim.Optimizer
    if optimizer == "muon":
        stepper = nfd.plan(net, rule=rule, optimizer="muon").make_optimizer(net, lr=rate)
    else:
        groups = net.param_groups(rate, rule, optimizer)
        stepper = (
            nfd.SGD(groups, momentum=momentum) if optimizer == "sgd" else torch.optim.Adam(groups)
        )
    return trained(net, stepper)


def planned_training(
    model: str, optimizer: str = "adamw", rule: str = "complete-p", weights: str = "dense"
) -> list[float]:
    """Train a model of one's own by a plan, wider and deeper than its base."""
    make = MODELS[model]
    x = data()[0][0]
    torch.manual_seed(4)
    net = make(WIDTH if weights == "dense" else WIDE, DEPTH).double()
    plan = nfd.plan(
        net,
        rule=rule,
        make_model=lambda width, depth: make(width, depth).double(),
        base=(BASE[0], BASE[1]),
        optimizer=optimizer,
        sample=x,
    )
    if weights == "dense":
        plan.apply_(net, seed=5)
    else:
        net = nfd.defer(
            net, plan, weights=weights, resolution=ALL if weights == "structured" else None, seed=5
        )
    return trained(net, plan.make_optimizer(net, lr=RATES[optimizer]))


def trained(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Train on every batch, by a loop as users write it."""
    batches = data()
    seen = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    with torch.no_grad():
        return [*seen, cross_entropy(net(batches[0][0]), batches[0][1]).item()]


if __name__ == "__main__":
    LOSSES.write_text(json.dumps({name: losses(case) for name, case in cases()}, indent=1) + "\n")
