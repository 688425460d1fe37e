"""What goes wrong in the training of one network: its kinds, and how each is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.families.streams import EndGradients
from nfd.scaling.model import modules

# ---- What goes wrong in a training: kind, step and layer as data, and the text for people


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


# ---- What goes wrong in a network, and where: dead units, gradients that vanish or explode, numbers that are not


_RELUS = {torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, nn.functional.relu}
_DEAD = 0.5  # share of a layer's units that give 0 for a whole batch
_LEAST_ROWS = 16  # on fewer, healthy units are silent too
_VANISHED, _EXPLODED = 1e-3, 1e3


class ModulePath:
    """The innermost module that is running."""

    def __init__(self) -> None:
        self._running: list[tuple[str, nn.Module]] = []

    @property
    def name(self) -> str:
        """Its name; empty where none but the model itself is."""
        return self._running[-1][0] if self._running else ""

    @property
    def module(self) -> nn.Module | None:
        """The module itself."""
        return self._running[-1][1] if self._running else None

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, module in modules(model).items():
                if name:
                    hooks.enter_context(module.register_forward_pre_hook(self._enter(name)))
                    hooks.enter_context(module.register_forward_hook(self._leave))
            yield

    def _enter(self, name: str) -> Callable[..., None]:
        return lambda module, *_: self._running.append((name, module))

    def _leave(self, *_: Any) -> None:
        if self._running:
            self._running.pop()


class Relus(TorchFunctionMode):
    """Watches every ReLU: in which module it stands, and the share of units that no sample of the batch excites."""

    def __init__(self, path: ModulePath) -> None:
        super().__init__()
        self.path, self.seen = path, list[tuple[str, float]]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _RELUS and isinstance(out, Tensor) and out.dim() > 1:
            units = out.detach().movedim(1 if out.dim() > 3 else -1, -1).flatten(0, -2)  # channels of images are second
            if len(units) < _LEAST_ROWS:
                return out
            self.seen.append((self.path.name, float((units <= 0).all(0).double().mean())))
        return out


def dead_units(model: nn.Module, run: Callable[[], Any], step: int) -> Event | None:
    """The first ReLU of a pass of which half the units or more are dead on the whole batch, or None."""
    path = ModulePath()
    with path.followed(model), torch.no_grad(), Relus(path) as relus:
        run()
    for place, (layer, share) in enumerate(relus.seen, 1):
        if share >= _DEAD:
            return Event(EventKind.DEAD_UNITS, step, f"ReLU {place}" + (f" in {layer}" if layer else ""), share)
    return None


def first_bad(model: nn.Module, run: Callable[[], Any]) -> str:
    """The first module whose output is not finite."""
    broken: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, out: Any) -> None:
            tensor = out[0] if isinstance(out, tuple | list) and out else out
            if not broken and isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
                broken.append(name)

        return hook

    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules(model).items():
            if name:
                hooks.enter_context(module.register_forward_hook(look(name)))
        run()
    return broken[0] if broken else "the loss"


def gradient_events(ends: EndGradients, stack: str = "", step: int = 0) -> Iterator[Event]:
    """What happened to a gradient on its way from the last block of a stack to the first, after so many updates."""
    ratio, at_zero = ends.first / ends.last, ends.at_zero / ends.last
    if not math.isfinite(ratio):
        yield Event(EventKind.GRADIENT_NOT_FINITE, step, stack)
    elif not _VANISHED <= ratio <= _EXPLODED:
        yield Event(EventKind.GRADIENTS_VANISH if ratio < 1 else EventKind.GRADIENTS_EXPLODE, step, stack, ratio)
    if not at_zero <= _EXPLODED:
        size = at_zero if math.isfinite(at_zero) else math.inf
        yield Event(EventKind.GRADIENTS_EXPLODE_AT_ZERO, step, stack, size)
