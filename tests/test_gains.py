"""What one more seed buys against one more size: predictions beside what more trainings show."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from nfd.laws.best_rate import Scores, Size
from nfd.laws.gains import chance_after, cost_after, drift_after_seeds, drift_after_size, gains
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import RuleTransfer
from nfd.laws.sequential import Decision, Runs, Search
from nfd.laws.transfer import Transfer
from nfd.laws.transfer_page import sections

GUESS = math.log(10)
RATES = np.arange(-12.0, -5.0)
SIZES: list[Size] = [(16, 2), (32, 2), (64, 2)]
# Near enough to what was predicted.
WITHIN = 0.25


def losses(
    rates: Any, best: float, seeds: int, random: np.random.Generator, noise: float = 0.05
) -> Scores:
    """A bowl, 4 % higher an octave from its best rate; seeds differ by more than rates do."""
    of_seeds = 0.1 * random.normal(size=(seeds, 1))
    rises = 0.04 * (np.asarray(rates) - best) ** 2
    scores = 0.6 * np.exp(of_seeds + rises + noise * random.normal(size=(seeds, len(rates))))
    return Scores(np.asarray(rates), scores, np.zeros(scores.shape, np.bool_), GUESS)


def grid(
    seeds: int, sizes: list[Size], random: np.random.Generator, shift: float = 1.7
) -> RuleTransfer:
    """A grid whose best rate drifts by a tenth of a doubling per doubling of width.

    What the small network's rate costs the large one is measured apart, at ``shift`` octaves.
    """
    cells = {
        size: losses(RATES, -8.5 + 0.1 * math.log2(size[0] / 16), seeds, random) for size in sizes
    }
    new = losses([-8.5 - shift, -8.5], -8.5, 2 * seeds, random)
    return RuleTransfer("mup", cells, Regret(new, cells[sizes[-1]]))


def half(interval: Any) -> float:
    return float(interval.high - interval.low) / 2


@pytest.mark.parametrize("shift", [1.7, -1.7, 3.0])
def test_the_cost_after_more_seeds_is_known_as_well_as_predicted(shift: float) -> None:
    """Below the limit and above it; towards higher rates rare divergence has its share."""
    random = np.random.default_rng(0)
    before = [grid(4, SIZES, random, shift) for _ in range(100)]
    for more in (1, 4):
        after = [grid(4 + more, SIZES, random, shift) for _ in range(100)]
        predicted = fmean(cost_after(rule, more) for rule in before)
        seen = fmean(cost_after(rule, 0) for rule in after)
        assert predicted == pytest.approx(seen, rel=WITHIN)
    assert predicted < (1 - WITHIN) * fmean(cost_after(rule, 0) for rule in before)


def test_the_drift_after_more_seeds_or_one_more_size_is_known_as_well_as_predicted() -> None:
    random = np.random.default_rng(1)
    before = [grid(4, SIZES, random) for _ in range(20)]
    of_more_seeds = [grid(8, SIZES, random) for _ in range(20)]
    of_one_size = [grid(4, [*SIZES, (128, 2)], random) for _ in range(20)]
    now = fmean(half(rule.drifts["width"]) for rule in before)
    for predicted, after in (
        (fmean(drift_after_seeds(rule, "width", 4) for rule in before), of_more_seeds),
        (fmean(drift_after_size(rule, "width") for rule in before), of_one_size),
    ):
        seen = fmean(half(rule.drifts["width"]) for rule in after)
        assert predicted == pytest.approx(seen, rel=WITHIN)
        assert predicted < 0.85 * now


def test_the_chance_to_decide_is_how_often_more_seeds_do() -> None:
    """Over costs that are all as likely, of grids that two to four seeds leave undecided."""
    random = np.random.default_rng(2)
    chances = list[float]()
    decided = list[bool]()
    while len(chances) < 90:
        # The cost over 1.7 nats is about .6 (exp(.04 shift^2) - 1) / 1.7.
        share = random.uniform(-0.1, 0.35)
        octaves = math.sqrt(math.log1p(max(share, 0.0) * 1.7 / 0.6) / 0.04)
        of_seeds = 0.25
        whole = losses([-8.5 - octaves, -8.5], -8.5, 16, random, of_seeds)
        few = Scores(whole.log2_eta, whole.losses[:8], whole.upset[:8], GUESS)
        cells = {size: losses(RATES, -8.5, 4, random) for size in SIZES}
        rule = RuleTransfer("mup", cells, Regret(few, cells[SIZES[-1]]))
        if rule.verdict != "UNCERTAIN":
            continue
        chances.append(chance_after(rule, 4))
        later = RuleTransfer("mup", cells, Regret(whole, cells[SIZES[-1]]))
        decided.append(later.verdict != "UNCERTAIN")
    assert fmean(chances) == pytest.approx(fmean(decided), abs=0.12)
    # A large chance is kept more often than a small one.
    order = np.argsort(chances)
    of_decided = np.array(decided)[order]
    assert of_decided[:30].mean() < of_decided[-30:].mean()


def searched(seeds: int, random: np.random.Generator) -> RuleTransfer:
    """A search that looks once, where the small network's best rate costs about the limit."""
    search = Search(Runs(GUESS), Runs(GUESS), -8.5, 0.1, looks=[seeds])
    best = {"small": -8.5, "large": -9.9}
    asking = search.decide()
    of_seeds = 0.1 * random.normal(size=64)
    decision: Decision
    try:
        while True:
            wanted = next(asking)
            runs = search.runs(wanted.which)
            for rate in wanted.log2_rates:
                for seed in wanted.seeds:
                    if (rate, seed) not in runs.losses:
                        rise = 0.15 * (rate - best[wanted.which]) ** 2
                        rise += of_seeds[seed] + 0.08 * random.normal()
                        runs.losses[rate, seed] = (0.6 * math.exp(rise), False)
    except StopIteration as end:
        decision = end.value
    cells = {(16, 2): search.small.everything(), (64, 2): search.large.everything()}
    return RuleTransfer("mup", cells, decision.regret, decision=decision)


