"""Grids of rates, as people write them: uneven, in any order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.contract.common import ResidualMLP, batches

import nfd

GUESS = math.log(10)
SIZES = 120  # of a log, each with a best rate of its own
GRIDS = {  # steps in doublings from one rate to the next; the first rate lies anywhere
    "by one factor": (1.0,),
    "1 3 10 30": (math.log2(3), math.log2(10 / 3)),
    "1 2 5 10": (1.0, math.log2(2.5), 1.0),
    "two close, one apart": (0.2, 0.2, 1.2),
}


def planted(
    steps: tuple[float, ...], random: np.random.Generator
) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Runs of four seeds at eight rates around a best rate, for every width; log2 of the best
    rates.
    """
    rows = []
    best = {}
    for width in range(1, SIZES + 1):
        rates = np.cumsum([0.0, *np.roll(np.tile(steps, 8), random.integers(len(steps)))])[:8]
        best[width] = random.uniform(rates[3], rates[4])
        for seed in range(4):
            bowl = 0.5 + 0.2 * (rates - best[width] - 0.15 * random.normal()) ** 2
            losses = bowl * np.exp(0.1 * random.normal(size=8) + 0.08 * random.normal())
            rows += [
                {"width": width, "lr": 2.0**rate, "seed": seed, "loss": float(loss)}
                for rate, loss in zip(rates, losses, strict=True)
            ]
    random.shuffle(rows)
    return rows, best


@pytest.mark.parametrize("name", GRIDS)
def test_intervals_of_best_rates_hold_them_on_any_grid(name: str) -> None:
    rows, best = planted(GRIDS[name], np.random.default_rng(0))
    found = nfd.fit_transfer(rows, guess=GUESS)
    intervals = [(found.best("logged", width, 1), 2.0**place) for width, place in best.items()]
    # not at an end
    known = [(interval, rate) for interval, rate in intervals if not math.isnan(interval.value)]
    assert len(known) > 0.9 * SIZES

    def held(factor: float) -> float:
        return float(
            np.mean([interval.low <= factor * rate <= interval.high for interval, rate in known])
        )

    assert held(1.0) > 0.91  # three errors below 0.95
    assert held(2.5) < 0.4  # and not by being wide


@pytest.mark.parametrize("seeds", [2, 3])
def test_intervals_hold_best_rates_beside_divergence(seeds: int) -> None:
    """Losses fall slowly up to the best rate, and 1.4 times beyond it runs diverge; rates by
    factors of 1.4.
    """
    random = np.random.default_rng(seeds)
    rows = list[dict[str, Any]]()
    best = dict[int, float]()
    for width in range(1, 101):
        rates = 0.5 * np.arange(8) + random.uniform(0, 0.5)
        best[width] = random.uniform(2, 2.5)
        for seed in range(seeds):
            u = rates - best[width] - 0.15 * random.normal()
            losses = (0.5 + np.where(u < 0, 0.12, 0.1) * u**2) * np.exp(0.1 * random.normal(size=8))
            losses[rates > best[width] + 0.5 + 0.25 * random.normal()] = math.inf
            rows += [
                {"width": width, "lr": 2.0**rate, "seed": seed, "loss": float(loss)}
                for rate, loss in zip(rates, losses, strict=True)
            ]
    found = nfd.fit_transfer(rows, guess=GUESS)
    intervals = [(found.best("logged", width, 1), 2.0**place) for width, place in best.items()]
    known = [(interval, rate) for interval, rate in intervals if not math.isnan(interval.value)]
    assert len(known) > 60
    held, far = (
        np.mean([i.low <= factor * rate <= i.high for i, rate in known]) for factor in (1.0, 4.0)
    )
    assert held > 0.87  # three errors below 0.95
    assert far < 0.3


def test_the_same_rate_in_single_precision_is_one_rate() -> None:
    exact = [
        {
            "width": n,
            "lr": 3.0**-k,
            "seed": seed,
            "loss": 2 + 0.1 * (k + n / 16 - 6.3 + seed / 9) ** 2,
        }
        for n in (8, 16)
        for seed in range(3)
        for k in range(3, 9)
    ]
    mixed = [row | {"lr": float(np.float32(row["lr"]))} if row["seed"] else row for row in exact]
    answer, other = (
        nfd.fit_transfer(rows, guess=GUESS).best("logged", 16, 1) for rows in (mixed, exact)
    )
    assert (answer.low, answer.high) == pytest.approx((other.low, other.high), rel=1e-4)
    one = nfd.fit_transfer([row for row in exact if not row["seed"]], guess=GUESS).best(
        "logged", 16, 1
    )
    assert math.isnan(one.low)  # of which no interval could come


