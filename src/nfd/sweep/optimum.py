"""The best learning rate: where the typical score of networks is lowest, over log eta_c.

What is sought is the rate that minimises the geometric mean over all initialisations of the score, which is the loss
or, where that is larger or not finite, log C: divergence counts, as the loss of equal guesses. What is measured is the
same over a few seeds, on a grid. A cubic is fitted through the rates around the best one that keep four fifths of the
best progress, each with a weight that falls to zero where a fifth is lost: losses rise faster to the right of the best
rate than to the left, which moves the vertex of a parabola by a fifth of a doubling and more.

The interval holds three errors: of the seeds, by a bootstrap of the whole procedure (a jackknife misses how the choice
of the rates around the best one jumps from seed to seed); of the curve's form, the distance to a parabola's vertex; and
of the grid, where the rate next to the best one has lost a fifth already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from nfd.core.random import generator
from nfd.core.statistics import Interval, combined

_NEAR = 0.2  # the cubic is fitted where this share of the best network's progress is not yet lost
_LEAST_WEIGHT = 1e-3  # of a rate of the fit
_RESAMPLES = 200
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
        """log2 of the best rate: the lowest point of the fit, or the best of the grid where too few rates are near."""
        return vertex(self.log2_eta, self.typical, self.guess).cubic

    def resampled(self, weights: Tensor) -> Tensor:
        """Typical scores ``[B, E]`` with these weights of the seeds, ``[B, S]``."""
        return (weights @ self.scores.double().clamp(min=_LEAST).log()).exp()

    @property
    def doubt(self) -> tuple[float, float]:
        """What the fit leaves open of the best rate: the error of its form, and the standard error of the grid.

        The first is signed, the best rate by the cubic minus that by a parabola. The second is that of any place within
        half a step, where the rate next to the best one has lost a fifth of the progress; else 0.
        """
        found = vertex(self.log2_eta, self.typical, self.guess)
        step = float(self.log2_eta[1] - self.log2_eta[0])
        return float(found.cubic - found.parabola), 0.0 if bool(found.resolved) else step / 2 / math.sqrt(3)

    def optimum(self) -> Interval:
        """``best`` with its interval."""
        return chosen([self], torch.ones(1, dtype=torch.float64))

    def at(self, log2_eta: Tensor) -> Tensor:
        """The typical score at any rate (``at``)."""
        return at(self.log2_eta, self.typical, log2_eta)


def rate_of(log2_eta: Interval) -> Interval:
    """The interval of a rate from that of its logarithm to base 2."""
    value, low, high = (math.pow(2, v) for v in (log2_eta.value, log2_eta.low, log2_eta.high))
    return Interval(value, value * math.log(2) * log2_eta.stderr, low, high)


def at(grid: Tensor, typical: Tensor, log2_eta: Tensor) -> Tensor:
    """Typical scores ``[..., E]`` at one rate each ``[...]``, linear between those of the grid, constant beyond."""
    x, wanted = grid.double(), log2_eta.double().unsqueeze(-1)
    right = torch.searchsorted(x, wanted).clamp(1, len(x) - 1)
    share = ((wanted - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
    return torch.lerp(typical.gather(-1, right - 1), typical.gather(-1, right), share).squeeze(-1)


@dataclass(frozen=True)
class Vertex:
    """The lowest points of the fits ``[...]``, and whether the grid resolves them."""

    cubic: Tensor
    parabola: Tensor
    resolved: Tensor


def vertex(log2_eta: Tensor, typical: Tensor, guess: float) -> Vertex:
    """The best rate of typical scores ``[..., E]`` on a grid ``[E]``.

    The cubic needs five rates and a lowest point, the parabola three and to open upward; else the next simpler one
    stands for it, at last the best rate of the grid. Neither leaves the rates of the fit.
    """
    x, y = log2_eta.double(), typical.double()
    place, E = torch.arange(len(x)), len(x)
    best = y.argmin(-1, keepdim=True)
    lowest = y.gather(-1, best)
    lost = (y - lowest) / (_NEAR * (guess - lowest)).clamp(min=_LEAST)
    far = lost > 1
    first = torch.where(far & (place < best), place, -1).amax(-1, keepdim=True)
    last = torch.where(far & (place > best), place, E).amin(-1, keepdim=True)
    near = (place > first) & (place < last)
    weights = torch.where(near, (1 - lost).clamp(min=_LEAST_WEIGHT), 0.0)
    t = x - x[best]
    parabola, upward = _lowest(_fitted(t, y, weights, near, 3))
    parabola = torch.where(upward, parabola, 0.0)
    cubic, found = _lowest(_fitted(t, y, weights, near & (near.sum(-1, keepdim=True) > 4), 4))
    cubic = torch.where(found, cubic, parabola)
    low, high = torch.where(near, t, math.inf).amin(-1), torch.where(near, t, -math.inf).amax(-1)
    start = x[best.squeeze(-1)]
    resolved = upward & (best - first > 1).squeeze(-1) & (last - best > 1).squeeze(-1)
    return Vertex(start + cubic.clamp(low, high), start + parabola.clamp(low, high), resolved)


def _fitted(t: Tensor, y: Tensor, weights: Tensor, near: Tensor, terms: int) -> Tensor:
    """Coefficients ``[..., terms]`` of powers of t by weighted least squares; zeros where there are too few rates."""
    powers = torch.stack([t**k for k in range(terms)], -1)
    weighted = powers * weights.unsqueeze(-1)
    enough = (near.sum(-1) >= terms)[..., None, None]
    square = torch.where(enough, weighted.mT @ powers, torch.eye(terms, dtype=torch.float64))
    found: Tensor = torch.linalg.solve(square, torch.where(enough, weighted.mT @ y.unsqueeze(-1), 0.0))
    return found.squeeze(-1)


def _lowest(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Where a parabola or cubic has its minimum, and whether it has one."""
    slope, bend = coefficients[..., 1], coefficients[..., 2]
    turn = coefficients[..., 3] if coefficients.shape[-1] > 3 else torch.zeros_like(bend)
    inside = bend.square() - 3 * slope * turn
    below = bend + inside.clamp(min=0).sqrt()
    found = (inside > 0) & (below > 0)
    return -slope / torch.where(found, below, 1.0), found


