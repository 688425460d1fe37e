"""Gradient noise: how large a batch must be for its gradient to be more signal than noise.

Of m micro-batches of b samples each, drawn independently, take the gradients ``g_1 .. g_m`` at one
set of weights. With G their mean over all data and Sigma the covariance of one sample's gradient,

    signal   = (|sum g|^2 - sum |g_i|^2) / (m (m - 1))        has the mean |G|^2
    variance = b (sum |g_i|^2 - |sum g|^2 / m) / (m - 1)       has the mean tr Sigma

exactly, for any law of the gradients. Their ratio is the simple noise scale ``B = tr Sigma /
|G|^2``: at this batch the noise of a step is as large as its gradient.

Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2 and appendix
A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.checks import check_count
from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, ratio_of_means
from nfd.runs.task import Pair, check_labels, cut
from nfd.scaling.samples import batch_size

# How many parts a batch is cut into at most
_PARTS = 8
# What a mean of n squares misses, over what the largest adds to it: a / (a - 1) by Pareto tails of
# power a, 5 for t(2.5), whose squares have no variance; 10 covers the scatter of the largest
# (docs/coverage.md)
_UNSEEN = 10.0


class GradientNoise:
    """The noise scale of gradients, from micro-batches as they come.

    It stores a sum and two numbers per group. Every ``group`` successive micro-batches form a
    group, which gives one estimate of signal and variance; intervals come from the spread over
    groups. The weights should not change within a group, as in gradient accumulation. If the
    micro-batches are successive steps, the change of the gradient by these steps counts as noise.

    Args:
        samples: samples (or tokens) in a micro-batch; the noise scale is in this unit.
        group: micro-batches in a group, at least 2.

    Attributes:
        signals, variances: unbiased estimates of ``|G|^2`` and ``tr Sigma``, of every complete
            group.

    Raises:
        ValueError: naming the argument.
    """

    def __init__(self, samples: int, group: int = 8) -> None:
        self.samples = check_count("samples", samples)
        self.group = check_count("group", group, minimum=2)
        self.signals: list[float] = []
        self.variances: list[float] = []
        self._sum: list[Tensor | None] = []
        self._squares = 0.0
        self._count = 0

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of the mean loss of one micro-batch.

        There is one per parameter, None for a parameter without. They are not stored.

        Raises:
            ValueError: if the previous micro-batch had another number of gradients.
        """
        if self._count and len(gradients) != len(self._sum):
            raise InputError(
                f"gradients must be one for each of {len(self._sum)}; got {len(gradients)}."
            )
        self._squares += _square(gradients)
        self._count += 1
        self._sum = self._sum or [None] * len(gradients)
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            so_far = self._sum[place]
            if so_far is None:
                wide = torch.promote_types(gradient.dtype, torch.float32)
                self._sum[place] = gradient.detach().to(wide, copy=True)
            else:
                so_far.add_(gradient.detach())
        if self._count == self.group:
            self._end_group()

    def _end_group(self) -> None:
        """Estimate signal and variance from a complete group, and begin another."""
        m = self.group
        whole = _square(self._sum)
        # In a step that a gradient scaler skips they are not finite.
        if math.isfinite(whole) and math.isfinite(self._squares):
            self.signals.append((whole - self._squares) / (m * (m - 1)))
            self.variances.append(self.samples * (self._squares - whole / m) / (m - 1))
        self._sum = []
        self._squares = 0.0
        self._count = 0

    def estimate(self) -> Interval:
        """The noise scale in samples, with 95 % limits by Fieller's theorem over groups.

        The upper limit is widened by ten times what the group of the largest variance adds to their
        mean: if tails are heavy, the mean misses several times as much as its largest part shows.

        Returns:
            Not-a-number before two groups are complete. The upper limit is infinite if the signal
            does not differ significantly from zero; from 0 to infinity if nothing does. Then more
            groups, or larger micro-batches, are needed.
        """
        if len(self.signals) < 2:
            return UNKNOWN
        variances = torch.tensor(self.variances, dtype=torch.float64)
        signals = torch.tensor(self.signals, dtype=torch.float64)
        above = float(variances.mean())
        below = float(signals.mean())
        ratio = ratio_of_means(variances, signals)
        if math.isnan(ratio.low):
            scale = above / below if below > 0 else math.inf
            return Interval(scale, math.nan, 0.0, math.inf)
        largest = float(variances.max() - above) / len(variances)
        return replace(ratio, high=ratio.high * (1 + _UNSEEN * largest / above))


def _square(gradients: Sequence[Tensor | None]) -> float:
    """The sum of squares of all entries, added up in float64."""
    squares = [g.detach().square().sum(dtype=torch.float64) for g in gradients if g is not None]
    if not squares:
        return 0.0
    return float(torch.stack(squares).sum())


def noise_of(
    module: nn.Module,
    net: Callable[[Any], Any],
    loss: Callable[[Any, Any], Tensor],
    batches: Sequence[Pair],
) -> GradientNoise:
    """Measure the noise of a model's gradients at its weights of the moment, in samples.

    A batch is cut into equal parts, at most eight, which make one group.

    Args:
        module: whose parameters that train are looked at.
        net: from the inputs of a batch to outputs. loss: from outputs and targets to a mean over
            samples.
        batches: as ``samples_of_a_part`` takes them, drawn independently.
    """
    samples = samples_of_a_part(batches)
    parameters = [p for p in module.parameters() if p.requires_grad]
    noise = GradientNoise(samples, batch_size(batches[0][0]) // samples)
    for inputs, targets in cut(batches, samples):
        noise.add(torch.autograd.grad(loss(net(inputs), targets), parameters, allow_unused=True))
    return noise


def samples_of_a_part(batches: Sequence[Pair]) -> int:
    """How many samples the micro-batches have that batches are cut into.

    Raises:
        ValueError: where there are fewer than two batches, of several sizes, of a size that cannot
            be cut, or with a part of which no label counts.
    """
    sizes = {batch_size(inputs) for inputs, _ in batches}
    if len(batches) < 2 or len(sizes) > 1:
        raise InputError(
            f"noise needs two batches or more, of one size; got {len(batches)} of {sorted(sizes)} "
            "samples."
        )
    (size,) = sizes
    parts = max((m for m in range(2, _PARTS + 1) if size % m == 0), default=0)
    if not parts:
        raise InputError(
            f"noise needs batches of a size that a number from 2 to {_PARTS} divides; got {size} "
            "samples."
        )
    for pair in batches:
        check_labels(f"noise's parts of {size // parts} samples ", cut([pair], size // parts))
    return size // parts
