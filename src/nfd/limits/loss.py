"""The loss of the infinitely wide network, from ensembles of networks of two widths.

Outputs at width n are ``f + a/n`` in the mean, and the mean of R networks has noise of variance ``s^2/(nR)``. So its
loss is too large by half the loss's curvature times that variance, which the jackknife removes, and shifted by
``Loss'(f) a / n``, which a second ensemble, r times narrower, measures:

    bias = (loss(n/r) - loss(n)) / (r - 1),    loss(infinity) = loss(n) - bias.

The mean loss of single networks has the same limit, and the curvature's term R times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.statistics import Magnitude, combined, magnitude, stderr

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LimitLosses:
    """Losses ``[K]`` of the infinite network, their 95 % intervals, and what width added (taken out already)."""

    value: Tensor
    stderr: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor
    bias_stderr: Tensor

    @staticmethod
    def names(prefix: str) -> tuple[str, ...]:
        """What the six are called in a ``Prediction``."""
        return prefix, *(f"{prefix}_{part}" for part in ("stderr", "low", "high", "bias", "bias_stderr"))

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The six under these names."""
        values = (self.value, self.stderr, self.low, self.high, self.bias, self.bias_stderr)
        return dict(zip(self.names(prefix), values, strict=True))


def limit_losses(
    loss: Loss, wide: Tensor, narrow: Tensor | None, ratio: float, coarse: Tensor | None = None
) -> LimitLosses:
    """The losses of the limit from outputs ``[R, ...]`` of wide networks and of others ``ratio`` times narrower.

    Where the narrow ones are missing or diverged, the loss is that of the wide ones, and its interval not-a-number.

    Args:
        loss: outputs ``[..., *shape]`` to losses ``[..., K]``.
        coarse: outputs of the same wide networks by the extrapolation in depth before the last one. How far the loss
            moved since then is an error beside the noise: the half-width is the root of the sum of both squares.
    """
    value, variance = _corrected(loss, wide)
    other, other_variance = (torch.full_like(value, math.nan),) * 2 if narrow is None else _corrected(loss, narrow)
    moved = torch.zeros_like(value) if coarse is None else value - _corrected(loss, coarse)[0]
    freedom = len(wide) - 1, len(wide if narrow is None else narrow) - 1
    steps = zip(*(x.tolist() for x in (value, variance, other, other_variance, moved)), strict=True)
    rows = [_estimate(v, var, o, o_var, freedom, ratio - 1, depth) for v, var, o, o_var, depth in steps]
    return LimitLosses(*torch.tensor(rows, dtype=torch.float64, device=wide.device).T)


def _estimate(
    value: float, variance: float, other: float, other_variance: float, freedom: tuple[int, int], lever: float,
    moved: float,
) -> tuple[float, ...]:  # fmt: skip
    """A row of ``LimitLosses``."""
    if not math.isfinite(other):
        return value, math.sqrt(variance), math.nan, math.nan, math.nan, math.nan
    bias = (other - value) / lever
    wide, narrow = variance * (1 + 1 / lever) ** 2, other_variance / lever**2
    limit = combined(value - bias, zip((wide, narrow), freedom, strict=True))
    half = math.hypot(limit.high - limit.value, moved)
    error = math.sqrt(variance + other_variance) / lever
    return limit.value, limit.stderr, limit.value - half, limit.value + half, bias, error


def output_bias(wide: Tensor, narrow: Tensor | None, ratio: float) -> Magnitude:
    """RMS of the bias ``a / n`` of mean outputs beyond what noise explains, and that noise."""
    if narrow is None:
        return Magnitude(math.nan, math.nan)
    lever = ratio - 1
    error = (stderr(narrow).square() + stderr(wide).square()).sqrt()
    return magnitude((narrow.mean(0) - wide.mean(0)) / lever, error / lever)


def _corrected(loss: Loss, samples: Tensor) -> tuple[Tensor, Tensor]:
    """The loss at the mean of samples ``[R, ...]`` without the bias of its noise, and its variance, by jackknife."""
    R, mean = len(samples), samples.mean(0)
    whole, parts = loss(mean), loss(mean + (mean - samples) / (R - 1))  # parts [R, K]: one left out of each
    variance = (parts - parts.mean(0)).square().sum(0) * (R - 1) / R
    return whole - (R - 1) * (parts.mean(0) - whole), variance
