"""What users give, and what they are told: labels that do not count, batches of nothing, names,
tensors, progress.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import struct
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run
from torch import Tensor, nn

import nfd

# ---- labels that do not count

Batches = list[tuple[Tensor, Tensor]]


def partly_labelled(steps: int = 4, size: int = 8) -> Batches:
    """Batches of which two in five labels are -100, as PyTorch's loss ignores them."""
    pairs = batches(steps, size)
    for y in (y for _, y in pairs):
        y[torch.arange(size) % 5 < 2] = -100
    return pairs


def theirs(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def test_ignored_labels_count_nowhere() -> None:
    """The same numbers as with PyTorch's loss, and as with the batches that lack these samples."""
    pairs = partly_labelled()

    def check(task: Any) -> nfd.Check:
        return nfd.check(ResidualMLP, task, [8, 16], [1, 2], seeds=2)

    ours = check(pairs)
    by_torch = check(nfd.Task(pairs, theirs))
    short = check([(x[y >= 0], y[y >= 0]) for x, y in pairs])
    for run_of_ours, *others in zip(ours.runs, by_torch.runs, short.runs, strict=True):
        assert run_of_ours["loss"] == pytest.approx(others[0]["loss"], rel=1e-5)
        assert run_of_ours["loss"] == pytest.approx(others[1]["loss"], rel=1e-5)
    whole = check([(x, y.where(y >= 0, 0)) for x, y in pairs])
    assert whole.runs[0]["loss"] != pytest.approx(ours.runs[0]["loss"], rel=1e-3)


def test_predictions_and_sweeps_take_ignored_labels() -> None:
    pairs = partly_labelled(3)
    answer = nfd.transfer(
        ResidualMLP, pairs, [8, 16], [1], (1e-4, 0.01, 9.0), rules=("mup",), seeds=2
    )
    assert answer.regret("mup") is not None
    few = [
        [(x[2:5], y[2:5]) for x, y in pairs],
        [(x[:5], y[:5]) for x, y in pairs],
    ]  # of five the first two do not count
    alone, among = (
        nfd.predict(nfd.resnets(64, 10), own, depth=2, width=32, replicates=2) for own in few
    )
    assert among.loss.tolist() == pytest.approx(alone.loss.tolist(), rel=1e-4)
    assert 1.5 < float(alone.loss[0]) < 4


QUESTIONS: dict[str, Callable[..., Any]] = {
    "check": nfd.check,
    "transfer": partial(nfd.transfer, lr=(0.001, 0.01, 0.1)),
    "scaling_law": nfd.scaling_law,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_batch_without_a_label_that_counts_is_named(question: str) -> None:
    pairs = partly_labelled()
    pairs[2] = (pairs[2][0], torch.full((8,), -100))
    with pytest.raises(ValueError, match=r"batches\[2\].*-100"):
        QUESTIONS[question](ResidualMLP, pairs, [8, 16], [1, 2])


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_empty_batch_is_named(question: str) -> None:
    pairs = batches(3, 8)
    pairs[1] = (pairs[1][0][:0], pairs[1][1][:0])
    with pytest.raises(ValueError, match=r"batches\[1\].*\[0, 64\]"):
        QUESTIONS[question](ResidualMLP, pairs, [8, 16], [1, 2])


def test_cut_batches_and_labels_of_the_model_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match=r"batches of 2 samples \[0\].*-100"):
        nfd.transfer(ResidualMLP, partly_labelled(), [8], [1], axes={"batch_size": (2, 4)})
    dicts = [{"x": x, "labels": torch.full_like(y, -100)} for x, y in batches(2, 8)]
    with pytest.raises(ValueError, match=r"labels of batches\[0\].*-100"):
        nfd.check(ResidualMLP, dicts, [8, 16], [1])
    with pytest.raises(ValueError, match="-100"):
        nfd.predict(
            nfd.resnets(4, 3),
            [(torch.randn(3, 4), torch.full((3,), -100))],
            depth=2,
            width=32,
            replicates=2,
        )


def test_other_labels_are_told_their_range() -> None:
    for label in (-1, 10):
        pairs = [(x, torch.full_like(y, label)) for x, y in batches(1, 8)]
        with pytest.raises(ValueError, match=rf"0\.\.9, or be -100.*{label}"):
            nfd.check(ResidualMLP, pairs, [8, 16], [1])


def test_an_empty_sample_is_refused() -> None:
    nothing = torch.zeros(0, 64)
    with pytest.raises(ValueError, match=r"sample.*\[0, 64\]"):
        nfd.plan(ResidualMLP(16, 1), make_model=ResidualMLP, base=(8, None), sample=nothing)


# ---- names and tensors


def planned() -> nfd.Plan:
    return nfd.plan(
        ResidualMLP(16, 2), make_model=ResidualMLP, base=(8, 1), sample=torch.ones(2, 64)
    )


def test_a_plan_takes_the_names_of_compiled_and_wrapped_models() -> None:
    plan = planned()
    model = ResidualMLP(16, 2)
    whole = torch.compile(model, backend="eager")
    for wrapped in (nn.DataParallel(ResidualMLP(16, 2)), whole, nn.DataParallel(whole)):
        names = dict(zip(dict(wrapped.named_parameters()), plan.roles, strict=True))
        assert all(plan.rate(name) == plan.rate(plain) for name, plain in names.items())
        assert all(plan.std(name) == plan.std(plain) for name, plain in names.items())
    rates = {plan.rate(name) for name in plan.roles}
    assert len(rates) > 1
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    assert all(plan.rate(name) in rates for name, _ in model.named_parameters())


def test_a_check_leaves_the_compiler_on() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # networks are trained two at a time
    torch.compile(nn.Linear(1, 1), backend="eager")  # loads the compiler
    try:
        nfd.check(ResidualMLP, batches(3, 8), [8, 16, 32], [2])
    finally:
        torch.set_num_threads(threads)
    compiled = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph

    torch.compile(nn.Linear(3, 3), backend=backend)(torch.ones(2, 3))
    assert compiled


class Holding(nn.Module):
    """Modules whose own name is that of a wrapper."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.module = ResidualMLP(width, depth)
        self.last = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.module(x))


def test_a_module_of_that_name_keeps_it() -> None:
    plan = nfd.plan(Holding(16, 2), make_model=Holding, base=(8, 1), sample=torch.ones(2, 64))
    assert plan.rate("module.blocks.0.1.weight") == planned().rate("blocks.0.1.weight")
    assert plan.rate("_orig_mod.module.blocks.0.1.weight") == plan.rate("module.blocks.0.1.weight")


def test_an_unknown_tensor_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'blocks\.0\.1\.wieght'.*'blocks\.0\.1\.weight'"):
        planned().rate("blocks.0.1.wieght")


class Spectral(ResidualMLP):
    """With a complex parameter."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.spectrum = nn.Parameter(torch.randn(width, dtype=torch.complex64))


def test_complex_parameters_are_refused_by_name() -> None:
    asked: tuple[Callable[[], Any], ...] = (
        lambda: nfd.plan(
            Spectral(16, 1), make_model=Spectral, base=(8, None), sample=torch.ones(2, 64)
        ),
        *(
            partial(question, Spectral, batches(1, 4), [8, 16], [1, 2])
            for question in QUESTIONS.values()
        ),
    )
    for ask in asked:
        with pytest.raises(ValueError, match=r"complex: 'spectrum'"):
            ask()


@pytest.mark.parametrize("rule", ["mup/adam", "", "../mup", "%s {}", "é\n"])
def test_an_unknown_rule_is_told_the_known_ones(rule: str) -> None:
    asked: tuple[Callable[[], Any], ...] = (
        lambda: nfd.plan(
            ResidualMLP(16, 1),
            make_model=ResidualMLP,
            base=(8, None),
            rule=rule,
            sample=torch.ones(2, 64),
        ),
        lambda: nfd.check(ResidualMLP, batches(1, 4), [8, 16], [1], rule=rule),
        lambda: nfd.transfer(ResidualMLP, batches(1, 4), [8, 16], [1], rules=[rule]),
        lambda: nfd.Family(ResidualMLP, (8, 1), rule),
    )
    for ask in asked:
        with pytest.raises(ValueError, match=r"rules? must be one of .*'complete-p'") as error:
            ask()
        assert repr(rule) in str(error.value)


def test_rules_of_a_log_may_have_any_name(tmp_path: Path) -> None:
    rules = ["../x", "A/b", "a/B" + "x" * 300, "a-b"]
    with (tmp_path / "runs.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "rule", "lr", "seed", "loss"])
        writer.writerows(
            [n, rule, 2.0**k, seed, 2 + 0.1 * (k + seed / 9) ** 2]
            for rule in rules
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-3, 4)
        )
    answer = run("transfer", "--from", "runs.csv", "--guess", "9", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    out = tmp_path / "out" / "transfer"
    assert [row["rule"] for row in json.loads((out / "result.json").read_text())["rules"]] == rules
    charts = [chart["name"] for chart in json.loads((out / "result.json").read_text())["charts"]]
    assert len({path.name.lower() for path in out.glob("*.svg")}) == len(charts)


# ---- progress

SAID = ["checked", "transferred", "fitted", "predicted"]


def ask_everything(**options: Any) -> None:
    """Ask every verb in a sweep of these options, and say on stderr when each is done."""
    pairs = batches(2, 4)
    family = nfd.Family(ResidualMLP, (8, 1), "mup")
    with nfd.Sweep(**options) as sweep:
        nfd.check(family, pairs, [8, 16], [1], seeds=2, sweep=sweep)
        print("checked", file=sys.stderr, flush=True)
        nfd.transfer(family, pairs, [8, 16], [1], (1e-4, 0.01, 9.0), seeds=2, sweep=sweep)
        print("transferred", file=sys.stderr, flush=True)
        nfd.scaling_law(family, pairs, [8, 12, 16], [1, 2], seeds=2, sweep=sweep)
        print("fitted", file=sys.stderr, flush=True)
        nfd.predict(family, pairs, depth=1, width=16, weights="dense", replicates=2, sweep=sweep)
        print("predicted", file=sys.stderr, flush=True)


def on_a_terminal(action: Callable[[], None], columns: int = 80) -> str:
    """What an action writes to stderr where that is a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written = list[bytes]()

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                written.append(part)
        except OSError:  # the end of a terminal on Linux
            return

    reader = threading.Thread(target=read)
    reader.start()
    with (
        pytest.MonkeyPatch.context() as patch,
        open(theirs, "w") as terminal,
        redirect_stderr(terminal),
    ):
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))
        action()
    reader.join()
    os.close(ours)
    return b"".join(written).decode()


def test_a_terminal_gets_a_bar_unless_it_is_not_wanted() -> None:
    silent = on_a_terminal(partial(ask_everything, progress=False))
    shown = on_a_terminal(ask_everything)
    assert silent.split() == SAID
    checked, rest = shown.split("checked")
    transferred, rest = rest.split("transferred")
    fitted, rest = rest.split("fitted")
    assert all(
        " trainings" in screen and "left" in screen
        for screen in (checked, transferred, fitted, rest)
    )


# ---- refusals are said in full, and answered


class Spare(ResidualMLP):
    """Has a tensor that nothing reads, so that no plan can know its role."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.spare = nn.Parameter(torch.zeros(1, 1, width))


class Restored(ResidualMLP):
    """Loads weights of another shape."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.head.load_state_dict({"weight": torch.zeros(3, 3), "bias": torch.zeros(3)})


VERBS: dict[str, Callable[..., Any]] = {
    "check": lambda make, task, **more: nfd.check(make, task, [8, 16], [2], seeds=2, **more),
    "transfer": lambda make, task, **more: nfd.transfer(
        make, task, [8, 16], [2], (1e-3, 1e-2, 1e-1), seeds=2, rules=["complete-p"], **more
    ),
    "scaling_law": lambda make, task, **more: nfd.scaling_law(
        make, task, [8, 12, 16], [2], seeds=2, **more
    ),
    "predict": lambda make, task, **more: nfd.predict(
        make, task, depth=2, width=128, weights="dense", replicates=2, **more
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_role_that_no_plan_can_decide_is_named_and_can_be_passed(verb: str) -> None:
    with pytest.raises(ValueError, match=r"spare: .*[\s\S]*or the roles yourself: roles="):
        VERBS[verb](Spare, batches(2, 8))
    assert VERBS[verb](Spare, batches(2, 8), roles={"spare": "embedding"}) is not None


def test_a_check_under_standard_says_why_tensors_are_not_judged_and_judges_them_with_roles() -> (
    None
):
    silent, told = (
        nfd.check(Spare, batches(2, 8), [8, 16], [2], rule="standard", seeds=2, roles=roles)
        for roles in (None, {"spare": "embedding"})
    )
    assert "spare: a bare parameter" in "\n".join(silent.answer.details)
    assert "the roles yourself: roles=" in silent.notes[0]
    assert told.notes == []
    assert told.suspects


@pytest.mark.parametrize("verb", VERBS)
def test_blocks_can_be_passed_to_every_verb(verb: str) -> None:
    """They replace those of a family; a pattern that fits nothing is refused by its name."""
    with pytest.raises(ValueError, match=r"'layers\.\*'"):
        VERBS[verb](ResidualMLP, batches(2, 8), blocks="layers.*")
    family = nfd.Family(ResidualMLP, (8, 2), blocks="layers.*")
    assert VERBS[verb](family, batches(2, 8), blocks="blocks.*") is not None


def test_blocks_and_roles_of_the_papers_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks and roles are for other models"):
        nfd.check(nfd.resnets(64, 10), batches(2, 8), [8, 16], [2], seeds=2, blocks="blocks.*")


def test_an_error_of_several_lines_is_said_with_the_line_that_says_what_failed() -> None:
    with pytest.raises(
        ValueError, match=r"Error\(s\) in loading state_dict for Linear: size mismatch for weight"
    ):
        nfd.check(Restored, batches(2, 8), [8, 16], [2], seeds=2)
