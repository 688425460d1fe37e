"""A model as it is written: the names and axes of its tensors, its residual blocks, and what no plan takes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate, count, islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nfd.core.errors import InputError, InputTypeError, check_real

# ---- Dotted names of modules and tensors: patterns, what those of several blocks share, and lists of them


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern: ``*`` for any one part, a first or last ``**`` for one or more."""
    parts, wanted = name.split("."), pattern.split(".")
    if "**" in (wanted[0], wanted[-1]) and len(parts) < len(wanted):
        return False
    if wanted[-1] == "**":
        parts, wanted = parts[: len(wanted) - 1], wanted[:-1]
    elif wanted[0] == "**":
        parts, wanted = parts[len(parts) - len(wanted) + 1 :], wanted[1:]
    return len(parts) == len(wanted) and all(fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True))


def numberless(name: str) -> str:
    """A name with ``*`` for every number: the same for what corresponds in several blocks or experts."""
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name)


def listed(names: Sequence[str], most: int = 3) -> str:
    """So many of the names, in quotes, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(repr, names[:most]))}{more}"


# ---- Modules by name, and what no plan takes.

_WRAPPED = {  # classes that put another name between a model and its parameters
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "Scaled": "scaled_module",
    "DeferredConv": "linear",
}


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
    return ".".join(part for part in name.split(".") if part == "linear" or part not in _WRAPPED.values())


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
                own = [key for key in module._parameters if key.startswith(f"{hook.name}_")]
                how = f"{place}.{hook.name} by {type(hook).__name__}".lstrip(".")
                computed |= {f"{place}.{key}".lstrip("."): how for key in own}
    return computed


def check_not_parametrized(model: nn.Module) -> None:
    """ValueError when matrices that train are computed from other parameters: a factor of those is none of theirs."""
    trained = {name for name, t in tensors(model).items() if t.parameter.requires_grad and not t.is_vector}
    found = dict.fromkeys(numberless(how) for name, how in parametrized(model).items() if name in trained)
    if found:
        raise InputError(
            f"A plan scales the start and the rate of matrices; these are computed from other parameters: "
            f"{', '.join(found)}. Remove this before planning and training (torch.nn.utils.parametrize."
            "remove_parametrizations; remove_weight_norm or remove_spectral_norm where that made it), or freeze them. "
            "rule='standard' leaves them as they are."
        )


# ---- Tensors: their names, owners, and which dimensions are fan-in and fan-out.

_ROUNDING = 1.01  # of bounds, in 16 bits
_TABLES = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


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
    def is_vector(self) -> bool:
        """Whether it is a bias, a gain, or anything with one dimension or none."""
        return self.parameter.dim() < 2

    @property
    def is_bias_of_pytorch(self) -> bool:
        """Whether it is a bias of a layer of PyTorch, within the bounds between which such layers draw it."""
        weight = self.owner._parameters.get("weight")
        if isinstance(self.owner, nn.RNNBase | nn.RNNCellBase):
            inputs = self.owner.hidden_size
        elif weight is not None and isinstance(self.owner, nn.Linear | _ConvNd | nn.Bilinear):
            inputs = weight.shape[1] if isinstance(self.owner, nn.Bilinear) else math.prod(weight.shape[1:])
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
    """Dimensions of fan-in and fan-out; None where the module does not tell."""
    every = tuple(range(p.dim()))
    if p.dim() < 2 or isinstance(owner, _NORMS):
        return (), every
    if isinstance(owner, _ConvTransposeNd):
        return (0, *every[2:]), (1,)
    if isinstance(owner, _ConvNd | nn.Bilinear):
        return every[1:], (0,)
    if isinstance(owner, _TABLES) or (isinstance(owner, nn.MultiheadAttention) and p.dim() == 3):  # bias_k, bias_v
        return (), every[-1:]
    known = isinstance(owner, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
    if p.dim() == 2 and (known or is_conv1d(owner) or (attribute.endswith("weight") and hasattr(owner, "in_features"))):
        return ((0,), (1,)) if is_conv1d(owner) else ((1,), (0,))
    return None, None


def is_conv1d(owner: nn.Module) -> bool:
    """Whether a module is Hugging Face's linear layer, or a subclass of it, whose weight is [in, out]."""
    return "Conv1D" in _kinds(type(owner)) and hasattr(owner, "nf")


def _kinds(kind: type) -> tuple[str, ...]:
    """The names of a class and of its bases: of classes that are imported only where they are in use."""
    return tuple(base.__name__ for base in kind.mro())


