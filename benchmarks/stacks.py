"""Networks trained together against a loop over networks, and against the matrix-product peak of the same shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch

import nfd
from benchmarks.measure import Round, Row, best
from benchmarks.ratio import Ratio
from nfd.core.machine import threads
from nfd.nets.stack import Stack
from nfd.nets.stacked_optimizers import StackedSGD
from nfd.training.losses import cross_entropy

ETA_C, D, C = 0.1, 64, 10
SHAPES = (
    (16, 32, 8, 16),
    (16, 32, 8, 64),
    (16, 32, 8, 128),
    (32, 64, 16, 16),
    (16, 128, 8, 16),
    (16, 128, 8, 128),
    (16, 128, 64, 128),
)


def together(turn: Round) -> list[Row]:
    """One step of many networks; the loop is nfd.ResNet with torch.optim.SGD."""
    with threads(1):  # as the workers of a sweep compute
        return [_together(*shape) for shape in (SHAPES[:2] + SHAPES[4:5] if turn.quick else SHAPES)]


def stacked_step(count: int, width: int, depth: int, batch: int) -> Callable[[], None]:
    """One step of ``count`` networks as one."""
    x, y = torch.randn(batch, D), torch.randint(0, C, (batch,))
    stack = Stack([nfd.ResNet(D, C, width, depth, seed=r) for r in range(count)])
    StackedSGD(stack.param_groups([ETA_C] * count, ["depth-mup"] * count))

    def step() -> None:
        cross_entropy(stack(x), y).sum().backward()  # type: ignore[no-untyped-call]

    return step


def single_step(width: int, depth: int, batch: int) -> Callable[[], None]:
    """One step of one network in plain PyTorch."""
    x, y = torch.randn(batch, D), torch.randint(0, C, (batch,))
    net = nfd.ResNet(D, C, width, depth)
    optimizer = torch.optim.SGD(net.param_groups(ETA_C))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _together(count: int, width: int, depth: int, batch: int) -> Row:
    stacked, alone = stacked_step(count, width, depth, batch), single_step(width, depth, batch)
    stacked()
    alone()
    a, b = torch.randn(count, batch, width), torch.randn(count, width, width)
    times = max(5, min(50, int(2e9 / (count * width * width * depth * batch))))
    product = best(lambda: [torch.bmm(a, b) for _ in range(5)], times) / 5
    step, loop = best(stacked, times), count * best(alone, 2 * times)
    return {
        "networks": count,
        "width": width,
        "depth": depth,
        "batch": batch,
        "step, ms": 1e3 * step,
        "loop over networks / ours": Ratio.of(loop / step),
        "share of the product peak": Ratio.of(3 * depth * product / step),
    }
