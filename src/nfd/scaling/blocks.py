"""Residual blocks: by a pattern, or as containers of modules of one kind."""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.names import matches
from nfd.scaling.tensors import modules

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def blocks_of(model: nn.Module, pattern: str | Sequence[str] | None) -> list[str]:
    """Names of the residual blocks: by a pattern, else as the containers show."""
    return blocks_found(model) if pattern is None else blocks_named(model, pattern)


def repeated(model: nn.Module, other: nn.Module) -> list[str]:
    """Patterns of the blocks of which one of two models has more: of containers with other numbers of modules."""
    first, second = modules(model), modules(other)
    return [
        f"{name}.*".lstrip(".")
        for name, module in first.items()
        if isinstance(module, _CONTAINERS) and name in second and len(_children(module)) != len(_children(second[name]))
    ]


def blocks_named(model: nn.Module, pattern: str | Sequence[str]) -> list[str]:
    """Names of the modules that fit a pattern such as ``"transformer.h.*"``; ValueError when there are none."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    names = [name for name in modules(model) if name]
    fitting = [name for name in names if any(matches(name, p) for p in patterns)]
    missing = [p for p in patterns if not any(matches(name, p) for name in names)]
    if missing or not patterns:
        there = sorted({f"{name.rpartition('.')[0]}.*".lstrip(".") for name in blocks_found(model)})
        hint = f"Containers of similar modules in this model: {', '.join(there)}." if there else ""
        raise InputError(f"blocks must name modules of the model; no match for {', '.join(missing)!r}. {hint}".strip())
    return fitting


def blocks_found(model: nn.Module) -> list[str]:
    """Children of the outermost containers that hold two or more modules of one class, with parameters and parts."""
    return [child for children in _alike(model, 2).values() for child in children]


def single_blocks(model: nn.Module) -> list[str]:
    """Patterns of the containers that hold one module alone, which may be a block."""
    return [f"{container}.*".lstrip(".") for container, children in _alike(model, 1).items() if len(children) == 1]


def _alike(model: nn.Module, least: int) -> dict[str, list[str]]:
    """The outermost containers that hold at least so many modules, all blocks of one class, and their children."""
    containers: dict[str, list[str]] = {}
    for name, module in modules(model).items():
        inside = any(name.startswith(f"{outer}.") for outer in containers)
        if inside or not isinstance(module, _CONTAINERS):
            continue
        children = dict(module.named_children())
        kinds = {type(child) for child in children.values()}
        if len(children) >= least and len(kinds) == 1 and all(map(_is_block, children.values())):
            containers[name] = [f"{name}.{key}".lstrip(".") for key in children]
    return containers


def _children(module: nn.Module) -> list[nn.Module]:
    return list(module.children())


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.dim() >= 2 for p in module.parameters())


def in_base(name: str, blocks: Sequence[str], base_blocks: Sequence[str], names: Container[str]) -> str:
    """The name in the base model of a tensor of the model: in the same block where it is there, else in one alike.

    That is the second that has such a tensor, as the first block often differs, or the first.
    """
    block = block_of(name, blocks)
    if block is None or name in names:
        return name
    alike = [b + name[len(block) :] for b in base_blocks if container_of(b) == container_of(block)]
    there = [candidate for candidate in alike if candidate in names]
    return there[min(1, len(there) - 1)] if there else name


def container_of(block: str) -> str:
    """The module that holds a block."""
    return block.rpartition(".")[0]


def block_of(name: str, blocks: Sequence[str]) -> str | None:
    """The block that holds a tensor, or None."""
    return next((block for block in blocks if name.startswith(f"{block}.")), None)


def in_any_block(name: str, blocks: Sequence[str]) -> str:
    """The name with ``*`` for its block: the same for what corresponds in several blocks."""
    block = block_of(name, blocks)
    return name if block is None else f"{block.rpartition('.')[0]}.*{name[len(block) :]}".lstrip(".")
