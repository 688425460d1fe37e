"""Networks of many kinds as people write them, each of a width and a depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

FEATURES = 12
CLASSES = 10
VOCAB = 24
LENGTH = 8
HEAD = 8


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, seed: int = 0, below: int = VOCAB) -> Tensor:
    """Token ids, the same at every call."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


ROWS = numbers(8, FEATURES)
IDS = tokens(4, LENGTH)
IMAGES = numbers(4, 3, 8, 8)
SERIES = numbers(4, LENGTH, FEATURES)
ADJACENCY = (numbers(9, 9, seed=1) + numbers(9, 9, seed=1).T > 0.3).float()
GRAPH = (numbers(9, FEATURES), ADJACENCY)


# ---- plain networks, without a stream


class Mlp(nn.Module):
    """A plain network of several hidden layers, with a norm where asked."""

    def __init__(
        self,
        width: int,
        depth: int,
        act: Callable[[Tensor], Tensor] = F.relu,
        norm: type[nn.Module] | None = None,
        bias: bool = True,
        outputs: int = CLASSES,
    ) -> None:
        super().__init__()
        self.act = act
        self.first = nn.Linear(FEATURES, width, bias=bias)
        self.hidden = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))
        self.norms = nn.ModuleList(norm(width) if norm else nn.Identity() for _ in range(depth))
        self.head = nn.Linear(width, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = self.act(norm(layer(x)))
        return self.head(x)


def sequential(width: int, depth: int) -> nn.Module:
    """A plain network as a list of layers that halves its width at the end."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))


class Maxout(nn.Module):
    """Hidden layers of the larger of two linear maps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 2 * width)
        self.hidden = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).unflatten(-1, (-1, 2)).amax(-1)
        for layer in self.hidden:
            x = layer(x).unflatten(-1, (-1, 2)).amax(-1)
        return self.out(x)


class GatedMlp(nn.Module):
    """Hidden layers with gated linear units."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 2 * width)
        self.hidden = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.first(x), -1)
        for layer in self.hidden:
            x = F.glu(layer(x), -1)
        return self.out(x)


class Highway(nn.Module):
    """Highway layers, which mix what they compute with their inputs by a learned gate."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.plain = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for plain, gate in zip(self.plain, self.gates, strict=True):
            g = torch.sigmoid(gate(x))
            x = g * torch.relu(plain(x)) + (1 - g) * x
        return self.out(x)


