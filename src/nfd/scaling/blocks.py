"""Residual blocks: by a pattern, or as children of one kind in containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.names import matches, numberless
from nfd.scaling.tensors import modules

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Kind = str | tuple[Any, ...]
Blocks = dict[str, Kind]  # the kinds of blocks, by name in the order of the model


@dataclass(frozen=True)
class Repeated:
    """The kinds of children, by container, of which a deeper instance has more: its blocks, at every depth."""

    kinds: Mapping[str, frozenset[Kind]]

    def blocks_of(self, model: nn.Module) -> Blocks:
        """The children of these kinds, and what stands between them."""
        parts = modules(model)
        found: Blocks = {}
        for name, kinds in self.kinds.items():
            found |= _chosen(name, parts[name], kinds) if name in parts else {}
        return found


Where = str | Sequence[str] | Repeated | None  # as a user says it, or as two instances show it


def blocks_of(model: nn.Module, where: Where) -> Blocks:
    """The residual blocks: by a pattern or by their kinds, else as the containers show."""
    if isinstance(where, Repeated):
        return where.blocks_of(model)
    return blocks_found(model) if where is None else blocks_named(model, where)


def repeated(model: nn.Module, other: nn.Module) -> Repeated | None:
    """What containers have more of in one of two models: its kinds of blocks; None where there are none such."""
    first, second = modules(model), modules(other)
    kinds: dict[str, frozenset[Kind]] = {}
    for name, module in first.items():
        if name not in second or not isinstance(module, _CONTAINERS) or _is_inside(name, kinds):
            continue
        here, there = (Counter(map(kind_of, part.children())) for part in (module, second[name]))
        if here.total() != there.total():
            more = frozenset(kind for kind in here | there if here[kind] != there[kind])
            both = [_chosen(name, part, more) for part in (module, second[name])]  # with those that stand between
            kinds[name] = more.union(*(own.values() for own in both))
    return Repeated(kinds) if kinds else None


def blocks_named(model: nn.Module, pattern: str | Sequence[str]) -> Blocks:
    """The modules that fit a pattern such as ``"transformer.h.*"``; ValueError when there are none."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    named = {name: kind_of(module) for name, module in modules(model).items() if name}
    fitting = {name: kind for name, kind in named.items() if any(matches(name, p) for p in patterns)}
    missing = [p for p in patterns if not any(matches(name, p) for name in named)]
    if missing or not patterns:
        there = sorted({f"{container_of(name)}.*".lstrip(".") for name in blocks_found(model)})
        hint = f"Containers of similar modules in this model: {', '.join(there)}." if there else ""
        raise InputError(f"blocks must name modules of the model; no match for {', '.join(missing)!r}. {hint}".strip())
    return fitting


def blocks_found(model: nn.Module) -> Blocks:
    """Children of the outermost containers: all, where they are of one class, else those of kinds that stand twice."""
    return {name: kind for own in _containers(model, 2).values() for name, kind in own.items()}


def single_blocks(model: nn.Module) -> list[str]:
    """The modules that stand alone where others would be blocks, as patterns where nothing stands beside them."""
    parts, single = modules(model), []
    for container, own in _containers(model, 1).items():
        if len(own) == 1:
            (name,) = own
            single.append(f"{container}.*".lstrip(".") if len(parts[container]._modules) == 1 else name)
    return single


def _containers(model: nn.Module, least: int) -> dict[str, Blocks]:
    """The outermost containers that hold at least so many blocks, and these."""
    containers: dict[str, Blocks] = {}
    for name, module in modules(model).items():
        if isinstance(module, _CONTAINERS) and not _is_inside(name, containers):
            own = _chosen(name, module, None)
            if len(own) >= least:
                containers[name] = own
    return containers


def _is_inside(name: str, outer: Container[str]) -> bool:
    """Whether a module is a part of one of these."""
    parts = name.split(".") if name else []
    return any(".".join(parts[:k]) in outer for k in range(len(parts)))


def _chosen(name: str, container: nn.Module, kinds: frozenset[Kind] | None) -> Blocks:
    """The blocks of a container, of these kinds: all its children where they are of one class, else from the first to
    the last of the kinds, without what is no block between them.

    Where the kinds are not known, they are those of blocks that it holds twice, or of the only one.
    """
    children = {f"{name}.{key}".lstrip("."): child for key, child in container.named_children()}
    own = {key: kind_of(child) for key, child in children.items()}
    may = [key for key, child in children.items() if _is_block(child)]
    if len({type(child) for child in children.values()}) == 1:
        return own if kinds is not None or len(may) == len(own) else {}
    may = [key for key in may if not isinstance(children[key], nn.ModuleList | nn.ModuleDict)]
    if kinds is None:
        counted = Counter(own[key] for key in may)
        kinds = frozenset(kind for kind in counted if counted[kind] > 1 or len(may) == 1)
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


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.dim() >= 2 for p in module.parameters())


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


def _beside(name: str, blocks: Blocks, base: Blocks) -> str:
    """The name in the base of what is in no block: in a numbered container as many other children stand before it."""
    parts = name.split(".")
    for k, part in enumerate(parts):
        own, others = (_numbers(".".join(parts[:k]), some) for some in (blocks, base))
        if own and part.isdigit():
            place = int(part) - sum(number < int(part) for number in own)
            number = next(islice((j for j in count() if j not in others), place, None))
            return ".".join([*parts[:k], str(number), *parts[k + 1 :]])
    return name


def _numbers(container: str, blocks: Blocks) -> set[int]:
    """The numbers of the blocks of a container."""
    keys = (block.rpartition(".")[2] for block in blocks if container_of(block) == container)
    return {int(key) for key in keys if key.isdigit()}


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
