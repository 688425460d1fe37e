"""One number that was read of a network, and the series that such numbers make."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One number of a training.

    Attributes:
        step: how many steps the optimizer had taken.
        meter: its name; of one of several stacks of blocks with the name of the stack, as in
            ``"activation of decoder.layers"``.
        layer: the name of the module that it was read from; None for the whole network.
        depth: where that layer stands along the stream, in (0, 1]: the place of its block, counted
            from 1, over the number of blocks of its stack. The second stack, such as a decoder, has
            (1, 2]. None for layers outside of the blocks, and for the whole network.
        value: not-a-number where training diverged.
        kind: the name of the layer without the name of its block, shared by layers that correspond
            in several blocks; None for the whole network.
    """

    step: int
    meter: str
    layer: str | None
    depth: float | None
    value: float
    kind: str | None

    @property
    def series(self) -> Series:
        """What the row belongs to."""
        return Series(self.meter, self.kind, stack_at(self.depth))


class Series(NamedTuple):
    """A meter of layers of one kind.

    Attributes:
        kind: the kind of its rows; None for the whole network.
        stack: the stack of blocks of which every one has such a layer, counted from 0; None outside
            of blocks.
    """

    meter: str
    kind: str | None
    stack: int | None


def stack_at(depth: float | None) -> int | None:
    """Which stack of blocks, from 0, a layer at this depth stands in."""
    return None if depth is None else math.ceil(depth) - 1


def in_series(rows: Sequence[WatchRow]) -> dict[Series, list[WatchRow]]:
    """Sort rows into their series, in their order."""
    series = defaultdict[Series, list[WatchRow]](list)
    for row in rows:
        series[row.series].append(row)
    return dict(series)


def steps_of(rows: Sequence[WatchRow]) -> list[int]:
    """The steps of rows, in their order."""
    return list(dict.fromkeys(row.step for row in rows))


def at_steps(rows: Sequence[WatchRow], steps: Iterable[int]) -> list[WatchRow]:
    """The rows of these steps, in their order."""
    wanted = set(steps)
    return [row for row in rows if row.step in wanted]