class DenseNet(nn.Module):
    """Every layer reads what all before it made."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear((k + 1) * width, width) for k in range(depth))
        self.out = nn.Linear((depth + 1) * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], -1)
        return self.out(x)


class Nerf(nn.Module):
    """Waves of coordinates, a plain network that reads them twice, and two heads."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(4) * math.pi)
        self.first = nn.Linear(24, width)
        self.again = nn.Linear(width + 24, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.density = nn.Linear(width, 1)
        self.colour = nn.Linear(width, 3)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        angles = (points[..., None] * self.waves).flatten(-2)
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        x = torch.relu(self.first(waves))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        x = torch.relu(self.again(torch.cat([x, waves], -1)))
        return self.density(x), torch.sigmoid(self.colour(x))


class ManyHeads(nn.Module):
    """A trunk with a head for classes, one for a number and one for a count."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(
            nn.Linear(width if k else FEATURES, width) for k in range(depth + 1)
        )
        self.heads = nn.ModuleDict(
            {
                "kind": nn.Linear(width, CLASSES),
                "price": nn.Linear(width, 1),
                "count": nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)),
            }
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.trunk:
            x = F.gelu(layer(x))
        return {name: head(x) for name, head in self.heads.items()}


class MixtureDensity(nn.Module):
    """Weights, means and scales of a mixture of normal laws."""

    def __init__(self, width: int, depth: int, parts: int = 5) -> None:
        super().__init__()
        self.body = Mlp(width, depth, torch.tanh, outputs=1)
        self.body.head = nn.Identity()
        self.weights = nn.Linear(width, parts)
        self.means = nn.Linear(width, parts)
        self.log_scales = nn.Linear(width, parts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.weights(h).log_softmax(-1), self.means(h), self.log_scales(h).exp()


class Autoencoder(nn.Module):
    """A code of fixed size between an encoder and a decoder."""

    def __init__(self, width: int, depth: int, code: int = 4) -> None:
        super().__init__()
        inner = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.encoder = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), *inner, nn.Linear(width, code)
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, FEATURES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class WideAutoencoder(nn.Module):
    """An autoencoder whose code grows with its layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Linear(FEATURES, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, FEATURES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        for layer in self.mid:
            x = torch.tanh(layer(x))
        return self.up(x)


class TwoTowers(nn.Module):
    """Two encoders whose normalised outputs, as wide as they are, meet in a product, as in CLIP."""

    def __init__(self, width: int, depth: int, code: int | None = None) -> None:
        super().__init__()
        self.left, self.right = (Mlp(width, depth, F.gelu, nn.LayerNorm) for _ in range(2))
        self.left.head = nn.Linear(width, code or width, bias=False)
        self.right.head = nn.Linear(width, code or width, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left = F.normalize(self.left(a), dim=-1)
        right = F.normalize(self.right(b), dim=-1)
        return self.logit_scale.exp() * left @ right.T


class Siamese(nn.Module):
    """One encoder of two inputs, and a head that reads how they differ."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = Mlp(width, depth)
        self.encoder.head = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left = self.encoder(a)
        right = self.encoder(b)
        return self.head(torch.cat([(left - right).abs(), left * right], -1))


class Recommender(nn.Module):
    """Numbers, three tables of embeddings, and a network above them, as in DLRM."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.tables = nn.ModuleList(nn.EmbeddingBag(VOCAB, width, mode="mean") for _ in range(3))
        top = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.top = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), *top, nn.Linear(width, 1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        looked_up = [table(bags[:, k]) for k, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *looked_up], -1))


class Interactions(nn.Module):
    """Products of embeddings, over their size or not, which a network reads."""

    def __init__(self, width: int, depth: int, power: float = 1.0) -> None:
        super().__init__()
        self.power = power
        self.bottom = nn.Linear(FEATURES, width)
        self.tables = nn.ModuleList(nn.Embedding(VOCAB, width) for _ in range(3))
        hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.top = nn.Sequential(nn.Linear(16, width), nn.ReLU(), *hidden, nn.Linear(width, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        parts = [self.bottom(dense), *(table(ids[:, k]) for k, table in enumerate(self.tables))]
        x = torch.stack(parts, 1)
        return self.top((x @ x.transpose(1, 2) / x.shape[-1] ** self.power).flatten(1))


class BagOfWords(nn.Module):
    """The mean of word vectors, and layers above it, as in fastText."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, width, mode="mean")
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.fc(x)


class DeepSets(nn.Module):
    """A network of every element, their mean, and a network of the mean."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        rho = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.rho = nn.Sequential(*rho, nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).mean(1))


class AttentionPooling(nn.Module):
    """Instances weighted by a gated score, as in multiple-instance learning."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.v = nn.Linear(width, width)
        self.u = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, bags: Tensor) -> Tensor:
        x = torch.relu(self.embed(bags))
        for layer in self.layers:
            x = torch.relu(layer(x))
        score = self.score(torch.tanh(self.v(x)) * torch.sigmoid(self.u(x)))
        return self.head((score.softmax(1) * x).sum(1))


class Coupling(nn.Module):
    """Affine couplings of a normalizing flow: each has a network of its own, as wide as asked."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        half = FEATURES // 2
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(half, width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, 2 * half),
            )
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        volume = torch.zeros(len(x))
        for net in self.nets:
            log_scale, shift = net(a).chunk(2, -1)
            log_scale = torch.tanh(log_scale)
            a, b = b * log_scale.exp() + shift, a
            volume = volume + log_scale.sum(-1)
        return torch.cat([a, b], -1), volume


class HyperScale(nn.Module):
    """A task vector from which another network makes the gains of every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gains = nn.ModuleList(nn.Linear(5, width) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for layer, gain in zip(self.hidden, self.gains, strict=True):
            x = torch.relu(layer(x) * (1 + gain(task)))
        return self.out(x)


class HyperNetwork(nn.Module):
    """A network that makes the matrix of another layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.make = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, FEATURES * width))
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        made = self.make(task).unflatten(-1, (self.width, FEATURES))
        x = torch.relu(torch.einsum("bwf,bf->bw", made, x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.out(x)


class Actor(nn.Module):
    """A policy and a value with a trunk in common, and a scale that depends on no input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        body = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
        self.body = nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), *body)
        self.mean = nn.Linear(width, 3)
        self.value = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.mean(h), self.log_std.exp().expand(len(x), -1), self.value(h)


class Variational(nn.Module):
    """A variational autoencoder whose noise is given."""

    def __init__(self, width: int, depth: int, code: int = 4) -> None:
        super().__init__()
        self.enc = nn.ModuleList(nn.Linear(width if k else FEATURES, width) for k in range(depth))
        self.mu = nn.Linear(width, code)
        self.logvar = nn.Linear(width, code)
        self.dec1 = nn.Linear(code, width)
        self.dec2 = nn.Linear(width, width)
        self.dec3 = nn.Linear(width, FEATURES)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = x
        for layer in self.enc:
            h = F.silu(layer(h))
        mu = self.mu(h)
        logvar = self.logvar(h)
        z = mu + (0.5 * logvar).exp() * noise
        return self.dec3(F.silu(self.dec2(F.silu(self.dec1(z))))), mu, logvar


# ---- recurrent networks


class Recurrent(nn.Module):
    """Recurrent layers of PyTorch between an embedding and a head."""

    def __init__(
        self, width: int, depth: int, kind: str = "LSTM", ids: bool = True, layers: int = 2
    ) -> None:
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, width) if ids else None
        layer = getattr(nn, kind)
        self.rnn = layer(width if ids else FEATURES, width, num_layers=layers, batch_first=True)
        self.decoder = nn.Linear(width, VOCAB if ids else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.rnn(x if self.encoder is None else self.encoder(x))[0])


class GruCell(nn.Module):
    """A loop over time around a cell, whose last state is read."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(FEATURES, width)
        self.out = nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), self.cell.hidden_size)
        for step in series.unbind(1):
            state = self.cell(step, state)
        return self.out(state)


