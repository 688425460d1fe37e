"""How far Eq. 8 helps, and what it costs, with complete-p beside it: docs/eq8.md.

python examples/eq8.py --data-dir DIR --store out/figures   # trains what is not stored; starts again where it stopped
python examples/eq8.py --page docs                          # trains nothing: writes the page again from its numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import eq8_page
import torch
from figure_options import parser
from torch import Tensor

import nfd
from nfd.core import interval, log_slope
from nfd.core.files import write_json
from nfd.paper.config import FigureConfig
from nfd.paper.figures import figure5
from nfd.paper.figures.making import dataset_for
from nfd.paper.figures.selection import Runs
from nfd.paper.runs import RunConfig, data_settings, grid, initial_seed, run_all

NUMBERS = "eq8.json"
UNIFORM = "depth-mup"
RULES = (UNIFORM, "depth-mup-inner", "complete-p")
METERS = ("inner_update", "function_update_inner", "stream_update")
BLOCKS = {"block": "two-layer", "width": 128, "batch": 128, "eta_c": 0.1}
DEPTHS = (4, 8, 16, 32, 64, 128)
SEEDS = 6


def trainings(data: Mapping[str, Any], seed: int = 0) -> tuple[list[RunConfig], list[RunConfig]]:
    """Networks whose updates are measured: after the first step, and every 100 of 300 steps."""
    axes: dict[str, Any] = {
        **data, **BLOCKS, "meter": "updates", "rule": list(RULES), "depth": list(DEPTHS),
        "seed": [initial_seed(seed, k) for k in range(SEEDS)],
    }  # fmt: skip
    return grid(**axes, steps=1, every=1), grid(**axes, steps=300, every=100)


def samples(runs: Runs, rule: str, meter: str, step: int) -> tuple[list[float], Tensor]:
    """Depths, and a meter ``[seeds, depths]`` after a step."""
    look = runs.curve("measured_after")[0].tolist().index(step)
    return figure5.updates(runs, rule, meter, look)


def measured(runs: Runs) -> Iterator[dict[str, Any]]:
    """A row for each step, rule and meter: the exponent in depth, and what it is at the largest depth over what it is
    with uniform rates."""
    for step in map(int, runs.curve("measured_after")[0].tolist()):
        for rule in RULES:
            for meter in METERS:
                depths, values = samples(runs, rule, meter, step)
                _, uniform = samples(runs, UNIFORM, meter, step)
                power = interval(lambda s, L=depths: log_slope(L, s.mean(0)), values)
                ratio = interval(lambda own, other: own.mean() / other.mean(), values[:, -1], uniform[:, -1])
                yield {
                    "rule": rule, "meter": meter, "step": step, "depths": depths, "exponent": power.limits,
                    "ratio": None if rule == UNIFORM else ratio.limits,
                }  # fmt: skip


def losses(deep: Runs) -> Iterator[dict[str, Any]]:
    """Eq. 8 minus uniform rates in deep networks, at the smallest rate and each at its best one."""
    slow = deep.where(eta_c=min(deep.values("eta_c")))
    for metric in ("train_loss", "test_loss", "test_accuracy"):
        yield {
            "metric": metric, "eta_c": slow.values("eta_c")[0],
            "same": figure5.advantage(slow, metric).limits, "tuned": figure5.tuned_advantage(deep, metric).limits,
            "rates": {rule: figure5.best_rate(deep, rule)[0] for rule in figure5.RULES},
        }  # fmt: skip


def main(data_dir: str | None, store: Path, out: Path) -> None:
    """Train what is missing, and write the numbers and the page into ``out``."""
    config = FigureConfig(data_dir=data_dir)
    dataset, data = dataset_for(config), data_settings(config)
    with nfd.Sweep(store) as sweep:

        def of(configs: list[RunConfig]) -> Runs:
            return Runs(run_all(sweep, {"": configs}, "eq8")[""])

        updates = [row for configs in trainings(data) for row in measured(of(configs))]
        deep = of(figure5.FIGURE.grids(config.size, data, dataset)["deep"])
    size, *_ = deep.configs
    numbers = {
        "data": dataset.title, "width": BLOCKS["width"], "eta_c": BLOCKS["eta_c"], "seeds": SEEDS, "updates": updates,
        "deep": {"depth": size.depth, "steps": size.steps, "seeds": len(deep.values("seed"))},
        "losses": list(losses(deep)),
    }  # fmt: skip
    write_json(out / NUMBERS, numbers)
    eq8_page.write(out, NUMBERS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    a = parser(__doc__, NUMBERS).parse_args()
    if a.page:
        eq8_page.write(a.page, NUMBERS)
    else:
        main(a.data_dir, a.store, a.out)
