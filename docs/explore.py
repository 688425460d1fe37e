"""Make the table behind ``nfd explore``, ``src/nfd/report/explore.json``.

Run: python docs/explore.py [--workers N] [--out DIR]
It trains thousands of small networks and predicts hundreds of limits, some twenty minutes of one idle core. It can be
stopped at any time: the same line goes on from there.
"""

from __future__ import annotations

import argparse
import json

from nfd.questions.explored_grid import Grid, explored_grid
from nfd.report.explore import STORED
from nfd.runs.executors.processes import Processes
from nfd.runs.sweep import Sweep


def main() -> None:
    """Train what is missing in OUT, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="processes; by default one for each core")
    parser.add_argument("--out", default="out/explored", help="where runs are kept")
    given = parser.parse_args()
    with Sweep(given.out, Processes(given.workers), progress=True) as sweep:
        table = explored_grid(Grid(), sweep)
    STORED.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    print(STORED)


if __name__ == "__main__":
    main()
