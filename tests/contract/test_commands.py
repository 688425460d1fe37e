"""The commands: what they print and write, how they end, and that they harm nobody's files."""

from __future__ import annotations

import csv
import inspect
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.common import NFD, ResidualMLP, run, run_process

import nfd

SETUP = f"""
import torch
from torch import Tensor, nn

{inspect.getsource(ResidualMLP)}

def make_model(width, depth):
    return ResidualMLP(width, depth)

_samples = torch.Generator().manual_seed(0)
batches = [
    (torch.randn(4, 64, generator=_samples), torch.randint(10, (4,), generator=_samples))
    for _ in range(2)
]
"""
COMMANDS = {
    "check": "--widths 8 16 --depths 1 --seeds 2",
    "plan": "--width 16 --depth 1 --base 8 1",
    "transfer": "--widths 8 16 --depths 1 --seeds 2 --rules mup --lr 9 1e-4 .03 --workers 2",
    "scaling-law": "--widths 8 12 16 --depths 1 2 --seeds 2 --workers 1",
    "predict": "--base 8 1 --width 16 --depth 1 --weights dense --replicates 2 --workers 1",
}

SMALL = ("check", "setup.py", "--widths", "8", "16", "--depths", "1", "--seeds", "2")
PLAN = ("plan", "setup.py", "--base", "8", "1", "--width", "16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "setup.py").write_text(SETUP)
    return tmp_path


@pytest.fixture(scope="module")
def checked(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder after a check in it, and what the check said."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "setup.py").write_text(SETUP)
    return folder, run_process(*SMALL, "--executor", "inline", folder=folder)


def result(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / name / "result.json").read_text())
    return content


def test_help_and_version_come_without_pytorch() -> None:
    code = (
        "import sys; from nfd.cli import main; assert main(['--help']) == main(['--version']) == "
        "0\n"
    )
    code += "assert not {'torch', 'altair', 'pydantic'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in done.stdout for name in [*COMMANDS, "report", "paper"])
    assert done.stdout.endswith(f"nfd {nfd.__version__}\n")


def test_a_check_prints_and_writes_its_answer_and_a_pipe_gets_no_bar(checked: Any) -> None:
    folder, done = checked
    assert done.stderr == ""
    out = folder / "out" / "check"
    assert {"report.html", "result.json", "runs.csv", "meters.csv", "width-loss.png"} <= {
        path.name for path in out.iterdir()
    }
    assert (out / "width-loss.pdf").read_bytes().startswith(b"%PDF")
    with (out / "meters.csv").open() as file:
        assert "stream_update" in next(csv.reader(file))
    assert done.stdout[0] in "✓✗?"
    assert result(folder, "check")["command"] == "nfd " + " ".join(SMALL) + " --executor inline"
    assert str(Path("out/check/report.html")) in done.stdout


def test_a_check_answers_again_from_what_it_stored(checked: Any, tmp_path: Path) -> None:
    folder, done = checked
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    again = run(*SMALL, "--executor", "inline", "--verbose", folder=tmp_path)
    runs = len(result(folder, "check")["rows"])
    assert "runs were stored in" in again.stdout.splitlines()[-1]
    assert again.stdout.startswith(done.stdout[: done.stdout.index("(--verbose")].splitlines()[0])
    assert len(result(tmp_path, "check")["rows"]) == runs
    other = run(*SMALL, "--executor", "inline", "--verbose", "--lr", "2e-3", folder=tmp_path)
    assert "is of this model and task" in other.stdout.splitlines()[-1]


def test_a_plan_is_that_of_python_and_says_which_network_it_fits(folder: Path) -> None:
    assert run(*PLAN, "--depth", "2", "--rule", "complete-p", folder=folder).returncode == 0
    namespace: dict[str, Any] = {}
    exec(SETUP, namespace)
    family = nfd.Family(
        namespace["make_model"], (8, 1), "complete-p", sample=namespace["batches"][0][0]
    )
    stored = nfd.Plan.load(folder / "out/plan/plan.json")
    plan = family.plan(16, 2)
    assert {name: (stored.roles[name], stored.rate(name)) for name in stored.roles} == {
        name: (plan.roles[name], plan.rate(name)) for name in plan.roles
    }
    fits = (*PLAN, "--fits", "out/plan/plan.json", "--depth")
    same = run(*fits, "2", folder=folder)
    deeper = run(*fits, "3", folder=folder)
    assert (same.returncode, deeper.returncode) == (0, 1)
    assert "does not fit" in deeper.stdout
    assert "blocks.2." in deeper.stdout


@pytest.mark.parametrize(
    ("line", "argument"),
    [
        ("weight_decay = 0.05", ", weight_decay=0.05)"),
        ("make_optimizer = lambda groups: torch.optim.AdamW(groups)", ", make=make_optimizer)"),
        ("", "lr=lr)"),
    ],
)
def test_a_plan_is_trained_by_the_optimizer_of_the_task(
    line: str, argument: str, folder: Path
) -> None:
    (folder / "setup.py").write_text(f"{SETUP}\n{line}\n")
    planned = run(*PLAN, folder=folder)
    assert planned.returncode == 0, planned.stderr
    code = next(row for row in planned.stdout.splitlines() if "make_optimizer(" in row)
    assert code.endswith(argument)


def test_a_plan_of_a_run_scales_with_batch_and_tokens(folder: Path) -> None:
    assert (
        run(*PLAN, "--batch", "64", "256", "--tokens", "1e4", "1e5", folder=folder).returncode == 0
    )
    planned = nfd.Plan.load(folder / "out/plan/plan.json").run
    assert planned.steps == round(1e5 / 256)
    rows = [
        f"{B},1e4,{2.0**k},{3 + 0.01 * (k + 9) ** 2}" for B in (64, 128) for k in range(-12, -6)
    ]
    (folder / "runs.csv").write_text("\n".join(["batch,tokens,lr,loss", *rows]))
    assert run(*PLAN, "--batch", "64", "256", "--law", "runs.csv", folder=folder).returncode == 0
    assert "2 cells of runs" in nfd.Plan.load(folder / "out/plan/plan.json").run.factors[0].source


def test_any_results_make_one_page(folder: Path) -> None:
    assert run(*PLAN, folder=folder).returncode == 0
    (folder / "out" / "torn").mkdir()
    (folder / "out" / "torn" / "result.json").write_text('{"a": ')
    for _ in range(2):  # the second replaces the first one's page
        done = run("report", "out", folder=folder)
        assert done.returncode == 0
        assert "1 result, " in done.stdout
        assert "torn/result.json: is damaged" in done.stderr
    assert [one["folder"] for one in result(folder, "report")["results"]] == ["plan"]
    assert (
        "would replace a result" in run("report", "out", "--out", "out/plan", folder=folder).stderr
    )


# ---- the ends of a command

ENDS: list[tuple[str, int, str]] = [  # in the user's constructor; the exit code; what is said
    ("raise MemoryError", 2, "out of memory"),
    ("raise KeyboardInterrupt", 130, "interrupted"),
    ("import signal; signal.raise_signal(signal.SIGTERM)", 130, "interrupted"),
    ("import sys; sys.exit(0)", 2, "setup.py, line"),
    ("raise OSError(28, 'No space left on device', 'there')", 2, "No space left on device"),
    ("import nfd.core.errors as ours; ours.nothing", 2, "AttributeError"),
]


@pytest.mark.parametrize(("code", "exit_code", "said"), ENDS)
def test_how_a_command_ends(code: str, exit_code: int, said: str, folder: Path) -> None:
    (folder / "setup.py").write_text(f"{SETUP}\ndef make_model(width, depth):\n    {code}\n")
    done = run(*PLAN, folder=folder)
    assert done.returncode == exit_code
    assert said in done.stderr
    assert "bug in nfd" not in done.stderr


def test_a_mistake_of_ours_is_told_as_one_with_its_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a function of ours divided by zero."""
    # Evaluated, it stands in no file: a frame in a test's file would count as the user's code.
    monkeypatch.setattr("nfd.core.files.write_json", eval("lambda *_: 1 // 0"))
    done = run(*PLAN, folder=folder)
    assert done.returncode == 70
    assert "bug in nfd, not an error in your input: ZeroDivisionError" in done.stderr
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("--version >&-", 0, ""),
        ("--version <&- >&- 2>&-", 0, ""),
        ("chekc 2>&-", 2, ""),
        ("--help | true", 0, ""),
        ("--help >/dev/full", 2, "No space left on device"),
        ("chekc 2>/dev/full", 2, ""),
    ],
)
def test_closed_and_full_streams_are_survived(redirected: str, code: int, said: str) -> None:
    done = subprocess.run(["bash", "-c", f"{NFD} {redirected}"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Exception" not in done.stderr + done.stdout


# ---- files of others and full disks


@pytest.mark.parametrize(
    ("arguments", "name"), [(PLAN, "plan.json"), (SMALL, "runs.csv"), (SMALL, "report.html")]
)
def test_files_of_others_are_refused_before_any_work(
    arguments: tuple[str, ...], name: str, folder: Path
) -> None:
    theirs = folder / "out" / arguments[0] / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    done = run(*arguments, folder=folder)
    assert done.returncode == 2
    assert (
        f"'out/{arguments[0]}' holds '{name}', which nfd did not make. Nothing was changed."
        in done.stderr
    )
    assert {path.name: path.read_text() for path in theirs.parent.iterdir()} == {name: "theirs"}


def limited(size: int) -> Callable[[], None]:
    """A limit on file sizes, which stands for a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
def test_a_full_disk_leaves_the_earlier_result_whole_and_what_was_found_is_printed(
    checked: Any,
) -> None:
    folder, _ = checked
    out = folder / "out" / "check"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code = "import sys; from nfd.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *SMALL],
        cwd=folder,
        capture_output=True,
        text=True,
        preexec_fn=limited(100_000),
    )
    assert done.returncode == 2
    assert "nothing was changed" in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_interrupted_command_says_so(folder: Path) -> None:
    (folder / "setup.py").write_text(
        SETUP + "\nprint('begun', flush=True)\nimport time\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        ["env", "--default-signal=INT", NFD, *SMALL],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout.readline() == "begun\n"
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert said == "nfd: interrupted. The same command continues from what is stored.\n"


@pytest.mark.parametrize("budget", ["20", ""])
def test_a_search_says_how_many_trainings_it_takes_at_most(
    budget: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a log it says so once a minute.
    monkeypatch.setattr("nfd.core.tables._LINE_EVERY", 0.0)
    search = ["transfer", "setup.py", "--widths", "8", "16", "--depths", "1", "--seeds", "2"]
    search += ["--executor", "inline"]
    if budget:
        search += ["--budget", budget]
    ended = run(*search, folder=folder)
    assert ended.returncode in (0, 1), ended.stderr
    said = " ".join(ended.stderr.split())
    bounds = [int(count) for count in re.findall(r"At most (\d+) trainings in all", said)]
    so_far = [int(count) for count in re.findall(r", (\d+) so far", said)]
    assert 0 < max(so_far) <= min(bounds)
    assert re.search(r"so far, .* left at most\.", said)
    assert ("budget= bounds them" in said) is not bool(budget)
    if budget:
        assert max(bounds) == int(budget)
    # What the bar counts is a step, and says so.
    assert not re.search(r"(?<!this step): \d+ of \d+ trainings", said)


STOPPING = """
from pathlib import Path

def loss(outputs, targets):
    count = Path("count")
    seen = int(count.read_text()) if count.exists() else 0
    count.write_text(str(seen + 1))
    if seen == 45:
        raise KeyboardInterrupt
    return nn.functional.cross_entropy(outputs, targets)
"""


def test_an_interrupted_search_says_what_it_knows_and_goes_on(folder: Path) -> None:
    (folder / "setup.py").write_text(SETUP + STOPPING)
    search = ("transfer", "setup.py", "--widths", "8", "16", "--depths", "1", "--budget", "40")
    search += ("--rules", "complete-p", "--executor", "inline")
    stopped = run(*search, folder=folder)
    assert stopped.returncode == 130
    assert "The same command continues from what is stored." in stopped.stderr
    kept = re.search(r"(\d+) trainings are stored in out/transfer", stopped.stderr)
    assert kept is not None
    assert re.search(r"Known so far: complete-p: .* small network", stopped.stderr)
    ended = run(*search, "--verbose", folder=folder)
    assert ended.returncode in (0, 1), ended.stderr
    assert f"{kept[1]} runs were stored in out/transfer" in ended.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("transfer", marks=pytest.mark.slow),
        pytest.param("scaling-law", marks=pytest.mark.slow),
        "predict",
    ],
)  # check and plan are asked above
def test_a_first_run_finds_the_model_in_the_current_folder(name: str, folder: Path) -> None:
    answer = run(name, "setup.py", *COMMANDS[name].split(), folder=folder)
    assert answer.returncode in (0, 1), answer.stderr  # 1: so small a check or fit need not hold
    assert "No module named" not in answer.stderr
    assert result(folder, name)


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("check", "setup.py"),
        ("transfer", "--from", "runs.csv"),
        ("scaling-law", "--from", "runs.csv"),
        ("plan",),
        ("predict",),
        ("report",),
        ("completion",),
        ("paper", "study"),
        ("paper", "figure"),
        ("paper", "claims"),
    ],
)
def test_an_unknown_option_is_named_wherever_it_stands(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*command, "--unheard-of", folder=tmp_path)
    assert done.returncode == 2
    assert "there is no option '--unheard-of'" in done.stderr


