"""The law of size: what a trained network of width n and depth L loses against one without end, and its fit.

``loss(n, L) = floor + a / n + b / L`` for large n and L: the floor is the loss of the infinite network trained the
same way, ``a / n`` and ``b / L`` the first corrections of the limits in width and depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nfd.core.errors import InputError, check_count
from nfd.core.statistics import Interval, combined, satterthwaite


@dataclass(frozen=True)
class Cell:
    """One size of the grid.

    Attributes:
        losses: of its seeds.
        deviation: standard deviation of one network there, smoothed over the grid.
        fitted: loss of the law.
        pull: change of floor, a and b per change of the mean loss here.
    """

    width: int
    depth: int
    losses: tuple[float, ...]
    deviation: float
    fitted: float
    pull: tuple[float, float, float]

    @property
    def mean(self) -> float:
        """Mean loss over the seeds."""
        return sum(self.losses) / len(self.losses)

    @property
    def variance(self) -> float:
        """Variance of the loss of one network, from these seeds alone."""
        return sum((loss - self.mean) ** 2 for loss in self.losses) / (len(self.losses) - 1)


@dataclass(frozen=True)
class Noise:
    """The variance of one network's loss, ``log var = c . (1, log n, log L)``, and the covariance of c."""

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def at(self, width: float, depth: float) -> tuple[float, float]:
        """The variance at a size and the degrees of freedom that it is known with."""
        z = np.array([1.0, math.log(width), math.log(depth)])
        return math.exp(float(z @ self.coefficients)), 2 / float(z @ np.array(self.covariance) @ z)


@dataclass(frozen=True)
class Law:
    """``loss(n, L) = floor + a / n + b / L`` as fitted; 95 % intervals, given that the law holds.

    Terms of higher order that the noise hides still bend what is extrapolated: see whether the floor stays when the
    smallest sizes are left out, or whether ``nfd.predict(..., eval_targets=...)`` finds the same.

    Attributes:
        floor, a, b: the law.
        chi2, freedom, p_value: misfit, expected to be ``freedom`` from the noise of the seeds alone, and the chance
            of more.
        widths, depths: that were fitted, ascending.
        seeds: the fewest of any size.
        correlation: mean over pairs of sizes, of losses with the same place in the list of seeds; not-a-number
            where sizes have different numbers of seeds.
        paired: whether that correlation was reckoned with.
        good: whether it may be extrapolated: p_value at least 0.01, and three widths and depths to tell by.
        note: why not, and what was left out; empty if nothing.
        cells, noise: what the intervals are made of.
    """

    floor: Interval
    a: Interval
    b: Interval
    chi2: float
    freedom: int
    p_value: float
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    seeds: int
    correlation: float
    paired: bool
    good: bool
    note: str
    cells: tuple[Cell, ...] = field(repr=False)
    noise: Noise = field(repr=False)

    def loss(self, width: float, depth: float) -> Interval:
        """The mean loss of networks of a size; either may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        return self._at(1.0, width, depth)

    def excess(self, width: float, depth: float) -> Interval:
        """``a / n + b / L``: all that any further growth can buy. Raises as ``loss`` does."""
        return self._at(0.0, width, depth)

    def network(self, width: int, depth: int, networks: int = 1) -> Interval:
        """What the mean loss of this many new networks of a size will be, with a 95 % prediction interval.

        The error of the law and the noise of the networks, which is extrapolated like the law. Raises as ``loss``.
        """
        width, depth = check_count("width", width), check_count("depth", depth)
        law = self.loss(width, depth)
        _, freedom = spread(self.cells, (1.0, 1 / width, 1 / depth), self.paired)
        variance, known = self.noise.at(width, depth)
        return combined(law.value, [(law.stderr**2, freedom), (variance / check_count("networks", networks), known)])

    def __str__(self) -> str:
        test = f"chi2 {self.chi2:.1f} of {self.freedom} degrees of freedom, p = {self.p_value:.2g}"
        return f"floor {self.floor}, a {self.a}, b {self.b}; {test}. {self.note}".strip()

    def _at(self, floor: float, width: float, depth: float) -> Interval:
        self._allow(width, depth)
        direction = (floor, 1 / width, 1 / depth)
        value = sum(d * part.value for d, part in zip(direction, (self.floor, self.a, self.b), strict=True))
        return combined(value, [spread(self.cells, direction, self.paired)])

    def _allow(self, width: float, depth: float) -> None:
        for name, size, fitted in (("width", width, self.widths), ("depth", depth, self.depths)):
            if not size >= 1:
                raise InputError(f"{name} must be at least 1; got {size}.")
            if not self.good and not fitted[0] <= size <= fitted[-1]:
                raise InputError(
                    f"{name} must be within {fitted[0]}..{fitted[-1]}, what was fitted; got {size}. This law may not "
                    f"be extrapolated: {self.note}"
                )


# ---- intervals -----------------------------------------------------------------------------------------------


def spread(cells: Sequence[Cell], direction: Any, paired: bool) -> tuple[float, float]:
    """Variance of ``direction . (floor, a, b)`` and its degrees of freedom."""
    pull = [float(np.dot(direction, cell.pull)) for cell in cells]
    if paired:
        each = np.array(pull) @ np.array([cell.losses for cell in cells])
        return float(each.var(ddof=1)) / len(each), float(len(each) - 1)
    seen = sum(p**2 * c.variance / len(c.losses) for p, c in zip(pull, cells, strict=True))
    parts = [(p**2 * c.deviation**2 / len(c.losses), len(c.losses) - 1) for p, c in zip(pull, cells, strict=True)]
    smoothed, freedom = satterthwaite(parts)
    return max(seen, smoothed), freedom
