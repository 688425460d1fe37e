"""What a study says, from measurements made by hand whose answers are known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nfd import Sweep
from nfd.cli import main
from nfd.paper.findings import NAMES, Finding, findings
from nfd.paper.settings import StudyConfig
from nfd.paper.study import BLOCK_RULES, LIMITS, Study

DEPTHS, WIDTHS, REPLICATES, SEEDS = (2, 4, 8, 16), (64, 256, 1024), 4, 5


class Truth:
    """Outputs of the limits without noise: ``f + a / L`` for shared feedback, ``+ apart`` for independent."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.shape = shape
        self.f, self.a, self.apart = self.normal(), self.normal(), self.normal()

    def normal(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, *self.shape, generator=self.generator, dtype=torch.float64)

    def outputs(self, feedback: str, depth: float) -> Tensor:
        return self.f + self.a / depth + (self.apart if feedback == "independent" else 0.0)


@pytest.fixture(scope="module")
def truth_and_study() -> tuple[Truth, Study]:
    """A replicate has noise of its own, shared by feedbacks and depths but for a little; networks add 4 / sqrt(n)."""
    study = Study(StudyConfig(depths=DEPTHS, widths=WIDTHS, replicates=REPLICATES, seeds=SEEDS, steps=6, batch=4))
    truth = Truth((*study.targets.shape, 10))
    common = 0.05 * truth.normal(REPLICATES)
    for feedback in LIMITS:
        for L in DEPTHS:
            own = 0.002 * truth.normal(REPLICATES)
            study.measured.limits[feedback, L] = truth.outputs(feedback, L) + common + own
        study.measured.narrow[feedback] = truth.outputs(feedback, 8) + common
    for L in DEPTHS:
        for n in WIDTHS:
            study.measured.real[L, n] = truth.outputs("shared", L) + 4 / n**0.5 * truth.normal(SEEDS)
    powers = {"depth-mup": -0.5, "depth-mup-inner": 0.0}
    for rule in BLOCK_RULES:
        for L in study.config.block_depths:
            for index in range(study.config.block_seeds):
                size = 1 + 0.01 * index
                values = {"inner_update": size * L ** powers[rule], "stream_update": size, "function_update": size}
                row = {"rule": rule, "depth": L, "index": index, **values, "function_update_inner": size * L**0.5}
                study.measured.blocks.append(row | {"steps": study.config.steps})
    study.measured.complete = True
    return truth, study


@pytest.fixture(scope="module")
def truth(truth_and_study: tuple[Truth, Study]) -> Truth:
    return truth_and_study[0]


@pytest.fixture(scope="module")
def by_hand(truth_and_study: tuple[Truth, Study]) -> Study:
    return truth_and_study[1]


def copied(study: Study) -> Study:
    other = Study(study.config)
    other.measured.limits = dict(study.measured.limits)
    other.measured.real = {key: value.clone() for key, value in study.measured.real.items()}
    other.measured.blocks = [dict(row) for row in study.measured.blocks]
    return other


def named(study: Study, name: str) -> Finding:
    return next(f for f in findings(study) if f.name == name)


def test_infinite_depth_is_extrapolated_without_its_first_order(by_hand: Study, truth: Truth) -> None:
    rows = named(by_hand, "loss-shared").rows
    deep = [row for row in rows if row["series"] == "infinitely wide and deep"]
    expected = by_hand.mean_loss(truth.f).tolist()
    for row, value in zip(deep, expected, strict=True):
        assert abs(row["loss"] - value) < 6 * row["stderr"] < 0.5
    real = [row for row in rows if row["series"] == "real, width 256"]
    losses = by_hand.mean_loss(by_hand.measured.real[16, 256])
    assert [row["stderr"] for row in real] == pytest.approx((losses.std(0) / SEEDS**0.5).tolist())


