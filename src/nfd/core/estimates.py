"""Numbers with 95 % intervals, and estimates from replicates.

Replicates are tensors ``[R, ...]``, one sample for each independent training run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc, stdtrit

from nfd.core.words import alike

if TYPE_CHECKING:  # laws are fitted to logs without loading PyTorch
    from torch import Tensor

# ---- Numbers with 95 % intervals


# Probability beyond one end of a 95 % interval
LEVEL = 0.025
_FINEST = 1e-3  # of a number: no finer digits are printed, however small its error


@dataclass(frozen=True)
class Interval:
    """A number with its standard error and 95 % interval.

    It prints as ``+1.2 [+1.1, +1.3]``, or ``unknown``.

    Attributes:
        value, stderr: the number and its standard error. low, high: the interval. All not-a-number
            if unknown.
    """

    value: float
    stderr: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        noise = max(self.stderr, _FINEST * abs(self.value))
        digits = 2
        if math.isfinite(self.stderr) and math.isfinite(noise) and noise > 0:
            digits = min(max(2, 1 - math.floor(math.log10(noise))), 12)
        if math.isnan(self.low) or math.isnan(self.high):
            return f"{self.value:+.{digits}f} [interval unknown]"
        return f"{self.value:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    def in_words(self, unit: str = "", limit: float | None = None) -> str:
        """The number with its interval in words: ``0.0054 (95 %: 0.0037 to 0.0080)``.

        Args:
            unit: written after the number and after the interval, such as ``" nats"``.
            limit: an end of the interval is never rounded to it (``words.alike``).
        """
        if math.isnan(self.value):
            return "unknown"
        value, _, _ = alike(self.value, self.low, self.high, limit)
        span = self.limits_in_words(unit, limit)
        return f"{value}{unit} ({span})" if span else f"{value}{unit}"

    def limits_in_words(self, unit: str = "", limit: float | None = None) -> str:
        """The interval in words: ``95 %: 0.0037 to 0.0080``; empty where it is unknown."""
        if math.isnan(self.low) or math.isnan(self.high):
            return ""
        _, low, high = alike(self.value, self.low, self.high, limit)
        return f"95 %: {low} to {high}{unit}"

    @property
    def unsigned(self) -> str:
        """The same text without plus signs, for numbers that cannot be negative."""
        return str(self).replace("+", "")

    @property
    def resolved(self) -> bool:
        """Whether the number differs significantly from zero.

        The interval then excludes zero. It is False for not-a-number.
        """
        return self.low > 0 or self.high < 0

    @property
    def limits(self) -> dict[str, float]:
        """A dict with ``value``, ``low`` and ``high``, for a table."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def minus(self, other: Interval) -> Interval:
        """Subtract an independent number; limits are recovered from both (Zou & Donner 2008)."""
        value = self.value - other.value
        low = value - math.hypot(self.value - self.low, other.high - other.value)
        high = value + math.hypot(self.high - self.value, other.value - other.low)
        return Interval(value, math.hypot(self.stderr, other.stderr), low, high)

    def scaled(self, factor: float) -> Interval:
        """The interval of the number times ``factor``, which is positive."""
        return Interval(*(factor * v for v in (self.value, self.stderr, self.low, self.high)))

    def exp(self) -> Interval:
        """The interval of the exponential of a logarithm; error by the delta method."""
        value, low, high = (math.exp(v) for v in (self.value, self.low, self.high))
        return Interval(value, value * self.stderr, low, high)

    def root(self) -> Interval:
        """The interval of the square root, cut off at zero; error by the delta method."""
        value, low, high = (_root(v) for v in (self.value, self.low, self.high))
        stderr = self.stderr / (2 * value) if value > 0 else math.nan
        return Interval(value, stderr, low, high)


def _root(square: float) -> float:
    """Return ``sqrt(max(0, square))``; not-a-number propagates."""
    return 0.0 if square <= 0 else math.sqrt(square)


UNKNOWN = Interval(math.nan, math.nan, math.nan, math.nan)


def standard_errors(freedom: float, level: float = LEVEL) -> float:
    """Return half the length of an interval in standard errors.

    By Student's t with these degrees of freedom; ``level`` is the probability beyond one end.
    """
    return float(stdtrit(freedom, 1 - level))


def f_tail(ratio: float, above: float, below: float) -> float:
    """Return the chance of a larger ratio of two mean squares, by Fisher's F.

    The mean squares have these degrees of freedom.
    """
    return float(fdtrc(above, below, max(ratio, 0.0)))


