"""The paper stands on the public names of the library alone, and they are what the reference lists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nfd

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "src/nfd/paper"
OPEN = (
    "core",
    "data",
    "limits",
    "meters",
    "nets",
    "questions",
    "report",
    "runs",
    "store",
    "training",
)  # to researchers
PUBLIC = {name: set(importlib.import_module(name).__all__) for name in ("nfd", *(f"nfd.{part}" for part in OPEN))}


def breaches(source: str) -> Iterator[str]:
    """What a module of the paper takes from the library that is not public."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            module = f"{'.' * node.level}{node.module or ''}"
            if module.startswith(".") or (_of_library(module) and not _of_paper(module)):
                yield from (f"{module}: {alias.name}" for alias in node.names if not _is_public(module, alias.name))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _of_library(alias.name) and not _of_paper(alias.name))
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and ast.unparse(node.value) != "self":
            yield f"a private attribute: {node.attr}"


def _of_library(module: str) -> bool:
    return module.split(".")[0] == "nfd"


def _of_paper(module: str) -> bool:
    return module.split(".")[:2] == ["nfd", "paper"]


def _is_public(module: str, name: str) -> bool:
    return not name.startswith("_") and name in PUBLIC.get(module, ())


@pytest.mark.parametrize("path", sorted(PAPER.rglob("*.py")), ids=lambda path: str(path.relative_to(PAPER)))
def test_the_paper_uses_public_names_alone(path: Path) -> None:
    assert list(breaches(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "from nfd.core.statistics import interval",  # a module, not a package
        "from nfd.core import jackknife",  # not in __all__
        "from nfd import predict_",
        "from nfd.scaling import rules",
        "from nfd.limits import _private",
        "import nfd.core.statistics",
        "import nfd",  # its attributes could not be followed
        "from ...core import interval",
        "def f():\n    from nfd.nets.resnet import ResNet",
        "def f(net):\n    return net._layers",
    ],
)
def test_a_name_that_is_not_public_is_noticed(source: str) -> None:
    assert list(breaches(source))


@pytest.mark.parametrize(
    "source",
    [
        "from nfd import ResNet",
        "from nfd.core import Interval, interval",
        "from nfd.paper.figures import figure1",
        "import torch",
        "class A:\n    def f(self):\n        return self._x, self.__dict__",
    ],
)
def test_public_names_and_other_packages_are_free(source: str) -> None:
    assert not list(breaches(source))


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_exist_and_are_no_modules(package: str) -> None:
    """A module of the same name would take the place of the function as soon as it is imported."""
    module = importlib.import_module(package)
    for name in PUBLIC[package]:
        getattr(module, name)
    own = {name for name in PUBLIC[package] if not inspect.ismodule(getattr(module, name))}
    assert not own & {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert PUBLIC[package] - own == ({"integrations"} if package == "nfd" else set())
    assert set(dir(module)) >= PUBLIC[package] - {"__version__"}


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/api.md").read_text()
    listed = set(re.findall(r"^\.\. (?:auto(?:class|function|data)|py:data):: ([\w.]+)", text, flags=re.MULTILINE))
    names = {f"{package}.{name}" for package, names in PUBLIC.items() for name in names} - {"nfd.integrations"}
    assert names | {f"nfd.integrations.{name}" for name in nfd.integrations.__all__} <= listed


def test_names_are_loaded_when_they_are_used() -> None:
    packages = ", ".join(PUBLIC)
    code = f"import {packages}, sys; assert not {{'torch', 'scipy', 'altair', 'pydantic'}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        nfd.no_such_name  # noqa: B018
