"""Which networks a check trains: more of them only while a quantity that matters is undecided.

A check looks at the smallest and the largest sizes from two seeds, then from three, then at all
sizes. It ends at the first look that decides. An interval may be wrong at every look, so that each
has longer ones: 98 % early and 97 % at the last. All looks of normal noise then contain the truth
in 94 to 97 % (one or two axes of two to four sizes, noise that is equal at all sizes or up to four
times as large at the largest); with 95 % at each it would be 88 to 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from nfd.core.estimates import LEVEL
from nfd.core.names import SEEDS, Axis
from nfd.core.tables import Row
from nfd.meters.verdict import is_fault, matters

# Probabilities beyond one end
_EARLY = 0.01
_LAST = 0.015


@dataclass(frozen=True)
class Asked:
    """What a call asks for: the sizes that may be trained, and seeds; None to let it decide."""

    sizes: Mapping[Axis, list[int]]
    seeds: int | None

    @property
    def most(self) -> int:
        """The largest number of networks that may be trained."""
        return len(Design(self.sizes, self.seeds or SEEDS).networks)


@dataclass(frozen=True)
class Design:
    """The networks of one look: every width with every depth, from so many seeds.

    ``level`` is the probability beyond one end of the intervals of this look.
    """

    sizes: Mapping[Axis, list[int]]
    seeds: int
    level: float = LEVEL

    @property
    def networks(self) -> list[tuple[int, int, int]]:
        """Width, depth and seed of every network."""
        return list(product(self.sizes["width"], self.sizes["depth"], range(self.seeds)))


def designs_of(asked: Asked) -> list[Design]:
    """List the looks of a check: one where the seeds are given, else few networks first."""
    sizes = asked.sizes
    if asked.seeds is not None:
        return [Design(sizes, asked.seeds)]
    ends = {axis: sorted({along[0], along[-1]}) for axis, along in sizes.items()}
    looks = [Design(ends, 2, _EARLY)]
    if ends != sizes:
        looks.append(Design(ends, SEEDS, _EARLY))
    return [*looks, Design(sizes, SEEDS, _LAST)]


def undecided(table: Sequence[Row]) -> int:
    """Count the rows that may still hide a fault; none where a fault shows."""
    if any(map(is_fault, table)):
        return 0
    return sum(map(matters, table))
