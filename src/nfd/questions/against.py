"""``RateAgainst``: the best learning rate against a setting other than width and depth, under one rule.

At every size and every value of the setting the best rate is known from a grid of rates. ``best rate ~ value^p`` is
fitted to all of them together, with exponents of width and depth beside ``p``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import rows_as_text
from nfd.questions.assumed import Assumed
from nfd.questions.optimum import Scores, Size, chosen, fitted_exponent, in_words, rate_in_words, rate_of, signed

Agreement = Literal["AGREES", "DIFFERS", "UNDECIDED"]

_IN_WORDS: dict[Agreement, str] = {
    "AGREES": "these runs agree",
    "DIFFERS": "these runs differ from it",
    "UNDECIDED": "these runs leave it open",
}


class Variation(NamedTuple):
    """A value of one setting, in place of that of the call."""

    setting: str
    value: float


@dataclass(frozen=True)
class SettingAxis:
    """A setting that varies beside the rate.

    Attributes:
        name: of the setting. values: ascending. assumed: what is usually assumed along it, if anything is.
    """

    name: str
    values: tuple[float, ...]
    assumed: Assumed | None = None

    @property
    def variations(self) -> list[Variation]:
        """Its values, each with its name."""
        return [Variation(self.name, value) for value in self.values]

    @property
    def has_exponent(self) -> bool:
        """Whether the best rate may follow a power of it; warm-up is a share, whose usual value is 0."""
        return self.name != "warmup"

    @property
    def has_optimum(self) -> bool:
        """Whether losses at different values can be compared: other steps or batches are other trainings."""
        return self.name not in ("batch_size", "steps")


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size. Print it for the table.

    Attributes:
        rule, axis: the rule, and the setting.
        cells: scores by size and value of the setting. rate: the name of the learning rate.
    """

    rule: str
    axis: SettingAxis
    cells: Mapping[tuple[Size, float], Scores]
    rate: str = "lr"

    @cached_property
    def inside(self) -> dict[tuple[Size, float], Scores]:
        """The places whose best rate lies inside of its grid: it is fitted there alone."""
        return {place: cell for place, cell in self.cells.items() if cell.has_optimum}

    @property
    def sizes(self) -> list[Size]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    def optimum(self, size: Size, value: float) -> Interval:
        """log2 of the best rate; not-a-number where it lies at an end of its grid, or nothing is learnt."""
        return self.inside[size, value].optimum() if (size, value) in self.inside else UNKNOWN

    def best(self, size: Size, value: float) -> Interval:
        """The best rate; not-a-number as above. ValueError for a value of which there are no runs."""
        if value not in self.axis.values:
            known = ", ".join(f"{x:g}" for x in self.axis.values)
            raise InputError(f"there are no runs of {self.axis.name} {value:g}. There are some of {known}.")
        return rate_of(self.optimum(size, value))

    @cached_property
    def exponent(self) -> Interval:
        """p of ``best rate ~ value^p`` over all sizes; not-a-number where fewer than two values above 0 can tell it."""
        return self._fitted(0)

    @cached_property
    def bend(self) -> Interval:
        """How much the exponent grows per doubling of the value, times one half: 0 where a power law holds."""
        return self._fitted(3, bent=True)

    @cached_property
    def moved(self) -> Interval:
        """Doublings of the best rate from the first value to the last, over the sizes at which both are known."""
        return self.doublings(self.axis.values[0], self.axis.values[-1])

    def doublings(self, first: float, last: float) -> Interval:
        """Doublings of the best rate from one value to another, over the sizes at which both are known."""
        sizes = [size for size in self.sizes if {(size, first), (size, last)} <= self.inside.keys()]
        if not sizes or first == last:
            return UNKNOWN
        ends = [(self.inside[size, value], sign) for size in sizes for value, sign in ((first, -1.0), (last, 1.0))]
        weights = np.array([sign / len(sizes) for _, sign in ends])
        return chosen([cell for cell, _ in ends], weights)

    @property
    def agreement(self) -> Agreement | None:
        """Whether the exponent is the assumed one; None where nothing is assumed or the exponent is not known.

        It agrees when the 95 % interval holds the assumed exponent and ends before none and before twice of it, and
        differs when the interval leaves it out, or the best rate follows no power.
        """
        if self.axis.assumed is None or math.isnan(self.exponent.low):
            return None
        assumed, p = self.axis.assumed.exponent, self.exponent
        if self.bend.resolved or not p.low <= assumed <= p.high:
            return "DIFFERS"
        return "AGREES" if max(p.high - assumed, assumed - p.low) < abs(assumed) else "UNDECIDED"

    def lowest(self, size: Size) -> float | None:
        """The value at which the loss is lowest, each at its best rate; None where nothing is learnt."""
        losses = {value: float(self.cells[size, value].typical.min()) for value in self.axis.values}
        learning = {value: loss for value, loss in losses.items() if self.cells[size, value].learns}
        return min(learning, key=lambda value: learning[value], default=None)

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per quantity: best rates and losses by size and value, with decay their product, and the exponent."""
        rows = list[dict[str, Any]]()
        for (n, L), value in self.cells:
            about = {"rule": self.rule, "width": n, "depth": L, self.axis.name: value}
            best, cell = rate_of(self.optimum((n, L), value)), self.cells[(n, L), value]
            rows.append(about | {"quantity": f"best {self.rate}"} | best.limits)
            rows.append(about | {"quantity": "loss"} | mean(cell.scores[:, int(cell.typical.argmin())]).limits)
            if self.axis.name == "weight_decay" and value:
                rows.append(about | {"quantity": f"best {self.rate} x decay"} | best.scaled(value).limits)
        last = {"rule": self.rule, "width": None, "depth": None, self.axis.name: None}
        if self.axis.has_exponent:
            return [*rows, last | {"quantity": f"exponent of {self.axis.name}"} | self.exponent.limits]
        return [*rows, last | {"quantity": "doublings from first to last"} | self.moved.limits]

    @property
    def sentence(self) -> str:
        """How the best rate follows the setting beside what is assumed, and where the loss is lowest."""
        parts = [self._followed()]
        if self.axis.has_optimum:
            parts += [self._optimum(size) for size in self.sizes]
        unknown = self.cells.keys() - self.inside.keys()
        if unknown:
            places = sorted(f"{self.axis.name} {value:g} and {in_words(size)}" for size, value in unknown)
            parts.append(f"The best rate is not known at {'; '.join(places)}, so it was left out: give other rates.")
        return f"{self.rule}: {' '.join(parts)}"

    def __str__(self) -> str:
        return f"{self.sentence}\n{rows_as_text(self.table)}"

    def _fitted(self, k: int, *, bent: bool = False) -> Interval:
        """The k-th coefficient of a fit in the logarithms of value, width and depth, where ``bent`` with the square of
        the first; not-a-number where it varies only with the others."""
        known = {place: cell for place, cell in self.inside.items() if place[1] > 0}
        logs = [[math.log2(value), math.log2(n), math.log2(L)] for (n, L), value in known]
        if bent:
            middle = sum(x for x, *_ in logs) / max(len(logs), 1)
            logs = [[*place, (place[0] - middle) ** 2] for place in logs]
        if not self.axis.has_exponent or not _varies_alone(logs, k):
            return UNKNOWN
        return fitted_exponent(list(known.values()), logs, k)

    def _followed(self) -> str:
        name, values = self.axis.name, [value for value in self.axis.values if value > 0 or not self.axis.has_exponent]
        reach = f"{values[0]:g} to {values[-1]:g}" if values else "0"
        if not self.axis.has_exponent:
            return f"from {name} {reach} the best {self.rate} moves by {signed(self.moved)} doublings."
        if math.isnan(self.exponent.value):
            return f"how the best {self.rate} follows {name} is not known from these values."
        sentence = f"the best {self.rate} follows {name}^{signed(self.exponent)} over {reach}"
        if self.bend.resolved:
            ends = [
                f"{signed(self._local(*pair))} from {pair[0]:g} to {pair[1]:g}" for pair in (values[:2], values[-2:])
            ]
            sentence += f", but no power of it: the exponent is {' and '.join(ends)}"
        if self.axis.assumed is None:
            return f"{sentence}; nothing is usually assumed."
        agreement = "" if self.agreement is None else f"; {_IN_WORDS[self.agreement]}"
        return f"{sentence}; usually assumed: {name}{self.axis.assumed}{agreement}."

    def _local(self, first: float, last: float) -> Interval:
        """The exponent between two values."""
        return self.doublings(first, last).scaled(1 / math.log2(last / first))

    def _optimum(self, size: Size) -> str:
        """Where the loss is lowest at one size, and whether that is an end of the values."""
        name, value = self.axis.name, self.lowest(size)
        if value is None:
            return f"At {in_words(size)} nothing is learnt."
        best = rate_of(self.optimum(size, value))
        rate = f"{self.rate} {rate_in_words(best)}"
        product = f", a product of {rate_in_words(best.scaled(value))}" if name == "weight_decay" and value else ""
        if value == self.axis.values[-1]:
            end = f", the largest {name} that was tried: the optimum may lie beyond"
        elif value == self.axis.values[0] and value > 0:
            end = f", the smallest {name} that was tried: the optimum may lie below"
        else:
            end = ""
        return f"At {in_words(size)} the loss is lowest at {name} {value:g} and {rate}{product}{end}."


def _varies_alone(logs: Sequence[Sequence[float]], k: int) -> bool:
    """Whether the k-th of some variables varies otherwise than with the others."""
    if len(logs) < 2:
        return False
    rows = np.array([[1.0, *place] for place in logs])
    others = rows[:, [column for column in range(rows.shape[1]) if column != k + 1]]
    return bool(np.linalg.matrix_rank(rows) > np.linalg.matrix_rank(others))
