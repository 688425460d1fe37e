"""Stored trials are of the code that was asked for: an edit is another model, and the same code is
the same one.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import threading
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from torch import nn
from torch.nn import functional

import nfd

BATCHES = batches(2, 4)


class Network(nn.Module):
    """A perceptron with a skip, with an activation of one's choice."""

    def __init__(
        self, width: int, depth: int, activation: Callable[[Any], Any] = torch.relu
    ) -> None:
        super().__init__()
        self.inside = ResidualMLP(width, depth)
        self.activation = activation

    def forward(self, x: Any) -> Any:
        return self.activation(self.inside(x))


class Maker:
    """A callable object, and a method, that make networks."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        self.activation = activation

    def __call__(self, width: int, depth: int) -> nn.Module:
        return Network(width, depth, self.activation)

    def make(self, width: int, depth: int) -> nn.Module:
        return Network(width, depth, self.activation)


def closed_over(activation: Callable[[Any], Any]) -> Callable[[int, int], nn.Module]:
    def make_model(width: int, depth: int) -> nn.Module:
        return Network(width, depth, activation)

    return make_model


def copied_from(cached: Callable[[int, int], nn.Module]) -> Callable[[int, int], nn.Module]:
    """Build copies of the one module of each size that a cache holds."""

    def make_model(width: int, depth: int) -> nn.Module:
        return copy.deepcopy(cached(width, depth))

    return make_model


def with_a_class(activation: Callable[[Any], Any]) -> type[nn.Module]:
    class Model(Network):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)

        def forward(self, x: Any) -> Any:
            return activation(self.inside(x))

    return Model


CONSTRUCTORS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda f: lambda width, depth: Network(width, depth, f),
    "closure": closed_over,
    "default": lambda f: lambda width, depth, activation=f: Network(width, depth, activation),
    "object": Maker,
    "method": lambda f: Maker(f).make,
    "partial": lambda f: functools.partial(Network, activation=f),
    "class": with_a_class,
    "cached": lambda f: copied_from(functools.lru_cache(None)(closed_over(f))),
    "dict": lambda f: (lambda kinds: lambda width, depth: Network(width, depth, kinds["f"]))(
        {"f": f}
    ),
}


def trial(make_model: Any, task: nfd.Task | None = None, **settings: Any) -> nfd.Trial:
    family = nfd.Family(make_model, (8, 2), name="model", rule="standard", **settings)
    return nfd.Trial(family, task or nfd.Task(BATCHES), 8, 2, 0, 0.01)


@pytest.fixture
def sweep() -> Iterator[nfd.Sweep]:
    with nfd.Sweep(progress=False) as opened:
        yield opened


@pytest.mark.parametrize("spelling", CONSTRUCTORS)
def test_another_constructor_under_one_name_is_another_trial(
    spelling: str, sweep: nfd.Sweep
) -> None:
    make = CONSTRUCTORS[spelling]
    (relu,) = sweep.run([trial(make(torch.relu))])
    (tanh,) = sweep.run([trial(make(torch.tanh))])
    assert len(sweep.store.keys()) == 2
    assert relu.metrics != tanh.metrics


@pytest.mark.parametrize("spelling", CONSTRUCTORS)
def test_the_same_constructor_made_twice_is_the_same_trial(spelling: str, sweep: nfd.Sweep) -> None:
    make = CONSTRUCTORS[spelling]
    sweep.run([trial(make(torch.relu))])
    assert sweep.missing([trial(make(torch.relu))]) == 0


def cross_entropy(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets)


TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "loss": (
        {"loss": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)},
        {"loss": lambda outputs, targets: outputs.square().mean()},
    ),
    "loss of a closure": (
        {
            "loss": functools.partial(
                lambda outputs, targets, by: cross_entropy(outputs, targets) * by, by=1.0
            )
        },
        {
            "loss": functools.partial(
                lambda outputs, targets, by: cross_entropy(outputs, targets) * by, by=2.0
            )
        },
    ),
    "optimizer": (
        {"make_optimizer": lambda groups: torch.optim.SGD(groups)},
        {"make_optimizer": lambda groups: torch.optim.SGD(groups, momentum=0.9)},
    ),
    "schedule": (
        {"schedule": lambda step: 1.0},
        {"schedule": lambda step: 1.0 / (1 + step)},
    ),
}


@pytest.mark.parametrize("part", TASKS)
def test_another_loss_or_optimizer_is_another_trial(part: str, sweep: nfd.Sweep) -> None:
    first, second = (nfd.Task(BATCHES, **settings) for settings in TASKS[part])
    sweep.run([trial(ResidualMLP, first)])
    assert sweep.missing([trial(ResidualMLP, nfd.Task(BATCHES, **TASKS[part][0]))]) == 0
    sweep.run([trial(ResidualMLP, second)])
    assert len(sweep.store.keys()) == 2


def test_another_optimizer_under_a_registered_name_is_another_trial(sweep: nfd.Sweep) -> None:
    def registered(momentum: float) -> nfd.Trial:
        law = nfd.OptimizerLaw(
            "of-code", lambda groups: torch.optim.SGD(groups, momentum=momentum), degree=1.0
        )
        nfd.register_optimizer(law, replace=True)
        return trial(ResidualMLP, optimizer="of-code")

    sweep.run([registered(0.0)])
    assert sweep.missing([registered(0.9)]) == 1
    assert sweep.missing([registered(0.0)]) == 0


def seen_by(name: str) -> nfd.Observer:
    """An observer that notes the norm or the sum of the output's weights, whose class is called as
    the other's.
    """

    class Seen(nfd.Observation):
        def __init__(self, module: nn.Module) -> None:
            self.weights = list(module.parameters())[-1]

        def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
            return {"seen": float(getattr(self.weights.detach(), name)())}, {}, None

    @dataclass(frozen=True)
    class Looks(nfd.Observer):
        def begin(self, member: Any, task: nfd.Task) -> nfd.Observation:
            return Seen(member.module)

    return Looks()


def test_another_observer_under_one_name_is_another_trial(sweep: nfd.Sweep) -> None:
    family = nfd.Family(ResidualMLP, (8, 2), rule="standard")
    norm, total = (
        nfd.Trial(family, nfd.Task(BATCHES), 8, 2, 0, 0.01, observe=(seen_by(n),))
        for n in ("norm", "sum")
    )
    first, second = sweep.run([norm, total])
    assert first.metrics["seen"] != second.metrics["seen"]


@dataclass(frozen=True)
class Following(nfd.Observer):
    """It looks at nothing."""

    place: str = "here"

    def begin(self, member: Any, task: nfd.Task) -> nfd.Observation:
        return nfd.Observation()


def test_an_observer_that_went_to_another_process_is_the_same_until_it_changes(
    sweep: nfd.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = nfd.Family(ResidualMLP, (8, 2), rule="standard")

    def trial() -> nfd.Trial:
        return nfd.Trial(family, nfd.Task(BATCHES), 8, 2, 0, 0.01, observe=(Following(),))

    sweep.run([trial()])
    # The first pickle of a class notes its slots in it.
    pickle.dumps(Following())
    assert "__slotnames__" in vars(Following)
    assert sweep.missing([trial()]) == 0
    monkeypatch.setattr(Following, "more", 1, raising=False)
    assert sweep.missing([trial()]) == 1


def test_two_checks_in_one_sweep_have_their_own_answers() -> None:
    with nfd.Sweep(progress=False) as sweep:
        answers = [
            nfd.check(
                lambda n, L, f=f: Network(n, L, f),
                BATCHES,
                [8, 16],
                [2],
                lr=0.01,
                seeds=2,
                sweep=sweep,
            )
            for f in (torch.relu, torch.tanh)
        ]
        assert len(sweep.store.keys()) == 8
    assert str(answers[0]) != str(answers[1])


class Counting:
    """A constructor that keeps logs, a cache and a number of its own, and never reads them."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        self.config: dict[str, Any] = {"activation": activation}
        self.calls = 0
        self.seen: list[int] = []

    def __call__(self, width: int, depth: int) -> nn.Module:
        self.calls += 1
        self.seen.append(width)
        LOG.append(width)
        CACHE[width] = depth
        return Network(width, depth, self.config["activation"])


