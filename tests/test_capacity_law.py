"""The law of size: hand-made fits, coverage, refusals, the cost of real networks, best sizes against brute force."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from nfd.core.estimates import Interval
from nfd.forecasts.budget import Cost, Costs, amount, best_size, returns
from nfd.forecasts.law import Law, fit_law

TRUE = {"floor": 0.735, "a": 7.9, "b": 0.52}
NOISE = {"1/n": lambda n: 0.7 / math.sqrt(n), "equal": lambda n: 0.06, "small": lambda n: 0.2 / math.sqrt(n)}
WIDTHS, DEPTHS = (64, 96, 128, 192, 256), (2, 4, 8, 16)
Losses = dict[tuple[int, int], list[float]]


def expected(width: float, depth: float, power: float = 1.0) -> float:
    return TRUE["floor"] + TRUE["a"] / width**power + TRUE["b"] / depth


def drawn(
    seeds: int, seed: int, noise: str = "1/n", shared: float = 0.0, power: float = 1.0, bend: Any = 0.0
) -> Losses:
    """A sweep: a share of the noise common to all sizes of a seed, and as much common to those of equal width.

    ``bend``: the terms of second order (of width, depth and both) at the smallest size, over those of first order.
    """
    bends = np.broadcast_to(bend, 3) * [TRUE["a"] / 64, TRUE["b"] / 2, (TRUE["a"] / 64 + TRUE["b"] / 2) / 2]
    rng = np.random.default_rng(seed)
    common, grid = rng.normal(size=seeds), {}
    for n in WIDTHS:
        of_width = rng.normal(size=seeds)
        for L in DEPTHS:
            own = rng.normal(size=seeds)
            e = math.sqrt(shared) * (common + of_width) + math.sqrt(1 - 2 * shared) * own
            bent = bends @ [(64 / n) ** 2, (2 / L) ** 2, 128 / (n * L)]
            grid[n, L] = (expected(n, L, power) + bent + NOISE[noise](n) * e).tolist()
    return grid


def exact(spread: float = 1e-3, **given: float) -> Law:
    """Seeds that lie evenly about the law: the fit must find it to rounding."""
    law = TRUE | given
    offsets = [-spread, 0.0, spread]
    return fit_law(
        {(n, L): [law["floor"] + law["a"] / n + law["b"] / L + o for o in offsets] for n, L in product(WIDTHS, DEPTHS)},
        paired=False,
    )


def test_a_law_without_misfit_is_found_exactly() -> None:
    law = exact()
    assert law.floor.value == pytest.approx(0.735, abs=1e-10)
    assert law.a.value == pytest.approx(7.9, abs=1e-8)
    assert law.b.value == pytest.approx(0.52, abs=1e-9)
    assert law.loss(math.inf, math.inf).value == pytest.approx(0.735, abs=1e-10)
    assert law.loss(512, math.inf).value == pytest.approx(0.735 + 7.9 / 512, abs=1e-10)
    assert law.excess(100, 10).value == pytest.approx(0.079 + 0.052, abs=1e-9)
    assert [term.value for term in law.second] == pytest.approx([0, 0, 0], abs=1e-6)
    assert law.bought(64, 2, 128, 2).value == pytest.approx(7.9 / 128, abs=1e-9)
    assert (law.chi2, law.freedom, law.bend) == (pytest.approx(0, abs=1e-9), 14, pytest.approx(0, abs=1e-9))
    assert (law.widths, law.depths, law.seeds, law.good) == (WIDTHS, DEPTHS, 3, True)


def test_weights_and_errors_by_hand() -> None:
    """Equal noise everywhere: ordinary least squares, and its textbook errors from the pooled variance."""
    grid = {(n, L): [1 + 4 / n + 2 / L - 0.1, 1 + 4 / n + 2 / L + 0.1] for n, L in product((2, 4, 8), (2, 4, 8))}
    law = fit_law(grid, paired=False)
    X = np.array([[1, 1 / n, 1 / L] for n, L in grid])
    X = np.hstack([X, X[:, 1:] ** 2, X[:, 1:2] * X[:, 2:]])
    information = X.T @ X * 2 / 0.02  # variance 0.02 of a seed, two seeds a size
    free = np.sqrt(np.diag(np.linalg.inv(information)))
    first = np.hypot([4 / 2, 2 / 2], free[1:3] / 2)  # terms of first order at the smallest size, with their errors
    allowed = np.array([*first, first.mean()]) * [4, 4, 4]  # in units of c, d and e
    errors = np.sqrt(np.diag(np.linalg.inv(information + np.diag([0, 0, 0, *allowed**-2]))))
    found = [i.stderr for i in (law.floor, law.a, law.b, *law.second)]
    assert found == pytest.approx(errors.tolist(), rel=0.05)  # the prior of the variance tilts the weights a little
    one, four = law.network(4, 4), law.network(4, 4, 4)  # the centre, where the exponents do not matter
    assert one.stderr**2 - four.stderr**2 == pytest.approx(0.02 * (1 - 1 / 4), rel=0.05)


@pytest.mark.parametrize(("seeds", "noise"), [(3, "equal"), (3, "1/n")])
@pytest.mark.parametrize("paired", [False, True])
def test_intervals_cover_the_truth(seeds: int, noise: str, paired: bool) -> None:
    """No fewer than 95 of 100, with ordinary terms of second order in every second sweep; a law that holds is kept.

    Sizes are independent, or share seeds as ResNets do. More than 95 are covered where the terms of second order are
    smaller than the fit allows for.
    """
    sweeps, rng = 200, np.random.default_rng(0)
    hits = dict.fromkeys((*TRUE, "rejected"), 0)
    for k in range(sweeps):
        bend = rng.uniform(0.1, 0.5, 3) * rng.choice([-1, 1], 3) if k % 2 else 0.0
        law = fit_law(drawn(seeds, k, noise, shared=0.36 if paired else 0.0, bend=bend), paired=paired)
        for name, value in TRUE.items():
            interval: Interval = getattr(law, name)
            hits[name] += interval.low <= value <= interval.high
        hits["rejected"] += law.p_value < 0.01
    assert all(hits[name] / sweeps >= 0.9 for name in TRUE), hits  # three errors of 200 sweeps below 0.95
    assert hits["rejected"] / sweeps < (0.06 if paired else 0.03)


# ---- budgets ----------------------------------------------------------------------------------------------------


def test_budgets_are_read_in_their_units() -> None:
    assert amount("parameters", "2M") == 2_000_000
    assert amount("parameters", "1.5 B") == amount("parameters", "1.5G params") == 1_500_000_000
    assert amount("flops", "3 TFLOP") == amount("flops", 3e12) == amount("flops", "3e12") == 3 * 10**12
    assert amount("flops", "2 PFLOPs") == 2 * 10**15
    assert amount("memory", "1 GiB") == 2**30
    for resource, budget, said in (("parameters", "2 GiB", "'2M'"), ("flops", "3 TFLOP/s", "'3 TFLOP'")):
        with pytest.raises(ValueError, match=said):
            amount(resource, budget)


# ---- the best size -------------------------------------------------------------------------------------------


COSTS = Costs({"parameters": Cost(0, 74, 0, 1), "flops": Cost(0, 130, 0, 36), "memory": Cost(100, 212, 48, 16)})


@pytest.mark.parametrize("resource", ["parameters", "flops", "memory"])
@pytest.mark.parametrize("terms", [{"a": 7.9, "b": 0.52}, {"a": 0.5, "b": 3.0}, {"a": 60.0, "b": 0.2}])
def test_the_best_size_is_that_of_brute_force(resource: Any, terms: dict[str, float]) -> None:
    law, cost = exact(spread=1e-6, **terms), COSTS.cost(resource)
    for budget in (cost.at(1, 1), cost.at(5, 9), cost.at(30, 7) + 11, cost.at(60, 20)):
        best = min(
            law.a.value / n + law.b.value / L
            for n in range(1, cost.widest(1, budget) + 1)
            for L in range(1, cost.deepest(n, budget) + 1)
        )
        found = best_size(law, COSTS, resource, budget)
        assert found.cost == cost.at(found.width, found.depth) <= budget
        assert law.a.value / found.width + law.b.value / found.depth == pytest.approx(best, rel=1e-12)


def test_returns_of_growth() -> None:
    found = returns(exact(), 100, 10)
    assert found.width.value == pytest.approx(0.0395, abs=1e-9)
    assert found.depth.value == pytest.approx(0.026, abs=1e-9)
    assert found.left.value == pytest.approx(2 * (0.0395 + 0.026), abs=1e-9)
    assert found.enough is not None
    n, L = found.enough  # two thirds of 0.0735 from width, one third from depth
    assert (n, L) == (math.ceil(7.9 / 0.049), math.ceil(0.52 / 0.0245))
    assert returns(exact(floor=-1.0), 100, 10).enough is None
    assert returns(exact(b=0.0), 100, 10).enough == (math.ceil(7.9 / 0.0735), 2)
