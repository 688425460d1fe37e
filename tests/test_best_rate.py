"""The best rate of a bowl against the integral that defines it, on a finer grid; regrets against
formulas.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nfd.laws.best_rate import Scores, chosen
from nfd.laws.bowl import posterior
from nfd.laws.regret import Regret

# the constants of the module
FORM = 0.18
CLIFF = 0.12
WALL = 1.5
COARSE = 1.6
ASYMMETRY = 0.7
ASYMMETRY_DEVIATION = 1.3


def falls_and_rises(x: np.ndarray, y: np.ndarray, sigma: float, vertex: float) -> float:
    """Density of Student's distribution, of three degrees of freedom, of two differences.

    They are the largest climb before a vertex, and the largest fall after it.
    """
    before = y[x <= vertex]
    after = y[x > vertex]
    climb = max((b - a for k, a in enumerate(before) for b in before[k:]), default=0.0)
    fall = max((a - b for k, a in enumerate(after) for b in after[k:]), default=0.0)
    scores = np.array([climb, fall]) / (math.sqrt(2) * sigma)
    density = stats.t(3).pdf(scores) / stats.t(3).pdf(0)
    return float(density.prod())


def integral(x: np.ndarray, y: np.ndarray, sigma: float) -> tuple[float, float]:
    """Mean and variance of the vertex.

    Every y is known to sigma and to FORM of the bowl, level and all; bowls end at 1. To the right
    of the vertex the form errs by what was seen, where that is more. If the last y
    is at 1, a cliff may hide the bowl there: it is then left out, and cuts the bowl at any place.
    """
    step = x[1] - x[0]
    walled = y[-1] >= 1
    low = x[0] - step / 2
    places = np.linspace(low, x[-1] if walled else x[-1] + step / 2, 301)[:, None, None, None]
    h = np.geomspace(1e-3, 1e2, 97)[:, None, None]
    z = np.linspace(-2.4, 2.4, 33)[:, None]
    right = np.exp(ASYMMETRY + ASYMMETRY_DEVIATION * z)
    f = np.minimum(h * (x - places) ** 2 * np.where(x > places, right, 1.0), 1.0)
    is_right = x > places
    v = sigma**2 + (FORM * np.where(is_right, np.maximum(f, y), f)) ** 2

    def mass(kept: slice, left_out: int) -> np.ndarray:
        w = 1 / v[..., kept]
        left = (y - f)[..., kept]
        left = left - (w * left).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
        log = -0.5 * (
            np.log(v[..., kept]).sum(-1) + np.log(w.sum(-1)) + (w * left**2).sum(-1) + z[:, 0] ** 2
        )
        return np.exp(log).sum((1, 2)) / FORM**left_out

    where = places[:, 0, 0, 0]
    smooth = np.array([falls_and_rises(x, y, sigma, vertex) for vertex in where])
    if not walled:
        p = mass(slice(None), 0) * smooth
        mean = (p * where).sum() / p.sum()
        return mean, (p * where**2).sum() / p.sum() - mean**2
    cuts = np.linspace(x[-2], x[-1], 501)
    ends = np.minimum(where[:, None], cuts)
    p = (1 - CLIFF) * mass(slice(None), 0) * smooth
    cut = CLIFF * mass(slice(-1), 1) * smooth
    total = p.sum() + cut.sum()
    mean = (p * where + cut * ends.mean(1)).sum() / total
    variance = (p * where**2 + cut * (ends**2).mean(1)).sum() / total - mean**2
    beside = y.argmin() == len(y) - 2
    return mean, variance * (WALL * max(1.0, (x[-1] - x[-2]) / COARSE) ** 2 if beside else 1.0)


@pytest.mark.parametrize(
    ("step", "rises"),
    [
        (1.0, (0.9, 0.3, 0.0, 0.3, 0.9)),
        (1.0, (0.2, 0.06, 0.0, 0.2, 0.8)),
        (0.5, (0.3, 0.1, 0.0, 0.05, 0.2)),
        (2.0, (0.6, 0.0, 0.4)),
        (1.0, (0.5, 0.2, 0.05, 0.0, 1.0)),  # a wall beside the best rate
        (2.5, (0.6, 0.1, 0.0, 1.0)),
        (1.0, (0.5, 0.1, 0.0, 0.3, 1.0)),
    ],
)
def test_the_best_rate_is_the_integral_over_bowls(step: float, rises: tuple[float, ...]) -> None:
    x = step * np.arange(len(rises))
    y = np.array(rises)
    mean, variance, slopes = posterior(x, y, np.full(len(x), 0.05))
    expected, spread = integral(x, y, 0.05)
    assert mean == pytest.approx(expected, abs=0.02 * step)
    # its grids are coarse, and a little too wide
    assert variance == pytest.approx(spread, rel=0.13)
    for place in range(len(x) - (rises[-1] == 1)):
        if 0 < y[place] < 1:
            up, down = (
                posterior(x, y + d * (np.arange(len(x)) == place), np.full(len(x), 0.05))[0]
                for d in (1e-4, -1e-4)
            )
            assert slopes[place] == pytest.approx((up - down) / 2e-4, rel=0.02, abs=1e-3)


@pytest.mark.parametrize("seeds", [2, 4])
def test_losses_rise_over_the_cap_with_the_noise_of_the_seeds(seeds: int) -> None:
    """The cap is 0.3 of the progress; noise is that of seeds about their own level, at the rates
    that lose less.
    """
    x = np.arange(-3.0, 3.0)
    random = np.random.default_rng(0)
    losses = np.exp(np.log(1 + 0.05 * (x - 0.3) ** 2) + 0.01 * random.normal(size=(seeds, len(x))))
    losses[:, 0] = math.inf
    cell = Scores(x, losses, ~np.isfinite(losses), 2.0)
    logs = np.log(np.minimum(losses, 2.0))
    typical = np.exp(logs.mean(0))
    cap = 0.3 * (2 - typical.min()) / typical.min()
    near = typical - typical.min() <= 0.3 * (2 - typical.min())
    own = (logs - logs.mean(0))[:, near] / cap
    own -= own.mean(1, keepdims=True)
    noise = math.sqrt((own**2).sum() / ((seeds - 1) * (near.sum() - 1)) / seeds)
    rise = np.minimum((typical / typical.min() - 1) / cap, 1)
    mean, variance, _ = posterior(x, rise, noise * typical / typical.min())
    assert (cell.posterior.mean, cell.posterior.variance) == pytest.approx((mean, variance))


# ---- sums over starts against formulas

STARTS = 8
GRID_SEEDS = 4
# losses; a start that trains at both rates pays PAID
GUESS = 2.0
BEST = 1.0
PAID = 0.1


def regret(diverged: int, spread: float = 0.0) -> Regret:
    """``diverged`` of eight starts are lost at twice the best rate, and none at it or below; others
    are alike, but for a spread of what they pay."""
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
    diverging = regret(4).new
    grid = regret(4).grid
    losses = np.where(diverging.upset, GUESS + 0.01, diverging.losses)
    calm = Regret(Scores(diverging.log2_eta, losses, np.zeros_like(diverging.upset), GUESS), grid)
    assert calm.diverges == regret(4).diverges


@pytest.mark.parametrize(
    ("upset", "edge"),
    [((True, True, True), -1), ((False, False, True), 0), ((False, False, False), 1)],
)
def test_where_nothing_is_learnt_divergence_tells_on_which_side_the_rates_lie(
    upset: tuple[bool, ...], edge: int
) -> None:
    rates = np.array([-2.0, -1.0, 0.0])
    losses = np.full((2, 3), GUESS)
    assert Scores(rates, losses, np.array([upset, upset]), GUESS).edge == edge


def test_seeds_that_sizes_share_leave_a_difference_and_others_do_not() -> None:
    """Every seed moves the best rate of both sizes alike: their difference is known better where
    they share the seeds, and their sum worse."""
    rates = np.arange(-4.0, 5.0)
    moved = np.array([-0.6, -0.2, 0.2, 0.6])[:, None]
    losses = BEST + 0.05 * (rates - moved) ** 2

    def error(weights: tuple[float, float], *names: str) -> float:
        cells = [
            Scores(rates, losses, np.zeros_like(losses, dtype=bool), GUESS, tuple(of))
            for of in names
        ]
        return chosen(cells, np.array(weights)).stderr

    alone = error((1.0, -1.0), "abcd", "efgh")
    assert error((1.0, -1.0), "abcd", "abcd") < 0.9 * alone
    assert error((1.0, 1.0), "abcd", "efgh") == pytest.approx(alone)
    assert error((1.0, 1.0), "abcd", "abcd") > 1.1 * alone


# ---- seeds that were not trained at every rate


def with_gaps(seed: int = 0) -> tuple[Scores, Scores]:
    """Scores of eight seeds that differ far more than rates do, with gaps and without.

    At the rates at both ends, which are worse, only the best seeds were trained.
    """
    random = np.random.default_rng(seed)
    of_seeds = np.sort(0.2 * random.normal(size=8))[:, None]
    rises = 0.05 * np.array([-1.6, -0.6, 0.4, 1.4]) ** 2
    losses = 0.6 * np.exp(of_seeds + rises + 0.003 * random.normal(size=(8, 4)))
    rates = np.arange(-9.0, -5.0)
    calm = np.zeros(losses.shape, np.bool_)
    whole = Scores(rates, losses, calm, math.log(10))
    gaps = losses.copy()
    gaps[1:, 0] = np.nan
    gaps[2:, 3] = np.nan
    return Scores(rates, gaps, calm, math.log(10)), whole


def test_a_rate_is_not_better_for_having_been_trained_from_a_better_seed() -> None:
    gaps, whole = with_gaps()
    # A plain mean takes a bad rate of good seeds for the best.
    assert np.nanmean(gaps.logs, 0).argmin() in (0, 3)
    assert gaps.typical == pytest.approx(whole.typical, rel=0.02)
    assert gaps.has_optimum
    assert gaps.best() == pytest.approx(whole.best(), abs=0.1)
    assert gaps.posterior.shares.sum() == pytest.approx(0, abs=1e-9)


def test_scores_that_were_reached_are_of_seeds_that_were_trained_there() -> None:
    gaps, _ = with_gaps()
    best = int(gaps.typical.argmin())
    assert sorted(gaps.reached) == pytest.approx(sorted(gaps.scores[:, best]))


def test_the_best_rate_is_known_as_well_with_gaps_as_its_interval_says() -> None:
    inside = 0
    for seed in range(40):
        optimum = with_gaps(seed)[0].optimum()
        inside += optimum.low <= -7.4 <= optimum.high
    assert inside >= 36


def test_complete_losses_are_read_by_plain_means() -> None:
    _, whole = with_gaps()
    assert whole.typical.tolist() == np.exp(whole.logs.mean(0)).tolist()
    assert len(whole.reached) == 8
