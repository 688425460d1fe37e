"""The law of a loss over compute alone: ``loss = floor + A / flops^a``.

It is for runs of which only their operations are known. At the best split of a budget, the law over
parameters and tokens of powers a and b falls as ``flops^(-a b / (a + b))``; with those of
published ladders, near 0.35, the power is near 0.17. Intervals are those of wide priors: of 19
published ladders, their best losses up to an eighth of the compute forecast 48 targets, up to 269
times as dear; intervals held all of them, and the median miss was 0.9 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nfd.laws.ladder_posterior import WIDE, Prior

Array = NDArray[np.float64]
FLOPS_ONLY = ("flops",)
# The logarithms of ``A / flops^a / floor`` at the middle run, of the power, and of the relative
# error of a run; and their standard errors. Terms of parameters and tokens add up.
_MEAN = np.array([-0.4, math.log(0.17), math.log(0.004)])
_ERROR = np.array([1.2, 0.5, 1.0])


@dataclass(frozen=True)
class ComputePrior(Prior):
    """Wide priors of a law over compute."""

    def of(self, variables: Sequence[str]) -> tuple[Array, Array]:
        """Mean and covariance of the numbers of the law."""
        return self.mean, self.covariance


COMPUTE_PRIOR = ComputePrior(
    "wide priors", _MEAN, np.diag(_ERROR**2), None, WIDE.discrepancy, WIDE.calibration
)
