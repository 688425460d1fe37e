"""Runs made by hand, whose answers are known: metrics and curves as a function of the settings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from nfd.paper.figures import figure4, figure5
from nfd.paper.figures.figure import Runs
from nfd.paper.runs import RunConfig, grid
from nfd.store import Record

SEEDS = [0, 1, 2, 3]
HORIZONS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
RATES = [0.125, 0.25, 0.5, 1.0, 2.0]
METERS = {"inner_update": -0.5, "stream_update": 0.0, "function_update_inner": 0.0}
Answer = tuple[dict[str, float], dict[str, Any]]  # metrics and curves
Ended = Callable[[RunConfig], int | None]  # the step at which a run diverges


@dataclass(frozen=True)
class Case:
    """What a claim is judged by, and what is true of it; each of ``said`` is found in the reading
    or what was tried.
    """

    claim: str
    made: Callable[[], Any]
    verdict: str
    value: float | None = None
    said: tuple[str, ...] = ()
    images: int = 1000


def named(cases: list[Case]) -> Iterator[Any]:
    """Cases as parameters of a test, by their claim and number."""
    counts: dict[str, Iterator[int]] = defaultdict(lambda: iter(range(99)))
    for case in cases:
        yield pytest.param(case, id=f"{case.claim}-{next(counts[case.claim])}")


def noise(config: RunConfig) -> float:
    """Small, of mean zero over the seeds, and the same for every size."""
    return (0.01, -0.01, 0.005, -0.005)[config.seed % 4]


def looks(config: RunConfig) -> list[int]:
    """The updates after which a network is looked at: none, every so many, all."""
    return sorted({*range(0, config.steps, config.every or config.steps), config.steps})


def never(config: RunConfig) -> None:
    """No run diverges."""


def made(answer: Callable[[RunConfig], Answer], ended: Ended = never, **axes: Any) -> Runs:
    """Runs whose metrics and curves are what ``answer`` says; those that ``ended`` diverged at a
    step.
    """
    found = []
    for k, config in enumerate(grid(**{"seed": SEEDS, **axes})):
        metrics, curves = answer(config)
        curves = {name: np.array(values, dtype=np.float64) for name, values in curves.items()}
        if config.every:
            curves["tested_after"] = np.array(looks(config), dtype=np.float64)
        metrics = {
            "first_loss": 2.3,
            "highest_loss": 2.4,
            "train_loss": 1.0,
            "test_loss": 1.1,
            **metrics,
        }
        at = ended(config)
        if at is not None:
            metrics |= {
                "train_loss": math.inf,
                "test_loss": math.inf,
                "highest_loss": math.inf,
                "test_accuracy": 0.0,
            }
            curves = {name: _cut(name, values, config, at) for name, values in curves.items()}
        status = "done" if at is None else "diverged"
        found.append(Record(f"run {k}", status, asdict(config), metrics, curves))
    return Runs(found)


def _cut(
    name: str, values: np.ndarray[Any, Any], config: RunConfig, at: int
) -> np.ndarray[Any, Any]:
    if name in ("tested_after", "measured_after"):
        return values
    if name == "loss":
        return np.where(np.arange(len(values)) >= at, np.nan, values)
    after = (
        np.array(looks(config))[-len(values) :]
        if config.every
        else np.full(len(values), config.steps)
    )
    if len(after) < len(values):  # several numbers at every look but the first
        after = np.repeat(after[1:], len(values) // (len(after) - 1))
    return np.where(after > at, np.nan, values)


def falling(config: RunConfig, level: float = 1.0) -> dict[str, Any]:
    """A training loss that is 2 and then ``level``, and test losses 0.5 above it."""
    loss = [2.0 if step < config.steps / 2 else level for step in range(config.steps)]
    seen = [(loss[min(step, config.steps - 1)] + 0.5) for step in looks(config)]
    return {
        "loss": loss,
        "test_loss": seen,
        "test_accuracy": [0.1 + 0.01 * k for k in range(len(seen))],
    }


def figure_1(ended: Ended = never) -> dict[str, Runs]:
    def start(config: RunConfig) -> Answer:
        scale = (1.0 if config.order == "pre" else config.depth**0.5) * (1 + noise(config))
        return {}, {"loss": [2.3], "h_rms": [1.0, scale]}

    def training(config: RunConfig) -> Answer:
        worse = 0.2 if config.order == "post" else 0.0
        return {"train_loss": 1.0 + worse + noise(config), "test_loss": 1.1 + 2 * worse}, falling(
            config, 1.0 + worse
        )

    both = {"order": ["pre", "post"], "eta_c": 0.01}
    return {
        "start": made(start, **both, depth=[4, 16, 64], steps=1, meter="start"),
        "training": made(training, ended, **both, depth=8, steps=8, every=2),
    }


def figure_2(ended: Ended) -> dict[str, Runs]:
    def answer(config: RunConfig) -> Answer:
        loss = 1.0 + 0.1 * (math.log2(config.horizon) - 3) ** 2 + noise(config)  # lowest at T = 8
        return {"train_loss": loss, "test_loss": loss + 0.1 * math.log2(config.horizon)}, falling(
            config, loss
        )

    return {
        "horizon": made(answer, ended, horizon=HORIZONS, depth=5, steps=10, every=2),
        "both": made(answer, ended, horizon=HORIZONS, depth=[5, 10], steps=10),
    }


COUNT = 1000


@cache
def normal(*key: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(key).standard_normal(COUNT)


def outputs(config: RunConfig) -> Answer:
    """1 + 1/L, and a deviation of square 1/n."""
    own = normal(config.seed, config.width, config.depth) / math.sqrt(config.width)
    return {}, {
        "loss": [2.3],
        "start": 0 * own,
        "outputs": np.full(COUNT, 1.0 + 1 / config.depth) + own,
    }


@cache
def figure_3(ended: Ended = never) -> dict[str, Runs]:
    """Errors with mean squares 1/n and 1/L: in depth as of increments of a path, each independent
    of the last.
    """

    def start(config: RunConfig) -> Answer:
        size = {"relu": 1.0, "tanh": 0.5}[config.activation]
        further = [L for L in (4, 8, 16, 32) if config.depth > L]
        path = sum(
            (normal(config.seed, L) * math.sqrt(size / (2 * L)) for L in further), np.zeros(COUNT)
        )
        metrics = {"h_particles": size / config.width, "g_particles": 3 * size / config.width}
        return metrics, {"loss": [2.3], "h_end": path, "g_start": 2 * path}

    shared = {"meter": "outputs", "coupled": True}
    before = {"activation": ["relu", "tanh"], "meter": "start", "coupled": True}
    return {
        "width": made(start, **before, width=[16, 32, 64], depth=32),
        "depth": made(start, **before, width=64, depth=[4, 8, 16, 32, 64]),
        "real": made(outputs, ended, **shared, width=[16, 64, 256], depth=[4, 8]),
        "limit": made(
            outputs, **shared, width=1_000_000, depth=[4, 8, 16, 32], seed=[100, 101, 102]
        ),
    }


def figure_4(gap: Callable[[int], float] = lambda L: 0.02, ended: Ended = never) -> dict[str, Runs]:
    def answer(config: RunConfig) -> Answer:
        apart = gap(config.depth) if config.feedback == "independent" else 0.0
        level = 1.0 + noise(config) + apart
        return {"test_loss": level + 0.5}, falling(config, level)

    shared = {"feedback": ["shared", "independent"], "depth": [2, 4, 8], "steps": 12, "every": 3}
    return {
        name: made(answer, ended, **shared, **form) for name, form in figure4.ARCHITECTURES.items()
    }


def figure_5(
    ended: Ended = never, best: Callable[[RunConfig], float] = lambda c: 0.5
) -> dict[str, Runs]:
    """Inner updates fall as L^-1/2 under uniform rates; Eq. 8 gives them sqrt(L) more; rates are
    best at ``best``.
    """

    def collapse(config: RunConfig) -> Answer:
        boost = 0.5 if config.rule == "depth-mup-inner" else 0.0
        inner = {
            name: p + (boost if name != "stream_update" else 0.0) for name, p in METERS.items()
        }
        sizes = {name: [9.0, config.depth**p * (1 + noise(config))] for name, p in inner.items()}
        return {}, {"loss": [2.3] * config.steps, "measured_after": [2, 4], **sizes}

    def transfer(config: RunConfig) -> Answer:
        loss = 1.0 + 0.05 * math.log2(config.eta_c / best(config)) ** 2 + noise(config)
        return {"train_loss": loss, "test_loss": loss}, {"loss": [2.3] * config.steps}

    def deep(config: RunConfig) -> Answer:
        loss = 1.0 - 0.1 * (config.rule == "depth-mup-inner") - 0.2 * config.eta_c + noise(config)
        accuracy = 0.7 if config.rule == "depth-mup-inner" else 0.5
        return {"train_loss": loss, "test_loss": loss, "test_accuracy": accuracy}, falling(
            config, loss
        )

    both = {"block": "two-layer", "rule": list(figure5.RULES)}
    return {
        "collapse": made(
            collapse, ended, **both, depth=[4, 16, 64], steps=4, every=2, meter="updates"
        ),
        "transfer": made(
            transfer, ended, **both, depth=[3, 6], width=[16, 32], eta_c=RATES, steps=4
        ),
        "deep": made(deep, ended, **both, depth=6, eta_c=[0.1, 0.4], steps=8, every=2),
    }


def figure_6(ended: Ended = never, sign: float = 1.0) -> dict[str, Runs]:
    """Sigma grows as n and falls as 1/k, Theta ten times as large; layer l is l times the first."""

    def answer(config: RunConfig) -> Answer:
        moments = looks(config)[1:]
        sizes = [
            k * config.width / step * (1 + noise(config)) for step in moments for k in (1, 2, 3)
        ]
        curves = {
            "sigma": [sign * s for s in sizes],
            "theta": [10 * s for s in sizes],
            "measured_after": moments,
        }
        at = ended(config)
        if at is not None:
            curves = {
                n: v if n == "measured_after" else [math.nan] * len(v) for n, v in curves.items()
            }
        return {}, curves

    return {
        "online": made(
            answer, meter="spectra", batch=1, depth=3, width=[8, 16, 32], steps=12, every=4
        )
    }
