"""Ensembles of one problem at the width and number of replicates that an accuracy asks for."""

from __future__ import annotations

import math

from nfd.core.errors import InputError
from nfd.core.progress import Bar
from nfd.core.statistics import Size, rms, size, stderr
from nfd.limits.cost import power_of_two, widest, within
from nfd.limits.ensemble import Ensemble, ensemble
from nfd.limits.problem import Problem

_PILOT_WIDTH = 1024
_PILOT_REPLICATES = 4
_NARROWEST = 16
_REPLICATES = 8  # fewer make a standard error too uncertain to use
_MOST_REPLICATES = 1024


class Sampler:
    """Fixes width and replicates from a narrow pilot, which also measures the width bias."""

    def __init__(
        self, problem: Problem, *, width: int | None, replicates: int | None, rtol: float, memory: int, seed: int
    ) -> None:
        self.problem, self.rtol, self.memory, self.seed = problem, rtol, memory, seed
        self.width, self.replicates = width or 0, replicates or 0
        self.bar = Bar()
        self._done: dict[tuple[int, int], Ensemble] = {}
        self._narrow: Ensemble | None = None

    def settle(self, depth: int, deepest: int, amplification: float) -> None:
        """Decide the sizes for runs from ``depth`` to ``deepest``.

        ``amplification`` is the factor by which what is made of the ensembles enlarges their standard error.
        """
        widest_here = widest(self.problem, deepest, self.memory)
        self._require_memory(deepest, widest_here)
        pilot_width = max(1, min(_PILOT_WIDTH, (self.width or widest_here) // 2))
        self._narrow = self._run(pilot_width, depth, min(self.replicates or _MOST_REPLICATES, _PILOT_REPLICATES))
        needed = self._needed(self._narrow, amplification)
        if not self.width:
            wanted = power_of_two(needed / (self.replicates or _REPLICATES))
            self.width = min(max(wanted, 2 * pilot_width), widest_here)
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

    def bias(self) -> Size:
        """Size of ``a / n`` from ``f_m - f_n = a (1/m - 1/n)`` at the first depth, m the pilot's width."""
        narrow = self._narrow
        wide = next((e for (n, _), e in self._done.items() if narrow and n > narrow.width), None)
        if narrow is None or wide is None:
            return Size(math.nan, math.nan)
        lever = wide.width / narrow.width - 1
        error = (stderr(narrow.outputs) ** 2 + stderr(wide.outputs) ** 2).sqrt()
        return size((narrow.outputs.mean(0) - wide.outputs.mean(0)) / lever, error / lever)

    def _needed(self, seen: Ensemble, amplification: float) -> float:
        """Width times replicates at which the RMS standard error is ``rtol`` times the RMS of the outputs."""
        error = self.rtol * rms(seen.outputs.mean(0))
        spread = amplification * rms(seen.outputs.std(0))
        needed = (spread / error) ** 2 * seen.width if error > 0 else math.nan
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
            work = float(width * depth)
            self.bar.plan(work * len(missing), f"predict: {len(missing)} networks of width {width}, depth {depth}")
            more = ensemble(self.problem, width, depth, weights, missing, self.seed, lambda: self.bar.advance(work))
            self._done[key] = have.joined(more) if have else more
        return self._done[key]


def chosen_weights(problem: Problem, width: int, depth: int, memory: int) -> str:
    """Deferred or dense, whichever the cost model finds faster within memory."""
    way = within(problem, width, depth, memory)
    return way.weights if way else "deferred"