def test_rates_of_your_model_may_come_in_any_order() -> None:
    def asked(*rates: float) -> nfd.Transfer:
        return nfd.transfer(
            ResidualMLP, batches(6, 8), [8, 16], [1], rules=("mup",), lr=rates, seeds=2
        )

    shuffled = asked(0.1, 0.002, 0.03, 0.3)
    assert shuffled.table == asked(0.002, 0.03, 0.1, 0.3).table
    assert shuffled.table != asked(0.002, 0.03, 0.1, 0.31).table


@pytest.mark.parametrize(
    ("rates", "said"),
    [((0.1, 0.2, 0.1), "0.2, 0.1"), ((0.1, 0.101, 0.4), "0.101"), ((0.1, 0.4), "three or more")],
)
def test_rates_that_say_nothing_are_refused(rates: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        nfd.transfer(ResidualMLP, batches(1, 4), [8, 16], [1], lr=rates)
    assert str(error.value).startswith("lr ")


# ---- regrets of planted curves and of digits

RATES = range(-10, 6)  # log2; the largest network is best at 0
CALM = math.inf

Rows = list[dict[str, Any]]


def curves(
    random: np.random.Generator, seeds: int, rates: np.ndarray, best: float, edge: float
) -> np.ndarray:
    """Losses ``[seeds, rates]``: a parabola with 1 at its lowest, 2.31 where nothing is learnt,
    infinite beyond an edge of stability that each seed has for itself."""
    calm = 1.0 + 0.049 * (rates - best) ** 2 + 0.01 * random.normal(size=(seeds, len(rates)))
    losses = np.where(calm < 2.3, calm, 2.31 + 0.002 * random.normal(size=calm.shape))
    return np.where(rates > edge + 0.3 * random.normal(size=(seeds, 1)), math.inf, losses)


def rows_of(width: int, rates: np.ndarray, losses: np.ndarray, first_seed: int = 0) -> Rows:
    return [
        {
            "width": width,
            "lr": float(2**rate),
            "seed": first_seed + seed,
            "loss": float(losses[seed, place]),
        }
        for seed in range(len(losses))
        for place, rate in enumerate(rates)
    ]


def asked(apart: float, edge: float = CALM, seed: int = 0) -> tuple[Rows, float]:
    """Runs of two sizes whose best rates lie this many doublings apart, new runs of the larger at
    both of them, and the true regret."""
    random = np.random.default_rng(seed)
    rates = np.array(RATES, dtype=float)
    rows = rows_of(64, rates, curves(random, 4, rates, apart, CALM))
    rows += rows_of(256, rates, curves(random, 4, rates, 0.0, edge))
    found = nfd.fit_transfer(rows, guess=GUESS)
    pair = np.log2([found.best("logged", width, 1).value for width in (64, 256)])
    rows += rows_of(256, pair, curves(random, 8, pair, 0.0, edge), 100)
    truth = curves(np.random.default_rng(1), 20_000, pair, 0.0, edge).clip(max=GUESS).mean(0)
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
def test_a_regret_holds_the_truth_whatever_small_rates_do(
    apart: float, edge: float, verdicts: set[str]
) -> None:
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
        return nfd.transfer(
            ResidualMLP, batches(), [8, 32], [1], rules=("standard",), lr=lr, seeds=3
        )

    few = ask(lr)
    many = ask([2.0**k for k in range(-26, -10)] + lr)
    assert few.regret("standard").value == pytest.approx(many.regret("standard").value, rel=1e-3)
    assert few.regret("standard").high == pytest.approx(many.regret("standard").high, rel=1e-3)
    assert few.verdict("standard") == many.verdict("standard")


def test_without_a_guess_the_answer_asks_for_it() -> None:
    rows, _ = asked(-2.0)
    said = str(nfd.fit_transfer(rows))
    assert "say the loss before training" in said
    assert "say the loss before training" not in str(nfd.fit_transfer(rows, guess=GUESS))


@pytest.mark.parametrize(("step", "loss"), [(0.5, 6.0), (1.1, 4.0), (1.5, 2.5), (2.0, 2.5)])
def test_without_a_guess_divergence_counts_by_the_best_rates_beside_it(
    step: float, loss: float
) -> None:
    """Five times what the fifth best rate loses; of those that lie 3.5 doublings apart at most, at
    least the third.
    """
    losses = (1.3, 1.0, 1.1, 1.6, 2.0, 3.0, math.inf)
    rows = [
        {"width": 8, "lr": 2.0 ** (step * place), "loss": own} for place, own in enumerate(losses)
    ]
    ((cell,),) = (rule.cells.values() for rule in nfd.fit_transfer(rows).rules)
    assert cell.guess == pytest.approx(loss)


def test_a_regret_is_that_of_the_largest_network_whatever_lies_between() -> None:
    rows, _ = asked(-2.0)
    rates = np.array(RATES, dtype=float)
    between = rows_of(128, rates, curves(np.random.default_rng(2), 4, rates, -1.0, CALM))
    two, three = (
        nfd.fit_transfer(some, guess=GUESS).regret("logged") for some in (rows, rows + between)
    )
    assert vars(three) == vars(two)
