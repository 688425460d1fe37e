"""How much compute a designed ladder saves, replayed on ladders that others trained.

    python -m calibration.ladder_design --data FOLDER --bank FILE

Of every ladder the dearest held-out run is forecast from runs that are added one by one, until the
forecast is accepted (``LadderLaw.doubt`` has none): as ``nfd.design_ladder`` says, in its authors'
order (ascending compute), on a grid of four sizes and four lengths, and in ten random orders. Prior
and calibration come from other groups' ladders. FOLDER is that of ``priors.ladders``. Answers that
FILE lacks are computed, an hour of one core for all; docs/ladder-design.json and .md follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nfd.core.estimates import Interval
from nfd.laws.ladder import LadderLaw

# PLANNED
from nfd.laws.ladder_posterior import VARIABLES, Posterior, Prior
from nfd.laws.loss_runs import FEWEST_SIZES
from priors.ladders import Ladder

Array = NDArray[np.float64]
Order = NDArray[np.int64]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "ladder-design.md"
NUMBERS = DOCS / "ladder-design.json"
RANDOM_ORDERS = 10
# Sizes, and lengths, of a grid.
GRID = 4
# A search for the first accepted forecast of an order looks ahead by this factor.
_AHEAD = 1.4


@dataclass(frozen=True)
class Question:
    """A target, and the runs that may be trained for its forecast.

    Attributes:
        name, group: of the ladder.
        prior: from the ladders of other groups.
        sizes, losses, costs: of the runs that may be trained, in ascending compute.
        target, loss: the size that is forecast, and its loss.
    """

    name: str
    group: str
    prior: Prior
    sizes: Array
    losses: Array
    costs: Array
    target: Array
    loss: float

    def law(self, runs: Sequence[int] | Order) -> LadderLaw:
        """The law of some of the runs."""
        chosen = np.array(runs, dtype=int)
        sizes = self.sizes[chosen]
        losses = self.losses[chosen]
        by_size = {tuple(size): [loss] for size, loss in zip(sizes.tolist(), losses, strict=True)}
        posterior = Posterior(VARIABLES, sizes, losses, self.prior)
        return LadderLaw(posterior, by_size, self.name)

    def stop(self, runs: Sequence[int] | Order) -> Stop | None:
        """What was spent on runs, and what they forecast; None where that is refused."""
        if len(runs) < FEWEST_SIZES:
            return None
        law = self.law(runs)
        size = dict(zip(VARIABLES, self.target.tolist(), strict=True))
        if law.doubt(**size):
            return None
        forecast = law.at(**size)
        spent = float(self.costs[np.array(runs, dtype=int)].sum())
        return Stop(len(runs), spent, forecast, forecast.low <= self.loss <= forecast.high)


@dataclass(frozen=True)
class Stop:
    """Where a forecast was accepted: after how many runs, for how many operations."""

    runs: int
    spent: float
    forecast: Interval
    holds: bool

    @property
    def width(self) -> float:
        """The width of the forecast over its value."""
        return (self.forecast.high - self.forecast.low) / self.forecast.value


def questions(ladders: Sequence[Ladder], priors: Mapping[str, Prior]) -> Iterator[Question]:
    """The dearest held-out run of every ladder, with the runs that are not held out."""
    for ladder in ladders:
        dearest = int(np.where(ladder.target, ladder.flops, 0.0).argmax())
        order = np.argsort(ladder.flops, kind="stable")
        runs = order[~ladder.target[order]]
        sizes = ladder.sizes[runs]
        yield Question(
            ladder.name,
            ladder.group,
            priors[ladder.group],
            sizes,
            ladder.losses[runs],
            6 * sizes.prod(1),
            ladder.sizes[dearest],
            float(ladder.losses[dearest]),
        )


# ---- orders that are given


def ascending(question: Question) -> Order:
    """The order of the authors: ascending compute."""
    return np.arange(len(question.costs))


def grid(question: Question) -> Order:
    """The runs nearest to a regular grid, in ascending compute, and then the others."""
    logs = np.log(question.sizes)
    places = [np.linspace(*np.quantile(axis, (0.0, 1.0)), GRID) for axis in logs.T]
    nearest = set[int]()
    for size in places[0]:
        for length in places[1]:
            apart = np.square((logs - [size, length]) / np.ptp(logs, axis=0)).sum(1)
            nearest.add(int(apart.argmin()))
    others = [k for k in range(len(logs)) if k not in nearest]
    return np.array([*sorted(nearest), *others])


def shuffled(question: Question, seed: int) -> Order:
    """A random order."""
    return np.random.default_rng(seed).permutation(len(question.costs))


def first_stop(question: Question, order: Order) -> Stop | None:
    """Where an order's forecast is first accepted, by looking ahead and then halving.

    Whether a forecast is accepted hardly ever changes back as runs are added.
    """
    stop = cache(lambda count: question.stop(order[:count]))
    refused = FEWEST_SIZES - 1
    count = FEWEST_SIZES
    while stop(count) is None:
        if count == len(order):
            return None
        refused = count
        count = min(len(order), math.ceil(_AHEAD * count))
    while count - refused > 1:
        middle = (count + refused) // 2
        if stop(middle) is None:
            refused = middle
        else:
            count = middle
    return stop(count)


def by_order(question: Question, policy: str) -> list[Stop | None]:
    """Where the forecasts of an order are accepted: one stop, or that of every random order."""
    if policy == "ascending":
        return [first_stop(question, ascending(question))]
    if policy == "grid":
        return [first_stop(question, grid(question))]
    return [first_stop(question, shuffled(question, seed)) for seed in range(RANDOM_ORDERS)]
