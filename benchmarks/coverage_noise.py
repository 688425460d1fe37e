"""Coverage of the noise scale of gradients: light and heavy tails, one and many dimensions, few groups and many.

An interval without an upper limit counts by its lower one: it says that the data do not decide how large the scale is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.coverage_case import Draw, Outcome, Row, normal, repeated
from nfd.meters.noise import GradientNoise

_GROUP, _SAMPLES = 8, 4
_BOUNDED = 1e300  # in place of infinity, which stands for an interval that is not known


def students(g: torch.Generator, freedom: float, *shape: int) -> Tensor:
    """Numbers of Student's t with variance 1; normal ones for infinitely many degrees of freedom."""
    if math.isinf(freedom):
        return normal(g, *shape)
    halves = torch._standard_gamma(torch.full(shape, freedom / 2, dtype=torch.float64), generator=g)
    return normal(g, *shape) * ((freedom - 2) / (2 * halves)).sqrt()


def scales(freedom: float, size: int, groups: int, truth: float, g: torch.Generator) -> Iterator[Outcome]:
    """The noise scale of gradients of ``size`` numbers, each 1 with independent noise of variance ``truth``."""
    noise = GradientNoise(_SAMPLES, _GROUP)
    draws = students(g, freedom, groups * _GROUP, _SAMPLES, size).mean(1)
    for gradient in 1 + truth**0.5 * draws:
        noise.add([gradient])
    found = noise.estimate()
    law = "normal" if math.isinf(freedom) else f"t({freedom:g})"
    case = f"{law}, {size} dimension{'s' * (size > 1)}, scale {truth:g}, {groups} groups"
    yield Outcome("noise scale of gradients", case, found.low, min(found.high, _BOUNDED), truth)


DRAWS: tuple[Draw, ...] = tuple(
    partial(scales, freedom, size, groups, truth)
    for freedom, size, truth in (
        (math.inf, 60, 4.0),
        (math.inf, 60, 64.0),
        (math.inf, 1, 16.0),
        (math.inf, 1, 64.0),
        (2.5, 60, 4.0),
        (2.5, 60, 16.0),
        (2.5, 1000, 4.0),
        (2.5, 1, 16.0),
    )
    for groups in (2, 3, 6, 20)
)


def noise_covers(repetitions: int, seed: int) -> list[Row]:
    """Rows of noise scales."""
    return repeated(DRAWS, repetitions, seed)
