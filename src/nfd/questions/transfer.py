"""The answer of a transfer sweep: all rules, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from nfd.core.errors import InputError, check_choice
from nfd.core.intervals import UNKNOWN, Interval
from nfd.core.names import AXES, Axis
from nfd.core.tables import rows_as_text
from nfd.questions.levels import of_initial_scale, of_level
from nfd.questions.optimum import rate_of
from nfd.questions.recommendation import recommended
from nfd.questions.rule_transfer import RuleTransfer, TransferVerdict, in_words, rate_in_words


@dataclass(frozen=True)
class Transfer:
    """The result of ``nfd.transfer`` and ``nfd.fit_transfer``. Print it to see the table.

    Best rates, their drift with size, and the regret of tuning on a small network.

    Attributes:
        rules: the answer for each rule. about: a description of the runs. score: the loss that best rates minimise.
        notes: which runs were left out, and why; why small networks were trained one after another.
        initial_scale: standard deviation of the initial inner matrices of the smallest network over fan_in^-1/2;
            not-a-number if it is not known.

    Example::

        rows = [
            {"width": n, "lr": 2.0**k, "seed": seed, "loss": 2 + 0.1 * (k + 9 + seed / 9) ** 2}
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-12, -6)
        ]
        answer = nfd.fit_transfer(rows)
        best = answer.best("logged", 128, 1)
        best.value, best.low, best.high  # the best rate and its 95 % interval
        answer.drift("logged", "width").resolved  # whether it moves significantly with width
    """

    rules: tuple[RuleTransfer, ...]
    about: str
    score: str
    notes: tuple[str, ...] = ()
    initial_scale: float = math.nan

    def __iter__(self) -> Iterator[RuleTransfer]:
        return iter(self.rules)

    def of(self, rule: str) -> RuleTransfer:
        """The answer for one rule."""
        named = {transfer.rule: transfer for transfer in self.rules}
        return named[check_choice("rule", rule, named)]

    def best(self, rule: str, width: int, depth: int, **setting: float) -> Interval:
        """The best rate at a size; not-a-number where it lies at an end of the grid.

        Args:
            setting: a value of one further axis, such as ``batch_size=32``.

        Raises:
            ValueError: for a rule, a size or a value of which there are no runs.
        """
        transfer = self._trained(rule, width, depth)
        if not setting:
            return rate_of(transfer.optimum((width, depth)))
        if not transfer.against:
            raise InputError(f"nothing but width and depth varied; got {', '.join(setting)}. Measure it with axes=.")
        if len(setting) > 1:
            raise InputError(f"settings vary one at a time; got {', '.join(setting)}. Ask for one of them.")
        ((name, value),) = setting.items()
        return transfer.against[check_choice("setting", name, transfer.against)].best((width, depth), value)

    def loss(self, rule: str, width: int, depth: int) -> Interval:
        """The loss at the best rate of a size.

        For the smallest and the largest size it is that of starts which chose no rate, for others that of the grid,
        each seed at the rate that the others choose.

        Raises:
            ValueError: for a rule or a size of which there are no runs.
        """
        return self._trained(rule, width, depth).loss((width, depth))

    def drift(self, rule: str, axis: str) -> Interval:
        """Doublings of the best rate per doubling of an axis, with a 95 % interval: 0 if the rate transfers.

        Args:
            rule: one of the rules that were trained; ``"logged"`` for logs without a rule.
            axis: ``"width"``, ``"depth"`` or a further axis, such as ``"batch_size"``. If it did not vary, the result
                is not-a-number.
        """
        transfer = self.of(rule)
        if check_choice("axis", axis, [*AXES, *transfer.against]) in transfer.against:
            return transfer.against[axis].exponent
        return transfer.drifts.get(cast(Axis, axis), UNKNOWN)

    def regret(self, rule: str) -> Interval:
        """The loss that the largest network loses at the smallest one's best rate, in nats; not-a-number if unknown."""
        regret = self.of(rule).regret
        return UNKNOWN if regret is None else regret.loss

    def verdict(self, rule: str) -> TransferVerdict:
        """Whether the best rate of the smallest network serves the largest: an enum; ``str`` gives the word."""
        return self.of(rule).verdict

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per rule and quantity (best rates, drifts, regret), followed by those of further axes."""
        sizes = [row for transfer in self.rules for row in transfer.table]
        return [*sizes, *(row for t in self.rules for against in t.against.values() for row in against.table)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a small regret does not show: another rule whose loss is lower, a larger network that is no better than
        the smallest, initial weights far from fan-in scaling. Empty if there is nothing of the kind."""
        advised = recommended(self.rules).rule if self._is_trained else None
        measured = any("init_scale" in answer.against for answer in self.rules)
        of_levels = [] if advised is None else of_level(self.rules, advised)
        return (*of_levels, *([] if measured else of_initial_scale(self.initial_scale)))

    @property
    def along_settings(self) -> list[str]:
        """One sentence per rule and further axis: how the best rate depends on it."""
        return [against.sentence for answer in self.rules for against in answer.against.values()]

    def __str__(self) -> str:
        against = [str(against) for answer in self.rules for against in answer.against.values()]
        warnings = [f"Warning: {warning}" for warning in self.warnings]
        advice = [str(recommended(self.rules))] if self._is_trained else []
        return "\n".join([self.levels, *map(str, self.rules), *against, *self.notes, *warnings, *advice])

    @property
    def levels(self) -> str:
        """The best rates and losses of all rules at all sizes, as text."""
        sizes = dict.fromkeys(size for answer in self.rules for size in answer.cells)
        return rows_as_text(
            [
                {"width": n, "depth": L, "rule": answer.rule, f"best {answer.rate}": rate_in_words(rate), "loss": loss}
                for n, L in sizes
                for answer in self.rules
                if (n, L) in answer.cells
                for rate, loss in [(rate_of(answer.optimum((n, L))), answer.loss((n, L)).unsigned)]
            ]
        )

    @property
    def _is_trained(self) -> bool:
        """Whether every rule has a regret, so that there is something to advise."""
        return all(answer.regret for answer in self.rules)

    def _trained(self, rule: str, width: int, depth: int) -> RuleTransfer:
        """The answer for a rule, of which there are runs of this size."""
        transfer = self.of(rule)
        if (width, depth) not in transfer.cells:
            sizes = "; ".join(map(in_words, transfer.cells))
            raise InputError(f"there are no runs of {in_words((width, depth))}. There are some of {sizes}.")
        return transfer
