"""Adapters of low rank, such as LoRA's: ``W x + c B A x`` with a frozen W.

A begins as its layer does, with deviation in^-1/2, and B at 0, so that the adapted network begins
as the frozen one. By its shape only, of many inputs and a few outputs, A would begin with in^-1.

Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1; Hayou et al., LoRA+ (arXiv 2402.12354).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from nfd.scaling.model import TensorInfo

# The name that peft gives to A.
_NAME = "lora_A"


def first_of_adapters(infos: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Find the matrix A of every adapter, and the frozen matrix beside it.

    A and B are trained. In the smallest module that holds A and a frozen matrix W, A has as many
    inputs as W, B as many outputs, and B as many inputs as A has outputs. B is 0, which sets an
    adapter apart from a bottleneck after a frozen layer. Where B is trained already, or has no
    numbers yet, only the name that peft gives to A shows it.
    """
    matrices = [info for info in infos.values() if info.ins and info.outs]
    frozen = _by_module(info for info in matrices if not info.parameter.requires_grad)
    if not frozen:
        return {}
    trained = [info for info in matrices if info.parameter.requires_grad]
    named = _by_module(trained)
    zero = _by_module(info for info in trained if _is_zero(info))
    adapters = {}
    for first in trained:
        module = next((name for name in _modules_around(first.name) if name in frozen), None)
        if module is None:
            continue
        seconds = named if _NAME in first.name.split(".") else zero
        beside = _map_beside(first, seconds.get(module, {}), frozen[module])
        if beside is not None:
            adapters[first.name] = beside
    return adapters


# A module has tensors of few sizes, so that these are compared in place of the tensors.
Sizes = tuple[int, int]
BySize = dict[Sizes, list[TensorInfo]]


def _by_module(infos: Iterable[TensorInfo]) -> dict[str, BySize]:
    """List tensors by the prefix of every module that holds them, and by inputs and outputs."""
    by_module = dict[str, BySize]()
    for info in infos:
        sizes = _count(info, info.ins), _count(info, info.outs)
        for module in _modules_around(info.name):
            by_module.setdefault(module, {}).setdefault(sizes, []).append(info)
    return by_module


def _map_beside(first: TensorInfo, seconds: BySize, frozen: BySize) -> str | None:
    """Name the frozen matrix that has the inputs of one and the outputs of another after it."""
    for (inputs, outputs), of_size in seconds.items():
        beside = frozen.get((_count(first, first.ins), outputs))
        is_another = len(of_size) > 1 or of_size[0].name != first.name
        if beside and is_another and inputs == _count(first, first.outs):
            return beside[0].name
    return None


def _modules_around(name: str) -> Iterator[str]:
    """Yield the prefixes of the modules that hold a tensor, the smallest one first."""
    parts = name.split(".")[:-1]
    for count in range(len(parts), 0, -1):
        yield ".".join(parts[:count]) + "."
    yield ""


def _is_zero(info: TensorInfo) -> bool:
    values = info.parameter.detach()
    return not values.is_meta and not values.any()


def _count(info: TensorInfo, dims: tuple[int, ...] | None) -> int:
    """Count the entries of some dimensions."""
    return math.prod(info.shape[k] for k in dims or ())