LOG: list[int] = []
CACHE: dict[int, int] = {}
CONFIG: dict[str, Any] = {"activation": torch.relu}


def test_what_a_constructor_only_writes_to_is_no_code(sweep: nfd.Sweep) -> None:
    make = Counting(torch.relu)
    sweep.run([trial(make)])
    assert make.calls > 0
    assert sweep.missing([trial(make)]) == 0
    assert sweep.missing([trial(Counting(torch.tanh))]) == 1


def test_what_a_constructor_writes_to_and_reads_still_counts(
    sweep: nfd.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        CONFIG.setdefault("width", width)
        return Network(width, depth, CONFIG["activation"])

    sweep.run([trial(make_model)])
    monkeypatch.setitem(CONFIG, "activation", torch.tanh)
    assert sweep.missing([trial(make_model)]) == 1


class Registry(dict[str, Any]):
    """A dict of the user's, with a method."""

    def chosen(self) -> Any:
        return self["activation"]


def executed(activation: Callable[[Any], Any]) -> Any:
    """A constructor as a notebook defines it, whose class says that it is of builtins."""
    names: dict[str, Any] = {"Network": Network, "activation": activation}
    exec(
        "class Model(Network):\n  def __init__(s, w, d):\n    super(Model, s).__init__(w, d, "
        "activation)",
        names,
    )
    return names["Model"]


def of_a_module(activation: Callable[[Any], Any]) -> Callable[[int, int], nn.Module]:
    """A constructor that holds a module, and reads of it what no hash of a file would show."""
    settings = types.ModuleType("settings")
    vars(settings)["activation"] = activation
    return lambda width, depth: Network(width, depth, settings.activation)


def with_a_registry(activation: Callable[[Any], Any]) -> Callable[[int, int], nn.Module]:
    registry = Registry(activation=activation)
    return lambda width, depth: Network(width, depth, registry.chosen())


def with_a_default(activation: Callable[[Any], Any]) -> Callable[[int, int], nn.Module]:
    kinds = defaultdict(lambda: activation)
    return lambda width, depth: Network(width, depth, kinds["any"])


@pytest.mark.parametrize("make", [executed, of_a_module, with_a_registry, with_a_default])
def test_containers_modules_and_classes_of_the_user_are_code(make: Any, sweep: nfd.Sweep) -> None:
    sweep.run([trial(make(torch.relu))])
    assert sweep.missing([trial(make(torch.relu))]) == 0
    assert sweep.missing([trial(make(torch.tanh))]) == 1


def test_what_refers_to_itself_or_lies_deep_has_a_hash(sweep: nfd.Sweep) -> None:
    members: set[Any] = set()
    nested: list[Any] = []

    class Member(Network):
        all_of_them = members

    members.add(Member)
    for _ in range(2000):
        nested = [nested]
    lock = threading.Lock()
    pattern = re.compile("x")

    def make_model(width: int, depth: int) -> nn.Module:
        assert members
        assert nested
        with lock:
            assert pattern
            return Network(width, depth)

    sweep.run([trial(make_model)])
    assert sweep.missing([trial(make_model)]) == 0


# ---- across processes: files that are edited between two commands

MODEL = """
    from torch import nn
    import parts

    HEADS = 1

    def make_model(width, depth):
        import late
        return nn.Sequential(nn.Linear(8, width), parts.Act(), late.last(width, HEADS))
"""
PARTS = """
    import torch
    from torch import nn

    def act(x):
        if x.dim() in {1, 2, 3} and x.shape[-1] not in (5, 6, 7):
            return torch.relu(x) if x.dtype not in (5, 6, 7) else x

    class Act(nn.Module):
        def forward(self, x):
            return act(x)

    def unused():
        return 1
"""
LATE = """
    from torch import nn

    def last(width, heads):
        outputs = 4 * heads
        return nn.Linear(width, outputs)
"""
RUN = """
    import json, sys, warnings
    import torch
    import nfd
    from model import make_model

    batches = [(torch.ones(4, 8), torch.tensor([0, 1, 2, 3]))] * 2
    with warnings.catch_warnings(record=True) as said, nfd.Sweep("out", progress=False) as sweep:
        warnings.simplefilter("always")
        check = nfd.check(
            make_model,
            batches,
            [8, 16],
            [1],
            lr=0.01,
            seeds=2,
            rule="standard",
            sweep=sweep,
            remedy=False,
        )
        rows = len(sweep.store.keys())
    warned = [str(w.message) for w in said if w.category.__name__ == "UsageWarning"]
    print(json.dumps([rows, warned, check.notes]))
"""
FILES = {"model.py": MODEL, "parts.py": PARTS, "late.py": LATE, "run.py": RUN}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in three files, and the four trials of its check."""
    folder = tmp_path_factory.mktemp("stored")
    for name, content in FILES.items():
        (folder / name).write_text(dedent(content))
    assert checked(folder) == [4, [], []]
    return folder


def checked(folder: Path) -> Any:
    """How many trials are stored after a check in a new process, what it warned of, and the notes
    of its answer.
    """
    # the second process reads what the first one compiled
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "run.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


EDITS = {  # a file, what is replaced there, and by what
    "the constructor": ("model.py", "parts.Act(), late", "parts.Act(), nn.Tanh(), late"),
    "a function that a module calls": ("parts.py", "return torch.relu(x)", "return torch.tanh(x)"),
    "a constant": ("model.py", "HEADS = 1", "HEADS = 2"),
    "what is imported late": ("late.py", "outputs)", "outputs, bias=False)"),
}
SAME = {
    "nothing": ("model.py", "HEADS = 1", "HEADS = 1"),
    "a comment and a docstring": (
        "model.py",
        "import late",
        '"""Make it."""  # anew\n    import late',
    ),
    "a name of a local variable": ("late.py", "outputs", "classes"),
    "a function that is not read": ("parts.py", "return 1", "return 2"),
}


def edited(stored: Path, folder: Path, edit: tuple[str, str, str]) -> Any:
    """What a check says after an edit of a copy of the stored folder."""
    file, before, after = edit
    for source in stored.iterdir():
        if source.is_file():
            (folder / source.name).write_bytes(source.read_bytes())
    (folder / "out").mkdir()
    (folder / "out" / "runs.sqlite").write_bytes((stored / "out" / "runs.sqlite").read_bytes())
    content = (folder / file).read_text()
    assert before in content
    (folder / file).write_text(content.replace(before, after))
    return checked(folder)


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_trained_anew_with_a_warning_and_a_note(
    edit: str, stored: Path, tmp_path: Path
) -> None:
    rows, warned, notes = edited(stored, tmp_path, EDITS[edit])
    assert rows == 8
    assert warned == notes
    assert "the code of make_model has changed since 4 runs of make_model stored in out" in notes[0]
    assert "restore the code" in notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("edit", SAME)
def test_what_changes_no_code_is_not_trained_anew(edit: str, stored: Path, tmp_path: Path) -> None:
    assert edited(stored, tmp_path, SAME[edit]) == [4, [], []]


NAMED = """
    import functools
    import torch
    from torch import nn
    import nfd

    def make_model(width, depth):
        return nn.Linear(8, width)

    task = nfd.Task(
        [(torch.ones(4, 8), torch.tensor([0, 1, 2, 3]))],
        loss=nn.CrossEntropyLoss(torch.ones(4), label_smoothing=0.0),
        make_optimizer=functools.partial(torch.optim.SGD, momentum=0.9),
    )
    family = nfd.Family(make_model, (4, 1), rule="standard")
    print(nfd.Trial(family, task, 4, 1, 0, 0.01).key)
"""


@pytest.mark.slow
def test_what_libraries_make_has_the_same_name_in_every_process(tmp_path: Path) -> None:
    def key(source: str, seed: int) -> str:
        (tmp_path / "named.py").write_text(dedent(source))
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "named.py"]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    assert key(NAMED, 1) == key(NAMED, 2)
    assert key(NAMED, 1) != key(NAMED.replace("smoothing=0.0", "smoothing=0.6"), 1)
    assert key(NAMED, 1) != key(NAMED.replace("momentum=0.9", "momentum=0.8"), 1)


def test_runs_whose_code_was_not_recorded_are_not_used(tmp_path: Path) -> None:
    asked = trial(ResidualMLP)
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        (record,) = sweep.run([asked])
    settings = {name: value for name, value in record.config.items() if name != "code"}
    with sqlite3.connect(tmp_path / "runs.sqlite") as database:
        database.execute("UPDATE records SET config = ?, key = 'as of 0.3'", [json.dumps(settings)])
    database.close()
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        with pytest.warns(UserWarning, match="did not record code, so it was not used"):
            sweep.run([asked])
        assert len(sweep.store.keys()) == 2


def test_a_partial_that_was_hashed_is_flattened_in_another_as_before(sweep: nfd.Sweep) -> None:
    first = functools.partial(Network, activation=torch.relu)
    sweep.run([trial(first)])
    assert functools.partial(first, activation=torch.tanh).func is Network


def test_the_papers_networks_keep_the_keys_of_their_stored_runs() -> None:
    """No code of the user's takes part in them, so none is named."""
    asked = nfd.Trial(nfd.resnets(8, 4), nfd.Task(BATCHES), 8, 2, 0, 0.1)
    assert "code" not in asked.settings


def test_a_warning_comes_once_and_shows_the_callers_line(tmp_path: Path) -> None:
    with nfd.Sweep(tmp_path, progress=False) as sweep:
        sweep.run([trial(Maker(torch.relu))])
    with (
        warnings.catch_warnings(record=True) as caught,
        nfd.Sweep(tmp_path, progress=False) as sweep,
    ):
        warnings.simplefilter("always")
        sweep.run([trial(Maker(torch.tanh))])
        sweep.run([trial(Maker(torch.sigmoid))])
    assert [(w.category.__name__, w.filename) for w in caught] == [("UsageWarning", __file__)]


# ---- losses and optimizers of libraries, and what code reads of objects

CE = nn.CrossEntropyLoss
LIBRARY: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "class of a loss": (nn.L1Loss, nn.MSELoss),
    "function of a loss": (lambda: functional.l1_loss, lambda: functional.mse_loss),
    "bound method": (lambda: nn.L1Loss().forward, lambda: nn.MSELoss().forward),
    "number": (lambda: CE(label_smoothing=0.0), lambda: CE(label_smoothing=0.6)),
    "another number": (lambda: nn.HuberLoss(delta=1.0), lambda: nn.HuberLoss(delta=0.1)),
    "buffer": (lambda: CE(torch.ones(4)), lambda: CE(torch.tensor([1.0, 1.0, 1.0, 5.0]))),
    "partial": (
        lambda: functools.partial(functional.cross_entropy, label_smoothing=0.1),
        lambda: functools.partial(functional.cross_entropy, label_smoothing=0.2),
    ),
    "hook": (CE, lambda: hooked(CE())),
    "by name": (lambda: "cross-entropy", CE),
}
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "class": (torch.optim.AdamW, torch.optim.NAdam),
    "momentum": (
        functools.partial(torch.optim.SGD, momentum=0.0),
        functools.partial(torch.optim.SGD, momentum=0.9),
    ),
    "betas": (
        functools.partial(torch.optim.AdamW, betas=(0.9, 0.95)),
        functools.partial(torch.optim.AdamW, betas=(0.8, 0.95)),
    ),
    "none": (None, torch.optim.SGD),
}


