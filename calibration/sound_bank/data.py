"""What the networks of the bank are trained on: batches in memory, the same for one seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from nfd.data import digits

Batches = list[tuple[Any, Any]]
MakeBatches = Callable[[int, int], Batches]

SIZE = 16
SYMBOLS = 40
LENGTH = 12
NODES = 10
POINTS = 12
COORDINATES = 3
FEATURES = 8
CLASSES = 10
VIEW_NOISE = 0.3


def stream(seed: int) -> torch.Generator:
    """A stream of random numbers."""
    return torch.Generator().manual_seed(seed)


def split(x: Tensor, *sizes: int) -> Tensor:
    """A tensor whose last dimension is several."""
    return x.reshape(*x.shape[:-1], *sizes)


@cache
def _digits(steps: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = digits().batches(SIZE, steps, seed)
    return x, y


def vectors(steps: int, seed: int) -> Batches:
    """Digits as vectors of 64 pixels, and their classes."""
    x, y = _digits(steps, seed)
    return list(zip(x, y, strict=True))


def images(steps: int, seed: int) -> Batches:
    """Digits as images of one channel, and their classes."""
    x, y = _digits(steps, seed)
    return list(zip(split(x, 1, 8, 8), y, strict=True))


def rows(steps: int, seed: int) -> Batches:
    """Digits as eight tokens of eight pixels, and their classes."""
    x, y = _digits(steps, seed)
    return list(zip(split(x, 8, 8), y, strict=True))


def masked(steps: int, seed: int) -> Batches:
    """Digits as tokens of which some are hidden, and all tokens."""
    x, _ = _digits(steps, seed)
    x = split(x, 8, 8)
    is_hidden = torch.rand(x.shape[:3], generator=stream(seed)) < 0.3
    return list(zip(x * ~is_hidden[..., None], x, strict=True))


def views(steps: int, seed: int) -> Batches:
    """Two noisy views of the same digits, and nothing to predict."""
    x, y = _digits(steps, seed)
    noise = VIEW_NOISE * torch.randn(2, *x.shape, generator=stream(seed))
    return list(zip(zip(x + noise[0], x + noise[1], strict=True), y, strict=True))


@cache
def _chain() -> Tensor:
    """The transitions of a chain of symbols, each with a few likely successors."""
    logits = 2.5 * torch.randn(SYMBOLS, SYMBOLS, generator=stream(7))
    return logits.softmax(-1)


def words(steps: int, seed: int) -> Batches:
    """Windows of a Markov chain, and the symbols after them."""
    g = stream(seed)
    state = torch.randint(SYMBOLS, (steps * SIZE,), generator=g)
    states = [state]
    for _ in range(LENGTH):
        state = torch.multinomial(_chain()[state], 1, generator=g)[:, 0]
        states.append(state)
    ids = torch.stack(states, 1).reshape(steps, SIZE, LENGTH + 1)
    return [(window[:, :-1], window[:, 1:]) for window in ids]


def sums(steps: int, seed: int) -> Batches:
    """Digits of two numbers as tokens, and their sum modulo 10 at every place."""
    ids = torch.randint(10, (steps, SIZE, LENGTH), generator=stream(seed))
    return [(x, (x + x.roll(1, -1)) % 10) for x in ids]


def curves(steps: int, seed: int) -> Batches:
    """Vectors, and a smooth function of them with two outputs."""
    x = torch.randn(steps, SIZE, FEATURES, generator=stream(seed))
    directions = torch.randn(FEATURES, 2, generator=stream(11)) / FEATURES**0.5
    y = torch.sin(2 * x @ directions) + 0.5 * x[..., :2] * x[..., 2:4]
    return list(zip(x, y, strict=True))


def operators(steps: int, seed: int) -> Batches:
    """Values of a function at eight places and a query, and its running mean there."""
    g = stream(seed)
    values = torch.randn(steps, SIZE, FEATURES, generator=g)
    query = torch.rand(steps, SIZE, 1, generator=g)
    weights = torch.exp(-20 * (query - torch.linspace(0, 1, FEATURES)).square())
    y = (weights * values).sum(-1, keepdim=True)
    return [((v, q), target) for v, q, target in zip(values, query, y, strict=True)]


def series(steps: int, seed: int) -> Batches:
    """Sums of two waves at ``LENGTH`` times, and the next values."""
    g = stream(seed)
    time = torch.arange(LENGTH + 1.0)
    speed = 0.2 + torch.rand(steps, SIZE, 2, 1, generator=g)
    phase = 6.28 * torch.rand(steps, SIZE, 2, 1, generator=g)
    wave = torch.sin(speed * time + phase).transpose(2, 3)
    return [(w[:, :-1], w[:, 1:]) for w in wave]


def graphs(steps: int, seed: int) -> Batches:
    """Features of nodes with a matrix of neighbours, and classes of the nodes."""
    g = stream(seed)
    x = torch.randn(steps, SIZE, NODES, FEATURES, generator=g)
    edge = torch.rand(steps, SIZE, NODES, NODES, generator=g) < 0.3
    adjacency = (edge | edge.transpose(2, 3)).float()
    near = x + adjacency @ x / 3
    y = near[..., :4].argmax(-1)
    return [((nodes, a), label) for nodes, a, label in zip(x, adjacency, y, strict=True)]


def clouds(steps: int, seed: int) -> Batches:
    """Points of a sphere, a plane, a line or a box, and which it is."""
    g = stream(seed)
    z = torch.randn(steps, SIZE, POINTS, COORDINATES, generator=g)
    shapes = (
        F.normalize(z, dim=-1),
        z * torch.tensor([1.0, 1.0, 0.0]),
        z * torch.tensor([1.0, 0.0, 0.0]),
        z.clamp(-1, 1),
    )
    y = torch.randint(len(shapes), (steps, SIZE), generator=g)
    picked = torch.stack(shapes)[y, torch.arange(steps)[:, None], torch.arange(SIZE)]
    return list(zip(picked, y, strict=True))


def tables(steps: int, seed: int) -> Batches:
    """Three ids and some numbers, and whether they fit."""
    g = stream(seed)
    ids = torch.randint(SYMBOLS, (steps, SIZE, 3), generator=g)
    x = torch.randn(steps, SIZE, FEATURES, generator=g)
    taste = torch.randn(SYMBOLS, generator=stream(13))
    y = (taste[ids].prod(-1) + x[..., 0] > 0).long()
    return [((i, numbers), label) for i, numbers, label in zip(ids, x, y, strict=True)]


def tasks(steps: int, seed: int) -> Batches:
    """Digits, with their class and whether it is odd."""
    return [(x, torch.stack([y, y % 2], -1)) for x, y in vectors(steps, seed)]