def student(value: float, error: float, freedom: float, level: float = LEVEL) -> Interval:
    """Return a number with this standard error, and 95 % limits by Student's t."""
    half = standard_errors(freedom, level) * error
    return Interval(value, error, value - half, value + half)


def combined(value: float, parts: Iterable[tuple[float, float]], level: float = LEVEL) -> Interval:
    """Return a number whose error adds up independent variances, with its 95 % limits.

    Each variance has its degrees of freedom.

    By Student's t with ``(sum v)^2 / sum (v^2 / f)`` degrees of freedom (Welch and Satterthwaite).
    """
    variance, freedom = satterthwaite(parts)
    return student(value, math.sqrt(variance), freedom, level)


def satterthwaite(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of independent variances and its degrees of freedom.

    Each variance has its own; the sum has infinitely many if it is zero.
    """
    terms = list(parts)
    variance = sum(v for v, _ in terms)
    below = sum(v * v / f for v, f in terms)
    if below > 0:
        return variance, variance * variance / below
    return variance, math.inf


def half_lengths(parts: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return standard errors, and half the lengths of 95 % intervals, as ``combined`` does.

    Each part is a tensor of variances, of one shape, with the degrees of freedom that they have.
    """
    import torch

    variance = torch.stack([v for v, _ in parts]).sum(0)
    below = torch.stack([v * v / f for v, f in parts]).sum(0)
    freedom = torch.where(below > 0, variance * variance / below, math.inf)
    reach = torch.from_numpy(np.asarray(stdtrit(freedom.cpu().numpy(), 1 - LEVEL)))
    error = variance.sqrt()
    return error, reach.to(error) * error


def mean(samples: ArrayLike) -> Interval:
    """Return the mean of independent samples [R] with its interval.

    The error of a single sample is not-a-number.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) == 1:
        return Interval(float(values[0]), math.nan, math.nan, math.nan)
    return student(
        float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1
    )


def share(count: float, total: float) -> Interval:
    """Return the share ``count`` of ``total`` with its 95 % interval (Wilson 1927).

    The interval has a width even at none or all.
    """
    z = standard_errors(math.inf)
    value = count / total
    middle = (value + z * z / (2 * total)) / (1 + z * z / total)
    half = (
        z
        / (1 + z * z / total)
        * math.sqrt(value * (1 - value) / total + z * z / (4 * total * total))
    )
    return Interval(value, math.sqrt(value * (1 - value) / total), middle - half, middle + half)


# ---- Estimates from replicates


def rms(values: Tensor) -> float:
    """Root mean square over every entry, in 32 bits or more; not-a-number if any is."""
    wide = values if values.dtype.itemsize > 4 else values.float()
    return float(wide.square().mean().sqrt())


def stderr(samples: Tensor) -> Tensor:
    """Standard error of the mean over replicates."""
    R = len(samples)
    # 15 times as fast as std(0)
    return (samples - samples.mean(0)).square().sum(0).div(R * (R - 1)).sqrt()


def squared_size(mean: Tensor, error: Tensor) -> Tensor:
    """Return the mean square over entries less the mean square of the noise.

    ``mean(mean^2 - error^2)`` is unbiased, and negative at times.
    """
    return (mean.square() - error.square()).mean()


def squared_distances(runs: Tensor, limit: Tensor) -> Tensor:
    """Measure mean squared distances [points] of single runs [S, points, ...] from a limit.

    The limit is the mean of independent replicates [R, ...]. The noise of that mean is subtracted,
    so the estimate is unbiased and may be negative.
    """
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
    return Magnitude(_root(squared), rms(error))


def systematic_squares(differences: Tensor) -> Tensor:
    """Squared sizes [points] of mean differences [R, points, ...]."""
    return (differences.mean(0).square() - stderr(differences).square()).flatten(1).mean(1)


def margin(samples: Tensor) -> Tensor:
    """Return half the length of the 95 % interval of the mean, for every entry.

    The mean is over replicates [R, ...].
    """
    return standard_errors(len(samples) - 1) * stderr(samples)


def interval(f: Callable[..., Tensor], *samples: Tensor) -> Interval:
    """The scalar ``f`` of independent groups of replicates, its jackknife error, and 95 % limits.

    By Student's t with the degrees of freedom of Welch and Satterthwaite, ``R - 1`` for a single
    group.
    """
    (only,) = intervals(lambda *s: f(*s).view(1), *samples)
    return only


def intervals(f: Callable[..., Tensor], *samples: Tensor) -> list[Interval]:
    """The same for every entry of a vector ``f``."""
    variances = zip(
        *(_jackknifed(f, samples, group).tolist() for group in range(len(samples))), strict=True
    )
    freedoms = [len(s) - 1 for s in samples]
    values = f(*samples).tolist()
    return [
        combined(value, zip(parts, freedoms, strict=True))
        for value, parts in zip(values, variances, strict=True)
    ]


def _jackknifed(f: Callable[..., Tensor], samples: Sequence[Tensor], group: int) -> Tensor:
    """The variance of ``f`` by leaving out one replicate of a group after another."""
    import torch

    R = len(samples[group])
    left_out = []
    for r in range(R):
        rest = torch.cat([samples[group][:r], samples[group][r + 1 :]])
        left_out.append(f(*samples[:group], rest, *samples[group + 1 :]))
    together = torch.stack(left_out)
    return (together - together.mean(0)).square().sum(0) * (R - 1) / R


def ratio_of_means(above: Tensor, below: Tensor) -> Interval:
    """Estimate the ratio of two means over the same independent samples [R].

    Neither mean can be negative in truth.

    The limits are those r at which ``above - r below`` has a mean that does not differ from zero by
    Student's t (Fieller 1954), cut off at zero. Where the mean below does not differ from zero, the
    ratio has only a lower limit.

    Returns:
        Not-a-number where fewer than two samples are given, where no mean differs from zero, where
        every sample below is zero, or where the data contradict a ratio above zero.
    """
    R = len(above)
    if R < 2:
        return UNKNOWN
    both = np.stack([above.double().numpy(), below.double().numpy()])
    means = both.mean(1)
    spread = np.cov(both) / R
    t = standard_errors(R - 1) ** 2
    c, b, a = (float(means[i] * means[j] - t * spread[i, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
    root = b * b - a * c
    if root < 0 or (a <= 0 and c <= 0):
        return UNKNOWN
    # The ratios r with a r^2 - 2 b r + c <= 0 are those that the data allow.
    if a == 0 and b <= 0:
        return UNKNOWN
    if a == 0:
        low = c / (2 * b)
        high = math.inf
    else:
        low, high = sorted((b + sign * math.sqrt(root)) / a for sign in (-1, 1))
    # Below zero a allows no r between its roots: above the higher one there is no end.
    if a < 0:
        low = high
        high = math.inf
    if high <= 0:
        return UNKNOWN
    if means[1] <= 0:
        return Interval(math.inf, math.nan, max(low, 0.0), high)
    value = float(means[0] / means[1])
    variance = float(spread[0, 0] - 2 * value * spread[0, 1] + value**2 * spread[1, 1])
    return Interval(value, math.sqrt(max(0.0, variance)) / float(means[1]), max(low, 0.0), high)


_NOTHING = 1e-9  # of a leverage or a weight: rounding


def pooled_slope(x: Tensor, y: Tensor, group: Tensor, level: float = LEVEL) -> Interval:
    """Least squares ``y = c_group + p x`` over independent points: p, with errors by size.

    ``level`` is the probability beyond one end of the interval.

    With ``a_i = x_i / sum x^2`` (x centred in every group), residuals ``e_i`` and leverages
    ``h_i``, the error is ``sum a_i^2 e_i^2 / (1 - h_i)`` (HC2): every x scatters in its own way,
    and what is not linear counts as noise. The points of one x make one part of that sum, with
    ``sum (1 - h_i)`` degrees of freedom; Student's t has those of all parts together (Welch and
    Satterthwaite).

    Returns:
        Not-a-number where nothing is left to tell the noise by: too few points, or a slope that
        hangs on one of them.

    Source: MacKinnon & White 1985; Welch 1947.
    """
    _, index = group.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    count = index.bincount().double()

    def centred(values: Tensor) -> Tensor:
        return values - (index.bincount(values) / count)[index]  # type: ignore[no-any-return]

    across = centred(x.double())
    up = centred(y.double())
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
    variance, freedom = satterthwaite(
        [(float(parts[size].sum()), float(left[size].sum())) for size in sizes]
    )
    # No sum of squares has fewer degrees of freedom.
    return student(value, math.sqrt(variance), max(1.0, freedom), level)


def log_slope(x: Sequence[float], y: Tensor) -> Tensor:
    """The exponent p of ``y ~ x**p``, least squares in logarithms, for ``y`` [..., points]."""
    log_y = y.double().log()
    log_x = log_y.new_tensor(x).log()
    centred = log_x - log_x.mean()
    return (log_y * centred).sum(-1) / centred.square().sum()
