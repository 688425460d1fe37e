"""Tokens that repeat and experts that idle: read from a table, fitted, and forecast."""

from __future__ import annotations

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.common import run

import nfd

Rows = list[dict[str, Any]]
# What the made-up runs have: repeats and idle experts that are worth this much.
R = 8.0
G = 0.5


def worth(tokens: float, unique: float) -> float:
    """New tokens that are worth as much."""
    return unique * (1 + R * (1 - math.exp(-(tokens / unique - 1) / R)))


def true_loss(N: float, D: float) -> float:
    return float(1.7 + math.hypot(110 / N**0.27, 370 / D**0.28))


def noisy(losses: list[float]) -> list[float]:
    random = np.random.default_rng(0)
    return [loss * math.exp(0.002 * random.normal()) for loss in losses]


@cache
def repeating() -> Rows:
    """Runs of three sizes whose tokens repeat 1, 4 and 16 times."""
    sizes = [
        (N, D, D / times)
        for N in (1e8, 3e8, 9e8)
        for D in (2e9, 8e9, 3.2e10)
        for times in (1, 4, 16)
    ]
    losses = noisy([true_loss(N, worth(D, U)) for N, D, U in sizes])
    return [
        {"params": N, "tokens": D, "unique_tokens": U, "loss": loss}
        for (N, D, U), loss in zip(sizes, losses, strict=True)
    ]


@cache
def sparse() -> Rows:
    """Dense networks, and mixtures of 8 and 32 times the parameters in use."""
    sizes = [(N, D, N * k) for N in (1e8, 3e8, 9e8) for D in (4e9, 3.2e10) for k in (1, 8, 32)]
    losses = noisy([true_loss(N * (T / N) ** G, D) for N, D, T in sizes])
    return [
        {"active_params": N, "total_params": T, "tokens": D, "loss": loss}
        for (N, D, T), loss in zip(sizes, losses, strict=True)
    ]


@cache
def of_repeats() -> nfd.LadderLaw:
    return nfd.fit_ladder(repeating())


@cache
def of_experts() -> nfd.LadderLaw:
    return nfd.fit_ladder(sparse())


def test_a_law_of_repeated_tokens_holds_runs_that_repeat() -> None:
    law = of_repeats()
    assert law.terms["R"].low < R < law.terms["R"].high
    N, D = 4e9, 1.2e11
    for times in (1, 4, 12):
        said = law.at(parameters=N, tokens=D, unique_tokens=D / times)
        assert said.low < true_loss(N, worth(D, D / times)) < said.high
    new = law.at(parameters=N, tokens=D)
    assert new.value == law.at(parameters=N, tokens=D, unique_tokens=D).value
    assert law.at(parameters=N, tokens=D, unique_tokens=D / 12).value > new.value + new.stderr
    assert "D'" in law.formula


def test_taking_repeated_tokens_for_new_ones_would_miss() -> None:
    law = nfd.fit_ladder(repeating(), columns={"unique_tokens": None})
    assert "R" not in law.terms
    said = law.at(parameters=4e9, tokens=1.2e11)
    true = true_loss(4e9, worth(1.2e11, 1e10))
    assert abs(said.value / true - 1) > abs(
        of_repeats().at(parameters=4e9, tokens=1.2e11, unique_tokens=1e10).value / true - 1
    )


def test_more_repeats_than_any_run_has_are_refused() -> None:
    law = of_repeats()
    often = {"parameters": 4e9, "tokens": 1.2e11, "unique_tokens": 3e9}
    assert "repeat 40 times, and the runs show 16" in str(law.refused(**often))
    assert law.forecast_at(**often).answer.tone == "open"
    assert law.refused(**often | {"unique_tokens": 3e10}) is None


def test_sizes_that_repeat_too_often_are_left_out() -> None:
    learnt = {"params": 9e8, "tokens": 3.2e10, "unique_tokens": 1e8, "loss": 5.0}
    law = nfd.fit_ladder([*repeating(), learnt])
    assert any("1 size whose tokens repeat more than 16 times" in note for note in law.notes)
    assert law.losses.keys() == of_repeats().losses.keys()


