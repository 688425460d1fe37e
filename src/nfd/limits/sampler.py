"""Ensembles of some networks at the width and number of replicates that an accuracy asks for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.names import NetworkWeights
from nfd.core.statistics import magnitude, rms, stderr
from nfd.limits.cost import LEVER, Storage, cheapest, power_of_two, widest
from nfd.limits.ensemble import Ensemble
from nfd.limits.networks import Networks
from nfd.limits.ranks import Ranks, foreseen
from nfd.limits.weighing import (
    LEAST_REPLICATES,
    MOST_REPLICATES,
    RESOLUTIONS,
    Option,
    Weighing,
    best_option,
    cheapest_option,
    resolution_bias,
)

_PILOT_REPLICATES = 4
_LONG = 60.0  # predicted seconds of a prediction from which on it warns
_PAIRS = 4  # of networks that show the bias of resolution


class Sampler:
    """Fixes width and replicates from a narrow pilot, and asks for the ensembles, wide and narrow."""

    def __init__(
        self,
        networks: Networks,
        *,
        width: int | None,
        replicates: int | None,
        rtol: float,
        memory: int,
        resolution: float | Literal["auto"] | None = None,
    ) -> None:
        self.networks, self.rtol, self.memory = networks, rtol, memory
        self.width, self.replicates = width or 0, replicates or 0
        self.given = bool(width), bool(replicates)
        """Whether the caller chose the width, and the replicates."""
        self.resolution = None if resolution == "auto" else resolution
        self.weighing: Weighing | None = None
        """Of exact layers and of a resolution, where that was to be chosen."""
        self._weighs = resolution == "auto" and "structured" in networks.kinds
        self._bias = 0.0
        self.climbed = False
        """Whether trained networks showed that memory allows more than was predicted."""
        self._deepest = 0
        self._is_gaussian: bool | None = None
        self._done: dict[tuple[int, int, NetworkWeights, float | None], Ensemble] = {}

    def settle(self, depth: int, deepest: int, amplification: float) -> None:
        """Decide the sizes for runs from ``depth`` to ``deepest``.

        ``amplification`` is the standard error of the answer over that of the ensembles.
        """
        self._deepest, unit = deepest, self.networks.unit
        if self.width and self.networks.least(self.width, deepest).bytes <= self.memory:
            self._climb(self.width, depth)
        self._require_memory(deepest, self._widest())
        widest_pilot = max(unit, self._widest() // LEVER)
        pilot_width = self.narrow_width if self.width else min(self.networks.pilot_width, widest_pilot)
        if self._weighs:
            self._weigh(pilot_width, depth, amplification)
        if self.width and self.replicates:
            self._warn_of_time(depth)
            return
        pilot = self._pilot(pilot_width, depth)
        needed = self._needed(pilot, amplification)
        if not self.width:
            wanted = unit * power_of_two(needed / (self.replicates or LEAST_REPLICATES) / unit)
            wanted = self._cheapest_width(needed, pilot_width, max(wanted, LEVER * pilot_width))
            self._climb(wanted, depth)
            self.width = min(wanted, self._widest())
        if not self.replicates:
            self.replicates = max(LEAST_REPLICATES, min(math.ceil(needed / self.width), MOST_REPLICATES))
            self._warn_of_time(depth)
            refined = math.ceil(self._needed(self.at(depth), amplification) / self.width)
            self.replicates = max(self.replicates, min(refined, 2 * self.replicates, MOST_REPLICATES))

    def _pilot(self, width: int, depth: int) -> Ensemble:
        """A few networks of this width, or of up to 16 times that where noise hides their values."""
        count = min(self.replicates or MOST_REPLICATES, _PILOT_REPLICATES)
        most = self.width or max(self._widest(), width)
        for factor in (1, LEVER, LEVER**2):
            pilot = self._run(min(factor * width, most), depth, count)
            if not is_hidden(pilot.outputs):
                break
        return pilot

    def _warn_of_time(self, depth: int) -> None:
        """Warn where the networks that were decided on are predicted to take more than a minute."""
        sizes = {(n, L) for n in (self.width, self.narrow_width) for L in (depth, self._deepest)}
        seconds = self.replicates * sum(self._chosen(self._ways(*size)).seconds for size in sizes)
        if seconds > _LONG:
            warnings.warn(
                f"nfd.predict trains {self.replicates} networks of width {self.width:,} and as many narrower ones: "
                f"about {seconds / 60:.0f} minutes, one after the other. A larger rtol, a smaller width or fewer "
                "replicates take less; progress=True shows what is left, and out= keeps what is trained.",
                stacklevel=7,
            )

    def _weigh(self, pilot_width: int, depth: int, amplification: float) -> None:
        """Choose resolution, width and replicates together, from narrow networks of the same seeds."""
        count = min(self.replicates or _PILOT_REPLICATES, _PILOT_REPLICATES)
        pilot = self._run(pilot_width, depth, count, "structured", 0.0)
        narrow = [self._run(pilot_width, depth, count, "structured", e) for e in RESOLUTIONS]
        twice = [self._run(2 * pilot_width, depth, 1, "structured", e) for e in RESOLUTIONS]  # two widths show a power
        spread = amplification * rms(pilot.outputs.std(0)) * math.sqrt(pilot_width)
        wanted = self.rtol * rms(pilot.outputs.mean(0))
        if self.width and self.replicates:  # then a bias as large as the noise will do
            wanted = max(wanted, math.sqrt(2 / (self.width * self.replicates)) * spread)
        option = partial(
            best_option,
            widths=self._widths(pilot_width),
            spread=spread,
            wanted=wanted,
            replicates=self.replicates or None,
        )
        exact = [
            option(kind, None, seconds_of=partial(self._seconds, kind, {}), bias=0.0)
            for kind in self.networks.kinds
            if kind != "structured" or not self.networks.resolution
        ]
        resolved = [
            option(
                "structured",
                e,
                seconds_of=partial(self._seconds, "structured", _reached(one, two)),
                bias=resolution_bias(one.outputs, pilot.outputs),
            )
            for e, one, two in zip(RESOLUTIONS, narrow, twice, strict=True)
        ]
        self.weighing = Weighing(cheapest_option(exact), cheapest_option(resolved))
        self._take(self.weighing.chosen)

    def _take(self, option: Option | None) -> None:
        """Use the networks that were chosen; exact ones, sized as ever, where none reaches the error."""
        self._is_gaussian = option is None or option.weights != "structured"
        if option is None and all(kind == "structured" for kind in self.networks.kinds):
            self._is_gaussian, self.resolution = False, RESOLUTIONS[-1]
        if option is not None:
            self.width, self.resolution, self._bias = option.width, option.resolution, option.bias

    def _widths(self, pilot_width: int) -> list[int]:
        """That may be chosen."""
        if self.width:
            return [self.width]
        unit, least = self.networks.unit, LEVER * pilot_width
        return [width for k in range(64) if least <= (width := unit << k) <= max(self._widest(), least)]

    def _seconds(self, kind: NetworkWeights, reached: Mapping[int, Ranks], width: int) -> float | None:
        """Of a network and its narrower one at the largest depth; None where it does not fit into memory."""
        cost, depth = self.networks.cost, self._deepest
        if cost(kind, width, depth, None).bytes > self.memory:
            return None
        ranks = {n: foreseen(reached, n) for n in (width, self.networks.narrower(width))}
        return sum(cost(kind, n, depth, None if rank is None else rank.mean).seconds for n, rank in ranks.items())

    def _cheapest_width(self, needed: float, pilot_width: int, most: int) -> int:
        """Of the widths up to ``most``, that at which width times replicates is least time; ``most`` if R is given."""

        def seconds(width: int) -> float:
            way, replicates = self._within(width, self._deepest), max(LEAST_REPLICATES, math.ceil(needed / width))
            alone = None if way is None else self._seconds(way.weights, {}, width)
            return math.inf if alone is None else replicates * alone

        widths = [width for width in self._widths(pilot_width) if width <= most]
        return most if self.replicates or not widths else min(widths, key=seconds)

    def fits(self, depth: int) -> bool:
        """Whether the chosen width fits into memory at a depth."""
        return cheapest(self._ways(self.width, depth), self.memory) is not None

    def at(self, depth: int) -> Ensemble:
        """The ensemble at a depth."""
        return self._run(self.width, depth, self.replicates)

    @property
    def resolution_used(self) -> float:
        """Of structured weights; 0 where nothing is dropped."""
        return self.networks.resolution if self.resolution is None else self.resolution

    @property
    def narrow_width(self) -> int:
        """Width of the networks that show the bias of width."""
        return self.networks.narrower(self.width)

    def narrower(self, depth: int) -> Ensemble:
        """As many networks of ``narrow_width`` at a depth."""
        return self._run(self.narrow_width, depth, self.replicates)

    def exact(self, depth: int) -> Ensemble | None:
        """A few of ``narrower`` from the same seeds without a resolution; None where the weights have none."""
        narrow = self.narrower(depth)
        if narrow.weights != "structured" or not self.resolution_used:
            return None
        return self._run(narrow.width, depth, min(len(narrow), _PAIRS), narrow.weights, 0.0)

    def _climb(self, wanted: int, depth: int) -> None:
        """Train single networks, ever wider, while the ranks that they reach may show that a wanted width fits."""
        unit, memory = self.networks.unit, self.memory
        width = min(wanted, widest(lambda n: self.networks.least(n, self._deepest).bytes <= memory, unit))
        rung = 0
        while self._within(width, self._deepest) is None:
            weights, before = self.networks.least(width, self._deepest).weights, rung
            rung = min(self.networks.narrower(width), widest(partial(self._fits_as, weights), unit))
            if rung <= before or not self._fits_as(weights, rung):
                return
            for trained in (rung,) if before else (self.networks.narrower(rung), rung):  # two widths show a power
                self._run(trained, depth, 1, weights)
            self.climbed = True

    def _fits_as(self, weights: NetworkWeights, width: int) -> bool:
        """Whether a network with such weights is predicted to fit at the largest depth."""
        ways = self.networks.ways(width, self._deepest)
        return any(way.weights == weights and way.bytes <= self.memory for way in ways)

    def _widest(self) -> int:
        """The widest network that fits into memory at the largest depth."""
        return widest(lambda width: self._within(width, self._deepest) is not None, self.networks.unit)

    def _needed(self, pilot: Ensemble, amplification: float) -> float:
        """Width times replicates at which the RMS standard error is ``rtol`` times the RMS of the outputs.

        0 where noise hides these.
        """
        if is_hidden(pilot.outputs):
            return 0.0
        error = math.sqrt(max(0.0, (self.rtol * rms(pilot.outputs.mean(0))) ** 2 - self._bias**2))
        spread = amplification * rms(pilot.outputs.std(0))
        needed = (spread / error) ** 2 * pilot.width if error > 0 else math.nan
        return needed if math.isfinite(needed) else 0.0

    def _require_memory(self, deepest: int, widest_here: int) -> None:
        if self.width and not self.fits(deepest):
            raise InputError(
                f"width={self.width} at depth {deepest} does not fit into memory; {widest_here} does. "
                f"Raise memory, or lower width, batch or steps. {self.networks.foresight()}".strip()
            )
        if not self.width and widest_here < self.networks.least_width:
            raise InputError(
                f"memory allows no network of width {self.networks.least_width} at depth {deepest}. Raise memory, or "
                "lower batch or steps."
            )

    def _within(self, width: int, depth: int) -> Storage | None:
        return cheapest(self.networks.ways(width, depth), self.memory)

    def _ways(self, width: int, depth: int) -> Sequence[Storage]:
        """How networks of a size can hold their weights: in one law with the widest and deepest, once it is chosen."""
        ways = self.networks.ways(width, depth)
        if self._is_gaussian is None:
            if not self.width:
                return ways
            self._is_gaussian = self._chosen(self.networks.ways(self.width, self._deepest)).is_gaussian
        return [way for way in ways if way.is_gaussian == self._is_gaussian]

    def _chosen(self, ways: Sequence[Storage]) -> Storage:
        return cheapest(ways, self.memory) or min(ways, key=lambda way: way.bytes)

    def _run(
        self,
        width: int,
        depth: int,
        count: int,
        weights: NetworkWeights | None = None,
        resolution: float | None = None,
    ) -> Ensemble:
        weights = weights or self._chosen(self._ways(width, depth)).weights
        if weights == "structured" and resolution is None:
            resolution = self.resolution
        key = width, depth, weights, resolution
        have = self._done.get(key)
        missing = range(len(have) if have else 0, count)
        if missing:
            label = f"predict: width {width}, depth {depth}"
            more = self.networks.train(width, depth, weights, missing, label, resolution)
            self._done[key] = have.joined(more) if have else more
        return self._done[key]


def is_hidden(samples: Tensor) -> bool:
    """Whether the mean of samples ``[R, ...]`` is not significant: RMS of less than twice its noise, beyond it."""
    size = magnitude(samples.mean(0), stderr(samples))
    return size.value < 2 * size.noise


def _reached(*ensembles: Ensemble) -> dict[int, Ranks]:
    """The directions that networks have, by width."""
    return {ensemble.width: Ranks(*[ensemble.directions or 0.0] * 2) for ensemble in ensembles}
