"""What a module's tensors are: their names, owners, and which dimensions are fan-in and fan-out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nfd.core.errors import InputError
from nfd.scaling.names import listed, numberless

_WRAPPED = {  # classes that put another name between a model and its parameters
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "Scaled": "scaled_module",
    "DeferredConv": "linear",
}
_ROUNDING = 1.01  # of bounds, in 16 bits
_PREFIXES = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "scaled_module"}
_TABLES = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by canonical name: without what DDP, FSDP, ``torch.compile`` and ``nfd.Scaled`` put into it.

    Where one of these stands around a module, the name is the inner module's. Shared modules have several names.
    """
    named: dict[str, nn.Module] = {}

    def walk(module: nn.Module, name: str) -> None:
        inner = next((_WRAPPED[kind] for kind in _kinds(type(module)) if kind in _WRAPPED), None)
        if inner is not None and inner in module._modules:
            walk(getattr(module, inner), name)
            return
        named[name] = module
        for key, child in module._modules.items():
            if child is not None:
                walk(child, f"{name}.{key}" if name else key)

    walk(model, "")
    return named


def unwrapped(name: str) -> str:
    """The name of a tensor without the parts that wrappers put into it; a module of the user's may be one of them."""
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


def check_not_complex(model: nn.Module) -> None:
    """ValueError when parameters are complex: rules and optimizers are about real ones."""
    found = [name for name, t in tensors(model).items() if t.parameter.is_complex()]
    if found:
        raise InputError(
            f"A plan scales real parameters; these are complex: {listed(found)}. Hold the real and the imaginary part "
            "in one real parameter (torch.view_as_complex(parameter) in forward), or one that does not train in a "
            "buffer (register_buffer)."
        )


def check_stored(model: nn.Module) -> None:
    """ValueError when matrices of the model are deferred, so that there is no tensor to plan, draw or measure."""
    deferred = [name for name, module in modules(model).items() if getattr(module, "is_deferred", False) is True]
    if deferred:
        raise InputError(
            f"A plan is for stored weights; these layers are deferred: {listed(deferred)}. "
            "Plan or check the same model with stored weights, at any width on the meta device, and let "
            "nfd.defer(model, plan) replace them. Networks of nfd have their own net.param_groups, for nfd.SGD."
        )


def parametrized(model: nn.Module) -> dict[str, str]:
    """Which tensor each parameter stands for, and by which function, that ``torch.nn.utils`` computes a tensor from:
    of ``weight_norm``, ``spectral_norm``, ``orthogonal`` and every other parametrization. A mask of pruning is none.
    """
    computed: dict[str, str] = {}
    for place, module in modules(model).items():
        if isinstance(module, ParametrizationList):
            owner, _, key = place.rpartition("parametrizations.")
            how = f"{owner}{key} by {type(module[0]).__name__.lstrip('_')}"
            computed |= {f"{place}.{name}": how for name, _ in module.named_parameters()}
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                full = f"{place}.{hook.name}".lstrip(".")
                parts = [f"{full}_{part}" for part in ("g", "v", "orig") if f"{hook.name}_{part}" in module._parameters]
                computed |= dict.fromkeys(parts, f"{full} by {type(hook).__name__}")
    return computed


def check_not_parametrized(model: nn.Module) -> None:
    """ValueError when matrices that train are computed from other parameters: a factor of those is none of theirs."""
    computed, own = parametrized(model), tensors(model)
    found = dict.fromkeys(
        numberless(computed[name])
        for name, t in own.items()
        if name in computed and t.parameter.requires_grad and not t.is_vector
    )
    if found:
        raise InputError(
            f"A plan scales the start and the rate of matrices; these are computed from other parameters: "
            f"{', '.join(found)}. Remove this before planning and training (torch.nn.utils.parametrize."
            "remove_parametrizations; remove_weight_norm or remove_spectral_norm where that made it), or freeze them. "
            "rule='standard' leaves them as they are."
        )


