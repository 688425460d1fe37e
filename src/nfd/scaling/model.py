"""A model as it is written: names and axes of its tensors, its residual blocks.

Also what no plan takes, and the module that multiplies the output of another.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nfd.core.checks import check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.core.words import listed, quoted

# ---- Dotted names of modules and tensors


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern.

    ``*`` stands for any one part, a first or last ``**`` for one or more parts.
    """
    parts = name.split(".")
    wanted = pattern.split(".")
    if "**" in (wanted[0], wanted[-1]) and len(parts) < len(wanted):
        return False
    if wanted[-1] == "**":
        wanted = wanted[:-1]
        parts = parts[: len(wanted)]
    elif wanted[0] == "**":
        wanted = wanted[1:]
        parts = parts[len(parts) - len(wanted) :]
    if len(parts) != len(wanted):
        return False
    return all(map(fnmatchcase, parts, wanted))


PATTERNS = (
    "A '*' stands for one part of a name, between dots; a first or last '**' for one or more."
)


def wider_pattern(pattern: str, names: Iterable[str]) -> str:
    """Return a hint such as ``" Did you mean '**.ln_*.*'?"`` for a pattern that fits no name.

    It is empty where no wider pattern fits. Names at the top of a model need a pattern of their
    own, as ``**`` stands for one part or more.
    """
    left = set(names)
    wider = list[str]()
    for candidate in (f"**.{pattern}", f"**.{pattern}.*", f"{pattern}.*", f"{pattern}.**"):
        fitting = {name for name in left if matches(name, candidate)}
        if fitting:
            wider.append(repr(candidate))
        left -= fitting
    if not wider:
        return ""
    return f" Did you mean {listed(wider)}?"


def numberless(name: str) -> str:
    """Replace every number in a name by ``*``, so that all blocks or experts share it."""
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name)


# ---- Modules by name.

# classes that put another name between a model and its parameters
_WRAPPED = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "Scaled": "scaled_module",
    "DeferredConv": "linear",
}


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """List every module by canonical name.

    It is without what DDP, FSDP, ``torch.compile`` and ``nfd.Scaled`` put into it. Where one of
    these stands around a module, the name is the inner module's. Shared modules have several names.
    """
    named = dict[str, nn.Module]()
    # A model has many modules of few classes.
    inner_of = dict[type, str | None]()
    ahead = [("", model)]
    while ahead:
        name, module = ahead.pop()
        kind = type(module)
        if kind not in inner_of:
            wrapper = next((base for base in _kinds(kind) if base in _WRAPPED), None)
            inner_of[kind] = None if wrapper is None else _WRAPPED[wrapper]
        inner = inner_of[kind]
        if inner is not None and inner in module._modules:
            ahead.append((name, getattr(module, inner)))
            continue
        named[name] = module
        children = list[tuple[str, nn.Module]]()
        for key, child in module._modules.items():
            if child is not None:
                children.append((_joined(name, key), child))
        ahead += reversed(children)
    return named


def _joined(place: str, key: str) -> str:
    """Name what a module holds; the model itself has an empty name."""
    return f"{place}.{key}" if place else key


def unwrapped(name: str) -> str:
    """Strip the parts that wrappers put into the name of a tensor."""
    # a module of the user's is often called linear
    inserted = {part for part in _WRAPPED.values() if part != "linear"}
    return ".".join(part for part in name.split(".") if part not in inserted)


# ---- Tensors: their names, owners, and which dimensions are fan-in and fan-out.

