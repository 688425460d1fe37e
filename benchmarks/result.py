"""``Result``: one run of the benchmarks, kept as JSON beside all earlier ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks.measure import Row
from benchmarks.ratio import Ratio, is_plain
from nfd.core.files import prepare_directory, staged, write_json

Identity = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True)
class Result:
    """A machine and its measurements.

    Attributes:
        machine: what ran, where and when.
        quick: whether only small sizes were measured.
        parts: rows by the name of the part.
        seconds: what each part took.
        missing: why parts were not measured.
    """

    machine: Row
    quick: bool
    parts: Mapping[str, Sequence[Row]]
    seconds: Mapping[str, float]
    missing: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        parts = dict[str, list[Row]]()
        for part, rows in self.parts.items():
            parts[part] = [_plain(row) for row in rows]
        return vars(self) | {"parts": parts}

    @classmethod
    def read(cls, path: Path) -> Self:
        """A stored result.

        Raises:
            ValueError: for a file that does not hold one.
        """
        try:
            content = json.loads(path.read_text())
            parts = dict[str, list[Row]]()
            for part, rows in content.pop("parts").items():
                parts[part] = [_read(row) for row in rows]
            return cls(parts=parts, **content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path} is no result of the benchmarks ({error}). make bench writes one."
            ) from None

    def keep(self, folder: Path) -> Path:
        """Write it under its date, in a name that no earlier result has."""
        stem = str(self.machine["date"]).partition("+")[0].replace(":", "-")
        if self.quick:
            stem += "-quick"
        path = prepare_directory(folder) / f"{stem}.json"
        again = 1
        while path.exists():
            again += 1
            path = folder / f"{stem}-{again}.json"
        with staged(folder) as place:
            write_json(place / path.name, self.plain())
        return path

    def ratios(self) -> dict[tuple[str, Identity, str], Ratio]:
        """Every ratio by its part, the identity of its row, and its column."""
        by_place = dict[tuple[str, Identity, str], Ratio]()
        for part, rows in self.parts.items():
            for row in rows:
                for column, value in row.items():
                    if isinstance(value, Ratio):
                        by_place[part, identity(row), column] = value
        return by_place


def identity(row: Row) -> Identity:
    """What was measured: the texts and whole numbers of a row."""
    return tuple((name, value) for name, value in row.items() if isinstance(value, str | int))


def merged(rounds: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of all rounds, one for each identity.

    Repeats of ratios are joined; of everything else that is measured the median is taken.
    """
    by_identity: dict[Identity, list[Row]] = {}
    for rows in rounds:
        for row in rows:
            by_identity.setdefault(identity(row), []).append(row)
    return [_joined(rows) for rows in by_identity.values()]


def _joined(rows: Sequence[Row]) -> Row:
    """The row of several rounds of one identity."""
    joined: Row = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, Ratio):
            joined[name] = Ratio.joined(values)
        elif isinstance(first, str | int):
            joined[name] = first
        else:
            joined[name] = median(values)
    return joined


def _plain(row: Row) -> Row:
    """A row as JSON holds it."""
    plain = dict(row)
    for name, value in row.items():
        if isinstance(value, Ratio):
            plain[name] = value.plain()
    return plain


def _read(plain: Row) -> Row:
    """The row that ``_plain`` wrote."""
    row = dict(plain)
    for name, value in plain.items():
        if is_plain(value):
            row[name] = Ratio.read(value)
    return row
