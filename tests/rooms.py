"""``make lint`` keeps the house its size: lines and files of every room, words of the pages, imports of entry points.

A number may fall freely. Raise one here only with what it buys; the commit says why.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "nfd"
LIBRARY, FILES, PAPER, TESTS, BENCHMARKS, WORDS = 23_213, 83, 5_994, 19_555, 7_601, 45_000

ROOMS = {  # lines and files, without __init__.py
    "core": (1_663, 8),
    "scaling": (4_278, 11),
    "wide": (2_786, 9),
    "families": (1_392, 5),
    "runs": (1_357, 5),
    "meters": (2_076, 6),
    "rates": (1_575, 4),
    "forecasts": (2_483, 6),
    "limits": (1_426, 4),
    "watch": (1_525, 4),
    "report": (786, 3),
}

MODULES = {  # an entry point, called as in its docstring, and how many modules of ours it imports
    "import nfd; nfd.ResNet(4, 2, 8, 1)": 25,
    "import nfd, torch; nfd.plan(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), (4, 1), make_model="
    "lambda n, d: torch.nn.Sequential(torch.nn.Linear(4, n), torch.nn.Linear(n, 2)), rule='mup')": 20,
    "import nfd; nfd.fit_scaling_law": 14,
    "import nfd; nfd.fit_transfer": 15,
    "import nfd; nfd.check": 45,
}
_COUNT = "\nimport sys; print(sum(name.split('.')[0] == 'nfd' for name in sys.modules))"


def lines(*paths: Path) -> int:
    """Lines of all Python files in these folders."""
    return sum(len(file.read_text().splitlines()) for path in paths for file in path.rglob("*.py"))


def too_large() -> list[str]:
    """A sentence for every number that is above its budget."""
    root, found = SOURCE.parents[1], dict[str, tuple[int, int]]()
    for room, (most, files) in ROOMS.items():
        own = [file for file in (SOURCE / room).glob("*.py") if file.name != "__init__.py"]
        found |= {f"lines of {room}": (lines(SOURCE / room), most), f"files of {room}": (len(own), files)}
    every = [file for file in SOURCE.rglob("*.py") if SOURCE / "paper" not in file.parents]
    found |= {
        "lines of the library": (lines(SOURCE) - lines(SOURCE / "paper"), LIBRARY),
        "files of the library": (len([file for file in every if file.name != "__init__.py"]), FILES),
        "lines of the paper": (lines(SOURCE / "paper"), PAPER),
        "lines of tests": (lines(root / "tests"), TESTS),
        "lines of benchmarks and examples": (lines(root / "benchmarks", root / "examples"), BENCHMARKS),
        "words of the pages": (sum(len(page.read_text().split()) for page in (root / "docs").rglob("*.md")), WORDS),
    }
    for code, most in MODULES.items():
        counted = subprocess.run([sys.executable, "-c", code + _COUNT], capture_output=True, text=True, check=True)
        found[f"modules of {code!r}"] = int(counted.stdout.split()[-1]), most
    return [f"{what}: {number:,}, budget {most:,}" for what, (number, most) in found.items() if number > most]


if __name__ == "__main__":
    over = too_large()
    print(*over, sep="\n", end="\n" * bool(over))
    sys.exit(bool(over))
