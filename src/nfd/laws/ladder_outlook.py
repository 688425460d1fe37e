"""What training runs would tell of a larger one: the choice of those that make it usable.

The draws of a posterior say how the losses of all sizes vary together. A run whose loss is ``x``
leaves of the variance of a target's loss ``y``

    ``var(y) - cov(x, y)^2 / (var(x) + error^2)``,

whatever its loss will be, and the covariances of all sizes change alike: a plan of several runs is
computed without fitting the law again. It is chosen greedily, by variance per operation, among the
sizes up to several costs; runs that the others make needless are taken out, and the cheapest plan
counts. Before the first run the draws are those of the prior.

The error of runs is not known either. Were it small, a cheap plan would do: the first run is that
of a plan for a small error, and the others are planned for the error that is expected.

Source: MacKay 1992, "Information-based objective functions for active data selection".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nfd.laws.ladder_posterior import FREEDOM, Posterior
from nfd.laws.logged_runs import FLOPS

Array = NDArray[np.float64]
# A forecast is refused where its interval is a wider share of the loss: nearly half of the wider
# ones were off by more than 2 %.
REFUSED = 0.08
# Values of each variable among which runs are chosen.
CANDIDATES = 12
# Costs up to which plans are tried.
_CAPS = 16
# What every run costs in trouble, as a share of the dearest one of its plan. Without it plans begin
# with a dozen runs of the smallest sizes.
_TROUBLE = 0.05
# Runs of a plan. Replayed ladders were accepted after 6 to 17.
_MOST = 24
# The share of draws with a smaller error of runs than the one the first run is chosen for. With 0.5
# in place of it nine replayed ladders cost 1.5 times as much until they were accepted.
HOPED = 0.2
# The ladders that intervals were calibrated on have so many runs at least, and targets of up to so
# many times the compute of their dearest run. Forecasts that were accepted at once, beyond either,
# held the loss of 4 in 6 made-up ladders.
FEWEST_RUNS = 6
REACH = 300.0
# Beyond this half width, in log loss, an interval says nothing, and its exponential may overflow.
_WIDEST = 9.0


def cost_of(sizes: Array) -> Array:
    """Operations of runs ``[K, 2]``; of runs in one variable, that variable."""
    return np.asarray(FLOPS * sizes.prod(1) if sizes.shape[1] == 2 else sizes[:, 0])


# ---- what runs would tell


class Outlook:
    """How wide the forecast of a target will be after runs of some sizes.

    Args:
        posterior: its draws say how losses vary together.
        target, sizes: as below.
        share: the error of a run is that quantile of the draws. With their mean in place of the
            median, forecasts became a third narrower than was expected: runs rule large errors out.

    Attributes:
        target: the size that is forecast ``[variables]``.
        sizes: those that may be trained ``[K, variables]``.
        costs: of these, ``[K]``.
    """

    def __init__(
        self, posterior: Posterior, target: Array, sizes: Array, share: float = 0.5
    ) -> None:
        self.target = target
        self.sizes = sizes
        self.costs = cost_of(sizes)
        means, within = posterior.moments(np.vstack([target, sizes]))
        self._error = math.exp(float(np.quantile(posterior.draws[:, -1], share)))
        squared_error = self._error**2
        self._covariance = np.cov(means.T) + squared_error * within
        # The variance of Student's t.
        self._noise = squared_error * FREEDOM / (FREEDOM - 2)
        self._middle = np.median(means, 0)
        self._best = posterior.log_losses.min(initial=math.inf)
        self._calibration = posterior.prior.calibration

    def width(self, chosen: Sequence[int] = ()) -> float:
        """The width of the forecast's interval over its value, after the chosen sizes."""
        places = np.array(chosen, dtype=int) + 1
        with_target = self._covariance[0, places]
        among = self._covariance[np.ix_(places, places)] + self._noise * np.eye(len(places))
        explained = with_target @ np.linalg.solve(among, with_target)
        best = min([self._best, *self._middle[places]])
        return self._width(float(self._covariance[0, 0] - explained), best)

    def _width(self, variance: float, best: float) -> float:
        """The width for a variance of the target and the log loss of the best run."""
        # Before the first run nothing is a gain.
        gain = max(0.0, best - self._middle[0]) if math.isfinite(best) else 0.0
        sd = np.array(math.sqrt(max(0.0, variance) + self._noise))
        spread = self._calibration.spread(sd, np.array(gain), self._error)
        half = self._calibration.q * float(spread)
        return 2 * math.sinh(min(half, _WIDEST))

    def most_telling(self) -> int:
        """The size whose run narrows the forecast most."""
        return int(self._explained(self._covariance).argmax())

    def _explained(self, covariance: Array) -> Array:
        """By how much a run of each size would lower the variance of the target."""
        return np.asarray(
            covariance[0, 1:] ** 2 / (np.diag(covariance)[1:].clip(0.0) + self._noise)
        )

    def nearest(self, trained: Array, budget: float) -> list[int]:
        """The run that brings the target within reach of intervals; none where one is trained."""
        needed = float(cost_of(self.target[None])[0]) / REACH
        if len(trained) and cost_of(trained).max() >= needed:
            return []
        is_near = (self.costs >= needed) & (self.costs <= budget)
        if not is_near.any():
            return []
        per_cost = self._explained(self._covariance) / self.costs
        return [int(np.where(is_near, per_cost, -1.0).argmax())]

    def cheapest(self, limit: float, budget: float, fewest: int, first: Sequence[int]) -> list[int]:
        """The cheapest plan whose expected width is below the limit, ascending in cost.

        Where no plan within the budget reaches it, the one that comes nearest.

        Args:
            limit: of the forecast's width.
            budget: of all runs together.
            fewest: runs of the plan.
            first: runs that it has in any case.
        """
        affordable = np.sort(self.costs[self.costs <= budget * (1 + 1e-9)])
        shares = np.linspace(1 / _CAPS, 1.0, _CAPS)
        caps = {float(np.quantile(affordable, share, method="nearest")) for share in shares}
        plans = list[list[int]]()
        for cap in sorted(caps):
            chosen = self._greedy(limit, budget, fewest, (cap, first))
            plans.append(self._pruned(chosen, limit, fewest, first))
        best = min(plans, key=lambda chosen: self._rank(chosen, limit))
        return sorted(best, key=lambda k: float(self.costs[k]))

    def _rank(self, chosen: Sequence[int], limit: float) -> tuple[bool, float]:
        """What makes a plan better than another: it reaches the limit, and then its cost."""
        width = self.width(chosen)
        if width <= limit:
            costs = self.costs[list(chosen)]
            return False, float(costs.sum() + _TROUBLE * len(costs) * costs.max())
        return True, width

    def _greedy(
        self, limit: float, budget: float, fewest: int, start: tuple[float, Sequence[int]]
    ) -> list[int]:
        """Choose sizes up to a cost by the variance that each operation takes from the target."""
        cap, first = start
        covariance = self._covariance.copy()
        left = budget
        chosen = list[int]()
        is_free = self.costs <= cap
        while len(chosen) < _MOST:
            if len(chosen) < len(first):
                k = first[len(chosen)]
            elif len(chosen) >= fewest and self.width(chosen) <= limit:
                break
            else:
                can_be_paid = is_free & (self.costs <= left * (1 + 1e-9))
                if not can_be_paid.any():
                    break
                per_cost = self._explained(covariance) / (self.costs + _TROUBLE * cap)
                per_cost = np.where(can_be_paid, per_cost, -1.0)
                k = int(per_cost.argmax())
            chosen.append(k)
            is_free[k] = False
            left -= self.costs[k]
            column = covariance[:, k + 1].copy()
            covariance -= np.outer(column, column) / (column[k + 1] + self._noise)
        return chosen

    def _pruned(
        self, chosen: list[int], limit: float, fewest: int, first: Sequence[int]
    ) -> list[int]:
        """Take out runs, the dearest first, without which the limit is reached, too."""
        if self.width(chosen) > limit:
            return chosen
        for k in sorted(chosen, key=lambda k: -float(self.costs[k])):
            others = [other for other in chosen if other != k]
            if k not in first and len(others) >= fewest and self.width(others) <= limit:
                chosen = others
        return chosen


