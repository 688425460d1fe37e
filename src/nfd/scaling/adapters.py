"""Adapters of low rank, such as LoRA's: ``W x + c B A x`` with a frozen W.

A begins as its layer does, with deviation in^-1/2, and B at 0, so that the adapted network begins
as the frozen one. By its shape only, of many inputs and a few outputs, A would begin with in^-1.

Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1; Hayou et al., LoRA+ (arXiv 2402.12354).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

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
    frozen = [info for info in matrices if not info.parameter.requires_grad]
    trained = [info for info in matrices if info.parameter.requires_grad]
    adapters = {}
    for first in trained:
        module = _smallest_with(first, frozen)
        if module is None:
            continue
        beside = [info for info in frozen if info.name.startswith(module)]
        seconds = [info for info in trained if info.name.startswith(module) and info != first]
        for second in seconds:
            fitting = [info for info in beside if _is_map_beside(first, second, info)]
            if fitting and _starts_as_adapter(first, second):
                adapters[first.name] = fitting[0].name
    return adapters


def _smallest_with(tensor: TensorInfo, others: list[TensorInfo]) -> str | None:
    """Return the prefix of the smallest module that holds a tensor and one of the others."""
    for module in _modules_around(tensor.name):
        if any(other.name.startswith(module) for other in others):
            return module
    return None


def _modules_around(name: str) -> Iterator[str]:
    """Yield the prefixes of the modules that hold a tensor, the smallest one first."""
    parts = name.split(".")[:-1]
    for count in range(len(parts), 0, -1):
        yield ".".join(parts[:count]) + "."
    yield ""


def _is_map_beside(first: TensorInfo, second: TensorInfo, frozen: TensorInfo) -> bool:
    """Whether two matrices, one after the other, have the sizes of a frozen one."""
    has_inputs = _count(first, first.ins) == _count(frozen, frozen.ins)
    has_outputs = _count(second, second.outs) == _count(frozen, frozen.outs)
    return has_inputs and has_outputs and _count(first, first.outs) == _count(second, second.ins)


def _starts_as_adapter(first: TensorInfo, second: TensorInfo) -> bool:
    values = second.parameter.detach()
    is_zero = not values.is_meta and not values.any()
    return is_zero or _NAME in first.name.split(".")


def _count(info: TensorInfo, dims: tuple[int, ...] | None) -> int:
    """Count the entries of some dimensions."""
    return math.prod(info.shape[k] for k in dims or ())