def test_an_option_that_was_cut_short_is_completed_and_a_table_is_sent_to_from(
    tmp_path: Path,
) -> None:
    done = run("scaling-law", "--from", "runs.csv", "--next", folder=tmp_path)
    assert "there is no option '--next'. Did you mean '--next-run'?" in done.stderr
    for command in ("scaling-law", "transfer", "check"):
        done = run(command, "runs.json", folder=tmp_path)
        assert done.returncode == 2
        assert "nfd scaling-law --from runs.json" in done.stderr
    done = run("scaling-law", "missing.py", folder=tmp_path)
    assert "--from" not in done.stderr


def test_what_the_file_prints_is_not_part_of_the_json(folder: Path) -> None:
    loud = SETUP + "\nprint('read')\n\n"
    loud += (
        "def make_model(width, depth):\n    print('built')\n    return ResidualMLP(width, depth)\n"
    )
    (folder / "setup.py").write_text(loud)
    told = run(*PLAN, "--json", folder=folder)
    assert json.loads(told.stdout)["plan"]
    assert "read" in told.stderr
    assert "built" in told.stderr
    assert "read" in run(*PLAN, folder=folder).stdout


def test_options_in_the_file_are_not_read_and_a_line_says_so(folder: Path) -> None:
    (folder / "setup.py").write_text(SETUP + "\nlr = 0.1\nwidth = 3\n")
    told = run(*PLAN, folder=folder).stderr
    assert "setup.py defines lr, which is not read. Pass it as --lr." in told
    assert "width" not in told
