"""How a meter changes with size: as a power, or towards a limit.

A small network differs from the infinite one by terms that fall with its size n, and what such terms add to a mean
square falls as 1/n. So a meter v that falls over the sizes at hand either goes to zero as ``v ~ n^p``, or comes to a
limit a as

    v^2 = a^2 + b^2 / n.

Both have one parameter beside a factor per group. The exponents of the theory are multiples of 1/2, and a = 0 is -1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.statistics import UNKNOWN, Interval, pooled_slope, standard_errors

_STEEPEST, _GRID, _STEPS = 1e3, 60, 6


@dataclass(frozen=True)
class Trend:
    """The two laws of one meter along one axis.

    Attributes:
        slope: p of ``v ~ n^p``.
        limit: ``a^2 / v^2`` at the largest size n_1: 0 where v falls as n^-1/2 for good, 1 where it does not change,
            above 1 where it rises to its limit.
        power_alone, limit_alone: whether that law fits so much better that the other is refused.
    """

    slope: Interval
    limit: Interval = UNKNOWN
    power_alone: bool = False
    limit_alone: bool = False

    @property
    def local(self) -> Interval:
        """The exponent at the largest size by the law with a limit, ``(a^2 / v^2 - 1) / 2``."""
        r = self.limit
        return Interval((r.value - 1) / 2, r.stderr / 2, (r.low - 1) / 2, (r.high - 1) / 2)


def trend(size: Tensor, value: Tensor, group: Tensor) -> Trend:
    """Fit both laws to independent points: sizes [N], positive values [N], each group [N] with a factor of its own."""
    size, y = size.double(), value.double().log()
    slope = pooled_slope(size.log(), y, group)
    if not slope.stderr > 0:
        return Trend(slope)
    ratio = size.max() / size
    limit = _limit(ratio, y, group)
    power, with_limit = _misfits(torch.stack([y - slope.value * size.log(), y - _shape(limit.value, ratio)]), group)
    freedom = len(y) - len(group.unique()) - 1  # type: ignore[no-untyped-call]
    much = 1 + standard_errors(freedom) ** 2 / freedom
    return Trend(slope, limit, bool(with_limit > much * power), bool(power > much * with_limit))


def _shape(r: Tensor | float, ratio: Tensor) -> Tensor:
    """``log v`` over that at the largest size, n_1, for ``ratio`` = n_1 / n."""
    return (r + (1 - r) * ratio).log() / 2


def _limit(ratio: Tensor, y: Tensor, group: Tensor) -> Interval:
    """Gauss and Newton's steps from the best of a grid; the interval is that of the last, linearised fit."""
    end = float(ratio.max()) / (float(ratio.max()) - 1)  # beyond it v^2 is negative at the smallest size
    grid = end * (1 - torch.logspace(-3, math.log10(_STEEPEST), _GRID, dtype=torch.float64))
    r = float(grid[_misfits(y - _shape(grid[:, None], ratio), group).argmin()])
    fitted = UNKNOWN
    for _ in range(_STEPS):
        slope = (1 - ratio) / (r + (1 - r) * ratio) / 2
        fitted = pooled_slope(slope, y - _shape(r, ratio) + r * slope, group)
        r = min(fitted.value, (r + end) / 2)
        if not math.isfinite(r):
            return UNKNOWN
    return fitted if fitted.value < end else UNKNOWN


def _misfits(residuals: Tensor, group: Tensor) -> Tensor:
    """Sums of squares [...] of residuals [..., N] about the means of the groups."""
    own = (group == group.unique()[:, None]).to(residuals)  # type: ignore[no-untyped-call]
    means = residuals @ own.T / own.sum(1)
    squares: Tensor = (residuals - means @ own).square()
    return squares.sum(-1)
