"""Networks without a residual stream, whose width grows: sound under muP, at one depth.

A matrix from growing to growing features is a hidden one, whatever is between them, and what has a
fixed number of inputs or outputs is input or readout.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from calibration.sound_bank.data import CLASSES, COORDINATES, FEATURES, LENGTH, SYMBOLS, split

GROUP = 8
BASIS = 5
FREQUENCIES = 16


class Mish(nn.Module):
    """Vectors through layers of Mish."""

    def __init__(self, width: int, depth: int, inputs: int = 64, outputs: int = CLASSES) -> None:
        super().__init__()
        sizes = [inputs] + [width] * (depth + 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = F.mish(layer(x))
        return self.last(x)


class InputEverywhere(nn.Module):
    """Every layer sees the input beside the features, as in a coordinate network."""

    def __init__(self, width: int, depth: int, inputs: int = FEATURES, outputs: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(nn.Linear(width + inputs, width) for _ in range(depth))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Any:
        h = F.gelu(self.first(x))
        for layer in self.layers:
            h = F.gelu(layer(torch.cat([h, x], -1)))
        return self.last(h)


class Bilinear(nn.Module):
    """Products of two linear maps, normed."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(64, width)
        self.left = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(depth))
        self.right = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.read(x)
        for left, right, mix, norm in zip(self.left, self.right, self.mix, self.norms, strict=True):
            h = norm(mix(left(h) * right(h)))
        return self.write(h)


class Fourier(nn.Module):
    """Fixed random frequencies of the input, then an MLP."""

    frequencies: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        frequencies = torch.randn(FEATURES, FREQUENCIES, generator=torch.Generator().manual_seed(5))
        self.register_buffer("frequencies", frequencies)
        self.body = Mish(width, depth, 2 * FREQUENCIES, 2)

    def forward(self, x: Tensor) -> Any:
        phase = x @ self.frequencies
        return self.body(torch.cat([phase.sin(), phase.cos()], -1))


class DeepONet(nn.Module):
    """A function and a query, read apart; the output is the mean of products of their features."""

    def __init__(self, width: int, depth: int, power: float = 1.0) -> None:
        super().__init__()
        self.of_function = Mish(width, depth, FEATURES, width)
        self.of_query = Mish(width, depth, 1, width)
        self.offset = nn.Parameter(torch.zeros(1))
        # The mean, at the power 1; the factor is 1 at width 32.
        self.power = power

    def forward(self, values: Tensor, query: Tensor) -> Any:
        products = self.of_function(values) * self.of_query(query)
        width = products.shape[-1]
        scale = (width / 32) ** -self.power / 4
        return scale * products.sum(-1, keepdim=True) + self.offset


class WideAndDeep(nn.Module):
    """A linear model beside an MLP."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.wide = nn.Linear(64, CLASSES)
        self.deep = Mish(width, depth)

    def forward(self, x: Tensor) -> Any:
        return self.wide(x) + self.deep(x)


class FactorMachine(nn.Module):
    """Products of embeddings, averaged over their coordinates, beside an MLP of them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(SYMBOLS, width) for _ in range(3))
        self.numbers = nn.Linear(FEATURES, width)
        self.deep = Mish(width, depth, 4 * width, 2)
        self.gain = nn.Parameter(torch.ones(2))

    def forward(self, ids: Tensor, x: Tensor) -> Any:
        fields = [table(ids[:, k]) for k, table in enumerate(self.tables)]
        fields.append(self.numbers(x))
        stacked = torch.stack(fields, 1)
        pairs = stacked.sum(1).square() - stacked.square().sum(1)
        return self.gain * pairs.mean(-1, keepdim=True) + self.deep(stacked.flatten(1))


class BothWays(nn.Module):
    """A recurrent layer in both directions, its states averaged over time."""

    def __init__(self, width: int, depth: int, kind: str = "GRU") -> None:
        super().__init__()
        make = getattr(nn, kind)
        self.layer = make(8, width, batch_first=True, bidirectional=True)
        self.mix = nn.Linear(2 * width, width)
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        states, _ = self.layer(x)
        return self.write(torch.tanh(self.mix(states.mean(1))))


