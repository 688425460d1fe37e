"""Numbers with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc, stdtrit

_FINEST = 1e-3  # of a number: no finer digits are printed, however small its error


@dataclass(frozen=True)
class Interval:
    """A number with its standard error and 95 % interval; prints as ``+1.2 [+1.1, +1.3]``, or ``unknown``.

    Attributes:
        value, stderr: the number and its standard error. low, high: the interval. All not-a-number if unknown.
    """

    value: float
    stderr: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        noise = max(self.stderr, _FINEST * abs(self.value))
        known = math.isfinite(self.stderr) and math.isfinite(noise) and noise > 0
        digits = min(max(2, 1 - math.floor(math.log10(noise))), 12) if known else 2
        return f"{self.value:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    @property
    def unsigned(self) -> str:
        """The same text without plus signs, for numbers that cannot be negative."""
        return str(self).replace("+", "")

    @property
    def resolved(self) -> bool:
        """Whether the number differs significantly from zero: the interval excludes it. False for not-a-number."""
        return self.low > 0 or self.high < 0

    @property
    def limits(self) -> dict[str, float]:
        """A dict with ``value``, ``stderr``, ``low`` and ``high``, for a table."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def minus(self, other: Interval) -> Interval:
        """The difference of two independent numbers, its limits recovered from theirs (Zou & Donner 2008)."""
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
        value, low, high = (math.sqrt(v) if not v <= 0 else 0.0 for v in (self.value, self.low, self.high))
        return Interval(value, self.stderr / (2 * value) if value > 0 else math.nan, low, high)


UNKNOWN = Interval(math.nan, math.nan, math.nan, math.nan)


def standard_errors(freedom: float, level: float = 0.025) -> float:
    """Half the length of an interval in standard errors, by Student's t with these degrees of freedom; ``level`` is the
    probability beyond one end."""
    return float(stdtrit(freedom, 1 - level))


def f_tail(ratio: float, above: float, below: float) -> float:
    """The chance of a larger ratio of two mean squares with these degrees of freedom, by Fisher's F."""
    return float(fdtrc(above, below, max(ratio, 0.0)))


def student(value: float, error: float, freedom: float, level: float = 0.025) -> Interval:
    """A number with this standard error, and 95 % limits by Student's t with these degrees of freedom."""
    half = standard_errors(freedom, level) * error
    return Interval(value, error, value - half, value + half)


def combined(value: float, parts: Iterable[tuple[float, float]], level: float = 0.025) -> Interval:
    """A number whose error adds up independent variances, each with its degrees of freedom, and 95 % limits.

    By Student's t with ``(sum v)^2 / sum (v^2 / f)`` degrees of freedom (Welch and Satterthwaite).
    """
    variance, freedom = satterthwaite(parts)
    return student(value, math.sqrt(variance), freedom, level)


def satterthwaite(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent variances and its degrees of freedom, from each with its own; infinitely many for zero."""
    terms = list(parts)
    variance, below = sum(v for v, _ in terms), sum(v * v / f for v, f in terms)
    return variance, variance * variance / below if below > 0 else math.inf


def mean(samples: ArrayLike) -> Interval:
    """The mean of independent samples [R] with its interval; the error of a single sample is not-a-number."""
    own = np.asarray(samples, dtype=np.float64)
    if len(own) == 1:
        return Interval(float(own[0]), math.nan, math.nan, math.nan)
    return student(float(own.mean()), float(own.std(ddof=1)) / math.sqrt(len(own)), len(own) - 1)


def share(count: float, total: float) -> Interval:
    """``count`` of ``total`` with Wilson's 95 % interval."""
    z, p = standard_errors(math.inf), count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return Interval(p, math.sqrt(p * (1 - p) / total), middle - half, middle + half)
