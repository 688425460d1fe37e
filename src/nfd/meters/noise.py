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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nfd.core.errors import InputError, check_count
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.statistics import ratio_of_means

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
