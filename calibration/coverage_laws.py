"""Draws of coverage from sweeps: the law of size, best learning rates, their drift, and regret.

Losses are drawn from laws that are known; the fits and the intervals are the library's.

Losses against size have the floor, the terms and the scatter of networks on digits
(docs/sweeps.md), on grids and with numbers of seeds as people have them. Losses against the rate
fall steeply to the left of the best one, as those of ``nfd transfer`` on digits do; seeds differ in
their best rate, in their level, in noise that grows towards the edge of stability, and in where
that edge lies. A network beyond it diverges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import nfd
from calibration.coverage import Draw, Outcome, outcome
from nfd.core.estimates import Interval
from nfd.laws.best_rate import Scores, rounded
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import drift

Array = NDArray[np.float64]
Random = np.random.Generator


def stream(g: torch.Generator) -> Random:
    """NumPy's random numbers of a repetition."""
    return np.random.default_rng(g.initial_seed())


# ---- the law of size

# The law of networks on digits.
FLOOR = 0.735
A = 11.0
B = 0.75
GRIDS = {"3 x 3": ((64, 128, 256), (4, 8, 16)), "4 x 5": ((64, 128, 256, 512), (4, 8, 16, 32, 64))}
SEEDS = (2, 3, 6)


@dataclass(frozen=True)
class Sizes:
    """What the losses of a grid are drawn from.

    Attributes:
        scatter: the standard deviation at width 64.
        slope: the power of the width that the variance falls with.
        common: the share of that variance that all sizes of a seed have in common.
        of_width: the share that all sizes of a seed and one width have in common.
        powers: of width and depth, with which the loss falls.
        bend: terms of second order are up to this share of terms of first order at the smallest
            size, of either sign.
    """

    scatter: float = 0.0875
    slope: float = 1.0
    common: float = 0.0
    of_width: float = 0.0
    powers: tuple[float, float] = (1.0, 1.0)
    bend: float = 0.5

    def law(self, grid: str, random: Random) -> Callable[[float, float], float]:
        """The true mean loss of a size."""
        (n0, *_), (L0, *_) = GRIDS[grid]
        first = np.array([A / n0, B / L0])
        p, q = self.powers
        bends = random.uniform(-self.bend, self.bend, 3) * [*first, first.mean()]

        def loss(n: float, L: float) -> float:
            wide = n0 / n
            deep = L0 / L
            return float(
                FLOOR + first @ [wide**p, deep**q] + bends @ [wide**2, deep**2, wide * deep]
            )

        return loss

    def rows(
        self, grid: str, seeds: int, law: Callable[[float, float], float], random: Random
    ) -> list[dict[str, Any]]:
        """A table of runs, whose sizes share their seeds where they share noise."""
        widths, depths = GRIDS[grid]
        rows = list[dict[str, Any]]()
        shared = self.common + self.of_width
        independent = 1 - self.common - self.of_width
        common = math.sqrt(self.common) * random.normal(size=seeds)
        for n in widths:
            of_width = math.sqrt(self.of_width) * random.normal(size=seeds)
            for L in depths:
                noise = common + of_width + math.sqrt(independent) * random.normal(size=seeds)
                losses = law(n, L) + self.scatter * (64 / n) ** (self.slope / 2) * noise
                first_seed = 0 if shared else 10**6 * n + 10**3 * L
                for seed, loss in enumerate(losses, first_seed):
                    rows.append({"width": n, "depth": L, "loss": loss, "seed": seed})
        return rows


CASES = {
    "seeds of its own at each size": Sizes(),
    "shared seeds, correlation 0.7": Sizes(common=0.7),
    "shared seeds, correlation 0.36, at equal width 0.72": Sizes(common=0.36, of_width=0.36),
    "the same, equal noise at all sizes": Sizes(
        scatter=0.06, slope=0.0, common=0.36, of_width=0.36
    ),
    "shared seeds, width power 1.5": Sizes(common=0.36, powers=(1.5, 1.0), bend=0.0),
    "little noise, width power 0.75": Sizes(
        scatter=0.025, common=0.36, powers=(0.75, 1.0), bend=0.0
    ),
    "little noise, powers 1.5 and 0.75": Sizes(scatter=0.025, powers=(1.5, 0.75), bend=0.0),
}


