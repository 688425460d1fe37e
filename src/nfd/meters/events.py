"""Events of a check: what went wrong in the training of one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.tables import Row
from nfd.families.streams import EndGradients
from nfd.scaling.model import modules

_TEXTS = {
    "not-finite": "not finite, first in {layer}",
    "loss-rose": "the loss rose to {size:.3g} times the first one: the learning rate is too large",
    "gradient-not-finite": "the gradient of the stream is not finite{place}",
    "gradients-vanish": "gradients vanish{place}: {size:.1e} of the last block's reaches the first",
    "gradients-explode": "gradients explode{place}: {size:.1e} times the last block's at the first",
    "gradients-explode-at-zero": "gradients explode{place} where the stream is zero, as at a "
    "padding id with a zero embedding, which a norm divides by the root of its epsilon: {size:.1e} "
    "times the last block's at the first. Mask that id in the loss and in attention, or keep it "
    "out of the batches",
    "experts-dead": "no token reached {layer} at any step in any network, as {size:.0%} of the "
    "experts there: does the router choose among all? Add a balancing loss or bias",
    "router-collapsed": "the router {layer} chooses one expert first for {size:.0%} of the tokens, "
    "from every seed: a balancing loss, a lower rate or a smaller start of the router keep it even",
}
# Ends of the range of the first block's gradient over the last one's, beyond which nothing trains
_VANISHED = 1e-3
_EXPLODED = 1e3


@dataclass(frozen=True)
class Event:
    """One event of one network.

    Attributes:
        kind: what happened.
        step: how many updates the network had taken.
        layer: the first layer that shows it, or the stack of blocks; empty for the whole network.
        size: the loss over the first loss, the gradient that enters the first block over the
            gradient that leaves the last, or a share of experts or of tokens.
    """

    kind: str
    step: int
    layer: str = ""
    size: float = math.nan

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step else "at the start"
        place = f" in {self.layer}" if self.layer else ""
        return f"{when}, {_TEXTS[self.kind].format(layer=self.layer, place=place, size=self.size)}"


@dataclass(frozen=True)
class Failure:
    """A kind of event in the networks of a check.

    It is the earliest case, with its network, and says how many networks share the kind.
    """

    event: Event
    width: int
    depth: int
    seed: int
    networks: int
    of: int

    def __str__(self) -> str:
        where = f"width {self.width}, depth {self.depth}, seed {self.seed}"
        return f"{where}: {self.event} ({self.networks} of {self.of} networks)"


def failures_of(runs: Sequence[Row]) -> list[Failure]:
    """Sum up what went wrong, once per kind of event."""
    cases: dict[str, list[tuple[Event, Row]]] = {}
    for run in runs:
        for event in run["events"]:
            cases.setdefault(event.kind, []).append((event, run))
    failures = []
    for same_kind in cases.values():
        event, run = min(same_kind, key=lambda case: case[0].step)
        sharing = {(other["width"], other["depth"], other["seed"]) for _, other in same_kind}
        failures.append(
            Failure(event, run["width"], run["depth"], run["seed"], len(sharing), len(runs))
        )
    return failures


def first_bad(model: nn.Module, run: Callable[[], Any]) -> str:
    """Name the first module whose output is not finite."""
    broken: list[str] = []

    def look(name: str, _: nn.Module, __: Any, out: Any) -> None:
        tensor = out
        if isinstance(out, tuple | list) and out:
            tensor = out[0]
        if isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
            broken.append(name)

    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules(model).items():
            if name:
                hooks.enter_context(module.register_forward_hook(partial(look, name)))
        run()
    return broken[0] if broken else "the loss"


def gradient_events(ends: EndGradients, stack: str = "", step: int = 0) -> Iterator[Event]:
    """Judge a gradient on its way from the last block of a stack to the first.

    ``step`` is how many updates the network had taken.
    """
    ratio = ends.first / ends.last
    at_zero = ends.at_zero / ends.last
    if not math.isfinite(ratio):
        yield Event("gradient-not-finite", step, stack)
    elif ratio < _VANISHED:
        yield Event("gradients-vanish", step, stack, ratio)
    elif ratio > _EXPLODED:
        yield Event("gradients-explode", step, stack, ratio)
    if not at_zero <= _EXPLODED:
        if not math.isfinite(at_zero):
            at_zero = math.inf
        yield Event("gradients-explode-at-zero", step, stack, at_zero)