# of bounds, in 16 bits
_ROUNDING = 1.01
_TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class TensorInfo:
    """One parameter: canonical name, owner, and the dimensions that count its inputs and outputs.

    Attributes:
        names: all of them; several where the parameter is shared.
        readers: the names whose owner is not an embedding.
        ins, outs: the dimensions; None where the module does not show them.
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
        """Whether it is a bias or a gain: at most one dimension, over which no output sums."""
        return self.parameter.dim() < 2 and not self.ins

    @property
    def is_bias_of_pytorch(self) -> bool:
        """Whether it is a bias of a layer of PyTorch, within the bounds from which it is drawn."""
        inputs = self._inputs_of_bias()
        if inputs is None or not self.name.rpartition(".")[2].startswith("bias"):
            return False
        values = self.parameter.detach()
        return values.is_meta or bool((values.abs() <= _ROUNDING * inputs**-0.5).all())

    def _inputs_of_bias(self) -> int | None:
        """Count the inputs from which PyTorch takes the bounds of its owner's biases."""
        weight = self.owner._parameters.get("weight")
        if isinstance(self.owner, nn.RNNBase | nn.RNNCellBase):
            return self.owner.hidden_size
        if weight is None:
            return None
        if isinstance(self.owner, nn.Bilinear):
            return weight.shape[1]
        if isinstance(self.owner, nn.Linear | _ConvNd):
            return math.prod(weight.shape[1:])
        return None

    def drawn(self, start: Tensor | None = None) -> Tensor:
        """Return the entries that are random: all but an embedding's row of padding.

        They are taken from the initial tensor ``start``, or from the parameter as it is now.
        """
        values = self.parameter.detach() if start is None else start
        row = self.padding
        return values if row is None else torch.cat([values[:row], values[row + 1 :]])

    @property
    def padding(self) -> int | None:
        """The row of an embedding that stands for padding and is zero."""
        row = getattr(self.owner, "padding_idx", None)
        return row % self.shape[0] if isinstance(row, int) and len(self.shape) == 2 else None

    def fan_in(self) -> int | None:
        """Count the inputs that each of its outputs adds up; None where unknown."""
        return None if self.ins is None else math.prod(self.shape[k] for k in self.ins)


class _Holder(NamedTuple):
    """A module that holds a parameter, and the parameter's name there."""

    name: str
    module: nn.Module

    @property
    def is_table(self) -> bool:
        return isinstance(self.module, _TABLES)


def tensors(model: nn.Module) -> dict[str, TensorInfo]:
    """List every parameter by canonical name, shared ones once.

    A shared parameter has its first name, and the axes of an embedding if one holds it.
    """
    holders = dict[nn.Parameter, list[_Holder]]()
    for place, module in modules(model).items():
        # named_parameters() has a shared one only under its first name
        for key, p in module._parameters.items():
            if p is not None:
                holders.setdefault(p, []).append(_Holder(_joined(place, key), module))
    return {of_one[0].name: _tensor_info(p, of_one) for p, of_one in holders.items()}


def _tensor_info(p: nn.Parameter, holders: Sequence[_Holder]) -> TensorInfo:
    owner = next((holder for holder in holders if holder.is_table), holders[0])
    ins, outs = _axes(owner.module, owner.name.rpartition(".")[2], p)
    return TensorInfo(
        name=holders[0].name,
        parameter=p,
        owner=owner.module,
        names=tuple(dict.fromkeys(holder.name for holder in holders)),
        readers=tuple(holder.name for holder in holders if not holder.is_table),
        ins=ins,
        outs=outs,
    )


def whole(tensor: Tensor) -> Tensor:
    """Return all the numbers of a tensor, also of one that FSDP2 shards.

    All processes must ask for it at once; each gets the whole.
    """
    return cast(Tensor, tensor.full_tensor()) if hasattr(tensor, "full_tensor") else tensor


def give_back(model: nn.Module) -> None:
    """Let modules that FSDP2 shards forget what they gathered, so the next pass gathers anew."""
    for module in model.modules():
        if hasattr(module, "reshard") and "FSDPModule" in _kinds(type(module)):
            cast(Any, module).reshard()


