"""What an installed package says of itself: its types, and what it needs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A module of the repository, as Python or as the file system names it.
OUTSIDE = r"\b(?:benchmarks|calibration|makers|priors|studies|tests)[./]\w+"

DOWNSTREAM = """
import torch
from torch import Tensor, nn
import nfd

class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, 2)
        self.blocks = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embed(x)))
        return out

batches = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))]
check = nfd.check(Model, batches, [8, 16], [1, 2], lr=1e-3, rule="mup")
plan = nfd.plan(Model(16, 2), make_model=Model, base=(8, 1), sample=batches[0][0])
watch = nfd.Watch(Model(16, 2), plan, batches[0][0], expected=check)
net = nfd.ResNet(64, 10, width=8, depth=2)
reveal_type(check)
reveal_type(plan)
reveal_type(watch.alerts)
reveal_type(net.forward(batches[0][0]))
nfd.plan(net, base=8)
"""


@pytest.mark.slow  # mypy reads PyTorch: 25 s
def test_a_project_checked_by_mypy_strict_sees_our_types(tmp_path: Path) -> None:
    (tmp_path / "downstream.py").write_text(DOWNSTREAM)
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        tmp_path / "cache",
        "downstream.py",
    ]
    said = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True).stdout
    (error,) = re.findall(r".*: error: .*", said)
    assert error.startswith(f"downstream.py:{DOWNSTREAM.count(chr(10))}:")
    assert '"base"' in error
    seen = re.findall(r'Revealed type is "(.*)"', said)
    assert [name.rpartition(".")[2] for name in seen] == ["Check", "Plan", "Alert]", "Tensor"], said


def modules_outside(source: str) -> list[str]:
    """The modules that texts of ``source`` name and that no wheel holds."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    named = [re.findall(OUTSIDE, text) for text in texts if isinstance(text, str)]
    return [name for names in named for name in names]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('f"a file of python -m priors.ladders --prior; {path}"', ["priors.ladders"]),
        ('"""Measured (tests/test_core.py)."""', ["tests/test_core"]),
        ("calibration.spread(sd)", []),
        ('"priors. Half of them"', []),
    ],
)
def test_a_module_outside_of_the_wheel_would_be_noticed(text: str, names: list[str]) -> None:
    assert modules_outside(text) == names


def test_messages_and_docstrings_name_no_module_that_the_wheel_lacks() -> None:
    named = {
        path.name: modules_outside(path.read_text("utf-8"))
        for path in (ROOT / "src/nfd").rglob("*.py")
    }
    assert {path: names for path, names in named.items() if names} == {}


def test_the_base_needs_few_packages_and_no_framework() -> None:
    lines = [line for line in importlib.metadata.requires("nfd") or () if "extra ==" not in line]
    needed = {re.split("[<>=]", line)[0] for line in lines}
    assert "torch" in needed
    assert len(needed) < 15
    assert not needed & {
        "lightning",
        "pandas",
        "ray",
        "submitit",
        "tensorboard",
        "transformers",
        "wandb",
    }