# ---- Residual blocks: by a pattern, or as children of one kind in containers.

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Kind = str | tuple[Any, ...]
Blocks = dict[str, Kind]  # the kinds of blocks, by name in the order of the model
Repeated = Mapping[str, frozenset[Kind]]  # by container, the kinds of children of which a deeper instance has more
Where = str | Sequence[str] | Repeated | None  # as a user says it, or as two instances show it


def blocks_of(model: nn.Module, where: Where = None) -> Blocks:
    """The residual blocks: by a pattern such as ``"transformer.h.*"``, or by their kinds, else children of the
    outermost containers, all where they are of one class, else those of kinds that stand twice; ValueError for a
    pattern that fits nothing."""
    parts = modules(model)
    if where is None:
        chosen: dict[str, Blocks] = {}
        for name, container in _outermost(parts, chosen):
            if len(own := _chosen(name, container, None)) > 1:
                chosen[name] = own
        return {name: kind for own in chosen.values() for name, kind in own.items()}
    if isinstance(where, Mapping):
        found = [_chosen(name, parts[name], kinds) for name, kinds in where.items() if name in parts]
        return {name: kind for own in found for name, kind in own.items()}
    patterns = [where] if isinstance(where, str) else list(where)
    missing = [p for p in patterns if not any(matches(name, p) for name in parts if name)]
    if missing or not patterns:
        there = sorted({f"{container_of(name)}.*".lstrip(".") for name in blocks_of(model)})
        hint = f"Containers of similar modules in this model: {', '.join(there)}." if there else ""
        raise InputError(f"blocks must name modules of the model; no match for {', '.join(missing)!r}. {hint}".strip())
    return {name: kind_of(part) for name, part in parts.items() if name and any(matches(name, p) for p in patterns)}


def repeated(model: nn.Module, other: nn.Module) -> Repeated | None:
    """What containers have more of in one of two models: its kinds of blocks; None where there are none such."""
    first, second = modules(model), modules(other)
    kinds: dict[str, frozenset[Kind]] = {}
    for name, here in _outermost(first, kinds):
        if name in second:
            own, others = (Counter(map(kind_of, part.children())) for part in (here, second[name]))
            if own.total() != others.total():
                more = frozenset(kind for kind in own | others if own[kind] != others[kind])
                both = [_chosen(name, part, more) for part in (here, second[name])]  # with those that stand between
                kinds[name] = more.union(*(found.values() for found in both))
    return kinds or None


def _outermost(parts: Mapping[str, nn.Module], found: Container[str]) -> Iterator[tuple[str, nn.Module]]:
    """The containers that are no part of those found so far."""
    for name, module in parts.items():
        around = ["", *accumulate(name.split("."), "{}.{}".format)][:-1] if name else []
        if isinstance(module, _CONTAINERS) and not any(outer in found for outer in around):
            yield name, module


def _chosen(name: str, container: nn.Module, kinds: frozenset[Kind] | None) -> Blocks:
    """The blocks of a container, of these kinds: all its children where they are of one class, else from the first to
    the last of the kinds, without what is no block between them.

    Where the kinds are not known, they are those of blocks that it holds twice.
    """
    children = {f"{name}.{key}".lstrip("."): child for key, child in container.named_children()}
    own = {key: kind_of(child) for key, child in children.items()}
    may = [k for k, child in children.items() if [*child.children()] and any(p.dim() > 1 for p in child.parameters())]
    if len({type(child) for child in children.values()}) == 1:
        return own if kinds is not None or len(may) == len(own) else {}
    may = [key for key in may if not isinstance(children[key], nn.ModuleList | nn.ModuleDict)]
    if kinds is None:
        counted = Counter(own[key] for key in may)
        kinds = frozenset(kind for kind in counted if counted[kind] > 1)
    are = {key for key in own if own[key] in kinds and any(True for _ in children[key].parameters())}
    places = [k for k, key in enumerate(own) if key in are]
    return {key: own[key] for key in [*own][min(places) : max(places) + 1] if key in are or key in may} if are else {}


def kind_of(module: nn.Module) -> Kind:
    """The name of its class, of a container of PyTorch with the kinds of its children.

    A class that is made anew at every call of a constructor, or by FSDP2 when it shards, is the same.
    """
    kind = next(c for c in type(module).__mro__ if not c.__name__.startswith(("FSDP", "Parametrized")))
    own = f"{kind.__module__}.{kind.__qualname__}"
    return (own, *map(kind_of, module.children())) if kind in _CONTAINERS else own


