"""Sums over starts against formulas: the chance to diverge, the loss paid, shared and own noise of best rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nfd.rates.optimum import Regret, Scores, chosen

STARTS, GRID_SEEDS = 8, 4
GUESS, BEST, PAID = 2.0, 1.0, 0.1  # losses; a start that trains at both rates pays PAID


def regret(diverged: int, spread: float = 0.0) -> Regret:
    """``diverged`` of eight starts are lost at twice the best rate, and none at it or below; others are alike, but for
    a spread of what they pay."""
    names = tuple("abcd")
    calm = np.tile([BEST + 0.4, BEST + 0.2, BEST], (GRID_SEEDS, 1))
    grid = Scores(np.array([-2.0, -1.0, 0.0]), calm, np.zeros_like(calm, dtype=bool), GUESS, names)
    losses = np.tile([BEST + PAID, BEST], (STARTS, 1))
    losses[:, 0] += spread * np.linspace(-1, 1, STARTS)
    losses[:diverged, 0] = math.inf
    new = Scores(np.array([1.0, 0.0]), losses, ~np.isfinite(losses), GUESS)
    return Regret(new, grid)


def limits(diverged: int) -> tuple[float, float]:
    """Where the likelihood of a binomial share falls by half of Student's t squared."""
    shares = np.linspace(1e-9, 1 - 1e-9, 100_001)
    likely = diverged * np.log(shares) + (STARTS - diverged) * np.log(1 - shares)
    within = shares[likely > likely.max() - stats.t.ppf(0.975, STARTS + GRID_SEEDS - 2) ** 2 / 2]
    return float(within.min()), float(within.max())


@pytest.mark.parametrize("diverged", [0, 2, 4])
def test_the_chance_to_diverge_and_its_price_are_those_of_a_share(diverged: int) -> None:
    asked = regret(diverged)
    q, low, high = asked.diverges
    assert (q, low, high) == pytest.approx((diverged / STARTS, *limits(diverged)), abs=0.03)
    extra = GUESS - BEST - PAID  # what divergence costs beyond what the others pay
    loss = asked.loss
    assert loss.value == pytest.approx(PAID + q * extra)
    assert (loss.low, loss.high) == pytest.approx((PAID + low * extra, PAID + high * extra))
    assert loss.stderr == pytest.approx(extra * (high - low) / (2 * stats.norm.ppf(0.975)))
    assert asked.share.value == pytest.approx(loss.value / (GUESS - BEST))


def test_what_calm_starts_pay_has_the_interval_of_a_mean() -> None:
    """Nothing diverges, so that the lower limit is Student's t alone."""
    loss = regret(0, spread=0.05).loss
    error = 0.05 * np.linspace(-1, 1, STARTS).std(ddof=1) / math.sqrt(STARTS)
    assert loss.value - loss.low == pytest.approx(stats.t.ppf(0.975, STARTS - 1) * error, rel=1e-3)


def test_a_calm_start_that_learns_nothing_is_lost_above_the_best_rate() -> None:
    diverging, grid = regret(4).new, regret(4).grid
    losses = np.where(diverging.upset, GUESS + 0.01, diverging.losses)
    calm = Regret(Scores(diverging.log2_eta, losses, np.zeros_like(diverging.upset), GUESS), grid)
    assert calm.diverges == regret(4).diverges


@pytest.mark.parametrize(
    ("upset", "edge"), [((True, True, True), -1), ((False, False, True), 0), ((False, False, False), 1)]
)
def test_where_nothing_is_learnt_divergence_tells_on_which_side_the_rates_lie(
    upset: tuple[bool, ...], edge: int
) -> None:
    rates, losses = np.array([-2.0, -1.0, 0.0]), np.full((2, 3), GUESS)
    assert Scores(rates, losses, np.array([upset, upset]), GUESS).edge == edge


def test_seeds_that_sizes_share_leave_a_difference_and_others_do_not() -> None:
    """Every seed moves the best rate of both sizes alike: their difference is known better where they share the seeds,
    and their sum worse."""
    rates = np.arange(-4.0, 5.0)
    moved = np.array([-0.6, -0.2, 0.2, 0.6])[:, None]
    losses = BEST + 0.05 * (rates - moved) ** 2

    def error(weights: tuple[float, float], *names: str) -> float:
        cells = [Scores(rates, losses, np.zeros_like(losses, dtype=bool), GUESS, tuple(of)) for of in names]
        return chosen(cells, np.array(weights)).stderr

    alone = error((1.0, -1.0), "abcd", "efgh")
    assert error((1.0, -1.0), "abcd", "abcd") < 0.9 * alone
    assert error((1.0, 1.0), "abcd", "efgh") == pytest.approx(alone)
    assert error((1.0, 1.0), "abcd", "abcd") > 1.1 * alone
