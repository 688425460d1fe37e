"""Gradients between layers, as the backward pass of a training left them.

With ``G_l`` all gradients of the parameters of block l as one vector, and L the last block of its stack,

    gradient_ratio    of a block |G_l| / |G_L|, of the network, or of one of several stacks, |G_1| / |G_L|

Clipping by norm and the scale of a loss cancel. Where several backward passes were added up it is that of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nfd.meters.matrices import norm
from nfd.scaling.model import TensorInfo, block_of, whole

RATIO = "gradient_ratio"


def gradient_ratios(infos: Mapping[str, TensorInfo], blocks: Sequence[str]) -> dict[str, float]:
    """The ratio of every block of a stack; none where the last one has no gradient, or zero."""
    squares: dict[str, float] = {}
    for name, t in infos.items():
        block = block_of(name, blocks)
        if block is not None and t.parameter.grad is not None:
            squares[block] = squares.get(block, 0.0) + norm(whole(t.parameter.grad)) ** 2
    last = math.sqrt(squares.get(blocks[-1], 0.0)) if blocks else 0.0
    return {block: math.sqrt(squares.get(block, 0.0)) / last for block in blocks} if last != 0 else {}
