"""Networks of the held-out bank that grow in width only, and layers that several networks share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, below: int = 20, seed: int = 0) -> Tensor:
    """Whole numbers below a bound, the same at every call."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU, bias: bool = True) -> nn.Sequential:
    """Linear layers of these sizes with activations between them."""
    layers = list[nn.Module]()
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following, bias=bias), act()]
    return nn.Sequential(*layers[:-1])


# ---- vectors


class RawMatrices(nn.Module):
    """Matrices as plain parameters that multiply from the right, from one draw each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [6, width, width, width, 5]
        pairs = itertools.pairwise(sizes)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(a, b) / a**0.5) for a, b in pairs)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        for index, (weight, shift) in enumerate(zip(self.weights, self.shifts, strict=True)):
            x = x @ weight + shift
            x = x if index == 3 else torch.tanh(x)
        return x


class SkipConcat(nn.Module):
    """Reads its input again halfway, as fields of coordinates do."""

    def __init__(
        self, width: int, depth: int, act: Callable[[Tensor], Tensor] = torch.tanh
    ) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width + 3, width)
        self.last = nn.Linear(width, 4)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.second(self.act(self.first(x))))
        return self.last(self.act(self.third(torch.cat([h, x], -1))))


class Pinn(nn.Module):
    """The solution of a differential equation in place and time, two arguments."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = mlp(2, width, width, width, 1, act=nn.Tanh)

    def forward(self, place: Tensor, time: Tensor) -> Tensor:
        return self.net(torch.stack([place, time], -1))


class FourierPinn(nn.Module):
    """Fixed random waves of coordinates before a network."""

    waves: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("waves", normal(2, 8, seed=3))
        self.net = mlp(16, width, width, 2, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.waves
        return self.net(torch.cat([angles.sin(), angles.cos()], -1))


class DeepONet(nn.Module):
    """An operator: coefficients from samples of a function times a basis in places."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.branch = mlp(7, width, width, 16, act=nn.GELU)
        self.trunk = mlp(2, width, width, 16, act=nn.Tanh)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, function: Tensor, places: Tensor) -> Tensor:
        return self.branch(function) @ self.trunk(places).T / 4 + self.bias


class Dueling(nn.Module):
    """Values and advantages of actions over one trunk."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.trunk = mlp(5, width, width)
        self.value = mlp(width, width, 1)
        self.advantage = mlp(width, width, 4)

    def forward(self, state: Tensor) -> Tensor:
        h = F.relu(self.trunk(state))
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True)


class MaskedAutoregressive(nn.Module):
    """Matrices times fixed masks, as of a network that predicts each number from those before."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        degrees = [
            torch.arange(1, 7),
            torch.arange(width) % 5 + 1,
            torch.arange(width) % 5 + 1,
            torch.arange(6),
        ]
        sizes = [6, width, width, 6]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for index in range(3):
            self.register_buffer(
                f"mask{index}", (degrees[index + 1][:, None] >= degrees[index]).float()
            )

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            mask = getattr(self, f"mask{index}").to(x.dtype)
            x = F.linear(x, layer.weight * mask, layer.bias)
            x = x if index == 2 else F.relu(x)
        return x


class RadialEdges(nn.Module):
    """Learned functions on the edges, as sums of fixed bumps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(width, 6, 6) / 6)
        self.second = nn.Parameter(torch.randn(width, width, 6) / (6 * width) ** 0.5)
        self.third = nn.Parameter(torch.randn(3, width, 6) / (6 * width) ** 0.5)

    @staticmethod
    def bumps(x: Tensor) -> Tensor:
        centres = torch.linspace(-2, 2, 6, dtype=x.dtype)
        return torch.exp(-((x[..., None] - centres) ** 2))

    def forward(self, x: Tensor) -> Tensor:
        for weight in (self.first, self.second, self.third):
            x = torch.einsum("bik,oik->bo", self.bumps(x), weight)
        return x


