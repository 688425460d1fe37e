"""``make lint`` holds what entry points import, so that ``import nfd`` and its verbs start fast.

What a call costs before it begins is the import of other people's packages; files of our own cost a
millisecond each, and may be as many as a reader likes. A number may fall freely. Raise one here
only with what it buys; the commit says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple


class Imports(NamedTuple):
    """How many rooms of the library, and packages of others, an entry point imports."""

    rooms: int
    packages: int


_PLAN = """
import nfd, torch
def make_model(width, depth):
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))
nfd.plan(make_model(8, 1), (4, 1), make_model=make_model, rule='mup')
"""

# An entry point, called as in its docstring, and what it may import.
BUDGETS = {
    "import nfd": Imports(rooms=0, packages=1),  # lazy_loader
    "import nfd; nfd.ResNet(4, 2, 8, 1)": Imports(rooms=3, packages=8),
    # report.shown, by which an answer shows itself; it imports nothing of others.
    _PLAN: Imports(rooms=3, packages=18),
    "import nfd; nfd.fit_scaling_law": Imports(rooms=3, packages=12),
    "import nfd; nfd.fit_transfer": Imports(rooms=3, packages=11),
    "import nfd; nfd.check": Imports(rooms=7, packages=20),
}

_COUNT = """
import json, sys
modules = [name.split(".") for name in sys.modules]
rooms = {parts[1] for parts in modules if parts[0] == "nfd" and len(parts) > 1}
ours = {"nfd", "__main__", "__mp_main__"}
# What an environment adds to every interpreter, such as hooks of editable installs, is not counted.
packages = {parts[0] for parts in modules} - set(sys.stdlib_module_names) - ours - before
print(json.dumps([sorted(rooms), sorted(packages)]))
"""
_BEFORE = "import sys; before = {name.split('.')[0] for name in sys.modules}\n"


def imports_of(code: str) -> tuple[list[str], list[str]]:
    """Name the rooms and the packages that a fresh interpreter has imported after ``code``."""
    command = [sys.executable, "-c", _BEFORE + code + _COUNT]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rooms, packages = json.loads(output.splitlines()[-1])
    return rooms, packages


def entry_points_above_budget() -> list[str]:
    """Return a sentence for every entry point that imports more than it may."""
    sentences = []
    for code, budget in BUDGETS.items():
        rooms, packages = imports_of(code)
        if len(rooms) > budget.rooms:
            sentences.append(f"{code!r} imports {len(rooms)} rooms of {budget.rooms}: {rooms}")
        if len(packages) > budget.packages:
            sentences.append(
                f"{code!r} imports {len(packages)} packages of {budget.packages}: {packages}"
            )
    return sentences


if __name__ == "__main__":
    above_budget = entry_points_above_budget()
    for sentence in above_budget:
        print(sentence)
    sys.exit(1 if above_budget else 0)
