"""The replay of designed ladders: its orders are what they say."""

from __future__ import annotations

import numpy as np

from calibration.ladder_design import (
    GRID,
    Question,
    ascending,
    grid,
    read_numbers,
    shuffled,
)
from nfd.laws.ladder_outlook import FEWEST_RUNS, REACH
from nfd.laws.ladder_posterior import read_prior


def question(error: float) -> Question:
    """A made-up ladder of 36 runs, and a target of 27 times the compute of the dearest."""
    random = np.random.default_rng(0)
    sizes = np.array(
        [(N, D) for N in np.geomspace(5e7, 8e8, 6) for D in np.geomspace(1e9, 5e10, 6)]
    )
    sizes = sizes[np.argsort(sizes.prod(1), kind="stable")]

    def loss(N: float, D: float) -> float:
        clean = 1.7 + ((110 / N**0.27) ** 2 + (370 / D**0.28) ** 2) ** 0.5
        return float(clean * np.exp(error * random.normal()))

    losses = np.array([loss(N, D) for N, D in sizes])
    target = np.array([7e9, 1.54e11])
    costs = 6 * sizes.prod(1)
    return Question("made up", "made up", read_prior("ladders"), sizes, losses, costs, target, 2.06)


def test_orders_have_every_run_once_and_begin_as_they_say() -> None:
    asked = question(0.002)
    every = list(range(len(asked.costs)))
    for order in (ascending(asked), grid(asked), shuffled(asked, 0)):
        assert sorted(order.tolist()) == every
    assert ascending(asked).tolist() == every
    first = grid(asked)[: GRID**2]
    assert (np.diff(asked.costs[first]) >= 0).all()
    corners = {0, len(every) - 1}
    assert corners <= {*first.tolist()}
    assert shuffled(asked, 0).tolist() != shuffled(asked, 1).tolist()


def test_an_order_stops_with_enough_tuned_runs_that_come_near_enough() -> None:
    asked = question(0.002)
    every = range(len(asked.costs))
    assert asked.stop(every) is not None
    assert question(0.05).stop(every) is None
    assert asked.stop(every[-FEWEST_RUNS + 1 :]) is None
    far = [k for k in every if 6 * asked.target.prod() > REACH * asked.costs[k]]
    assert len(far) >= FEWEST_RUNS
    assert asked.stop(far) is None
    assert asked.least < asked.costs.sum()


def test_enough_ladders_are_replayed() -> None:
    assert len(read_numbers()["ladders"]) >= 8