class TiedSteps(nn.Module):
    """The same layer applied four times, as steps of a flow."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(6, width)
        self.speed = mlp(width, width, width, act=nn.Tanh)
        self.write = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        for _ in range(4):
            h = h + 0.25 * self.speed(h)
        return self.write(h)


class FrozenFeatures(nn.Module):
    """Random features that do not train, before layers that do."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.features = nn.Linear(6, width)
        self.features.requires_grad_(False)
        self.rest = mlp(width, width, width, 5, act=nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(F.relu(self.features(x)))


class TwoFrames(nn.Module):
    """A dict of two inputs, whose encodings are joined by concatenation."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.image = mlp(9, width, width)
        self.state = mlp(4, width // 2, width // 2)
        self.joint = mlp(width + width // 2, width, 6)

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        joined = torch.cat([self.image(image), self.state(state)], -1)
        return self.joint(F.relu(joined))


class BatchedEnsemble(nn.Module):
    """Four members as one stack of matrices."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [6, width, width, 3]
        pairs = itertools.pairwise(sizes)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(4, a, b) / a**0.5) for a, b in pairs
        )

    def forward(self, x: Tensor) -> Tensor:
        h = x.expand(4, *x.shape)
        for index, weight in enumerate(self.weights):
            h = torch.bmm(h, weight)
            h = h if index == 2 else F.silu(h)
        return h


class Evidence(nn.Module):
    """Mean and positive spread by two heads, with dropout between layers."""

    def __init__(self, width: int, depth: int, p: float = 0.1) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(6, width),
            nn.ReLU(),
            nn.Dropout(p),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(p),
        )
        self.mean = nn.Linear(width, 2)
        self.spread = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.mean(h), F.softplus(self.spread(h))


class GatedExperts(nn.Module):
    """A soft mixture of three networks by a gate on the input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(6, width, width, 4) for _ in range(3))
        self.gate = mlp(6, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        answers = torch.stack([expert(x) for expert in self.experts], -1)
        return (answers * weights[:, None]).sum(-1)


class MultiTask(nn.Module):
    """Two tasks that mix two experts each by their own gates over hidden vectors."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(6, width, width) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(6, 2) for _ in range(2))
        self.towers = nn.ModuleList(mlp(width, width, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.stack([expert(x) for expert in self.experts], 1)
        answers = list[Tensor]()
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = (gate(x).softmax(-1)[..., None] * hidden).sum(1)
            answers.append(tower(F.relu(mixed)))
        return torch.cat(answers, -1)


# ---- tables


class WideAndDeep(nn.Module):
    """A direct table of the answer beside a deep network over three embeddings and numbers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.wide = nn.Embedding(20, 1)
        self.tables = nn.ModuleList(nn.Embedding(20, width // 2) for _ in range(3))
        self.deep = mlp(3 * width // 2 + 4, width, width, 1)

    def forward(self, items: Tensor, numbers: Tensor) -> Tensor:
        parts = [table(items[:, i]) for i, table in enumerate(self.tables)]
        deep = self.deep(torch.cat([*parts, numbers], -1))
        return deep + self.wide(items).sum(1)


class NeuralFiltering(nn.Module):
    """A user and an item, embedded and joined."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.user = nn.Embedding(20, width)
        self.item = nn.Embedding(20, width)
        self.net = mlp(2 * width, width, width, 1, act=nn.LeakyReLU)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.net(torch.cat([self.user(user), self.item(item)], -1)).squeeze(-1)


class CrossNetwork(nn.Module):
    """Products with the first vector, added to it, over fixed embeddings of tables and a wide
    side.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(8, width)
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.read(x)
        h = first
        for cross in self.crosses:
            h = first * cross(h) + h
        return self.last(h)


class NextWord(nn.Module):
    """Bengio's language model: embeddings of four words, joined."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.hidden = nn.Linear(4 * width, width)
        self.scores = nn.Linear(width, 20)

    def forward(self, words: Tensor) -> Tensor:
        return self.scores(torch.tanh(self.hidden(self.words(words).flatten(1))))


class BagPlusNumbers(nn.Module):
    """An EmbeddingBag of words and a linear map of numbers, added."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, width, mode="mean")
        self.numbers = nn.Linear(4, width, bias=False)
        self.rest = mlp(width, width, 3)

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        return self.rest(F.relu(self.bag(words) + self.numbers(numbers)))


# ---- series


class BothWays(nn.Module):
    """A two-layer LSTM that reads both ways, and a mean over time."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.net = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(width, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.net(self.words(words))[0].mean(1))


class StackedGru(nn.Module):
    """Two layers of gated units over numbers; the last state answers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = nn.GRU(5, width, 2, batch_first=True, bias=False)
        self.head = nn.Linear(width, 3)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.net(series)[1][-1])


class HandLstm(nn.Module):
    """Gates spelled by hand, from one matrix of the state and one of the input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.of_input = nn.Linear(5, 4 * width)
        self.of_state = nn.Linear(width, 4 * width, bias=False)
        self.head = nn.Linear(width, 3)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), self.width)
        cell = state
        for step in series.unbind(1):
            forget, into, out, new = (self.of_input(step) + self.of_state(state)).chunk(4, -1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
        return self.head(state)


class MinimalUnit(nn.Module):
    """One gate, a candidate state, and a layer norm of it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.gate = nn.Linear(width + 5, width)
        self.new = nn.Linear(width + 5, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), self.width)
        for step in series.unbind(1):
            both = torch.cat([state, step], -1)
            gate = self.gate(both).sigmoid()
            state = (1 - gate) * state + gate * self.norm(self.new(both)).tanh()
        return self.head(state)


class CopyDecoder(nn.Module):
    """A recurrent encoder and decoder with attention by learned energies of the states' size over
    it.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.RNN(5, width, batch_first=True)
        self.decoder = nn.GRUCell(width, width)
        self.ask = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, 3)
        self.scale = 1 / width

    def forward(self, series: Tensor) -> Tensor:
        states, last = self.encoder(series)
        state = last[0]
        context = states.mean(1)
        for _ in range(2):
            state = self.decoder(context, state)
            scores = (states @ self.ask(state)[..., None])[..., 0] * self.scale
            context = (scores.softmax(-1)[..., None] * states).sum(1)
        return self.head(torch.cat([state, context], -1))


