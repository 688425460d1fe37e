"""Every example runs at a small size."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


def test_million_wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["million_wide.py", "--widths", "32", "64", "--steps", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(EXAMPLES / "million_wide.py"), run_name="__main__")
    assert "width        64" in capsys.readouterr().out
    assert (tmp_path / "million.png").stat().st_size > 5000
    assert len((tmp_path / "million.csv").read_text().splitlines()) == 5


def test_two_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["two_limits.py", "--depths", "2", "--samples", "4", "--scale", "0.01", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(EXAMPLES / "two_limits.py"), run_name="__main__")
    page = (tmp_path / "two-limits.md").read_text()
    assert page.count("| 2 | ") == 1
    assert "| width n | " in page
    assert "{" not in page.replace("{l-1}", "")


def test_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["checks.py", "--size", "small", "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "checks.py"), run_name="__main__")
    page = (tmp_path / "checks.md").read_text()
    assert page.count("Rule '") == page.count("\n## ") == 8
    assert page.count("inner_update") >= 8


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's and Lightning's own
@pytest.mark.parametrize(
    ("name", "library"), [("plan_with_trainer", "transformers"), ("plan_with_lightning", "lightning")]
)
def test_plans_ride_in_trainers(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--width", "32", "--depth", "3", "--steps", "3"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "loss: " in capsys.readouterr().out


@pytest.mark.parametrize("shard", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp2"])
def test_a_plan_rides_in_torchrun(shard: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = [str(EXAMPLES / "plan_with_torchrun.py"), "--shard", shard]
    small = ["--width", "32", "--depth", "2", "--steps", "3"]
    done = subprocess.run([*command, *script, *small], capture_output=True, text=True, timeout=120, env=ALONE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{shard}, 2 processes" in done.stdout
