"""The Cholesky factor of a covariance that grows by one variable at a time; what adds nothing is dropped."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs
from torch import Tensor

_DROPPED = 1e-8  # a direction that adds less than this share of its variance is dropped


class GrowingCholesky:
    """Cholesky factor of a growing covariance; directions that add nothing are dropped, and counted."""

    def __init__(self, K: int) -> None:
        self.rows = np.zeros((K, K))
        self.kept: list[int] = []
        self.dropped = 0

    def extend(self, row: NDArray[np.float64]) -> Tensor:
        """Coefficients in all directions of a new variable; ``row``: covariances with the others, then its variance."""
        k, r = len(row) - 1, len(self.kept)
        known = dtrtrs(self.rows[self.kept, :r].T, row[self.kept], lower=0, trans=1)[0] if r else np.zeros(0)
        rest = row[k] - known @ known
        self.rows[k, :r] = known
        if rest > _DROPPED * row[k]:
            self.rows[k, r] = math.sqrt(rest)
            self.kept.append(k)
        else:
            self.dropped += 1
        return torch.from_numpy(self.rows[k, : len(self.kept)].copy())
