"""Models, data and the installed command, for tests that see the library as a user does."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

NFD = Path(sys.executable).with_name("nfd")


class ResidualMLP(nn.Module):
    """Digits to classes through pre-norm blocks of one hidden layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        out: Tensor = self.head(self.norm(h))
        return out


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Standardised images ``[1797, 64]`` and classes ``[1797]``."""
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32)
    return (x - x.mean()) / x.std(), torch.tensor(classes)


def batches(steps: int = 10, size: int = 32, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches of digits, drawn without replacement while they last."""
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).repeat(
        1 + steps * size // len(x)
    )
    return [(x[rows], y[rows]) for rows in order[: steps * size].split(size)]


def write_setup(folder: Path, text: str) -> None:
    """A ``setup.py``, with this module beside it as ``common``."""
    (folder / "common.py").write_text(Path(__file__).read_text())
    (folder / "setup.py").write_text(text)


def run(
    *arguments: str | Path, folder: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """The installed ``nfd``, in a process of its own that starts in ``folder``."""
    command = [str(NFD), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