class TemporalConv(nn.Module):
    """Strided convolutions over sound, then a mean over time."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 5, stride=2, bias=False),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv1d(width, width, 3, stride=2, bias=False),
            nn.GELU(),
            nn.Conv1d(width, width, 3, bias=False),
            nn.GELU(),
        )
        self.head = nn.Linear(width, 5)

    def forward(self, sound: Tensor) -> Tensor:
        return self.head(self.layers(sound).mean(-1))


# ---- images


class AlexLike(nn.Module):
    """Convolutions with pooling, and fully connected layers over flattened maps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 4, width),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.Linear(width, 6),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class ConvAutoencoder(nn.Module):
    """Strided convolutions down to four maps, and transposed ones up."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU()
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.up(self.down(images))


class VideoConv(nn.Module):
    """Convolutions in space and time, a largest value over all places."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, width, 3, padding=1)
        self.second = nn.Conv3d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 4)

    def forward(self, video: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(video))))
        return self.head(h.amax((2, 3, 4)))


class TimeUnet(nn.Module):
    """A denoiser: down and up by one stage, a time embedding added to maps, and a skip by
    concatenation.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.of_time = nn.Linear(width, 2 * width)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        powers = torch.arange(4, dtype=time.dtype)
        angles = time[:, None] / 10**powers
        moment = F.silu(self.time(torch.cat([angles.sin(), angles.cos()], -1)))
        skip = F.silu(self.first(noisy))
        h = self.down(skip) + self.of_time(moment)[:, :, None, None]
        h = F.silu(self.middle(F.silu(self.norm(h))))
        h = F.interpolate(F.silu(self.up(h)), scale_factor=2)
        return self.last(F.silu(self.join(torch.cat([h, skip], 1))))


class ImagePyramid(nn.Module):
    """Three resolutions, each with a head of its own, as detectors have."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [
                nn.Conv2d(3, width, 3, 2, 1),
                nn.Conv2d(width, width, 3, 2, 1),
                nn.Conv2d(width, width, 3, 2, 1),
            ]
        )
        self.laterals = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.head = nn.Conv2d(width, 5, 3, padding=1)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = list[Tensor]()
        h = images
        for stage, lateral in zip(self.stages, self.laterals, strict=True):
            h = F.relu(stage(h))
            maps.append(lateral(h))
        return [self.head(F.relu(one)) for one in maps]


