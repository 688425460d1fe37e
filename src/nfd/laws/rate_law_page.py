"""The picture of a law of the best learning rate: the rate over what varied, and the advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt
import numpy as np

from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.core.words import listed, number
from nfd.laws.rate_advice import BestRate
from nfd.laws.rate_answer import interval_of, power_rows
from nfd.laws.rate_law import REFERENCE, RateLaw, mean_of, scaled_by
from nfd.report.look import (
    BAND,
    BLUE,
    INK,
    RAMP,
    VARIABLES,
    hover,
    on_lines,
    points,
    round_ticks,
    with_margin,
    x_log,
    y_log,
)
from nfd.report.page import Section
from nfd.report.picture import picture

_HEIGHT = 300
# Places of the law's line, and how far it goes beyond what is drawn.
_PLACES = 41
_FINER = (1, 1.5, 2, 3, 4, 5, 6, 8)
_TITLES = {"parameters": "parameters", "tokens": "tokens of training", "batch": "tokens of a batch"}


def first_sections(shown: RateLaw | BestRate) -> list[Section]:
    """The best rate over the size that varied most, with the training that was asked for."""
    if isinstance(shown, BestRate) and shown.law is None:
        return []
    return [Section("", [], pictures=[_View.of(shown).picture()])]


def sections(shown: RateLaw | BestRate) -> list[Section]:
    """All that a page shows below the answer."""
    parts = first_sections(shown)
    law = shown.law if isinstance(shown, BestRate) else shown
    if law is None:
        return parts
    return [*parts, Section("How the best rate follows size", [], table=power_rows(law))]


def curve_of(shown: RateLaw | BestRate) -> list[Row]:
    """The law's line with its interval, and the measured rates moved to it."""
    view = _View.of(shown)
    rows = [{"kind": "law"} | row for row in view.line]
    return rows + [{"kind": "measured"} | row for row in view.measured]


def _rates(column: str, span: tuple[float, float]) -> Any:
    """The axis of learning rates, with three ticks or more."""
    ticks = round_ticks(*span)
    if len(ticks) < 3:
        decade = 10.0 ** math.floor(math.log10(span[0]))
        finer = [float(f"{step * decade:.3g}") for step in (*_FINER, *(10 * s for s in _FINER))]
        ticks = [tick for tick in finer if span[0] <= tick <= span[1]]
    return y_log(column, "best learning rate", span, values=ticks)


