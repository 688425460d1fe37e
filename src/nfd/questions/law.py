"""The law of size: what a trained network of width n and depth L loses against the infinite one, and its fit.

``loss(n, L) = floor + a / n + b / L`` for large n and L: the floor is the loss of the infinite network trained the
same way, ``a / n`` and ``b / L`` the first corrections of the limits in width and depth. Networks that can be trained
are of moderate size, where terms of second order, ``c / n^2 + d / L^2 + e / (n L)``, still bend the loss; the fit
reckons with them (``nfd.questions.law_fit``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from nfd.core.errors import InputError, check_count
from nfd.core.intervals import Interval, combined, satterthwaite

Losses = Mapping[Any, Sequence[float]]  # of runs, by their sizes
Vector = tuple[float, ...]  # of the law's coefficients: floor, a, b, c, d, e


def direction(floor: float, width: float, depth: float) -> Vector:
    """What multiplies the coefficients in the loss at a size; ``floor`` is 1, or 0 for the excess over the floor."""
    return floor, 1 / width, 1 / depth, 1 / width**2, 1 / depth**2, 1 / (width * depth)


@dataclass(frozen=True)
class Cell:
    """One size of the grid.

    Attributes:
        losses: of its seeds.
        deviation: standard deviation of one network there, smoothed over the grid.
        pull: change of every coefficient per change of the mean loss here.
    """

    width: int
    depth: int
    losses: tuple[float, ...]
    deviation: float
    pull: Vector

    @cached_property
    def mean(self) -> float:
        """Mean loss over the seeds."""
        return sum(self.losses) / len(self.losses)

    @cached_property
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
    """A fitted law of size, ``loss(n, L) = floor + a / n + b / L``, with terms of second order and 95 % intervals.

    The intervals include the noise of the seeds and the uncertainty of second order: each term of second order is taken
    to be 0, with a standard error of the terms of first order at the smallest size. If the true terms are larger, and
    the noise hides them, the floor is biased. To test this, fit without the smallest sizes, or compare with
    ``nfd.predict(..., eval_targets=...)``.

    Attributes:
        floor, a, b: the numbers of the law.
        second: c, d and e of ``c / n^2 + d / L^2 + e / (n L)``, each 0 unless it differs significantly from 0.
        chi2, freedom: misfit beyond second order, and its expectation from the noise of the seeds alone.
        bend: the largest term of second order, over what it is allowed.
        p_value: the probability of a larger misfit or of larger terms of second order if the law holds: three times the
            smallest p-value of three tests.
        widths, depths: the fitted ones, ascending.
        seeds: the smallest number of seeds of a size.
        correlation: of the losses of two sizes with the same place in the list of seeds, mean over pairs of sizes;
            not-a-number if sizes have different numbers of seeds.
        paired: whether the fit accounts for that correlation.
        good: whether the law may be extrapolated: p_value at least 0.05, and at least three widths and three depths.
        note: the reason if not, and what would settle it; the runs that were left out; otherwise empty.
        cells, doubts, noise: the parts of the intervals; ``doubts`` is the change of every coefficient per standard
            error of each term of second order.
    """

    floor: Interval
    a: Interval
    b: Interval
    second: tuple[Interval, Interval, Interval]
    chi2: float
    freedom: int
    bend: float
    p_value: float
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    seeds: int
    correlation: float
    paired: bool
    good: bool
    note: str
    cells: tuple[Cell, ...] = field(repr=False)
    doubts: tuple[Vector, ...] = field(repr=False)
    noise: Noise = field(repr=False)

    equation: ClassVar[str] = "loss = floor + a / width + b / depth"
    variables: ClassVar[tuple[str, ...]] = ("width", "depth")

    @property
    def terms(self) -> dict[str, Interval]:
        """The numbers of the law by their letters in ``equation``."""
        return {"floor": self.floor, "a": self.a, "b": self.b}

    @property
    def formula(self) -> str:
        """The law with its numbers."""
        return f"loss = {self.floor.unsigned} + ({self.a}) / n + ({self.b}) / L"

    @property
    def content(self) -> dict[str, Any]:
        """The law and its test as ``result.json`` holds them."""
        second = {name: term.limits for name, term in zip("cde", self.second, strict=True)}
        terms: dict[str, Any] = {name: term.limits for name, term in self.terms.items()}
        terms["second_order"] = second | {"bend": self.bend}
        return terms | {name: getattr(self, name) for name in ("chi2", "freedom", "p_value", "good", "note")}

    @property
    def smallest(self) -> tuple[int, int]:
        """The smallest width and depth that were fitted."""
        return self.widths[0], self.depths[0]

    @property
    def largest(self) -> tuple[int, int]:
        """The largest width and depth that were fitted."""
        return self.widths[-1], self.depths[-1]

    def loss(self, width: float, depth: float) -> Interval:
        """The mean loss of networks of a size; either may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        self._allow(width, depth)
        return self._along(direction(1.0, width, depth))

    def excess(self, width: float, depth: float) -> Interval:
        """The loss above the floor: the most that larger networks can gain. Raises as ``loss`` does."""
        self._allow(width, depth)
        return self._along(direction(0.0, width, depth))

    def bought(self, width: int, depth: int, wider: int, deeper: int) -> Interval:
        """The fall of the loss from one size to another. Raises as ``loss`` does, at either size."""
        self._allow(width, depth)
        self._allow(wider, deeper)
        sizes = zip(direction(1.0, width, depth), direction(1.0, wider, deeper), strict=True)
        return self._along(tuple(small - large for small, large in sizes))

    def network(self, width: int, depth: int, networks: int = 1) -> Interval:
        """The mean loss of this many new networks of a size, with a 95 % prediction interval.

        The interval includes the error of the law and the noise of the networks, extrapolated like the law. Raises as
        ``loss`` does.
        """
        width, depth = check_count("width", width), check_count("depth", depth)
        self._allow(width, depth)
        value, parts = self._parts(direction(1.0, width, depth))
        variance, known = self.noise.at(width, depth)
        return combined(value, [*parts, (variance / check_count("networks", networks), known)])

    def __str__(self) -> str:
        return f"floor {self.floor}, a {self.a}, b {self.b}; {self.test}. {self.note}".strip()

    @property
    def test(self) -> str:
        """The test of the law in words: its misfit, and the size of the terms of second order."""
        return (
            f"chi2 {self.chi2:.1f} of {self.freedom} degrees of freedom beyond second order, terms of second order up "
            f"to {self.bend:.1f} times what is allowed for, p = {self.p_value:.2g}"
        )

    def _along(self, along: Vector) -> Interval:
        return combined(*self._parts(along))

    def _parts(self, along: Vector) -> tuple[float, list[tuple[float, float]]]:
        """``along . coefficients`` and its variances: of the seeds and of the doubt of second order."""
        value = sum(float(np.dot(along, cell.pull)) * cell.mean for cell in self.cells)
        return value, [spread(self.cells, along, self.paired), (doubt(self.doubts, along), math.inf)]

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


def spread(cells: Sequence[Cell], along: Any, paired: bool) -> tuple[float, float]:
    """Variance of ``along . coefficients`` from the noise of the seeds, and its degrees of freedom."""
    pull: list[float] = (np.array([cell.pull for cell in cells]) @ np.array(along)).tolist()
    if paired:
        combined = np.array(pull) @ np.array([cell.losses for cell in cells])
        return float(combined.var(ddof=1)) / len(combined), float(len(combined) - 1)
    seen = sum(p**2 * c.variance / len(c.losses) for p, c in zip(pull, cells, strict=True))
    parts = [(p**2 * c.deviation**2 / len(c.losses), len(c.losses) - 1) for p, c in zip(pull, cells, strict=True)]
    smoothed, freedom = satterthwaite(parts)
    return max(seen, smoothed), freedom


def doubt(doubts: Sequence[Vector], along: Any) -> float:
    """Variance of ``along . coefficients`` from what the losses leave open of second order."""
    return sum(float(np.dot(along, change)) ** 2 for change in doubts)
