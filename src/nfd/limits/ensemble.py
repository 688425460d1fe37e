"""Independent copies of one training run at one size: their settings and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nfd.core.names import NetworkWeights
from nfd.core.random import derive
from nfd.limits.problem import Problem


@dataclass(frozen=True)
class Replicate:
    """One network of an ensemble: its problem, its size, how it holds its weights, and its seed.

    ``resolution``: of structured weights; None for none, 0 where the update is recorded sample by sample.
    ``probes``: inputs ``[P, d]`` on which the updates of features and function are measured, or None.
    """

    problem: Problem
    width: int
    depth: int
    weights: NetworkWeights
    seed: int
    probes: Tensor | None = None
    resolution: float | None = None


@dataclass(frozen=True)
class Trajectory:
    """What training a replicate gave; not-a-number once it diverged.

    Attributes:
        outputs: ``[steps, batch, C]``, before each update. evaluated: ``[n_eval, C]`` after the last.
        diverged_at: the step of the first loss that is not a number, or None.
        updates: what ``nfd.meters.updates`` measured on the probes after the first step and after the last, by the
            number of steps; empty without probes.
        seconds: the time it took.
        directions: of its structured updates, the mean over layers; None of other weights.
    """

    outputs: Tensor
    evaluated: Tensor
    diverged_at: int | None
    updates: Mapping[int, Mapping[str, float]]
    seconds: float
    directions: float | None = None


Runner = Callable[[Sequence[Replicate], str], Sequence[Trajectory]]
"""Trains replicates somewhere, under a name for the progress display."""


@dataclass(frozen=True)
class Ensemble:
    """What replicates of a run gave, not-a-number after divergence.

    Attributes:
        outputs, eval_outputs: ``[R, steps, b, C]`` and ``[R, n_eval, C]``; of the user's networks the losses
            ``[R, steps]`` and, where there are evaluation batches, ``[R, 1]``.
        directions: the most that structured updates of a network have, in the mean over its layers; None without any.
    """

    width: int
    depth: int
    weights: NetworkWeights
    outputs: Tensor
    eval_outputs: Tensor
    diverged_at: int | None
    directions: float | None = None

    @classmethod
    def of(cls, replicates: Sequence[Replicate], trajectories: Sequence[Trajectory]) -> Ensemble:
        """What replicates of one size gave, in double precision on the device of their problem."""
        first = replicates[0]
        outputs, evaluated = (
            torch.stack(values).to(first.problem.device).double()
            for values in ([t.outputs for t in trajectories], [t.evaluated for t in trajectories])
        )
        ends = [t.diverged_at for t in trajectories if t.diverged_at is not None]
        ranks = [t.directions for t in trajectories if t.directions is not None]
        most, end = max(ranks, default=None), min(ends, default=None)
        return cls(first.width, first.depth, first.weights, outputs, evaluated, end, most)

    def __len__(self) -> int:
        return len(self.outputs)

    def joined(self, more: Ensemble) -> Ensemble:
        """This ensemble and further replicates of it."""
        ends = [end for end in (self.diverged_at, more.diverged_at) if end is not None]
        return replace(
            self,
            outputs=torch.cat([self.outputs, more.outputs]),
            eval_outputs=torch.cat([self.eval_outputs, more.eval_outputs]),
            diverged_at=min(ends, default=None),
            directions=max([r for r in (self.directions, more.directions) if r is not None], default=None),
        )


def replicates(
    problem: Problem,
    width: int,
    depth: int,
    weights: NetworkWeights,
    indices: range,
    seed: int,
    resolution: float | None = None,
) -> list[Replicate]:
    """The replicates with these numbers of the stream ``seed``; structured ones drop nothing unless told so."""
    if weights == "structured" and resolution is None:
        resolution = 0.0
    seeds = [derive(seed, "replicate", width, index) for index in indices]
    return [Replicate(problem, width, depth, weights, own, resolution=resolution) for own in seeds]