class DiagonalGaussianVae(nn.Module):
    """Convolutional code of four numbers with noise, and a decoder from it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ELU(), nn.Conv2d(width, width, 4, 2, 1), nn.ELU()
        )
        self.code = nn.Linear(4 * width, 8)
        self.decoder = mlp(4, width, width, 12)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.code(self.encoder(images).flatten(1)).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(code), mean, log_var


# ---- sets and graphs


class PointNet(nn.Module):
    """The same layers at every point, and the largest value over points."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, width, 1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 1),
            nn.ReLU(),
        )
        self.whole = mlp(width, width, 4)

    def forward(self, points: Tensor) -> Tensor:
        return self.whole(self.local(points).amax(-1))


class EdgeMessages(nn.Module):
    """Messages from both ends of an edge and its feature, summed at its end."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(5, width)
        self.message = mlp(2 * width + 2, width, width, act=nn.SiLU)
        self.update = mlp(2 * width, width, width, act=nn.SiLU)
        self.head = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        h = self.read(nodes)
        for _ in range(2):
            sent = self.message(torch.cat([h[edges[0]], h[edges[1]], features], -1))
            total = torch.zeros_like(h).index_add(0, edges[1], sent)
            h = self.update(torch.cat([h, total], -1))
        return self.head(h)


class SageGraph(nn.Module):
    """Each node's vector and its neighbours' mean by two matrices."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [(5, width), (width, width), (width, 3)]
        self.of_self = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.of_others = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)

    def forward(self, nodes: Tensor, mean: Tensor) -> Tensor:
        h = nodes
        for index, (mine, theirs) in enumerate(zip(self.of_self, self.of_others, strict=True)):
            h = mine(h) + theirs(mean @ h)
            h = h if index == 2 else F.relu(h)
        return h


class RelationalGraph(nn.Module):
    """A matrix for each of three relations, as one stack."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Embedding(20, width)
        self.relations = nn.Parameter(torch.randn(3, width, width) / width**0.5)
        self.self_loop = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        h = self.read(nodes)
        sent = torch.einsum("rij,jd,rde->ie", adjacency, h, self.relations)
        return self.head(F.relu(self.self_loop(h) + sent))


# ---- two towers


class Contrastive(nn.Module):
    """Two encoders to unit vectors, and their products times a learned temperature."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.left = mlp(6, width, width, width)
        self.right = mlp(9, width, width, width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a = F.normalize(self.left(left), dim=-1)
        b = F.normalize(self.right(right), dim=-1)
        return self.log_scale.exp() * a @ b.T


class Regions(nn.Module):
    """Several outputs of one trunk at different depths, as a list."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, width)]
        )
        self.heads = nn.ModuleList(nn.Linear(width, 3) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        answers = list[Tensor]()
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = F.relu(layer(x))
            answers.append(head(x))
        return answers


class GeneratorMlp(nn.Module):
    """A class and noise to an image, by batch norms and a final tanh."""

    def __init__(self, width: int, depth: int, sizes: Sequence[int] = (1, 2)) -> None:
        super().__init__()
        self.label = nn.Embedding(10, 8)
        wide = [width * size for size in sizes]
        self.net = nn.Sequential(
            nn.Linear(16, wide[0]),
            nn.LeakyReLU(0.2),
            nn.Linear(wide[0], wide[1]),
            nn.BatchNorm1d(wide[1]),
            nn.LeakyReLU(0.2),
            nn.Linear(wide[1], 12),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        return self.net(torch.cat([noise, self.label(label)], -1))
