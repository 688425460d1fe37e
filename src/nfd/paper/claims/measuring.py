"""What the claims that train networks of their own share: inputs, seeds, and exponents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nfd.core import Interval, derive, interval, log_slope
from nfd.paper.claims.evidence import Evidence


def seeds(evidence: Evidence, name: str, count: int) -> list[int]:
    """Seeds of independent networks for one measurement."""
    return [derive(evidence.seed, "claim", name, index) for index in range(count)]


def rows(evidence: Evidence, count: int) -> Tensor:
    """The first training inputs [count, d], float64."""
    return evidence.dataset.inputs[:count].double()


def signed(evidence: Evidence, count: int) -> tuple[Tensor, Tensor]:
    """Training inputs [count, d] and +1 for even classes, -1 for odd ones."""
    return rows(evidence, count), torch.where(evidence.dataset.labels[:count] % 2 == 0, 1.0, -1.0)


def unit(evidence: Evidence) -> Tensor:
    """The first training input [1, d] with ``|x|^2 = d``."""
    x = rows(evidence, 1)
    return x / x.square().mean().sqrt()


def over(
    evidence: Evidence, name: str, sizes: Sequence[int], count: int, measured: Callable[[int, int], Tensor]
) -> Tensor:
    """``measured(size, seed)`` of independent networks at every size, [count, sizes, ...]."""
    columns = [
        torch.stack([measured(size, seed) for seed in seeds(evidence, f"{name}-{size}", count)]) for size in sizes
    ]
    return torch.stack(columns, 1)


def exponent(sizes: Sequence[float], samples: Tensor) -> Interval:
    """The exponent in the sizes of the mean over networks [R, sizes]."""
    return interval(lambda r: log_slope(sizes, r.mean(0)), samples)


def ratio(first: Tensor, second: Tensor) -> Interval:
    """The ratio of the means of two independent groups [R]."""
    return interval(lambda a, b: a.mean(0) / b.mean(0), first, second)


def within(value: float, error: float) -> Interval:
    """A number without randomness, known to a numerical error."""
    return Interval(value, error, value - error, value + error)


def span(samples: Tensor) -> Interval:
    """The largest of several numbers without noise; the limits are the smallest and the largest."""
    return Interval(float(samples.max()), 0.0, float(samples.min()), float(samples.max()))


def listed(intervals: dict[str, Interval]) -> str:
    """Intervals with their names, for a reading."""
    return "; ".join(f"{name} {value}" for name, value in intervals.items())
