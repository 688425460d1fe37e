"""Grids of rates: successive halving of those to begin with, and growth where the best rate needs more.

Short trainings from one start, of an eighth of the steps, then twice as many, and so on, leave the better half of the
rates each time, down to four in a row. These are trained to the end, from every start. The grid then grows, first by
rates that were left out, until the rates at its ends have lost a fifth of the best progress. No rate beyond those is in
the fit of the best one (``nfd.questions.optimum``): so short trainings decide what is trained first, not what is best,
and the best rate is that of the whole grid, but for samples of the seeds in which a rate that was left out is better.

Source: Jamieson & Talwalkar 2016, "Non-stochastic best arm identification" (successive halving).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nfd.questions.optimum import Scores

P = TypeVar("P")
ShortLosses = Callable[[Mapping[P, Sequence[float]], float], Mapping[P, Sequence[float]]]

_FIRST = 1 / 8  # share of the steps after which the first half of the rates is left out
_FEWEST = 4  # rates that are not halved


def halved(rates: Mapping[P, Sequence[float]], short_losses: ShortLosses[P]) -> dict[P, list[float]]:
    """The rates to begin with at every place.

    Args:
        rates: by place, ascending. short_losses: from rates by place and a share of the steps to a loss at each rate.
    """
    left, share = {place: list(grid) for place, grid in rates.items()}, _FIRST
    while share < 1 and (many := {place: grid for place, grid in left.items() if len(grid) > _FEWEST}):
        for place, losses in short_losses(many, share).items():
            left[place] = _better_half(left[place], losses)
        share *= 2
    return left


def wider(rates: Sequence[float], whole: Sequence[float], cell: Scores) -> list[float]:
    """The rates to train next beside those of a cell; the same where its best rate needs no more.

    Args:
        rates: of the cell, ascending. whole: the grid that was asked for, of which some may be left out.
    """
    below, above = [r for r in whole if r < rates[0]], [r for r in whole if r > rates[-1]]
    if not cell.learns and (below or above):
        return sorted({*rates, *whole})
    low, high = cell.near_ends
    nearest = [*(below[-1:] if low else []), *(above[:1] if high else [])]
    if nearest:
        return sorted([*rates, *nearest])
    return _extended(rates, whole, cell.edge) if cell.edge else list(rates)


def _better_half(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Half of the rates in a row, no fewer than are not halved: the best one, and the better ones beside it."""
    keep = max(_FEWEST, (len(rates) + 1) // 2)
    first = last = min(range(len(rates)), key=lambda k: losses[k])
    while last - first + 1 < keep:
        down = last == len(rates) - 1 or (first > 0 and losses[first - 1] < losses[last + 1])
        first, last = (first - 1, last) if down else (first, last + 1)
    return list(rates[first : last + 1])


def _extended(rates: Sequence[float], whole: Sequence[float], edge: int) -> list[float]:
    """Two more rates beyond the end where the best one lies, by the mean factor of the grid that was asked for."""
    factor = (whole[-1] / whole[0]) ** (1 / (len(whole) - 1))
    more = [rates[0 if edge < 0 else -1] * factor ** (edge * k) for k in (1, 2)]
    return sorted([*rates, *(float(f"{rate:.4g}") for rate in more)])