class Seq2Seq(nn.Module):
    """Two recurrent networks, of which the second looks back by additive attention."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCAB, width)
        self.target = nn.Embedding(VOCAB, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width)
        self.v = nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(2 * width, VOCAB)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, state = self.encoder(self.source(source))
        asked, _ = self.decoder(self.target(target), state)
        score = self.v(torch.tanh(self.wq(asked)[:, :, None] + self.wk(seen)[:, None])).squeeze(-1)
        return self.out(torch.cat([asked, score.softmax(-1) @ seen], -1))


# ---- convolutions


class ConvNet(nn.Module):
    """Convolutions with pooling, whose channels are the width."""

    def __init__(self, width: int, depth: int, norm: str = "none") -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width if k else 3, width, 3, padding=1) for k in range(depth + 1)
        )
        made = {"none": nn.Identity, "batch": nn.BatchNorm2d, "group": lambda n: nn.GroupNorm(4, n)}
        self.norms = nn.ModuleList(made[norm](width) for _ in range(depth + 1))
        self.fc1 = nn.Linear(4 * width, width)
        self.fc2 = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        x = F.adaptive_avg_pool2d(x, 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


class MobileNet(nn.Module):
    """Depthwise and pointwise convolutions in turn, without skips."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.features = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False),
                    nn.GroupNorm(4, width),
                    nn.ReLU(),
                    nn.Conv2d(width, width, 1, bias=False),
                    nn.GroupNorm(4, width),
                    nn.ReLU(),
                )
                for _ in range(depth)
            ]
        )
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    """An image goes down two stages and up again, with skips that are joined, not added."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 3, 1, 1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.down2 = nn.Conv2d(2 * width, 4 * width, 3, 2, 1)
        self.mid = nn.ModuleList(nn.Conv2d(4 * width, 4 * width, 3, 1, 1) for _ in range(depth))
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = nn.Conv2d(4 * width, 2 * width, 3, 1, 1)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join1 = nn.Conv2d(2 * width, width, 3, 1, 1)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.into(x))
        b = F.relu(self.down1(a))
        c = F.relu(self.down2(b))
        for conv in self.mid:
            c = F.relu(conv(c))
        b = F.relu(self.join2(torch.cat([self.up2(c), b], 1)))
        a = F.relu(self.join1(torch.cat([self.up1(b), a], 1)))
        return self.out(a)


class Generator(nn.Module):
    """A vector becomes an image by transposed convolutions, as in DCGAN."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.start = nn.Linear(FEATURES, 4 * width)
        self.mid = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(depth))
        self.up1 = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, z: Tensor) -> Tensor:
        x = F.relu(self.start(z)).unflatten(1, (self.width, 2, 2))
        for conv in self.mid:
            x = F.relu(conv(x))
        return torch.tanh(self.up2(F.relu(self.up1(x))))


