"""What the infinitely wide network does, from ensembles of networks of two widths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.estimates import half_lengths, stderr

PARTS = (
    "value",
    "stderr",
    "low",
    "high",
    "bias",
    "bias_stderr",
    "resolution_bias",
    "resolution_bias_stderr",
    "sampling_error",
    "depth_error",
)


@dataclass(frozen=True)
class Estimates:
    """Numbers of the infinitely wide network with their 95 % intervals, as tensors of one shape.

    Of ``nfd.predict(probes=..., outputs=..., kernels=...)``. Not-a-number after a divergence.

    Attributes:
        value, stderr, low, high: the estimates, their standard errors and 95 % intervals, float64.
        bias: the bias of the width of the trained networks, which was subtracted.
        depth_error: how far the last doubling of the depth moved the estimates. The interval counts
            it; zero at a finite depth.
        replicates: [R, ...], estimates by single replicates, whose mean is ``value``. Subtract two
            kernels replicate by replicate for an interval of their difference. Rows of networks
            that diverged and were left out are not-a-number.

    Example::

        x = torch.randn(2, 5)
        task = nfd.Task([(x, x[:, :1])] * 3, loss="mse")
        p = nfd.predict(
            nfd.resnets(5, 1), task, 0.3, depth=2, width=32, replicates=2, probes=x
        )
        p.probe_outputs.value, p.probe_outputs.low, p.probe_outputs.high  # [4, 2, 1]
    """

    value: Tensor
    stderr: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor
    depth_error: Tensor
    replicates: Tensor

    def __repr__(self) -> str:
        shape = list(self.value.shape)
        finite = self.value[self.value.isfinite()]
        if not len(finite):
            return f"Estimates({shape}, none finite)"
        return f"Estimates({shape}, values from {finite.min():.3g} to {finite.max():.3g})"


def at_infinite_width(
    wide: Tensor,
    narrow: Tensor,
    ratio: float,
    coarse: Tensor | None = None,
    shortened: Tensor | None = None,
    bend: float = 0.0,
) -> dict[str, Tensor]:
    """Estimate numbers of the limit from numbers ``[R, ...]`` of wide and of narrow networks.

    The narrow ones are ``ratio`` times narrower. Where they diverged, the number is the one of the
    wide networks, and its interval not-a-number.

    Args:
        coarse: numbers of the same wide networks by the extrapolation in depth before the last one.
            How far they moved since then is an error beside the noise: the half-width is the root
            of the sum of both squares.
        shortened: numbers ``[pairs, ...]`` of some of the narrow networks less those without a
            resolution: its bias is a third such error. None where networks have no resolution.
        bend: the share of the bias by which it may be wrong, as the mean is not only ``value + a /
            n``.

    Returns:
        By the names in ``PARTS`` ``[...]`` each: ``bias`` of width is subtracted, and
        ``resolution_bias`` is not; ``sampling_error`` is the standard error of only the wide
        networks, ``depth_error`` how far the last doubling of the depth moved the numbers. As
        ``replicates`` the numbers by single replicates, ``[R, ...]``.
    """
    wide = wide.double()
    narrow = narrow.double()
    lever = ratio - 1
    mean = wide.mean(0)
    variance = stderr(wide).square()
    narrow_mean = narrow.mean(0)
    narrow_variance = stderr(narrow).square()
    moved = torch.zeros_like(mean)
    if coarse is not None:
        moved = mean - coarse.double().mean(0)
    if shortened is None:
        shortened = torch.zeros_like(narrow[:2])
    resolution_bias = shortened.mean(0)
    bias = (narrow_mean - mean) / lever
    error, half = _noise(wide, narrow, lever)
    half = half.hypot(moved.hypot(resolution_bias)).hypot(bend * bias)
    value = mean - bias
    is_known = narrow_mean.isfinite()
    value = torch.where(is_known, value, mean)
    bias_error = (variance + narrow_variance).sqrt() / lever
    unknown = torch.full_like(mean, torch.nan)
    return {
        "value": value,
        "stderr": torch.where(is_known, error, variance.sqrt()),
        "low": torch.where(is_known, value - half, unknown),
        "high": torch.where(is_known, value + half, unknown),
        "bias": torch.where(is_known, bias, unknown),
        "bias_stderr": torch.where(is_known, bias_error, unknown),
        "resolution_bias": resolution_bias,
        "resolution_bias_stderr": stderr(shortened),
        "sampling_error": variance.sqrt(),
        "depth_error": moved.abs(),
        "replicates": wide - (narrow - wide) / lever,
    }


def _noise(wide: Tensor, narrow: Tensor, lever: float) -> tuple[Tensor, Tensor]:
    """Return the standard error and the half-width of ``wide + (wide - narrow) / lever``."""
    return half_lengths(
        [
            (stderr(wide).square() * (1 + 1 / lever) ** 2, len(wide) - 1),
            (stderr(narrow).square() / lever**2, len(narrow) - 1),
        ]
    )
