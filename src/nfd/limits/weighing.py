"""Resolution and width together: the cheapest networks that reach a wanted error, with a resolution or exact ones.

What a resolution adds, b, is measured: narrow networks have it, and others of the same seeds have none. A comparison
with a finer resolution would not do, since directions that matter can be shorter than both. R networks of width n reach
an error w where

    spread^2 / (n R) + b^2 <= w^2 .
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from nfd.core.names import NetworkWeights
from nfd.core.statistics import magnitude, stderr

RESOLUTIONS = (0.3, 0.15, 0.075)
LEAST_REPLICATES = 8  # fewer make a standard error too uncertain to use
MOST_REPLICATES = 1024


def resolution_bias(resolved: Tensor, exact: Tensor) -> float:
    """Size of what a resolution adds, or of the noise that hides it; infinite where networks diverged.

    Args:
        resolved, exact: what networks ``[R, ...]`` of the same seeds gave with it and without one.
    """
    apart = resolved - exact
    if not bool(apart.isfinite().all()):
        return math.inf
    size = magnitude(apart.mean(0), stderr(apart))
    return max(size.value, size.noise)


@dataclass(frozen=True)
class Option:
    """Networks that a limit could be made of, and what they are predicted to take.

    Attributes:
        weights, resolution: how they hold their weights; None where nothing is left out.
        width, replicates: their size and number; as many narrower ones are counted.
        sampling, bias: the standard error and what the resolution adds, in the units of what networks give.
        seconds: predicted.
    """

    weights: NetworkWeights
    resolution: float | None
    width: int
    replicates: int
    sampling: float
    bias: float
    seconds: float

    @property
    def error(self) -> float:
        """The root of the sum of both squares."""
        return math.hypot(self.sampling, self.bias)

    def __str__(self) -> str:
        kind = f"exact ({self.weights})" if self.resolution is None else f"resolution {self.resolution:g}"
        return f"{kind}: {self.replicates} networks of width {self.width:,}, {self.seconds:.2g} s"


@dataclass(frozen=True)
class Weighing:
    """The cheapest exact networks and the cheapest with a resolution; None where none reach the error."""

    exact: Option | None
    resolved: Option | None

    @property
    def chosen(self) -> Option | None:
        """The cheaper one; exact networks where both cost the same."""
        return cheapest_option((self.exact, self.resolved))

    def __str__(self) -> str:
        if self.chosen is None:
            return "Neither exact layers nor a resolution were predicted to reach the error."
        if self.chosen.resolution is None:
            other = (
                "no resolution reaches the error" if self.resolved is None else f"the best with one, {self.resolved}"
            )
            return f"No resolution saves time. Predicted for {self.exact}; {other}."
        if self.exact is None:
            return f"Predicted for {self.chosen}; exact layers do not reach the error, or were excluded."
        saved = 1 - self.chosen.seconds / self.exact.seconds
        return f"A resolution saves {saved:.0%}. Predicted for {self.chosen}; {self.exact}."


def best_option(
    weights: NetworkWeights,
    resolution: float | None,
    widths: Sequence[int],
    seconds_of: Callable[[int], float | None],
    *,
    spread: float,
    bias: float,
    wanted: float,
    replicates: int | None,
) -> Option | None:
    """The cheapest networks of one kind that reach an error; None where none does.

    Args:
        seconds_of: of a network of a width and its narrower one; None where it does not fit into memory.
        spread: standard deviation of networks times the root of their width. bias: of the resolution.
        wanted: the error. replicates: as many as that needs where None.
    """
    options = []
    for width in widths:
        seconds, spare = seconds_of(width), wanted**2 - bias**2
        if seconds is None or not spare > 0:
            continue
        count = replicates or max(LEAST_REPLICATES, math.ceil(spread**2 / (width * spare)))
        option = Option(weights, resolution, width, count, spread / math.sqrt(width * count), bias, count * seconds)
        if option.error <= wanted * (1 + 1e-9) and count <= MOST_REPLICATES:
            options.append(option)
    return cheapest_option(options)


def cheapest_option(options: Iterable[Option | None]) -> Option | None:
    """The first of the cheapest; None without any."""
    return min(filter(None, options), key=lambda option: option.seconds, default=None)
