"""How often the intervals of sweeps contain the truth: the law of size, best rates, their drift, and regret.

Losses are drawn from laws that are known; the fits and the intervals are the library's. ``laws_cover`` repeats them.

Losses against size have the floor, the terms and the scatter of networks on digits (docs/sweeps.md), and terms
of second order that are a share of those of first order at the smallest size. Losses against the rate fall steeply to
the left of the best one, as those of ``nfd transfer`` on digits do; seeds differ in their best rate, in their level, in
noise that grows towards the edge of stability, and in where that edge lies. A network beyond it diverges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nfd.core.estimates import Interval
from nfd.forecasts.law import fit_law
from nfd.rates.optimum import Scores, rounded
from nfd.rates.transfer import Regret, drift

Row = dict[str, str | int | float]
Array = NDArray[np.float64]
Random = np.random.Generator
Hit = tuple[str, str, bool]  # kind, case, whether the interval held the truth

NOMINAL = 0.95


def laws_cover(repetitions: int, seed: int) -> list[Row]:
    """Repeat every kind of interval on every case.

    Returns:
        A row per kind and case: ``kind``, ``case``, ``nominal``, ``measured`` (the share of intervals that hold the
        truth), ``error`` (its standard error) and ``count`` (of intervals; laws that are refused give none).
    """
    hits: dict[tuple[str, str], list[bool]] = {}
    random = np.random.default_rng(seed)
    truths = {case: best_rate(curve) for case, curve in CURVES.items()}
    for _ in range(repetitions):
        for kind, case, held in (*_laws(random), *_rates(random, truths)):
            hits.setdefault((kind, case), []).append(held)
    return [_row(kind, case, held) for (kind, case), held in hits.items()]


def _row(kind: str, case: str, held: list[bool]) -> Row:
    share, count = sum(held) / len(held), len(held)
    error = math.sqrt(max(share * (1 - share), 0.25 / count) / count)
    return {"kind": kind, "case": case, "nominal": NOMINAL, "measured": share, "error": error, "count": count}


def inside(found: Interval, truth: float) -> bool:
    """Whether an interval contains the truth."""
    return found.low <= truth <= found.high


# ---- the law of size -----------------------------------------------------------------------------------------

WIDTHS, DEPTHS, SEEDS = (64, 128, 256, 512), (4, 8, 16, 32, 64), 6
FLOOR, A, B, SCATTER = 0.705, 11.0, 0.75, 0.08  # of digits; the scatter is of one network of width 64
FAR, HELD_OUT = (2048, 256), (1024, 64)
BENDS: dict[str, Callable[[Random], Array]] = {
    "no second order": lambda random: np.zeros(3),
    "second order of 10 to 50 %, either sign": lambda random: (
        random.uniform(0.1, 0.5, 3) * random.choice(np.array([-1.0, 1.0]), 3)
    ),
    "second order of +50 %": lambda random: np.full(3, 0.5),
    "second order of -30 %": lambda random: np.full(3, -0.3),
    "second order of -50 %": lambda random: np.full(3, -0.5),
    "second order of -80 %": lambda random: np.full(3, -0.8),
}


def expected_loss(width: float, depth: float, bend: Array) -> float:
    """The true mean loss: terms of second order are these shares of first order at the smallest size."""
    wide, deep = WIDTHS[0] / width, DEPTHS[0] / depth
    first = A / WIDTHS[0], B / DEPTHS[0]
    second = first[0] * wide**2, first[1] * deep**2, sum(first) / 2 * wide * deep
    return float(FLOOR + first[0] * wide + first[1] * deep + bend @ np.array(second))


def losses(random: Random, bend: Array, scatter: float = SCATTER) -> dict[tuple[int, int], list[float]]:
    """Losses of a grid of networks, each of a seed of its own."""
    return {
        (n, L): (expected_loss(n, L, bend) + scatter * math.sqrt(64 / n) * random.normal(size=SEEDS)).tolist()
        for n in WIDTHS
        for L in DEPTHS
    }


def _laws(random: Random) -> Iterator[Hit]:
    for case, draw in BENDS.items():
        bend = draw(random)
        law = fit_law(losses(random, bend), paired=False)
        new = random.normal(size=3).mean() * SCATTER * math.sqrt(64 / HELD_OUT[0])
        if not law.good:
            continue
        yield "law of size: floor", case, inside(law.floor, FLOOR)
        yield "law of size: a", case, inside(law.a, A)
        yield "law of size: b", case, inside(law.b, B)
        yield "law of size: loss of larger networks", case, inside(law.loss(*FAR), expected_loss(*FAR, bend))
        said = law.network(*HELD_OUT, 3)
        yield "law of size: new networks, larger", case, inside(said, expected_loss(*HELD_OUT, bend) + new)


# ---- best rates ----------------------------------------------------------------------------------------------

GUESS, BEST_LOSS, STEP, RATES = math.log(10), 0.5, 0.5, 7  # rates by factors of sqrt(2)
_GRID = 23  # rates of a drawn curve, of which a sweep sees those that it asks for


@dataclass(frozen=True)
class Curve:
    """Loss against log2 of the rate, from the lowest point of a single network without noise.

    ``left (4 sqrt(1 + u^2 / 2) - 4)`` to the left (a parabola near 0, then a line), ``right u^2`` to the right, and
    divergence beyond ``cliff``, which varies by ``blur`` over seeds. ``straight`` makes the left a parabola too.
    """

    left: float
    right: float
    cliff: float = math.inf
    blur: float = 0.25
    straight: bool = True

    def losses(self, rate: Array, random: Random, seeds: Seeds) -> Array:
        """Losses ``[S, E]`` at log2 rates that broadcast against that, infinite where a network diverges."""
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
    "divergence at 1.5 times": Curve(0.25, 0.1, math.log2(1.5)),
    "divergence at 2 times": Curve(0.25, 0.1, 1.0),
    "divergence at 4 times": Curve(0.25, 0.1, 2.0),
    "steeper, divergence at 2 times": Curve(0.4, 0.2, 1.0),
}
SEEDS_OF_RATES = (4, 8)
APART = 0.0, 0.5, 1.0  # log2 of the best rate of a small network over that of a large one
COMPARED = ("steep to the left", "divergence at 1.5 times", "divergence at 2 times")  # curves of drifts and regrets


def population(curve: Curve, rate: Array, seeds: int = 4000) -> Array:
    """Scores ``[seeds, E]`` of many networks, with the same noise at every rate."""

    class Same:
        def normal(self, size: tuple[int, ...]) -> Array:
            return np.random.default_rng(1).normal(size=(size[0], 1))

    drawn = Seeds.drawn(np.random.default_rng(0), seeds)
    return np.minimum(curve.losses(rate[None], Same(), drawn), GUESS)  # type: ignore[arg-type]


def best_rate(curve: Curve) -> float:
    """Where the geometric mean of the score over all seeds is lowest."""
    rate = np.linspace(-1.0, 1.0, 101)
    y = np.log(population(curve, rate)).mean(0)
    near = slice(max(0, int(y.argmin()) - 5), int(y.argmin()) + 6)
    fine = np.linspace(rate[near][0], rate[near][-1], 2001)
    return float(fine[np.polyval(np.polyfit(rate[near], y[near], 3), fine).argmin()])


def sweep(curve: Curve, seeds: Seeds, random: Random, best: float = 0.0, step: float = STEP) -> Scores:
    """Scores on a grid that begins anywhere around the best rate and is extended as ``nfd transfer`` extends it."""
    rate: Array = np.asarray(best + step * (np.arange(_GRID) - _GRID // 2 + random.uniform(-0.5, 0.5)), np.float64)
    drawn = curve.losses(np.asarray(rate[None] - best, np.float64), random, seeds)
    first = _GRID // 2 - RATES // 2 + int(random.integers(-1, 2))
    last = first + RATES
    while True:
        kept = drawn[:, first:last]
        found = Scores(rate[first:last], kept, ~np.isfinite(kept), GUESS)
        if not found.edge or first < 2 or last > _GRID - 2:
            return found
        first, last = (first - 2, last) if found.edge < 0 else (first, last + 2)


def _rates(random: Random, truths: dict[str, float]) -> Iterator[Hit]:
    for name, curve in CURVES.items():
        for count in SEEDS_OF_RATES:
            seeds = Seeds.drawn(random, count)
            yield "best rate", f"{name}, {count} seeds", inside(sweep(curve, seeds, random).optimum(), truths[name])
        if name not in COMPARED:
            continue
        case = f"{name}, {count} seeds"
        coarse = sweep(curve, seeds, random, step=1.0).optimum()
        yield "best rate", f"{case}, rates by factors of 2", inside(coarse, truths[name])
        moved = {(32, 2**k): sweep(curve, seeds, random, -0.5 * k) for k in (2, 3, 4)}
        found = drift(moved, "depth")
        assert found is not None
        yield "drift of the best rate", case, inside(found, -0.5)
        for apart in APART:
            said, truth = regret(curve, random, sweep(curve, seeds, random, apart), sweep(curve, seeds, random))
            yield "regret", f"{case}, best rates {2**apart:.1f} times apart", inside(said, truth)


_FINE = np.linspace(-4.0, 4.0, 321)


@cache
def _means(curve: Curve) -> Array:
    """The mean score of all networks at fine rates."""
    return np.asarray(np.concatenate([population(curve, part).mean(0) for part in np.split(_FINE, [80, 160, 240])]))


def regret(curve: Curve, random: Random, small: Scores, large: Scores) -> tuple[Interval, float]:
    """The regret of the best rates that were found, and its truth: the mean over all networks.

    Args:
        small, large: scores by which these rates are chosen. The large network has this curve.
    """
    foreign_eta, own_eta = rounded(small.best()), rounded(large.best())
    pair = np.log2([foreign_eta, own_eta])
    new = Seeds.drawn(random, 2 * len(large.losses))
    drawn = curve.losses(pair[None], random, new)
    scores = Scores(pair, drawn, ~np.isfinite(drawn), GUESS)
    truth = np.interp(pair, _FINE, _means(curve))
    return Regret(foreign_eta, own_eta, scores, large).loss, float(truth[0] - truth[1])


if __name__ == "__main__":
    import sys

    for row in laws_cover(int(sys.argv[1]), 0):
        print(f"{row['measured']:.3f} +- {row['error']:.3f}  of {row['count']:5d}  {row['kind']}; {row['case']}")
