"""The measurement of how often a check is wrong: on networks whose exponents are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from calibration.check_looks import Ladder, outcome
from calibration.verdicts import (
    AT,
    CASES,
    SEEDS,
    Case,
    Tables,
    bank,
    beyond,
    by_case,
    by_kind,
    by_situation,
    split,
)
from nfd.meters.designs import Asked, Design, designs_of


def made(case: Case, power: float) -> list[dict[str, Any]]:
    """Readings of networks whose only meter is a power of the size, with a scatter of 5 %."""
    g = torch.Generator().manual_seed(0)
    other = {"width": 64, "depth": 3}
    return [
        other
        | {case.axis: n, "seed": seed, "step": step}
        | {"inner_update": n**power * float(torch.exp(0.05 * torch.randn((), generator=g)))}
        for n in case.sizes
        for seed in range(SEEDS)
        for step in AT
    ]


SOUND = Case("mlp", "complete-p", "adamw", 1e-3, "width")
BROKEN = Case("resnet2", "depth-mup", "sgd", 0.1, "depth", "collapse")


@pytest.mark.parametrize(("sound", "broken", "wrong"), [(0.0, -0.5, 0.0), (-0.5, 0.0, 1.0)])
def test_alarms_and_misses_are_counted(sound: float, broken: float, wrong: float) -> None:
    tables = Tables({SOUND: made(SOUND, sound), BROKEN: made(BROKEN, broken)})
    for case in (SOUND, BROKEN):
        rate = tables.wrong([case])
        assert rate.value == wrong
        assert rate.low - 1e-12 <= wrong <= rate.high + 1e-12
    assert len(by_situation(tables)) == 12
    assert len(by_case(tables)) == 2 * wrong
    assert tables.wrong([BROKEN], judge=beyond(0.6, 0.1)).value == 1  # nothing lies beyond


def test_every_kind_of_fault_has_cases_and_none_is_twice() -> None:
    sound, broken = split(CASES)
    assert len(set(map(str, CASES))) == len(CASES)
    assert min(len(sound), len(broken)) >= 25
    kinds = by_kind(
        Tables(
            {case: made(case, 0.0) for case in CASES if case.model == "gpt" or case.model == "mlp"}
        )
    )
    assert all(row["cases"] for row in kinds)


@pytest.mark.parametrize(("scatter", "share"), [(0.005, 1 / 3), (1.0, 1.0)])
def test_checks_of_few_networks_end_where_these_decide(scatter: float, share: float) -> None:
    g = torch.Generator().manual_seed(0)
    for case, power in ((SOUND, 0.0), (BROKEN, -0.5)):
        ladder = Ladder(case)
        looks = []
        for place in Design(ladder.sizes, seeds=3).networks:
            row: dict[str, Any] = dict(zip(("width", "depth", "seed"), place, strict=True))
            noise = scatter * float(torch.randn((), generator=g))
            looks.append(row | {"inner_update": row[case.axis] ** power * math.exp(noise)})
        few = outcome(ladder, looks, designs_of(Asked(ladder.sizes, None)), 0)
        every = outcome(ladder, looks, designs_of(Asked(ladder.sizes, 3)), 0)
        assert (few.share, every.share) == (share, 1)
        assert (few.is_wrong, few.is_open) == (every.is_wrong, every.is_open)
        assert few.is_open == (scatter == 1.0)


@pytest.mark.slow
def test_cases_are_trained_and_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = BROKEN.train(seeds=2, sizes=[2, 8])
    assert {(row["depth"], row["seed"], row["step"]) for row in readings} == {
        (L, seed, step) for L in (2, 8) for seed in range(2) for step in AT
    }
    assert all(row["inner_update"] > 0 for row in readings)
    monkeypatch.setattr(Case, "train", lambda case: readings)
    first = bank(tmp_path / "bank", [BROKEN])
    monkeypatch.setattr(Case, "train", None)
    assert bank(tmp_path / "bank", [BROKEN]) == first
