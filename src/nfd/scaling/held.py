"""The parameters of a model, by the names that its plan has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.words import quoted
from nfd.scaling.entries import Entry
from nfd.scaling.model import modules, tensors


@dataclass(frozen=True)
class Held:
    """What a model holds of one tensor of a plan.

    Attributes:
        shape: of the tensor.
        parameters: what an optimizer steps: of a tensor that is not stored, the update and the
            scale of its layer.
        std: of the initial weights of a tensor that is not stored; None of others.
    """

    shape: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    std: float | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it takes gradients."""
        return self.parameters[0].requires_grad


def held_by(model: nn.Module) -> dict[str, Held]:
    """Find what a model holds of every tensor, by the name that it has where it is stored."""
    held: dict[str, Held] = {}
    parameters_of_layers = set[int]()
    for name, module in modules(model).items():
        layer: Any = module
        if getattr(module, "is_deferred", False) is True:
            parameters = (layer.update, layer.scale)
            parameters_of_layers.update(id(p) for p in parameters)
            stored_name = f"{name}{layer.suffix}".lstrip(".")
            held[stored_name] = Held(tuple(layer.weight.shape), parameters, layer.std)
    for name, t in tensors(model).items():
        if id(t.parameter) not in parameters_of_layers:
            held[name] = Held(t.shape, (t.parameter,))
    return held


_SHOWN = 3  # sentences on what differs


def held_as_planned(model: nn.Module, entries: Mapping[str, Entry]) -> dict[str, Held]:
    """Find what a model holds of every tensor of a plan.

    Raises:
        ValueError: if it is not the model that was planned.
    """
    held = held_by(model)
    names = {"missing": entries.keys() - held.keys(), "not planned": held.keys() - entries.keys()}
    differences = [f"{state}: {quoted(sorted(some))}." for state, some in names.items() if some]
    for name, tensor in held.items():
        # Of a sharded tensor a process sees a part.
        if name not in entries or is_sharded(tensor.parameters[0]) or len(differences) >= _SHOWN:
            continue
        planned = entries[name].shape
        if tensor.shape != planned:
            differences.append(
                f"{name!r} was planned as {list(planned)}; the model's is {list(tensor.shape)}."
            )
    if differences:
        raise InputError(
            f"The model is not the one planned: {' '.join(differences)} Plan it again, or build "
            "the one planned."
        )
    return held


def planned_part(model: nn.Module, entries: Mapping[str, Entry]) -> nn.Module:
    """Find the planned model in wrappers that hold nothing else, whatever their classes.

    They call it ``module``, or by a name that begins with an underscore.
    """
    part = model
    while held_by(part).keys() != entries.keys():
        children = list(part._modules.items())
        if len(children) != 1 or part._parameters:
            return model
        name, child = children[0]
        if child is None or not (name == "module" or name.startswith("_")):
            return model
        part = child
    return part


def is_sharded(p: Tensor) -> bool:
    """Say whether a parameter is a DTensor, of which a process holds a part."""
    return hasattr(p, "placements")
