"""The networks that a limit is made of: how large they may be, what one takes, and where several are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from nfd.core.names import NetworkWeights
from nfd.limits.cost import LEVER, Storage, way_of
from nfd.limits.ensemble import Ensemble, Runner, replicates
from nfd.limits.problem import Problem

DEPTHS = (8, 16, 32, 64, 128, 256, 512)
_LEAST_NARROW = 32  # narrower networks are not yet in the regime of 1/n; then half the width must do


@dataclass(frozen=True)
class Words:
    """What messages call the values that are extrapolated and the learning rate, and the cures of a divergence: at the
    first losses, and later."""

    values: str
    rate: str
    at_start: str
    later: str


class Networks(Protocol):
    """Networks of every width and depth that are trained alike, each from a seed of its own."""

    @property
    def words(self) -> Words:
        """For messages."""

    @property
    def kinds(self) -> Sequence[NetworkWeights]:
        """The ways to hold weights that are allowed."""

    @property
    def unit(self) -> int:
        """Widths that are chosen are this times a power of two."""

    @property
    def resolution(self) -> float:
        """Of structured weights where none is given; 0 where nothing is dropped."""

    @property
    def pilot_width(self) -> int:
        """Width of the networks that show the spread, where none is given."""

    @property
    def least_width(self) -> int:
        """The narrowest that is worth running, where none is given."""

    @property
    def depths(self) -> Sequence[int]:
        """What the depth is doubled through; at least three."""

    @property
    def amplification(self) -> float:
        """Standard error of ``2 f_2L - f_L`` in units of that of ``f_2L``."""

    def narrower(self, width: int) -> int:
        """Width of the networks that show the bias of a width; the width itself if there are none."""

    def ways(self, width: int, depth: int) -> Sequence[Storage]:
        """How a network of this size can hold its weights, and what that takes."""

    def cost(self, weights: NetworkWeights, width: int, depth: int, rank: float | None) -> Storage:
        """What a network takes; ``rank``: directions of a structured update, in place of the predicted ones."""

    def least(self, width: int, depth: int) -> Storage:
        """The way that may need the fewest bytes, and these; trained networks may show that fewer are needed."""

    def foresight(self) -> str:
        """What the memory of networks was predicted from, where that is not a bound; else empty."""

    def train(
        self,
        width: int,
        depth: int,
        weights: NetworkWeights,
        indices: range,
        label: str,
        resolution: float | None = None,
    ) -> Ensemble:
        """What the networks with these numbers gave; ``resolution`` is that of structured weights."""


@dataclass(frozen=True)
class PaperNetworks:
    """Those of the paper: replicates of a problem, trained by ``run``, with weights of one of ``kinds``."""

    problem: Problem
    run: Runner
    seed: int
    kinds: Sequence[NetworkWeights]

    words: ClassVar[Words] = Words(
        "outputs",
        "eta_c",
        "Lower the horizon or the scale of the inputs",
        "Lower eta_c; where the loss of step 0 is large too, the horizon or the scale of the inputs",
    )
    unit: ClassVar[int] = 1
    resolution: ClassVar[float] = 0.0
    pilot_width: ClassVar[int] = 512
    least_width: ClassVar[int] = 32
    depths: ClassVar[Sequence[int]] = DEPTHS

    @property
    def amplification(self) -> float:
        """Measured when coupled, a bound otherwise."""
        return 1.15 if self.problem.coupled else math.sqrt(5.0)

    def narrower(self, width: int) -> int:
        """A quarter, or half where a quarter is very narrow."""
        quarter = width // LEVER
        return quarter if quarter >= _LEAST_NARROW else max(1, width // 2)

    def ways(self, width: int, depth: int) -> Sequence[Storage]:
        """Those of the kinds that are allowed."""
        return [way_of(kind, self.problem, width, depth) for kind in self.kinds]

    def cost(self, weights: NetworkWeights, width: int, depth: int, rank: float | None) -> Storage:
        """Of one network."""
        return way_of(weights, self.problem, width, depth, rank)

    def least(self, width: int, depth: int) -> Storage:
        """The predicted memory is needed."""
        return min(self.ways(width, depth), key=lambda way: way.bytes)

    def foresight(self) -> str:
        """Bounds alone."""
        return ""

    def train(
        self,
        width: int,
        depth: int,
        weights: NetworkWeights,
        indices: range,
        label: str,
        resolution: float | None = None,
    ) -> Ensemble:
        """Their outputs."""
        asked = replicates(self.problem, width, depth, weights, indices, self.seed, resolution)
        return Ensemble.of(asked, self.run(asked, label))
