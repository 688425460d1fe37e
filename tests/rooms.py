"""``make lint`` counts the modules of ours that entry points import, so that ``import nfd`` stays
fast.

A number may fall freely. Raise one here only with what it buys; the commit says why.
"""

from __future__ import annotations

import subprocess
import sys

# An entry point, called as in its docstring, and how many modules of nfd it may import.
MODULES = {
    "import nfd; nfd.ResNet(4, 2, 8, 1)": 9,
    "import nfd, torch; nfd.plan(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, "
    "2)), (4, 1), make_model=lambda n, d: torch.nn.Sequential(torch.nn.Linear(4, n), "
    "torch.nn.Linear(n, 2)), rule='mup')": 23,
    "import nfd; nfd.fit_scaling_law": 14,
    "import nfd; nfd.fit_transfer": 15,
    "import nfd; nfd.check": 48,
}
_COUNT = "\nimport sys; print(sum(name.split('.')[0] == 'nfd' for name in sys.modules))"


def imported_modules(code: str) -> int:
    """Count the modules of nfd that a fresh interpreter has imported after it ran ``code``."""
    command = [sys.executable, "-c", code + _COUNT]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(output.split()[-1])


def entry_points_above_budget() -> list[str]:
    """Return a sentence for every entry point that imports more modules than it may."""
    sentences = []
    for code, budget in MODULES.items():
        count = imported_modules(code)
        if count > budget:
            sentences.append(f"modules of {code!r}: {count}, budget {budget}")
    return sentences


if __name__ == "__main__":
    above_budget = entry_points_above_budget()
    for sentence in above_budget:
        print(sentence)
    sys.exit(1 if above_budget else 0)