def chosen(cells: list[Scores], weights: Tensor) -> Interval:
    """A weighted sum of the best rates of some sizes, whose networks share their seeds, with its interval.

    Args:
        cells: scores of each size. weights: ``[sizes]``.
    """
    seeds = len(cells[0].losses)
    draws = resamples(seeds)

    def total(each: list[Tensor]) -> Tensor:
        return torch.stack(each, -1) @ weights

    value = float(total([cell.best() for cell in cells]))
    again = total([vertex(cell.log2_eta, cell.resampled(draws), cell.guess).cubic for cell in cells])
    error = float((again - value).square().mean()) * seeds / (seeds - 1)
    form, grid = (torch.tensor(each, dtype=torch.float64) for each in zip(*(c.doubt for c in cells), strict=True))
    parts = [float(weights @ form) ** 2, float((weights * grid).square().sum())]
    return combined(value, [(error, seeds - 1), *((part, math.inf) for part in parts)])


@cache
def resamples(seeds: int) -> Tensor:
    """Weights ``[B, S]`` of the seeds in B samples with replacement."""
    drawn = torch.randint(seeds, (_RESAMPLES, seeds), generator=generator(0, "resamples"))
    return torch.nn.functional.one_hot(drawn, seeds).double().mean(1)


def rounded(log2_eta: float) -> float:
    """The rate itself, to three digits, so that runs can be asked for again."""
    return float(f"{math.pow(2, log2_eta):.3g}")
