"""The law of the loss: hand-made fits, correlated noise, powers, and best sizes against brute
force.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

import nfd
from nfd.laws.best_size import Cost, amount
from nfd.laws.loss_law import Law, fit_law

TRUE = {"floor": 0.735, "a": 7.9, "b": 0.52}
WIDTHS = (64, 96, 128, 192, 256)
DEPTHS = (2, 4, 8, 16)
BOTH = ("width", "depth")


def exact(spread: float = 1e-3, **given: float) -> Law:
    """Seeds that lie evenly about the law: the fit must find it to rounding."""
    law = TRUE | given
    losses = {
        (n, L): [
            law["floor"] + law["a"] / n + law["b"] / L + offset for offset in (-spread, 0.0, spread)
        ]
        for n, L in product(WIDTHS, DEPTHS)
    }
    return fit_law(BOTH, losses, paired=False)


def test_a_law_without_misfit_is_found_exactly() -> None:
    law = exact()
    assert {name: term.value for name, term in law.terms.items()} == pytest.approx(TRUE, rel=1e-6)
    assert law.loss(math.inf, math.inf).value == law.floor.value
    assert law.loss(512, math.inf).value == pytest.approx(0.735 + 7.9 / 512, abs=1e-7)
    assert law.excess(100, 10).value == pytest.approx(0.079 + 0.052, abs=1e-7)
    assert law.bought(64, 2, 128, 2).value == pytest.approx(7.9 / 128, abs=1e-7)
    assert (law.smallest, law.largest, law.seeds, law.good) == ((64, 2), (256, 16), 3, True)


def test_errors_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal noise everywhere and known powers: the textbook errors of least squares with priors."""
    monkeypatch.setattr("nfd.laws.loss_law._POWERS", dict.fromkeys(BOTH, (1.0, 1e-6)))
    grid = {
        (n, L): [1 + 4 / n + 2 / L + s for s in (-0.01, 0.01)]
        for n, L in product((2, 4, 8), (2, 4, 8))
    }
    law = fit_law(BOTH, grid, paired=False)
    X = np.array([[1, 2 / n, 2 / L] for n, L in grid])
    X = np.hstack([X, X[:, 1:] ** 2, X[:, 1:2] * X[:, 2:]])
    information = X.T @ X * 2 / 2e-4  # variance 2e-4 of a seed, two seeds a size
    free = np.linalg.inv(information)
    first = np.hypot([2, 1], np.sqrt(np.diag(free))[1:3])  # terms of first order, with their errors
    sure = np.array([0, 0, 0, *first**-2, first.mean() ** -2])
    errors = np.sqrt(np.diag(np.linalg.inv(information + np.diag(sure)))) * [1, 2, 2, 0, 0, 0]
    found = [law.terms[name].stderr for name in TRUE]
    assert found == pytest.approx(errors[:3].tolist(), rel=0.12)  # of 500 draws, by Student's t
    assert law.network(4, 4).stderr ** 2 - law.network(
        4, 4, networks=4
    ).stderr ** 2 == pytest.approx(1.5e-4, rel=0.4)


def test_noise_that_falls_with_size_is_seen_to() -> None:
    """A deviation in proportion to 1/n: the logarithm of the variance has the slope -2."""
    random = np.random.default_rng(0)
    widths = (32, 64, 128, 256, 512)
    law = fit_law(
        ("width",), {(n,): (1 + 8 / n + 3 / n * random.normal(size=40)).tolist() for n in widths}
    )
    level, slope = law.noise.mean(0)
    assert slope == pytest.approx(-2, abs=0.2)
    assert level + slope * math.log(128) == pytest.approx(2 * math.log(3 / 128), abs=0.3)
    few = fit_law(
        ("width",), {(n,): (1 + 8 / n + 3 / n * random.normal(size=2)).tolist() for n in widths}
    )
    # chi-squared of one seed, and the prior
    known = np.square(np.log(widths) - np.log(widths).mean()).sum() / 2 + 4
    assert few.noise[:, 1].std() == pytest.approx(known**-0.5, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_leans_where_the_law_is_not_linear(seed: int) -> None:
    """A floor that is too high needs a large power; one that is too low a small one, which reaches
    further.
    """
    random = np.random.default_rng(seed)
    losses = {
        (1e6 * 2**k,): (2 + 2 ** (-0.4 * k) + 0.01 * random.normal(size=4)).tolist()
        for k in range(6)
    }
    law = fit_law(("tokens",), losses)
    floor = law.floor
    assert floor.value - floor.low > 1.12 * (floor.high - floor.value)


def test_a_law_that_does_not_hold_names_the_size_that_is_furthest_from_it() -> None:
    losses = {(n,): [1 + 8 / n + s for s in (-1e-3, 0.0, 1e-3)] for n in (32, 64, 128, 256, 512)}
    losses[128,] = [loss + 0.05 for loss in losses[128,]]
    law = fit_law(("width",), losses)
    assert not law.good
    assert "most at width 128" in law.note
    assert all(math.isfinite(law.loss(n).value) for n in (32, 512))
    with pytest.raises(ValueError, match=r"within 32\.\.512"):
        law.loss(513)


# ---- budgets


def test_budgets_are_read_in_their_units() -> None:
    assert amount("parameters", "2M") == 2_000_000
    assert amount("parameters", "1.5 B") == amount("parameters", "1.5G params") == 1_500_000_000
    assert (
        amount("flops", "3 TFLOP") == amount("flops", 3e12) == amount("flops", "3e12") == 3 * 10**12
    )
    for resource, budget, said in (
        ("parameters", "2 GiB", "'2M'"),
        ("flops", "3 TFLOP/s", "'3 TFLOP'"),
    ):
        with pytest.raises(ValueError, match=said):
            amount(resource, budget)


@pytest.mark.parametrize("cost", [Cost(0, 74, 0, 1), Cost(0, 130, 0, 36)])
@pytest.mark.parametrize(
    "terms", [{"a": 7.9, "b": 0.52}, {"a": 0.5, "b": 3.0}, {"a": 60.0, "b": 0.2}]
)
def test_the_best_size_is_that_of_brute_force(cost: Cost, terms: dict[str, float]) -> None:
    law = exact(spread=1e-6, **terms)
    a = law.terms["a"].value
    b = law.terms["b"].value
    for budget in (cost.at(1, 1), cost.at(5, 9), cost.at(30, 7) + 11, cost.at(60, 20)):
        best = min(
            a / n + b / L
            for n in range(1, cost.widest(1, budget) + 1)
            for L in range(1, cost.deepest(n, budget) + 1)
        )
        fitted = nfd.ScalingLaw(law, {}, "made up", costs={"flops": cost})
        found = fitted.best(flops=budget)
        assert found.cost == cost.at(found.width, found.depth) <= budget
        assert a / found.width + b / found.depth == pytest.approx(best, rel=1e-12)
