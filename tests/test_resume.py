"""A training of a deferred model that was saved in its middle goes on in another process, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.resumed import CASES, HALF, STEPS, Training

ROOT = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore:A (Deferred|Structured)Linear of size")
def test_a_training_goes_on_bit_for_bit_in_another_process(tmp_path: Path) -> None:
    """Model, momenta of both optimizers, scheduler, directions and streams of random numbers."""
    expected = {}
    for case in CASES:
        training = Training(case, seed=0)
        first = training.losses(range(HALF))
        training.save(tmp_path / case)
        expected[case] = training.losses(range(HALF, STEPS))
        assert not set(first) & set(expected[case])
    command = [sys.executable, "-m", "tests.resumed", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(expected)
    for case, *losses in lines:
        assert losses == expected[case], case
