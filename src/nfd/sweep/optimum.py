"""The best learning rate: the vertex of a parabola in log eta_c."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.statistics import Interval, interval

_NEAR = 0.2  # the parabola is fitted where the score is within this share of its range from the best


@dataclass(frozen=True)
class Scores:
    """Scores of networks of one size: ``log2_eta`` ``[E]``, ascending, and ``scores`` ``[S, E]``, one row per seed.

    A score is a loss, at most that of equal guesses, log C: a network that diverged or died knows nothing.
    """

    log2_eta: Tensor
    scores: Tensor

    @property
    def best(self) -> int:
        """Index of the rate with the least mean score."""
        return int(self.scores.mean(0).argmin())

    @property
    def edge(self) -> int:
        """-1 or 1 where lower or higher rates may be better than all of these, 0 elsewhere."""
        mean = self.scores.mean(0)
        if bool((mean == mean[0]).all()):  # nothing learns: every rate is too high
            return -1
        return -1 if self.best == 0 else 1 if self.best == len(self.log2_eta) - 1 else 0

    def optimum(self) -> Interval:
        """log2 of the best rate, with its jackknife interval over seeds."""
        return interval(lambda scores: vertex(self.log2_eta, scores), self.scores)


def vertex(log2_eta: Tensor, scores: Tensor) -> Tensor:
    """Where the parabola through the mean scores near their least is lowest, inside the rates it was fitted to.

    Least squares over the rates around the best, at least one on either side, whose mean score is within a fifth of
    the range of the mean scores from the least.

    Args:
        log2_eta: ``[E]``. scores: ``[S, E]``.
    """
    mean = scores.double().mean(0)
    best = int(mean.argmin())
    limit = float(mean[best] + _NEAR * (mean.max() - mean[best]))
    first, last = best, best
    while first > 0 and (first == best or mean[first - 1] <= limit):
        first -= 1
    while last < len(mean) - 1 and (last == best or mean[last + 1] <= limit):
        last += 1
    x, y = log2_eta[first : last + 1].double(), mean[first : last + 1]
    if len(x) < 3:
        return log2_eta[best].double()
    centre = x.mean()
    powers = torch.stack([torch.ones_like(x), x - centre, (x - centre).square()], dim=1)
    _, slope, bend = torch.linalg.lstsq(powers, y.unsqueeze(1)).solution.flatten()
    if not bend > 0:
        return log2_eta[best].double()
    lowest: Tensor = (centre - slope / (2 * bend)).clamp(x[0], x[-1])
    return lowest


def at(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")
