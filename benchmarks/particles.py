"""Definition 1 by particles: time for the same error as deferred networks, and many samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import nfd
from benchmarks.counted import Work
from benchmarks.measure import Round, Row, limits, seconds, shares
from benchmarks.ratio import Ratio
from nfd.data import digits


def against_deferred(turn: Round) -> list[Row]:
    """Time of ``solve_nfd`` and of deferred networks with independent feedback, for one standard
    error.
    """
    x, y = _problem(12 if turn.quick else 24)
    count = 4 if turn.quick else 8
    errors = dict[str, float]()
    times = dict[str, float]()

    def solved(name: str, solve: Callable[[], Any]) -> None:
        solutions = list[Any]()
        times[name] = seconds(lambda: solutions.append(solve()))
        errors[name] = float(solutions[0].outputs_stderr.square().mean())

    family = nfd.resnets(64, 1, feedback="independent")
    task = nfd.Task(list(zip(x[:, None].float(), y[:, None].float(), strict=True)), loss="mse")
    shared: dict[str, Any] = {"replicates": count, "seed": turn.number}
    solved(
        "particles",
        lambda: nfd.solve_nfd(
            x, y, activation="relu", eta_c=0.1, grid=16, particles=4096, **shared
        ),
    )
    solved(
        "deferred",
        lambda: nfd.predict(
            family,
            task,
            0.1,
            depth=16,
            width=4096,
            replicates=count,
            weights="deferred",
            outputs=True,
        ),
    )
    return [
        {
            "activation": "relu",
            "samples": len(x),
            "replicates": count,
            "4,096 particles, s": times["particles"],
            "standard error": math.sqrt(errors["particles"]),
            "width 4,096, s": times["deferred"],
            "its standard error": math.sqrt(errors["deferred"]),
            "deferred / particles at one error": Ratio.of(
                times["deferred"] * errors["deferred"] / (times["particles"] * errors["particles"])
            ),
        }
    ]


def many_samples(turn: Round) -> list[Row]:
    """Time as many samples as particles are made for, against the traffic of their histories."""
    samples = 100 if turn.quick else 400
    grid = 8
    particles = 1024
    replicates = 2
    x, y = _problem(samples)
    now = limits()
    took = seconds(
        lambda: nfd.solve_nfd(
            x, y, grid=grid, activation="relu", particles=particles, replicates=replicates
        )
    )
    # Read per step and grid point: products, noise and drift, forward and backward.
    histories = 6
    traffic = replicates * grid * histories * 8 * particles * samples**2 / 2
    work = Work(traffic=traffic, products=traffic / 4)
    return [
        {
            "samples": samples,
            "grid": grid,
            "particles": particles,
            "replicates": replicates,
            "seconds": took,
        }
        | shares(now, work, took, torch.float64)
    ]


def _problem(count: int) -> tuple[Tensor, Tensor]:
    """Digits, and +1 for even and -1 for odd ones."""
    data = digits()
    targets = torch.where(data.labels[:count] % 2 == 0, 1.0, -1.0)
    return data.inputs[:count].double(), targets.double()
