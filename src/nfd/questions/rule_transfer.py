"""Transfer: whether the best learning rate of a small network is that of a large one, and what it costs if not.

For each rule the best rate is known at every width and depth, from a sweep (``nfd.questions.transfer_sweep``) or a log
(``nfd.questions.transfer_logs``). Its *drift* is the exponent of ``best rate ~ L**p n**q``, in doublings per doubling.
Its *regret* is what the largest network loses when it is trained at the smallest one's best rate, as it was found,
instead of its own (``nfd.questions.regret``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from nfd.core.intervals import UNKNOWN, Interval, mean
from nfd.core.names import AXES, Axis
from nfd.questions.optimum import Array, Scores, fitted_exponent, rate_of
from nfd.questions.regret import Regret

if TYPE_CHECKING:
    from nfd.questions.against import RateAgainst

TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

TOLERANCE = 0.1  # of the largest network's progress: a regret below is none, above is one
FEWEST_SEEDS = 3  # for a verdict
GUESS = "guess= (in the shell --guess), the loss of a network that knows nothing, such as log C of C classes"

Size = tuple[int, int]


_END = {-1: "lower rates may be better", 1: "higher rates may be better"}


@dataclass(frozen=True)
class Doubt:
    """Sizes whose best rate is not known; false where it is at all.

    Attributes:
        unlearnt: sizes at which nothing is learnt. ends: -1 or 1 for sizes where lower or higher rates may be better.
    """

    unlearnt: tuple[Size, ...]
    ends: Mapping[Size, int]

    def __bool__(self) -> bool:
        return bool(self.unlearnt or self.ends)

    def __str__(self) -> str:
        if self.unlearnt:
            return f"nothing is learnt at {', '.join(map(in_words, self.unlearnt))}: take more steps or other rates"
        ends = [f"{in_words(size)} ({_END[end]})" for size, end in self.ends.items()]
        return f"the best rate lies at an end of its grid at {', '.join(ends)}: give other rates" if ends else ""


@dataclass(frozen=True)
class RuleTransfer:
    """The scores of one rule by (width, depth), and the regret between the smallest and the largest.

    Attributes:
        regret: None where no new networks were trained at both rates, as in most logs, or there is one size.
        rate: what the learning rate is called.
        against: the best rate against further settings, by their names.
        new: scores at the best rate of a size from starts that chose no rate, where there are any.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    rate: str = "eta_c"
    against: Mapping[str, RateAgainst] = field(default_factory=dict)
    new: Mapping[Size, Array] = field(default_factory=dict)

    @cached_property
    def inside(self) -> dict[Size, Scores]:
        """The sizes whose best rate lies inside of its grid: it is fitted there alone."""
        return {size: cell for size, cell in self.cells.items() if cell.has_optimum}

    def optimum(self, size: Size) -> Interval:
        """log2 of the best rate; not-a-number where it lies at an end of the grid, or nothing is learnt."""
        return self.inside[size].optimum() if size in self.inside else UNKNOWN

    def reached(self, size: Size) -> Array:
        """Scores ``[S]`` at the best rate of a size: of new starts, else of the grid at the rate of the other seeds."""
        return self.new.get(size, self.cells[size].reached)

    def loss(self, size: Size) -> Interval:
        """The loss at the best rate of a size."""
        return mean(self.reached(size))

    def drift(self, axis: Axis) -> Interval | None:
        """Doublings of the best rate per doubling of width or depth, the other held; None where it does not vary."""
        return drift(self.inside, axis)

    @cached_property
    def drifts(self) -> dict[Axis, Interval]:
        """The drift along every axis that varies."""
        return {axis: moved for axis in reversed(AXES) if (moved := self.drift(axis)) is not None}

    def along(self, axis: Axis) -> dict[int, Size]:
        """The sizes along one axis, the other at its largest."""
        place = AXES.index(axis)
        largest = max(size[1 - place] for size in self.cells)
        return {size[place]: size for size in self.cells if size[1 - place] == largest}

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per quantity: best rates and losses by size, drifts, and the regret in nats and over the progress."""
        about: dict[str, Any] = {"rule": self.rule, "width": None, "depth": None}
        rates = [
            about | {"quantity": f"best {self.rate}", "width": n, "depth": L} | rate_of(self.optimum((n, L))).limits
            for n, L in self.cells
        ]
        rates += [
            about | {"quantity": "best loss", "width": n, "depth": L} | self.loss((n, L)).limits for n, L in self.cells
        ]
        others = {f"drift per doubling of {axis}": moved for axis, moved in self.drifts.items()}
        if self.regret is not None:
            others |= {"regret (nats)": self.regret.loss, "regret over progress": self.regret.share}
        return [*rates, *(about | {"quantity": name} | estimate.limits for name, estimate in others.items())]

    def __str__(self) -> str:
        moved = ", ".join(f"{signed(drift)} with {axis}" for axis, drift in self.drifts.items())
        parts = [f"drift {moved}, in doublings per doubling"] if moved else []
        if self.regret is None:
            return f"{self.rule}: {self.doubt or '; '.join(parts) or 'one size'}."
        share = self.regret.share
        cost = f"The smallest network's best {self.rate} costs the largest {self.regret.loss} nats"
        if math.isfinite(share.value):
            value, low, high = (f"{100 * part:.1f}" for part in (share.value, share.low, share.high))
            cost += f", {value} % [{low}, {high}] of its progress"
        lacking = self.doubt or self.lacks
        return f"{self.rule}: {self.verdict}{f', as {lacking}' if lacking else ''}. {'; '.join([cost, *parts])}."

    @property
    def doubt(self) -> Doubt:
        """Why best rates cannot be compared; false when they can."""
        unlearnt = tuple(size for size, cell in self.cells.items() if not cell.learns)
        return Doubt(unlearnt, {size: cell.edge for size, cell in self.cells.items() if cell.edge})

    @property
    def lacks(self) -> str:
        """What a verdict on the regret needs and is not there, whatever the regret is; else empty."""
        if self.regret is None:
            return ""
        if not self.regret.counts_progress:
            return f"a verdict needs {GUESS}"
        if math.isnan(self.regret.share.value):
            return "a verdict needs two starts or more of the largest network that learn at its own best rate"
        return f"a verdict needs {FEWEST_SEEDS} seeds" if len(self.regret.grid.losses) < FEWEST_SEEDS else ""

    @property
    def verdict(self) -> TransferVerdict:
        """By the 95 % interval of the regret as a share of progress: below ``TOLERANCE``, above it, or neither.

        A negative regret is a gain, and no reason for doubt: the rate tuned at the small size costs nothing.
        """
        if self.doubt or self.regret is None or self.lacks:
            return "UNCERTAIN"
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


def drift(cells: Mapping[Size, Scores], axis: Axis) -> Interval | None:
    """Doublings of the best rate per doubling of one axis, over scores by (width, depth); None where it is one size.

    The exponent of least squares is a weighted sum of the best rates (``nfd.questions.optimum.fitted_exponent``).
    """
    k = AXES.index(axis)
    if len({size[k] for size in cells}) < 2:
        return None
    return fitted_exponent(list(cells.values()), [[math.log2(n), math.log2(L)] for n, L in cells], k)


def in_words(size: Size) -> str:
    """``width 8 and depth 4``."""
    return f"width {size[0]} and depth {size[1]}"


def rate_in_words(rate: Interval) -> str:
    """``0.003 [0.002, 0.004]``, as far as it is known."""
    if math.isnan(rate.value):
        return "unknown"
    return f"{rate.value:.2g}" if math.isnan(rate.low) else f"{rate.value:.2g} [{rate.low:.2g}, {rate.high:.2g}]"


def signed(number: Interval) -> str:
    """``+0.50 [+0.40, +0.60]``."""
    value, low, high = (round(v, 2) + 0.0 for v in (number.value, number.low, number.high))  # no -0.00
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