def _axes(
    owner: nn.Module, attribute: str, p: Tensor
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Find the dimensions of fan-in and fan-out.

    They are None where the module does not show them; a forward pass may.
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
    if p.dim() > 2:
        return None, None
    if is_conv1d(owner):
        return (0,), (1,)
    is_of_pytorch = isinstance(
        owner, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase
    )
    is_like_linear = attribute.endswith("weight") and hasattr(owner, "in_features")
    if is_of_pytorch or is_like_linear:
        return (1,), (0,)
    return None, None


def is_conv1d(owner: nn.Module) -> bool:
    """Whether a module is Hugging Face's linear layer, whose weight is [in, out]."""
    # Asked of every tensor many times; to look at the names of all bases first took a sixth of a
    # self-test.
    return hasattr(owner, "nf") and "Conv1D" in _kinds(type(owner))


def _kinds(kind: type) -> tuple[str, ...]:
    """Name a class and its bases, to know classes that are imported only where they are in use."""
    return tuple(base.__name__ for base in kind.mro())


# ---- What no plan takes.


def check_written(argument: str, model: nn.Module) -> None:
    """Raise ValueError for a model that is not the module as it was written.

    Layers of a traced, scripted or exported model, and those of which no input has shown the size,
    cannot be read.
    """
    compiled = ""
    scripted = [n for n, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        # The model itself has the empty name.
        argument = f"{argument}.{scripted[0]}".rstrip(".")
        compiled = "a model that torch.jit traced or scripted"
    elif isinstance(model, torch.fx.GraphModule) and "eval" in vars(model):
        # Only torch.export writes its own over the method.
        compiled = "a model that torch.export made"
    if compiled:
        raise InputError(
            f"{argument} is {compiled}, whose layers cannot be read. Pass the module that it was "
            "made from; trace, script or export it after plan.apply_."
        )
    lazy = [name for name, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise InputError(
            f"{argument} has lazy parameters without a size: {quoted(lazy, 3)}. Call it once with "
            "an input before you pass it; let make_model= do that in the constructor."
        )


def check_plannable(model: nn.Module, *, scaled: bool = False) -> None:
    """Raise ValueError for weights that no plan takes.

    Weights that are not stored leave no tensor to plan, draw or measure; rules and optimizers are
    not about complex ones. Where a plan scales, it takes no matrices that are computed from other
    parameters: a factor of the matrix is not a factor of these.
    """
    by_name = tensors(model)
    deferred = [
        name
        for name, module in modules(model).items()
        if getattr(module, "is_deferred", False) is True
    ]
    if deferred:
        raise InputError(
            f"A plan is for stored weights; these layers are deferred: {quoted(deferred)}. Plan or "
            "check the same model with stored weights, at any width on the meta device, and let "
            "nfd.defer(model, plan) replace them. Networks of nfd have their own net.param_groups, "
            "for nfd.SGD."
        )
    complex_ones = [name for name, t in by_name.items() if t.parameter.is_complex()]
    if complex_ones:
        raise InputError(
            f"A plan scales real parameters; these are complex: {quoted(complex_ones)}. Hold both "
            "parts in one real parameter (torch.view_as_complex(parameter) in forward)."
        )
    if not scaled:
        return
    computed = dict[str, None]()
    for name, how in parametrized(model).items():
        t = by_name.get(name)
        if t is not None and t.parameter.requires_grad and not t.is_vector:
            computed[numberless(how)] = None
    if computed:
        raise InputError(
            "A plan scales the start and the rate of matrices; these are computed from other "
            f"parameters: {', '.join(computed)}. Remove this before planning and training "
            "(torch.nn.utils.parametrize.remove_parametrizations; remove_weight_norm or "
            "remove_spectral_norm where that made it), or freeze them. rule='standard' leaves them "
            "as they are."
        )


def parametrized(model: nn.Module) -> dict[str, str]:
    """Say of parameters from which ``torch.nn.utils`` computes a tensor: which tensor, and how.

    These are ``weight_norm``, ``spectral_norm``, ``orthogonal`` and every other parametrization. A
    mask of pruning is not one.
    """
    computed = dict[str, str]()
    for place, module in modules(model).items():
        if isinstance(module, ParametrizationList):
            owner, _, key = place.rpartition("parametrizations.")
            how = f"{owner}{key} by {type(module[0]).__name__.lstrip('_')}"
            computed |= {f"{place}.{name}": how for name, _ in module.named_parameters()}
        for hook in module._forward_pre_hooks.values():
            if not isinstance(hook, WeightNorm | SpectralNorm):
                continue
            how = f"{_joined(place, hook.name)} by {type(hook).__name__}"
            for key in module._parameters:
                if key.startswith(f"{hook.name}_"):
                    computed[_joined(place, key)] = how
    return computed


# ---- Residual blocks: children of which a deeper instance has more, or that a pattern names.

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Kind = str | tuple[Any, ...]


class Blocks(dict[str, Kind]):
    """The kinds of blocks, by name in the order of the model.

    A plan asks of every tensor where its block stands. What it asks is listed here once, so that a
    plan takes time in proportion to the number of tensors, and not to its square.
    """

    @cached_property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """The number of each block among those of its kind in its container, and their count."""
        of_kind = dict[tuple[str, Kind], list[str]]()
        for block, kind in self.items():
            of_kind.setdefault((container_of(block), kind), []).append(block)
        ranks = {}
        for alike_blocks in of_kind.values():
            for number, block in enumerate(alike_blocks):
                ranks[block] = number, len(alike_blocks)
        return ranks

    @cached_property
    def numbers(self) -> dict[str, list[int]]:
        """The numbers of the numbered blocks of each container, in order."""
        numbers = dict[str, list[int]]()
        for block in self:
            holder, _, key = block.rpartition(".")
            if key.isdigit():
                numbers.setdefault(holder, []).append(int(key))
        return {holder: sorted(of_holder) for holder, of_holder in numbers.items()}


# the kinds of children that are blocks, by container
Repeated = Mapping[str, frozenset[Kind]]
# as a user says it, or as two instances show it
Where = str | Sequence[str] | Repeated | None


def blocks_of(model: nn.Module, where: Where = None) -> Blocks:
    """Find the residual blocks: modules that fit a pattern, or those that are repeated.

    Args:
        where: patterns such as ``"transformer.h.*"``, or what ``repeated`` returns. By default that
            is looked up.

    Raises:
        ValueError: for a pattern that fits nothing.
    """
    parts = {name: part for name, part in modules(model).items() if name}
    blocks = Blocks()
    if where is None or isinstance(where, Mapping):
        kinds = repeated(model) if where is None else where
        for name, part in parts.items():
            kind = kind_of(part)
            if kind in kinds.get(container_of(name), ()):
                blocks[name] = kind
        return blocks
    patterns = [where] if isinstance(where, str) else list(where)
    missing = set(patterns)
    for name, part in parts.items():
        fitting = [pattern for pattern in patterns if matches(name, pattern)]
        missing -= {*fitting}
        if fitting:
            blocks[name] = kind_of(part)
    if missing or not patterns:
        unmatched = ", ".join(pattern for pattern in patterns if pattern in missing)
        containers = sorted({f"{container_of(name)}.*".lstrip(".") for name in blocks_of(model)})
        hint = ""
        if containers:
            hint = f" Containers of similar modules in this model: {', '.join(containers)}."
        raise InputError(
            f"blocks must name modules of the model; no match for {unmatched!r}.{hint}"
        )
    return blocks


def repeated(model: nn.Module, other: nn.Module | None = None) -> Repeated:
    """Find the kinds of children that are blocks, in the outermost containers that have some.

    These are the kinds of which another instance holds another number, or without another instance
    the kinds that the container holds twice; and what could be a block between them.
    """
    children = _children(model)
    other_children = children if other is None else _children(other)
    blocks = dict[str, frozenset[Kind]]()
    for container, here in children.items():
        is_inside = any(not outer or container.startswith(f"{outer}.") for outer in blocks)
        if is_inside or container not in other_children:
            continue
        there = other_children[container]
        if other is None:
            counts = Counter(kind_of(child) for child in here if _can_be_block(child))
            other_counts = Counter({*counts})
        else:
            counts = Counter(map(kind_of, here))
            other_counts = Counter(map(kind_of, there))
        # as many children of other kinds are stages, whose own children are blocks
        if counts.total() != other_counts.total():
            kinds = {kind for kind in counts | other_counts if counts[kind] != other_counts[kind]}
            blocks[container] = frozenset(_between(here, kinds) | _between(there, kinds))
    return blocks


def _children(model: nn.Module) -> dict[str, list[nn.Module]]:
    """List the children of every container."""
    parts = modules(model)
    children = dict[str, list[nn.Module]]()
    for name, part in parts.items():
        if isinstance(part, _CONTAINERS):
            children[name] = []
    for name, part in parts.items():
        if name and container_of(name) in children:
            children[container_of(name)].append(part)
    return children


def _can_be_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.dim() > 1 for p in module.parameters())


def _between(children: Sequence[nn.Module], kinds: Container[Kind]) -> set[Kind]:
    """Find the kinds of children from the first to the last block.

    Blocks are those of these kinds that hold parameters; between them, what could be a block.
    """
    are_blocks = [
        kind_of(child) in kinds and any(True for _ in child.parameters()) for child in children
    ]
    places = [place for place, is_block in enumerate(are_blocks) if is_block]
    if not places:
        return set()
    from_first_to_last = set[Kind]()
    for place in range(places[0], places[-1] + 1):
        if are_blocks[place] or _can_be_block(children[place]):
            from_first_to_last.add(kind_of(children[place]))
    return from_first_to_last


def kind_of(module: nn.Module) -> Kind:
    """Name a module's class, and for a container of PyTorch the kinds of its children.

    A class that is made anew at every call of a constructor, or by FSDP2 when it shards, keeps its
    name.
    """
    written = next(
        c for c in type(module).__mro__ if not c.__name__.startswith(("FSDP", "Parametrized"))
    )
    name = f"{written.__module__}.{written.__qualname__}"
    return (name, *map(kind_of, module.children())) if written in _CONTAINERS else name


Place = tuple[str, Kind, str]


def place_of(name: str, blocks: Blocks) -> Place:
    """Find where a tensor stands, in words that are the same for instances of every depth.

    That is the kind of block it is in. Outside blocks it is its name, whose numbers do not count
    the blocks before it in one container, such as those before a head in one Sequential: after
    eight blocks in the model, after two in its base.
    """
    block = block_of(name, blocks)
    if block is not None:
        return container_of(block), blocks[block], name[len(block) :]
    parts = name.split(".")
    counted = list(parts)
    for place, part in enumerate(parts):
        if part.isdigit():
            container = ".".join(parts[:place])
            # the numbered blocks of the container that stand before this child
            before = bisect_left(blocks.numbers.get(container, ()), int(part))
            counted[place] = str(int(part) - before)
    return "", "", ".".join(counted)


def places_of(names: Iterable[str], blocks: Blocks) -> dict[Place, list[str]]:
    """Group tensors by their place."""
    places = dict[Place, list[str]]()
    for name in names:
        places.setdefault(place_of(name, blocks), []).append(name)
    return places


def alike(name: str, blocks: Blocks, places: Mapping[Place, Sequence[str]]) -> str | None:
    """Find the tensor of another instance in the place of one of this; None where it has none.

    The first and the last block of a kind often differ from the rest: they stand for the first and
    the last, and the second for all that are not there.
    """
    there = places.get(place_of(name, blocks), ())
    if not there:
        return None
    block = block_of(name, blocks)
    if block is None:
        return name if name in there else there[min(1, len(there) - 1)]
    number, count = blocks.ranks[block]
    last = len(there) - 1
    if number == count - 1:
        return there[last]
    inner = min(max(last - 1, 1), last)
    return there[min(number, inner)]


PARAMETER_LISTS = (
    "Lists of parameters do not show which of them make a block: let a module hold those of each, "
    "and one nn.ModuleList the modules."
)


def counterpart(
    t: TensorInfo,
    blocks: Blocks,
    base: Mapping[str, TensorInfo],
    places: Mapping[Place, Sequence[str]],
) -> TensorInfo:
    """Return the base's tensor for one of the model; raise ValueError where there is none."""
    name = alike(t.name, blocks, places)
    if name is None and isinstance(t.owner, nn.ParameterList | nn.ParameterDict):
        raise InputError(
            f"{t.name!r} is in a list of parameters that is shorter in the base. {PARAMETER_LISTS}"
        )
    if name is None or len(base[name].shape) != len(t.shape):
        raise InputError(
            f"The base model has no block of the kind that {t.name!r} is in, or no such tensor of "
            f"{len(t.shape)} dimensions. Build both alike but for width and depth, with "
            "base=(width, depth) of a depth that has blocks of every kind; blocks, where given, "
            "must name those of which the deeper model has more."
        )
    return base[name]


def container_of(block: str) -> str:
    """Name the module that holds a block."""
    return block.rpartition(".")[0]


def stacks_of(blocks: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group blocks by stack, such as an encoder and a decoder.

    The name of a stack is the name of what holds its blocks, with ``*`` for numbers. One stack, or
    none, has an empty name.
    """
    stacks = dict[str, list[str]]()
    for block in blocks:
        stacks.setdefault(numberless(container_of(block)) or "*", []).append(block)
    if len(stacks) < 2:
        return {"": tuple(blocks)}
    return {name: tuple(members) for name, members in stacks.items()}


def block_of(name: str, blocks: Container[str]) -> str | None:
    """Name the block that holds a tensor, the outermost of several, or return None.

    ``blocks`` is a set or a mapping where this is asked of many tensors.
    """
    end = name.find(".")
    while end >= 0:
        if name[:end] in blocks:
            return name[:end]
        end = name.find(".", end + 1)
    return None


def in_any_block(name: str, blocks: Container[str]) -> str:
    """Replace its block in a name by ``*``, so that what corresponds in all blocks shares it."""
    block = block_of(name, blocks)
    if block is None:
        return name
    return f"{container_of(block)}.*{name[len(block) :]}".lstrip(".")


# ---- A module with a forward multiplier.


class Scaled(nn.Module):
    """A module whose output is multiplied by a constant: ``factor * module(x)``.

    ``plan.apply_`` inserts it where needed. A plan still finds the parameters inside by their
    names. Attributes of the module can be read through it, so ``model.lm_head.weight`` is still the
    tied weight.

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
        is_ours = inner is None or name in ("factor", "training", "scaled_module")
        if is_ours or not hasattr(inner, name):
            super().__setattr__(name, value)
            return
        # Hugging Face ties weights by assignment
        setattr(inner, name, value)

    def extra_repr(self) -> str:
        """Show the factor."""
        return f"factor={self.factor:g}"