def test_the_half_width_of_a_search_is_as_predicted() -> None:
    random = np.random.default_rng(3)
    before = [searched(4, random) for _ in range(16)]
    after = [searched(8, random) for _ in range(16)]
    predicted = fmean(cost_after(rule, 4) for rule in before)
    seen = fmean(cost_after(rule, 0) for rule in after)
    assert predicted == pytest.approx(seen, rel=WITHIN)
    assert predicted < (1 - WITHIN) * fmean(cost_after(rule, 0) for rule in before)


def test_rows_say_what_is_bought_and_nothing_of_a_decided_verdict() -> None:
    random = np.random.default_rng(4)
    undecided = gains(grid(3, SIZES, random))
    assert [gain.adds for gain in undecided] == [
        "1 more seed",
        "3 more seeds",
        "a size of twice the width",
    ]
    costs = [gain.cost for gain in undecided]
    assert all(more < fewer for fewer, more in pairwise(costs[:2]))
    assert undecided[2].cost > costs[0]
    # At three sizes of seven rates, and twice as many fresh seeds at both best rates.
    assert [gain.trainings for gain in undecided] == [25, 75, 21]
    assert undecided[0].row["cost known to"].endswith(" %")
    decided = gains(grid(8, SIZES, random, shift=0.2))
    assert [gain.row["chance to decide"] for gain in decided] == [""] * 3
    assert "chance" not in decided[0].sentence


def test_a_page_folds_the_table_and_a_terminal_prints_it_on_request() -> None:
    random = np.random.default_rng(5)
    transfer = Transfer((grid(3, SIZES, random),), "made up", "test loss")
    folded = [section for section in sections(transfer) if section.folded]
    (table,) = (section.table for section in folded if "one more seed" in section.title)
    assert [row["adds"] for row in table] == [gain.adds for gain in transfer.gains]
    sentences = [gain.sentence for gain in transfer.gains]
    assert all(sentence in transfer.answer.details for sentence in sentences)
    assert not any(sentence in str(transfer) for sentence in sentences)