def test_the_gap_is_paired_and_its_interval_holds_the_truth(by_hand: Study, truth: Truth) -> None:
    rows = named(by_hand, "gap").rows
    assert [row["depth"] for row in rows] == [2, 4, 8, 16, math.inf]
    for row in rows:
        losses = [by_hand.mean_loss(truth.outputs(feedback, row["depth"])).mean() for feedback in LIMITS]
        exact = float(losses[1] - losses[0])
        assert row["low"] - row["stderr"] < exact < row["high"] + row["stderr"]
        assert row["stderr"] < 0.02  # unpaired it would be several times that
    made = math.log(10) - float(by_hand.mean_loss(truth.f).mean())
    assert (rows[-1]["share_of_progress"] is None) == (made < 0)


def test_noise_that_hides_a_distance_hides_its_trend(by_hand: Study) -> None:
    study = copied(by_hand)
    same = study.measured.limits["shared", 16]
    for L in DEPTHS:
        noise = torch.randn(same.shape, generator=torch.Generator().manual_seed(L), dtype=torch.float64)
        study.measured.limits["shared", L] = same.mean(0) + noise
    finding = named(study, "distance-depth")
    assert "noise hides its trend" in finding.headline
    assert finding.table[-1]["exponent [95 % interval] ± standard error"] == "not resolved"


def test_diverged_runs_are_named_and_left_out(by_hand: Study) -> None:
    study = copied(by_hand)
    study.measured.real[16, 64][0, 3:] = torch.nan
    study.measured.limits["independent", 16] = torch.full_like(study.measured.limits["independent", 16], torch.nan)
    last = next(r for r in study.measured.blocks if r["depth"] == 64 and r["steps"] == 6)
    last.update({"diverged_at": 4})
    for finding in findings(study):
        assert "nan" not in finding.reading
        assert all(math.isfinite(s["slope"]) for s in finding.slopes)
    shared = named(study, "loss-shared")
    assert "Training diverged: 1 of 5 of width 64 and depth 16 (first at step 3)." in shared.reading
    ended = [row for row in shared.rows if row["series"] == "real, width 64"]
    assert [math.isfinite(row["loss"]) for row in ended] == [True, True, True, False, False, False]
    assert [row["depth"] for row in named(study, "gap").rows] == [2, 4, 8]
    assert "4 of 4 of infinitely wide ones of depth 16 (first at step 0)" in named(study, "loss-independent").reading
    assert "1 networks with uniform rates, of depth 64" in named(study, "updates").reading


def test_without_progress_no_share_is_stated(by_hand: Study) -> None:
    """The outputs made by hand know nothing of the labels."""
    assert "No progress is made" in named(by_hand, "loss-shared").reading
    assert "progress made" not in named(by_hand, "gap").headline
    assert {row["share_of_progress"] for row in named(by_hand, "gap").rows} == {None}


SMALL = "--steps 3 --batch 4 --depths 1 2 4 --widths 8 16 --seeds 2 --limit-width 32 --replicates 3 --block-depths 2 4"


def test_the_command_writes_its_report_and_trains_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["paper", "study", *SMALL.split(), "--executor", "inline", "--out", str(tmp_path / "fresh")]
    assert main(asked) == 0
    said, page = capsys.readouterr().out, (tmp_path / "fresh" / "report.html").read_text()
    assert f"Report: {tmp_path / 'fresh' / 'report.html'}" in said
    assert all((tmp_path / "fresh" / f"{name}.{kind}").exists() for name in NAMES for kind in ("csv", "pdf", "png"))
    assert "Are the two limits the same?" in page
    result = json.loads((tmp_path / "fresh" / "result.json").read_text())
    assert result["complete"] is True
    with Sweep(tmp_path / "fresh") as sweep:
        before = sweep.store.keys()
    assert main(asked) == 0
    with Sweep(tmp_path / "fresh") as sweep:
        assert sweep.store.keys() == before
    assert capsys.readouterr().out == said
