"""The law of the best rate over parameters, tokens and batch: simulated sweeps whose law is known,
and its refusals.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.common import ResidualMLP

import nfd

Rows = list[dict[str, Any]]
TRUE = {"parameters": -0.5, "tokens": 0.1, "batch": 0.8, "critical_batch": 0.5}


def best(N: float, D: float, B: float, sharpness: float = 1.0) -> float:
    """log2 of the true best rate."""
    n = math.log2(N / 3e8)
    t = math.log2(D / 1e10)
    b = math.log2(B / 2.5e5)
    above = 1.0 + TRUE["critical_batch"] * t - b
    saturated = TRUE["batch"] / sharpness * math.log2(1 + 2 ** (sharpness * above))
    return -9.0 + TRUE["parameters"] * n + TRUE["tokens"] * t - saturated


def sweep(
    N: float,
    D: float,
    B: float,
    random: np.random.Generator,
    *,
    cliff: float = math.inf,
    sharpness: float = 1.0,
) -> Rows:
    """Seven runs, a doubling apart, of bowls that are steeper to the right and end at a cliff."""
    place = best(N, D, B, sharpness) + 0.1 * random.normal()
    first = random.uniform(0, 1) - 4
    curvature = 0.003 * math.exp(0.4 * random.normal())
    rows = Rows()
    for k in range(7):
        away = first + k
        risen = curvature * away**2 * (2.0 if away > 0 else 1.0) + 0.0005 * random.normal()
        loss = 3 * (1 + risen) if away < cliff else random.choice([8.0, math.inf])
        rows.append(
            {"parameters": N, "tokens": D, "batch": B, "lr": 2 ** (place + away), "loss": loss}
        )
    return rows


def table(random: np.random.Generator, **bowl: float) -> Rows:
    cells = [(N, D, B) for N in (1e8, 3e8) for D in (4e9, 2e10) for B in (6e4, 2.5e5, 1e6)]
    return [row for cell in cells for row in sweep(*cell, random, **bowl)]


FAR = (
    (1e9, 2e10, 2.5e5),
    (3e8, 1e11, 2.5e5),
    (3e8, 1e10, 4e6),
    (1e8, 4e9, 1.6e4),
    (2e9, 5e10, 1e6),
)


@pytest.mark.parametrize("sharpness", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cliff", [math.inf, pytest.param(1.0, marks=pytest.mark.slow)])
def test_intervals_of_new_trainings_and_of_exponents_hold_the_truth(
    cliff: float, sharpness: float
) -> None:
    """About 95 of 100; rates that are four times those of the sweep cost little."""
    random = np.random.default_rng(0)
    held = list[bool]()
    powers = list[bool]()
    cost = list[float]()
    critical = list[bool]()
    for _ in range(6):
        law = nfd.fit_rate_law(table(random, cliff=cliff, sharpness=sharpness))
        for cell in FAR:
            found = law.at(*cell)
            truth = 2 ** best(*cell, sharpness)
            held.append(found.rate.low < truth < found.rate.high)
            cost.append(0.003 * math.log2(found.advised / truth) ** 2)
        powers += [
            law.exponents[name].low < value < law.exponents[name].high
            for name, value in TRUE.items()
        ]
        batch = law.critical_batch(1e11)
        critical.append(batch.low < 5e5 * 10**0.5 < batch.high)
    assert np.mean(held) >= 0.9
    assert sum(critical) >= 5  # each of six holds it 95 of 100 times
    assert np.mean(powers) >= 0.9
    assert np.mean(cost) < 0.002


def test_the_advised_rate_is_below_the_best_one_where_the_high_side_is_steeper() -> None:
    found = nfd.fit_rate_law(table(np.random.default_rng(1))).at(1e9, 1e11, 1e6)
    assert found.rate.low < found.advised < found.rate.value < found.rate.high
    assert 0 < found.excess.value < 0.02
    assert found.excess.low < found.excess.value < found.excess.high
    assert f"{found.advised:.2g}" in str(found)


def test_a_cell_whose_best_run_is_at_the_edge_widens_the_answer_and_does_not_break_it() -> None:
    random = np.random.default_rng(2)
    rows = table(random)
    cut = [
        row
        for row in rows
        if math.log2(row["lr"]) < best(row["parameters"], row["tokens"], row["batch"]) - 1
    ]
    whole, half = (nfd.fit_rate_law(given).at(1e9, 2e10, 2.5e5).rate for given in (rows, cut))
    truth = 2 ** best(1e9, 2e10, 2.5e5)
    assert half.low < truth < half.high
    assert half.high / half.low > whole.high / whole.low


def test_the_prior_is_named_narrows_the_answer_and_can_be_turned_off(tmp_path: Path) -> None:
    rows = [
        row
        for row in table(np.random.default_rng(3))
        if row["parameters"] == 1e8 and row["tokens"] == 4e9
    ]
    law = nfd.fit_rate_law(rows)
    plain = nfd.fit_rate_law(rows, prior=None)
    assert "2503.04715" in " ".join(law.sentences)
    assert "without priors" in " ".join(plain.sentences)
    bare = [{**row, "batch": None, "tokens": tokens} for row in rows[:9] for tokens in (4e9, 8e9)]
    assert [
        any("no batch" in note for note in nfd.fit_rate_law(own).notes) for own in (bare, rows)
    ] == [True, False]
    own, alone = (given.at(1e9, 1e11, 1e6).rate for given in (law, plain))
    assert math.log(own.high / own.low) < 0.7 * math.log(alone.high / alone.low)
    with pytest.raises(OSError, match=r"missing\.json"):
        nfd.fit_rate_law(rows, prior=tmp_path / "missing.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json"):
        nfd.fit_rate_law(rows, prior=tmp_path / "other.json")


def test_columns_may_have_other_names_and_steps_are_tokens_over_batch() -> None:
    rows = table(np.random.default_rng(4))
    renamed = [
        {
            "n_params": r["parameters"],
            "max_steps": r["tokens"] / r["batch"],
            "batch_tokens": r["batch"],
        }
        | {"config/learning_rate": r["lr"], "val_loss": r["loss"], "weight_decay": 0.0}
        for r in rows
    ]
    one, other = (nfd.fit_rate_law(given).at(1e9, 2e10, 1e6) for given in (rows, renamed))
    assert one.advised == pytest.approx(other.advised, rel=1e-4)


def test_a_table_of_width_and_depth_alone_has_no_such_law_and_says_so() -> None:
    rows = [
        {"width": n, "lr": 2.0**k, "loss": 3 + 0.05 * (k + 9) ** 2}
        for n in (32, 64)
        for k in range(-12, -6)
    ]
    with pytest.raises(ValueError, match=r"use nfd\.fit_transfer"):
        nfd.fit_rate_law(rows)
    counted = nfd.fit_rate_law([row | {"parameters": 12 * row["width"] ** 2} for row in rows])
    assert counted.at(parameters=1e6).rate.low > 0


def test_what_is_missing_or_cannot_be_is_refused_by_name() -> None:
    law = nfd.fit_rate_law(table(np.random.default_rng(5)))
    with pytest.raises(ValueError, match="say tokens="):
        law.at(parameters=1e9, batch=1e6)
    with pytest.raises(ValueError, match="batch must be greater than 0"):
        law.at(1e9, 1e10, -1)
    one_rate = [{"parameters": N, "tokens": 1e9, "lr": 0.01, "loss": 3.0} for N in (1e8, 1e9)]
    with pytest.raises(ValueError, match="differ in the rate alone"):
        nfd.fit_rate_law(one_rate)


# ---- what cells say, and what they do not


def ended(rows: Rows, side: int) -> Rows:
    """Of every cell the runs on one side of the best rate, more than half a doubling away."""
    return [
        r
        for r in rows
        if side * (math.log2(r["lr"]) - best(r["parameters"], r["tokens"], r["batch"])) > 0.5
    ]


@pytest.mark.parametrize(("side", "word"), [(1, "lower"), (-1, "higher")])
def test_one_sided_cells_reach_beyond_their_rates_and_are_told(side: int, word: str) -> None:
    rows = table(np.random.default_rng(8))
    place = (3e8, 2e10, 2.5e5)
    cut = ended(rows, side)
    whole = nfd.fit_rate_law(rows)
    half = nfd.fit_rate_law(cut)
    rate = half.at(*place).rate
    own = [r["lr"] for r in cut if (r["parameters"], r["tokens"], r["batch"]) == place]
    assert rate.low < min(own) if side > 0 else rate.high > max(own)
    assert f"of 12 cells the best run is at an end of its rates: add {word} rates" in " ".join(
        half.sentences
    )
    assert "at an end of its rates" not in " ".join(whole.sentences)


def test_the_best_rate_lies_on_the_near_side_of_a_run_that_diverged() -> None:
    """The best run is the last one that is finite: next to it either nothing was tried, or it
    diverged.
    """
    cells = [
        {"parameters": N, "tokens": D, "batch": 2.5e5} for N in (1e8, 3e8) for D in (4e9, 2e10)
    ]
    losses = {-12: 3.05, -11: 3.02, -10: 3.006, -9: 3.0}
    open_end = [cell | {"lr": 2.0**k, "loss": loss} for cell in cells for k, loss in losses.items()]
    wall = [cell | {"lr": 2.0**-8, "loss": math.inf} for cell in cells]
    without, beside = (nfd.fit_rate_law(rows, prior=None) for rows in (open_end, open_end + wall))
    free, held = (law.at(3e8, 2e10, 2.5e5).rate for law in (without, beside))
    assert free.high > 2.0**-8
    assert held.high < free.high
    assert held.value < 2.0**-8
    ends = "In 4 of 4 cells the best run is at an end of its rates: add higher rates"
    assert ends in " ".join(without.sentences)
    assert "at an end of its rates" not in " ".join(beside.sentences)


def test_cells_that_diverged_at_every_rate_are_left_out_and_counted() -> None:
    rows = table(np.random.default_rng(9))
    lost = [
        {"parameters": 1e9, "tokens": 4e9, "batch": 6e4, "lr": 2.0**k, "loss": math.nan}
        for k in (-9, -8)
    ]
    law = nfd.fit_rate_law(rows)
    other = nfd.fit_rate_law(rows + lost)
    assert other.at(3e8, 2e10, 2.5e5).advised == pytest.approx(
        law.at(3e8, 2e10, 2.5e5).advised, rel=1e-6
    )
    assert "1 of 13 cells" in " ".join(other.sentences)
    assert "left out" not in " ".join(law.sentences)
    with pytest.raises(ValueError, match="differ in the rate alone"):
        nfd.fit_rate_law(lost)


@pytest.mark.parametrize("sharpness", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_critical_batch_is_found_where_batches_span_it_and_wide_where_they_do_not(
    sharpness: float,
) -> None:
    # at 10 billion tokens
    truth = 5e5
    widths = list[float]()
    for batches in ((6e4, 2.5e5, 1e6, 4e6), (1e3, 2e3, 4e3, 8e3), (4e6, 8e6, 1.6e7, 3.2e7)):
        random = np.random.default_rng(10)
        cells = [(N, D, B) for N in (1e8, 3e8) for D in (4e9, 2e10) for B in batches]
        law = nfd.fit_rate_law(
            [row for cell in cells for row in sweep(*cell, random, sharpness=sharpness)]
        )
        found = law.critical_batch(1e10)
        assert found.low < truth < found.high
        widths.append(math.log2(found.high / found.low))
    assert widths[0] < 0.7 * min(widths[1:])


def test_three_runs_of_a_sharp_bowl_hold_its_best_rate_between_them() -> None:
    """Measured losses of one small model; where they fall to the last rate, the best one may lie
    beyond.
    """
    place = {"parameters": 5.7e7, "tokens": 5.24e8, "batch": 1.05e6}
    rates = (0.002, 0.004, 0.008)
    bowl, fall = (
        nfd.fit_rate_law(
            [place | {"lr": lr, "loss": loss} for lr, loss in zip(rates, losses, strict=True)]
        )
        for losses in ((4.6493, 4.4403, 4.4602), (4.6493, 4.4602, 4.4403))
    )
    inside, beyond = (law.at(**place).rate for law in (bowl, fall))
    assert 0.002 < inside.low < inside.value < inside.high < 0.008 * 2**0.5
    assert inside.value < 0.008 < beyond.high
    assert inside.value < beyond.value


@pytest.mark.parametrize("decays", [(0.1, 0.1), (0.0, 0.1)])
def test_runs_of_another_decay_are_cells_of_their_own_and_said(decays: tuple[float, float]) -> None:
    """Rows of one cell in turn have one decay or another, so that a merged cell would have seven
    rates.
    """
    rows = [
        row | {"weight_decay": decays[k % 2]}
        for k, row in enumerate(table(np.random.default_rng(11)))
    ]
    text = " ".join(nfd.fit_rate_law(rows).sentences)
    apart = decays[0] != decays[1]
    assert f"from {24 if apart else 12} cells" in text
    assert ("Runs of weight decays 0, 0.1 are kept apart" in text) == apart


def test_widths_in_place_of_parameters_are_counted_and_said() -> None:
    rows = table(np.random.default_rng(12))
    sizes = {1e8: (1024, 8), 3e8: (2048, 6)}
    named = [
        row | {"parameters": 12.0 * n * n * L}
        for row in rows
        for n, L in [sizes[row["parameters"]]]
    ]
    shaped = [
        {key: value for key, value in row.items() if key != "parameters"} | {"width": n, "depth": L}
        for row in rows
        for n, L in [sizes[row["parameters"]]]
    ]
    law = nfd.fit_rate_law(named)
    by_shape = nfd.fit_rate_law(shaped)
    assert by_shape.at(1e9, 2e10, 1e6).advised == pytest.approx(
        law.at(1e9, 2e10, 1e6).advised, rel=1e-6
    )
    assert "12 width^2 depth" in " ".join(by_shape.sentences)
    assert "12 width^2 depth" not in " ".join(law.sentences)


def test_which_size_the_law_uses_is_said_where_parameters_and_widths_differ() -> None:
    """Of one width the rate is expected to follow parameters less, as far as the package's prior
    says anything.
    """
    rows = [row for row in table(np.random.default_rng(13)) if row["batch"] == 2.5e5]
    one, two = (
        [row | {"width": n if row["parameters"] < 2e8 else 1024} for row in rows]
        for n in (1024, 512)
    )
    of_one = nfd.fit_rate_law(one)
    of_two = nfd.fit_rate_law(two)
    assert of_one.exponents["parameters"].value > of_two.exponents["parameters"].value
    assert "All runs have width 1024" in " ".join(of_one.sentences)
    assert "All runs have width" not in " ".join(of_two.sentences)
    assert "All runs have width" not in " ".join(nfd.fit_rate_law(one, prior=None).sentences)
    assert "size is parameters: width and depth only keep cells apart" in " ".join(of_two.sentences)
    same = nfd.fit_rate_law([row | {"parameters": 3e8} for row in two])
    assert "parameters, which are the same in all runs" in " ".join(same.sentences)


def test_published_powers_stand_beside_those_of_the_package() -> None:
    page = (Path(__file__).parents[2] / "docs/mathematics/recipe.md").read_text()
    for power in nfd.RateLaw.of_sweeps().exponents.values():
        assert f"| {power.unsigned} |" in page


# ---- plans

RUN: dict[str, tuple[float, float]] = {"batch": (2.5e5, 2e6), "tokens": (4e9, 6.4e10)}
TRUTH = 2 ** (best(3e8, 6.4e10, 2e6) - best(3e8, 4e9, 2.5e5))
MADE: dict[str, Any] = {"base": (32, 2), "make_model": ResidualMLP, "sample": torch.zeros(2, 64)}


def planned(optimizer: str = "adamw", **run: Any) -> nfd.RunScaling:
    found = nfd.plan(ResidualMLP(64, 2), optimizer=optimizer, **MADE).for_run(**run).run
    assert found is not None
    return found


def rate_of(run: nfd.RunScaling, optimizer: str = "adamw") -> Any:
    (row,) = [row for row in run.factors if row.quantity == "rate" and row.optimizer == optimizer]
    return row


def width_of(run: nfd.RunScaling) -> float:
    low, high = rate_of(run).interval
    return math.log2(high / low)


@pytest.mark.parametrize("source", ["by default", "runs"])
def test_a_plan_follows_a_law_and_says_its_interval_and_what_missing_it_costs(source: str) -> None:
    fitted = nfd.fit_rate_law(table(np.random.default_rng(6)))
    law = fitted if source == "runs" else None
    plan = nfd.plan(ResidualMLP(64, 2), **MADE, **RUN, law=law)
    assert plan.run is not None
    row = rate_of(plan.run)
    low, high = row.interval
    assert low < TRUTH < high
    assert low < row.value < high
    assert plan.run.factor("rate", "adamw") == row.value
    assert 0 < row.excess < 0.01
    assert f"{100 * row.excess:.2g} %" in str(plan)
    assert ("12 cells" in row.source) == (law is not None)
    assert "2503.04715" in row.source
    assert nfd.Plan.from_dict(plan.to_dict()) == plan
    assert plan.run.factor("weight decay", "adamw") == pytest.approx(8 / 16 / row.value)
    assert plan.run == planned(**RUN, law=law)


def test_runs_of_your_own_narrow_the_rate_and_distance_widens_it() -> None:
    law = nfd.fit_rate_law(table(np.random.default_rng(6)))
    assert width_of(planned(**RUN, law=law)) < 0.8 * width_of(planned(**RUN))
    widths = [width_of(planned(batch=(1e5, 1e5 * k), tokens=(1e9, 1e9 * k))) for k in (1, 2, 8, 64)]
    assert widths[0] < 0.01
    assert widths == sorted(widths)
    assert widths[-1] > 2 * widths[1]
    assert width_of(planned(tokens=RUN["tokens"])) > width_of(
        planned(tokens=RUN["tokens"], batch=(2.5e5, 2.5e5))
    )


def test_fixed_powers_are_evidence_with_their_measured_cost() -> None:
    (row,) = [row for row in planned(**RUN).factors if row.quantity == "rate, not used"]
    assert row.value == pytest.approx(8**0.5 * 16**-0.32)
    prior = Path(nfd.__file__).parent / "laws/priors/rates.json"
    stored = json.loads(prior.read_text())["evidence"]["adam"]
    assert all(
        case in row.source and f"{cost['powers']:.2g}" in row.source
        for case, cost in stored.items()
    )
    page = (Path(__file__).parents[2] / "docs/mathematics/recipe.md").read_text()
    assert all(
        f"| {case} | {cost['cells']} | {cost['law']:.2g} % |" in page
        for case, cost in stored.items()
    )
    assert all(cost["law"] < cost["powers"] and cost["covered"] > 0.9 for cost in stored.values())


def test_a_critical_batch_that_was_measured_enters_the_law() -> None:
    here = 2.5e5 * 2 ** (1.0 + TRUE["critical_batch"] * math.log2(4e9 / 1e10))
    given: dict[str, Any] = {"batch": (2.5e5, 2e6), "tokens": (4e9, 4e9)}
    low, row, high = (rate_of(planned(**given, critical_batch=here * by)) for by in (0.01, 1, 100))
    assert row.interval[0] < 2 ** (best(3e8, 4e9, 2e6) - best(3e8, 4e9, 2.5e5)) < row.interval[1]
    assert low.value < row.value < 0.8 * high.value
    one, other = (  # in samples of 1,000 tokens, and in tokens
        rate_of(
            planned(
                batch=(250 * k, 2000 * k), tokens=(4e6 * k, 4e6 * k), critical_batch=here * k / 1000
            )
        )
        for k in (1, 1000)
    )
    assert other.interval[0] < one.value < other.interval[1]
    assert one.interval[0] < other.value < one.interval[1]


def test_sgd_keeps_the_theorem_unless_the_runs_are_its_own() -> None:
    law = nfd.RateLaw.of_sweeps()
    assert [row.law for row in planned("sgd", **RUN).factors][:2] == ["batch-rate", "tokens-rate"]
    assert rate_of(planned("sgd", **RUN, law=law), "sgd").law == "best-rate"
    assert rate_of(planned("lion", **RUN), "lion").label == "assumption"
    assert rate_of(planned("lion", **RUN, law=law), "lion").label == "empirical law"


def test_the_same_run_has_the_same_rate_and_another_kind_of_law_is_refused() -> None:
    same = nfd.RateLaw.of_sweeps().factor(batch=(1e6, 1e6), tokens=(1e9, 1e9))
    assert same.rate.value == pytest.approx(1.0)
    assert same.rate.high == pytest.approx(1.0, abs=0.01)
    widths = [
        {"width": n, "lr": 2.0**k, "loss": 3 + 0.05 * (k + 9) ** 2}
        for n in (32, 64)
        for k in range(-12, -6)
    ]
    for wrong in (0.5, nfd.fit_transfer(widths)):
        with pytest.raises(TypeError, match=r"law must be an nfd\.RateLaw"):
            planned(**RUN, law=wrong)
    with pytest.raises(ValueError, match="batch= or tokens="):
        nfd.plan(ResidualMLP(64, 2), **MADE, law=nfd.RateLaw.of_sweeps())