def hooked(loss: nn.Module) -> nn.Module:
    loss.register_forward_hook(lambda module, inputs, output: 2 * output)
    return loss


@pytest.mark.parametrize("part", LIBRARY)
def test_losses_of_libraries_have_names_and_settings(part: str) -> None:
    def key(loss: Any) -> str:
        return trial(ResidualMLP, nfd.Task(BATCHES, loss=loss)).key

    first, second = LIBRARY[part]
    assert key(first()) == key(first())
    assert key(second()) == key(second())
    assert key(first()) != key(second())


@pytest.mark.parametrize("part", OPTIMIZERS)
def test_optimizers_of_libraries_have_names_and_settings(part: str, sweep: nfd.Sweep) -> None:
    first, second = (nfd.Task(BATCHES, make_optimizer=made) for made in OPTIMIZERS[part])
    sweep.run([trial(ResidualMLP, first)])
    assert sweep.missing([trial(ResidualMLP, first)]) == 0
    assert sweep.missing([trial(ResidualMLP, second)]) == 1


def test_a_registered_law_over_a_partial_of_a_library_has_its_arguments() -> None:
    def key(momentum: float) -> str:
        make = functools.partial(torch.optim.SGD, momentum=momentum)
        law = nfd.OptimizerLaw("of-library", make, degree=1.0)
        nfd.register_optimizer(law, replace=True)
        return trial(ResidualMLP, optimizer="of-library").key

    assert key(0.0) == key(0.0)
    assert key(0.0) != key(0.9)


