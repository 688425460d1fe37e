"""How a command ends: whose mistake it was decides the exit code, and nobody's files or streams are harmed."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nfd import __version__
from nfd.cli.commands import COMMANDS, command
from nfd.cli.main import main
from nfd.cli.streams import Surviving
from nfd.cli.words import read
from nfd.core.errors import InputError, StateError, described, trace_of

# A command, what it is given, the function of ours in which it is broken, and a file that it writes.
BROKEN = {
    "study": ("", "nfd.paper.study.Study", "gap.csv"),
    "predict": ("", "nfd.questions.prediction.prediction", "predict.csv"),
    "check": ("tests.models:Residual", "nfd.questions.checking.checked", "runs.csv"),
    "plan": ("tests.models:Residual", "nfd.questions.model_plan.planned", "plan.json"),
    "transfer": ("--executor inline", "nfd.questions.transfer_sweep.transfer_of_sweep", "loss-mup.png"),
    "capacity": ("--executor inline", "nfd.questions.capacity_sweep.capacity_of_sweep", "report.html"),
    "sweep": ("{grid} --executor inline", "nfd.paper.runs.member", "result.json"),
    "runs": ("{sweep}", "nfd.runs.export.listing", "runs.csv"),
    "figure": ("1 --executor inline", "nfd.paper.figures.making.dataset_for", "figure-1.html"),
    "claims": ("--executor inline", "nfd.paper.claims.table.evidence_for", "claims.md"),
    "kernel": ("", "nfd.questions.kernel_fit.KernelFit", "config.toml"),
    "report": ("{sweep}", "nfd.report.overview.write_report", "report.html"),
    "explore": ("", "nfd.report.explore.explore_page", "explore.html"),
    "data": ("", "nfd.paper.data.load.load", "contact.png"),
}
GRID = "width = 4\ndepth = 2\nsteps = 2\nbatch = 4\n"


def divide(*_: object, **__: object) -> int:
    return 1 // 0


def look_up(*_: object, **__: object) -> int:
    return dict[str, int]()["there is no such key"]


def reshape(*_: object, **__: object) -> Any:
    return np.ones(3).reshape(2)


def index(*_: object, **__: object) -> int:
    return list[int]()[0]


def recurse(*_: object, **__: object) -> int:
    return recurse() + 1


def raise_without_number(*_: object, **__: object) -> int:
    raise OSError("no error of the system has no number")


FAULTS: list[tuple[Callable[..., Any], str]] = [
    (divide, "ZeroDivisionError"),
    (look_up, "KeyError"),
    (reshape, "ValueError: cannot reshape"),
    (index, "IndexError"),
    (recurse, "RecursionError"),
    (raise_without_number, "OSError"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A grid, and the results of a sweep over it."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "grid.toml").write_text(GRID)
    assert main(["sweep", str(folder / "grid.toml"), "--executor", "inline", "--out", str(folder / "sweep")]) == 0
    return {"grid": str(folder / "grid.toml"), "sweep": str(folder / "sweep")}


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def line(name: str, places: dict[str, str], out: Path) -> list[str]:
    return [name, *BROKEN[name][0].format(**places).split(), "--out", str(out)]


def test_every_command_is_broken_here() -> None:
    assert list(BROKEN) == list(COMMANDS)


@pytest.mark.parametrize(("name", "k"), [(name, k % len(FAULTS)) for k, name in enumerate(BROKEN)])
def test_a_mistake_of_ours_is_70_and_its_traceback_is_kept(
    name: str,
    k: int,
    places: dict[str, str],
    tmp_path: Path,
    own_temporary_files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault, said = FAULTS[k]
    monkeypatch.setattr(BROKEN[name][1], fault)
    given = line(name, places, tmp_path / "out")
    assert main(given) == 70
    shown = capsys.readouterr().err
    assert "nfd: this is a bug in nfd, not an error in your input: " in shown
    assert said in shown
    assert "Traceback" not in shown
    (kept,) = own_temporary_files.iterdir()
    assert str(kept) in shown
    content = kept.read_text()
    assert content.startswith(f"nfd {__version__}, Python")
    assert f"nfd {name} " in content
    assert fault.__name__ in content
    kept.unlink()
    for at in (0, 1, len(given)):  # at any place
        assert main([*given[:at], "--traceback", *given[at:]]) == 70
        assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert list(own_temporary_files.iterdir()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_files_of_others_are_refused_before_any_work(
    name: str,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(BROKEN[name][1], divide)  # work that is begun ends with 70
    theirs = tmp_path / "out" / BROKEN[name][2]
    theirs.parent.mkdir()
    (theirs.parent / "notes.txt").write_text("theirs")
    theirs.write_text("theirs")
    given = line(name, places, theirs.parent)
    assert main(given) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"nfd: {theirs} would be replaced, and was not made by nfd.")
    assert {path.name: path.read_text() for path in theirs.parent.iterdir()} == dict.fromkeys(
        ("notes.txt", theirs.name), "theirs"
    )
    theirs.unlink()
    assert main(given) == 70  # files of other names are no hindrance


def test_a_traceback_is_printed_where_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nfd.cli.ending.tempfile.mkstemp", full)
    monkeypatch.setattr(BROKEN["data"][1], divide)
    assert main(["data", "--out", str(tmp_path / "out")]) == 70
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "with the traceback above" in shown


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 2, "nfd: out of memory. Use smaller widths"),
        (MemoryError("4 GiB"), 2, r"nfd: out of memory \(4 GiB\). Use smaller"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2, "weights='structured'"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 2, "No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x"), 2, "No such file"),
        (FileNotFoundError(errno.ENOENT, "No such file", main.__code__.co_filename), 70, "bug in nfd"),
        (OSError(errno.EBADF, "Bad file descriptor"), 70, "bug in nfd"),
        (InputError("width must be at least 1"), 2, "nfd: width must be at least 1\n"),
        (ValueError("width must be at least 1"), 70, "bug in nfd"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
        (SystemExit(3), 2, r"called sys.exit\(3\)"),
    ],
)
def test_the_type_of_an_error_decides_its_exit_code(
    error: BaseException,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(BROKEN["data"][1], fail)
    assert main(["data", "--out", str(tmp_path / "out")]) == code
    assert re.search(said, capsys.readouterr().err)


def test_what_an_import_makes_of_an_interruption_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_off(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("cannot import name") from error

    monkeypatch.setattr(BROKEN["data"][1], broken_off)
    assert main(["data", "--out", str(tmp_path / "out")]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_failed_run_says_whose_mistake_it_was() -> None:
    def trace(error: Exception) -> str | None:
        try:
            raise error
        except Exception as caught:
            return trace_of(caught)

    assert described(InputError("odd")) == "InputError: odd"
    assert trace(InputError("odd")) is None
    assert trace(MemoryError("no")) is None
    assert "in trace" in (trace(KeyError("x")) or "")
    assert isinstance(StateError(""), RuntimeError)


# ---- code of the user's --------------------------------------------------------------------------------------

CODE = {
    "raises": ("def make(width, depth):\n    return {}['heads']\n", "KeyError: 'heads'", "line 2, in make"),
    "imports": ("x = 1\ny = 1 / 0\n", "cannot be imported (ZeroDivisionError", "line 2"),
    "syntax": ("def make(width, depth:\n", "cannot be imported (SyntaxError", "line 1"),
    "exits": ("import sys\nsys.exit(0)\n", "cannot be imported (SystemExit", "line 2"),
    "ends": ("import sys\ndef make(width, depth):\n    sys.exit(1)\n", "sys.exit(1)", "line 3, in make"),
    "one": (
        "def make(width):\n    return None\n",
        "must take (width, depth); got a function of (width)",
        "",
    ),
    "odd": (
        "import nfd\ndef make(width, depth):\n    return nfd.ResNet(64, 10, width, depth, activation='rellu')\n",
        "activation must be one of",
        "line 3, in make",
    ),
    "helped": ("import helper\nmake = helper.make\n", "RuntimeError: in the helper", "helper.py"),
    "forward": (
        "import torch\nclass make(torch.nn.Module):\n    def __init__(self, width, depth):\n"
        "        super().__init__()\n        self.a = torch.nn.Linear(64, width)\n"
        "        self.b = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))\n"
        "    def forward(self, x):\n        return self.a(x).nothing\n",
        "AttributeError",
        "line 8, in forward",
    ),
}


@pytest.mark.parametrize("kind", CODE)
def test_errors_in_the_users_code_show_its_file_and_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said, where = CODE[kind]
    name = f"their_{kind}"
    (tmp_path / f"{name}.py").write_text(content)
    (tmp_path / "helper.py").write_text("def make(width, depth):\n    raise RuntimeError('in the helper')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sizes = ["--widths", "4", "8", "--depths", "1", "2", "--steps", "1", "--batch", "2", "--rule", "standard"]
    assert main(["check", f"{name}:make", *sizes, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert where in shown
    assert not where or str(tmp_path) in shown
    assert "mistake" not in shown
    assert "site-packages" not in shown


# ---- streams and signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("--version >&-", 0, ""),
        ("--version <&- >&- 2>&-", 0, ""),
        ("stduy 2>&-", 2, ""),
        ("--version >/dev/full", 2, "nfd: the output could not be written (No space left on device)."),
        ("--help >/dev/full", 2, "could not be written"),
        ("stduy 2>/dev/full", 2, ""),
    ],
)
def test_closed_and_full_streams_are_survived(redirected: str, code: int, said: str) -> None:
    run = f"{sys.executable} -m nfd {redirected}"
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Exception" not in done.stderr + done.stdout


def test_a_stream_that_fails_on_the_way_drops_what_follows() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        stream = Surviving(pipe)
        stream.write("lost")
        stream.flush()
        assert isinstance(stream.fault, BrokenPipeError)
        assert stream.write("dropped") == 7
        stream.flush()


def test_sigterm_ends_a_command_as_an_interruption_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("nfd.questions.transfer_sweep.transfer_of_sweep", terminated)
    assert main(["transfer", "--executor", "inline", "--out", str(tmp_path)]) == 130
    assert "nfd: interrupted; 0 runs are kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


# ---- options -------------------------------------------------------------------------------------------------


def test_commas_separate_the_values_of_lists_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["kernel", "facts", "--out", "1,2"]) == 0
    assert json.loads((tmp_path / "1,2" / "result.json").read_text())["command"] == "nfd kernel facts --out 1,2"
    for name, given, expected in (
        ("transfer", "--widths 64,128 --rules mup,depth-mup", "--widths 64 128 --rules mup depth-mup"),
        ("transfer", "--widths=64,128 --out=1,2", "--widths 64 128 --out 1,2"),
        ("study", "--data-dir 1,2 --block-depths 2,4", "--data-dir 1,2 --block-depths 2 4"),
        ("study", "--block_depths 2,4 --out mup,depth-mup", "--block_depths 2 4 --out mup,depth-mup"),
        ("capacity", "out/1,2 --held-out 64,8", "out/1,2 --held-out 64 8"),
        ("runs", "1,2 --where width=64,128 rule=mup", "1,2 --where width=64,128 rule=mup"),
    ):
        assert read(command(name), command(name), f"nfd {name}", given.split()) == expected.split()
