"""What a study says, from measurements made by hand whose answers are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nfd.core.statistics import size_of_mean
from nfd.experiment.findings import Finding, findings
from nfd.experiment.settings import StudyConfig
from nfd.experiment.study import FEEDBACKS, RULES, Study

DEPTHS, WIDTHS, REPLICATES, SEEDS = (2, 4, 8, 16), (64, 256, 1024), 4, 5


@pytest.fixture(scope="module")
def by_hand() -> Study:
    """f_L = f + a / L; a real network of width n adds noise of size 4 / sqrt(n); updates are powers of L."""
    study = Study(StudyConfig(depths=DEPTHS, widths=WIDTHS, replicates=REPLICATES, seeds=SEEDS, steps=6, batch=4))
    g = torch.Generator().manual_seed(0)
    shape = (*study.targets.shape, 10)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, *shape, generator=g, dtype=torch.float64)

    shared, a, apart = normal(), normal(), normal()
    for feedback in FEEDBACKS:
        limit = shared + (apart if feedback == "independent" else 0.0)
        noise = 1e-4 * normal(REPLICATES)
        for L in DEPTHS:
            study.measured.limits[feedback, L] = limit + a / L + noise
    for L in DEPTHS:
        for n in WIDTHS:
            study.measured.real[L, n] = shared + a / L + 4 / n**0.5 * normal(SEEDS)
    powers = {"depth-mup": -0.5, "depth-mup-inner": 0.0}
    for rule in RULES:
        for L in study.config.block_depths:
            for index in range(study.config.block_seeds):
                size = 1 + 0.01 * index
                values = {"inner": size * L ** powers[rule], "stream": size, "function": size}
                row = {"rule": rule, "depth": L, "index": index, **values, "function_inner": size * L**0.5}
                study.measured.blocks += [row | {"steps": steps} for steps in (1, study.config.steps)]
    study.measured.complete = True
    return study


def named(study: Study, name: str) -> Finding:
    return next(f for f in findings(study) if f.name == name)


def test_findings_come_in_the_order_of_the_report(by_hand: Study) -> None:
    order = "loss-shared loss-independent gap distance-width distance-depth updates-first updates-last"
    assert [f.name for f in findings(by_hand)] == order.split()


def test_infinite_depth_is_extrapolated_without_its_first_order(by_hand: Study) -> None:
    rows = named(by_hand, "loss-shared").rows
    deep = [row for row in rows if row["series"] == "infinitely wide and deep"]
    exact = 2 * by_hand.measured.limits["shared", 16] - by_hand.measured.limits["shared", 8]
    expected = by_hand.mean_loss(exact.mean(0))
    assert [row["loss"] for row in deep] == pytest.approx(expected.tolist())
    assert all(row["low"] < row["loss"] < row["high"] for row in rows)
    real = [row for row in rows if row["series"] == "real, width 256"]
    losses = by_hand.mean_loss(by_hand.measured.real[16, 256])
    assert [row["stderr"] for row in real] == pytest.approx((losses.std(0) / SEEDS**0.5).tolist())


def test_the_gap_is_paired_and_its_interval_holds_the_truth(by_hand: Study) -> None:
    rows = named(by_hand, "gap").rows
    assert [row["depth"] for row in rows] == [2, 4, 8, 16, "infinite"]
    for row, L in zip(rows, DEPTHS, strict=False):
        means = [by_hand.measured.limits[feedback, L].mean(0) for feedback in ("independent", "shared")]
        independent, shared = (float(by_hand.mean_loss(m).mean()) for m in means)
        assert row["gap"] == pytest.approx(independent - shared)
        assert row["low"] < row["gap"] < row["high"]


def test_distance_falls_with_width_as_it_was_made(by_hand: Study) -> None:
    finding = named(by_hand, "distance-width")
    for slope in finding.slopes:
        assert slope["low"] < -0.5 < slope["high"]
        assert slope["high"] - slope["low"] < 0.2
    sixteen = [row for row in finding.rows if row["series"] == "depth 16"]
    for row, n in zip(sixteen, WIDTHS, strict=True):
        assert row["distance"] == pytest.approx(4 / n**0.5, rel=0.1)


def test_distance_falls_with_depth_as_it_was_made(by_hand: Study) -> None:
    finding = named(by_hand, "distance-depth")
    wide = next(s for s in finding.slopes if s["series"] == "infinitely wide")
    assert wide["slope"] == pytest.approx(-1.0, abs=1e-3)
    rows = [row for row in finding.rows if row["series"] == "infinitely wide"]
    a = 8 * (by_hand.measured.limits["shared", 8] - by_hand.measured.limits["shared", 16]) * 2
    for row in rows:
        assert row["distance"] == pytest.approx(float(size_of_mean(a)) / row["depth"], rel=1e-3)
    assert "finite width makes" in finding.reading


def test_two_layer_blocks_get_slopes_and_verdicts(by_hand: Study) -> None:
    for name in ("updates-first", "updates-last"):
        finding = named(by_hand, name)
        found = {(row["rule"], row["meter"]): row for row in finding.slopes}
        assert found["depth-mup", "inner"]["slope"] == pytest.approx(-0.5)
        assert found["depth-mup", "inner"]["verdict"] == "COLLAPSES"
        assert found["depth-mup-inner", "inner"]["verdict"] == "STABLE"
        assert found["depth-mup-inner", "function_inner"]["verdict"] == "GROWS"
        assert "inner features stop learning as depth grows (L^-0.50 [-0.50, -0.50])" in finding.reading


def test_divergence_is_left_out_of_no_number_silently(by_hand: Study) -> None:
    study = Study(by_hand.config)
    study.measured.limits = dict(by_hand.measured.limits)
    study.measured.real = {key: value.clone() for key, value in by_hand.measured.real.items()}
    study.measured.real[16, 64][0, 3:] = torch.nan
    rows: list[dict[str, Any]] = named(study, "loss-shared").rows
    ended = [row for row in rows if row["series"] == "real, width 64"]
    assert all(row["loss"] == row["loss"] for row in ended[:3])
    assert all(row["loss"] != row["loss"] for row in ended[3:])
    assert "Training diverged: 1 of 5 of width 64, depth 16 at step 3." in named(study, "loss-shared").reading


def test_every_part_can_be_missing(by_hand: Study) -> None:
    study = Study(by_hand.config)
    assert findings(study) == []
    study.measured.limits["shared", 2] = by_hand.measured.limits["shared", 2]
    assert [f.name for f in findings(study)] == ["loss-shared"]
    study.measured.real[16, 64] = by_hand.measured.real[16, 64]
    assert "64: not known" in findings(study)[0].reading
    study.measured.limits["independent", 2] = by_hand.measured.limits["independent", 2]
    assert [f.name for f in findings(study)] == ["loss-shared", "loss-independent", "gap"]
