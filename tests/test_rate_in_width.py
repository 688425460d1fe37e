"""The judge of the rate in width tells powers that are planted, of the mean and of single networks,
apart.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from studies.rate_in_width import PLACES, judge

STEP = 0.25  # doublings
SEEDS = {32: 60, 128: 40, 512: 24, 1024: 20, 4096: 12, 16384: 12}


def planted(bias: float, scatter: float) -> dict[int, Tensor]:
    """Bowls whose lowest point is off by ``3 n^-bias`` in the mean and by ``2 n^-scatter`` in
    single networks.
    """
    found = {}
    for n, count in SEEDS.items():
        # even quantiles of a Gaussian in place of a draw
        normal = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
        places = 3 * n**-bias + 2 * n**-scatter * normal
        found[n] = 0.2 + 0.02 * (PLACES - places[:, None]).square()
    return found


@pytest.mark.parametrize(("bias", "said"), [(1.0, "faster than the bound"), (0.5, "as the bound")])
def test_the_power_of_the_mean_is_told(bias: float, said: str) -> None:
    found = judge(planted(bias, scatter=0.9), STEP)
    assert found["mean"]["word"] == said
    assert found["mean"]["p"]["low"] <= bias <= found["mean"]["p"]["high"]


@pytest.mark.parametrize(
    ("scatter", "said"), [(0.5, "as the bound"), (1.0, "faster than the bound")]
)
def test_the_power_of_single_networks_is_told(scatter: float, said: str) -> None:
    found = judge(planted(1.0, scatter), STEP)["one network"]
    assert (found["word"], found["change"]) == (said, "it does not")
    assert found["p"]["value"] == pytest.approx(scatter, abs=0.05)


def test_a_turn_at_1024_is_seen_and_the_cost_is_that_of_a_parabola() -> None:
    losses = planted(1.0, 0.5)
    for n in (4096, 16384):
        # n^-1 from 1,024 on
        losses[n] = planted(1.0, scatter=0.5 + 0.5 * (1 - math.log(1024) / math.log(n)))[n]
    found = judge(losses, STEP)
    assert found["one network"]["change"] == "it changes at 1,024"
    own = planted(1.0, 0.5)[128]
    places = 2 * (own[:, 1] - own[:, 3]) / 0.16  # of a parabola through three of its points
    expected = 100 * 0.02 * float(((places - 3 / 16384).square()).mean()) / (0.45 - 0.2)
    row = next(row for row in found["widths"] if row["width"] == 128)
    assert row["cost"]["value"] == pytest.approx(expected, rel=0.02)
