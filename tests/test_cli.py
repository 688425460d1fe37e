"""The command line as a person meets it: files, exit codes, messages, silence when piped."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nfd import __version__
from nfd.cli.commands import COMMANDS
from nfd.cli.main import main
from nfd.limits.ensemble import Replicate, Trajectory
from nfd.runs import replicates
from nfd.runs.replicates import ReplicateRun

SIZES = "--steps 3 --batch 4 --depths 1 2 --widths 8 16 --seeds 2 --limit-width 32 --replicates 3"
SMALL = shlex.split(f"{SIZES} --block-depths 1 2 --block-width 8 --block-seeds 2 --executor inline")
STORE = {"runs.sqlite", "runs.lock"}
CHARTS = ("loss-shared", "loss-independent", "gap", "distance-width", "distance-depth", "updates-first", "updates-last")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    assert main(["study", *SMALL, "--out", str(out)]) == 0
    return out


def test_study_writes_every_promised_file(study: Path) -> None:
    charts = {f"{name}.{kind}" for name in CHARTS for kind in ("csv", "pdf", "png")}
    page = {".nfd", "report.html", "result.json", "config.toml"}
    assert {p.name for p in study.iterdir()} == page | charts | STORE
    for name in CHARTS:
        assert (study / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (study / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_study_result_holds_configuration_findings_and_facts(study: Path) -> None:
    result = json.loads((study / "result.json").read_text())
    assert result["config"]["widths"] == [8, 16]
    assert result["complete"] is True
    assert result["command"].startswith("nfd study --steps 3")
    assert result["repeat"] == f"nfd study --config {study / 'config.toml'} --out {study}"
    assert tuple(result["findings"]) == CHARTS
    for name, finding in result["findings"].items():
        assert finding["reading"]
        with (study / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(finding["rows"]) > 0
    assert result["run"]["data_fingerprint"]
    assert result["run"]["total_seconds"] > 0


def numbers(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix in (".csv", ".toml", ".png")}


def test_its_own_configuration_repeats_a_study_bit_for_bit_in_other_processes(study: Path, tmp_path: Path) -> None:
    assert main(["study", "--config", str(study / "config.toml"), "--workers", "1", "--out", str(tmp_path)]) == 0
    assert numbers(tmp_path) == numbers(study)


def test_options_win_over_the_configuration_file(study: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("steps = 2\nbatch = 3\nwidth = 16\nreplicates = 3\ndepth = 1.0\n")
    given = ["predict", f"--config={tmp_path / 'c.toml'}", "--batch", "2", "--executor", "inline"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    config = json.loads((tmp_path / "result.json").read_text())["config"]
    assert (config["steps"], config["batch"], config["width"]) == (2, 2, 16)


def test_options_complete_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('data = "images"\n')
    for name in ("a", "b"):
        (tmp_path / "d" / name).mkdir(parents=True)
        for k in range(3):
            pixels = np.random.default_rng(k).integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "d" / name / f"{k}.png")
    given = ["data", "info", "--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "o")]
    assert exit_code(given) == 2
    assert main([*given, "--data-dir", str(tmp_path / "d")]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--steps 1", "How does it train"),
        ("--eta-c 0", "not resolved|no exponent"),
        ("--eta-c 1e6 --steps 6", "Training diverged"),
        ("--horizon 999 --depths 128 256", "lower the horizon"),
        ("--activation identity --batch 1", "How does it train"),
    ],
)
def test_odd_studies_end_with_words_not_with_nan(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfd.report.charts.still", lambda *_: (b"", b""))
    assert main(["study", *SMALL, *options.split(), "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(said, shown + (tmp_path / "report.html").read_text())
    assert "nan" not in shown


@pytest.mark.slow
def test_a_closed_pipe_does_not_lose_the_study(tmp_path: Path) -> None:
    command = f"{sys.executable} -u -m nfd study {shlex.join(SMALL)} --out {tmp_path} | true"
    subprocess.run(["bash", "-c", command], check=False, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "result.json").exists()


def test_an_interrupted_study_keeps_what_is_done_and_says_so(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_pages(study, tmp_path)  # a complete result of an earlier run must not mix with the partial one
    trained, seen = replicates.trained, list[Replicate]()

    def interrupted(replicate: Replicate) -> Trajectory:
        if not replicate.problem.coupled:  # the first of the real networks
            raise KeyboardInterrupt
        seen.append(replicate)
        return trained(replicate)

    monkeypatch.setattr(replicates, "trained", interrupted)
    assert main(["study", *SMALL, "--out", str(tmp_path)]) == 130
    assert "the report contains the measurements so far" in capsys.readouterr().err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["complete"] is False
    assert list(result["findings"]) == ["loss-shared", "distance-depth"]
    assert "This report is partial" in (tmp_path / "report.html").read_text()
    assert {p.stem for p in tmp_path.glob("*.csv")} == {"loss-shared", "distance-depth"}
    monkeypatch.setattr(replicates, "trained", lambda replicate: seen.append(replicate) or trained(replicate))
    before = len(seen)
    assert main(["study", *SMALL, "--out", str(tmp_path)]) == 0
    assert numbers(tmp_path) == numbers(study)
    assert before > 0
    assert len(seen) == len({ReplicateRun(replicate).key for replicate in seen})  # none was trained twice


def test_an_interruption_before_the_first_result_writes_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replicates, "trained", interrupt)
    assert main(["study", *SMALL, "--out", str(tmp_path)]) == 130
    assert "interrupted; 0 runs are kept" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == STORE


def copy_pages(study: Path, directory: Path) -> None:
    """Everything that a study wrote, but for its networks."""
    for path in study.iterdir():
        if path.name not in STORE:
            (directory / path.name).write_bytes(path.read_bytes())


def pages(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name not in STORE}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on file sizes, which stands for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_that_stops_the_store_names_it_and_leaves_the_pages_alone(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_pages(study, tmp_path)
    before = pages(tmp_path)
    with largest_file(60_000):
        assert main(["study", *SMALL, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "runs.sqlite" in said
    assert "what was committed before is safe" in said
    assert pages(tmp_path) == before


def test_a_full_disk_leaves_the_earlier_result_whole(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page, the largest file, does not fit."""
    for path in study.iterdir():  # its networks too, so that the page alone is left to write
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = pages(tmp_path)
    with largest_file(500_000):
        assert main(["study", *SMALL, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "nothing was changed in it" in said.err
    assert "How does it train" in said.out  # what was found is not lost
    assert pages(tmp_path) == before


def test_report_is_one_offline_page(study: Path) -> None:
    page = (study / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "vegaEmbed" in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<script" not in markup
    assert not re.search("https?:|//", markup)
    assert "@import" not in markup


def test_predict_writes_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split("predict --depth 2 --steps 3 --batch 4 --width 32 --replicates 3 --feedback independent")
    assert main([*arguments, "--executor", "inline", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["width"] == 32
    assert result["depths"] == [2]
    assert len(result["rows"]) == 3
    assert {"loss", "low", "high", "bias"} <= set(result["rows"][0])
    said = capsys.readouterr().out
    assert "loss [95 % interval]" in said
    assert "3 networks of width 32" in said


BAD = [
    (["study", "--widths", "0", "8"], "widths[0] must be at least 1"),
    (["study", "--depths", "0", "--seeds", "1"], "2 settings are wrong:"),
    (["study", "--batch", "5000"], "at most the 1437"),
    (["study", "--data", "cifar10"], "needs data_dir"),
    (["study", "--data", "cifar10", "--data-dir", "nowhere"], "does not exist"),
    (["study", "--config", "nowhere.toml"], "cannot be read"),
    (["predict", "--width", "wide"], "width must be a whole number of at least 1, or 'auto'"),
    (["predict", "--depth", "0"], "depth must be a whole number of at least 1, or inf"),
    (["predict", "--depth", "2.5"], "depth must be a whole number"),
    (["predict", "--rule", "depth-mup-inner"], "needs block='two-layer'"),
    (["predict", "--memory", "plenty"], "memory must be like"),
]


def exit_code(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*arguments, "--out", str(tmp_path)]) == 2
    shown = " ".join(capsys.readouterr().err.replace("│", "").split())
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


def test_unknown_options_and_commands_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["study", "--wdith", "3"],
        ["stduy"],
        ["study", "--steps", "abc"],
        ["study", "--activation", "rellu"],
        ["data", "inof"],
    ):
        assert exit_code(arguments) == 2
        said = capsys.readouterr().err
        assert said
        assert "Traceback" not in said


def test_help_and_version_come_without_torch() -> None:
    code = "import sys; from nfd.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "main(['--version']); assert not {'torch', 'altair', 'tyro', 'pydantic'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "Predict how an infinitely wide and deep residual network" in done.stdout
    assert f"nfd {__version__}" in done.stdout


def test_piped_output_has_no_progress_bar_and_sgd_needs_no_compiler(tmp_path: Path) -> None:
    arguments = shlex.split("predict --depth 2 --steps 2 --batch 2 --width 16 --replicates 2 --executor inline --out")
    code = "import runpy, sys\ntry: runpy.run_module('nfd', run_name='__main__')\n"
    code += "finally: assert 'torch._dynamo' not in sys.modules  # seconds"
    command = [sys.executable, "-c", code, *arguments, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_data_info_says_what_a_data_set_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1,437 training, 360 test" in shown
    assert "1 channel of 8 x 8: d = 64" in shown
    assert (tmp_path / "contact.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "result.json").read_text())["official"] == "yes"
