"""GPTs on bytes that differ only in the learning rate, trained at once.

They are one stacked network of batched products, in 32 bits. AdamW: decay of 0.1, clipping at 1, a
tenth of warmup, then a linear fall to zero. The bytes are those of Python's own library, of which
every sixteenth file is held out. The loss is that of 512 windows of 64 held-out bytes.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

BYTES = 256
LENGTH = 64
HEAD = 8
# Tables, and texts that repeat each other.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "encodings"}


@dataclass(frozen=True)
class Cell:
    """Training runs that differ only in the learning rate.

    ``part`` says what they are trained for.
    """

    width: int
    depth: int
    tokens: int
    batch: int
    rates: tuple[float, ...]
    part: str = "ladder"

    @property
    def parameters(self) -> int:
        """The parameters that multiply: with the head, without both embeddings."""
        return sum(math.prod(shape) for shape, _ in self.shapes[2:])

    @property
    def shapes(self) -> list[tuple[tuple[int, int], float]]:
        """The shapes of the matrices, and the deviation of their initial entries."""
        w = self.width
        usual = self.width**-0.5
        small = usual / math.sqrt(2 * self.depth)
        block = [((w, 3 * w), usual), ((w, w), small), ((w, 4 * w), usual), ((4 * w, w), small / 2)]
        return [((BYTES, w), 0.1), ((LENGTH, w), 0.1), *block * self.depth, ((w, BYTES), usual)]

    @property
    def start(self) -> Tensor:
        """All weights of a run as one row."""
        stream = torch.Generator().manual_seed(0)
        parts = []
        for shape, std in self.shapes:
            parts.append(torch.randn(math.prod(shape), generator=stream) * std)
        return torch.cat(parts)

    def logits(self, weights: Tensor, ids: Tensor) -> Tensor:
        """Logits of the next byte, ``[runs, batch * length, 256]``.

        Args:
            weights: of all runs, ``[runs, all]``.
            ids: bytes ``[batch, length]``.
        """
        runs = len(weights)
        batch = len(ids)
        w = self.width
        shapes = [shape for shape, _ in self.shapes]
        parts = weights.split_with_sizes([math.prod(shape) for shape in shapes], 1)
        matrices = [part.view(runs, *shape) for part, shape in zip(parts, shapes, strict=True)]
        places = ids.flatten() + BYTES * torch.arange(runs)[:, None]
        embedded = functional.embedding(places, matrices[0].reshape(-1, w))
        h = embedded.view(runs, batch, LENGTH, w) + matrices[1][:, None]
        h = h.flatten(1, 2)
        for layer in range(self.depth):
            into, out, up, down = matrices[2 + 4 * layer : 6 + 4 * layer]
            mixed = torch.bmm(functional.layer_norm(h, (w,)), into)
            heads = mixed.view(runs * batch, LENGTH, 3, -1, HEAD)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + torch.bmm(attended.transpose(1, 2).reshape(h.shape), out)
            raised = torch.bmm(functional.layer_norm(h, (w,)), up)
            h = h + torch.bmm(functional.gelu(raised, approximate="tanh"), down)
        return torch.bmm(functional.layer_norm(h, (w,)), matrices[-1])

    def losses(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Mean losses ``[runs]`` on windows ``[batch, length + 1]``."""
        logits = self.logits(weights, rows[:, :-1]).flatten(0, 1)
        each = functional.cross_entropy(
            logits, rows[:, 1:].flatten().repeat(len(weights)), reduction="none"
        )
        return each.view(len(weights), -1).mean(1)

    def trained(self) -> list[float]:
        """Final losses on held-out bytes, by rate; infinite where a run diverged."""
        weights = self.start.repeat(len(self.rates), 1).requires_grad_()
        mean = torch.zeros_like(weights)
        square = torch.zeros_like(weights)
        peaks = torch.tensor(self.rates)[:, None]
        steps = self.tokens // self.batch
        for step, rows in enumerate(windows(steps, self.batch // LENGTH)):
            (slope,) = torch.autograd.grad(self.losses(weights, rows).sum(), weights)
            with torch.no_grad():
                slope *= 1 / slope.norm(dim=1, keepdim=True).clamp(min=1.0)
                mean.lerp_(slope, 0.1)
                square.mul_(0.95).addcmul_(slope, slope, value=0.05)
                done = step / steps
                rate = peaks * min((step + 1) / (0.1 * steps), (1 - done) / 0.9)
                root = square.div(1 - 0.95 ** (step + 1)).sqrt_().add_(1e-8)
                weights.mul_(1 - 0.1 * rate).addcdiv_(
                    mean * (-rate / (1 - 0.9 ** (step + 1))), root
                )
        with torch.no_grad():
            losses = torch.stack([self.losses(weights, part) for part in held_out()]).mean(0)
        return [loss if math.isfinite(loss) else math.inf for loss in losses.tolist()]


@cache
def corpus() -> tuple[Tensor, Tensor]:
    """Bytes of Python's own library: those to train on, and those of every sixteenth file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        path for path in folder.rglob("*.py") if not LEFT_OUT & {*path.relative_to(folder).parts}
    )
    train = bytearray()
    held_out = bytearray()
    for k, path in enumerate(files):
        side = held_out if k % 16 == 8 else train
        side += path.read_bytes()
    return (
        torch.frombuffer(train, dtype=torch.uint8),
        torch.frombuffer(held_out, dtype=torch.uint8),
    )


def windows(steps: int, count: int) -> Iterator[Tensor]:
    """Random windows ``[count, length + 1]`` of the bytes to train on, for every step."""
    text = corpus()[0]
    stream = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (count, 1), generator=stream)
        yield text[starts + torch.arange(LENGTH + 1)].long()


@cache
def held_out() -> Tensor:
    """Windows ``[8, 64, length + 1]`` at equal distances of the bytes that no run is trained on."""
    text = corpus()[1]
    starts = torch.linspace(0, len(text) - LENGTH - 1, 8 * 64).long().view(8, 64, 1)
    return text[starts + torch.arange(LENGTH + 1)].long()
