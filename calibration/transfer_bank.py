"""Real losses over size, learning rate and seed, from which transfers are judged.

A world is a kind of network under one rule. Its small and its large network are trained at every
half octave of the learning rate, from many seeds where the loss is near the best one, and from few
elsewhere. A replay draws its seeds from these. Nothing of the design of ``nfd.transfer`` was
chosen on them.

    python -m calibration.transfer_bank OUT.csv --workers 2

Networks are sized for one core: the whole bank takes about three hours of it. The rows say the loss
(mean of the last tenth of the steps), whether training was upset, and how long it took.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.names import RuleName
from nfd.data import digits
from nfd.runs.sweep import upset_in

Size = tuple[int, int]
Batches = list[tuple[Tensor, Tensor]]

BANK = Path(__file__).with_name("transfer_bank.csv")
# Half octaves of the learning rate around the usual one of the optimizer.
_OCTAVES = 5
_HALF = 0.5
# Seeds where the loss is near the best one, and elsewhere.
MANY = 20
_FEW = 3
# Near: a network has lost less than this share of its best progress.
_NEAR = 0.25
_CLASSES = 10
_BYTES = 97
_HEAD = 16


# ---- networks


class Attention(nn.Module):
    """Attention of heads of 16 channels."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        parts = self.qkv(h).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (-1, _HEAD)).transpose(1, 2) for part in parts)
        read = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: Tensor = self.mix(read.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """A pre-norm block of a Transformer."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, causal)
        self.second_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attention(self.first_norm(h))
        out: Tensor = h + self.down(nn.functional.gelu(self.up(self.second_norm(h))))
        return out


class ViT(nn.Module):
    """A digit as eight rows of eight pixels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.places = nn.Parameter(0.02 * torch.randn(8, width))
        self.blocks = nn.Sequential(*[Block(width, False) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.embed(x.unflatten(1, (8, 8))) + self.places)  # type: ignore[no-untyped-call]
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


class GPT(nn.Module):
    """Bytes to logits of the next ones."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_BYTES, width)
        self.blocks = nn.Sequential(*[Block(width, True) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _BYTES)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.embed(ids))))
        return out


def mlp(width: int, depth: int) -> nn.Module:
    """Digits to classes without norms or a residual stream."""
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, _CLASSES))


class Residual(nn.Module):
    """A convolution and its norm on a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.second(torch.relu(self.norm(self.first(h))))
        return out


class ConvNet(nn.Module):
    """Digits to classes through residual convolutions."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.stem(x.unflatten(1, (1, 8, 8))))  # type: ignore[no-untyped-call]
        out: Tensor = self.head(h.mean((2, 3)))
        return out


# ---- data


@cache
def images(size: int, steps: int) -> Batches:
    """Batches of digits."""
    x, y = digits().batches(size, steps, 0)
    return list(zip(x, y, strict=True))


@cache
def text(windows: int, length: int, steps: int) -> Batches:
    """Windows of Python's own source, and the bytes after them."""
    source = b"".join(path.read_bytes() for path in sorted(Path(json.__file__).parent.glob("*.py")))
    ids = torch.tensor([byte % _BYTES for byte in source])
    stream = torch.Generator().manual_seed(0)
    starts = torch.randint(0, len(ids) - length - 1, (steps, windows), generator=stream)
    cut = ids[starts[:, :, None] + torch.arange(length + 1)]
    return [(window[:, :-1], window[:, 1:]) for window in cut]


# ---- worlds


@dataclass(frozen=True)
class Kind:
    """A kind of network, its optimizer, its sizes and its data."""

    make_model: Callable[[int, int], nn.Module]
    optimizer: str
    small: Size
    large: Size
    batches: Callable[[], Batches]
    usual: float
    rules: tuple[RuleName, ...] = ("standard", "complete-p")


KINDS: dict[str, Kind] = {
    "vit-adamw": Kind(ViT, "adamw", (32, 2), (128, 4), lambda: images(32, 60), 2e-3),
    "gpt-adamw": Kind(
        GPT, "adamw", (32, 2), (128, 2), lambda: text(8, 32, 60), 4e-3, ("standard", "mup")
    ),
    "mlp-muon": Kind(
        mlp, "muon", (32, 3), (128, 3), lambda: images(32, 60), 2e-2, ("standard", "mup")
    ),
    "mlp-sgd": Kind(
        mlp, "sgd", (32, 3), (256, 3), lambda: images(32, 80), 0.3, ("standard", "mup")
    ),
    "mlp-adamw": Kind(
        mlp, "adamw", (32, 3), (256, 3), lambda: images(32, 80), 2e-3, ("standard", "mup")
    ),
    "conv-sgd": Kind(
        ConvNet, "sgd", (16, 2), (64, 2), lambda: images(32, 60), 0.05, ("standard", "mup")
    ),
    "conv-adamw": Kind(ConvNet, "adamw", (16, 2), (64, 4), lambda: images(32, 60), 4e-3),
    "vit-sgd": Kind(
        ViT, "sgd", (32, 2), (128, 2), lambda: images(32, 80), 0.3, ("standard", "mup")
    ),
}


@dataclass(frozen=True)
class World:
    """A kind of network under one rule."""

    kind: str
    rule: RuleName

    def __str__(self) -> str:
        return f"{self.kind} {self.rule}"

    @property
    def rates(self) -> list[float]:
        """Half octaves around the usual learning rate, to three digits."""
        count = round(_OCTAVES / _HALF)
        usual = KINDS[self.kind].usual
        return [float(f"{usual * 2 ** (_HALF * k):.3g}") for k in range(-count, count + 1)]


WORLDS = [World(name, rule) for name, kind in KINDS.items() for rule in kind.rules]

# world, size, learning rate, seed
Key = tuple[str, str, float, int]


def task_of(kind: Kind) -> nfd.Task:
    """What the networks of a kind are trained on."""
    return nfd.Task(kind.batches(), adamw_lr=4e-3 if kind.optimizer == "muon" else None)


def trials(world: World, size: Size, rates: Sequence[float], seeds: range) -> list[nfd.Trial]:
    """The trials of seeds times rates."""
    kind = KINDS[world.kind]
    family = nfd.Family(
        kind.make_model, kind.small, optimizer=kind.optimizer, name=world.kind
    ).under(world.rule)
    task = task_of(kind)
    return [nfd.Trial(family, task, *size, seed, lr) for seed, lr in product(seeds, rates)]


def guess_of(kind: str) -> float:
    """The loss of a uniform guess."""
    return math.log(_BYTES if kind.startswith("gpt") else _CLASSES)


def train(sweep: nfd.Sweep) -> Iterator[dict[str, Any]]:
    """Train the bank, coarsely everywhere, then densely where the loss is near the best one."""
    places = [(world, name) for world in WORLDS for name in ("small", "large")]
    coarse = {place: _trials(place, place[0].rates, range(_FEW)) for place in places}
    few = sweep.run_all(coarse, "everywhere")
    dense = dict[tuple[World, str], list[nfd.Trial]]()
    for place in places:
        near = _near(place[0], few[place])
        dense[place] = _trials(place, near, range(_FEW, MANY))
    many = sweep.run_all(dense, "near the best")
    for place in places:
        for trial, record in zip(
            [*coarse[place], *dense[place]], [*few[place], *many[place]], strict=True
        ):
            yield {
                "world": str(place[0]),
                "size": place[1],
                "lr": trial.lr,
                "seed": trial.seed,
                "loss": f"{record.metrics['train_loss']:.6g}",
                "upset": int(upset_in(record)),
                "seconds": f"{record.seconds:.3f}",
            }


def _trials(place: tuple[World, str], rates: Sequence[float], seeds: range) -> list[nfd.Trial]:
    world, name = place
    return trials(world, getattr(KINDS[world.kind], name), rates, seeds)


def _near(world: World, records: Sequence[Any]) -> list[float]:
    """Learning rates whose loss is near the best one, and two more on either side."""
    rates = world.rates
    guess = guess_of(world.kind)
    mean = torch.zeros(len(rates), dtype=torch.float64)
    for k, record in enumerate(records):
        loss = min(record.metrics["train_loss"], guess)
        mean[k % len(rates)] += (loss if math.isfinite(loss) else guess) / _FEW
    best = float(mean.min())
    is_near = mean <= best + _NEAR * (guess - best)
    near = is_near.nonzero().flatten().tolist()
    first = max(near[0] - 2, 0)
    return rates[first : near[-1] + 3]


def main() -> None:
    """Train the bank and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=BANK)
    parser.add_argument("--store", default=None, help="folder of runs.sqlite, to continue from")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    with nfd.Sweep(asked.store, asked.workers) as sweep:
        rows = list(train(sweep))
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} trainings of {len(WORLDS)} worlds in {asked.out}")


if __name__ == "__main__":
    main()
