"""Which networks a check trains: more of them only while a quantity that matters is undecided.

A check looks at the smallest and the largest sizes from two seeds, then from three, then at all
sizes. It ends at the first look that decides. Every look may be wrong, so that early looks have
98 % intervals: one of the three or more contradicts the truth in 4 to 6 % of simulated checks, one
look at all networks in 3 to 5 %, three looks at 95 % in 5 to 10 % (docs/verdicts.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from nfd.core.estimates import LEVEL
from nfd.core.names import SEEDS
from nfd.core.tables import Row
from nfd.meters.meter import INDEPENDENT_EXPONENT
from nfd.meters.verdict import is_fault, matters

# Probability beyond one end at an early look
_EARLY = 0.01
# The exponent of the nearest mistake below that of independent parts
_NO_LIMIT = 2 * INDEPENDENT_EXPONENT


@dataclass(frozen=True)
class Asked:
    """What a call asks for: the sizes that may be trained, and seeds; None to let it decide."""

    sizes: Mapping[str, list[int]]
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

    sizes: Mapping[str, list[int]]
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
    return [*looks, Design(sizes, SEEDS)]


def undecided(table: Sequence[Row]) -> int:
    """Count the rows that may still hide a fault; none where a fault shows.

    A long interval favours ``LIMIT``: where it reaches a mistake, shorter ones may say otherwise.
    """
    if any(map(is_fault, table)):
        return 0
    count = 0
    for row in table:
        is_loose_limit = row["verdict"] == "LIMIT" and row["low"] < _NO_LIMIT
        count += is_loose_limit or matters(row)
    return count
