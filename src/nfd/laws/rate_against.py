"""The best rate against a setting other than width and depth, under one rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import Row, rows_as_text
from nfd.laws.best_rate import Scores, Size, fitted_exponent, in_words
from nfd.laws.rule_transfer import rule_in_words


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size.

    Print it for the table.

    Attributes:
        rule, setting: their names.
        cells: scores by size and value of the setting, both ascending.
    """

    rule: str
    setting: str
    cells: Mapping[tuple[Size, float], Scores]

    @property
    def values(self) -> list[float]:
        """The values of the setting, ascending."""
        return list(dict.fromkeys(value for _, value in self.cells))

    @property
    def sizes(self) -> list[Size]:
        """The sizes of networks, ascending."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    @cached_property
    def exponent(self) -> Interval:
        """The exponent p of ``best rate ~ value^p`` over all sizes.

        Not-a-number where best rates are known at fewer than two values above 0.
        """
        cells = list[Scores]()
        logs = list[list[float]]()
        values = set[float]()
        for ((width, depth), value), cell in self.cells.items():
            if cell.has_optimum and value > 0:
                cells.append(cell)
                logs.append([math.log2(value), math.log2(width), math.log2(depth)])
                values.add(value)
        return fitted_exponent(cells, logs, 0) if len(values) > 1 else UNKNOWN

    @property
    def table(self) -> list[Row]:
        """A row per quantity: best rates and losses by size and value, and the exponent."""
        rows = list[Row]()
        for ((width, depth), value), cell in self.cells.items():
            place = {"rule": self.rule, "width": width, "depth": depth, self.setting: value}
            losses = mean(cell.scores[:, int(cell.typical.argmin())])
            rows.append(place | {"quantity": "best lr"} | cell.rate().limits)
            rows.append(place | {"quantity": "loss"} | losses.limits)
        nowhere = {"rule": self.rule, "width": None, "depth": None, self.setting: None}
        return [*rows, nowhere | {"quantity": f"exponent of {self.setting}"} | self.exponent.limits]

    @property
    def sentence(self) -> str:
        """How the best rate follows the setting, and where the loss is lowest."""
        name, _ = rule_in_words(self.rule)
        factor = self.exponent.scaled(math.log(2)).exp()
        sentences = [
            f"{name[0].upper()}{name[1:]}: when {self.setting} doubles, the best rate is "
            f"multiplied by {factor.in_words()}."
        ]
        # Losses of other steps or batches are losses of other trainings.
        if self.setting not in ("batch_size", "steps"):
            sentences += [self._lowest(size) for size in self.sizes]
        unknown = list[str]()
        for (size, value), cell in self.cells.items():
            if not cell.has_optimum:
                unknown.append(f"{self.setting} {value:g} and {in_words(size)}")
        if unknown:
            sentences.append(
                f"The best rate is not known at {'; '.join(unknown)}: give other rates."
            )
        return " ".join(sentences)

    def lowest_at(self, size: Size) -> float:
        """The value of the setting at which the loss of a size is lowest."""
        return min(self.values, key=lambda value: float(self.cells[size, value].typical.min()))

    def _lowest(self, size: Size) -> str:
        """Say at which value of the setting the loss of a size is lowest."""
        value = self.lowest_at(size)
        rate = self.cells[size, value].rate().in_words()
        return (
            f"At {in_words(size)} the loss is lowest at {self.setting} {value:g} and learning rate "
            f"{rate}."
        )

    def __str__(self) -> str:
        return f"{self.sentence}\n{rows_as_text(self.table)}"
