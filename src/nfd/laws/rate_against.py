"""The best rate against a setting other than width and depth, under one rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import Row, rows_as_text
from nfd.laws.best_rate import Scores, Size, fitted_exponent, in_words, rate_in_words


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size. Print it for the table.

    Attributes:
        rule, setting: their names. cells: scores by size and value of the setting, both ascending.
    """

    rule: str
    setting: str
    cells: Mapping[tuple[Size, float], Scores]

    @property
    def values(self) -> list[float]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(value for _, value in self.cells))

    @property
    def sizes(self) -> list[Size]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    @cached_property
    def exponent(self) -> Interval:
        """p of ``best rate ~ value^p`` over all sizes; not-a-number where fewer than two values above 0 can tell it."""
        known = {place: cell for place, cell in self.cells.items() if cell.has_optimum and place[1] > 0}
        if len({value for _, value in known}) < 2:
            return UNKNOWN
        logs = [[math.log2(value), math.log2(n), math.log2(L)] for (n, L), value in known]
        return fitted_exponent(list(known.values()), logs, 0)

    @property
    def table(self) -> list[Row]:
        """A row per quantity: best rates and losses by size and value, and the exponent."""
        rows = list[Row]()
        for ((n, L), value), cell in self.cells.items():
            about = {"rule": self.rule, "width": n, "depth": L, self.setting: value}
            rows.append(about | {"quantity": "best lr"} | cell.rate().limits)
            rows.append(about | {"quantity": "loss"} | mean(cell.scores[:, int(cell.typical.argmin())]).limits)
        nowhere = {"rule": self.rule, "width": None, "depth": None, self.setting: None}
        return [*rows, nowhere | {"quantity": f"exponent of {self.setting}"} | self.exponent.limits]

    @property
    def sentence(self) -> str:
        """How the best rate follows the setting, and where the loss is lowest."""
        name, values = self.setting, self.values
        said = f"{self.rule}: the best lr follows {name}^{self.exponent}."
        if name not in ("batch_size", "steps"):  # other steps or batches are other trainings
            for size in self.sizes:
                value = min(values, key=lambda value: float(self.cells[size, value].typical.min()))
                rate = rate_in_words(self.cells[size, value].rate())
                said += f" At {in_words(size)} the loss is lowest at {name} {value:g} and lr {rate}."
        unknown = [f"{name} {v:g} and {in_words(at)}" for (at, v), cell in self.cells.items() if not cell.has_optimum]
        if unknown:
            said += f" The best rate is not known at {'; '.join(unknown)}: give other rates."
        return said

    def __str__(self) -> str:
        return f"{self.sentence}\n{rows_as_text(self.table)}"
