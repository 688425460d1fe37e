"""The chance to diverge and the loss paid, against formulas: starts that are alike but for whether they diverge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nfd.rates.optimum import Scores
from nfd.rates.transfer import Regret

STARTS, GRID_SEEDS = 8, 4
GUESS, BEST, PAID = 2.0, 1.0, 0.1  # losses; a start that trains at both rates pays PAID


def regret(diverged: int) -> Regret:
    """``diverged`` of eight starts are lost at twice the best rate, and none at it or below."""
    names = tuple("abcd")
    calm = np.tile([BEST + 0.4, BEST + 0.2, BEST], (GRID_SEEDS, 1))
    grid = Scores(np.array([-2.0, -1.0, 0.0]), calm, np.zeros_like(calm, dtype=bool), GUESS, names)
    losses = np.tile([BEST + PAID, BEST], (STARTS, 1))
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
