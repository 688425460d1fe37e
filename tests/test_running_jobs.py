"""The page of watching shows what is stored of running jobs, and our own runs give it again."""

from __future__ import annotations

import pytest

from calibration import small_runs
from calibration.running_jobs import (
    PAGE,
    stored,
    table_of_truth,
    table_of_wrong,
    told_wrong,
    truth,
    wrong,
)
from nfd.laws.curve import read_curve_prior


def test_the_page_has_the_tables_of_the_stored_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    of_truth, of_wrong = stored()
    assert table_of_truth(of_truth) in page
    assert table_of_wrong(of_wrong) in page


def test_runs_of_ours_give_the_stored_rows_again() -> None:
    curves = small_runs.read()
    assert len(curves) >= 12
    prior = read_curve_prior()
    of_truth, of_wrong = stored()
    (kept,) = [row for row in of_truth if row.runs == "ours" and row.done == 0.5]
    again = truth("ours", "package", 0.5, curves, lambda _: prior)
    assert (again.count, again.inside, again.contradicted) == (
        kept.count,
        kept.inside,
        kept.contradicted,
    )
    assert again.error == pytest.approx(kept.error, rel=0.01)
    assert wrong("ours", 0.5, curves, prior) == [
        row for row in of_wrong if row.runs == "ours" and row.done == 0.5
    ]


def test_a_schedule_is_wrong_by_what_was_done() -> None:
    curves = {curve.name: curve for curve in small_runs.read()}
    prior = read_curve_prior()
    # By the middle a cosine over all steps is at a half, as a linear fall; over half of them at 0,
    # and over twice as many at 0.85, which is no wrong claim.
    of_constant = [apart for apart, _ in told_wrong(curves["constant"], 0.5, prior)]
    assert sorted(of_constant) == pytest.approx([0.5, 0.5, 1.0], abs=0.01)
