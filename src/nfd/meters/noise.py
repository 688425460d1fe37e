"""Gradient noise: how large a batch must be for its gradient to be more signal than noise.

Of m micro-batches of b samples each, drawn independently, take the gradients ``g_1 .. g_m`` at one set of weights.
With G their mean over all data and Sigma the covariance of one sample's gradient,

    signal   = (|sum g|^2 - sum |g_i|^2) / (m (m - 1))        has the mean |G|^2
    variance = b (sum |g_i|^2 - |sum g|^2 / m) / (m - 1)       has the mean tr Sigma

exactly, for any law of the gradients. Their ratio is the simple noise scale ``B = tr Sigma / |G|^2``: at this
batch the noise of a step is as large as its gradient. With ``H g_i``, products with the Hessian, in place of one factor
of every square, the same sums give ``tr(H Sigma)`` and ``G' H G``, whose ratio is the noise scale that the loss of a
step depends on.

Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2 and appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, check_count
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.statistics import ratio_of_means
from nfd.core.tables import as_text, table_of
from nfd.scaling.model import batch_size
from nfd.training.task import Pair, check_labels, cut

# ---- Gradient noise: how large a batch must be for its gradient to be more signal than noise


Gradients = Sequence[Tensor | None]
"""One for every parameter, in one order; None for one that has none."""


class GradientNoise:
    """The noise scale of gradients, from micro-batches as they come. It stores a sum and two numbers per group.

    Every ``group`` successive micro-batches form a group, which gives one estimate of signal and variance; intervals
    come from the spread over groups. The weights should not change within a group, as in gradient accumulation. If the
    micro-batches are successive steps, the change of the gradient by these steps counts as noise.

    Args:
        samples: samples (or tokens) in a micro-batch; the noise scale is in this unit.
        group: micro-batches in a group, at least 2.

    Attributes:
        signals, variances: estimates of every complete group.

    Raises:
        ValueError: naming the argument.
    """

    def __init__(self, samples: int, group: int = 8) -> None:
        self.samples, self.group = check_count("samples", samples), check_count("group", group, minimum=2)
        self.signals: list[float] = []
        self.variances: list[float] = []
        self._open, self._curved = _Sums(), False

    def add(self, gradients: Gradients, images: Gradients | None = None) -> None:
        """Add the gradients of the mean loss of one micro-batch.

        Args:
            gradients: one per parameter; they are not stored.
            images: their products with a symmetric matrix that is the same for a whole group, such as a Hessian; by
                default the gradients themselves.

        Raises:
            ValueError: if their number differs from that of the previous micro-batch.
        """
        sums = self._open
        if sums.count and len(gradients) != len(sums.gradients):
            raise InputError(f"gradients must be one for each of {len(sums.gradients)}; got {len(gradients)}.")
        sums.squares += inner(gradients, gradients if images is None else images)
        sums.gradients = _added(sums.gradients, gradients)
        if images is not None:
            sums.images, self._curved = _added(sums.images, images), True
        sums.count += 1
        if sums.count == self.group:
            self._close()

    def restart(self) -> None:
        """Discard the micro-batches of an incomplete group."""
        self._open = _Sums()

    def state(self) -> dict[str, list[float]]:
        """The complete groups, for a checkpoint."""
        return {"signals": list(self.signals), "variances": list(self.variances)}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue with the groups of ``state()``."""
        self.signals, self.variances = list(state["signals"]), list(state["variances"])
        self.restart()

    def estimate(self) -> Interval:
        """The noise scale in samples, with 95 % limits by Fieller's theorem over groups.

        Returns:
            Not-a-number before two groups are complete, and if a curvature along the gradient is negative. The upper
            limit is infinite if the signal does not differ significantly from zero: then more groups, or larger
            micro-batches, are needed.
        """
        if self._curved and not self.signal.low > 0:
            return UNKNOWN
        return ratio_of_means(torch.tensor(self.variances), torch.tensor(self.signals))

    @property
    def signal(self) -> Interval:
        """The estimate of ``|G|^2`` with its interval over groups; it is unbiased and may be negative."""
        return mean(torch.tensor(self.signals, dtype=torch.float64)) if self.signals else UNKNOWN

    @property
    def variance(self) -> Interval:
        """The estimate of ``tr Sigma``, the variance of one sample's gradient, with its interval over groups."""
        return mean(torch.tensor(self.variances, dtype=torch.float64)) if self.variances else UNKNOWN

    def _close(self) -> None:
        """Turn the sums of a complete group into its two estimates. A group that is not finite, as with a step that a
        gradient scaler skips, gives none."""
        m, sums = self.group, self._open
        whole = inner(sums.gradients, sums.images or sums.gradients)
        if math.isfinite(whole) and math.isfinite(sums.squares):
            self.signals.append((whole - sums.squares) / (m * (m - 1)))
            self.variances.append(self.samples * (sums.squares - whole / m) / (m - 1))
        self._open = _Sums()


@dataclass
class _Sums:
    """Over the micro-batches of the group so far: gradients, their images, and inner products of the two."""

    gradients: list[Tensor | None] = field(default_factory=list)
    images: list[Tensor | None] = field(default_factory=list)
    squares: float = 0.0
    count: int = 0


def inner(first: Gradients, second: Gradients) -> float:
    """The inner product of two sets of gradients, added up in float64; None stands for zeros."""
    products = [
        (a.detach() * b.detach()).sum(dtype=torch.float64)
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None
    ]
    return float(torch.stack(products).sum()) if products else 0.0


def _added(total: list[Tensor | None], gradients: Gradients) -> list[Tensor | None]:
    """The sum in float32 or better, in place where it exists."""
    if not total:
        return [
            None if g is None else g.detach().to(torch.promote_types(g.dtype, torch.float32), copy=True)
            for g in gradients
        ]
    for place, g in enumerate(gradients):
        if g is not None:
            known = total[place]
            total[place] = g.detach().clone() if known is None else known.add_(g.detach())
    return total


# ---- The noise of a model's gradients at its weights of the moment, simple and by curvature, from batches


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
