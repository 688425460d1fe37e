"""Trainings repeat the losses that version 0.2.0 wrote down.

Two are written anew: networks of the paper under ``optimizer="muon"``, whose dense matrices 0.2.0
gave to AdamW.
"""

from __future__ import annotations

import json

import pytest
import torch
from tests.contract.parity import LOSSES, cases, losses

CASES = dict(cases())
WRITTEN = json.loads(LOSSES.read_text())
ROUNDING = 1e-6  # sums in another order, over five steps in double precision
OF_MUON = 1e-4  # PyTorch's rounds to bfloat16: two kinds of processors were 1.6e-5 apart


@pytest.mark.parametrize("name", CASES)
def test_a_training_repeats_the_losses_that_were_written_down(name: str) -> None:
    rounding = OF_MUON if name.endswith("optimizer=muon") else ROUNDING
    torch.testing.assert_close(losses(CASES[name]), WRITTEN[name], rtol=rounding, atol=0)


def test_every_training_is_written_down() -> None:
    assert set(WRITTEN) == set(CASES)
    assert len(WRITTEN) >= 40


def test_another_rate_is_another_training() -> None:
    """The comparison can fail: momentum alone changes every loss but the first."""
    plain = WRITTEN["block=one-layer rule=depth-mup"]
    other = losses({"momentum": 0.01})
    assert other[0] == pytest.approx(plain[0], rel=ROUNDING)
    assert all(abs(a / b - 1) > 10 * ROUNDING for a, b in zip(other[2:], plain[2:], strict=True))