def test_epochs_say_the_same_as_distinct_tokens() -> None:
    epochs = []
    for row in repeating():
        times = row["tokens"] / row["unique_tokens"]
        epochs.append(
            {name: row[name] for name in ("params", "tokens", "loss")} | {"epochs": times}
        )
    law = nfd.fit_ladder(epochs)
    wanted = of_repeats()
    size = {"parameters": 4e9, "tokens": 1.2e11, "unique_tokens": 3e10}
    assert law.at(**size).value == pytest.approx(wanted.at(**size).value, rel=1e-9)


def test_one_epoch_of_all_runs_changes_nothing() -> None:
    rows = [row for row in repeating() if row["tokens"] == row["unique_tokens"]]
    law = nfd.fit_ladder(rows)
    assert law.supplies == ()
    with pytest.raises(ValueError, match="do not show what unique_tokens are worth"):
        law.at(parameters=4e9, tokens=1.2e11, unique_tokens=3e10)


def test_a_law_of_experts_is_in_active_parameters_and_holds_other_sparsities() -> None:
    law = of_experts()
    assert law.terms["g"].low < G < law.terms["g"].high
    assert "parameters from 'active_params'" in law.about
    N, D = 3e9, 1.2e11
    for times in (1, 8, 64):
        said = law.at(parameters=N, tokens=D, total_parameters=times * N)
        assert said.low < true_loss(N * times**G, D) < said.high
    # The run of the lowest loss has 32 times its parameters in all.
    assert law.at(parameters=N, tokens=D).value == pytest.approx(
        law.at(parameters=N, tokens=D, total_parameters=32 * N).value
    )


def test_the_best_split_counts_idle_experts() -> None:
    law = of_experts()
    best = law.best(flops=1e22)
    around = [best.parameters.value * factor for factor in (0.5, 1, 2)]
    losses = [law.at(parameters=N, tokens=1e22 / 6 / N).value for N in around]
    assert losses[1] == min(losses)


def test_experts_of_one_sparsity_give_a_law_in_active_parameters_with_a_note() -> None:
    rows = [row for row in sparse() if row["total_params"] == 8 * row["active_params"]]
    law = nfd.fit_ladder(rows)
    assert law.supplies == ()
    assert any("what idle experts are worth is not shown" in note for note in law.notes)
    # Of a dense network both columns are one: nothing is to be said.
    dense = [row for row in sparse() if row["total_params"] == row["active_params"]]
    assert not nfd.fit_ladder(dense).notes


def test_only_a_column_of_all_parameters_is_taken_for_the_parameters() -> None:
    rows = [{"total_params": row["params"]} | row for row in repeating()]
    for row in rows:
        del row["params"]
    assert "parameters from 'total_params'" in nfd.fit_ladder(rows).about


@pytest.mark.parametrize(
    ("rows", "at"),
    [
        (repeating, {"parameters": 4e9, "tokens": 1.2e11, "unique_tokens": 3e10}),
        (sparse, {"parameters": 3e9, "tokens": 1.2e11, "total_parameters": 2.4e10}),
    ],
)
def test_the_command_answers_as_python_does(
    tmp_path: Path, rows: Any, at: dict[str, float]
) -> None:
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows()[0]))
        table.writeheader()
        table.writerows(rows())
    asked = [f"{name}={value:g}" for name, value in at.items()]
    done = run("scaling-law", "--from", tmp_path / "runs.csv", "--at", *asked, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "out/scaling-law/result.json").read_text())
    law = of_repeats() if rows is repeating else of_experts()
    assert stored["at"]["loss"]["value"] == pytest.approx(law.at(**at).value, rel=1e-6)
    assert f"{next(reversed(at)).replace('_', ' ')} reach a loss of" in " ".join(
        done.stdout.split()
    )
