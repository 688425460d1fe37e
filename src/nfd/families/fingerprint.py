"""A fingerprint of a version of a model's code: the modules that it builds, and their outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, first_line
from nfd.core.random import global_streams
from nfd.scaling.calls import call_with, device_of, doubled, evaluating, outputs_of

Build = Callable[[int, int], nn.Module]


def fingerprint(name: str, build: Build, size: tuple[int, int], sample: Any) -> str:
    """A hash of what a constructor builds at a size and at twice its width and depth.

    It holds the text of the modules, names, shapes and start of their tensors, and, in training mode in double
    precision, the outputs on the sample and their gradients, and the outputs in eval mode where they are others.
    Numbers count to six digits, so that the order of sums on another machine does not change it.

    Args:
        name: of the model, for messages. build: from (width, depth), under seeded streams. sample: an input.

    Raises:
        ValueError: where two builds differ or the sample cannot be passed: a ``version`` must then tell.
    """
    return fingerprint_of(name, lambda: _trace(build, size, sample))


def fingerprint_of(name: str, trace: Callable[[], str]) -> str:
    """A hash of what code computes, as ``trace`` tells it, twice alike; ``name`` is what messages call the code.

    Raises:
        ValueError: where two traces differ or there is none: a ``version`` must then tell.
    """
    try:
        first, second = trace(), trace()
    except Exception as error:  # whatever the user's code raises, perhaps in double precision alone
        raise InputError(
            f"{name} raised {type(error).__name__}, tried in double precision on the first batch: {first_line(error)}. "
            "Fix it; if only double precision fails, pass version=, a text that you change with the code."
        ) from error
    if first != second:
        raise InputError(
            f"{name} gives different results from the same seed, so changes of its code cannot be detected and a "
            "stored result could be stale. Pass version=, a text that you change with the code."
        )
    return blake2b(first.encode(), digest_size=10).hexdigest()


def check_version(version: object) -> None:
    """Raise TypeError unless it is a text or None."""
    if not isinstance(version, str | None):
        raise InputTypeError(f"version must be a text that changes with the code; got {version!r}.")


def _trace(build: Build, size: tuple[int, int], sample: Any) -> str:
    width, depth = size
    place = device_of(sample)
    with global_streams(0, [] if place.type == "cpu" else [place]):
        return "\n".join(_computed(build(w, d), sample) for w, d in (size, (2 * width, 2 * depth)))


def _computed(module: nn.Module, sample: Any) -> str:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    about = [str(module), *(f"{n} {list(t.shape)} {t.dtype} {digits(t)}" for n, t in tensors.items())]
    module = module.to(device_of(sample)).double().train()
    outputs = outputs_of(call_with(module, doubled(sample)))
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    weights = torch.linspace(1, 2, outputs.numel(), dtype=outputs.dtype, device=outputs.device).view_as(outputs)
    gradients = torch.autograd.grad((weights * outputs).sum(), list(trained.values()), allow_unused=True)
    about.append(f"outputs {list(outputs.shape)} {digits(outputs)}")
    about += [f"{n} {digits(g)}" for n, g in zip(trained, gradients, strict=True) if g is not None]
    with torch.no_grad(), evaluating(module):
        judged = f"outputs {list(outputs.shape)} {digits(outputs_of(call_with(module, doubled(sample))))}"
    return "\n".join(about if judged in about else [*about, f"in eval mode {judged}"])


def name_of(code: Any) -> str:
    """Module and name of code of the user's, and a hash of what it was made with, where it was.

    That are arguments of ``functools.partial``, variables of a closure, defaults, and attributes of an object: numbers
    and texts by their values, code by its name. So two that a constructor makes of different settings differ.
    """
    name, made_with = _described(code, ())
    return f"{name} {blake2b(made_with.encode(), digest_size=10).hexdigest()}" if made_with else name


def _described(value: Any, within: tuple[int, ...]) -> tuple[str, str]:
    """The name of a value, or the value itself where it is plain; and what it was made with, empty for nothing."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value), ""
    if isinstance(value, tuple | list):
        return "sequence", _listed(value, within)
    if isinstance(value, Mapping):
        return "mapping", _listed([part for pair in value.items() for part in pair], within)
    if isinstance(value, partial):
        return _described(value.func, within)[0], _listed([value.func, value.args, value.keywords], within)
    named = value if hasattr(value, "__qualname__") else type(value)
    name = f"{getattr(named, '__module__', None)}:{named.__qualname__}"
    if isinstance(value, type) or id(value) in within or not callable(value):
        return name, ""
    return name, _listed(_made_with(value), (*within, id(value)))


def _listed(values: Sequence[Any], within: tuple[int, ...]) -> str:
    return ", ".join(" ".join(_described(value, within)) for value in values)


def _made_with(code: Any) -> list[Any]:
    if isinstance(code, MethodType):
        owner = code.__self__
        return [code.__func__, owner if isinstance(owner, type) else getattr(owner, "__dict__", None)]
    if isinstance(code, FunctionType):
        variables = [*inspect.getclosurevars(code).nonlocals.values()] if code.__closure__ else []
        return [*variables, *(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values()]
    return [getattr(code, "__dict__", None)]


def digits(values: Tensor) -> str:
    """Two numbers that change with every entry: the size, and a sum with weights of its own for each place."""
    flat = values.detach().double().flatten().cpu()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    size, mixed = float(flat.norm()), float((flat * (places * math.sqrt(2) % 1 + 1)).sum())
    return f"{size:.6g} {mixed:.6g}" if abs(mixed) > 1e-6 * size else f"{size:.6g}"
