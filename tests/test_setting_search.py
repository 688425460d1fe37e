"""The search for a value of a setting, in made-up worlds whose regret is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from nfd.core.estimates import standard_errors
from nfd.laws.sequential import LEVEL, Decision, Runs, Search, paired
from nfd.laws.setting_search import decide_setting

GUESS = math.log(10)
# The least loss, so that the progress is 1.8 nats.
LEAST = GUESS - 1.8


def decided(
    regrets: Sequence[float], noise: float, random: np.random.Generator, most: float = math.inf
) -> tuple[Decision, Search]:
    """Search where values lose these shares of the progress at the large network.

    The small network's best value is the first. Seeds differ by more than values do.
    """
    small = Runs(GUESS)
    for place in range(len(regrets)):
        for seed in range(3):
            loss = LEAST + 0.1 * place + noise * random.normal()
            small.losses[float(place), seed] = (loss, False)
    small.losses[0.0, 0] = (LEAST, False)
    search = Search(small, Runs(math.nan), 0.0, 0.1, most)
    of_seeds = 0.2 * random.normal(size=64)
    asking = decide_setting(search, 0.0, "weight_decay")
    try:
        while True:
            wanted = next(asking)
            search.large.guess = GUESS
            for place in wanted.log2_rates:
                for seed in wanted.seeds:
                    if (place, seed) in search.large.losses:
                        continue
                    loss = LEAST + 1.8 * regrets[int(place)] + of_seeds[seed]
                    loss += noise * random.normal()
                    search.large.losses[place, seed] = (loss, False)
    except StopIteration as end:
        decision: Decision = end.value
        return decision, search


@pytest.mark.parametrize(
    ("regrets", "verdict"),
    [
        ((0.0, 0.0, 0.3), "TRANSFERS"),
        ((0.03, 0.0, 0.01, 0.5), "TRANSFERS"),
        ((0.3, 0.0, 0.3), "COSTS"),
        ((0.25, 0.0, 0.01), "COSTS"),
    ],
)
def test_a_clear_regret_is_decided_by_few_seeds(regrets: Sequence[float], verdict: str) -> None:
    random = np.random.default_rng(0)
    verdicts = Counter[str]()
    seeds = list[int]()
    for _ in range(100):
        decision, search = decided(regrets, 0.05, random)
        verdicts[decision.verdict] += 1
        seeds.append(len(search.large.seeds([0.0])))
    assert verdicts[verdict] >= 95
    assert verdicts.total() - verdicts[verdict] == verdicts["UNCERTAIN"]
    assert np.mean(seeds) < 5


def test_a_regret_of_the_tolerance_is_seldom_decided_and_on_either_side_alike() -> None:
    """Five looks of the level .008 make each false verdict with a chance of .027 (normal noise).

    Of 400 worlds, 22 are three standard errors above.
    """
    random = np.random.default_rng(1)
    for regrets in ((0.1, 0.0), (0.1, 0.0, 0.0, 0.0)):
        verdicts = Counter(decided(regrets, 0.1, random)[0].verdict for _ in range(400))
        assert verdicts["TRANSFERS"] <= 22
        assert verdicts["COSTS"] <= 22


def test_a_value_that_diverges_is_no_rival_and_one_that_is_best_costs_when_it_diverges() -> None:
    random = np.random.default_rng(2)
    assert decided((0.0, 1.0), 0.02, random)[0].verdict == "TRANSFERS"
    assert decided((1.0, 0.0), 0.02, random)[0].verdict == "COSTS"


def test_a_spent_budget_leaves_a_search_open_with_its_reason() -> None:
    random = np.random.default_rng(3)
    decision, search = decided((0.25, 0.0), 0.15, random, most=14)
    assert (decision.verdict, decision.reason) == ("UNCERTAIN", "the budget is spent")
    assert search.trained <= 14
    assert decision.regret is not None
    assert decision.seeds_needed is None or decision.seeds_needed > 2


@pytest.mark.parametrize("has_near_rates", [True, False])
def test_a_pair_is_averaged_only_with_near_rates_that_there_are(has_near_rates: bool) -> None:
    """Two seeds without any have one degree of freedom, and half-widths of 40 standard errors."""
    random = np.random.default_rng(4)
    spacing = 0.2 if has_near_rates else 1.5
    runs = {name: Runs(GUESS) for name in ("small", "large")}
    for name, seeds in (("small", 4), ("large", 2)):
        for place in range(4):
            for seed in range(seeds):
                loss = 0.5 + spacing * place * 0.5 + 0.02 * random.normal()
                runs[name].losses[-8.0 + place, seed] = (loss, False)
    search = Search(runs["small"], runs["large"], -8.0, 0.1)
    limits = paired(search, -7.0, -8.0)
    paid = [
        runs["large"].losses[-7.0, seed][0] - runs["large"].losses[-8.0, seed][0] for seed in (0, 1)
    ]
    half = limits.calm_high * limits.progress - float(np.mean(paid))
    errors = half / (float(np.std(paid, ddof=1)) / math.sqrt(2))
    alone = standard_errors(1, LEVEL)
    assert (errors == pytest.approx(alone)) is not has_near_rates


@pytest.mark.parametrize("looks", [[2], [2, 3, 5, 8, 12]])
def test_no_search_trains_more_than_its_bounds_say(looks: list[int]) -> None:
    """Steep and flat losses, much and little noise, and rates beyond which training diverges."""
    sizes = []
    for world in range(60):
        random = np.random.default_rng(world)
        best = {"small": -8 + 3 * random.normal(), "large": -8 + 3 * random.normal()}
        steepness, noise = 10 ** random.uniform(-2.5, 0, size=2)
        edge = -8 + random.uniform(0, 12)
        search = Search(Runs(GUESS), Runs(GUESS), -9.0, 0.1, looks=looks)
        asking = search.decide()
        said = []
        for wanted in asking:
            said.append(sum(search.bounds.values()))
            runs = search.runs(wanted.which)
            for rate, seed in product(wanted.log2_rates, wanted.seeds):
                rise = steepness * (rate - best[wanted.which]) ** 2 + noise * random.normal()
                is_lost = rate > edge + 0.5 * random.normal()
                loss = GUESS if is_lost else min(GUESS, 0.6 * math.exp(min(rise, 3.0)))
                runs.losses.setdefault((rate, seed), (loss, is_lost))
        assert search.trained <= min(said)
        search.end()
        assert sum(search.bounds.values()) == search.trained
        sizes.append(search.trained)
    assert max(sizes) > 1.5 * min(sizes)
