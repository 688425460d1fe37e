"""A model as it is written: the names and axes of its tensors, its residual blocks, and what no
plan takes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nfd.core.checks import check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.core.words import quoted

# ---- Dotted names of modules and tensors: patterns, what those of several blocks share, and lists
# of them


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern: ``*`` for any one part, a first or last ``**`` for one
    or more.
    """
    parts = name.split(".")
    wanted = pattern.split(".")
    if "**" in (wanted[0], wanted[-1]) and len(parts) < len(wanted):
        return False
    if wanted[-1] == "**":
        parts = parts[: len(wanted) - 1]
        wanted = wanted[:-1]
    elif wanted[0] == "**":
        parts = parts[len(parts) - len(wanted) + 1 :]
        wanted = wanted[1:]
    return len(parts) == len(wanted) and all(
        fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True)
    )


def numberless(name: str) -> str:
    """A name with ``*`` for every number: the same for what corresponds in several blocks or
    experts.
    """
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name)


# ---- Modules by name.

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
    """Every module by canonical name: without what DDP, FSDP, ``torch.compile`` and ``nfd.Scaled``
    put into it.

    Where one of these stands around a module, the name is the inner module's. Shared modules have
    several names.
    """
    named = dict[str, nn.Module]()
    ahead = [("", model)]
    while ahead:
        name, module = ahead.pop()
        inner = next((_WRAPPED[kind] for kind in _kinds(type(module)) if kind in _WRAPPED), None)
        if inner is not None and inner in module._modules:
            ahead.append((name, getattr(module, inner)))
            continue
        named[name] = module
        children = [
            (f"{name}.{key}" if name else key, m)
            for key, m in module._modules.items()
            if m is not None
        ]
        ahead += reversed(children)
    return named


def unwrapped(name: str) -> str:
    """The name of a tensor without the parts that wrappers put into it; a module of the user's may
    be one of them.
    """
    return ".".join(
        part for part in name.split(".") if part == "linear" or part not in _WRAPPED.values()
    )


# ---- Tensors: their names, owners, and which dimensions are fan-in and fan-out.

