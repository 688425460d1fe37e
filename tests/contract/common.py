"""Models, data and the installed command, for tests that see the library as a user does."""

from __future__ import annotations

import io
import os
import runpy
import signal
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
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


@dataclass(frozen=True)
class Ended:
    """What a command said, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path, folder: Path) -> Ended:
    """Run the installed ``nfd`` from ``folder``, in this process.

    A process of its own would load PyTorch again, which takes 3 seconds of a processor.
    """
    stdout = io.StringIO()
    stderr = io.StringIO()
    modules = set(sys.modules)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            warnings.catch_warnings(),
        ):
            patch.chdir(folder)
            patch.setattr(sys, "argv", [str(NFD), *map(str, arguments)])
            patch.setattr(sys, "path", [*sys.path])
            patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            # Warnings are printed, as by any program; in tests they are errors.
            warnings.resetwarnings()
            warnings.simplefilter("ignore", DeprecationWarning)
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(NFD), run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, handler)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                # The next command may find another file of this name.
                del sys.modules[name]
    return Ended(int(end.value.code or 0), stdout.getvalue(), stderr.getvalue())


def run_process(
    *arguments: str | Path, folder: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run the installed ``nfd`` in a process that starts in ``folder``."""
    command = [str(NFD), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
