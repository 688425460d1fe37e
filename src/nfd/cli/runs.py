"""``nfd runs``: what a sweep holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from nfd.cli.options import Options, UsageError
from nfd.core.errors import nearest
from nfd.experiment.config import Config
from nfd.experiment.settings import RunConfig


class RunsCommand(Options, Config):
    """List the runs of a sweep, filter them, and export them.

    With --out it writes runs.csv, result.json and, where pyarrow is installed, runs.parquet there.
    """

    directory: tyro.conf.Positional[str] = ""
    """directory of the sweep"""
    where: tuple[str, ...] = ()
    """settings that the runs must have, such as width=128 rule=mup"""
    status: Literal["done", "diverged", "failed"] | None = None
    """only these"""
    limit: Annotated[int, Field(ge=1)] = 40
    """most runs to print"""
    out: str = ""
    """directory to export to; nothing is written without it"""

    def run(self, command: str) -> int:
        """Read, print, write."""
        if not self.directory:
            raise UsageError("runs needs the directory of a sweep, such as out/transfer. See nfd runs --help.")
        where = dict(setting(text) for text in self.where)
        from nfd.store.store import Store
        from nfd.sweep.export import listing, write_runs

        with Store.read(self.directory) as store:
            records, total = store.records(where, self.status), len(store)
        for line in listing(records[: self.limit]):
            print(line)
        more = len(records) - self.limit
        print(f"{len(records)} of {total} runs{f'; {more} more with --limit {len(records)}' if more > 0 else ''}.")
        if self.out:
            from nfd.core.files import prepare_directory

            for path in write_runs(records, prepare_directory(self.out), command, parquet=True):
                print(f"Wrote {path}")
        return 0


def setting(text: str) -> tuple[str, Any]:
    """``width=128`` as a setting of ``RunConfig`` and its value."""
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"--where takes settings such as width=128; got {text!r}.")
    if name not in RunConfig.model_fields:
        raise UsageError(f"--where: {name!r} is no setting of a run.{nearest(name, RunConfig.model_fields)}")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
