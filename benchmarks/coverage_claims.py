"""Coverage of what the claims measure: distances of means from each other, correlations, tails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.coverage_case import Draw, Outcome, Row, normal, outcome, repeated
from nfd.core.estimates import interval, log_slope
from nfd.paper.claims.untrained import correlated, excess
from nfd.paper.two_limits import distance, relative

_ENTRIES, _NOISE = 32, 0.3
_WIDTHS = (16, 32, 64, 128)


def distances(runs: int, apart: float, directions: int, g: torch.Generator) -> Iterator[Outcome]:
    """Means of outputs that are ``apart``, in one direction of noise or many: of two groups, and paired."""
    noise = f"{runs} networks, {apart:g} apart, noise in {directions} direction{'s' if directions > 1 else ''}"

    def outputs(truth: float) -> Tensor:
        return truth + _NOISE * normal(g, runs, directions).repeat(1, _ENTRIES // directions)

    yield outcome("distance of two groups", noise, distance(outputs(1 + apart), outputs(1.0)), apart)
    yield outcome("distance of pairs", noise, relative(outputs(apart), outputs(1.0)), apart)


def correlations(networks: int, truth: float, g: torch.Generator) -> Iterator[Outcome]:
    """The correlation of two sums over units."""
    first, other = normal(g, networks), normal(g, networks)
    ends = torch.stack([first, truth * first + math.sqrt(1 - truth * truth) * other], 1)
    yield outcome("correlation", f"{truth:g} over {networks} networks", correlated(ends), truth)


def tails(draws: int, g: torch.Generator) -> Iterator[Outcome]:
    """The exponent in n of an excess kurtosis, from ``q = |h|^2 / n`` with variance 2 / n at four widths."""
    groups = [normal(g, draws, n).square().mean(1) for n in _WIDTHS]
    found = interval(lambda *q: log_slope(_WIDTHS, torch.stack([excess(one) for one in q])), *groups)
    yield outcome("exponent of a kurtosis", f"{draws} draws at {len(_WIDTHS)} widths", found, -1.0)


DRAWS: tuple[Draw, ...] = (
    *(partial(distances, R, apart, K) for R in (4, 12) for apart in (0.0, 0.2, 1.0) for K in (32, 4, 1)),
    *(partial(correlations, R, truth) for R, truth in ((4, 0.5), (24, 0.0), (24, 0.5), (24, 0.9))),
    partial(tails, 50),
)


def claims_cover(repetitions: int, seed: int) -> list[Row]:
    """Rows of every case here."""
    return repeated(DRAWS, repetitions, seed)
