"""The command line in this process: where the base of a plan comes from, and how a line is read."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.test_commands import SETUP

import nfd
from nfd.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "setup.py").write_text(SETUP)
    return tmp_path


# ---- nfd plan: from which base, at which rate

TUNED = {
    "command": "nfd transfer setup.py",
    "model": "setup.py:make_model",
    "optimizer": "adamw",
    "base": [8, 2],
    "table": [
        {"rule": rule, "width": width, "depth": 2, "quantity": "best lr", "value": value, "low": 0.003, "high": 0.006}
        for rule, width, value in (
            ("standard", 8, 0.002),
            ("complete-p", 16, 0.005),
            ("complete-p", 8, 0.004),
            ("mup", 8, None),
        )
    ],
}


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command in this process: its exit code, and what it prints on stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (folder / "tuned").mkdir()
    (folder / "tuned" / "result.json").write_text(json.dumps(TUNED))
    handler = signal.getsignal(signal.SIGTERM)

    def answer(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        finally:
            signal.signal(signal.SIGTERM, handler)
        out, err = capsys.readouterr()
        return code, out, err

    return answer


OF_32 = ("plan", "setup.py", "--width", "32", "--depth", "2")


def test_a_plan_takes_base_rule_and_rate_from_a_transfer(command: Command, folder: Path) -> None:
    _, out, _ = command(*OF_32, "--from", "tuned")
    assert "width x4, depth l = 1 times the base's (width 8, depth 2)" in out
    assert "From tuned: tuned at width 8 and depth 2 under complete-p, lr = 0.004 [0.003, 0.006]." in out
    assert "0.004 in^-1 = 0.001" in out
    assert json.loads((folder / "out/plan/result.json").read_text())["lr"] == 0.004


def test_a_plan_shows_the_rates_that_its_optimizer_gets(command: Command, folder: Path) -> None:
    _, out, _ = command(*OF_32, "--base", "8", "2", "--lr", "0.02", "--rule", "complete-p")
    plan = nfd.Plan.load(folder / "out/plan/plan.json")
    rates = [0.02 * plan.rate(name) for name in plan.entries]
    assert min(rates) == 0.005
    assert all(f"{rate:.4g}" in out for rate in rates)
    assert "the base is the default" not in out


def test_a_plan_without_a_base_says_which_it_takes(command: Command) -> None:
    _, out, _ = command(*OF_32)
    assert "times the base's (width 64, depth 4)" in out
    assert "the base is the default, width 64 and depth 4" in out
    assert "--base WIDTH DEPTH, or --from out/transfer" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "tuned", "--rule", "depth-mup"), "got --rule depth-mup"),
        (("--from", "tuned", "--rule", "mup"), "lies at an end of the grid"),
        (("--from", "tuned", "--optimizer", "sgd"), "was tuned with adamw"),
        (("--from", "nowhere"), "holds no answer of nfd transfer"),
    ],
)
def test_what_a_transfer_does_not_hold_is_refused(options: tuple[str, ...], said: str, command: Command) -> None:
    code, _, err = command(*OF_32, *options)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    "line",
    [("--widths=8,16", "setup.py"), pytest.param(("--widths", "8", "16", "setup.py"), marks=pytest.mark.slow)],
)
def test_the_file_may_follow_an_option_of_several_values(line: tuple[str, ...], command: Command) -> None:
    _, out, err = command("check", *line, "--depths", "2", "--steps", "2", "--executor", "inline")
    assert "widths 8, 16" in out, err


@pytest.mark.parametrize(("wrong", "near"), [("--json", ""), ("--width", "Did you mean '--widths'?")])
def test_an_option_is_suggested_where_one_is_like_it(wrong: str, near: str, command: Command) -> None:
    code, _, err = command("check", "setup.py", wrong)
    assert code == 2
    assert ("Did you mean" in err) == bool(near)
    assert near in err


# ---- nfd predict: whose networks


def test_a_prediction_has_the_networks_of_its_seed(command: Command, folder: Path) -> None:
    inline = "--base 8 1 --width 16 --depth 1 --weights dense --replicates 2 --executor inline"
    losses: list[str] = []
    for options in ("", "--seed 0", "--seed 1"):
        code, _, err = command(*f"predict setup.py {inline} {options}".split())
        assert code in (0, 1), err
        losses.append((folder / "out/predict/predict.csv").read_text())
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert json.loads((folder / "out/predict/result.json").read_text())["command"].endswith("--seed 1")


@pytest.mark.parametrize("seed", ["-1", "0.5", "many"])
def test_a_seed_is_a_count(seed: str, command: Command) -> None:
    code, _, err = command("predict", "setup.py", "--base", "8", "1", "--width", "16", "--depth", "1", "--seed", seed)
    assert code == 2
    assert "seed" in err
