"""What a finding is: one chart's worth of tidy rows, fitted slopes and words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from nfd.core.errors import InputError
from nfd.core.tables import Row as Row

if TYPE_CHECKING:  # whose statistics load SciPy
    from nfd.core.estimates import Interval


class SeriesRole(StrEnum):
    """What a series is to the others of its chart.

    It is a column of the rows, where a series is not one among equals.
    """

    PREDICTION = "prediction"  # in shades of grey, the last one in black
    REAL = "real"  # a network that was trained, beside predictions: in broken lines and colours


_UNWRITABLE = ("inf", "-inf", "nan")
# the parts of a finding that hold numbers
_NUMBERS = ("rows", "slopes", "references", "marks", "best")


@dataclass(frozen=True)
class Axes:
    """The axes of a chart.

    Attributes:
        x, y: columns of the rows. x_title, y_title: their titles.
        kind: ``"curves"`` over steps, ``"logcurves"`` on a logarithmic axis, points on two
            logarithmic axes (``"logarithmic"``), on a logarithmic x (``"semilogarithmic"``), on
            linear axes (``"linear"``) or on a named x (``"named"``); or bars of ``x`` one after
            another, a row for each ``y`` (``"counts"``).
        zero: whether linear axes include zero. top: rows above it are not drawn.
        colour, dash: columns by which series differ in colour and in dash; numbers get an ordered
            palette.
        order: names that have the same colour and dash in every chart. interval: what ``low`` to
            ``high`` mean.
    """

    x: str
    y: str
    x_title: str
    y_title: str
    kind: Literal[
        "curves", "logcurves", "logarithmic", "semilogarithmic", "linear", "named", "counts"
    ]
    zero: bool = True
    top: float | None = None
    colour: str = "series"
    dash: str | None = None
    order: tuple[str, ...] = ()
    interval: str = "95 % interval"


@dataclass(frozen=True)
class Finding:
    """A question (``title``), its answer in one sentence (``headline``), details and numbers.

    Every row has ``series``, ``low``, ``high`` and the columns of ``axes``; ``table`` is the
    printed table. ``references`` are lines to compare with: rows with ``series`` and the columns of
    ``axes``. ``marks`` are points of the chart with a ``text``, each with a line to ``low`` if it
    has one. ``best`` is a strip below it: where on the x axis every ``series`` is best, from
    ``low`` to ``high``.
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
        """Return the finding as JSON holds it, with its ``reading``.

        ``of`` reads it back, infinities and not-a-number too.
        """
        written = {name: encoded(value) for name, value in asdict(self).items() if name in _NUMBERS}
        return asdict(self) | written | {"reading": self.reading}

    @staticmethod
    def of(plain: Any) -> Finding:
        """The finding that ``plain`` returned; ValueError with the reason if it is not one."""
        # takes longer to load than a plan to make
        from pydantic import TypeAdapter, ValidationError

        try:
            finding = TypeAdapter(Finding).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise InputError(
                f"is no finding that can be drawn: {where}: {first['msg'].lower()}."
            ) from None
        finding = replace(finding, **{name: decoded(getattr(finding, name)) for name in _NUMBERS})
        finding._check_places()
        return finding

    def _check_places(self) -> None:
        """Raise InputError for a mark without text, or a row of the strip without three numbers."""
        x = self.axes.x
        for row in self.marks:
            if not isinstance(row.get("text"), str):
                raise InputError(
                    f"cannot be drawn: marks: a row has no text, but {row.get('text')!r}."
                )
        for row in self.best:
            for column in (x, "low", "high"):
                value = row.get(column)
                if isinstance(value, bool) or not isinstance(value, float | int):
                    raise InputError(
                        f"cannot be drawn: best: {column} is no number, but {value!r}."
                    )


def plain(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Findings by name as a ``result.json`` holds them, for ``nfd report`` to draw again."""
    return {finding.name: finding.plain() for finding in findings}


def encoded(value: Any) -> Any:
    """Write numbers that JSON lacks as the texts that ``float`` reads.

    A text that reads so itself gets a quote in front.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and value.lstrip("'") in _UNWRITABLE:
        return f"'{value}"
    if isinstance(value, dict):
        return {k: encoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [encoded(v) for v in value]
    return value


def decoded(value: Any) -> Any:
    """Return the value that ``encoded`` was given."""
    if isinstance(value, str) and value.lstrip("'") in _UNWRITABLE:
        return value[1:] if value.startswith("'") else float(value)
    if isinstance(value, dict):
        return {k: decoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [decoded(v) for v in value]
    return value


def columns(name: str, number: Interval) -> Row:
    """An interval as columns: ``name``, stderr, low, high."""
    values = asdict(number)
    return {name: values.pop("value"), **values}


def numbers(number: Interval | None) -> dict[str, float] | None:
    """An interval as a ``result.json`` holds it; None where there is none."""
    return None if number is None else number.limits
