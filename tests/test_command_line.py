"""The command line: where the base of a plan comes from, how a line is read, its help and
completion.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_commands import SETUP

import nfd
from nfd.cli import COMMANDS, main, read_command
from nfd.core.options import again


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
        {
            "rule": rule,
            "width": width,
            "depth": 2,
            "quantity": "best lr",
            "value": value,
            "low": 0.003,
            "high": 0.006,
        }
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
def command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
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
    said = " ".join(out.split())
    assert "Train width 32, depth 2 by plan.json at learning rate 0.004" in said
    assert "The best learning rate at width 8, depth 2 is 0.0040 (95 %: 0.0030 to 0.0060)." in said
    assert len(out.splitlines()) <= 15
    assert 'nfd.Plan.load("out/plan/plan.json")' in out
    assert "plan.make_optimizer(model, lr=0.004)" in out
    _, verbose, _ = command(*OF_32, "--from", "tuned", "--verbose")
    assert "0.004 in^-1 = 0.001" in verbose
    assert "From tuned, under complete-p" in verbose
    assert json.loads((folder / "out/plan/result.json").read_text())["lr"] == 0.004


@pytest.mark.parametrize(
    ("changed", "warns"),
    [
        ({}, ""),
        ({"rules": [{"rule": "complete-p", "verdict": "TRANSFERS"}]}, ""),
        ({"rules": [{"rule": "complete-p", "verdict": "UNCERTAIN"}]}, "was not decided: tested to"),
        ({"rules": [{"rule": "mup", "verdict": "UNCERTAIN"}]}, ""),
        ({"model": "other.py:ViT"}, "the rate was tuned on other.py:ViT, not on setup.py:"),
    ],
)
def test_a_plan_warns_of_rates_that_may_not_serve_it(
    command: Command, folder: Path, changed: dict[str, Any], warns: str
) -> None:
    (folder / "tuned" / "result.json").write_text(json.dumps(TUNED | changed))
    _, out, _ = command(*OF_32, "--from", "tuned")
    assert "PLANNED" in out
    said = " ".join(out.split())
    assert ("But " in said) == bool(warns)
    assert warns in said


def test_a_plan_shows_the_rates_that_its_optimizer_gets(command: Command, folder: Path) -> None:
    _, out, _ = command(*OF_32, "--base", "8", "2", "--lr", "0.02", "--rule", "complete-p")
    plan = nfd.Plan.load(folder / "out/plan/plan.json")
    rates = [0.02 * plan.rate(name) for name in plan.entries]
    assert min(rates) == 0.005
    assert all(f"{rate:.4g}" in out for rate in rates)
    assert "learning rate 0.02\n" in out
    assert "the base is the default" not in out


def test_a_plan_without_a_base_says_which_it_takes(command: Command) -> None:
    _, out, _ = command(*OF_32)
    said = " ".join(out.split())
    assert "lr is the best learning rate at width 64, depth 4" in said
    assert "But the base is the default, width 64 and depth 4" in said
    assert "--base WIDTH DEPTH, or --from out/transfer" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "tuned", "--rule", "depth-mup"), "got --rule depth-mup"),
        (("--from", "tuned", "--rule", "mup"), "lies at an end of the grid"),
        (("--from", "tuned", "--optimizer", "sgd"), "was tuned with adamw"),
        (("--from", "tuned", "--base", "16", "2"), "another base has another rate"),
        (("--from", "nowhere"), "holds no answer of nfd transfer"),
    ],
)
def test_what_a_transfer_does_not_hold_is_refused(
    options: tuple[str, ...], said: str, command: Command
) -> None:
    code, _, err = command(*OF_32, *options)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"command": "nfd check setup.py", "table": []}, "(it is the answer of nfd check)"),
        ({"command": "nfd transfer setup.py"}, "(its result.json is of another form)"),
        ([], "(its result.json is of another form)"),
        (TUNED, ""),
    ],
)
def test_answers_of_other_commands_are_no_tuned_rates(
    stored: Any, said: str, folder: Path, command: Command
) -> None:
    (folder / "tuned" / "result.json").write_text(json.dumps(stored))
    code, _, err = command(*OF_32, "--from", "tuned")
    assert code == (2 if said else 0)
    assert said in err


@pytest.mark.parametrize(
    ("depth", "options", "said"),
    [
        (2, (), "names no rule. Say under which one its runs were trained"),
        (2, ("--rule", "mup"), "at width 8, depth 2 is 0.02"),
        (
            2,
            ("--rule", "mup"),
            "But the transfer was not decided: tested to width 16, depth 2 only",
        ),
        (1, ("--rule", "mup"), "names no depth. Say which its smallest network has"),
        (1, ("--rule", "mup", "--base", "8", "2"), "at width 8, depth 2 is 0.02"),
        (1, ("--rule", "mup", "--base", "8", "2"), "tested to width 16, depth 2 only"),
        (1, ("--rule", "mup", "--base", "4", "2"), "another base has another rate"),
    ],
)
def test_a_log_is_asked_for_what_it_does_not_say(
    depth: int, options: tuple[str, ...], said: str, folder: Path, command: Command
) -> None:
    """A log without depths has 1 in their place."""
    row = {"rule": "logged", "quantity": "best lr", "depth": depth, "low": 0.01, "high": 0.04}
    table = [row | {"width": width, "value": 0.02} for width in (8, 16)]
    rules = [{"rule": "logged", "verdict": "UNCERTAIN"}]
    stored = json.dumps({"table": table, "rules": rules})
    (folder / "tuned" / "result.json").write_text(stored)
    code, out, err = command(*OF_32, "--from", "tuned", *options)
    assert said in " ".join((out + err).split())
    assert (code == 2) == bool(err)
    if code == 0:
        plan = nfd.Plan.load(folder / "out/plan/plan.json")
        assert plan.rule == "mup"
        assert plan.base == (8, 2)


@pytest.fixture(name="tables")
def _tables(tmp_path: Path) -> dict[str, str]:
    """Paths of tables of runs whose width varies, and whose tokens do."""
    lines = [f"{n},{2.0**k},{3 + 0.05 * (k + 9) ** 2}" for n in (32, 64) for k in range(-12, -6)]
    paths = {name: tmp_path / f"{name}.csv" for name in ("width", "tokens")}
    for name, path in paths.items():
        path.write_text("\n".join([f"{name},lr,loss", *lines]))
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    ("option", "read_by", "said"),
    [
        (("--scaled", "tokens=-0.5"), "tokens", "--scaled tokens=-0.5 --at"),
        (("--rule", "mup"), "tokens", "mup"),
        (("--guess", "8"), "width", "32 wide"),
    ],
)
def test_an_option_needs_the_table_that_it_is_for(
    option: tuple[str, str], read_by: str, said: str, tables: dict[str, str], command: Command
) -> None:
    other = "width" if read_by == "tokens" else "tokens"
    code, _, err = command("transfer", "--from", tables[other], *option)
    assert code == 2
    assert f"Leave {option[0]} out" in err
    code, out, _ = command("transfer", "--from", tables[read_by], *option)
    assert code == 0
    assert said in " ".join(out.split())


def test_a_table_of_widths_and_parameters_reads_the_rule_for_a_law(
    tables: dict[str, str], tmp_path: Path, command: Command
) -> None:
    header, *lines = Path(tables["width"]).read_text().splitlines()
    both = tmp_path / "both.csv"
    with_parameters = [f"{line},{1000 * int(line.split(',')[0]) ** 2}" for line in lines]
    both.write_text("\n".join([f"{header},parameters", *with_parameters]))
    options = ("transfer", "--from", str(both), "--rule", "mup")
    code, _, err = command(*options)
    assert code == 2
    assert "Leave --rule out" in err
    code, out, _ = command(*options, "--at", "parameters=7B")
    assert code == 0
    assert "rain 7B parameters" in out


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("transfer", ("--scaled", "tokens=-0.5")),
        ("transfer", ("--at", "parameters=7B")),
        ("transfer", ("--guess", "8")),
        ("transfer", ("--columns", "lr=rate")),
        ("scaling-law", ("--columns", "loss=nats")),
        ("scaling-law", ("--rate", "best")),
    ],
)
def test_what_only_a_table_needs_is_refused_without_one(
    name: str, option: tuple[str, str], command: Command
) -> None:
    code, _, err = command(name, "setup.py", *option)
    assert code == 2
    assert f"{option[0]} is for a table of runs: pass it with --from runs.csv" in err


@pytest.mark.parametrize(
    "line",
    [
        ("--widths=8,16", "setup.py"),
        pytest.param(("--widths", "8", "16", "setup.py"), marks=pytest.mark.slow),
    ],
)
def test_the_file_may_follow_an_option_of_several_values(
    line: tuple[str, ...], command: Command
) -> None:
    options = ("--depths", "2", "--steps", "2", "--executor", "inline", "--json")
    _, out, err = command("check", *line, *options)
    assert "widths 8, 16" in json.loads(out)["answer"]["about"], err


@pytest.mark.parametrize(
    ("wrong", "near"), [("--zzz", ""), ("--width", "Did you mean '--widths'?")]
)
def test_an_option_is_suggested_where_one_is_like_it(
    wrong: str, near: str, command: Command
) -> None:
    code, _, err = command("check", "setup.py", wrong)
    assert code == 2
    assert ("Did you mean" in err) == bool(near)
    assert near in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check setup.py --lr many", "--lr: expected a number; got 'many'. See nfd check --help."),
        (
            "check setup.py --widths 8 x",
            "--widths: expected whole numbers, such as 32 64 128; got 'x'.",
        ),
        (
            "predict setup.py --weights dens",
            "structured, deferred, dense; got 'dens'. Did you mean 'dense'?",
        ),
        ("plan setup.py --base 8", "--base: expected 2 values; got 1."),
        ("plan setup.py --base 8 2 3", "'3' belongs to no option."),
        ("plan setup.py --lr", "--lr: expected one value; got none."),
        ("chekc setup.py", "there is no command 'chekc'. Did you mean 'check'?"),
        ("capacity setup.py", "there is no command 'capacity'. Did you mean 'scaling-law'?"),
        ("paper figur 4", "got 'figur'. Did you mean 'figure'?"),
        ("completion bsh", "got 'bsh'. Did you mean 'bash'?"),
    ],
)
def test_what_a_line_gets_wrong_is_said(line: str, said: str, command: Command) -> None:
    code, _, err = command(*line.split())
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("--lr=3e-3 --widths=8,16", {"lr": 3e-3, "widths": (8, 16)}),
        ("--lr=-1e-3 --widths 8 16 --noise", {"lr": -1e-3, "widths": (8, 16), "noise": True}),
        ("--lr 1 --lr 2 --widths 8 --widths 16 32", {"lr": 2, "widths": (16, 32)}),
        ("--out=a=b --depths", {"out": "a=b", "depths": ()}),
    ],
)
def test_how_options_are_written(line: str, settings: dict[str, object]) -> None:
    read = read_command(["check", "setup.py", *line.split()])
    assert {name: getattr(read, name) for name in settings} == settings
    assert read.setup == "setup.py"


# ---- help and completion


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_option_in_a_group(name: str, command: Command) -> None:
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert out.startswith(f"usage: nfd {name}")
    groups = re.findall(r"(?m)^(\w[\w ]*):\n  ", out)
    assert len(groups) == len(set(groups))
    listed = re.findall(r"(?m)^  (\S+)", out)
    for setting in dataclasses.fields(COMMANDS[name]):
        shown = setting.metadata.get("name", setting.name).replace("_", "-")
        assert listed.count(setting.metadata.get("place", f"--{shown}")) == 1
        assert setting.metadata.get("group", "Options") in groups


def processor_time(*words: str) -> float:
    """Seconds of the processor that Python needs for these words: the least of three, as others are
    at work here.
    """
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_comes_at_once() -> None:
    """In half a second of a machine on which an empty program takes 15 ms, as it did where this was
    measured: 0.3.
    """
    assert processor_time("-m", "nfd", "--help") < 0.5 / 0.015 * max(
        0.015, processor_time("-c", "pass")
    )


COMPLETE = """
source <({python} -m nfd completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_nfd
echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("nfd scal", "scaling-law"),
        ("nfd paper fi", "figure"),
        ("nfd scaling-law --le", "--lengths"),
        ("nfd predict setup.py --weights st", "structured"),
        ("nfd check set", "setup.py"),
        ("nfd check setup.py --out tun", "tuned"),
        ("nfd check setup.py --tun", ""),
    ],
)
def test_bash_completes(line: str, completed: str, command: Command, folder: Path) -> None:
    script = COMPLETE.format(python=sys.executable)
    ended = subprocess.run(
        ["bash", "-c", script, "-", *line.split()], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == completed, ended.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_option(shell: str, command: Command) -> None:
    code, out, _ = command("completion", shell)
    assert code == 0
    for name, command_class in COMMANDS.items():
        assert name.split()[-1] in out
        names = [
            setting.metadata.get("name", setting.name)
            for setting in dataclasses.fields(command_class)
        ]
        placed = {
            setting.name
            for setting in dataclasses.fields(command_class)
            if "place" in setting.metadata
        }
        for option in {*names} - placed:
            assert option.replace("_", "-") in out, option


# ---- what a command prints: --json, --quiet, --verbose


PREDICT = "predict setup.py --base 8 1 --width 16 --depth 1 --weights dense --replicates 2"
STUDY = "paper study --steps 3 --batch 4 --depths 1 2 4 --widths 8 16 --seeds 2 --limit-width 32"
STUDY += " --replicates 3 --block-depths 2 4"


@pytest.mark.parametrize(
    ("line", "out"),
    [
        (" ".join(OF_32), "plan"),
        (f"{PREDICT} --executor inline", "predict"),
        ("report tuned", "report"),
        (f"{STUDY} --executor inline", "study"),
        ("paper figure 6 --size smoke --executor inline", "figures"),
        ("paper claims --only fig6 --size smoke --executor inline", "claims"),
    ],
)
def test_json_and_quiet_print_as_they_say(
    line: str, out: str, command: Command, folder: Path
) -> None:
    code, text, _ = command(*line.split(), "--json")
    assert text == (folder / "out" / out / "result.json").read_text()
    answer = json.loads(text)["answer"]
    assert code == (1 if answer["tone"] == "bad" else 0)
    code_of_quiet, text, err = command(*line.split(), "--quiet")
    assert (code_of_quiet, text, err) == (code, "", "")
    _, text, _ = command(*line.split())
    assert len(text.splitlines()) <= 15
    assert answer["state"].upper() in text
    _, verbose, _ = command(*line.split(), "--verbose")
    assert len(verbose.splitlines()) >= len(text.splitlines())
    assert command(*line.split(), "--json", "--quiet")[0] == 2


def test_a_plan_that_does_not_fit_exits_with_1(command: Command, folder: Path) -> None:
    assert command(*OF_32)[0] == 0
    fits = ("--fits", "out/plan/plan.json")
    assert command(*OF_32, *fits)[1].startswith("✓ FITS")
    code, out, _ = command(*OF_32[:3], "64", *OF_32[4:], *fits)
    assert code == 1
    assert out.startswith("✗ DOES NOT FIT")
    assert json.loads(command(*OF_32, *fits, "--json")[1])["answer"]["tone"] == "good"


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
    assert json.loads((folder / "out/predict/result.json").read_text())["command"].endswith(
        "--seed 1"
    )


AGAIN = {
    "check s.py --widths 8 16 --depths 2": "check s.py --widths 32 64 --depths 2",
    "check s.py --depths 2": "check s.py --depths 2 --widths 32 64",
    "check s.py --widths=8,16 --depths 2": "check s.py --widths 32 64 --depths 2",
    "check s.py --widths 8 --lr 1 --widths 16": "check s.py --widths 32 64 --lr 1",
    "check --widths 8 16 s.py --depths 2": "check --widths 32 64 s.py --depths 2",
    "check --json --widths 8 s.py": "check --widths 32 64 s.py",
}


@pytest.mark.parametrize("typed", AGAIN)
def test_a_next_command_has_the_new_value_alone_and_all_else_that_was_typed(typed: str) -> None:
    """Of an option that is given twice the last value counts, so that no older one may stay."""
    written = again(f"nfd {typed}", "--widths", 32, 64)
    assert written == f"nfd {AGAIN[typed]}"
    assert read_command(written.split()[1:]).widths == (32, 64)


@pytest.mark.parametrize("seed", ["-1", "0.5", "many"])
def test_a_seed_is_a_count(seed: str, command: Command) -> None:
    code, _, err = command(
        "predict", "setup.py", "--base", "8", "1", "--width", "16", "--depth", "1", "--seed", seed
    )
    assert code == 2
    assert "seed" in err