class MinGru(nn.Module):
    """A recurrence whose gates see only the input, in layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.candidates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.write = nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor) -> Any:
        h = self.symbols(ids)
        for gate, candidate in zip(self.gates, self.candidates, strict=True):
            z = torch.sigmoid(gate(h))
            new = torch.tanh(candidate(h))
            state = torch.zeros_like(new[:, 0])
            states = []
            for t in range(h.shape[1]):
                state = (1 - z[:, t]) * state + z[:, t] * new[:, t]
                states.append(state)
            h = torch.stack(states, 1)
        return self.write(self.norm(h))


class IndRnn(nn.Module):
    """Every neuron has a weight of its own from its last state, and there are two layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.recurrent = nn.ParameterList(nn.Parameter(torch.full((width,), 0.8)) for _ in range(2))
        self.write = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Any:
        for layer, own in zip(self.inputs, self.recurrent, strict=True):
            driven = layer(x)
            state = torch.zeros_like(driven[:, 0])
            states = []
            for t in range(driven.shape[1]):
                state = F.softplus(driven[:, t] + own * state) - 0.5
                states.append(state)
            x = torch.stack(states, 1)
        return self.write(x)


class NormedElman(nn.Module):
    """Elman's network by hand, normed at every step."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.across = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.write = nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor) -> Any:
        x = self.up(self.symbols(ids))
        state = torch.zeros_like(x[:, 0])
        out = []
        for t in range(x.shape[1]):
            state = torch.tanh(self.norm(x[:, t] + self.across(state)))
            out.append(self.write(state))
        return torch.stack(out, 1)


class RandomFeatures(nn.Module):
    """Features that are drawn once and do not train, and a layer of them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, width)
        self.frozen.requires_grad_(requires_grad=False)
        self.hidden = nn.Linear(width, width)
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.write(F.relu(self.hidden(F.relu(self.frozen(x)))))


class PointNet(nn.Module):
    """A shared network of points, and the largest of each feature."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.one = nn.Linear(COORDINATES, width)
        self.two = nn.Linear(width, 2 * width)
        self.three = nn.Linear(2 * width, width)
        self.write = nn.Linear(width, 4)

    def forward(self, points: Tensor) -> Any:
        h = F.relu(self.two(F.relu(self.one(points))))
        return self.write(F.relu(self.three(h.amax(1))))


class SetPooling(nn.Module):
    """Learned queries read a set by attention of heads of 16 coordinates."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.one = nn.Linear(COORDINATES, width)
        self.two = nn.Linear(width, width)
        self.queries = nn.Parameter(torch.randn(3, width))
        self.read = nn.MultiheadAttention(width, width // 16, batch_first=True)
        self.mix = nn.Linear(width, width)
        self.write = nn.Linear(3 * width, 4)

    def forward(self, points: Tensor) -> Any:
        h = F.silu(self.two(F.silu(self.one(points))))
        queries = self.queries.expand(len(points), -1, -1)
        seen, _ = self.read(queries, h, h, need_weights=False)
        return self.write(F.silu(self.mix(seen)).flatten(1))


class Gin(nn.Module):
    """Graph isomorphism layers: a sum over neighbours, then two layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [FEATURES] + [width] * depth
        self.up = nn.ModuleList(nn.Linear(a, width) for a in sizes[:-1])
        self.down = nn.ModuleList(nn.Linear(width, b) for b in sizes[1:])
        self.own = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.write = nn.Linear(width, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Any:
        for up, down, own, norm in zip(self.up, self.down, self.own, self.norms, strict=True):
            x = (1 + own) * x + adjacency @ x
            x = F.relu(norm(down(F.relu(up(x)))))
        return self.write(x)


class Sage(nn.Module):
    """GraphSAGE: a map of the node and one of the mean of its neighbours."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [FEATURES] + [width] * depth
        self.node = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.near = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.write = nn.Linear(width, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Any:
        mean = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)
        for node, near in zip(self.node, self.near, strict=True):
            x = F.elu(node(x) + near(mean @ x))
        return self.write(x)


class ContinuousFilter(nn.Module):
    """SchNet's convolution: neighbours times a learned function of the distance."""

    centres: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(COORDINATES, width)
        self.filter = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.Softplus())
        self.filter_out = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.write = nn.Linear(width, 4)
        self.register_buffer("centres", torch.linspace(0, 3, FREQUENCIES))

    def forward(self, points: Tensor) -> Any:
        distance = (points[:, :, None] - points[:, None]).square().sum(-1, keepdim=True).sqrt()
        waves = torch.exp(-4 * (distance - self.centres).square())
        weights = self.filter_out(self.filter(waves))
        h = torch.tanh(self.read(points))
        h = (h[:, None] * weights).mean(2)
        return self.write(F.silu(self.mix(h)).mean(1))


