"""Stacked runs train as single ones do; the stored answer is what the stored runs say."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
from benchmarks.byte_gpt import Cell
from benchmarks.own_ladder import ANSWER, PLACE, compare, ladder, rows, targets

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
    stored = {(*(row[name] for name in PLACE), row["lr"]) for row in rows() if row["part"] != "target"}
    asked = {(*(getattr(cell, name) for name in PLACE), r) for cell in ladder() for r in cell.rates}
    assert asked == stored


def test_targets_are_sixteen_times_the_largest_and_the_longest() -> None:
    small = [cell for cell in ladder() if cell.part == "ladder"]
    large, long, _, both = targets().values()
    most, longest = (max(getattr(cell, name) for cell in small) for name in ("parameters", "tokens"))
    assert large.parameters == both.parameters >= 16 * most
    assert long.tokens == both.tokens >= 16 * longest


def test_the_stored_answer_is_what_the_stored_runs_say() -> None:
    answer, found = json.loads(ANSWER.read_text("utf-8")), rows()
    assert compare(copy.deepcopy(answer), found) == answer
    better = [row | {"loss": row["loss"] * 0.5} if row["part"] == "target" else row for row in found]
    assert compare(copy.deepcopy(answer), better) != answer
    assert all(math.isfinite(row["measured"]) for row in answer["forecasts"] if "measured" in row)