def in_base(name: str, blocks: Blocks, base: Blocks, names: Container[str]) -> str | None:
    """The name in the base model of a tensor of the model: in the same block where it is there, else in one alike.

    That is the second of its kind that has such a tensor, as the first block often differs, or the first. What stands
    behind the blocks in one container has another number there. None where the base has blocks of some of the model's
    kinds, but none of this one.
    """
    block = block_of(name, blocks)
    if block is None:
        return _beside(name, blocks, base)
    rest, container = name[len(block) :], container_of(block)
    theirs = [b for b in base if container_of(b) == container]
    ours = {kind for b, kind in blocks.items() if container_of(b) == container}
    if any(base[b] in ours for b in theirs):
        theirs = [b for b in theirs if base[b] == blocks[block]]
        if not theirs:
            return None
    alike = [b for b in theirs if b + rest in names]
    return name if block in alike or not alike else alike[min(1, len(alike) - 1)] + rest


def counterpart(t: TensorInfo, blocks: Blocks, base: Mapping[str, TensorInfo], base_blocks: Blocks) -> TensorInfo:
    """The tensor of the base that corresponds to one of the model; ValueError when there is none."""
    name = in_base(t.name, blocks, base_blocks, base)
    if name is None:
        raise InputError(
            f"The base model has no block of the kind that {t.name!r} is in. Give it a depth, by "
            "base=(width, depth), at which it has blocks of every kind."
        )
    if name not in base or len(base[name].shape) != len(t.shape):
        raise InputError(
            f"The base model has no {name!r} of {len(t.shape)} dimensions, the counterpart of {t.name!r}. Build both "
            "alike but for width and depth; blocks, where given, must name those of which the deeper model has more."
        )
    return base[name]


def _beside(name: str, blocks: Blocks, base: Blocks) -> str:
    """The name in the base of what is in no block: in a numbered container as many other children stand before it."""
    parts = name.split(".")
    for k, part in enumerate(parts):
        container = ".".join(parts[:k])
        own, others = ({b.rpartition(".")[2] for b in some if container_of(b) == container} for some in (blocks, base))
        if part.isdigit() and any(key.isdigit() for key in own):
            place = int(part) - sum(key.isdigit() and int(key) < int(part) for key in own)
            number = next(islice((j for j in count() if str(j) not in others), place, None))
            return ".".join([*parts[:k], str(number), *parts[k + 1 :]])
    return name


def container_of(block: str) -> str:
    """The module that holds a block."""
    return block.rpartition(".")[0]


def stacks_of(blocks: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The blocks of every stack, such as an encoder and a decoder, by the name of what holds them, with ``*`` for
    numbers. One stack, or none, has no name."""
    stacks: dict[str, tuple[str, ...]] = {}
    for block in blocks:
        name = numberless(container_of(block)) or "*"
        stacks[name] = (*stacks.get(name, ()), block)
    return stacks if len(stacks) > 1 else {"": tuple(blocks)}


def block_of(name: str, blocks: Iterable[str]) -> str | None:
    """The block that holds a tensor, or None."""
    return next((block for block in blocks if name.startswith(f"{block}.")), None)


def in_any_block(name: str, blocks: Iterable[str]) -> str:
    """The name with ``*`` for its block: the same for what corresponds in several blocks."""
    block = block_of(name, blocks)
    return name if block is None else f"{block.rpartition('.')[0]}.*{name[len(block) :]}".lstrip(".")


# ---- A module behind a forward multiplier.


class Scaled(nn.Module):
    """Multiply the output of a module by a constant: ``factor * module(x)``. ``plan.apply_`` inserts it where needed.

    A plan still finds the parameters inside by their names. Attributes of the module can be read through it, so
    ``model.lm_head.weight`` is still the tied weight.

    Args:
        module: whose output, a tensor, is multiplied.
        factor: finite.

    Example::

        head = nfd.Scaled(torch.nn.Linear(64, 10), 0.25)
    """

    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"module must be a torch.nn.Module; got {type(module).__name__}.")
        self.scaled_module = module
        self.factor = check_real("factor", factor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output times the factor."""
        return self.factor * self.scaled_module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("scaled_module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_modules", {}).get("scaled_module")
        if inner is not None and name not in ("factor", "training", "scaled_module") and hasattr(inner, name):
            setattr(inner, name, value)  # Hugging Face ties weights by assignment
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:g}"