def test_a_law_of_the_library_has_no_code_and_another_one_under_its_name_has() -> None:
    library = trial(ResidualMLP, optimizer="sgd")
    assert "optimizer" not in library.settings["code"]
    law = library.family.law
    nfd.register_optimizer(replace(law, make="torch.optim:Adagrad"), replace=True)
    try:
        assert "optimizer" in trial(ResidualMLP, optimizer="sgd").settings["code"]
    finally:
        nfd.register_optimizer(law, replace=True)
    assert trial(ResidualMLP, optimizer="sgd").key == library.key


def test_losses_by_name_have_no_code() -> None:
    for loss in ("cross-entropy", "mse"):
        assert "loss" not in trial(ResidualMLP, nfd.Task(BATCHES, loss=loss)).settings["code"]


class Reading:
    """A constructor that changes what its other methods may read, in one of many ways."""

    def __init__(self, activation: Callable[[Any], Any], change: str) -> None:
        self.config = {"activation": activation}
        self.stack = [activation]
        self.number = int(activation is torch.tanh)
        self.change = change

    def __call__(self, width: int, depth: int) -> nn.Module:
        if self.change == "item":
            self.config["width"] = torch.relu
        elif self.change == "list":
            self.stack.append(torch.relu)
        else:
            self.number += 0
        return Network(width, depth, self.chosen)

    @property
    def chosen(self) -> Callable[[Any], Any]:
        if self.change == "item":
            return self.config["activation"]
        if self.change == "list":
            return self.stack[0]
        return (torch.relu, torch.tanh)[self.number]


