"""``nfd runs``: what a sweep holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from nfd.cli.options import Options
from nfd.core.errors import UsageError, nearest
from nfd.runs.config import Config
from nfd.runs.settings import RunConfig


class RunsCommand(Options, Config):
    """List the runs of a sweep, filter them, and export them.

    With --out it writes runs.csv, result.json and, where pyarrow is installed, runs.parquet there.
    """

    directory: tyro.conf.Positional[str] = ""
    """directory of the sweep"""
    where: tuple[str, ...] = ()
    """settings that the runs must have, such as width=64,128 rule=mup: one of the values of each"""
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
        from nfd.core.files import expanded, prepare_directory
        from nfd.core.ownership import check_replaceable

        if self.out and expanded(self.out).resolve() == expanded(self.directory).resolve():
            raise UsageError(f"--out would replace files of the sweep in {self.out!r}. Choose another directory.")
        where = chosen(self.where)
        if self.out:
            check_replaceable(expanded(self.out), ["runs.csv", "result.json", "runs.parquet"])
        from nfd.runs.export import listing, with_updates, write_runs
        from nfd.store.rows import matching
        from nfd.store.store import Store

        with Store.read(self.directory) as store:
            stored = [with_updates(record, store) for record in store.records()]
        records = [r for r in matching(stored, where) if self.status in (None, r.status)]
        for line in listing(records, self.limit):
            print(line)
        more = len(records) - self.limit
        rest = f"; {more} more with --limit {len(records)}" if more > 0 else ""
        print(f"{len(records)} of {len(stored)} runs{rest}.")
        for name in where if stored else ():
            if not matching(stored, {name: where[name]}):
                values = list(dict.fromkeys(str(record.config[name]) for record in stored))
                print(f"No run has this {name}; there are {', '.join(values[:20])}{', ...' * (len(values) > 20)}.")
        if self.out:
            for path in write_runs(records, prepare_directory(self.out), command, parquet=True):
                print(f"Wrote {path}")
        return 0


def chosen(settings: Sequence[str]) -> dict[str, list[Any]]:
    """``width=64 width=128 rule=mup`` as settings and the values that they may have."""
    where: dict[str, list[Any]] = {}
    for name, values in map(setting, settings):
        where.setdefault(name, []).extend(values)
    return where


def setting(text: str) -> tuple[str, list[Any]]:
    """``width=64,128`` as a setting of ``RunConfig`` and the values that it may have."""
    name, sign, values = text.partition("=")
    if not sign:
        raise UsageError(f"--where takes settings such as width=128; got {text!r}.")
    if name not in RunConfig.model_fields:
        raise UsageError(f"--where: {name!r} is not a setting of a run.{nearest(name, RunConfig.model_fields)}")
    return name, [meaning for value in (values, *values.split(",")) for meaning in _meanings(value)]


def _meanings(value: str) -> list[Any]:
    """What a text can stand for: itself, a number, or None."""
    meanings: list[Any] = [value, None] if value in ("", "None") else [value]
    for kind in (int, float):
        try:
            meanings.append(kind(value))
        except ValueError:
            continue
    return meanings