_ROUNDING = 1.01  # of bounds, in 16 bits
_TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class TensorInfo:
    """One parameter: canonical name, owner, and the dimensions that count its inputs and outputs.

    ``ins`` and ``outs`` are None where the module does not tell. ``names``: every name, of a shared
    parameter; ``readers``: those that are not of an embedding.
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
        """Whether it is a bias, a gain, or anything with one dimension or none that no output sums
        over.
        """
        return self.parameter.dim() < 2 and not self.ins

    @property
    def is_bias_of_pytorch(self) -> bool:
        """Whether it is a bias of a layer of PyTorch, within the bounds between which such layers
        draw it.
        """
        weight = self.owner._parameters.get("weight")
        if isinstance(self.owner, nn.RNNBase | nn.RNNCellBase):
            inputs = self.owner.hidden_size
        elif weight is not None and isinstance(self.owner, nn.Linear | _ConvNd | nn.Bilinear):
            inputs = (
                weight.shape[1]
                if isinstance(self.owner, nn.Bilinear)
                else math.prod(weight.shape[1:])
            )
        else:
            return False
        values = self.parameter.detach()
        named = self.name.rpartition(".")[2].startswith("bias")
        return named and (values.is_meta or bool((values.abs() <= _ROUNDING * inputs**-0.5).all()))

    def drawn(self, start: Tensor | None = None) -> Tensor:
        """Its entries that begin at random, as they are now or in its start: all but the row of
        padding of an embedding."""
        values = self.parameter.detach() if start is None else start
        row = self.padding
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
    """Every parameter by canonical name, shared ones once: under their first name, as what an
    embedding among their owners makes of them."""
    places: dict[int, list[tuple[str, nn.Module, nn.Parameter]]] = {}
    for prefix, module in modules(model).items():
        # named_parameters() has a shared one under its first name alone
        for key, p in module._parameters.items():
            if p is not None:
                places.setdefault(id(p), []).append(
                    (f"{prefix}.{key}" if prefix else key, module, p)
                )
    named = {}
    for own in places.values():
        names = tuple(dict.fromkeys(name for name, _, _ in own))
        chosen, owner, p = next((place for place in own if isinstance(place[1], _TABLES)), own[0])
        ins, outs = _axes(owner, chosen.rpartition(".")[2], p)
        readers = tuple(name for name, module, _ in own if not isinstance(module, _TABLES))
        named[names[0]] = TensorInfo(names[0], p, owner, names, readers, ins, outs)
    return named


def whole(tensor: Tensor) -> Tensor:
    """The numbers of a tensor; of one that is sharded by FSDP2 all of them, on each of the
    processes, which must all ask."""
    return cast(Tensor, tensor.full_tensor()) if hasattr(tensor, "full_tensor") else tensor


def give_back(model: nn.Module) -> None:
    """Modules that FSDP2 shards forget what they gathered for a pass, which the next pass would
    take otherwise.
    """
    for module in model.modules():
        if hasattr(module, "reshard") and "FSDPModule" in _kinds(type(module)):
            cast(Any, module).reshard()


def _axes(
    owner: nn.Module, attribute: str, p: Tensor
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Dimensions of fan-in and fan-out; None where the module does not tell, and a forward pass
    may.
    """
    every = tuple(range(p.dim()))
    if p.dim() < 2:
        return (), every
    if isinstance(owner, _ConvTransposeNd):
        return (0, *every[2:]), (1,)
    if isinstance(owner, _ConvNd | nn.Bilinear):
        return every[1:], (0,)
    if isinstance(owner, _TABLES):
        return (), every[-1:]
    known = isinstance(owner, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
    if p.dim() == 2 and (
        known
        or is_conv1d(owner)
        or (attribute.endswith("weight") and hasattr(owner, "in_features"))
    ):
        return ((0,), (1,)) if is_conv1d(owner) else ((1,), (0,))
    return None, None


def is_conv1d(owner: nn.Module) -> bool:
    """Whether a module is Hugging Face's linear layer, or a subclass of it, whose weight is [in,
    out].
    """
    # Asked of every tensor many times; to look at the names of all bases first took a sixth of a
    # self-test.
    return hasattr(owner, "nf") and "Conv1D" in _kinds(type(owner))


def _kinds(kind: type) -> tuple[str, ...]:
    """The names of a class and of its bases: of classes that are imported only where they are in
    use.
    """
    return tuple(base.__name__ for base in kind.mro())


# ---- What no plan takes.


def check_plannable(model: nn.Module, *, scaled: bool = False) -> None:
    """ValueError for weights that are not stored, so that there is no tensor to plan, draw or
    measure; for complex ones, which rules and optimizers are not about; and, where a plan scales,
    for matrices that are computed from other parameters, as a factor of those is none of theirs."""
    own = tensors(model)
    trained = {name for name, t in own.items() if t.parameter.requires_grad and not t.is_vector}
    if found := [
        name for name, part in modules(model).items() if getattr(part, "is_deferred", False) is True
    ]:
        raise InputError(
            f"A plan is for stored weights; these layers are deferred: {quoted(found)}. Plan or "
            "check the same model with stored weights, at any width on the meta device, and let "
            "nfd.defer(model, plan) replace them. Networks of nfd have their own net.param_groups, "
            "for nfd.SGD."
        )
    if found := [name for name, t in own.items() if t.parameter.is_complex()]:
        raise InputError(
            f"A plan scales real parameters; these are complex: {quoted(found)}. Hold both parts "
            "in one real parameter (torch.view_as_complex(parameter) in forward)."
        )
    computed = dict.fromkeys(
        numberless(how) for name, how in parametrized(model).items() if name in trained
    )
    if scaled and computed:
        raise InputError(
            "A plan scales the start and the rate of matrices; these are computed from other "
            f"parameters: {', '.join(computed)}. Remove this before planning and training "
            "(torch.nn.utils.parametrize.remove_parametrizations; remove_weight_norm or "
            "remove_spectral_norm where that made it), or freeze them. rule='standard' leaves them "
            "as they are."
        )


def parametrized(model: nn.Module) -> dict[str, str]:
    """Which tensor each parameter stands for, and by which function, that ``torch.nn.utils``
    computes a tensor from: of ``weight_norm``, ``spectral_norm``, ``orthogonal`` and every other
    parametrization. A mask of pruning is none.
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


# ---- Residual blocks: children of which a deeper instance has more, or that a pattern names.

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Kind = str | tuple[Any, ...]
Blocks = dict[str, Kind]  # the kinds of blocks, by name in the order of the model
Repeated = Mapping[str, frozenset[Kind]]  # the kinds of children that are blocks, by container
Where = str | Sequence[str] | Repeated | None  # as a user says it, or as two instances show it


def blocks_of(model: nn.Module, where: Where = None) -> Blocks:
    """The residual blocks: modules that fit a pattern such as ``"transformer.h.*"``, or those that
    are repeated; ValueError for a pattern that fits nothing."""
    parts = {name: part for name, part in modules(model).items() if name}
    if where is None or isinstance(where, Mapping):
        kinds = repeated(model) if where is None else where
        own = {name: kind_of(part) for name, part in parts.items()}
        return {
            name: kind for name, kind in own.items() if kind in kinds.get(container_of(name), ())
        }
    patterns = [where] if isinstance(where, str) else list(where)
    missing = [p for p in patterns if not any(matches(name, p) for name in parts)]
    if missing or not patterns:
        there = sorted({f"{container_of(name)}.*".lstrip(".") for name in blocks_of(model)})
        hint = f"Containers of similar modules in this model: {', '.join(there)}." if there else ""
        raise InputError(
            f"blocks must name modules of the model; no match for {', '.join(missing)!r}. "
            f"{hint}".strip()
        )
    return {
        name: kind_of(part)
        for name, part in parts.items()
        if any(matches(name, p) for p in patterns)
    }


def repeated(model: nn.Module, other: nn.Module | None = None) -> Repeated:
    """The kinds of blocks by container, the outermost that shows some: kinds of which another
    instance holds another number, or with no other instance those that it holds twice; and what
    could be a block between them."""
    first = _children(model)
    second = first if other is None else _children(other)
    found: dict[str, frozenset[Kind]] = {}
    for name, here in first.items():
        if name not in second or any(not outer or name.startswith(f"{outer}.") for outer in found):
            continue
        own = Counter(kind_of(child) for child in here if other is not None or _can_be_block(child))
        others = Counter({*own}) if other is None else Counter(map(kind_of, second[name]))
        # as many children of other kinds are stages, whose own children are blocks
        if own.total() != others.total():
            more = {kind for kind in own | others if own[kind] != others[kind]}
            found[name] = frozenset(_between(here, more) | _between(second[name], more))
    return found


def _children(model: nn.Module) -> dict[str, list[nn.Module]]:
    """The children of every container."""
    parts = modules(model)
    children: dict[str, list[nn.Module]] = {
        n: [] for n, part in parts.items() if isinstance(part, _CONTAINERS)
    }
    for name, part in parts.items():
        if name and container_of(name) in children:
            children[container_of(name)].append(part)
    return children


def _can_be_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.dim() > 1 for p in module.parameters())


def _between(children: Sequence[nn.Module], kinds: Container[Kind]) -> set[Kind]:
    """Those of these kinds that hold parameters, and what could be a block from the first to the
    last of them.
    """
    are = [kind_of(child) in kinds and any(True for _ in child.parameters()) for child in children]
    places = [k for k, is_block in enumerate(are) if is_block]
    inner = range(places[0], places[-1] + 1) if places else ()
    return {kind_of(children[k]) for k in inner if are[k] or _can_be_block(children[k])}


def kind_of(module: nn.Module) -> Kind:
    """The name of its class, of a container of PyTorch with the kinds of its children.

    A class that is made anew at every call of a constructor, or by FSDP2 when it shards, is the
    same.
    """
    kind = next(
        c for c in type(module).__mro__ if not c.__name__.startswith(("FSDP", "Parametrized"))
    )
    own = f"{kind.__module__}.{kind.__qualname__}"
    return (own, *map(kind_of, module.children())) if kind in _CONTAINERS else own


Place = tuple[str, Kind, str]


def place_of(name: str, blocks: Blocks) -> Place:
    """Where a tensor stands, the same in instances of every depth: in which kind of block, or else
    its name with the numbers that are left without the blocks before it in one container."""
    if (block := block_of(name, blocks)) is not None:
        return container_of(block), blocks[block], name[len(block) :]
    # such as the head behind eight blocks in one Sequential, which stands behind two in the base
    own = name.split(".")
    left = list(own)
    for k, part in enumerate(own):
        if part.isdigit():
            keys = [b.rpartition(".")[2] for b in blocks if container_of(b) == ".".join(own[:k])]
            left[k] = str(int(part) - sum(key.isdigit() and int(key) < int(part) for key in keys))
    return "", "", ".".join(left)


def places_of(names: Iterable[str], blocks: Blocks) -> dict[Place, list[str]]:
    """The tensors that stand alike, by their place."""
    places: dict[Place, list[str]] = {}
    for name in names:
        places.setdefault(place_of(name, blocks), []).append(name)
    return places


def alike(name: str, blocks: Blocks, places: Mapping[Place, Sequence[str]]) -> str | None:
    """The tensor of another instance in the place of one of this. Its first and last blocks often
    differ: they stand for the first and the last of their kind, and the second of it for all that
    are not there."""
    own = places.get(place_of(name, blocks), ())
    if (block := block_of(name, blocks)) is None or not own:
        return name if name in own else own[min(1, len(own) - 1)] if own else None
    alike = [
        b for b in blocks if container_of(b) == container_of(block) and blocks[b] == blocks[block]
    ]
    k = alike.index(block)
    return own[-1] if k == len(alike) - 1 else own[min(k, max(len(own) - 2, 1), len(own) - 1)]


def counterpart(
    t: TensorInfo,
    blocks: Blocks,
    base: Mapping[str, TensorInfo],
    places: Mapping[Place, Sequence[str]],
) -> TensorInfo:
    """The tensor of the base that corresponds to one of the model; ValueError when there is
    none.
    """
    name = alike(t.name, blocks, places)
    if name is None or len(base[name].shape) != len(t.shape):
        raise InputError(
            f"The base model has no block of the kind that {t.name!r} is in, or no such tensor of "
            f"{len(t.shape)} dimensions. Build both alike but for width and depth, with "
            "base=(width, depth) of a depth that has blocks of every kind; blocks, where given, "
            "must name those of which the deeper model has more."
        )
    return base[name]


def container_of(block: str) -> str:
    """The module that holds a block."""
    return block.rpartition(".")[0]


def stacks_of(blocks: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The blocks of every stack, such as an encoder and a decoder, by the name of what holds them,
    with ``*`` for numbers. One stack, or none, has no name."""
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
    return (
        name if block is None else f"{block.rpartition('.')[0]}.*{name[len(block) :]}".lstrip(".")
    )


# ---- A module behind a forward multiplier.


class Scaled(nn.Module):
    """Multiply the output of a module by a constant: ``factor * module(x)``. ``plan.apply_``
    inserts it where needed.

    A plan still finds the parameters inside by their names. Attributes of the module can be read
    through it, so ``model.lm_head.weight`` is still the tied weight.

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
        if (
            inner is not None
            and name not in ("factor", "training", "scaled_module")
            and hasattr(inner, name)
        ):
            setattr(inner, name, value)  # Hugging Face ties weights by assignment
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:g}"