@pytest.mark.parametrize("change", ["item", "list", "number"])
def test_what_another_method_reads_is_code(change: str, sweep: nfd.Sweep) -> None:
    sweep.run([trial(Reading(torch.relu, change))])
    assert sweep.missing([trial(Reading(torch.relu, change))]) == 0
    assert sweep.missing([trial(Reading(torch.tanh, change))]) == 1


class Reporting(Counting):
    """A constructor with methods that say what it has counted, which no training runs."""

    def report(self) -> str:
        return f"{self.calls} calls"

    def __repr__(self) -> str:
        return f"Reporting({self.seen})"


@dataclass
class Counted:
    """A dataclass with a number that it only changes."""

    activation: Any
    calls: int = 0

    def __call__(self, width: int, depth: int) -> nn.Module:
        self.calls += 1
        return Network(width, depth, self.activation)


@pytest.mark.parametrize("kind", [Reporting, Counted])
def test_what_only_reports_read_is_no_code(kind: Any, sweep: nfd.Sweep) -> None:
    make = kind(torch.relu)
    sweep.run([trial(make)])
    assert make.calls > 0
    assert sweep.missing([trial(make)]) == 0
    assert sweep.missing([trial(kind(torch.tanh))]) == 1


class Builder:
    """A builder whose methods are called as those of containers."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        self.activation = activation

    def add(self, width: int, depth: int) -> nn.Module:
        return Network(width, depth, self.activation)

    def update(self, **sizes: int) -> nn.Module:
        return Network(sizes["width"], sizes["depth"], self.activation)


def by_add(activation: Any) -> Any:
    builder = Builder(activation)
    return lambda width, depth: builder.add(width, depth)


def by_update(activation: Any) -> Any:
    config = Builder(activation)
    return lambda width, depth: config.update(width=width, depth=depth)


def by_a_tensor(activation: Any) -> Any:
    table = torch.tensor([float(activation is torch.tanh)])
    return lambda width, depth: Network(
        width, depth, torch.tanh if table.add(0).item() else torch.relu
    )


def by_a_sorted_tensor(activation: Any) -> Any:
    table = torch.tensor([float(activation is torch.tanh)])
    return lambda width, depth: Network(
        width, depth, torch.tanh if table.sort()[0].item() else torch.relu
    )


def as_a_key(activation: Any) -> Any:
    place = int(activation is torch.tanh)

    def make_model(width: int, depth: int) -> nn.Module:
        activations = {0: torch.tanh, 1: torch.relu}
        activations[1 - place] = torch.sigmoid
        return Network(width, depth, activations[0 + place])

    return make_model


def by_a_cycle(activation: Any) -> Any:
    activations = itertools.cycle([activation])
    return lambda width, depth: Network(width, depth, next(activations))


@pytest.mark.parametrize("make", [by_add, by_update, by_a_tensor, by_a_sorted_tensor, as_a_key])
def test_methods_that_are_called_as_changes_are_code(make: Any, sweep: nfd.Sweep) -> None:
    sweep.run([trial(make(torch.relu))])
    assert sweep.missing([trial(make(torch.relu))]) == 0
    assert sweep.missing([trial(make(torch.tanh))]) == 1


def test_an_iterator_is_like_no_other(sweep: nfd.Sweep) -> None:
    make = by_a_cycle(torch.relu)
    sweep.run([trial(make)])
    assert sweep.missing([trial(make)]) == 0
    assert sweep.missing([trial(by_a_cycle(torch.tanh))]) == 1


def chosen_by_name(kind: str, act: Callable[[Any], Any]) -> Callable[[int, int], nn.Module]:
    """A constructor of a module of its own, which finds its activation in globals()."""
    module = types.ModuleType("found")
    vars(module).update(Network=Network, act=act, KIND=kind)
    source = """
        def act_of_choice(x):
            return ACT(x)

        def make_model(width, depth):
            return Network(width, depth, globals()["act_" + KIND])
    """
    exec(dedent(source.replace("ACT", "act.__call__")), vars(module))
    make: Callable[[int, int], nn.Module] = vars(module)["make_model"]
    return make


def test_functions_that_code_finds_by_globals_are_code(sweep: nfd.Sweep) -> None:
    sweep.run([trial(chosen_by_name("of_choice", torch.relu))])
    assert sweep.missing([trial(chosen_by_name("of_choice", torch.relu))]) == 0
    assert sweep.missing([trial(chosen_by_name("of_choice", torch.tanh))]) == 1


def test_a_function_in_the_place_of_pytorchs_is_code(
    sweep: nfd.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        return Network(width, depth, nn.GELU())

    sweep.run([trial(make_model)])
    with monkeypatch.context() as patched:
        patched.setattr(functional, "gelu", lambda x, approximate="none": x)
        assert sweep.missing([trial(make_model)]) == 1
    with monkeypatch.context() as patched:
        patched.setattr(nn.Linear, "reset_parameters", lambda self: None)
        assert sweep.missing([trial(make_model)]) == 1
    assert sweep.missing([trial(make_model)]) == 0


# ---- losses and schedules that count, and batches that change


class Warming(nn.Module):
    """A loss that grows with every call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, outputs: Any, targets: Any) -> Any:
        self.calls += 1
        return cross_entropy(outputs, targets) * self.calls


