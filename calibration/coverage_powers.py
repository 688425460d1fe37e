"""Draws of coverage for laws of width whose power is far from 1: the floor, and twice the width.

Losses are ``floor + excess (64 / n)^p`` with the noise of seeds, at widths 64 to 1,024 with three
seeds. Excess and noise are drawn as well: the noise of a run of width 64 is 1 to 6 % of the excess,
and its variance falls with the square root of the width. ``python -m calibration.coverage_powers``
also prints which share of the laws is answered, that is, may be extrapolated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from calibration.coverage import Draw, Outcome, outcome, repeated
from calibration.coverage_laws import stream
from makers.tables import terminal
from nfd.core.random import derive
from nfd.core.tables import Row
from nfd.laws.scaling_law import fit_scaling_law

WIDTHS = (64, 128, 256, 512, 1024)
POWERS = (0.2, 0.25, 0.33, 0.5, 1.0, 2.0)
FLOOR = 2.2
_SEEDS = 3
_EXCESS = 0.2, 1.5
_NOISE = 0.01, 0.06


def powers(power: float, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the floor and the mean loss at twice the largest width.

    A law that is refused gives no outcome.
    """
    random = stream(g)
    excess = float(np.exp(random.uniform(*np.log(_EXCESS))))
    noise = excess * float(np.exp(random.uniform(*np.log(_NOISE))))
    rows = list[Row]()
    for n in WIDTHS:
        for seed in range(_SEEDS):
            loss = FLOOR + excess * (64 / n) ** power + noise * (64 / n) ** 0.25 * random.normal()
            rows.append({"width": n, "loss": loss, "seed": 10**4 * n + seed})
    fitted = fit_scaling_law(rows)
    if not fitted.law.good:
        return
    case = f"five widths, 3 seeds, power {power:g}"
    wider = 2 * WIDTHS[-1]
    truth = FLOOR + excess * (64 / wider) ** power
    yield outcome("law of width: floor", case, fitted.floor, FLOOR)
    yield outcome("law of width: twice the width", case, fitted.at(wider), truth)


DRAWS: tuple[Draw, ...] = tuple(partial(powers, power) for power in POWERS)


def main() -> None:
    """Print for every power how many laws are not refused, and what their intervals hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for index, draw in enumerate(DRAWS):
        rows = repeated(draw, given.repetitions, derive(given.seed, "powers", index))
        terminal("powers", [one | {"answered": one["count"] / given.repetitions} for one in rows])


if __name__ == "__main__":
    main()
