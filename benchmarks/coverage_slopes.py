"""Coverage of the slopes of ``nfd.check``: on simulated scatter, and on the tiniest networks, trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import nfd
from benchmarks.coverage_case import Draw, Outcome, Row, counted, normal, outcome, repeated
from nfd.core.estimates import pooled_slope
from nfd.core.random import derive
from nfd.meters.check import Check, check_findings

_SEEDS = 3
_METERS = ("activation", "activation_update", "function_update", "inner_update", "update_to_weight", "loss")


def simulated(sizes: int, seeds: int, groups: int, power: float, g: torch.Generator) -> Iterator[Outcome]:
    """Logarithms that fall as the root of the size and scatter as a power of it, in several groups of other sizes."""
    log_n = torch.tensor([64.0 * 2**k for k in range(sizes)], dtype=torch.float64).log()
    x = log_n.repeat(groups).repeat_interleave(seeds)
    group = torch.arange(groups).repeat_interleave(sizes * seeds)
    y = group - 0.5 * x + 0.3 * (power * (x - log_n[0])).exp() * normal(g, len(x))
    case = f"{seeds} seeds, {sizes} sizes, {groups} of the other, scatter as n^{power:g}"
    yield outcome("slope of a check", case, pooled_slope(x, y, group), -0.5)


def charted(seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """A point of a check's chart: a meter over that of the smallest network, which scatters twice as much."""
    widths, depths = (64, 128), (2, 4)
    runs: list[dict[str, Any]] = [
        {
            "width": n,
            "depth": L,
            "seed": s,
            "rows": [{"step": 1, "matrix": "", "activation": float((-0.5 * _log(n / 64) + noise * 12.8 / n).exp())}],
        }
        for n in widths
        for L in depths
        for s, noise in enumerate(normal(g, seeds))
    ]
    row = {"meter": "activation", "axis": "width", "slope": 0.0, "low": 0.0, "high": 0.0, "verdict": "", "cause": "",
           "since": None, "step": 1}  # fmt: skip
    found = Check([row], runs, [], "depth-mup", "sgd", 0.1, (1,), seeds, "1 step", (1, 1))
    last = check_findings(found, "")[0].rows[-1]
    yield Outcome("point of a check's chart", f"{seeds} seeds", last["low"], last["high"], 2**-0.5)


def _log(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).log()


DRAWS: tuple[Draw, ...] = (
    *(partial(simulated, 4, 3, groups, power) for groups in (1, 2, 4) for power in (0.0, -0.5, -1.0)),
    *(partial(simulated, 3, 3, groups, -1.0) for groups in (1, 2, 4)),
    *(partial(simulated, 2, 3, groups, -1.0) for groups in (1, 3)),
    *(partial(simulated, sizes, 2, groups, -1.0) for sizes in (2, 4) for groups in (1, 3)),
    *(partial(charted, seeds) for seeds in (2, 3)),
)


def slopes_cover(repetitions: int, seed: int) -> list[Row]:
    """Rows of simulated slopes."""
    return repeated(DRAWS, repetitions, seed)


def networks_cover(repetitions: int, seed: int) -> list[Row]:
    """Rows of slopes in width of trained networks, three seeds at a time; the truth is the mean of all slopes."""
    widths = (8, 16, 32)
    stream = torch.Generator().manual_seed(derive(seed, "coverage", "networks"))
    batches = [(torch.randn(4, 6, generator=stream), torch.randint(3, (4,), generator=stream)) for _ in range(2)]
    family = nfd.resnets(6, 3, block="two-layer")
    found = nfd.check(family, batches, widths, [1], lr=0.3, seeds=_SEEDS * repetitions)
    outcomes: list[Outcome] = []
    for meter in _METERS:
        if all(meter in run for run in found.runs):
            outcomes += _slopes(meter, widths, found.runs, repetitions)
    return counted(outcomes)


def _slopes(meter: str, widths: Sequence[int], runs: Sequence[Row], repetitions: int) -> list[Outcome]:
    """The slope of every three seeds against the mean of all."""
    log_n = torch.tensor(widths, dtype=torch.float64).log().repeat_interleave(_SEEDS)
    values = [torch.tensor([r[meter] for r in runs if r["width"] == n], dtype=torch.float64).log() for n in widths]
    each = torch.stack([v.view(repetitions, _SEEDS) for v in values], 1).flatten(1)  # [repetitions, widths * seeds]
    slopes = [pooled_slope(log_n, y, torch.zeros(len(y))) for y in each]
    truth = sum(s.value for s in slopes) / len(slopes)
    case = f"{meter}, {_SEEDS} seeds, widths {', '.join(map(str, widths))}"
    return [outcome("slope of a check, trained networks", case, s, truth) for s in slopes]
