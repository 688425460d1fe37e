"""A designed ladder: few cheap runs decide, what is expected of them comes, bad input is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.common import run

import nfd

TARGET = {"parameters": 7e9, "tokens": 1.4e11}
POOL = [
    {"parameters": N, "tokens": D}
    for N in (5e7, 1e8, 2e8, 4e8, 8e8)
    for D in (1e9, 4e9, 1.6e10, 6.4e10)
]

Rows = list[dict[str, Any]]


def trained(size: dict[str, float], seed: int = 0) -> dict[str, float]:
    """A run of a size, by a law like those of published ladders, with an error of 0.3 %."""
    N, D = size["parameters"], size["tokens"]
    loss = 1.7 + ((110 / N**0.27) ** 2 + (370 / D**0.28) ** 2) ** 0.5
    error = np.random.default_rng([seed, int(N), int(D)]).normal()
    return size | {"loss": loss * math.exp(0.003 * error)}


def spent(rows: Rows) -> float:
    """Operations of runs."""
    return sum(6 * row["parameters"] * row["tokens"] for row in rows)


def designed(seed: int) -> Rows:
    """Train the first run of the plan again and again, from nothing, until the plan is empty."""
    rows = Rows()
    left = list(POOL)
    plan = nfd.design_ladder(target=TARGET, sizes=left)
    while plan.runs:
        size = plan.runs[0].size
        left.remove(size)
        rows.append(trained(size, seed))
        plan = nfd.design_ladder(rows, target=TARGET, sizes=left)
    return rows


def in_ascending_order(seed: int) -> Rows:
    """Train ever dearer runs until no further one is asked for."""
    rows = Rows()
    for size in sorted(POOL, key=lambda size: size["parameters"] * size["tokens"]):
        rows.append(trained(size, seed))
        if len(rows) < 6:
            continue
        law = nfd.fit_ladder(rows)
        if law.refused(**TARGET) is None and not law.next_runs(target=TARGET).runs:
            break
    return rows


def test_a_designed_ladder_is_accepted_for_less_compute_than_ever_dearer_runs() -> None:
    shares = []
    for seed in range(2):
        chosen = designed(seed)
        law = nfd.fit_ladder(chosen)
        assert law.refused(**TARGET) is None
        forecast = law.at(**TARGET)
        # One new run, whose error the interval is meant to hold.
        assert forecast.low < trained(TARGET, seed)["loss"] < forecast.high
        shares.append(spent(chosen) / spent(in_ascending_order(seed)))
    assert float(np.mean(shares)) < 0.7


def few(seed: int, count: int = 6) -> Rows:
    """The cheapest runs."""
    pool = sorted(POOL, key=lambda size: size["parameters"] * size["tokens"])
    return [trained(size, seed) for size in pool[:count]]


def test_the_width_that_a_plan_expects_is_the_width_after_its_runs() -> None:
    ratios = []
    for seed in range(8):
        rows = few(seed)
        plan = nfd.fit_ladder(rows).next_runs(target=TARGET)
        assert plan.decides
        assert [run.total for run in plan.runs] == pytest.approx(
            np.cumsum([run.cost for run in plan.runs])
        )
        assert plan.after is not None
        assert plan.before is not None
        assert plan.after < plan.before
        more = [trained(run.size, seed) for run in plan.runs]
        after = nfd.fit_ladder([*rows, *more]).at(**TARGET)
        ratios.append((after.high - after.low) / after.value / plan.after)
    # A plan does not know how far the runs to come will scatter: single ladders are off by up to
    # 40 %, either way.
    assert float(np.mean(ratios)) == pytest.approx(1.0, abs=0.3)
    assert max(ratios) < 1.6


def test_a_plan_says_when_nothing_is_to_be_run_and_when_no_plan_decides() -> None:
    law = nfd.fit_ladder([trained(size) for size in POOL])
    assert law.refused(**TARGET) is None
    accepted = law.next_runs(target=TARGET)
    assert accepted.runs == ()
    assert accepted.decides
    assert accepted.answer.tone == "good"
    # The title and the table of one more run do not contradict each other.
    is_worth_it = any(row["worth it"] == "yes" for row in accepted.texts)
    assert ("one more run would narrow it" in accepted.answer.title) == is_worth_it
    assert ("need no further run" in accepted.answer.title) == (not is_worth_it)
    none_helps = replace(accepted, choices=())
    assert "need no further run" in none_helps.answer.title
    # The same forecast is not narrow enough for who asks for more.
    assert accepted.before is not None
    narrower = law.next_runs(target=TARGET, limit=0.9 * accepted.before)
    assert narrower.runs

    poor = nfd.fit_ladder(few(0)).next_runs(target=TARGET, budget=2e18)
    assert not poor.decides
    assert poor.cost <= 2e18
    assert "No plan within the budget" in str(poor)


def test_a_plan_leaves_the_line_of_the_runs_and_does_not_replace_tuning() -> None:
    on_a_line = [trained({"parameters": N, "tokens": 20 * N}) for N in 5e7 * 2.0 ** np.arange(6)]
    law = nfd.fit_ladder(on_a_line)
    far = {"parameters": 7e9, "tokens": 1.4e12}
    assert "one line" in (law.refused(**far) or "")
    for planned in law.next_runs(target=far).runs:
        ratio = planned.size["tokens"] / planned.size["parameters"]
        assert abs(math.log(ratio / 20)) > math.log(2)

    errors = np.random.default_rng(0).normal(size=len(POOL))
    pairs = zip(POOL, errors, strict=True)
    untuned = [
        trained(size) | {"loss": trained(size)["loss"] * (1 + 0.01 * e)} for size, e in pairs
    ]
    near = {"parameters": 1e9, "tokens": 6.4e10}
    law = nfd.fit_ladder(untuned)
    for plan in (law.next_runs(target=near, limit=0.2), law.next_runs(target=near)):
        assert not plan.runs
        # It says of the forecast what the forecast itself says, and what runs add.
        forecast = law.forecast_at(**near).answer
        assert (plan.answer.state, plan.answer.but) == (forecast.state, forecast.but)
        assert "scatter by" in plan.answer.but
        assert plan.decides


def test_before_the_first_run_a_plan_has_enough_sizes_for_a_law() -> None:
    plan = nfd.design_ladder(target=TARGET)
    assert len(plan.runs) >= 6
    assert plan.decides
    assert plan.before is None
    assert plan.cost < 0.2 * 6 * TARGET["parameters"] * TARGET["tokens"]
    assert "not known yet" in plan.answer.because
    of_tokens = nfd.design_ladder(target={"tokens": 1e12})
    assert {*of_tokens.runs[0].size} == {"tokens"}
    wide = nfd.design_ladder(target=TARGET, prior=None)
    assert wide.cost > plan.cost


def test_a_plan_has_learning_rates_where_their_law_is_given() -> None:
    rows = Rows()
    for size in POOL[:4]:
        for k in (-1, 0, 1):
            rows.append(trained(size) | {"lr": 1e-3 * 4.0**k, "loss": 3 + 0.03 * k**2})
    rates = nfd.fit_rate_law(rows)
    plan = nfd.design_ladder(target=TARGET, rates=rates)
    first = plan.runs[0]
    assert first.lr == pytest.approx(rates.at(**first.size).advised)
    assert {*plan.table[0]} >= {"parameters", "tokens", "lr", "cost", "total", "width"}
    assert "lr" not in nfd.design_ladder(target=TARGET).table[0]


def test_what_cannot_be_planned_says_why() -> None:
    with pytest.raises(ValueError, match="target must name parameters, tokens or both"):
        nfd.design_ladder(target={"width": 512})
    with pytest.raises(ValueError, match="target: tokens must be finite"):
        nfd.design_ladder(target={"parameters": 7e9, "tokens": math.inf})
    with pytest.raises(ValueError, match="budget must pay for the smallest run"):
        nfd.design_ladder(target=TARGET, budget=1.0)
    with pytest.raises(ValueError, match="limit must be"):
        nfd.design_ladder(target=TARGET, limit=0.0)
    with pytest.raises(ValueError, match="sizes must have parameters and tokens"):
        nfd.design_ladder(target=TARGET, sizes=[{"parameters": 1e8}])
    with pytest.raises(ValueError, match="at least one size that may be trained"):
        nfd.design_ladder(target=TARGET, sizes=[])
    with pytest.raises(ValueError, match="losses must be above 0"):
        nfd.design_ladder([POOL[0] | {"loss": -1.0}], target=TARGET)
    with pytest.raises(ValueError, match="law is in parameters and tokens; got tokens"):
        nfd.fit_ladder(few(0)).next_runs(target={"tokens": 1e12})


def asked(folder: Path, rows: Rows, *options: str) -> tuple[str, dict[str, Any]]:
    """The text and ``result.json`` of the command about a table and the target."""
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "runs.csv").write_text("\n".join(lines) + "\n")
    target = ("--at", "parameters=7B", "tokens=1.4e11")
    command = ("scaling-law", "--from", "runs.csv", *target, *options, "--out", "answer")
    done = run(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "answer/result.json").read_text())


def test_the_shell_prints_the_plan_of_a_refused_forecast_and_none_of_an_accepted_one(
    tmp_path: Path,
) -> None:
    rows = few(0)
    text, stored = asked(tmp_path, rows)
    assert len(text.splitlines()) <= 15
    assert "? NOT DECIDED YET" in text
    assert "should decide" in text
    heads = next(line for line in text.splitlines() if "width after it" in line)
    assert heads.split()[:3] == ["parameters", "tokens", "FLOPs"]
    plan = nfd.fit_ladder(rows).next_runs(target=TARGET)
    assert [row["cost"] for row in stored["plan"]] == pytest.approx(
        [planned.cost for planned in plan.runs]
    )
    text, stored = asked(tmp_path, [trained(size) for size in POOL])
    assert "✓ FORECAST USABLE" in text
    assert stored["plan"] == []


def test_the_plan_in_a_shell_has_learning_rates_where_the_table_has_several(
    tmp_path: Path,
) -> None:
    rows = Rows()
    for row in few(0):
        for k in (-1, 0, 1):
            loss = row["loss"] * (1 + 0.01 * k**2)
            rows.append(row | {"lr": 1e-3 * 4.0**k, "loss": loss})
    text, stored = asked(tmp_path, rows, "--rate", "best")
    heads = next(line for line in text.splitlines() if "width after it" in line)
    assert heads.split()[:3] == ["parameters", "tokens", "lr"]
    assert 1e-4 < stored["plan"][0]["lr"] < 1e-2
