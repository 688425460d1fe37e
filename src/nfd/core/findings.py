"""What a finding is: one chart's worth of tidy rows, fitted slopes and words, ready to be drawn and printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from nfd.core.errors import InputError
from nfd.core.estimates import Interval
from nfd.core.tables import Row as Row


class SeriesRole(StrEnum):
    """What a series is to the others of its chart; a column of its rows, where it is not one among equals."""

    PREDICTION = "prediction"  # in shades of grey, the last one in black
    REAL = "real"  # a network that was trained, beside predictions: in broken lines and colours


INFINITE = math.inf

_UNWRITABLE = ("inf", "-inf", "nan")
_NUMBERS = ("rows", "slopes", "references")  # the parts of a finding that hold numbers


@dataclass(frozen=True)
class Axes:
    """The axes of a chart.

    Attributes:
        x, y: columns of the rows. x_title, y_title: their titles.
        kind: ``"curves"`` over steps, ``"logcurves"`` on a logarithmic axis, points on two logarithmic axes
            (``"logarithmic"``), on a logarithmic x (``"semilogarithmic"``), on linear axes (``"linear"``) or on a named
            x (``"named"``).
        zero: whether linear axes include zero. top: rows above it are not drawn.
        colour, dash: columns by which series differ in colour and in dash; numbers get an ordered palette.
        interval: the meaning of ``low`` to ``high`` in the rows.
    """

    x: str
    y: str
    x_title: str
    y_title: str
    kind: Literal["curves", "logcurves", "logarithmic", "semilogarithmic", "linear", "named"]
    zero: bool = True
    top: float | None = None
    colour: str = "series"
    dash: str | None = None
    interval: str = "95 % interval"


@dataclass(frozen=True)
class Finding:
    """A question (``title``), its answer in one sentence (``headline``), details, and the numbers behind it.

    Every row has ``series``, ``low``, ``high`` and the columns of ``axes``; ``table`` is the printed table.
    ``references`` are lines to compare with: rows with ``series`` and the columns of ``axes``.
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
        try:
            finding = TypeAdapter(Finding).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise InputError(f"is no finding that can be drawn: {where}: {first['msg'].lower()}.") from None
        return replace(finding, **{name: decoded(getattr(finding, name)) for name in _NUMBERS})


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