@dataclass(frozen=True)
class _View:
    """The line along one size; the others are those of the training, or the table's middle."""

    law: RateLaw
    axis: str
    sizes: Mapping[str, float]
    advice: BestRate | None = None

    @staticmethod
    def of(shown: RateLaw | BestRate) -> _View:
        """Draw along the first size that varies over the cells: parameters, tokens or batch."""
        advice = shown if isinstance(shown, BestRate) else None
        law = shown if isinstance(shown, RateLaw) else shown.law
        if law is None:
            raise RuntimeError("the advice for a training has no law")
        sizes = dict(law.usual)
        if advice is not None:
            sizes |= {name: size for name, size in advice.sizes.items() if name not in law.unsaid}
        axis = next((name for name in REFERENCE if name in law.varied), "parameters")
        return _View(law, axis, sizes, advice)

    @property
    def place(self) -> int:
        """The axis's place among the sizes."""
        return list(REFERENCE).index(self.axis)

    def _rate(self, mean: float, deviation: float, place: Any) -> Interval:
        """A rate of the user's, from log2 of the law's."""
        return interval_of(mean - scaled_by(self.law.scaled, place), deviation)

    @cached_property
    def measured(self) -> list[Row]:
        """The best rates of the cells, moved by the law to the line's other sizes."""
        law = self.law
        if not len(law.places):
            return []
        moved = np.tile(law.doublings(self.sizes), (len(law.places), 1))
        moved[:, self.place] = law.places[:, self.place]
        shifts = mean_of(law.terms, moved) - mean_of(law.terms, law.places)
        rows = list[Row]()
        for k, place in enumerate(moved):
            rate = self._rate(float(law.found[k] + shifts[k]), math.sqrt(law.noise[k]), place)
            size = 2.0 ** float(place[self.place]) * REFERENCE[self.axis]
            rows.append({self.axis: size} | rate.limits)
        return rows

    @cached_property
    def line(self) -> list[Row]:
        """The law's rate and its interval for a new training, along the axis."""
        ends = [row[self.axis] for row in self.measured] or [self.sizes[self.axis]]
        ends.append(self.sizes[self.axis])
        low = min(ends) / 1.3
        high = max(ends) * 1.3
        if not self.measured:
            low /= 30
            high *= 30
        sizes = np.geomspace(low, high, _PLACES)
        places = np.tile(self.law.doublings(self.sizes), (_PLACES, 1))
        places[:, self.place] = np.log2(sizes / REFERENCE[self.axis])
        means, deviations = self.law.predicted(places)
        rows = list[Row]()
        for size, mean, deviation, place in zip(sizes, means, deviations, places, strict=True):
            rate = self._rate(float(mean), float(deviation), place)
            rows.append({self.axis: float(size)} | rate.limits)
        return rows

    def picture(self) -> Any:
        """The line with its band, the measured rates, and the training that was asked for."""
        rows = [*self.line, *self.measured]
        values = [row["value"] for row in rows]
        values += [row["low"] for row in self.line] + [row["high"] for row in self.line]
        sizes = with_margin([row[self.axis] for row in rows], "log", 0.02)
        # Vega writes G for a billion.
        letters = "replace(datum.label, 'G', 'B')"
        x = x_log(self.axis, _TITLES[self.axis], sizes, format="~s", labelExpr=letters)
        span = with_margin(values, "log")
        line = points(self.line, x=x, y=_rates("value", span))
        band = points(self.line, x=x, y=_rates("low", span), y2="high:Q")
        layers = [
            band.mark_area(color=BAND, opacity=0.7),
            line.mark_line(color=INK, strokeWidth=2),
            *self._cells(x, span),
            *self._advice(x, span),
        ]
        key = {"the law": VARIABLES[INK], "95 % of a new training": VARIABLES[BAND]}
        if self.measured:
            key["measured best rates"] = "ramp2"
        if self.advice is not None:
            key["the training that you plan"] = VARIABLES[BLUE]
        return picture(
            "rate",
            alt.layer(*layers).properties(height=_HEIGHT),
            label=f"The best learning rate over {_TITLES[self.axis]}",
            key=key,
            caption=self._caption(),
        )

    def _cells(self, x: Any, span: tuple[float, float]) -> list[Any]:
        rows = list[Row]()
        for row in self.measured:
            rate = Interval(row["value"], math.nan, row["low"], row["high"])
            text = f"{number(row[self.axis], 3)} {self.axis}: {rate.in_words()}"
            rows.append(row | {"text": hover(text)})
        if not rows:
            return []
        base = points(rows, x=x)
        _, colour, *_ = RAMP
        return [
            base.encode(y=_rates("low", span), y2="high:Q").mark_rule(
                color=colour, opacity=0.5, clip=True
            ),
            base.encode(y=_rates("value", span), description="text:N").mark_circle(
                color=colour, size=50, opacity=1, clip=True
            ),
        ]

    def _advice(self, x: Any, span: tuple[float, float]) -> list[Any]:
        if self.advice is None:
            return []
        size = self.sizes[self.axis]
        rate = self.advice.rate
        text = hover(f"advised: {number(self.advice.advised)}; the best rate: {rate.in_words()}")
        row = {
            self.axis: size,
            "value": self.advice.advised,
            "name": number(self.advice.advised),
            "text": text,
        }
        row |= {"low": max(rate.low, span[0]), "high": min(rate.high, span[1])}
        base = points([row], x=x)
        dot = base.encode(y=_rates("value", span), description="text:N")
        bar = base.encode(y=_rates("low", span), y2="high:Q")
        middle = math.sqrt(self.line[0][self.axis] * self.line[-1][self.axis])
        align = "right" if size > middle else "left"
        name = dot.encode(text="name:N")
        return [
            bar.mark_rule(color=BLUE, strokeWidth=3),
            dot.mark_point(shape="diamond", filled=True, color=BLUE, size=130, opacity=1),
            on_lines(
                name, align=align, dx=-12 if align == "right" else 12, color=BLUE, fontWeight=600
            ),
        ]

    def _caption(self) -> str:
        """Where the line runs."""
        parts = list[str]()
        for name in ("parameters", "tokens"):
            if name != self.axis:
                parts.append(f"{number(self.sizes[name], 3)} {name}")
        where = listed(parts)
        if self.axis != "batch":
            where += f", in batches of {number(self.sizes['batch'], 3)} tokens"
        moved = " Measured rates are moved there by the law." if self.measured else ""
        below = ""
        if self.advice is not None and self.advice.advised < 0.97 * self.advice.rate.value:
            below = " The advice lies below the line, as losses rise faster above the best rate."
        return f"At {where}.{moved}{below}"
