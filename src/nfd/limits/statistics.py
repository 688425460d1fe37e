"""Estimates from replicates: samples are ``[R, ...]``, one per independent run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
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


def jackknife(samples: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """``f`` of the mean over replicates, and its standard error by the jackknife."""
    R = len(samples)
    left_out = f((samples.sum(0) - samples) / (R - 1))
    spread = (left_out - left_out.mean(0)).square().sum(0) * (R - 1) / R
    return f(samples.mean(0)), torch.sqrt(spread)
