"""How many directions the updates of structured matrices need: what networks reached, and what wider ones will.

Ranks grow with the width, ever more slowly (docs/mathematics/structured.md). So the power between the two widest that
were trained, between 0 and 1, is an upper one for wider networks; after one width it is taken to be 1:

    r(n) = margin r(n_2) (n / n_2)^p,    p = log(r(n_2) / r(n_1)) / log(n_2 / n_1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MARGIN = 1.25  # by which seeds, and the steps that a power is not, may differ


@dataclass(frozen=True)
class Ranks:
    """Directions of the updates of a network: the mean over its matrices, weighted by their longer sides, and the most.

    The vectors of all updates are as many numbers as if every matrix had the mean.
    """

    mean: float
    most: float

    def joined(self, other: Ranks) -> Ranks:
        """The larger of both."""
        return Ranks(max(self.mean, other.mean), max(self.most, other.most))


def foreseen(reached: Mapping[int, Ranks], width: int) -> Ranks | None:
    """The ranks at a width from those that networks of this width or narrower ones reached; None without any."""
    widths = sorted(n for n in reached if n <= width)
    if not widths:
        return None
    last, before = widths[-1], widths[-2] if len(widths) > 1 else None
    values = []
    for part in ("mean", "most"):
        r = getattr(reached[last], part)
        power = 1.0 if before is None else _power(getattr(reached[before], part), r, last / before)
        values.append(MARGIN * r * (width / last) ** power)
    return Ranks(*values)


def _power(small: float, large: float, ratio: float) -> float:
    """p of ``large / small = ratio^p``, between 0 and 1."""
    return min(1.0, max(0.0, math.log(large / small) / math.log(ratio))) if small > 0 and large > 0 else 1.0
