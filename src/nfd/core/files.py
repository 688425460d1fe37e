"""What commands leave behind: findings, directories for results, and the formats of the files in them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import Interval
from nfd.core.tables import Row as Row

# ---- What a finding is: one chart's worth of tidy rows, fitted slopes and words, ready to be drawn and printed


class SeriesRole(StrEnum):
    """What a series is to the others of its chart; a column of its rows, where it is not one among equals."""

    PREDICTION = "prediction"  # in shades of grey, the last one in black
    REAL = "real"  # a network that was trained, beside predictions: in broken lines and colours


INFINITE = math.inf

_UNWRITABLE = ("inf", "-inf", "nan")
_NUMBERS = ("rows", "slopes", "references", "marks", "best")  # the parts of a finding that hold numbers


@dataclass(frozen=True)
class Axes:
    """The axes of a chart.

    Attributes:
        x, y: columns of the rows. x_title, y_title: their titles.
        kind: ``"curves"`` over steps, ``"logcurves"`` on a logarithmic axis, points on two logarithmic axes
            (``"logarithmic"``), on a logarithmic x (``"semilogarithmic"``), on linear axes (``"linear"``) or on a named
            x (``"named"``); or bars of ``x`` one after another, a row for each ``y`` (``"counts"``).
        zero: whether linear axes include zero. top: rows above it are not drawn.
        colour, dash: columns by which series differ in colour and in dash; numbers get an ordered palette.
        order: names that have the same colour and dash in every chart. interval: what ``low`` to ``high`` mean.
    """

    x: str
    y: str
    x_title: str
    y_title: str
    kind: Literal["curves", "logcurves", "logarithmic", "semilogarithmic", "linear", "named", "counts"]
    zero: bool = True
    top: float | None = None
    colour: str = "series"
    dash: str | None = None
    order: tuple[str, ...] = ()
    interval: str = "95 % interval"


@dataclass(frozen=True)
class Finding:
    """A question (``title``), its answer in one sentence (``headline``), details, and the numbers behind it.

    Every row has ``series``, ``low``, ``high`` and the columns of ``axes``; ``table`` is the printed table.
    ``references`` are lines to compare with: rows with ``series`` and the columns of ``axes``. ``marks`` are points of
    the chart with a ``text``, each with a line to ``low`` if it has one. ``best`` is a strip below it: where on the x
    axis every ``series`` is best, from ``low`` to ``high``.
    """

    name: str
    title: str
    headline: str
    rows: list[Row]
    axes: Axes
    caption: str
    details: list[str] = field(default_factory=list)
    slopes: list[Row] = field(default_factory=list)
    table: list[dict[str, str]] = field(default_factory=list)
    references: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    best: list[Row] = field(default_factory=list)

    @property
    def reading(self) -> str:
        """The whole answer."""
        return " ".join([self.headline, *self.details])

    def plain(self) -> dict[str, Any]:
        """The finding as JSON holds it, with its ``reading``; ``of`` reads it back, infinities and not-a-number too."""
        written = {name: encoded(value) for name, value in asdict(self).items() if name in _NUMBERS}
        return asdict(self) | written | {"reading": self.reading}

    @staticmethod
    def of(plain: Any) -> Finding:
        """The finding that ``plain`` returned; ValueError with the reason if it is not one."""
        from pydantic import TypeAdapter, ValidationError  # takes longer to load than a plan to make

        try:
            finding = TypeAdapter(Finding).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise InputError(f"is no finding that can be drawn: {where}: {first['msg'].lower()}.") from None
        finding = replace(finding, **{name: decoded(getattr(finding, name)) for name in _NUMBERS})
        finding._check_places()
        return finding

    def _check_places(self) -> None:
        """InputError unless every mark has its text, and every row of the strip its three numbers."""
        x = self.axes.x
        for row in self.marks:
            if not isinstance(row.get("text"), str):
                raise InputError(f"cannot be drawn: marks: a row has no text, but {row.get('text')!r}.")
        for row in self.best:
            for column in (x, "low", "high"):
                value = row.get(column)
                if isinstance(value, bool) or not isinstance(value, float | int):
                    raise InputError(f"cannot be drawn: best: {column} is no number, but {value!r}.")


def plain(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Findings by name as a ``result.json`` holds them, for ``nfd report`` to draw again."""
    return {finding.name: finding.plain() for finding in findings}


