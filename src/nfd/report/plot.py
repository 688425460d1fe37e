"""Small line charts as SVG, drawn in milliseconds and without a script, for pages that are written at every look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from nfd.core.tables import short
from nfd.report.tidy import across_span, drawable, log_span

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 34
_NICE = (1, 2, 5)
_FOR_ZERO = 0.25  # of the axis above it: the room for zero, which a logarithm has no place for
_MOST = 5  # ticks of an axis that is not logarithmic


@dataclass(frozen=True)
class Place:
    """A value and where it belongs.

    Attributes:
        x, y: the value y at x; not-a-number breaks a line.
        expected: the ends of its band, where one is known.
        name: of the layer, where it is one.
    """

    x: float
    y: float
    expected: tuple[float, float] | None = None
    name: str = ""

    @property
    def text(self) -> str:
        """The value with its name and what is expected of it."""
        band = "" if self.expected is None else f", expected [{', '.join(map(short, self.expected))}]"
        return f"{self.name or f'at {self.x:g}'}: {short(self.y)}{band}"

    @property
    def outside(self) -> bool:
        """Whether it lies outside of what is expected."""
        return self.expected is not None and not self.expected[0] <= self.y <= self.expected[1]


@dataclass(frozen=True)
class Plot:
    """Lines over one axis, on a logarithmic axis up; zero stands at its bottom.

    Args:
        title: above it. x_title: below it.
        description: what it shows, for those who do not see it.
        places: the line in the foreground, with its band.
        earlier: lines behind it, from the oldest to the newest.
    """

    title: str
    x_title: str
    description: str
    places: Sequence[Place]
    earlier: Sequence[Sequence[Place]] = ()

    @cached_property
    def _all(self) -> list[Place]:
        return [place for line in (self.places, *self.earlier) for place in line if drawable(place.y)]

    @cached_property
    def _up(self) -> tuple[float, float]:
        bands = ((place, place.expected or (place.y, place.y)) for place in self._all if place.y > 0)
        low, high = log_span([{"y": place.y, "low": low, "high": high} for place, (low, high) in bands])
        return (low * (low / high) ** _FOR_ZERO if self._has_zero else low), high

    @cached_property
    def _has_zero(self) -> bool:
        return any(place.y == 0 for place in self._all)

    @cached_property
    def _across(self) -> tuple[float, float]:
        return across_span([{"x": p.x} for p in self._all], log=False, tight=True)

    @property
    def line(self) -> str:
        """The path of the foreground."""
        return self._path(self.places)

    @property
    def earlier_lines(self) -> list[tuple[str, float]]:
        """Paths of the lines behind, each with its opacity: the older, the fainter."""
        return [(self._path(line), (k + 1) / (len(self.earlier) + 1)) for k, line in enumerate(self.earlier)]

    @property
    def dots(self) -> list[tuple[float, float, Place]]:
        """Where the values of the foreground stand, each with its place."""
        return [(self._x(p.x), self._y(p.y), p) for p in self.places if drawable(p.y)]

    @property
    def band(self) -> str:
        """The path around what is expected."""
        known = [(place.x, *place.expected) for place in self.places if place.expected is not None]
        ends = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
        return f"M{'L'.join(self._at(*end) for end in ends)}Z" if len(known) > 1 else ""

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Where the x axis is named, and how."""
        return [(self._x(x), f"{x:g}") for x in _round(*self._across) if x == int(x)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Where the y axis is named, and how; zero, which has no place on it, at its bottom."""
        low, high = self._up
        if not self._has_zero:
            return [(self._y(y), f"{y:g}") for y in _logarithmic(low, high)]
        least = low * (high / low) ** (_FOR_ZERO / (1 + _FOR_ZERO))  # above the room for zero
        return [(self._y(0), "0"), *((self._y(y), f"{y:g}") for y in _logarithmic(least, high))]

    def _path(self, line: Sequence[Place]) -> str:
        parts = (list(part) for known, part in groupby(line, lambda p: drawable(p.y)) if known)
        return "".join(f"M{'L'.join(self._at(p.x, p.y) for p in part)}" for part in parts)

    def _at(self, x: float, y: float) -> str:
        return f"{self._x(x):.1f},{self._y(y):.1f}"

    def _x(self, x: float) -> float:
        low, high = self._across
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - low) / (high - low)

    def _y(self, y: float) -> float:
        """A value from the bottom of the axis to its top; those beyond stand at its ends."""
        low, high = self._up
        share = math.log(min(max(y, low), high) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _logarithmic(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: 1, 2 and 5 times powers of ten; powers alone where they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = _NICE if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
    return ticks if len(ticks) > 1 else list(_round(low, high))


def _round(low: float, high: float) -> Iterator[float]:
    """A few round numbers from low to high."""
    rough = (high - low) / _MOST
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (*_NICE, 10) if factor * power >= rough)
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield float(f"{k * step:.12g}")
