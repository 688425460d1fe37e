"""Estimates from replicates: samples are ``[R, ...]``, one per independent run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor


def rms(values: Tensor) -> float:
    """Root mean square over every entry; not-a-number if any is."""
    return float(values.square().mean().sqrt())


def stderr(samples: Tensor) -> Tensor:
    """Standard error of the mean over replicates."""
    return samples.std(0) / math.sqrt(len(samples))


@dataclass(frozen=True)
class Size:
    """RMS of a mean beyond what its noise explains, and that noise, RMS of the standard errors."""

    value: float
    noise: float


def size(mean: Tensor, error: Tensor) -> Size:
    """``sqrt(max(0, rms(mean)^2 - rms(error)^2))`` with its noise; not-a-number propagates."""
    total, noise = rms(mean), rms(error)
    return Size(math.sqrt(total**2 - noise**2) if not total <= noise else 0.0, noise)


def size_of_mean(samples: Tensor) -> Tensor:
    """RMS over entries of the mean of ``samples``, free of its noise: ``sqrt(max(0, .))`` of products of different
    replicates, whose expectation is the square of the mean."""
    R = len(samples)
    squared = (samples.sum(0).square() - samples.square().sum(0)) / (R * (R - 1))
    return squared.mean().clamp_min(0).sqrt()


def jackknife(samples: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """``f`` of the replicates, and its standard error from leaving out one after another."""
    R = len(samples)
    left_out = torch.stack([f(torch.cat([samples[:r], samples[r + 1 :]])) for r in range(R)])
    spread = (left_out - left_out.mean(0)).square().sum(0) * (R - 1) / R
    return f(samples), torch.sqrt(spread)


@dataclass(frozen=True)
class Interval:
    """A number with its standard error and 95 % interval; prints as ``+1.2 [+1.1, +1.3]``."""

    value: float
    stderr: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 2 if not self.stderr > 0 else max(2, 1 - math.floor(math.log10(self.stderr)))
        return f"{self.value:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"


def interval(samples: Tensor, f: Callable[[Tensor], Tensor]) -> Interval:
    """The scalar ``f`` of the replicates, its jackknife error, and 95 % limits by Student's t with R - 1 degrees."""
    value, error = (float(x) for x in jackknife(samples, f))
    half = float(stats.t.ppf(0.975, len(samples) - 1)) * error
    return Interval(value, error, value - half, value + half)


def log_slope(x: Sequence[float], y: Tensor) -> Tensor:
    """The exponent p of ``y ~ x**p``, least squares in logarithms, for ``y`` [..., points]."""
    log_x = torch.tensor(x, dtype=torch.float64).log()
    centred = log_x - log_x.mean()
    return (y.double().log() * centred).sum(-1) / centred.square().sum()
