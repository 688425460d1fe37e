"""A sweep's runs as rows, on a terminal, as CSV and as Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nfd.core.files import staged, write_csv, write_json
from nfd.core.text import short, visible
from nfd.store.rows import Record
from nfd.store.store import Store

METERS = ("inner_update", "stream_update", "function_update_inner", "function_update")
_METRICS = ("train_loss", "test_loss", "test_accuracy", *METERS)


def with_updates(record: Record, store: Store) -> Record:
    """A run, with the updates after its last step among its numbers where they were measured."""
    if record.config.get("meter") != "updates" or record.status != "done":
        return record
    curves = store.curves(record.key)
    return replace(record, metrics=record.metrics | {n: float(curves[n][-1]) for n in METERS if n in curves})


def rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One flat row per run, all with the same columns: name, group, status, settings, numbers, error, seconds."""
    settings = dict.fromkeys(name for record in records for name in record.config)
    metrics = dict.fromkeys(name for record in records for name in record.metrics)
    return [
        {"key": r.key, "group": r.group, "status": r.status}
        | {name: r.config.get(name) for name in settings}
        | {name: r.metrics.get(name) for name in metrics}
        | {"error": r.error, "seconds": r.seconds}
        for r in records
    ]


def listing(records: Sequence[Record], limit: int | None = None) -> Iterator[str]:
    """Lines for a terminal: the settings in which the runs differ, and their numbers; of the first ``limit`` runs."""
    table = rows(records)
    if not table:
        return
    differ = [name for name in table[0] if name in records[0].config and len({repr(row[name]) for row in table}) > 1]
    names = ["status", *differ, *(name for name in _METRICS if name in table[0])]
    cells = [[_line(short(row[name])) for name in names] for row in table[:limit]]
    widths = [max(len(name), *(len(row[k]) for row in cells)) for k, name in enumerate(names)]
    for line in [[_line(name) for name in names], *cells]:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    for record in records[:limit]:
        if record.error:
            yield f"{_line(record.key)}: {_line(record.error.splitlines()[0])}"


def write_runs(records: Sequence[Record], directory: Path, command: str, *, parquet: bool) -> list[Path]:
    """Write ``runs.csv``, ``result.json`` and, if asked for and pyarrow is installed, ``runs.parquet``."""
    table, written = rows(records), ["runs.csv", "result.json"]
    counts = dict(Counter(record.status for record in records))
    with staged(directory) as folder:
        write_csv(folder / "runs.csv", table)
        write_json(folder / "result.json", {"command": command, "runs": len(records), "status": counts})
        if parquet and _write_parquet(folder / "runs.parquet", table):
            written.append("runs.parquet")
    return [directory / name for name in written]


def _write_parquet(path: Path, table: Sequence[dict[str, Any]]) -> bool:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(table)), path)
    return True


def _line(text: str) -> str:
    """Text from a file in one line, which moves no cursor."""
    return visible(" ".join(text.split()))
