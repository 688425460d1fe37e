"""The command line as a person meets it: files, exit codes, messages, silence when piped."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nfd import __version__
from nfd.cli.main import main

SMALL = shlex.split("--depth 2 --steps 3 --batch 4 --widths 8 16 --seeds 2 --limit-width 32 --replicates 2")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    assert main(["study", *SMALL, "--out", str(out)]) == 0
    return out


def test_study_writes_every_promised_file(study: Path) -> None:
    names = {"report.html", "result.json", "curves.csv", "gaps.csv", "curves.pdf", "curves.png"}
    assert {p.name for p in study.iterdir()} == names
    assert (study / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert (study / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_study_result_holds_configuration_curves_and_reading(study: Path) -> None:
    result = json.loads((study / "result.json").read_text())
    assert result["config"]["widths"] == [8, 16]
    assert result["command"].startswith("nfd study --depth 2")
    series = {row["series"] for row in result["curves"]}
    assert series == {"infinitely wide", "infinitely wide, decoupled", "width 8", "width 16"}
    assert all(row["low"] <= row["loss"] <= row["high"] for row in result["curves"])
    assert len(result["reading"]) >= 3
    with (study / "curves.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(result["curves"]) == 12


def test_study_repeats_bit_for_bit(study: Path, tmp_path: Path) -> None:
    assert main(["study", *SMALL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "curves.csv").read_bytes() == (study / "curves.csv").read_bytes()


def test_report_is_one_offline_page(study: Path) -> None:
    page = (study / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "vegaEmbed" in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<script" not in markup
    assert "http" not in markup
    assert "@import" not in markup


def test_predict_writes_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "predict --depth 2 --steps 3 --batch 4 --width 32 --replicates 2 --feedback independent"
    assert main([*arguments.split(), "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["width"] == 32
    assert result["depths"] == [2]
    assert len(result["rows"]) == 3
    assert "2 replicates" in capsys.readouterr().out


BAD = [
    (["study", "--activation", "rellu"], "Did you mean 'relu'"),
    (["study", "--widths", "0"], "widths must be at least 1"),
    (["study", "--batch", "5000"], "at most the 1437"),
    (["study", "--data", "mnist"], "data must be one of"),
    (["predict", "--width", "wide"], "width must be a whole number or 'auto'"),
    (["predict", "--depth", "0"], "depth must be at least 1"),
    (["predict", "--depth", "2.5"], "depth must be a whole number"),
    (["predict", "--rule", "depth-mup-inner"], "needs inner and outer roles"),
    (["predict", "--memory", "plenty"], "memory must be like"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["study", *SMALL, "--out", str(file / "below")]) == 2
    assert "out must be a directory that can be written" in capsys.readouterr().err


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nfd.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_unknown_options_and_commands_exit_with_2() -> None:
    for arguments in (["study", "--wdith", "3"], ["stduy"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_help_and_version_come_without_torch() -> None:
    code = "import sys; from nfd.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "main(['--version']); assert 'torch' not in sys.modules and 'altair' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "study" in done.stdout
    assert f"nfd {__version__}" in done.stdout


def test_piped_output_has_no_progress_bar(tmp_path: Path) -> None:
    arguments = [
        "predict",
        "--depth",
        "2",
        "--steps",
        "2",
        "--batch",
        "2",
        "--width",
        "16",
        "--replicates",
        "2",
        "--out",
    ]
    done = run(*arguments, str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == ""
