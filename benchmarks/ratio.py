"""``Ratio``: a comparison with its repeats, which two machines, or two days, can share.

Each repeat is one pair of measurements taken one after the other, A/B, so that both meet the same
neighbours. The pairs of a ratio lie minutes apart, one per round over all parts, and what their
logarithms scatter is its error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch

from nfd.core.estimates import Interval, combined, student

_NAMES = ("ratios", "less_is_better", "value", "low", "high")


@dataclass(frozen=True)
class Ratio:
    """Repeats of one ratio; its value is their geometric mean.

    Attributes:
        ratios: one per round, positive.
        less_is_better: where a smaller one is the better one, as for times over times of the
            smaller size.

    Raises:
        ValueError: for no repeat, or one that is not positive.
    """

    ratios: tuple[float, ...]
    less_is_better: bool = False

    def __post_init__(self) -> None:
        if not self.ratios or not all(0 < each < math.inf for each in self.ratios):
            raise ValueError(
                f"a ratio needs repeats that are positive; got {self.ratios}. Time longer work."
            )

    @classmethod
    def of(cls, ratio: float, *, less_is_better: bool = False) -> Self:
        """The ratio of one round."""
        return cls((float(ratio),), less_is_better)

    @classmethod
    def joined(cls, rounds: Iterable[Ratio]) -> Self:
        """The repeats of several rounds."""
        first, *later = rounds
        repeats = first.ratios
        for one in later:
            repeats += one.ratios
        return cls(repeats, first.less_is_better)

    @property
    def logs(self) -> torch.Tensor:
        """Logarithms of the repeats."""
        return torch.tensor(self.ratios, dtype=torch.float64).log()

    @property
    def interval(self) -> Interval:
        """The value and its 95 % limits, by Student's t on the logarithms.

        Limits are not-a-number for a single repeat.
        """
        return student(float(self.logs.mean()), self.stderr, self.freedom).exp()

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the error."""
        return len(self.ratios) - 1

    @property
    def stderr(self) -> float:
        """Standard error of the mean logarithm; not-a-number for a single repeat."""
        if self.freedom == 0:
            return math.nan
        return float(self.logs.std() / math.sqrt(len(self.ratios)))

    def plain(self) -> dict[str, Any]:
        """As JSON holds it: the repeats, and what follows from them for those who read the file."""
        interval = self.interval
        return {
            "ratios": self.ratios,
            "less_is_better": self.less_is_better,
            "value": interval.value,
            "low": interval.low,
            "high": interval.high,
        }

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Self:
        """What ``plain`` made."""
        return cls(tuple(plain["ratios"]), plain["less_is_better"])


def is_plain(value: Any) -> bool:
    """Whether this is what ``Ratio.plain`` makes."""
    return isinstance(value, dict) and set(value) == set(_NAMES)


def improvement(old: Ratio, new: Ratio, level: float) -> Interval:
    """How many times better ``new`` is than ``old``.

    Limits are such that ``level`` of the intervals leave the truth on each side. It is Welch's
    interval of the difference of the mean logarithms; not-a-number where either has a
    single repeat.
    """
    sign = -1.0 if new.less_is_better else 1.0
    change = sign * float(new.logs.mean() - old.logs.mean())
    if not old.freedom or not new.freedom:
        return Interval(math.exp(change), math.nan, math.nan, math.nan)
    return combined(change, [(r.stderr**2, r.freedom) for r in (old, new)], level).exp()
