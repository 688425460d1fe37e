"""What an installed package says of itself: its types, and what it needs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "downstream.py"]
    said = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True).stdout
    (error,) = re.findall(r".*: error: .*", said)
    assert error.startswith(f"downstream.py:{DOWNSTREAM.count(chr(10))}:")
    assert '"base"' in error
    seen = re.findall(r'Revealed type is "(.*)"', said)
    assert [name.rpartition(".")[2] for name in seen] == ["Check", "Plan", "Alert]", "Tensor"], said


def test_the_base_needs_few_packages_and_no_framework() -> None:
    lines = [line for line in importlib.metadata.requires("nfd") or () if "extra ==" not in line]
    needed = {re.split("[<>=]", line)[0] for line in lines}
    assert "torch" in needed
    assert len(needed) < 15
    assert not needed & {"lightning", "pandas", "ray", "tensorboard", "transformers", "wandb"}
