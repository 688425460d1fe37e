"""How often intervals of one size's best learning rate contain it, whatever its bowl is like.

Bowls rise by up to 12 times as much to the right as to the left, end at a cliff, or have noise that
grows to the right. Readers are ``nfd.fit_transfer`` without a guess, from three seeds, and
``nfd.fit_rate_law`` at a size of its table, from one run for each learning rate, in a table of one
size and of four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import nfd
from calibration.coverage import Draw, Outcome, outcome

Array = NDArray[np.float64]
Random = np.random.Generator

LOWEST = 3.0
CURVATURE = 0.004  # of the loss, in a doubling squared
CURVATURE_SPREAD = 0.5  # deviation of its logarithm
NOISE = 0.0008  # of the loss
RATES = 7
STEPS = (0.5, 1.0, 2.0)  # doublings between two rates
SEEDS = 3
# Of the table of four sizes: the other three, beside this one.
PLACE = (3e8, 1e10)
OTHER_PLACES = ((1e8, 5e9), (1e8, 1e10), (3e8, 5e9))
BATCH = 2.5e5


@dataclass(frozen=True)
class Form:
    """A bowl.

    Attributes:
        asymmetry: right curvature over left curvature.
        cliff: doublings from the best rate to divergence.
        growth: by how many times itself the noise grows in a doubling to the right.
    """

    asymmetry: float = 1.0
    cliff: float = math.inf
    growth: float = 0.0

    def losses(self, distance: Array, seeds: int, random: Random) -> Array:
        """Losses ``[seeds, rates]`` at distances from the best rate, in doublings."""
        curvature = CURVATURE * math.exp(CURVATURE_SPREAD * random.normal())
        sides = np.where(distance > 0, self.asymmetry, 1.0)
        noise = NOISE * (1 + self.growth * np.maximum(distance, 0.0))
        size = (seeds, len(distance))
        losses = LOWEST * (1 + curvature * sides * distance**2 + noise * random.normal(size=size))
        diverged = np.where(random.random(size) < 0.5, 8.0, math.inf)
        return np.where(distance >= self.cliff, diverged, losses)


FORMS = {
    "symmetric": Form(),
    "4 times as steep to the right": Form(4.0),
    "12 times as steep to the right": Form(12.0),
    "cliff after half a doubling": Form(1.5, 0.5),
    "cliff after a doubling": Form(1.5, 1.0),
    "12 times as steep, cliff after two doublings": Form(12.0, 2.0),
    "noise that grows to the right": Form(3.0, growth=8.0),
}


def grid(step: float, random: Random) -> Array:
    """Distances of rates from the best one, which lies anywhere near the middle."""
    first = random.uniform(-0.5, 0.5) + random.integers(-1, 2) - RATES // 2
    return np.asarray(step * (np.arange(RATES) + first), np.float64)


def by_transfer(form: Form, step: float, random: Random) -> tuple[Any, float]:
    """The best rate by ``nfd.fit_transfer`` without a guess, and the true one."""
    best = random.uniform(-11.0, -8.0)
    distance = grid(step, random)
    losses = form.losses(distance, SEEDS, random)
    rows = [
        {"width": 64, "lr": 2 ** (best + away), "seed": seed, "loss": losses[seed, place]}
        for seed in range(SEEDS)
        for place, away in enumerate(distance)
    ]
    return nfd.fit_transfer(rows).best("logged", 64, 1), 2**best


def by_law(form: Form, step: float, random: Random, of_four: bool) -> tuple[Any, float]:
    """The best rate at a size of the table of a law, and the true one."""
    best = random.uniform(-11.0, -8.0)
    places = [PLACE, *OTHER_PLACES] if of_four else [PLACE]
    rows = list[dict[str, float]]()
    for N, D in places:
        size = -0.5 * math.log2(N / PLACE[0]) + 0.1 * math.log2(D / PLACE[1])
        scatter = 0.0 if (N, D) == PLACE else 0.1 * random.normal()
        distance = grid(step, random)
        losses = form.losses(distance, 1, random)[0]
        for away, loss in zip(distance, losses, strict=True):
            lr = 2 ** (best + size + scatter + away)
            rows.append({"parameters": N, "tokens": D, "batch": BATCH, "lr": lr, "loss": loss})
    return nfd.fit_rate_law(rows).at(*PLACE, BATCH).rate, 2**best


READERS: dict[str, Callable[[Form, float, Random], tuple[Any, float]]] = {
    "best rate without a guess": by_transfer,
    "best rate of a law's only size": partial(by_law, of_four=False),
    "best rate of a law's size of four": partial(by_law, of_four=True),
}


def bowls(reader: str, name: str, step: float, g: torch.Generator) -> Iterator[Outcome]:
    """The interval of one bowl by one reader."""
    random = np.random.default_rng(g.initial_seed())
    interval, truth = READERS[reader](FORMS[name], step, random)
    yield outcome(reader, f"{name}, rates by factors of {2**step:.2g}", interval, truth)


DRAWS: tuple[Draw, ...] = tuple(
    partial(bowls, reader, name, step) for reader in READERS for name in FORMS for step in STEPS
)