class TextCnn(nn.Module):
    """Filters of three sizes over words, and the largest answer of each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, k) for k in (2, 3, 4))
        self.fc = nn.Linear(3 * width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        return self.fc(torch.cat([F.relu(conv(x)).amax(-1) for conv in self.convs], 1))


# ---- graphs


class Gcn(nn.Module):
    """Graph convolutions with a normalised adjacency matrix."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(
            nn.Linear(width if k else FEATURES, width) for k in range(depth + 1)
        )
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        links = adjacency + torch.eye(len(adjacency))
        root = links.sum(1) ** -0.5
        links = root[:, None] * links * root
        for lin in self.linears:
            x = F.relu(links @ lin(x))
        return self.out(x)


class GatLayer(nn.Module):
    """Graph attention with heads of one size, scored by a vector of every head."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(before, width, bias=False)
        self.target = nn.Parameter(torch.randn(width // HEAD, HEAD) / HEAD**0.5)
        self.source = nn.Parameter(torch.randn(width // HEAD, HEAD) / HEAD**0.5)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.lin(x).unflatten(-1, (-1, HEAD))
        a = (h * self.target).sum(-1)
        b = (h * self.source).sum(-1)
        score = F.leaky_relu(a[:, None] + b[None], 0.2)
        linked = (adjacency + torch.eye(len(adjacency))) > 0
        weights = score.masked_fill(~linked[..., None], -math.inf).softmax(1)
        return torch.einsum("ijh,jhd->ihd", weights, h).flatten(1)


class Gat(nn.Module):
    """Layers of graph attention, without skips."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = GatLayer(FEATURES, width)
        self.layers = nn.ModuleList(GatLayer(width, width) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.elu(self.first(x, adjacency))
        for layer in self.layers:
            x = F.elu(layer(x, adjacency))
        return self.out(x)


class GraphStack(nn.Module):
    """Messages along links, added to a stream of nodes behind a norm."""

    def __init__(self, width: int, depth: int, attention: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.convs = nn.ModuleList(
            GatLayer(width, width) if attention else nn.Linear(width, width) for _ in range(depth)
        )
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)
        self.attention = attention

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        links = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
        x = self.embed(x)
        for norm, conv, mix in zip(self.norms, self.convs, self.mixes, strict=True):
            y = norm(x)
            y = conv(y, adjacency) if self.attention else links @ conv(y)
            x = x + mix(F.relu(y))
        return self.out(self.norm(x).mean(0))


# ---- residual networks of vectors


class ResBlock(nn.Module):
    """A branch of two layers behind a norm, where asked, and times a number."""

    def __init__(
        self,
        width: int,
        norm: Callable[[int], nn.Module] | None = nn.LayerNorm,
        act: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
        factor: float = 1.0,
        times: int = 2,
    ) -> None:
        super().__init__()
        self.norm = norm(width) if norm else nn.Identity()
        self.up = nn.Linear(width, times * width, bias=bias)
        self.down = nn.Linear(times * width, width, bias=bias)
        self.act = act
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.down(self.act(self.up(self.norm(x))))


class ResMlp(nn.Module):
    """Blocks between an embedding of vectors and a head; ``scale`` makes the factor of branches."""

    def __init__(
        self,
        width: int,
        depth: int,
        block: Callable[..., nn.Module] = ResBlock,
        scale: Callable[[int], float] | None = None,
        last: Callable[[int], nn.Module] | None = nn.LayerNorm,
        outputs: int = CLASSES,
        **options: object,
    ) -> None:
        super().__init__()
        if scale is not None:
            options["factor"] = scale(depth)
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(block(width, **options) for _ in range(depth))
        self.norm = last(width) if last else nn.Identity()
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class OneLayer(nn.Module):
    """A branch of one layer behind its activation, the block of the theory."""

    def __init__(self, width: int, factor: float = 1.0, bias: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width, bias=bias)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.lin(torch.relu(x))


class ThreeLayers(nn.Module):
    """A branch of three layers behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc1, self.fc2, self.fc3 = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(self.ln(x))))))


class SwiGluBlock(nn.Module):
    """A gated branch behind an RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class AdapterBlock(nn.Module):
    """A branch through a layer of fixed size, beside one that grows."""

    def __init__(self, width: int, inner: int = 6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.mlp(y) + self.out(F.relu(self.into(y)))


class LayerScaleBlock(nn.Module):
    """A branch that a vector of gains ends."""

    def __init__(self, width: int, start: float = 0.3) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(start * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.fc2(F.gelu(self.fc1(self.norm(x))))


class ReZeroBlock(nn.Module):
    """A branch times a learned number, which starts at a constant."""

    def __init__(self, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.alpha = nn.Parameter(torch.full((1,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.fc2(F.relu(self.fc1(x)))


class SandwichBlock(nn.Module):
    """A norm before the branch and one after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.after = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.after(self.fc2(F.gelu(self.fc1(self.before(x)))))


class MacaronBlock(nn.Module):
    """Half a feed-forward layer before and after a gated convolution over nothing but channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.first = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )
        self.gated = nn.Linear(width, 2 * width)
        self.point = nn.Linear(width, width)
        self.second = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(self.norms[0](x))
        x = x + self.point(F.glu(self.gated(self.norms[1](x)), -1))
        return x + 0.5 * self.second(self.norms[2](x))


class ExpertsBlock(nn.Module):
    """Four experts behind a router, of which every token takes all, or its best two."""

    def __init__(self, width: int, best: int | None = None) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, width, bias=False)
            )
            for _ in range(4)
        )
        self.best = best

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        shares = self.router(y).softmax(-1)
        if self.best is not None:
            least = shares.topk(self.best, -1).values[..., -1:]
            shares = torch.where(shares >= least, shares, 0.0)
            shares = shares / shares.sum(-1, keepdim=True)
        answers = torch.stack([expert(y) for expert in self.experts], -1)
        return x + (answers * shares[..., None, :]).sum(-1)


class StackedExpertsBlock(nn.Module):
    """Experts as one tensor of three dimensions, mixed by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 3)
        self.w1 = nn.Parameter(torch.randn(3, width, 2 * width) / width**0.5)
        self.w2 = nn.Parameter(torch.randn(3, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        h = F.relu(torch.einsum("bd,edh->beh", y, self.w1))
        out = torch.einsum("beh,ehd->bed", h, self.w2)
        return x + (self.gate(y).softmax(-1)[..., None] * out).sum(1)


class TimeMlp(nn.Module):
    """A denoiser of vectors: waves of the time shift and scale every block, as in FiLM."""

    def __init__(self, width: int, depth: int, zero: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.head = nn.Linear(width, FEATURES)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, elementwise_affine=False) for _ in range(depth)
        )
        self.films = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        for film in self.films if zero else ():
            nn.init.zeros_(film.weight)
            nn.init.zeros_(film.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(8) / 2)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.embed(x)
        for norm, film, mlp in zip(self.norms, self.films, self.mlps, strict=True):
            scale, shift = film(F.silu(time)).chunk(2, -1)
            x = x + mlp(norm(x) * (1 + scale) + shift)
        return self.head(self.norm(x))


# ---- residual networks of images


class PreActBlock(nn.Module):
    """Norm, activation and convolution, twice."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.n1 = norm(width)
        self.n2 = norm(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.n2(self.conv1(F.relu(self.n1(x))))))


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then two layers over channels, as in ConvNeXt."""

    def __init__(self, width: int, scale: bool = True) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(0.1 * torch.ones(width)) if scale else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.pwconv2(F.gelu(self.pwconv1(y)))
        y = y if self.gamma is None else self.gamma * y
        return x + y.permute(0, 3, 1, 2)


class SqueezeBlock(nn.Module):
    """Convolutions whose channels a small network weighs by their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 1)
        self.squeeze = nn.Linear(width, width // 4)
        self.excite = nn.Linear(width // 4, width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(self.norm(x)))
        weights = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        return x + self.conv2(y * weights[..., None, None])


class InvertedBlock(nn.Module):
    """A wide depthwise layer between two pointwise ones, as in MobileNet v2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(width, 2 * width, 1, bias=False)
        self.n1 = nn.GroupNorm(4, 2 * width)
        self.n2 = nn.GroupNorm(4, 2 * width)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width, bias=False)
        self.project = nn.Conv2d(2 * width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.n1(self.expand(x)))
        return x + self.project(F.relu6(self.n2(self.depthwise(y))))


class ImageStack(nn.Module):
    """Blocks of one kind between a stem and a head."""

    def __init__(self, width: int, depth: int, block: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.layer = nn.Sequential(*[block(width) for _ in range(depth)])
        self.norm = nn.GroupNorm(4, width)
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer(self.stem(images))
        return self.fc(F.relu(self.norm(x)).mean((2, 3)))


def group_norm(width: int) -> nn.Module:
    """Groups of eight channels."""
    return nn.GroupNorm(width // 8, width)


class PatchMixer(nn.Module):
    """An MLP-Mixer, whose layers over patches keep their size."""

    class Block(nn.Module):
        def __init__(self, width: int, patches: int) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.norm2 = nn.LayerNorm(width)
            self.token = nn.Sequential(
                nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
            )
            self.channel = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channel(self.norm2(x))

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.mixer = nn.Sequential(*[self.Block(width, 16) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.mixer(x)).mean(1))


class WaveBlock(nn.Module):
    """A gated, dilated, causal convolution, whose answer is added to the stream."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.pad = dilation

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class WaveNet(nn.Module):
    """Gated convolutions over time on a stream, read at its end."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(FEATURES, width, 1)
        self.out = nn.Conv1d(width, FEATURES, 1)
        self.blocks = nn.ModuleList(WaveBlock(width, 2 ** (k % 2)) for k in range(depth))

    def forward(self, series: Tensor) -> Tensor:
        x = self.into(series.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.out(F.relu(x))


# ---- unusual spellings, which a plan may or may not read as they are meant


class SummedHead(nn.Module):
    """A readout written as a product of entries and a sum."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = Mlp(width, depth)
        self.body.head = nn.Identity()
        self.v = nn.Parameter(torch.randn(width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) * self.v).sum(-1)


class MeanHead(nn.Module):
    """A network whose answer is the mean of its last features."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = Mlp(width, depth, torch.tanh)
        self.body.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean(-1)


class Energy(nn.Module):
    """A network whose answer is the sum of the squares of its last features."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = Mlp(width, depth, torch.tanh)
        self.body.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().sum(-1)


class OverWidth(nn.Module):
    """A head of muP by hand: its inputs are divided by the width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = Mlp(width, depth)
        self.body.head = nn.Identity()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h / h.shape[-1])


class HandNormed(nn.Module):
    """Layers whose rows are divided by their norms in the forward pass."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.hidden = nn.ParameterList(torch.randn(width, width) for _ in range(2))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for weight in self.hidden:
            x = torch.relu(F.linear(x, weight / weight.norm(dim=1, keepdim=True)))
        return self.out(x)


class Unbound(nn.Module):
    """All hidden matrices as slices of one tensor."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.stack = nn.Parameter(torch.randn(3, width, width) / width**0.5)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for weight in self.stack.unbind(0):
            x = torch.relu(x @ weight)
        return self.out(x)


class MadeMatrix(nn.Module):
    """A network that makes a matrix between two layers that grow."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(FEATURES, width)
        self.make = nn.Linear(5, width * width)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        made = self.make(task).unflatten(-1, (self.width, self.width)) / self.width**0.5
        h = torch.relu(self.first(x))
        return self.out(torch.relu(torch.einsum("bij,bj->bi", made, h)))


class BilinearHead(nn.Module):
    """Two encoders whose features meet in a matrix."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.left = Mlp(width, depth)
        self.right = Mlp(width, depth)
        self.left.head = nn.Identity()
        self.right.head = nn.Identity()
        self.meet = nn.Bilinear(width, width, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.meet(self.left(a), self.right(b))


class TiedAutoencoder(nn.Module):
    """A decoder that is the transposed encoder."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(width, FEATURES) / FEATURES**0.5)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(F.linear(x, self.first))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return x @ self.first


class Capped(nn.Module):
    """A network whose logits are capped by a tanh."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = ResMlp(width, depth)

    def forward(self, x: Tensor) -> Tensor:
        return 30 * torch.tanh(self.body(x) / 30)


class BufferedBlock(nn.Module):
    """A branch times a number that lies in a buffer."""

    def __init__(self, width: int, factor: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.factor
