"""What ``nfd.transfer(..., halving=True)`` saves, and whether it finds other best rates: measured against whole grids.

python -m benchmarks.halving --out out/halving            # minutes on two cores; stopped, it goes on from there

Whole grids are trained once. What halving trains of them follows from their loss curves, of which short trainings are
the beginning (``tests/test_axes.py``): nothing is trained again. Repeats have batches of their own.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.statistics import mean
from nfd.data.digits import digits
from nfd.questions.halving import halved, wider
from nfd.questions.optimum import Scores
from nfd.runs.executors.executor import Executor
from nfd.runs.executors.processes import Processes
from nfd.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

REPEATS, STEPS, SEEDS = 4, 40, 3
WIDE = tuple(1e-3 * 2.0**k for k in range(-6, 7))
GRIDS = {"7 rates": WIDE[3:-3], "13 rates": WIDE}


class Block(nn.Module):
    """A pre-norm MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(nn.functional.gelu(self.up(self.norm(h))))
        return out


def residual(width: int, depth: int) -> nn.Module:
    """Pixels of a digit to logits."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def asked(name: str, repeat: int) -> dict[str, Any]:
    """The arguments of one transfer."""
    shared: dict[str, Any] = {"depths": (2,), "rules": ("standard", "complete-p"), "lr": WIDE, "seeds": SEEDS}
    if name == "digits":
        x, y = digits().batches(size=32, steps=STEPS, seed=repeat)
        return shared | {"make_model": residual, "widths": (32, 64), "batches": list(zip(x, y, strict=True))}
    wide_gpt = importlib.import_module("wide_gpt")  # of the examples
    batches = [*wide_gpt.batches((repeat + 1) * STEPS)][repeat * STEPS :]
    one_size = {"axes": {"steps": (STEPS,)}}
    return shared | one_size | {"make_model": wide_gpt.GPT, "widths": (64,), "batches": batches}


@dataclass(frozen=True)
class Place:
    """Scores on the whole grid at one rule and size, and the curve of the first start at each of its rates."""

    scores: Scores
    curves: Mapping[float, Sequence[float]]

    def on(self, rates: Sequence[float]) -> Scores:
        """The scores at some of the rates."""
        columns = [int((self.scores.log2_eta - math.log2(rate)).abs().argmin()) for rate in rates]
        own = self.scores
        return replace(own, log2_eta=own.log2_eta[columns], losses=own.losses[:, columns], upset=own.upset[:, columns])

    def grown(self, rates: Sequence[float], whole: Sequence[float]) -> list[float]:
        """The grid that the best rate needs, from these rates on."""
        grid = list(rates)
        while (more := wider(grid, whole, self.on(grid))) != grid:
            grid = [rate for rate in more if min(abs(math.log2(rate / known)) for known in self.curves) < 0.01]
            if len(grid) < len(more):
                break  # beyond what was trained
        return grid

    def halved(self, whole: Sequence[float]) -> tuple[list[float], float]:
        """The rates that short trainings leave, and what these cost, in whole trainings."""
        spent = 0.0

        def short_losses(rates: Mapping[str, Sequence[float]], share: float) -> dict[str, list[float]]:
            nonlocal spent
            stop = max(1, round(share * STEPS))
            spent += len(rates["here"]) * stop / STEPS
            return {"here": [_last(self.curves[rate], stop) for rate in rates["here"]]}

        return halved({"here": whole}, short_losses)["here"], spent


def _last(curve: Sequence[float], stop: int) -> float:
    """The mean loss over the last tenth of a short training, as a trial's record holds it."""
    if len(curve) < stop or not all(map(math.isfinite, curve[:stop])):
        return math.inf
    last = curve[:stop][-max(1, stop // 10) :]
    return math.fsum(last) / len(last)


def places(name: str, repeat: int, out: Path, executor: Executor) -> Iterator[Place]:
    """What one transfer on the whole grid measures."""
    directory = out / f"{name}-{repeat}"
    answer = nfd.transfer(**asked(name, repeat), out=directory, executor=executor)
    with Store.read(directory) as store:
        first = [run for run in store.records() if run.config["seed"] == 0]
        for rule in answer:
            for (n, L), scores in rule.cells.items():
                here = {"rule": rule.rule, "width": n, "depth": L}
                own = [run for run in first if here.items() <= run.config.items()]
                yield Place(scores, {run.config["lr"]: store.curves(run.key)["loss"].tolist() for run in own})


def line(name: str, title: str, whole: Sequence[float], repeats: Sequence[Sequence[Place]]) -> str:
    """A row of the table: the share of training saved, and how often best rate and interval are the same."""
    replays = [[Replay.of(place, whole) for place in places] for places in repeats]
    saved = mean(torch.tensor([[replay.saved for replay in row] for row in replays], dtype=torch.float64).mean(1))
    of_all = [replay for row in replays for replay in row]
    share, same = saved.scaled(100), sum(replay.moved == 0 for replay in of_all)
    return (
        f"| {name}, {title} | {share.value:.0f} % [{share.low:.0f}, {share.high:.0f}] | {same} of {len(of_all)} | "
        f"{max(replay.moved for replay in of_all):.2g} | {max(replay.moved_alone for replay in of_all):.2g} |"
    )


@dataclass(frozen=True)
class Replay:
    """What halving does at one place: the share of training saved, and the largest change of a best rate or a limit of
    its interval, in doublings, with and without the growth of the grid."""

    saved: float
    moved: float
    moved_alone: float

    @classmethod
    def of(cls, place: Place, whole: Sequence[float]) -> Replay:
        """With whole grids as they grow without it."""
        full, (left, spent) = place.grown(whole, whole), place.halved(whole)
        few = place.grown(left, whole)
        limits = [torch.tensor([*place.on(grid).optimum().limits.values()]) for grid in (full, few, left)]
        moved, alone = (float((limit - limits[0]).abs().max()) for limit in limits[1:])
        return cls(1 - (spent + SEEDS * len(few)) / (SEEDS * len(full)), moved, alone)


def main(out: Path, names: Sequence[str], processes: int) -> None:
    """Print the table."""
    print("| networks, grid | training saved | same rate and interval | largest change, doublings | without growth |")
    print("|---|---|---|---|---|")
    for name in names:
        repeats = [[*places(name, repeat, out, Processes(processes))] for repeat in range(REPEATS)]
        for title, whole in GRIDS.items():
            print(line(name, title, whole, repeats), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/halving"))
    parser.add_argument("--only", choices=("digits", "gpt"), nargs="+", default=("digits", "gpt"))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    main(given.out, given.only, given.processes)
