"""``nfd sweep``: a grid of runs from a file, or from the line itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from nfd.cli.ending import VERDICT
from nfd.cli.sweeping import SweepOptions
from nfd.core.errors import UsageError
from nfd.runs.config import Config

if TYPE_CHECKING:
    from nfd.core.tables import Row


_MOST_ROWS = 40


class SweepCommand(SweepOptions, Config):
    """Train every network of a grid: a TOML file of settings where a list is an axis, such as width = [64, 128].

    Settings on the line do as well: nfd sweep width=64,128 depth=8 seed=0,1,2. Prints means over the seeds with their
    95 % intervals. Writes every run to OUT/runs.sqlite, and runs.csv and result.json beside it. It can be stopped at
    any time: the same command continues from there. nfd runs OUT lists what there is.
    """

    grid: tyro.conf.Positional[tuple[str, ...]] = ()
    """the TOML file, or settings such as width=64,128 rule=mup"""
    out: str = "out/sweep"
    """directory for the results"""

    def files(self) -> list[str]:
        return ["runs.csv", "result.json"]

    def settings(self) -> Any:
        if not self.grid:
            raise UsageError(
                "sweep needs the TOML file of a grid, such as grid.toml, or settings. See nfd sweep --help."
            )
        from nfd.runs.grid import grid_of, grid_of_settings

        if len(self.grid) == 1 and "=" not in self.grid[0]:
            return grid_of(self.grid[0])
        return grid_of_settings(self.grid)

    def answer(self, config: Any, directory: Path, command: str) -> int:
        from nfd.core.tables import rows_as_text
        from nfd.runs.export import with_updates, write_runs
        from nfd.runs.means import table_of_means
        from nfd.runs.sweep import failure

        with self.sweep(directory) as sweep:
            records = sweep.run(config)
            table = table_of_means(records, sweep.store)
            records = [with_updates(record, sweep.store) for record in records]
        write_runs(records, directory, command, parquet=False)
        print(rows_as_text(table[:_MOST_ROWS]), *_more(table), sep="\n")
        counts = Counter(record.status for record in records)
        print(f"{len(records)} runs: {', '.join(f'{n} {status}' for status, n in counts.items())}.")
        broken = [record for record in records if record.status == "failed"]
        for record in broken[:3]:
            print(f"  failed: {(record.error or 'no result').splitlines()[0]}")
        if broken:
            print(f"The same command tries them again; nfd runs {directory} --status failed lists them.")
        print(f"Runs: {directory / 'runs.csv'}")
        if any(record.trace is not None for record in broken):
            raise failure(broken, f"{len(broken)} of {len(records)} runs failed")
        return VERDICT if broken else 0


def _more(table: Sequence[Row]) -> list[str]:
    left = len(table) - _MOST_ROWS
    return [f"{left} more rows: every run is in runs.csv."] if left > 0 else []
