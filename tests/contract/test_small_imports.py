"""A regression on a table is small: it loads few modules of the library, and no PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import random, sys
from functools import partial
import nfd

noise = partial(random.Random(0).gauss, 0, 1e-3)
rows = [
    {"width": n, "depth": L, "seed": seed, "lr": lr, "loss": 1 + 3 / n + 2 / L + (50 * lr - 1) ** 2 + noise()}
    for n in (32, 64, 128) for L in (2, 4, 8) for seed in range(3) for lr in RATES
]
print(nfd.VERB(rows))
ours = [name for name in sys.modules if name.split(".")[0] == "nfd"]
assert len(ours) < 15 and "torch" not in sys.modules, (len(ours), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("verb", "rates"), [("fit_scaling_law", "(0.02,)"), ("fit_transfer", "(0.005, 0.01, 0.02, 0.04)")]
)
def test_a_fit_of_a_table_loads_little(verb: str, rates: str) -> None:
    code = CODE.replace("VERB", verb).replace("RATES", rates)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "width" in ended.stdout
