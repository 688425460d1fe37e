"""Contract tests see what users see: the package, and no module inside of it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nfd

ALLOWED = {"nfd", "nfd.integrations", "nfd.testing"}


def imported(source: str) -> set[str]:
    """The modules of the library that a source imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""}
    return {name for name in names if name.split(".")[0] == "nfd"}


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_contract_tests_import_public_names_alone(path: Path) -> None:
    assert imported(path.read_text()) <= ALLOWED


def test_an_inner_module_would_be_noticed() -> None:
    assert imported("from nfd.core.errors import InputError\nimport nfd") == {
        "nfd.core.errors",
        "nfd",
    }


def test_names_are_loaded_when_they_are_used() -> None:
    code = (
        "import nfd, sys; assert not {'torch', 'scipy', 'altair', 'pydantic'} & {*sys.modules}; "
        "dir(nfd); nfd.plan"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' in sys.modules"], check=True)
    assert all(hasattr(nfd, name) for name in nfd.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        nfd.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        "Plan",
        "Transfer",
        "Check",
        "Prediction",
        "ScalingLaw",
        "RunScaling",
        "OptimizerLaw",
        "SelfTest",
        "Estimates",
        "Kernels",
        "TrainedKernels",
        "ModuleKernels",
        "PlanComparison",
    ],
)
def test_answers_cannot_be_changed(name: str) -> None:
    answer = object.__new__(getattr(nfd, name))
    field = dataclasses.fields(answer)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(answer, field, None)


def test_no_public_name_is_hidden_by_a_module_of_that_name() -> None:
    """Importing a module sets its name in its package, in place of a function that is called
    alike.
    """
    for package in (found.name for found in pkgutil.iter_modules(nfd.__path__) if found.ispkg):
        place = importlib.import_module(f"nfd.{package}")
        for found in pkgutil.iter_modules(place.__path__):
            with contextlib.suppress(ImportError):  # integrations need what they integrate with
                importlib.import_module(f"nfd.{package}.{found.name}")
        assert not [
            name
            for name in getattr(place, "__all__", ())
            if isinstance(getattr(place, name), ModuleType)
        ]


# ---- a regression on a table is small

CODE = """
import random, sys
from functools import partial
import nfd

noise = partial(random.Random(0).gauss, 0, 1e-3)
rows = [
    {
        "width": n, "depth": L, "seed": seed, "lr": lr,
        "loss": 1 + 3 / n + 2 / L + (50 * lr - 1) ** 2 + noise(),
    }
    for n in (32, 64, 128) for L in (2, 4, 8) for seed in range(3) for lr in RATES
]
print(nfd.VERB(rows))
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("nfd.")}
heavy = {"torch", "altair", "jinja2"} & {*sys.modules}
assert rooms <= {"core", "laws", "report"} and not heavy, (rooms, heavy)
"""


@pytest.mark.parametrize(
    ("verb", "rates"),
    [("fit_scaling_law", "(0.02,)"), ("fit_transfer", "(0.005, 0.01, 0.02, 0.04)")],
)
def test_a_fit_of_a_table_loads_little(verb: str, rates: str) -> None:
    code = CODE.replace("VERB", verb).replace("RATES", rates)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "wid" in ended.stdout
