"""What a watch reads: a number of a layer or of the whole network after a step, and what it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One number of a training.

    Attributes:
        step: how many steps the optimizer had taken.
        meter: its name; of one of several stacks of blocks with the name of the stack, as in
            ``"activation of decoder.layers"``.
        layer: the name of the module that it was read from; None for the whole network.
        depth: where that layer stands along the stream, in (0, 1]: the place of its block, counted from 1, over the
            number of blocks of its stack. The second stack, such as a decoder, has (1, 2]. None for layers outside of
            the blocks, and for the whole network.
        value: not-a-number where training diverged.
    """

    step: int
    meter: str
    layer: str | None
    depth: float | None
    value: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A meter that a watch cannot read from this model, and the reason."""

    meter: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory of a watch: the kind of data from the start of training, the device, and the number of bytes."""

    kind: str
    place: str
    bytes: int


class Expected(Protocol):
    """What knows how large the meters of a sound training are."""

    def alerts(self, rows: Sequence[WatchRow]) -> Sequence[Any]:
        """What the rows of one look say against the training."""
