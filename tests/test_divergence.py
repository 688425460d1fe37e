"""Which networks count as diverging: those that leave the others for good, and hardly ever by
chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nfd.limits.predict import Divergences, first_divergences


def normal(count: int, steps: int, seed: int = 0) -> Tensor:
    return torch.randn(
        count, steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def diverging(losses: Tensor) -> dict[int, int]:
    return first_divergences(losses, losses[:, :0])


HEAVY: dict[str, Callable[[Tensor], Tensor]] = {
    "squared errors": lambda z: z.square(),
    "log-normal": lambda z: (2 * z).exp(),
    "nearly equal": lambda z: 1 + 0.01 * z,
    "rising together": lambda z: z.square() * 10.0 ** torch.arange(z.shape[1]),
}


# Counts of few, some and many networks; every distribution meets few and some.
USUAL = [(name, count) for name in HEAVY for count in (2, 8)]
USUAL += [("log-normal", 128), ("nearly equal", 128), ("squared errors", 32)]
OTHERS = [(name, count) for name in HEAVY for count in (4, 32, 128) if (name, count) not in USUAL]


@pytest.mark.parametrize(
    ("name", "count"), [*USUAL, *(pytest.param(*of, marks=pytest.mark.slow) for of in OTHERS)]
)
def test_chance_makes_no_network_diverge(name: str, count: int) -> None:
    """In 1,000 predictions fewer than the 10 that one in a hundred would be, by three standard
    errors.
    """
    cases = [HEAVY[name](normal(count, 4, seed)) for seed in range(1000)]
    alarms = sum(bool(diverging(losses)) for losses in cases)
    assert alarms < 10 + 3 * math.sqrt(10)


@pytest.mark.parametrize("count", [128, 256])
def test_a_network_that_leaves_is_seen_and_one_that_comes_back_is_not(count: int) -> None:
    """Its losses are less than a thousand times the largest of seven in eight, about 2.4."""
    losses = normal(count, 10).square()
    losses[3, 6:] = torch.tensor([1200.0, 1500.0, 1800.0, 1500.0])
    assert diverging(losses) == {3: 6}
    losses[3, 9] = 1.0
    assert diverging(losses) == {}


def test_many_that_leave_hide_none_of_them() -> None:
    """A fifth of the networks, at losses that differ by factors of ten."""
    losses = normal(60, 10).square()
    losses[:12, 9] = 10 ** torch.linspace(3, 6, 12, dtype=torch.float64)
    assert diverging(losses) == dict.fromkeys(range(12), 9)


def test_what_was_large_before_training_did_not_leave() -> None:
    losses = normal(32, 5).square()
    losses[3] = 900.0
    assert diverging(losses) == {}


def test_those_that_diverge_before_too_many_have_are_left_out() -> None:
    few = Divergences({3: 2, 5: 0}, 16)
    assert few.end is None
    assert (~few.kept).nonzero().flatten().tolist() == [3, 5]
    many = Divergences({3: 2, 5: 0, 7: 4, 8: 4}, 16)
    assert many.end == 4
    assert (~many.kept).nonzero().flatten().tolist() == [3, 5]