def warming() -> Callable[[Any, Any], Any]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return lambda outputs, targets: cross_entropy(outputs, targets) * count()


class Falling:
    """A schedule that falls with every call of it."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, step: int) -> float:
        self.factor *= 0.5
        return self.factor


COUNTING: dict[str, Callable[[], dict[str, Any]]] = {
    "loss": lambda: {"loss": Warming()},
    "method": lambda: {"loss": Warming().forward},
    "closure": lambda: {"loss": warming()},
    "partial": lambda: {"loss": functools.partial(warming())},
    "schedule": lambda: {"schedule": Falling()},
}


@pytest.mark.parametrize("part", COUNTING)
def test_a_training_does_not_see_what_another_counted(part: str) -> None:
    def losses(order: list[int]) -> dict[int, Any]:
        task = nfd.Task(BATCHES, **COUNTING[part]())
        family = nfd.Family(ResidualMLP, (8, 2), rule="standard")
        asked = [nfd.Trial(family, task, 8, 2, seed, 0.01) for seed in order]
        with nfd.Sweep(progress=False) as sweep:
            records = [sweep.run([one])[0] for one in asked]
            assert sweep.missing(asked) == 0
        return {seed: record.metrics for seed, record in zip(order, records, strict=True)}

    assert losses([0, 1, 2]) == losses([2, 1, 0])


def test_a_log_in_a_closure_and_a_loss_that_cannot_be_copied_are_shared(sweep: nfd.Sweep) -> None:
    seen = list[float]()
    lock = threading.Lock()

    def loss(outputs: Any, targets: Any) -> Any:
        with lock:
            value = cross_entropy(outputs, targets)
            seen.append(value.item())
            return value

    sweep.run([trial(ResidualMLP, nfd.Task(BATCHES, loss=loss))])
    assert len(seen) >= len(BATCHES)


def test_batches_that_change_in_place_are_other_batches(sweep: nfd.Sweep) -> None:
    inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    task = nfd.Task([(inputs, torch.arange(4))] * 2)
    asked = trial(ResidualMLP, task)
    (before,) = sweep.run([asked])
    assert sweep.missing([asked]) == 0
    inputs *= 4
    assert sweep.missing([asked, trial(ResidualMLP, task)]) == 1
    (after,) = sweep.run([asked])
    assert after.metrics != before.metrics
    assert sweep.curves(asked)["loss"][0] == after.metrics["first_loss"]
    inputs /= 4
    assert sweep.missing([asked]) == 0


def test_a_check_of_arrays_that_change_in_place_trains_anew() -> None:
    inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).numpy()
    task = nfd.Task([(inputs, torch.arange(4).numpy())] * 2)
    with nfd.Sweep(progress=False) as sweep:
        for factor, stored in ((1, 4), (1, 4), (2, 8)):
            inputs *= factor
            nfd.check(ResidualMLP, task, [8, 16], [2], lr=0.01, seeds=2, sweep=sweep)
            assert len(sweep.store.keys()) == stored
