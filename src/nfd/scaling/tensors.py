"""What a module's tensors are: their names, owners, and which dimensions are fan-in and fan-out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "scaled_module")
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


def canonical(name: str) -> str:
    """A parameter's name without what DDP, FSDP, ``torch.compile`` and ``nfd.Scaled`` put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


@dataclass(frozen=True)
class TensorInfo:
    """One parameter: canonical name, owner, and the dimensions that count its inputs and outputs.

    ``ins`` and ``outs`` are None where the module does not tell. ``names``: every name, of a shared parameter.
    """

    name: str
    parameter: nn.Parameter = field(repr=False)
    owner: nn.Module = field(repr=False)
    names: tuple[str, ...]
    ins: tuple[int, ...] | None
    outs: tuple[int, ...] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.parameter.shape)

    @property
    def owner_name(self) -> str:
        """The name of the module that holds it."""
        return self.name.rpartition(".")[0]

    @property
    def is_vector(self) -> bool:
        """Whether it is a bias, a gain, or anything with one dimension or none."""
        return self.parameter.dim() < 2

    def drawn(self) -> Tensor:
        """Its entries that begin at random: all but the row of padding of an embedding."""
        padding = getattr(self.owner, "padding_idx", None)
        values = self.parameter.detach()
        if isinstance(padding, int) and values.dim() == 2:
            return torch.cat([values[:padding], values[padding + 1 :]])
        return values

    def fan_in(self) -> int | None:
        """How many inputs each of its outputs adds up; None where unknown."""
        return None if self.ins is None else math.prod(self.shape[k] for k in self.ins)


def tensors(model: nn.Module) -> dict[str, TensorInfo]:
    """Every parameter by canonical name, shared ones once, under their first name."""
    owners = {canonical(name): module for name, module in model.named_modules(remove_duplicate=False)}
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(canonical(name))
        parameters[id(p)] = p
    found = {}
    for key, p in parameters.items():
        all_names = tuple(dict.fromkeys(names[key]))
        owner = owners[all_names[0].rpartition(".")[0]]
        ins, outs = _axes(owner, all_names[0].rpartition(".")[2], p)
        found[all_names[0]] = TensorInfo(all_names[0], p, owner, all_names, ins, outs)
    return found


def _axes(owner: nn.Module, attribute: str, p: Tensor) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Dimensions of fan-in and fan-out."""
    every = tuple(range(p.dim()))
    if p.dim() < 2:
        return (), every
    if isinstance(owner, _ConvTransposeNd):
        return (0, *every[2:]), (1,)
    if isinstance(owner, _ConvNd):
        return every[1:], (0,)
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        return (), (1,)
    if isinstance(owner, _NORMS):
        return (), every
    if p.dim() == 2 and type(owner).__name__ == "Conv1D" and hasattr(owner, "nf"):  # Hugging Face: [in, out]
        return (0,), (1,)
    known = isinstance(owner, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
    if p.dim() == 2 and (known or (attribute.endswith("weight") and hasattr(owner, "in_features"))):
        return (1,), (0,)
    return None, None


def ratio(shape: Sequence[int], base: Sequence[int], axes: Sequence[int]) -> float:
    """How much larger than the base these dimensions are together."""
    return math.prod(shape[k] / base[k] for k in axes)
