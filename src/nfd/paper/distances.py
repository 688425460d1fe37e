"""Distances between groups of networks, without what the noise of their means adds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nfd.core import Interval, interval, satterthwaite, squared_size, standard_errors, stderr, systematic_squares


def squared_apart(first: Tensor, second: Tensor) -> Tensor:
    """``squared_size`` of the difference of the means of two independent groups of replicates."""
    error = (stderr(first).square() + stderr(second).square()).sqrt()
    return squared_size(first.mean(0) - second.mean(0), error)


def systematic(differences: Tensor) -> Tensor:
    """RMS [points] of mean differences [R, points, ...], noise subtracted."""
    return systematic_squares(differences).clamp_min(1e-12).sqrt()


def distance(first: Tensor, second: Tensor) -> Interval:
    """RMS over entries of the difference of two groups [R, K] of means, noise subtracted, over the RMS of the second.

    The interval is that of the square, cut off at zero.
    """
    square = interval(lambda a, b: squared_apart(a, b) / _scale(b), first, second)
    return beyond(square, float(_scale(second)), first, second)


def relative(differences: Tensor, outputs: Tensor) -> Interval:
    """RMS over entries of mean paired differences [R, K], noise subtracted, over the RMS of the outputs [R, K] of the
    same runs."""

    def square(pairs: Tensor) -> Tensor:
        difference, output = pairs.unbind(1)
        return squared_size(difference.mean(0), stderr(difference)) / _scale(output)

    both = torch.stack([differences, outputs], 1)
    return beyond(interval(square, both), float(_scale(outputs)), differences)


def _scale(outputs: Tensor) -> Tensor:
    """Mean square of mean outputs [R, K]."""
    return outputs.mean(0).square().mean()


def beyond(square: Interval, scale: float, *samples: Tensor) -> Interval:
    """The root of a mean square over a scale, from which the noise of the samples [R, K] was taken, cut off at zero.

    The jackknife sees what is linear in the noise; what is quadratic, ``sqrt(2) noise`` if all entries err together,
    counts besides, so that a difference of nothing is not known better than its noise.
    """
    noise, freedom = satterthwaite((float(stderr(s).square().mean()) / scale, len(s) - 1) for s in samples)
    error = math.sqrt(2) * noise
    more = standard_errors(freedom) * error
    low, high = (math.hypot(limit - square.value, more) for limit in (square.low, square.high))
    error = math.hypot(square.stderr, error)
    return Interval(square.value, error, square.value - low, square.value + high).root()
