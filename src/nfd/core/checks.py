"""Checks of arguments, whose errors say what arrived, what was expected and what to do."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from nfd.core.errors import InputError, InputTypeError, in_brief
from nfd.core.names import MAX_SEED, MOST
from nfd.core.words import nearest

if TYPE_CHECKING:  # the command line checks its options before it loads PyTorch
    import torch


_Choice = TypeVar("_Choice")


def check_choice(argument: str, value: _Choice, choices: Iterable[str]) -> _Choice:
    """Return ``value`` if it is one of ``choices``.

    Otherwise raise a ValueError with the nearest one.
    """
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    raise InputError(
        f"{argument} must be one of {', '.join(map(repr, options))}; got "
        f"{value!r}.{nearest(value, options)}"
    )


def check_count(
    argument: str, value: SupportsIndex, minimum: int = 1, maximum: int = MAX_SEED
) -> int:
    """Return ``value`` as an int in ``[minimum, maximum]``.

    Raise TypeError if it is not a whole number.
    """
    try:
        if _is_truth(value):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise InputTypeError(
            f"{argument} must be a whole number; got {value!r} of type {type(value).__name__}."
        ) from None
    if count < minimum:
        raise InputError(f"{argument} must be at least {minimum}; got {count}.")
    if count > maximum:
        raise InputError(f"{argument} must be at most {maximum}; got {count}.")
    return count


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int in [0, 2**63 - 1], or raise."""
    return check_count("seed", seed, minimum=0)


def check_flag(argument: str, value: object) -> bool:
    """Return ``value`` if it is True or False, Python's or NumPy's."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise InputTypeError(f"{argument} must be True or False; got {value!r}.")
    return bool(value)


def check_takes(argument: str, function: Any, *names: str) -> None:
    """Raise InputTypeError unless this is a function of as many arguments as there are names."""
    wanted = f"{argument} must be a function of ({', '.join(names)})"
    if not callable(function):
        raise InputTypeError(f"{wanted}; got {type(function).__name__}.")
    try:
        form = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return
    try:
        form.bind(*names)
    except TypeError as error:
        raise InputTypeError(f"{wanted}; got one of {form}: {error}.") from None


def check_several(argument: str, value: Any, kind: str) -> list[Any]:
    """List the entries of a list, tuple, array or other iterable that is not a text.

    ``kind`` says what they should be.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return list(value)
    except TypeError:
        raise InputTypeError(
            f"{argument} must be a list of {kind}; got {value!r} of {type(value).__name__}."
        ) from None


def check_ascending(argument: str, sizes: Any, most: int) -> list[int]:
    """Return ``sizes`` as a list of ascending whole numbers of at most ``most``.

    Raise ValueError for anything else.
    """
    checked = [
        check_count(argument, size, maximum=most)
        for size in check_several(argument, sizes, "sizes")
    ]
    if not checked or checked != sorted(set(checked)):
        raise InputError(f"{argument} must be ascending; got {list(sizes)}.")
    return checked


def check_patterns(argument: str, value: str | Sequence[str] | None) -> str | list[str] | None:
    """Return ``value`` if it is a text, a list of texts, or None."""
    if value is None or isinstance(value, str):
        return value
    patterns = check_several(argument, value, "texts, or one text")
    if not all(isinstance(item, str) for item in patterns):
        raise InputTypeError(f"{argument} must be a text or a list of texts; got {value!r}.")
    return patterns


def check_real(
    argument: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a finite float, optionally ``> above``, ``>= least``, ``< below``."""
    try:
        if _is_truth(value) or isinstance(value, str | bytes | bytearray):
            raise TypeError
        number = float(value.detach() if hasattr(value, "detach") else value)
    # the last is PyTorch's, of several numbers
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputTypeError(
            f"{argument} must be a number; got {value!r} of type {type(value).__name__}."
        ) from None
    if not math.isfinite(number):
        raise InputError(f"{argument} must be finite; got {number}.")
    bounds = (
        (above, operator.gt, "greater than"),
        (least, operator.ge, "at least"),
        (below, operator.lt, "less than"),
    )
    for bound, holds, words in bounds:
        if bound is not None and not holds(number, bound):
            raise InputError(f"{argument} must be {words} {bound:g}; got {number:g}.")
    return number


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def check_depth(value: Any) -> float:
    """Return a number of blocks, a whole number of at most a million or infinity."""
    if value == math.inf:
        return math.inf
    return check_count("depth", value, maximum=MOST)


def check_dtype(value: torch.dtype) -> torch.dtype:
    """Return ``value`` if it is torch.float32 or torch.float64."""
    import torch

    if value not in (torch.float32, torch.float64):
        raise InputError(f"dtype must be torch.float32 or torch.float64; got {value!r}.")
    return value


def check_device(device: torch.device | str) -> torch.device:
    """Return ``device`` if a tensor can be made there; otherwise say why not."""
    import torch

    try:
        place = torch.device(device)
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"device must be one that PyTorch can use here, such as 'cpu'; got {device!r} "
            f"({in_brief(error)})."
        ) from None
    return place


def check_numbers(argument: str, value: Any) -> torch.Tensor:
    """Return real numbers as a tensor.

    A tensor stays as it is, without its gradient; anything else becomes a copy in float64.
    """
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        number = value.detach().clone() if value.is_inference() else value.detach()
    elif np.ma.is_masked(value):
        raise InputError(
            f"{argument} has masked entries, which stand for no number. Remove or fill them first."
        )
    else:
        try:
            array = np.array(value)
            if not np.iscomplexobj(array):
                array = array.astype(np.float64)
            number = torch.from_numpy(array)
        # the last is PyTorch's, of tensors in a list
        except (TypeError, ValueError, RuntimeError) as error:
            message = (
                f"{argument} must be an array of numbers; got {type(value).__name__} ({error})."
            )
            raise InputTypeError(message) from None
    if number.is_complex():
        raise InputTypeError(f"{argument} must be real; got {number.dtype}.")
    return number


def check_detached(argument: str, value: Any) -> None:
    """Refuse a tensor whose gradient the caller wants; under ``torch.no_grad()`` nobody does.

    For functions whose result has no gradient. Call it outside of ``undisturbed()``, which turns
    gradients on.
    """
    import torch
    from torch.autograd import forward_ad

    if not isinstance(value, torch.Tensor):
        return
    backward = value.requires_grad and torch.is_grad_enabled()
    forward = forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]
    if backward or forward:
        raise InputError(
            f"{argument} carries a gradient, and this function gives none: its result would be a "
            f"constant. Pass {argument}.detach(), or call it under torch.no_grad()."
        )


def check_finite(argument: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if it is dense and every entry is finite.

    Otherwise say where the first bad entry is.
    """
    if tensor.is_meta or "strided" not in str(tensor.layout):
        got = f"{tensor.layout} on {tensor.device}"
        raise InputTypeError(f"{argument} must be a dense tensor with numbers in it; got {got}.")
    finite = tensor.isfinite()
    if bool(finite.all()):
        return tensor
    where = tuple((~finite).nonzero()[0].tolist())
    value = tensor[where].item() if where else tensor.item()
    raise InputError(
        f"{argument} must be finite; entry {list(where)} is {value} "
        f"({int((~finite).sum())} of {tensor.numel()} entries are bad). Remove or impute them "
        "first."
    )
