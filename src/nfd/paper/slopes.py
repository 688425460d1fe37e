"""Fitted exponents as rows of charts and of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from nfd.core import Interval, Row, columns, interval
from nfd.meters import verdict_of


def slope_row(series: str, exponent: Interval) -> Row:
    """The row of an exponent, with its verdict."""
    return {"series": series} | columns("slope", exponent) | {"verdict": verdict_of(exponent)}


def fitted(series: str, f: Callable[..., Tensor], *samples: Tensor) -> Row:
    """The row of a fitted exponent, ``f`` of the replicates, with its verdict; not-a-number if it cannot be fitted."""
    return slope_row(series, interval(f, *samples))


def power(letter: str, row: Row) -> str:
    """``L^-0.46 [-0.51, -0.41]``."""
    if not math.isfinite(row["stderr"]):
        return "no exponent"
    return f"{letter}^{row['slope']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def slope_table(slopes: Iterable[Row], *, verdicts: bool) -> list[dict[str, str]]:
    """Exponents for people; those that noise hides are said to be."""
    table = []
    for row in slopes:
        known = math.isfinite(row["stderr"])
        limits = f"[{row['low']:.2f}, {row['high']:.2f}]"
        shown = f"{row['slope']:.2f} {limits} ± {row['stderr']:.3f}" if known else "not resolved"
        line = {"": row["series"], "exponent [95 % interval] ± standard error": shown}
        table.append(line | {"verdict": row["verdict"] if known else ""} if verdicts else line)
    return table
