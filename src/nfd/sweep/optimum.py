"""The best learning rate: the vertex of a parabola in log eta_c, fitted where training is calm."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nfd.core.statistics import Interval, interval

_NEAR = 0.2  # the parabola is fitted where this share of the best network's progress is not yet lost
_LEARNT = 0.01  # nats below equal guesses
_LEAST = 1e-9  # of a loss whose logarithm is taken


@dataclass(frozen=True)
class Scores:
    """Final losses of networks of one size.

    Attributes:
        log2_eta: ``[E]``, ascending by one step. losses: ``[S, E]``, one row per seed, infinite where one diverged.
        upset: ``[S, E]``, whether training diverged, or its loss rose to twice the first on the way.
        guess: log C, the loss of equal guesses.
    """

    log2_eta: Tensor
    losses: Tensor
    upset: Tensor
    guess: float

    @property
    def scores(self) -> Tensor:
        """Losses, at most log C: a network that diverged or died knows nothing."""
        return self.losses.clamp(max=self.guess)

    @property
    def typical(self) -> Tensor:
        """Geometric mean over seeds, ``[E]``: near the edge of stability single spikes would rule an arithmetic one."""
        return self.scores.double().clamp(min=_LEAST).log().mean(0).exp()

    @property
    def learns(self) -> bool:
        """Whether at any rate the typical score is below equal guesses."""
        return bool(self.typical.min() < self.guess - _LEARNT)

    @property
    def edge(self) -> int:
        """-1 or 1 where lower or higher rates may be better than all of these, 0 elsewhere."""
        if not self.learns:  # the rates are too high where training is upset at the least, too low where it is nowhere
            return -1 if bool(self.upset[:, 0].any()) else 0 if bool(self.upset.any()) else 1
        best = int(self.typical.argmin())
        return -1 if best == 0 else 1 if best == len(self.log2_eta) - 1 else 0

    def of(self, seeds: Tensor) -> Scores:
        """The same of some seeds alone."""
        return replace(self, losses=self.losses[seeds], upset=self.upset[seeds])

    def best(self) -> Tensor:
        """log2 of the best rate: the vertex inside the rates of the fit, or the best of the grid where they are few."""
        first, last = self._window()
        mean = self.typical
        x, y = self.log2_eta[first : last + 1].double(), mean[first : last + 1]
        if len(x) < 3:
            return self.log2_eta[mean.argmin()].double()
        centre = x.mean()
        powers = torch.stack([torch.ones_like(x), x - centre, (x - centre).square()], dim=1)
        _, slope, bend = torch.linalg.lstsq(powers, y.unsqueeze(1)).solution.flatten()
        if not bend > 0:
            return self.log2_eta[mean.argmin()].double()
        lowest: Tensor = (centre - slope / (2 * bend)).clamp(x[0], x[-1])
        return lowest

    @property
    def slack(self) -> float:
        """Half a step where ``best`` is a rate of the grid, else 0: seeds that agree on it know nothing beside it."""
        on_grid = bool((self.log2_eta.double() == self.best()).any())
        return float(self.log2_eta[1] - self.log2_eta[0]) / 2 if on_grid else 0.0

    def optimum(self) -> Interval:
        """``best`` with its jackknife interval over seeds, wider by ``slack``."""
        found = interval(lambda seeds: self.of(seeds.long()).best(), torch.arange(len(self.losses)).double())
        return widened(found, self.slack)

    def at(self, log2_eta: Tensor) -> Tensor:
        """The typical score at any rate, linear between those of the grid, constant beyond."""
        mean, x = self.typical, self.log2_eta.double()
        right = torch.searchsorted(x, log2_eta).clamp(1, len(x) - 1)
        share = ((log2_eta - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
        return torch.lerp(mean[right - 1], mean[right], share)

    def _window(self) -> tuple[int, int]:
        """The rates around the best one whose typical score keeps four fifths of its progress."""
        mean = self.typical
        best = int(mean.argmin())
        limit = float(mean[best] + _NEAR * (self.guess - mean[best]))
        first = last = best
        while first > 0 and mean[first - 1] <= limit:
            first -= 1
        while last < len(mean) - 1 and mean[last + 1] <= limit:
            last += 1
        return first, last


def widened(found: Interval, more: float) -> Interval:
    """An interval with ``more`` on either side, all places within it alike: ``more / sqrt(3)`` joins the error."""
    return Interval(found.value, math.hypot(found.stderr, more / math.sqrt(3)), found.low - more, found.high + more)


def rounded(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")
