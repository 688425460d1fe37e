"""Checks of what users pass in: each error names the argument, what arrived, what was expected, what to do."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:  # the command line checks its options before it loads PyTorch
    import torch

MAX_SEED = 2**63 - 1


class UsageError(Exception):
    """What was asked for makes no sense; the message says why."""


def nearest(name: object, choices: Iterable[str]) -> str:
    """A hint such as ``" Did you mean 'relu'?"``, or an empty string when nothing is near."""
    close = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(argument: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise raise a ValueError with the nearest one."""
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(
        f"{argument} must be one of {', '.join(map(repr, options))}; got {value!r}.{nearest(value, options)}"
    )


def check_count(argument: str, value: SupportsIndex, minimum: int = 1) -> int:
    """Return ``value`` as an int of at least ``minimum``; TypeError if it is not a whole number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} must be a whole number; got {value!r} of type {type(value).__name__}.") from None
    if count < minimum:
        raise ValueError(f"{argument} must be at least {minimum}; got {count}.")
    return count


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int in [0, 2**63 - 1], or raise."""
    value = check_count("seed", seed, minimum=0)
    if value > MAX_SEED:
        raise ValueError(f"seed must be at most 2**63 - 1; got {value}.")
    return value


def check_real(
    argument: str, value: Any, *, above: float | None = None, least: float | None = None, below: float | None = None
) -> float:
    """Return ``value`` as a finite float, optionally ``> above``, ``>= least``, ``< below``."""
    if isinstance(value, bool | str):
        raise TypeError(f"{argument} must be a number; got {value!r} of type {type(value).__name__}.")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{argument} must be a number; got {value!r} of type {type(value).__name__}.") from None
    if not math.isfinite(number):
        raise ValueError(f"{argument} must be finite; got {number}.")
    if above is not None and number <= above:
        raise ValueError(f"{argument} must be greater than {above:g}; got {number:g}.")
    if least is not None and number < least:
        raise ValueError(f"{argument} must be at least {least:g}; got {number:g}.")
    if below is not None and number >= below:
        raise ValueError(f"{argument} must be less than {below:g}; got {number:g}.")
    return number


def check_device(device: torch.device | str) -> torch.device:
    """Return ``device`` if a tensor can be made there; otherwise say why not."""
    import torch

    try:
        place = torch.device(device)
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(
                f"device={str(device)!r} was asked for, but PyTorch sees no CUDA device; use device='cpu', or a "
                "machine with one and a build of PyTorch for its driver."
            ) from None
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that PyTorch can use here; got {device!r} ({reason}).") from None
    return place


def check_finite(argument: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if every entry is finite; otherwise say where the first bad one is."""
    finite = tensor.isfinite()
    if bool(finite.all()):
        return tensor
    where = tuple((~finite).nonzero()[0].tolist())
    value = tensor[where].item() if where else tensor.item()
    raise ValueError(
        f"{argument} must be finite; entry {list(where)} is {value} "
        f"({int((~finite).sum())} of {tensor.numel()} entries are bad). Remove or impute them first."
    )
