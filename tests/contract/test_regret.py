"""Regrets of planted curves and of digits: rates that learn nothing are no divergence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.contract.common import ResidualMLP, batches

import nfd

GUESS = math.log(10)
RATES = range(-10, 6)  # log2; the largest network is best at 0
CALM = math.inf

Rows = list[dict[str, Any]]


def planted(random: np.random.Generator, seeds: int, rates: np.ndarray, best: float, edge: float) -> np.ndarray:
    """Losses ``[seeds, rates]``: a parabola with 1 at its lowest, 2.31 where nothing is learnt, infinite beyond an edge
    of stability that each seed has for itself."""
    calm = 1.0 + 0.049 * (rates - best) ** 2 + 0.01 * random.normal(size=(seeds, len(rates)))
    losses = np.where(calm < 2.3, calm, 2.31 + 0.002 * random.normal(size=calm.shape))
    return np.where(rates > edge + 0.3 * random.normal(size=(seeds, 1)), math.inf, losses)


def rows_of(width: int, rates: np.ndarray, losses: np.ndarray, first_seed: int = 0) -> Rows:
    return [
        {"width": width, "lr": float(2**rate), "seed": first_seed + seed, "loss": float(losses[seed, place])}
        for seed in range(len(losses))
        for place, rate in enumerate(rates)
    ]


def asked(apart: float, edge: float = CALM, seed: int = 0) -> tuple[Rows, float]:
    """Runs of two sizes whose best rates lie this many doublings apart, new runs of the larger at both of them, and the
    true regret."""
    random, rates = np.random.default_rng(seed), np.array(RATES, dtype=float)
    rows = rows_of(64, rates, planted(random, 4, rates, apart, CALM))
    rows += rows_of(256, rates, planted(random, 4, rates, 0.0, edge))
    found = nfd.fit_transfer(rows, guess=GUESS)
    pair = np.log2([found.best("logged", width, 1).value for width in (64, 256)])
    rows += rows_of(256, pair, planted(random, 8, pair, 0.0, edge), 100)
    truth = planted(np.random.default_rng(1), 20_000, pair, 0.0, edge).clip(max=GUESS).mean(0)
    return rows, float(truth[0] - truth[1])


@pytest.mark.parametrize(
    ("apart", "edge", "verdicts"),
    [
        (-2.0, CALM, {"COSTS"}),
        (2.0, CALM, {"COSTS"}),
        (-0.3, CALM, {"TRANSFERS"}),
        (1.0, 1.0, {"COSTS", "UNCERTAIN"}),  # half of the starts diverge at the smaller one's rate
    ],
)
def test_a_regret_holds_the_truth_whatever_small_rates_do(apart: float, edge: float, verdicts: set[str]) -> None:
    held = []
    for seed in range(10):
        rows, truth = asked(apart, edge, seed)
        transfer = nfd.fit_transfer(rows, guess=GUESS)
        regret = transfer.regret("logged")
        held.append(regret.low <= truth <= regret.high)
        assert str(transfer.verdict("logged")) in verdicts
    assert sum(held) >= 8


def test_smaller_rates_do_not_move_the_regret_of_digits() -> None:
    lr = [2.0**k for k in range(-10, 0)]

    def ask(lr: list[float]) -> nfd.Transfer:
        return nfd.transfer(ResidualMLP, batches(), [8, 32], [1], rules=("standard",), lr=lr, seeds=3)

    few, many = ask(lr), ask([2.0**k for k in range(-26, -10)] + lr)
    assert few.regret("standard").value == pytest.approx(many.regret("standard").value, rel=1e-3)
    assert few.regret("standard").high == pytest.approx(many.regret("standard").high, rel=1e-3)
    assert few.verdict("standard") == many.verdict("standard")


def test_without_a_guess_the_answer_asks_for_it() -> None:
    rows, _ = asked(-2.0)
    said = str(nfd.fit_transfer(rows))
    assert "guess=" in said
    assert "guess=" not in str(nfd.fit_transfer(rows, guess=GUESS))


@pytest.mark.parametrize(("step", "loss"), [(0.5, 6.0), (1.1, 4.0), (1.5, 2.5), (2.0, 2.5)])
def test_without_a_guess_divergence_counts_by_the_best_rates_beside_it(step: float, loss: float) -> None:
    """Five times what the fifth best rate loses; of those that lie 3.5 doublings apart at most, at least the third."""
    losses = (1.3, 1.0, 1.1, 1.6, 2.0, 3.0, math.inf)
    rows = [{"width": 8, "lr": 2.0 ** (step * place), "loss": own} for place, own in enumerate(losses)]
    ((cell,),) = (rule.cells.values() for rule in nfd.fit_transfer(rows).rules)
    assert cell.guess == pytest.approx(loss)


def test_a_regret_is_that_of_the_largest_network_whatever_lies_between() -> None:
    rows, _ = asked(-2.0)
    rates = np.array(RATES, dtype=float)
    between = rows_of(128, rates, planted(np.random.default_rng(2), 4, rates, -1.0, CALM))
    two, three = (nfd.fit_transfer(some, guess=GUESS).regret("logged") for some in (rows, rows + between))
    assert vars(three) == vars(two)
