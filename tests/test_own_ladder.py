"""Stacked runs train as single ones do; the stored answer is what the stored runs say."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from studies.byte_gpt import Cell
from studies.own_ladder import ANSWER, PLACE, compare, ladder, rows, targets

SMALL = Cell(8, 1, 1024, 128, (0.004, 0.03))


def test_runs_of_a_stack_train_as_they_do_alone() -> None:
    stacked = SMALL.trained()
    alone = [replace(SMALL, rates=(rate,)).trained()[0] for rate in SMALL.rates]
    assert stacked == pytest.approx(alone, rel=1e-4)
    assert stacked[0] != pytest.approx(stacked[1], rel=1e-2)  # the rates differ


def test_the_logits_of_a_byte_do_not_see_the_bytes_after_it() -> None:
    stream = SMALL.start[None]
    ids = (stream[0, : 2 * 64].abs() * 1e6).long().remainder(256).view(2, 64)
    changed = ids.clone()
    changed[:, 40] += 1
    before, after = (SMALL.logits(stream, x.remainder(256)).view(2, 64, -1) for x in (ids, changed))
    assert before[:, :40].equal(after[:, :40])
    assert not before[:, 40:].equal(after[:, 40:])


def test_every_cell_of_the_design_is_stored() -> None:
    stored = {
        (*(row[name] for name in PLACE), row["lr"]) for row in rows() if row["part"] != "target"
    }
    asked = {(*(getattr(cell, name) for name in PLACE), r) for cell in ladder() for r in cell.rates}
    assert asked == stored


def test_targets_are_sixteen_times_the_largest_and_the_longest() -> None:
    small = [cell for cell in ladder() if cell.part == "ladder"]
    large, long, _, both = targets().values()
    most, longest = (
        max(getattr(cell, name) for cell in small) for name in ("parameters", "tokens")
    )
    assert large.parameters == both.parameters >= 16 * most
    assert long.tokens == both.tokens >= 16 * longest


def test_the_stored_answer_is_what_the_stored_runs_say() -> None:
    answer = json.loads(ANSWER.read_text("utf-8"))
    assert compare(copy.deepcopy(answer), rows()) == answer


@pytest.mark.parametrize(("loss", "inside"), [(1.0, True), (2.0, False)])
def test_a_target_is_compared_with_its_best_run(loss: float, inside: bool) -> None:
    told = json.loads(ANSWER.read_text("utf-8"))["forecasts"][0]
    expected = told["losses"]["all shapes"]
    best = loss * expected["value"]
    about = {"part": "target"} | {name: told[name] for name in PLACE}
    runs = [
        about | {"lr": told["advised"], "loss": 1.01 * best},
        about | {"lr": told["advised"] / 2, "loss": best},
    ]
    row = compare({"forecasts": [told]}, runs)["forecasts"][0]
    assert row["losses"]["all shapes"]["inside"] is inside
    assert row["losses"]["all shapes"]["error"] == pytest.approx(1 / loss - 1)
    assert row["measured rate"] == told["advised"] / 2
    assert row["measured excess"] == pytest.approx(0.01)
