"""Estimates from replicates: samples are tensors ``[R, ...]``, one per independent run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.estimates import UNKNOWN, Interval, combined, satterthwaite, standard_errors, student


def rms(values: Tensor) -> float:
    """Root mean square over every entry, in 32 bits or more; not-a-number if any is."""
    return float(values.to(torch.promote_types(values.dtype, torch.float32)).square().mean().sqrt())


def stderr(samples: Tensor) -> Tensor:
    """Standard error of the mean over replicates."""
    R = len(samples)
    return (samples - samples.mean(0)).square().sum(0).div(R * (R - 1)).sqrt()  # 15 times as fast as std(0)


def squared_size(mean: Tensor, error: Tensor) -> Tensor:
    """Mean square over entries less that of the noise, ``mean(mean^2 - error^2)``: unbiased, negative at times."""
    return (mean.square() - error.square()).mean()


def squared_distances(runs: Tensor, limit: Tensor) -> Tensor:
    """Mean squared distances [points] of single runs [S, points, ...] from a limit, the mean of independent replicates
    [R, ...]. The noise of that mean is subtracted, so the estimate is unbiased and may be negative."""
    noise = stderr(limit).square().mean()
    return (runs - limit.mean(0)).square().flatten(2).mean((0, 2)) - noise


@dataclass(frozen=True)
class Magnitude:
    """RMS of a mean beyond what its noise explains, and that noise, RMS of the standard errors."""

    value: float
    noise: float


def magnitude(mean: Tensor, error: Tensor) -> Magnitude:
    """``sqrt(max(0, squared_size))`` with its noise; not-a-number propagates."""
    squared = float(squared_size(mean, error))
    return Magnitude(math.sqrt(squared) if not squared <= 0 else 0.0, rms(error))


def systematic_squares(differences: Tensor) -> Tensor:
    """Squared sizes [points] of mean differences [R, points, ...]."""
    return torch.stack([squared_size(d.mean(0), stderr(d)) for d in differences.unbind(1)])


def jackknife(f: Callable[..., Tensor], *samples: Tensor) -> tuple[Tensor, Tensor]:
    """``f(*samples)`` and its standard error from leaving out one replicate after another.

    Groups of samples are independent of each other; their variances add.
    """
    variances = [_variance(f, samples, group) for group in range(len(samples))]
    return f(*samples), torch.stack(variances).sum(0).sqrt()


def _variance(f: Callable[..., Tensor], samples: Sequence[Tensor], group: int) -> Tensor:
    R = len(samples[group])
    left_out = []
    for r in range(R):
        rest = torch.cat([samples[group][:r], samples[group][r + 1 :]])
        left_out.append(f(*samples[:group], rest, *samples[group + 1 :]))
    together = torch.stack(left_out)
    return (together - together.mean(0)).square().sum(0) * (R - 1) / R


_NOTHING = 1e-9  # of a leverage or a weight: rounding


def margin(samples: Tensor) -> Tensor:
    """Half the length of the 95 % interval of the mean over replicates [R, ...], for every entry."""
    return standard_errors(len(samples) - 1) * stderr(samples)


def interval(f: Callable[..., Tensor], *samples: Tensor) -> Interval:
    """The scalar ``f`` of independent groups of replicates, its jackknife error, and 95 % limits.

    By Student's t with the degrees of freedom of Welch and Satterthwaite, ``R - 1`` for a single group.
    """
    (only,) = intervals(lambda *s: f(*s).view(1), *samples)
    return only


def intervals(f: Callable[..., Tensor], *samples: Tensor) -> list[Interval]:
    """The same for every entry of a vector ``f``."""
    freedoms = [len(s) - 1 for s in samples]
    variances = torch.stack([_variance(f, samples, group) for group in range(len(samples))], 1).tolist()
    values = f(*samples).tolist()
    return [combined(value, zip(own, freedoms, strict=True)) for value, own in zip(values, variances, strict=True)]


def ratio_of_means(above: Tensor, below: Tensor) -> Interval:
    """The ratio of two means over the same independent samples [R], neither of which can be negative in truth.

    The limits are those r at which ``above - r below`` has a mean that does not differ from zero by Student's t
    (Fieller 1954), cut off at zero. Where the mean below does not differ from zero, the ratio has a lower limit alone.

    Returns:
        Not-a-number where fewer than two samples are given, where no mean differs from zero, or where the data
        contradict a ratio above zero.
    """
    R = len(above)
    if R < 2:
        return UNKNOWN
    means = torch.stack([above.mean(), below.mean()]).double()
    spread = torch.cov(torch.stack([above, below]).double()) / R
    t = standard_errors(R - 1) ** 2
    c, b, a = (float(means[i] * means[j] - t * spread[i, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
    root = b * b - a * c
    if root < 0 or (a <= 0 and c <= 0):
        return UNKNOWN
    ends = sorted((b + sign * math.sqrt(root)) / a for sign in (-1, 1)) if a else [c / (2 * b), math.inf]
    low, high = (ends[0], ends[1]) if a > 0 else (ends[1], math.inf)
    if high <= 0:
        return UNKNOWN
    value = float(means[0] / means[1]) if means[1] > 0 else math.inf
    error = float((spread[0, 0] - 2 * value * spread[0, 1] + value**2 * spread[1, 1]).clamp_min(0).sqrt() / means[1])
    return Interval(value, error if means[1] > 0 else math.nan, max(low, 0.0), high)


def pooled_slope(x: Tensor, y: Tensor, group: Tensor) -> Interval:
    """Least squares ``y = c_group + p x`` over independent points: p, with errors by size.

    With ``a_i = x_i / sum x^2`` (x centred in every group), residuals ``e_i`` and leverages ``h_i``, the error is
    ``sum a_i^2 e_i^2 / (1 - h_i)`` (HC2): every x scatters in its own way, and what is not linear counts as noise. The
    points of one x make one part of that sum, with ``sum (1 - h_i)`` degrees of freedom; Student's t has those of all
    parts together (Welch and Satterthwaite).

    Returns:
        Not-a-number where nothing is left to tell the noise by: too few points, or a slope that hangs on one of them.

    Source: MacKinnon & White 1985; Welch 1947.
    """
    _, index = group.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    count = torch.bincount(index).to(torch.float64)

    def centred(values: Tensor) -> Tensor:
        return values - (torch.bincount(index, values) / count)[index]

    across, up = centred(x.double()), centred(y.double())
    spread = float(across.square().sum())
    if len(x) - len(count) - 1 < 1 or spread == 0:
        return UNKNOWN
    value = float(across @ up) / spread
    left = 1 - 1 / count[index] - across.square() / spread  # 1 - h
    weighty = across.abs() > _NOTHING * across.abs().max()
    if bool((left[weighty] < _NOTHING).any()):
        return UNKNOWN
    parts = (across / spread * (up - value * across)).square() / left.clamp_min(_NOTHING)
    sizes = [weighty & (x == place) for place in sorted(set(x[weighty].tolist()))]
    variance, freedom = satterthwaite([(float(parts[size].sum()), float(left[size].sum())) for size in sizes])
    return student(value, math.sqrt(variance), max(1.0, freedom))  # no sum of squares has fewer


def log_slope(x: Sequence[float], y: Tensor) -> Tensor:
    """The exponent p of ``y ~ x**p``, least squares in logarithms, for ``y`` [..., points]."""
    log_x = torch.tensor(x, dtype=torch.float64, device="cpu").log()
    centred = log_x - log_x.mean()
    return (y.double().log() * centred).sum(-1) / centred.square().sum()
