"""How often verdicts are wrong by chance: the level of each, and the false discovery rate of all together.

A verdict is given where a 95 % interval lies on one side of its bounds. Its *level* is the smallest a for which the
interval of 1 - a would still lie there: at most 0.05 for every verdict, and more where a statement is undecided. Among
all verdicts whose q, by the step-up rule of Benjamini and Hochberg, is at most some number, no more than that share is
expected to be wrong.

Source: Benjamini & Hochberg 1995, "Controlling the false discovery rate".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special, stats

from nfd.core import Interval, standard_errors

ONE_SIDE = 0.025  # the chance that a 95 % interval lies wholly beyond the truth, on one side of it


def level(measured: Interval, low: float, high: float) -> float:
    """The smallest level at which an interval around this value would lie within (low, high), or outside of it.

    By Student's t with the degrees of freedom that the reach of the 95 % interval has in standard errors; 0 for a
    number without error. An interval that reaches farther to one side is taken by the side that faces the bound.
    """
    freedom = _freedom(measured)
    down, up = measured.value - measured.low, measured.high - measured.value
    if low < measured.value < high:
        return max(_beyond(measured.value - low, down, freedom), _beyond(high - measured.value, up, freedom))
    past = (low - measured.value, up) if measured.value <= low else (measured.value - high, down)
    return _beyond(*past, freedom)


def _beyond(distance: float, reach: float, freedom: float) -> float:
    """The level whose interval reaches this far, where that of 95 % has this reach."""
    if distance == math.inf or reach == 0:
        return 0.0
    return float(2 * special.stdtr(freedom, -distance / reach * standard_errors(freedom)))


def _freedom(measured: Interval) -> float:
    """Degrees of freedom for which Student's t has the reach of an interval in its standard errors."""
    reach = (measured.high - measured.low) / 2
    errors = reach / measured.stderr if measured.stderr > 0 else 0.0
    if not standard_errors(math.inf) < errors < standard_errors(1):
        return math.inf if errors < standard_errors(1) else 1.0
    return float(special.stdtridf(1 - ONE_SIDE, errors))


def discovery_rates(levels: Sequence[float | None]) -> list[float | None]:
    """q of every level, over all that are known."""
    known = [value for value in levels if value is not None]
    rates = iter(stats.false_discovery_control(known).tolist() if known else ())
    return [None if value is None else next(rates) for value in levels]


def expected_wrong(verdicts: int) -> float:
    """How many of so many verdicts are wrong by chance, at most: each where its truth lies on a bound."""
    return ONE_SIDE * verdicts
