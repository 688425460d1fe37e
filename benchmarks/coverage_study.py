"""Coverage of what ``nfd paper study`` says, from outputs of made-up networks whose limits are known.

Outputs scatter in as many directions as those of trained networks do: about 36, by the participation ratio of 150
networks of width 64 on digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor

from benchmarks.coverage_case import Draw, Outcome, Row, normal, repeated
from nfd.core.errors import Feedback
from nfd.core.estimates import rms
from nfd.core.files import INFINITE, Finding
from nfd.paper.findings import by_depth, by_width, gap, losses
from nfd.paper.settings import StudyConfig
from nfd.paper.study import LIMITS, Study

_DEPTHS, _WIDTHS, _DIRECTIONS = (2, 4, 8), (16, 64), 36
_COMMON, _OWN, _SCATTER = 0.2, 0.02, 4.0  # noise of replicates at all depths, at one, of networks times sqrt(width)


class Truth:
    """``f + a / L``, and ``apart`` more with independent feedback; and noise in some directions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        stream = torch.Generator().manual_seed(0)
        self.shape = shape
        self.f, self.a, self.apart = (normal(stream, *shape) for _ in range(3))
        self.directions = normal(stream, _DIRECTIONS, math.prod(shape)) / math.sqrt(_DIRECTIONS)

    def outputs(self, feedback: Feedback, depth: float) -> Tensor:
        """Of a network without noise."""
        return self.f + self.a / depth + (self.apart if feedback == "independent" else 0.0)

    def noise(self, g: torch.Generator, count: int) -> Tensor:
        """Of this many networks, of size one."""
        return (normal(g, count, _DIRECTIONS) @ self.directions).view(count, *self.shape)

    @property
    def size(self) -> float:
        """The RMS of the noise of one network."""
        return math.sqrt(float(self.directions.square().sum(0).mean()))


@lru_cache(maxsize=4)
def _subject(replicates: int, seeds: int) -> tuple[Study, Truth]:
    study = Study(StudyConfig(depths=_DEPTHS, widths=_WIDTHS, replicates=replicates, seeds=seeds, steps=2, batch=4))
    return study, Truth((*study.targets.shape, 10))


def bands(replicates: int, g: torch.Generator) -> Iterator[Outcome]:
    """Bands of the loss of infinitely wide networks."""
    study, truth = _measured(replicates, 2, g)
    found = losses(study, "shared")
    for row in found.rows if found else []:
        if row["width"] == INFINITE and row["depth"] in (_DEPTHS[-1], INFINITE) and row["step"] == 1:
            where = "infinite depth" if row["depth"] == INFINITE else "one depth"
            expected = float(study.mean_loss(truth.outputs("shared", row["depth"]))[1])
            yield Outcome(
                "band of a study's loss", f"{replicates} replicates, {where}", row["low"], row["high"], expected
            )


def gaps(replicates: int, g: torch.Generator) -> Iterator[Outcome]:
    """The gap between two kinds of feedback at infinite depth, on average over the steps."""
    study, truth = _measured(replicates, 2, g)
    found = gap(study)
    independent, shared = (float(study.mean_loss(truth.outputs(f, INFINITE)).mean()) for f in ("independent", "shared"))
    for row in found.rows if found else []:
        if row["depth"] == INFINITE:
            yield Outcome("gap of a study", f"{replicates} replicates", row["low"], row["high"], independent - shared)


def distances(replicates: int, seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """Distances to the limit and their exponents."""
    study, truth = _measured(replicates, seeds, g)
    sizes = f"{seeds} networks, {replicates} replicates"
    yield from _distances(by_width(study), "width", sizes, {n: _SCATTER / math.sqrt(n) * truth.size for n in _WIDTHS})
    falls = {L: rms(truth.a) / L for L in _DEPTHS}
    yield from _distances(by_depth(study), "depth", f"{replicates} replicates", falls)


def _measured(replicates: int, seeds: int, g: torch.Generator) -> tuple[Study, Truth]:
    """A study as if it had been measured."""
    study, truth = _subject(replicates, seeds)
    common = _COMMON * truth.noise(g, replicates)
    for feedback in LIMITS:
        for L in _DEPTHS:
            own = _OWN * truth.noise(g, replicates)
            study.measured.limits[feedback, L] = truth.outputs(feedback, L) + common + own
        study.measured.narrow[feedback] = truth.outputs(feedback, _DEPTHS[-2]) + common
    for n in _WIDTHS:
        noise = _SCATTER / math.sqrt(n) * truth.noise(g, seeds)
        study.measured.real[_DEPTHS[-1], n] = truth.outputs("shared", _DEPTHS[-1]) + noise
    return study, truth


def _distances(found: Finding | None, axis: str, case: str, sizes: dict[int, float]) -> Iterator[Outcome]:
    """Distances at the largest size, and the exponent: of single networks in width, of the limits in depth."""
    series = f"depth {_DEPTHS[-1]}" if axis == "width" else "infinitely wide"
    for row in found.rows if found else []:
        if row["series"] == series and row[axis] == max(sizes):
            yield Outcome(f"distance of a study in {axis}", case, row["low"], row["high"], sizes[row[axis]])
    for row in found.slopes if found else []:
        if row["series"] == series:
            expected = -0.5 if axis == "width" else -1.0
            yield Outcome(f"exponent of a distance in {axis}", case, row["low"], row["high"], expected)


DRAWS: tuple[Draw, ...] = (
    *(partial(bands, R) for R in (3, 6)),
    *(partial(gaps, R) for R in (3, 6)),
    *(partial(distances, R, seeds) for R, seeds in ((3, 3), (6, 5))),
)


def study_covers(repetitions: int, seed: int) -> list[Row]:
    """Rows of studies with few and with the usual number of replicates."""
    return repeated(DRAWS, repetitions, seed)
