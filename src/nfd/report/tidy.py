"""Rows as charts need them: in columns of fixed names, only those that can be drawn, and the ranges of the axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from nfd.core.tables import Row, visible
from nfd.questions.finding import Axes

Point = dict[str, Any]
Span = tuple[float, float]

LOG_X = ("logarithmic", "semilogarithmic", "map")
LOG_Y = ("logarithmic", "logcurves", "map")

_MARGIN = 1.15  # of logarithmic axes, as a factor
_PAD = 0.03  # of linear axes, as a share
_DEEPEST = 20  # a bar ends at the axis where it reaches below this share of the lowest point


def tidy(rows: Sequence[Row], axes: Axes) -> list[Point]:
    """The rows that the axes can show, as series, x, y, low and high (none where an end is missing), and a text.

    A run that diverged ends; what is not above zero has no place on a logarithmic axis.
    """
    points = []
    for row in rows:
        x, y, low, high = (row.get(name) for name in (axes.x, axes.y, "low", "high"))
        if axes.kind == "named":
            x = named(x)
        elif not drawable(x, above_zero=axes.kind in LOG_X):
            continue
        if drawable(y, above_zero=axes.kind in LOG_Y):
            bar = {"low": low, "high": high} if drawable(low) and drawable(high) else dict[str, float]()
            points.append({"series": series_of(row), "x": x, "y": y, **bar, "text": _text(y, bar)})
    return points


def series_of(row: Row) -> str:
    """The name of a row's series."""
    return visible(str(row.get("series", "")))


def drawable(value: Any, *, above_zero: bool = False) -> TypeGuard[float]:
    """Whether an axis has a place for it."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        return False
    return value > 0 or not above_zero


def named(value: Any) -> str:
    """A value as the name of its place on a named axis."""
    return "infinite" if value == math.inf else f"{value:g}" if isinstance(value, float) else visible(str(value))


def linear_span(points: Sequence[Point], *, zero: bool) -> Span:
    """From the lowest to the highest of points and bars, and zero if asked for."""
    values = [v for p in points for v in (p["y"], p.get("low"), p.get("high")) if v is not None] + [0.0] * zero
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        pad = abs(low) or 1.0
        return low - pad, high + pad
    pad = _PAD * (high - low)
    return low - pad * (low != 0 or not zero), high + pad * (high != 0 or not zero)


def log_span(points: Sequence[Point]) -> Span:
    """The same above zero; a bar may end far below its point, or below zero, and ends at the axis then."""
    lowest = min((p["y"] for p in points), default=1.0)
    bottom = min((p["low"] for p in points if p.get("low", 0) > lowest / _DEEPEST), default=lowest)
    top = max((max(p["y"], p.get("high", 0)) for p in points), default=2.0)
    return min(lowest, bottom) / _MARGIN, top * _MARGIN


def across_span(points: Sequence[Point], *, log: bool, tight: bool) -> Span:
    """From the first to the last x; ``tight`` where lines may touch the sides."""
    low, high = (f((p["x"] for p in points), default=1.0) for f in (min, max))
    if log:
        return (low, high) if tight and low < high else (low / _MARGIN, high * _MARGIN)
    pad = (0 if tight else _PAD * (high - low)) if low < high else 0.5
    return low - pad, high + pad


def _text(y: float, bar: Mapping[str, float]) -> str:
    if not bar or bar["low"] == bar["high"]:
        return f"{y:.4g}"
    return f"{y:.4g} [{bar['low']:.4g}, {bar['high']:.4g}]"
