"""Networks trained together against a loop over networks, and against the matrix-product peak of the same shapes."""

from __future__ import annotations

from typing import Any

import torch

import nfd
from benchmarks.measure import best
from nfd.nets.stack import Stack
from nfd.nets.stacked_optimizers import StackedSGD
from nfd.training.losses import cross_entropy

ETA_C, D, C = 0.1, 64, 10
SHAPES = ((16, 32, 8, 16), (16, 32, 8, 64), (32, 64, 16, 16), (16, 128, 8, 16), (16, 128, 8, 128), (16, 128, 64, 128))


def together(count: int, width: int, depth: int, batch: int) -> dict[str, Any]:
    """One step of ``count`` networks, on one thread as in a sweep: the loop is nfd.ResNet with torch.optim.SGD."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x, y = torch.randn(batch, D), torch.randint(0, C, (batch,))
    stack = Stack([nfd.ResNet(D, C, width, depth, seed=r) for r in range(count)])
    StackedSGD(stack.param_groups([ETA_C] * count, ["depth-mup"] * count))
    net = nfd.ResNet(D, C, width, depth)
    optimizer = torch.optim.SGD(net.param_groups(ETA_C))

    def stacked() -> None:
        cross_entropy(stack(x), y).sum().backward()  # type: ignore[no-untyped-call]

    def alone() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    stacked()
    alone()
    a, b = torch.randn(count, batch, width), torch.randn(count, width, width)
    product = best(lambda: [torch.bmm(a, b) for _ in range(5)], 20) / 5
    step, loop = best(stacked, 20), count * best(alone, 40)
    torch.set_num_threads(threads)
    return {
        "networks": count, "width": width, "depth": depth, "batch": batch, "ms": 1e3 * step,
        "loop over ours": loop / step,
        "share of the product peak": 3 * depth * product / step,
    }  # fmt: skip
