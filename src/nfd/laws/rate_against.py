"""The best rate against a setting other than width and depth, under one rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import Row, rows_as_text
from nfd.core.words import number
from nfd.laws.best_rate import Scores, Size, fitted_exponent, in_words
from nfd.laws.rule_transfer import TOLERANCE, TransferVerdict, rule_in_words

if TYPE_CHECKING:
    from nfd.laws.sequential import Decision

_VERBS: dict[TransferVerdict, str] = {
    "TRANSFERS": "transfers",
    "COSTS": "costs too much",
    "UNCERTAIN": "may transfer",
}


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size.

    Print it for the table.

    Attributes:
        rule, setting: their names.
        cells: scores by size and value of the setting, both ascending.
        largest: the size at which a search compared the values, each at its best rate of the
            smallest size; None for a grid.
        decision: how that search ended, with the index of a value in place of a rate; None for a
            grid, or where there was nothing to compare.
    """

    rule: str
    setting: str
    cells: Mapping[tuple[Size, float], Scores]
    largest: Size | None = None
    decision: Decision | None = None

    @property
    def values(self) -> list[float]:
        """The values of the setting, ascending."""
        return list(dict.fromkeys(value for _, value in self.cells))

    @property
    def sizes(self) -> list[Size]:
        """The sizes of networks, ascending."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    @property
    def verdict(self) -> TransferVerdict:
        """Whether the smallest network's best value serves the largest one."""
        return "UNCERTAIN" if self.decision is None else self.decision.verdict

    @property
    def regret(self) -> Interval:
        """The share of the progress that the largest network loses at the smallest's best value."""
        if self.decision is None or self.decision.regret is None:
            return UNKNOWN
        return self.decision.regret.share

    @property
    def best_value(self) -> float:
        """The value at which the loss of the smallest network is lowest."""
        return self.lowest_at(self.sizes[0])

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
        if self.decision is not None and self.largest is not None:
            width, depth = self.largest
            place = {"rule": self.rule, "width": width, "depth": depth}
            at_best = place | {self.setting: self.best_value}
            rows.append(at_best | {"quantity": "regret over progress"} | self.regret.limits)
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
        if self.setting not in ("batch_size", "steps") or self.decision is not None:
            sentences += [self._lowest(size) for size in self.sizes]
        if self.decision is not None:
            sentences.append(self.transferred)
        unknown = list[str]()
        for (size, value), cell in self.cells.items():
            if not cell.has_optimum:
                unknown.append(f"{self.setting} {value:g} and {in_words(size)}")
        if unknown:
            sentences.append(
                f"The best rate is not known at {'; '.join(unknown)}: give other rates."
            )
        return " ".join(sentences)

    @property
    def transferred(self) -> str:
        """What a search found of the smallest network's best value at the largest size."""
        if self.decision is None or self.largest is None:
            return ""
        best = f"The smallest network's best {self.setting}, {self.best_value:g}, "
        if math.isnan(self.regret.value):
            return f"{best}could not be compared: {self.decision.reason}."
        share = self.regret.scaled(100).in_words(" %", 100 * TOLERANCE)
        reason = f"; not decided, as {self.decision.reason}" if self.decision.reason else ""
        if self.decision.seeds_needed is not None:
            reason += f"; about {number(self.decision.seeds_needed)} seeds may tell"
        return (
            f"{best}{_VERBS[self.verdict]}: at {in_words(self.largest)} it gives up {share} of the "
            f"loss reduction{reason}."
        )

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
