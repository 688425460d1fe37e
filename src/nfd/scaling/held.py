"""The parameters of a model by the names of its plan: stored tensors, and factors of matrices that are not stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.model import listed, modules, tensors

if TYPE_CHECKING:
    from nfd.scaling.entries import Entry

_MOST = 3  # shapes that a message names


@dataclass(frozen=True)
class Held:
    """What a model holds of one tensor of a plan: its shape, and the parameters that an optimizer is to step.

    Of a tensor that is not stored these are the update and the scale of its layer, which began with ``std``.
    """

    shape: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    std: float | None = None

    @property
    def is_stored(self) -> bool:
        """Whether its numbers are a parameter of the model."""
        return self.std is None

    @property
    def is_trained(self) -> bool:
        """Whether it takes gradients."""
        return self.parameters[0].requires_grad


def held_by(model: nn.Module) -> dict[str, Held]:
    """What a model holds of every tensor, by the name that the tensor has where it is stored."""
    held: dict[str, Held] = {}
    factors: set[int] = set()
    for name, module in modules(model).items():
        layer: Any = module
        if getattr(module, "is_deferred", False) is True:
            factors |= {id(layer.update), id(layer.scale)}
            held[f"{name}{layer.suffix}".lstrip(".")] = Held(layer.weight_shape, (layer.update, layer.scale), layer.std)
    for name, t in tensors(model).items():
        if id(t.parameter) not in factors:
            held[name] = Held(t.shape, (t.parameter,))
    return held


@dataclass(frozen=True)
class Differences:
    """How a model differs from the one that was planned.

    Attributes:
        missing: tensors of the plan that the model does not have.
        unplanned: tensors of the model that the plan does not know.
        reshaped: the planned and the model's own shape, of tensors where they differ.
    """

    missing: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unplanned or self.reshaped)

    def __str__(self) -> str:
        shapes = [
            f"{name!r} was planned as {list(planned)}; the model's is {list(own)}."
            for name, (planned, own) in self.reshaped.items()
        ]
        parts = (("missing", self.missing), ("not planned", self.unplanned))
        more = [f"and {len(shapes) - _MOST} more shapes."] if len(shapes) > _MOST else []
        return " ".join([*(f"{state}: {listed(names)}." for state, names in parts if names), *shapes[:_MOST], *more])


def differences(held: Mapping[str, Held], entries: Mapping[str, Entry]) -> Differences:
    """How what a model holds differs from the entries of a plan; shapes of shards are not compared."""
    return Differences(
        tuple(sorted(entries.keys() - held.keys())),
        tuple(sorted(held.keys() - entries.keys())),
        {
            name: (entries[name].shape, own.shape)
            for name, own in held.items()
            if name in entries and own.shape != entries[name].shape and not hasattr(own.parameters[0], "placements")
        },
    )


def held_as_planned(model: nn.Module, entries: Mapping[str, Entry]) -> dict[str, Held]:
    """What a model holds of every tensor of a plan; ValueError when it is not the model that was planned."""
    held = held_by(model)
    if differing := differences(held, entries):
        raise InputError(
            f"The model is not the one planned: {differing} Plan it again, or build the model that was planned."
        )
    return held
