"""The loss of the infinitely wide network, from ensembles of networks of two widths.

Outputs at width n are ``f + a/n`` in the mean, and the mean of R networks has noise of variance ``s^2/(nR)``. So its
loss is too large by half the loss's curvature times that variance, which the jackknife removes, and shifted by
``Loss'(f) a / n``, which a second ensemble, r times narrower, measures:

    bias = (loss(n/r) - loss(n)) / (r - 1),    loss(infinity) = loss(n) - bias.

The mean loss of single networks has the same limit, and the curvature's term R times as large.

Structured weights leave out what is shorter than a resolution, which moves losses by b. Pairs of narrow networks from
the same seeds, with it and without one, show b. (Pairs with it and with half of it would not: directions that matter
can be shorter than both.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nfd.core.estimates import combined
from nfd.core.statistics import stderr

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LimitLosses:
    """Losses ``[K]`` of the infinite network, their intervals, and the biases of width (subtracted) and resolution.

    ``resolution_bias`` is not subtracted: the intervals include it. It is zero where weights have no resolution. So is
    ``depth_error``, how far the last doubling of the depth moved the losses. ``sampling_error`` is the standard error
    of the wide networks alone.
    """

    value: Tensor
    stderr: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor
    bias_stderr: Tensor
    resolution_bias: Tensor
    resolution_bias_stderr: Tensor
    sampling_error: Tensor
    depth_error: Tensor

    @staticmethod
    def names(prefix: str) -> tuple[str, ...]:
        """What they are called in a ``Prediction``."""
        return prefix, *(f"{prefix}_{part.name}" for part in fields(LimitLosses)[1:])

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The same under these names."""
        return dict(zip(self.names(prefix), (getattr(self, part.name) for part in fields(self)), strict=True))


def limit_losses(
    loss: Loss,
    wide: Tensor,
    narrow: Tensor | None,
    ratio: float,
    coarse: Tensor | None = None,
    exact: Tensor | None = None,
) -> LimitLosses:
    """The losses of the limit from outputs ``[R, ...]`` of wide networks and of others ``ratio`` times narrower.

    Where the narrow ones are missing or diverged, the loss is that of the wide ones, and its interval not-a-number.

    Args:
        loss: outputs ``[..., *shape]`` to losses ``[..., K]``.
        coarse: outputs of the same wide networks by the extrapolation in depth before the last one. How far the loss
            moved since then is an error beside the noise: the half-width is the root of the sum of both squares.
        exact: outputs of the first of the narrow networks without a resolution, whose bias is a third such error.
    """
    value, variance = _corrected(loss, wide)
    other, other_variance = (torch.full_like(value, math.nan),) * 2 if narrow is None else _corrected(loss, narrow)
    moved = torch.zeros_like(value) if coarse is None else value - _corrected(loss, coarse)[0]
    resolution = _resolution_bias(loss, value, narrow, exact)
    freedom = len(wide) - 1, len(wide if narrow is None else narrow) - 1
    unsampled = moved.hypot(resolution[0])
    steps = zip(*(x.tolist() for x in (value, variance, other, other_variance, unsampled)), strict=True)
    rows = [_estimate(v, var, o, o_var, freedom, ratio - 1, depth) for v, var, o, o_var, depth in steps]
    estimates = torch.tensor(rows, dtype=torch.float64, device=wide.device).T
    return LimitLosses(*torch.cat([estimates, torch.stack([*resolution, variance.sqrt(), moved.abs()])]))


def _resolution_bias(loss: Loss, like: Tensor, narrow: Tensor | None, exact: Tensor | None) -> tuple[Tensor, Tensor]:
    """b of the losses of single networks, from pairs, and its standard error; zeros without exact networks."""
    if narrow is None or exact is None:
        return torch.zeros_like(like), torch.zeros_like(like)
    apart = loss(narrow[: len(exact)]) - loss(exact)
    return apart.mean(0), stderr(apart)


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


def replicate_losses(loss: Loss, wide: Tensor, narrow: Tensor | None, ratio: float) -> Tensor:
    """The losses of the limit by single replicates, [R, K]: jackknife pseudo-values, whose mean is the limit's loss.

    Not-a-number where there are no narrow ones. Arguments as of ``limit_losses``.
    """
    values = _pseudo_values(loss, wide)
    others = torch.full_like(values, math.nan) if narrow is None else _pseudo_values(loss, narrow)
    return values - (others - values) / (ratio - 1)


def _corrected(loss: Loss, samples: Tensor) -> tuple[Tensor, Tensor]:
    """The loss at the mean of samples ``[R, ...]`` without the bias of its noise, and its variance, by jackknife."""
    values = _pseudo_values(loss, samples)
    return values.mean(0), stderr(values).square()


def _pseudo_values(loss: Loss, samples: Tensor) -> Tensor:
    """``R loss(mean) - (R - 1) loss(mean without one)`` for every one of the samples ``[R, ...]``: [R, K]."""
    R, mean = len(samples), samples.mean(0)
    return R * loss(mean) - (R - 1) * loss(mean + (mean - samples) / (R - 1))
