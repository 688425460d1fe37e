"""Plans and checks, against one pass of the model and against only training it."""

from __future__ import annotations

import torch
from torch import nn

import nfd
from benchmarks.measure import Round, Row, seconds
from benchmarks.ratio import Ratio
from nfd.data import digits


class _Block(nn.Module):
    """A block of a Transformer of no known family: its roles are found by measurement."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """The stream with both branches added."""
        x = self.first(h)
        h = h + self.attention(x, x, x, need_weights=False)[0]
        out: torch.Tensor = h + self.down(torch.relu(self.up(self.second(h))))
        return out


def transformer(width: int, depth: int) -> nn.Module:
    """A Transformer with twelve tensors in each block."""
    blocks = nn.Sequential(*[_Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(16, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def planning(turn: Round) -> list[Row]:
    """Time a plan of a Transformer by a trace, against one forward and backward pass of it."""
    depth = 16 if turn.quick else 77
    model = transformer(64, depth)
    sample = torch.randn(2, 8, 16)

    def once() -> None:
        model(sample).square().mean().backward()

    once()
    took = seconds(
        lambda: nfd.plan(
            model, rule="complete-p", make_model=transformer, base=(32, 2), sample=sample
        )
    )
    step = seconds(once)
    tensors = len(list(model.parameters()))
    return [
        {
            "model": "Transformer, measured",
            "tensors": tensors,
            "plan, s": took,
            "forward and backward, s": step,
            "plan / forward and backward": Ratio.of(took / step, less_is_better=True),
        }
    ]


def checking(turn: Round) -> list[Row]:
    """Time a check of the paper's two-layer network against only training these networks."""
    depths = (4, 8) if turn.quick else (4, 8, 16, 32, 64)
    steps = 5 if turn.quick else 20
    batch = 32 if turn.quick else 128
    seeds = 2
    x, y = digits().batches(batch, steps, 0)
    batches = list(zip(x, y, strict=True))

    family = nfd.resnets(64, 10, block="two-layer")

    def plain() -> None:
        for depth in depths:
            for _ in range(seeds):
                net = nfd.ResNet(64, 10, 128, depth, block="two-layer")
                optimizer = torch.optim.SGD(net.param_groups(0.1))
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()

    took = seconds(
        lambda: nfd.check(family, batches, [128], depths, lr=0.1, seeds=seeds, remedy=False)
    )
    alone = seconds(plain)
    return [
        {
            "width": 128,
            "depths": f"{depths[0]} to {depths[-1]}",
            "seeds": seeds,
            "steps": steps,
            "batch": batch,
            "check, s": took,
            "training alone, s": alone,
            "training alone / check": Ratio.of(alone / took),
        }
    ]