class Vgg(nn.Module):
    """Convolutions, instance norms and pooling."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [1, width, width, 2 * width]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.InstanceNorm2d(b, affine=True) for b in sizes[1:])
        self.hidden = nn.Linear(8 * width, width)
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norms[0](self.convolutions[0](x)))
        x = F.max_pool2d(F.relu(self.norms[1](self.convolutions[1](x))), 2)
        x = F.max_pool2d(F.relu(self.norms[2](self.convolutions[2](x))), 2)
        return self.write(F.relu(self.hidden(x.flatten(1))))


class Grouped(nn.Module):
    """Convolutions in groups of fixed size, whose number grows, between ones of all channels."""

    def __init__(self, width: int, depth: int, groups: int = 0) -> None:
        super().__init__()
        groups = groups or width // GROUP
        self.first = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.inside = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, groups=groups) for _ in range(depth)
        )
        self.across = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = F.silu(self.first(x))
        for inside, across in zip(self.inside, self.across, strict=True):
            x = F.silu(across(F.silu(inside(x))))
        return self.write(x.mean((2, 3)))


class Causal(nn.Module):
    """Convolutions in time with growing steps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, width, 2)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 2, dilation=2 ** (k + 1)) for k in range(depth)
        )
        self.write = nn.Conv1d(width, 2, 1)

    def forward(self, x: Tensor) -> Any:
        h = F.gelu(self.first(F.pad(x.transpose(1, 2), (1, 0))))
        for k, layer in enumerate(self.layers):
            h = F.gelu(layer(F.pad(h, (2 ** (k + 1), 0))))
        return self.write(h).transpose(1, 2)


