"""Forecasts on record are never edited, can be repeated, and are scored when a training ends."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from studies.forecasts import added, ended, forecast_of, read, score_of, texts

# A row that is added gets a line; no line is changed or taken out.
FORECASTS = {
    "marin-1e21": "8d88475503d3ec23",
    "marin-1e23": "e7a8818bec1f3348",
    "marin-67b-a2b-8t": "6fac626818c01a85",
    "marin-535b-a23b-18t": "2039cd2b78905cea",
}
OUTCOMES = {
    "marin-1e21": "a3f7fd1a77f1265e",
    "marin-1e23": "9fde78d1deb10e51",
    "marin-67b-a2b-8t": "08ef5ea36df31054",
}


def hash_of(row: dict[str, Any]) -> str:
    """The hash of a row, whatever the order of its names."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_no_row_on_record_was_edited() -> None:
    stored = read()
    assert {row["id"]: hash_of(row) for row in stored["forecasts"]} == FORECASTS
    assert {row["id"]: hash_of(row) for row in stored["outcomes"]} == OUTCOMES


def test_another_digit_of_a_row_would_be_noticed() -> None:
    row = copy.deepcopy(read()["forecasts"][0])
    row["forecast"]["high"] += 0.0001
    assert hash_of(row) != FORECASTS[row["id"]]


@pytest.mark.parametrize("name", ["marin-1e23", "marin-535b-a23b-18t"])
def test_a_forecast_can_be_repeated_from_its_row(name: str) -> None:
    # Later code may say another number; it may not contradict the one on record.
    (row,) = [row for row in read()["forecasts"] if row["id"] == name]
    again = forecast_of(row)["forecast"]
    assert row["forecast"]["low"] < again["value"] < row["forecast"]["high"]
    assert again["low"] < row["forecast"]["value"] < again["high"]


def test_an_outcome_scores_a_forecast() -> None:
    row = {
        "forecast": {"value": 2.0, "low": 1.9, "high": 2.1},
        "authors": {"value": 2.2},
        "usual": 1.8,
    }
    assert score_of(row, None) == {}
    score = score_of(row, {"value": 2.0})
    assert score["inside"]
    assert score["error"] == 0
    assert score["authors"] == pytest.approx(10)
    assert not score_of(row, {"value": 2.2})["inside"]


def test_a_row_and_an_outcome_are_added_once() -> None:
    stored = read()
    with pytest.raises(ValueError, match="marin-1e23 is on record already"):
        added(stored, {"id": "marin-1e23"})
    with pytest.raises(ValueError, match="marin-1e23 has an outcome already"):
        ended(stored, {"id": "marin-1e23", "value": 2.2})
    with pytest.raises(ValueError, match="no forecast on record has the id other"):
        ended(stored, {"id": "other", "value": 2.2})
    running = {"id": "marin-535b-a23b-18t", "value": 2.05, "date": "", "source": ""}
    with_end = ended(stored, running)
    assert "Made before its training ended: 1 of 1 inside" in texts(with_end)["score"]
