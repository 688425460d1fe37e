"""Ensembles of one problem at the width and number of replicates that an accuracy asks for."""

from __future__ import annotations

import math

from nfd.core.errors import InputError
from nfd.core.names import Weights
from nfd.core.statistics import rms
from nfd.limits.cost import power_of_two, widest, within
from nfd.limits.ensemble import Ensemble, Runner, replicates
from nfd.limits.problem import Problem

_PILOT_WIDTH = 512
_PILOT_REPLICATES = 4
_NARROWEST = 16
_REPLICATES = 8  # fewer make a standard error too uncertain to use
_MOST_REPLICATES = 1024
_LEVER = 4  # how many times narrower the networks are that show the bias of width: fewer add noise, more bend 1/n
_LEAST_NARROW = 32  # narrower ones are not yet in the regime of 1/n; then half the width must do


class Sampler:
    """Fixes width and replicates from a narrow pilot, and asks for the ensembles, wide and narrow."""

    def __init__(
        self,
        problem: Problem,
        run: Runner,
        *,
        width: int | None,
        replicates: int | None,
        rtol: float,
        memory: int,
        seed: int,
    ) -> None:
        self.problem, self.run, self.rtol, self.memory, self.seed = problem, run, rtol, memory, seed
        self.width, self.replicates = width or 0, replicates or 0
        self._done: dict[tuple[int, int], Ensemble] = {}

    def settle(self, depth: int, deepest: int, amplification: float) -> None:
        """Decide the sizes for runs from ``depth`` to ``deepest``.

        ``amplification`` is the factor by which what is made of the ensembles enlarges their standard error.
        """
        widest_here = widest(self.problem, deepest, self.memory)
        self._require_memory(deepest, widest_here)
        if self.width and self.replicates:
            return
        pilot_width = self.narrow_width if self.width else min(_PILOT_WIDTH, max(1, widest_here // _LEVER))
        pilot = self._run(pilot_width, depth, min(self.replicates or _MOST_REPLICATES, _PILOT_REPLICATES))
        needed = self._needed(pilot, amplification)
        if not self.width:
            wanted = power_of_two(needed / (self.replicates or _REPLICATES))
            self.width = min(max(wanted, _LEVER * pilot_width), widest_here)
        if not self.replicates:
            self.replicates = max(_REPLICATES, min(math.ceil(needed / self.width), _MOST_REPLICATES))
            refined = math.ceil(self._needed(self.at(depth), amplification) / self.width)
            self.replicates = max(self.replicates, min(refined, 2 * self.replicates, _MOST_REPLICATES))

    def fits(self, depth: int) -> bool:
        """Whether the chosen width fits into memory at a depth."""
        return within(self.problem, self.width, depth, self.memory) is not None

    def at(self, depth: int) -> Ensemble:
        """The ensemble at a depth."""
        return self._run(self.width, depth, self.replicates)

    @property
    def narrow_width(self) -> int:
        """Width of the networks that show the bias of width."""
        quarter = self.width // _LEVER
        return quarter if quarter >= _LEAST_NARROW else max(1, self.width // 2)

    def narrower(self, depth: int) -> Ensemble:
        """As many networks of ``narrow_width`` at a depth."""
        return self._run(self.narrow_width, depth, self.replicates)

    def _needed(self, pilot: Ensemble, amplification: float) -> float:
        """Width times replicates at which the RMS standard error is ``rtol`` times the RMS of the outputs."""
        error = self.rtol * rms(pilot.outputs.mean(0))
        spread = amplification * rms(pilot.outputs.std(0))
        needed = (spread / error) ** 2 * pilot.width if error > 0 else math.nan
        return needed if math.isfinite(needed) else 0.0

    def _require_memory(self, deepest: int, widest_here: int) -> None:
        if self.width and not self.fits(deepest):
            raise InputError(
                f"width={self.width} at depth {deepest} does not fit into memory; {widest_here} does. "
                "Raise memory, or lower width, batch or steps."
            )
        if not self.width and widest_here < 2 * _NARROWEST:
            raise InputError(
                f"memory allows no network of width {2 * _NARROWEST} at depth {deepest}. Raise memory, or lower "
                "batch or steps."
            )

    def _run(self, width: int, depth: int, count: int) -> Ensemble:
        key = (width, depth)
        have = self._done.get(key)
        missing = range(len(have) if have else 0, count)
        if missing:
            weights = chosen_weights(self.problem, width, depth, self.memory)
            asked = replicates(self.problem, width, depth, weights, missing, self.seed)
            more = Ensemble.of(asked, self.run(asked, f"predict: width {width}, depth {depth}"))
            self._done[key] = have.joined(more) if have else more
        return self._done[key]


def chosen_weights(problem: Problem, width: int, depth: int, memory: int) -> Weights:
    """Deferred or dense, whichever the cost model finds faster within memory."""
    way = within(problem, width, depth, memory)
    return way.weights if way else "deferred"
