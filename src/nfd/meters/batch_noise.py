"""The noise of a model's gradients at its weights of the moment, simple and by curvature, from batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.tables import as_text, table_of
from nfd.meters.noise import GradientNoise, Gradients, inner
from nfd.scaling.model import batch_size
from nfd.training.batches import cut
from nfd.training.task import Pair, check_labels

_PARTS = 8  # of a batch, at most
_STEP = 1e-3  # of the length of the weights, to either side of them: a difference of gradients stands for H g
KINDS = ("simple", "curved")


def noise_of(
    module: nn.Module, net: Callable[[Any], Any], loss: Callable[[Any, Any], Tensor], batches: Sequence[Pair]
) -> dict[str, GradientNoise]:
    """The simple noise of a model's gradients and that by curvature, in samples.

    A batch is cut into equal parts, at most eight, which make one group (``nfd.meters.noise``). The Hessian of a group
    is that of the loss of the batch that follows: ``H g = (grad L(w + s g) - grad L(w - s g)) / 2s``. The model is what
    it was afterwards, to the last bit.

    Args:
        module: whose parameters that train are looked at.
        net: from the inputs of a batch to outputs. loss: from outputs and targets to a mean over samples.
        batches: as ``samples_of_a_part`` takes them, drawn independently.
    """
    samples = samples_of_a_part(batches)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def gradients(pair: Pair) -> list[Tensor | None]:
        inputs, targets = pair
        return list(torch.autograd.grad(loss(net(inputs), targets), parameters, allow_unused=True))

    parts = batch_size(batches[0][0]) // samples
    noises = {kind: GradientNoise(samples, parts) for kind in KINDS}
    for pair, other in zip(batches, [*batches[1:], batches[0]], strict=True):
        for part in cut([pair], samples):
            own = gradients(part)
            noises["simple"].add(own)
            noises["curved"].add(own, _images(parameters, own, partial(gradients, other)))
    return noises


def samples_of_a_part(batches: Sequence[Pair]) -> int:
    """How many samples the micro-batches have that batches are cut into.

    Raises:
        ValueError: where there are fewer than two batches, of several sizes, of a size that cannot be cut, or with a
            part of which no label counts.
    """
    sizes = {batch_size(inputs) for inputs, _ in batches}
    if len(batches) < 2 or len(sizes) > 1:
        raise InputError(
            f"noise needs two batches or more, of one size; got {len(batches)} of {sorted(sizes)} samples."
        )
    (size,) = sizes
    parts = max((m for m in range(2, _PARTS + 1) if size % m == 0), default=0)
    if not parts:
        raise InputError(f"noise needs batches of a size that a number from 2 to {_PARTS} divides; got {size} samples.")
    for pair in batches:
        check_labels(f"noise's parts of {size // parts} samples ", cut([pair], size // parts))
    return size // parts


def noise_rows(about: Mapping[str, Any], noises: Mapping[str, GradientNoise]) -> list[dict[str, Any]]:
    """One row for each kind: the noise scale in samples as ``value``, ``low`` and ``high``, and the two numbers that it
    is the ratio of, ``variance`` of one sample over ``signal``."""
    return [
        {
            **about,
            "noise": kind,
            **noise.estimate().limits,
            "signal": noise.signal.value,
            "variance": noise.variance.value,
        }
        for kind, noise in noises.items()
    ]


def noise_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table for people."""
    table = table_of("width", "depth", "seed", "noise", "noise scale [95 % interval]")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("width", "depth", "seed", "noise")), _in_words(row))
    return as_text(table, 120)


def _in_words(row: Mapping[str, Any]) -> str:
    value, low, high = (row[name] for name in ("value", "low", "high"))
    if math.isnan(low):
        return "unknown"
    return f"{value:.3g} [{low:.3g}, {high:.3g}]" if math.isfinite(high) else f"at least {low:.3g}"


def _images(
    parameters: Sequence[nn.Parameter], direction: Gradients, gradients: Callable[[], Gradients]
) -> list[Tensor | None]:
    """Products of the Hessian with a direction, by a central difference of gradients."""
    length = inner(direction, direction) ** 0.5
    step = _STEP * inner(parameters, parameters) ** 0.5 / length if length else 1.0
    with _moved(parameters, direction, step):
        ahead = gradients()
    with _moved(parameters, direction, -step):
        behind = gradients()
    return [None if a is None or b is None else (a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


@contextmanager
def _moved(parameters: Sequence[nn.Parameter], direction: Gradients, step: float) -> Iterator[None]:
    """The weights moved along a direction, and back to the last bit."""
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, d in zip(parameters, direction, strict=True):
            if d is not None:
                p.add_(d, alpha=step)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, before in zip(parameters, kept, strict=True):
                p.copy_(before)
