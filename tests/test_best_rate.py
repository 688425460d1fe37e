"""The best rate of a bowl against the integral that defines it, written again on a finer grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nfd.rates.optimum import Scores, posterior

FORM, CLIFF, WALL, COARSE = 0.18, 0.12, 1.5, 1.6  # the constants of the module


def integral(x: np.ndarray, y: np.ndarray, sigma: float) -> tuple[float, float]:
    """Mean and variance of the vertex. Every y is known to sigma and to FORM of the bowl, level and all; bowls end at
    1. If the last y is at 1, a cliff may hide the bowl there: it is then left out, and cuts the bowl at any place."""
    step, walled = x[1] - x[0], y[-1] >= 1
    low = x[0] - step / 2
    places = np.linspace(low, x[-1] if walled else x[-1] + step / 2, 301)[:, None, None, None]
    h = np.geomspace(1e-3, 1e2, 97)[:, None, None]
    z = np.linspace(-2.4, 2.4, 33)[:, None]
    right = np.exp(0.4 + 0.9 * z)
    f = np.minimum(h * (x - places) ** 2 * np.where(x > places, right, 1.0), 1.0)
    v = sigma**2 + (FORM * f) ** 2

    def mass(kept: slice, left_out: int) -> np.ndarray:
        w, left = 1 / v[..., kept], (y - f)[..., kept]
        left = left - (w * left).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
        log = -0.5 * (np.log(v[..., kept]).sum(-1) + np.log(w.sum(-1)) + (w * left**2).sum(-1) + z[:, 0] ** 2)
        return np.exp(log).sum((1, 2)) / FORM**left_out

    where = places[:, 0, 0, 0]
    if not walled:
        p = mass(slice(None), 0)
        mean = (p * where).sum() / p.sum()
        return mean, (p * where**2).sum() / p.sum() - mean**2
    cuts = np.linspace(x[-2], x[-1], 501)
    ends = np.minimum(where[:, None], cuts)
    p, cut = (1 - CLIFF) * mass(slice(None), 0), CLIFF * mass(slice(-1), 1)
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
    x, y = step * np.arange(len(rises)), np.array(rises)
    mean, variance, slopes = posterior(x, y, np.full(len(x), 0.05))
    expected, spread = integral(x, y, 0.05)
    assert mean == pytest.approx(expected, abs=0.02 * step)
    assert variance == pytest.approx(spread, rel=0.13)  # its grids are coarse, and a little too wide
    for place in range(len(x) - (rises[-1] == 1)):
        if 0 < y[place] < 1:
            up, down = (
                posterior(x, y + d * (np.arange(len(x)) == place), np.full(len(x), 0.05))[0] for d in (1e-4, -1e-4)
            )
            assert slopes[place] == pytest.approx((up - down) / 2e-4, rel=0.02, abs=1e-3)


@pytest.mark.parametrize("seeds", [2, 4])
def test_losses_rise_over_the_cap_with_the_noise_of_the_seeds(seeds: int) -> None:
    """The cap is 0.3 of the progress; noise is that of seeds about their own level, at the rates that lose less."""
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