@dataclass(frozen=True)
class TensorInfo:
    """One parameter: canonical name, owner, and the dimensions that count its inputs and outputs.

    ``ins`` and ``outs`` are None where the module does not tell. ``names``: every name, of a shared parameter;
    ``readers``: those that are not of an embedding.
    """

    name: str
    parameter: nn.Parameter = field(repr=False)
    owner: nn.Module = field(repr=False)
    names: tuple[str, ...]
    readers: tuple[str, ...]
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

    @property
    def is_bias_of_pytorch(self) -> bool:
        """Whether it is a bias of a layer of PyTorch, within the bounds between which such layers draw it."""
        weight = self.owner._parameters.get("weight")
        if isinstance(self.owner, nn.RNNBase | nn.RNNCellBase):
            inputs = self.owner.hidden_size
        elif isinstance(self.owner, nn.Linear | _ConvNd) and weight is not None:
            inputs = math.prod(weight.shape[1:])
        elif isinstance(self.owner, nn.Bilinear):
            inputs = self.owner.in1_features
        else:
            return False
        values, named = self.parameter.detach(), self.name.rpartition(".")[2].startswith("bias")
        return named and (values.is_meta or bool((values.abs() <= _ROUNDING * inputs**-0.5).all()))

    def drawn(self, start: Tensor | None = None) -> Tensor:
        """Its entries that begin at random, as they are now or in its start: all but the row of padding of an
        embedding."""
        values, row = self.parameter.detach() if start is None else start, self.padding
        return values if row is None else torch.cat([values[:row], values[row + 1 :]])

    @property
    def padding(self) -> int | None:
        """The row of an embedding that stands for padding and is zero."""
        row = getattr(self.owner, "padding_idx", None)
        return row % self.shape[0] if isinstance(row, int) and len(self.shape) == 2 else None

    def fan_in(self) -> int | None:
        """How many inputs each of its outputs adds up; None where unknown."""
        return None if self.ins is None else math.prod(self.shape[k] for k in self.ins)


def tensors(model: nn.Module) -> dict[str, TensorInfo]:
    """Every parameter by canonical name, shared ones once: under their first name, as what an embedding among their
    owners makes of them."""
    places: dict[int, list[tuple[str, nn.Module, nn.Parameter]]] = {}
    for prefix, module in modules(model).items():
        for key, p in module._parameters.items():
            if p is not None:
                places.setdefault(id(p), []).append((f"{prefix}.{key}" if prefix else key, module, p))
    named = {}
    for own in places.values():
        names = tuple(dict.fromkeys(name for name, _, _ in own))
        chosen, owner, p = next((place for place in own if isinstance(place[1], _TABLES)), own[0])
        ins, outs = _axes(owner, chosen.rpartition(".")[2], p)
        readers = tuple(name for name, module, _ in own if not isinstance(module, _TABLES))
        named[names[0]] = TensorInfo(names[0], p, owner, names, readers, ins, outs)
    return named


def whole(tensor: Tensor) -> Tensor:
    """The numbers of a tensor; of one that is sharded by FSDP2 all of them, on each of the processes, which must all
    ask."""
    return cast(Tensor, tensor.full_tensor()) if hasattr(tensor, "full_tensor") else tensor


def give_back(model: nn.Module) -> None:
    """Modules that FSDP2 shards forget what they gathered for a pass, which the next pass would take otherwise."""
    for module in model.modules():
        if "FSDPModule" in _kinds(type(module)):
            cast(Any, module).reshard()


def _axes(owner: nn.Module, attribute: str, p: Tensor) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Dimensions of fan-in and fan-out."""
    every = tuple(range(p.dim()))
    if p.dim() < 2:
        return (), every
    if isinstance(owner, _ConvTransposeNd):
        return (0, *every[2:]), (1,)
    if isinstance(owner, _ConvNd):
        return every[1:], (0,)
    if isinstance(owner, _TABLES):
        return (), (1,)
    if isinstance(owner, nn.Bilinear):
        return (1, 2), (0,)
    if isinstance(owner, nn.MultiheadAttention) and p.dim() == 3:  # bias_k, bias_v
        return (), (2,)
    if isinstance(owner, _NORMS):
        return (), every
    if p.dim() == 2 and is_conv1d(owner):
        return (0,), (1,)
    known = isinstance(owner, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
    if p.dim() == 2 and (known or (attribute.endswith("weight") and hasattr(owner, "in_features"))):
        return (1,), (0,)
    return None, None


def is_conv1d(owner: nn.Module) -> bool:
    """Whether a module is Hugging Face's linear layer, or a subclass of it, whose weight is [in, out]."""
    return "Conv1D" in _kinds(type(owner)) and hasattr(owner, "nf")


def _kinds(kind: type) -> tuple[str, ...]:
    """The names of a class and of its bases: of classes that are imported only where they are in use."""
    return tuple(base.__name__ for base in kind.mro())


def groups(t: TensorInfo) -> int:
    """Into how many parts a transposed convolution splits its inputs: its weight is [in, out / groups, ...]."""
    return int(t.owner.groups) if isinstance(t.owner, _ConvTransposeNd) and not t.is_vector else 1


def ratio(shape: Sequence[int], base: Sequence[int], axes: Sequence[int]) -> float:
    """How much larger than the base these dimensions are together."""
    return math.prod(shape[k] / base[k] for k in axes)
