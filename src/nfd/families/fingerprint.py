"""What tells one version of a model's code from another: what it builds and what that computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, first_line
from nfd.core.random import global_streams
from nfd.scaling.calls import call_with, device_of, doubled, outputs_of

Build = Callable[[int, int], nn.Module]


def fingerprint(name: str, build: Build, size: tuple[int, int], sample: Any) -> str:
    """A hash of what a constructor builds at a size and at twice its width and depth.

    It holds the text of the modules, names, shapes and start of their tensors, and, in training mode in double
    precision, the outputs on the sample and their gradients. Numbers count to six digits, so that the order of sums on
    another machine does not change it.

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
            "Mend it; if it only takes no double precision, pass version=, a text that you change with the code."
        ) from error
    if first != second:
        raise InputError(
            f"{name} computes otherwise each time, from the same seed, so that one version of its code cannot be told "
            "from another and a stored result could be a stale one. Pass version=, a text that you change with the "
            "code."
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
    return "\n".join(about)


def digits(values: Tensor) -> str:
    """Two numbers that change with every entry: the size, and a sum with weights of its own for each place."""
    flat = values.detach().double().flatten().cpu()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    size, mixed = float(flat.norm()), float((flat * (places * math.sqrt(2) % 1 + 1)).sum())
    return f"{size:.6g} {mixed:.6g}" if abs(mixed) > 1e-6 * size else f"{size:.6g}"
