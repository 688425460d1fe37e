"""Every command that trains your own model, through the installed script, where nothing was run before."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import pytest
from tests.contract.common import ResidualMLP, run

SETUP = f"""
import torch
from torch import Tensor, nn

{inspect.getsource(ResidualMLP)}

def make_model(width, depth):
    return ResidualMLP(width, depth)

_samples = torch.Generator().manual_seed(0)
batches = [
    (torch.randn(4, 64, generator=_samples), torch.randint(10, (4,), generator=_samples)) for _ in range(2)
]
"""
COMMANDS = {
    "check": "--widths 8 16 --depths 1 --seeds 2",
    "plan": "--width 16 --depth 1 --base 8 1",
    "transfer": "--widths 8 16 --depths 1 --seeds 2 --rules mup --lr 9 1e-4 .03 --workers 2",
    "scaling-law": "--widths 8 12 16 --depths 1 2 --seeds 2 --workers 1",
    "predict": "--base 8 1 --width 16 --depth 1 --weights dense --replicates 2 --workers 1",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's file in it, of which Python knows nothing, and an empty cache."""
    (tmp_path / "setup_of_mine.py").write_text(SETUP)
    monkeypatch.setenv("NFD_CACHE", str(tmp_path / "cache"))
    assert str(tmp_path) not in os.environ.get("PYTHONPATH", "")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_first_run_finds_the_model_in_the_current_folder(name: str, folder: Path) -> None:
    answer = run(name, "setup_of_mine.py", *COMMANDS[name].split(), folder=folder)
    assert answer.returncode in (0, 1), answer.stderr  # 1: so small a check or fit need not hold
    assert "No module named" not in answer.stderr
    written = folder / "out" / name / ("plan.json" if name == "plan" else "result.json")
    assert json.loads(written.read_text())