def encoded(value: Any) -> Any:
    """Numbers that JSON lacks as the texts ``float`` reads; a text that reads so itself gets a quote in front."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and value.lstrip("'") in _UNWRITABLE:
        return f"'{value}"
    if isinstance(value, dict):
        return {k: encoded(v) for k, v in value.items()}
    return [encoded(v) for v in value] if isinstance(value, list) else value


def decoded(value: Any) -> Any:
    """What ``encoded`` was given."""
    if isinstance(value, str) and value.lstrip("'") in _UNWRITABLE:
        return value[1:] if value.startswith("'") else float(value)
    if isinstance(value, dict):
        return {k: decoded(v) for k, v in value.items()}
    return [decoded(v) for v in value] if isinstance(value, list) else value


def columns(name: str, number: Interval) -> Row:
    """An interval as columns: ``name``, stderr, low, high."""
    values = asdict(number)
    return {name: values.pop("value"), **values}


def numbers(number: Interval | None) -> dict[str, float] | None:
    """An interval as a ``result.json`` holds it; None where there is none."""
    return None if number is None else number.limits


def depth_name(depth: float) -> str:
    """``depth 8`` or ``infinite depth``."""
    return "infinite depth" if depth == INFINITE else f"depth {depth:g}"


def listed(values: Sequence[Any], form: str = "") -> str:
    """``1, 2 and 3``."""
    shown = [format(v, form) for v in values]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


# ---- Directories for results, and the formats of the files in them


SWEEP = "runs.sqlite"  # the file of a sweep
_MARK = ".nfd"  # left in a directory of results


def expanded(path: str | Path) -> Path:
    """The path with ``~`` replaced by the home directory; TypeError if it is not a path."""
    if not isinstance(path, str | Path):
        raise InputTypeError(f"a path must be a text or a Path; got {path!r} of {type(path).__name__}.")
    return Path(os.path.expanduser(path))


def prepare_directory(path: str | Path) -> Path:
    """Create ``path`` if needed and prove that a file can be written there; an error that says what to do."""
    if not str(path).strip():
        raise InputError("out must name a directory; got an empty string.")
    directory = expanded(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"0")
    except OSError as error:
        raise InputError(
            f"out must be a directory that can be written; got {str(directory)!r} ({error.strerror}). "
            "Choose another with --out DIR."
        ) from error
    return directory


def prepare_results(path: str | Path) -> Path:
    """``prepare_directory`` for the files of a command, which replace those of an earlier one.

    A directory that is not empty must be known: by the mark that the first command leaves, or as that of a sweep.

    Raises:
        FileExistsError: naming a file that is of something else.
    """
    directory = expanded(path)
    known = any((directory / name).exists() for name in (_MARK, SWEEP))
    others = [] if known or not directory.is_dir() else [p.name for p in directory.iterdir() if p.is_file()]
    if visible := sorted(name for name in others if not name.startswith(".")):
        raise FileExistsError(
            f"out must be a new directory, or one of nfd: {str(directory)!r} holds {visible[0]!r}, which nfd did not "
            "make. Nothing was changed. Choose another with --out DIR."
        )
    prepare_directory(directory)
    (directory / _MARK).touch()
    return directory


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A folder to write files in; they take their places in ``directory`` when the block ends well.

    So a fault on the way, such as a full disk, leaves ``directory`` as it was.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as folder:
        try:
            yield Path(folder)
        except OSError as error:
            reason = f"{error.strerror}: nothing was changed in it; free space or choose another"
            raise OSError(error.errno, reason, str(directory)) from error
        for path in Path(folder).iterdir():
            os.replace(path, directory / path.name)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole: beside its place, then into it. Readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with staged(path.parent) as folder:
        (folder / path.name).write_bytes(content)


def write_text(path: Path, content: str) -> Path:
    """Write UTF-8 text."""
    path.write_text(content, encoding="utf-8", newline="")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write JSON; numbers that are not finite become null."""
    return write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write dictionaries as CSV, a column for every key."""
    text = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, fieldnames=names)
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
