"""Batches as users give them: checked, as tensors, and on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nfd.core.errors import InputError, check_several
from nfd.core.machine import plain
from nfd.scaling.model import batch_size, check_not_empty, check_sample, mapped, on_device

BATCHES = "(inputs, targets) or dicts of keyword arguments, one per step"


def pairs_of(batches: Iterable[Any], argument: str = "batches") -> list[tuple[Any, Any]]:
    """Batches (inputs, targets) as a list, arrays of NumPy as tensors.

    A batch that is a mapping holds the inputs by keyword, and its targets are None. ``argument`` is what messages call
    the batches.

    Raises:
        ValueError, TypeError: naming what is no batch or not finite.
    """
    _check_is_list(argument, batches)
    given = check_several(argument, batches, BATCHES)
    pairs = [(batch, None) if isinstance(batch, Mapping) else batch for batch in given]
    other = [pair for pair in pairs if not isinstance(pair, tuple | list) or len(pair) != 2]
    if not pairs or other:
        arrived = _kind(other[0]) if pairs else "none"
        raise InputError(f"{argument} must be a list of {BATCHES}; got {arrived}.")
    pairs = [mapped(tuple(pair), _as_tensor) for pair in pairs]
    for step, (x, y) in enumerate(pairs):
        check_sample(f"inputs of {argument}[{step}]", x)
        batch_size(x, f"inputs of {argument}[{step}]")
        check_sample(f"targets of {argument}[{step}]", y)
        check_not_empty(f"inputs of {argument}[{step}]", x)
        check_not_empty(f"targets of {argument}[{step}]", y)
    return pairs


def _check_is_list(argument: str, batches: Iterable[Any]) -> None:
    """ValueError where one batch, or a stack of batches, stands for a list of them."""
    if isinstance(batches, Mapping):
        raise InputError(f"{argument} must be a list of {BATCHES}; got a single dict. Put it into a list: [batch].")
    pair = batches if isinstance(batches, tuple | list) and len(batches) == 2 else ()
    if pair and all(isinstance(part, Tensor | np.ndarray) for part in pair):
        shapes = " and ".join(str(list(part.shape)) for part in pair)
        raise InputError(
            f"{argument} must be a list of {BATCHES}; got two tensors, {shapes}. If they are one batch, pass "
            "[(inputs, targets)]; if their first dimension counts steps, list(zip(inputs, targets))."
        )


def batches_in_words(steps: int, shape: Sequence[int]) -> str:
    """``20 steps of 32 samples [32, 64]``, of the shape of the inputs of a batch."""
    samples = shape[0] if shape else 1
    return f"{steps} step{'s'[: steps != 1]} of {samples} sample{'s'[: samples != 1]} {list(shape)}"


def _kind(value: Any) -> str:
    return type(value).__name__ + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def placed(pairs: Sequence[tuple[Any, Any]], place: torch.device | None) -> list[tuple[Any, Any]]:
    """The same batches with their tensors on a device, or where they are."""
    return [on_device(tuple(pair), place) for pair in pairs]


def _as_tensor(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        return torch.from_numpy(part)
    return plain(part) if isinstance(part, Tensor) else part


def cut(pairs: Sequence[tuple[Any, Any]], size: int) -> list[tuple[Any, Any]]:
    """The samples of some batches in the same order, in batches of another size.

    Raises:
        ValueError: where the size does not divide the samples, or a tensor has no row for every sample of its batch.
    """
    counts = [batch_size(inputs) for inputs, _ in pairs]
    for pair, count in zip(pairs, counts, strict=True):
        mapped(pair, partial(_check_rows, count=count))
    if sum(counts) % size:
        raise InputError(f"batch_size must divide the {sum(counts)} samples of the batches; got {size}.")
    whole = _joined(pairs)
    return [mapped(whole, partial(_rows, first=first, size=size)) for first in range(0, sum(counts), size)]


def _check_rows(part: Any, count: int) -> None:
    if isinstance(part, Tensor) and (part.dim() == 0 or len(part) != count):
        raise InputError(
            f"batch_size cannot vary where a tensor of the batches has no row for every sample; got {list(part.shape)} "
            f"in a batch of {count}."
        )


def _joined(parts: Sequence[Any]) -> Any:
    """The parts of all batches at one place as one."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if type(first) in (tuple, list):
        return type(first)(_joined(group) for group in zip(*parts, strict=True))
    if any(part != first for part in parts):
        raise InputError(f"batch_size cannot vary where batches differ in more than tensors; got {first!r} and others.")
    return first


def _rows(part: Any, first: int, size: int) -> Any:
    return part[first : first + size] if isinstance(part, Tensor) else part