def sizes(grid: str, seeds: int, about: str, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the floor, and the mean loss of a network four times as wide and deep.

    A law that is refused gives no outcome.
    """
    random = stream(g)
    widths, depths = GRIDS[grid]
    case = f"{grid}, {seeds} seeds, {about}"
    truth = CASES[about].law(grid, random)
    fitted = nfd.fit_scaling_law(CASES[about].rows(grid, seeds, truth, random))
    far = (4 * widths[-1], 4 * depths[-1])
    if fitted.law.good:
        yield outcome("law of size: floor", case, fitted.floor, FLOOR)
        yield outcome("law of size: larger networks", case, fitted.at(*far), truth(*far))


LAWS: tuple[Draw, ...] = tuple(partial(sizes, *case) for case in product(GRIDS, SEEDS, CASES))


# ---- best rates

GUESS = math.log(10)
BEST_LOSS = 0.5
# Rates are tried by factors of sqrt(2).
STEP = 0.5
RATES = 7
# Rates of a drawn curve, of which a sweep sees those that it asks for.
_GRID = 23


@dataclass(frozen=True)
class Curve:
    """Loss against log2 of the rate, from the lowest point of a single network without noise.

    ``left (4 sqrt(1 + u^2 / 2) - 4)`` to the left (a parabola near 0, then a line), ``right u^2``
    to the right, and divergence beyond ``cliff``, which varies by ``blur`` over seeds. ``straight``
    makes the left a parabola too.
    """

    left: float
    right: float
    cliff: float = math.inf
    blur: float = 0.25
    straight: bool = True

    def losses(self, rate: Array, random: Random, seeds: Seeds) -> Array:
        """Losses ``[S, E]`` at log2 rates, infinite where a network diverges.

        The rates broadcast against ``[S, E]``.
        """
        u = rate - seeds.shift
        left = 4 * (np.sqrt(1 + u * u / 2) - 1) if self.straight else u * u
        calm = BEST_LOSS + np.where(u < 0, self.left * left, self.right * u * u)
        room = np.maximum(self.cliff + self.blur * seeds.edge - rate, 0.0)
        noise = 0.1 * (1 + 1.5 * np.exp(-room / 0.4)) * random.normal(size=u.shape)
        return np.where(room > 0, calm * np.exp(noise + 0.08 * seeds.level), np.inf)


@dataclass(frozen=True)
class Seeds:
    """What is common to all rates of a seed, ``[S, 1]``."""

    shift: Array
    level: Array
    edge: Array

    @classmethod
    def drawn(cls, random: Random, count: int) -> Seeds:
        shift, level, edge = random.normal(size=(3, count, 1))
        return cls(0.15 * shift, level, edge)


CURVES = {
    "parabola": Curve(0.1, 0.1, straight=False),
    "steep to the left": Curve(0.25, 0.1),
    "steep to the right": Curve(0.1, 1.5),
    "divergence at 1.4 times": Curve(0.25, 0.1, 0.5),
    "divergence at 1.5 times": Curve(0.25, 0.1, math.log2(1.5)),
    "divergence at 2 times": Curve(0.25, 0.1, 1.0),
    "divergence at 4 times": Curve(0.25, 0.1, 2.0),
    "steeper, divergence at 2 times": Curve(0.4, 0.2, 1.0),
}
SEEDS_OF_RATES = (2, 4, 8)
# The steps of coarser grids in doublings, by the factor between two rates.
FACTORS = {2: 1.0, 4: 2.0}
COARSE = ("parabola", "steep to the left", "steep to the right", "divergence at 1.4 times")
# log2 of the best rate of a small network over that of a large one.
APART = 0.0, 0.5, 1.0
# Curves of drifts and regrets.
COMPARED = ("steep to the left", "divergence at 1.5 times", "divergence at 2 times")


def population(curve: Curve, rate: Array, seeds: int = 4000) -> Array:
    """Scores ``[seeds, E]`` of many networks, with the same noise at every rate."""

    class Same:
        def normal(self, size: tuple[int, ...]) -> Array:
            return np.random.default_rng(1).normal(size=(size[0], 1))

    drawn = Seeds.drawn(np.random.default_rng(0), seeds)
    return np.minimum(curve.losses(rate[None], Same(), drawn), GUESS)  # type: ignore[arg-type]


@cache
def best_rate(curve: Curve) -> float:
    """Where the geometric mean of the score over all seeds is lowest."""
    rate = np.linspace(-1.0, 1.0, 101)
    y = np.log(population(curve, rate)).mean(0)
    near = slice(max(0, int(y.argmin()) - 5), int(y.argmin()) + 6)
    fine = np.linspace(rate[near][0], rate[near][-1], 2001)
    return float(fine[np.polyval(np.polyfit(rate[near], y[near], 3), fine).argmin()])


def sweep(
    curve: Curve, seeds: Seeds, random: Random, best: float = 0.0, step: float = STEP
) -> Scores:
    """Draw scores on a grid that begins anywhere around the best learning rate.

    It is extended as ``nfd transfer`` extends it.
    """
    places = np.arange(_GRID) - _GRID // 2 + random.uniform(-0.5, 0.5)
    rate: Array = np.asarray(best + step * places, np.float64)
    drawn = curve.losses(np.asarray(rate[None] - best, np.float64), random, seeds)
    first = _GRID // 2 - RATES // 2 + int(random.integers(-1, 2))
    last = first + RATES
    while True:
        losses = drawn[:, first:last]
        scores = Scores(rate[first:last], losses, ~np.isfinite(losses), GUESS)
        if not scores.edge or first < 2 or last > _GRID - 2:
            return scores
        if scores.edge < 0:
            first -= 2
        else:
            last += 2


def rates(name: str, count: int, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the best learning rate of a curve by so many seeds.

    For the curves of ``COMPARED``, draw also its drift over sizes, and what a small network's rate
    costs.
    """
    random = stream(g)
    curve = CURVES[name]
    seeds = Seeds.drawn(random, count)
    case = f"{name}, {count} seeds"
    grids = {"": STEP}
    if name in COARSE:
        grids |= {f", rates by factors of {k}": step for k, step in FACTORS.items()}
    for words, step in grids.items():
        scores = sweep(curve, seeds, random, step=step)
        if scores.has_optimum:
            yield outcome("best rate", f"{case}{words}", scores.optimum(), best_rate(curve))
    if name not in COMPARED:
        return
    moved = {(32, 2**k): sweep(curve, seeds, random, -0.5 * k) for k in (2, 3, 4)}
    drifted = drift(moved, "depth")
    assert drifted is not None
    yield outcome("drift of the best rate", case, drifted, -0.5)
    for apart in APART:
        small = sweep(curve, seeds, random, apart)
        large = sweep(curve, seeds, random)
        measured, truth = regret(curve, random, small, large)
        yield outcome("regret", f"{case}, best rates {2**apart:.1f} times apart", measured, truth)


DRAWS: tuple[Draw, ...] = tuple(partial(rates, *case) for case in product(CURVES, SEEDS_OF_RATES))

_FINE = np.linspace(-4.0, 4.0, 321)


@cache
def _means(curve: Curve) -> Array:
    """The mean score of all networks at fine rates."""
    parts = [population(curve, part).mean(0) for part in np.split(_FINE, [80, 160, 240])]
    return np.asarray(np.concatenate(parts))


def regret(curve: Curve, random: Random, small: Scores, large: Scores) -> tuple[Interval, float]:
    """The regret of the best learning rates of a sweep, and its truth: the mean over all networks.

    Args:
        small, large: scores by which these rates are chosen. The large network has this curve.
    """
    pair = np.log2([rounded(small.best()), rounded(large.best())])
    new = Seeds.drawn(random, 2 * len(large.losses))
    drawn = curve.losses(pair[None], random, new)
    scores = Scores(pair, drawn, ~np.isfinite(drawn), GUESS)
    truth = np.interp(pair, _FINE, _means(curve))
    return Regret(scores, large).loss, float(truth[0] - truth[1])
