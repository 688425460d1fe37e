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
        machine: what ran, where and when. quick: whether only small sizes were measured.
        parts: rows by the name of the part. seconds: what each part took. missing: why parts were
            not measured.
    """

    machine: Row
    quick: bool
    parts: Mapping[str, Sequence[Row]]
    seconds: Mapping[str, float]
    missing: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        parts = {part: [_plain(row) for row in rows] for part, rows in self.parts.items()}
        return vars(self) | {"parts": parts}

    @classmethod
    def read(cls, path: Path) -> Self:
        """A stored result; ValueError for a file that is none."""
        try:
            content = json.loads(path.read_text())
            parts = {
                part: [_read(row) for row in rows] for part, rows in content.pop("parts").items()
            }
            return cls(parts=parts, **content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path} is no result of the benchmarks ({error}). make bench writes one."
            ) from None

    def keep(self, folder: Path) -> Path:
        """Write it under its date, in a name that no earlier result has."""
        stem = str(self.machine["date"]).partition("+")[0].replace(":", "-") + (
            "-quick" if self.quick else ""
        )
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
        return {
            (part, identity(row), column): value
            for part, rows in self.parts.items()
            for row in rows
            for column, value in row.items()
            if isinstance(value, Ratio)
        }


def identity(row: Row) -> Identity:
    """What was measured: the texts and whole numbers of a row."""
    return tuple((name, value) for name, value in row.items() if isinstance(value, str | int))


def merged(rounds: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of all rounds, one per identity: repeats of ratios joined, medians of everything
    else measured.
    """
    by_identity: dict[Identity, list[Row]] = {}
    for rows in rounds:
        for row in rows:
            by_identity.setdefault(identity(row), []).append(row)
    return [
        {name: _together([row[name] for row in rows]) for name in rows[0]}
        for rows in by_identity.values()
    ]


def _together(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Ratio):
        return Ratio.joined(values)
    return values[0] if isinstance(values[0], str | int) else median(values)


def _plain(row: Row) -> Row:
    return {
        name: value.plain() if isinstance(value, Ratio) else value for name, value in row.items()
    }


def _read(row: Row) -> Row:
    return {name: Ratio.read(value) if is_plain(value) else value for name, value in row.items()}
