"""What goes wrong in a training: kind, step and layer as data, and the text for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """The kinds of events."""

    NOT_FINITE = "not-finite"
    DEAD_UNITS = "dead-units"
    LOSS_ROSE = "loss-rose"
    GRADIENT_NOT_FINITE = "gradient-not-finite"
    GRADIENTS_VANISH = "gradients-vanish"
    GRADIENTS_EXPLODE = "gradients-explode"
    GRADIENTS_EXPLODE_AT_ZERO = "gradients-explode-at-zero"


_TEXTS = {
    EventKind.NOT_FINITE: "not finite, first in {layer}",
    EventKind.DEAD_UNITS: "{layer}: {size:.0%} of its units are dead",
    EventKind.LOSS_ROSE: "the loss rose to {size:.3g} times the first one: the learning rate is too large",
    EventKind.GRADIENT_NOT_FINITE: "the gradient of the stream is not finite{place}",
    EventKind.GRADIENTS_VANISH: "gradients vanish{place}: {size:.1e} of the last block's reaches the first",
    EventKind.GRADIENTS_EXPLODE: "gradients explode{place}: {size:.1e} times the last block's at the first",
    EventKind.GRADIENTS_EXPLODE_AT_ZERO: "gradients explode{place} where the stream is zero, as at a padding id with a "
    "zero embedding: {size:.1e} times the last block's at the first. There a norm divides them by the root of its "
    "epsilon, block after block until they overflow. Mask that id in the loss and in attention, or keep it out of "
    "the batches",
}


@dataclass(frozen=True)
class Event:
    """One event of one network.

    Attributes:
        kind: what happened.
        step: how many updates the network had taken.
        layer: the first layer that shows it, or the stack of blocks; empty for the whole network.
        size: the share of units that are dead, the loss over the first loss, or the gradient that enters the first
            block over that which leaves the last.
    """

    kind: EventKind
    step: int
    layer: str = ""
    size: float = math.nan

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step else "at the start"
        place = f" in {self.layer}" if self.layer else ""
        return f"{when}, {_TEXTS[self.kind].format(layer=self.layer, place=place, size=self.size)}"


@dataclass(frozen=True)
class Failure:
    """A kind of event in the networks of a check: the earliest case, its network, and how many networks share it."""

    event: Event
    width: int
    depth: int
    seed: int
    networks: int
    of: int

    def __str__(self) -> str:
        where = f"width {self.width}, depth {self.depth}, seed {self.seed}"
        return f"{where}: {self.event} ({self.networks} of {self.of} networks)"