def candidates(low: Array, high: Array) -> Array:
    """A grid of sizes ``[K, variables]`` between two of them, evenly spaced in their logarithms."""
    axes = np.meshgrid(*(np.geomspace(*ends, CANDIDATES) for ends in zip(low, high, strict=True)))
    return np.stack([axis.ravel() for axis in axes], -1)


def plan_of(
    posterior: Posterior,
    target: Array,
    sizes: Array,
    *,
    limit: float = REFUSED,
    budget: float = math.inf,
    fewest: int = 1,
    hoped: float = HOPED,
) -> list[tuple[int, float]]:
    """Choose the runs that are expected to make a forecast usable, and what follows each.

    Args:
        posterior: of the runs so far; without any, its draws are the prior's.
        target: what is forecast ``[variables]``.
        sizes: those that may be trained ``[K, variables]``.
        limit: the width of the forecast that is accepted, over its value.
        budget: of all runs together.
        fewest: runs that are trained in any case.
        hoped: the first run is of a plan for this quantile of the error of runs.

    Returns:
        The places of the runs in ``sizes``, the first one to train first, each with the width that
        is expected after it.
    """
    hopeful = Outlook(posterior, target, sizes, hoped)
    outlook = Outlook(posterior, target, sizes)
    near = outlook.nearest(posterior.sizes, budget)
    probe = hopeful.cheapest(limit, budget, fewest, near)[0]
    first = list(dict.fromkeys([probe, *near]))
    others = [k for k in outlook.cheapest(limit, budget, fewest, first) if k != probe]
    chosen = [probe, *others]
    return [(k, outlook.width(chosen[: count + 1])) for count, k in enumerate(chosen)]