class WeightNormed(nn.Module):
    """Layers whose matrices are a direction and a length for every row."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(norm(nn.Linear(width, width)) for _ in range(depth))
        self.write = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.write(x)


class HourglassOfTime(nn.Module):
    """A U-Net in time: two strides down, and up again with what was there."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, width, 3, padding=1)
        self.down = nn.Conv1d(width, 2 * width, 4, stride=2, padding=1)
        self.middle = nn.Conv1d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose1d(2 * width, width, 4, stride=2, padding=1)
        self.join = nn.Conv1d(2 * width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.write = nn.Conv1d(width, 2, 1)

    def forward(self, x: Tensor) -> Any:
        fine = F.silu(self.first(x.transpose(1, 2)))
        coarse = F.silu(self.middle(F.silu(self.down(fine))))
        both = torch.cat([fine, F.silu(self.up(coarse))], 1)
        return self.write(F.silu(self.norm(self.join(both)))).transpose(1, 2)


class Views(nn.Module):
    """An encoder of two views."""

    def __init__(self, width: int, depth: int, outputs: int = 8, normed: bool = False) -> None:
        super().__init__()
        self.encoder = Mish(width, depth, 64, width)
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        self.project = nn.Linear(width, outputs)

    def forward(self, one: Tensor, two: Tensor) -> Any:
        return tuple(self.project(self.norm(torch.relu(self.encoder(x)))) for x in (one, two))


class TwoTasks(nn.Module):
    """A trunk and two heads, one of which has a layer of its own."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.trunk = Mish(width, depth, 64, width)
        self.of_class = nn.Linear(width, CLASSES)
        self.of_odd = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU())
        self.odd = nn.Linear(width // 2, 2)

    def forward(self, x: Tensor) -> Any:
        h = F.relu(self.trunk(x))
        return {"class": self.of_class(h), "odd": self.odd(self.of_odd(h))}


class Mixture(nn.Module):
    """Experts that are all asked, and weighed by a gate that sees the input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = F.relu(self.first(x))
        weights = self.gate(x).softmax(-1)
        outputs = torch.stack([F.relu(expert(h)) for expert in self.experts], -1)
        return self.write((outputs * weights[:, None]).sum(-1))


class BothSigns(nn.Module):
    """CReLU: the positive and the negative parts, side by side."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.write = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        for layer in self.layers:
            h = layer(torch.cat([F.relu(h), F.relu(-h)], -1))
        return self.write(torch.cat([F.relu(h), F.relu(-h)], -1))


class Siren(nn.Module):
    """Sines whose matrices start uniformly over the fan-in."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.write = nn.Linear(width, 2)
        nn.init.uniform_(self.first.weight, -1 / FEATURES, 1 / FEATURES)
        most = (6 / width) ** 0.5
        for layer in self.layers:
            nn.init.uniform_(layer.get_parameter("weight"), -most, most)

    def forward(self, x: Tensor) -> Any:
        x = torch.sin(4 * self.first(x))
        for layer in self.layers:
            x = torch.sin(layer(x))
        return self.write(x)


class EdgeFunctions(nn.Module):
    """A KAN: every edge has a function, a sum of five bumps."""

    centres: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(FEATURES, width)
        std = (BASIS * width) ** -0.5
        self.edges = nn.ParameterList(
            nn.Parameter(std * torch.randn(width, width, BASIS)) for _ in range(depth)
        )
        self.write = nn.Linear(width, 2)
        self.register_buffer("centres", torch.linspace(-1, 1, BASIS))

    def forward(self, x: Tensor) -> Any:
        h = self.read(x)
        for edge in self.edges:
            bumps = torch.exp(-4 * (torch.tanh(h)[..., None] - self.centres).square())
            h = 2 * torch.einsum("bik,oik->bo", bumps, edge)
        return self.write(h)


class BlockDiagonal(nn.Module):
    """Small matrices along the diagonal, shuffled, between dense layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(64, width)
        self.small = nn.ParameterList(
            nn.Parameter(torch.randn(width // GROUP, GROUP, GROUP) / GROUP**0.5)
            for _ in range(depth)
        )
        self.mix = nn.Linear(width, width)
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = F.relu(self.read(x))
        for small in self.small:
            h = torch.einsum("bgi,goi->bgo", split(h, -1, GROUP), small)
            h = F.relu(h.transpose(1, 2).flatten(1)) * 1.4
        return self.write(F.relu(self.mix(h)))


class Dropped(nn.Module):
    """An MLP with dropout."""

    def __init__(self, width: int, depth: int, share: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Dropout(share),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(share),
        )
        self.write = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.write(self.layers(x))


class Beats(nn.Module):
    """N-BEATS: every block explains a part of the series, and adds to the forecast."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        size = 2 * LENGTH
        self.up = nn.ModuleList(nn.Linear(size, width) for _ in range(depth))
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.back = nn.ModuleList(nn.Linear(width, size) for _ in range(depth - 1))
        self.ahead = nn.ModuleList(nn.Linear(width, size) for _ in range(depth))

    def forward(self, x: Tensor) -> Any:
        rest = x.flatten(1)
        total = torch.zeros_like(rest)
        for k, (up, hidden, ahead) in enumerate(zip(self.up, self.hidden, self.ahead, strict=True)):
            h = F.relu(hidden(F.relu(up(rest))))
            if k < len(self.back):
                rest = rest - self.back[k](h)
            total = total + ahead(h)
        return split(total, LENGTH, 2)


class OverTokens(nn.Module):
    """One layer of attention, not residual, whose heads grow: logits are divided by their size."""

    def __init__(self, width: int, depth: int, power: float = 1.0) -> None:
        super().__init__()
        self.symbols = nn.Embedding(10, width)
        self.places = nn.Embedding(LENGTH, width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.write = nn.Linear(width, 10)
        self.power = power

    def forward(self, ids: Tensor) -> Any:
        h = self.symbols(ids) + self.places.weight
        q, k, v = self.q(h), self.k(h), self.v(h)
        # The scale is the usual one at 32 coordinates.
        scale = 32**-0.5 * (q.shape[-1] / 32) ** -self.power
        read = (scale * q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.write(F.relu(self.hidden(read)))
