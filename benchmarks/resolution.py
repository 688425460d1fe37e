"""What a resolution costs and saves: trainings with and without it, and the tables of docs/mathematics/resolution.md.

python -m benchmarks.resolution            # half an hour on one core; stopped, it goes on from there
python -m benchmarks.resolution --page     # the tables alone, from benchmarks/resolution.json
python -m benchmarks.resolution --growth   # operations by tenths of a training, where older ones lack them

Residual networks of four one-layer blocks, relu, on digits, 16 a step, ``eta_c`` 0.3. Operations are those of matrix
products, counted as they run. Networks of one seed with and without a resolution draw the same numbers at first, so
that their losses are compared in pairs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nfd
from benchmarks.accounting import Ledger
from benchmarks.resolution_page import filled
from nfd.core.files import write_text
from nfd.core.names import NetworkWeights
from nfd.data.digits import digits
from nfd.training.losses import cross_entropy

RESULTS = Path(__file__).with_name("resolution.json")
DEPTH, BATCH, ETA_C = 4, 16, 0.3
ONLINE, FEW, TEN, MANY = 100, 20, 10, 60  # steps without repetition; steps in a pass, and passes


@dataclass(frozen=True)
class Training:
    """One network: ``steps`` different batches, ``passes`` times."""

    width: int
    weights: NetworkWeights
    resolution: float | None
    seed: int
    steps: int
    passes: int = 1

    def run(self) -> dict[str, Any]:
        """Its settings, the loss of every step, operations in all, and ranks and operations by every tenth."""
        net = nfd.ResNet(64, 10, self.width, DEPTH, weights=self.weights, resolution=self.resolution, seed=self.seed)
        optimizer = nfd.SGD(net.param_groups(ETA_C))
        x, y = digits().batches(size=BATCH, steps=self.steps, seed=0)
        losses, ranks, total = list[float](), list[list[Any]](), self.steps * self.passes
        growth = list[int]()
        ledger = Ledger(keep=False)
        for k in range(total):
            with ledger:
                optimizer.zero_grad()
                loss = cross_entropy(net(x[k % self.steps]), y[k % self.steps])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            losses.append(round(float(loss.detach()), 6))
            if (k + 1) % (total // 10) == 0:
                ranks.append([getattr(layer, "rank", None) for layer in net.outer])
                growth.append(sum(ledger.products.values()))
        return asdict(self) | {"losses": losses, "ranks": ranks, "operations": growth[-1], "growth": growth}


def trainings() -> Iterator[Training]:
    """All of them, the most telling first."""
    yield from _seeds(3, 2048, "deferred", (None, 0.1, 0.15, 0.2, 0.3, 0.45), ONLINE)
    yield from _seeds(3, 2048, "structured", (0.001, 0.1, 0.2, 0.3, 0.45), ONLINE)
    yield from _seeds(3, 512, "deferred", (None, 0.1, 0.2, 0.3), ONLINE)
    for width, seeds in ((128, 24), (256, 24), (512, 16), (1024, 4)):
        yield from _seeds(seeds, width, "dense", (None,), ONLINE)
    yield from _seeds(2, 2048, "dense", (None,), FEW, TEN)
    yield from _seeds(2, 2048, "deferred", (0.1, 0.2, 0.3), FEW, TEN)
    yield from _seeds(3, 512, "dense", (None,), FEW // 4, MANY)
    yield from _seeds(3, 512, "deferred", (0.1, 0.2, 0.3), FEW // 4, MANY)
    yield from _seeds(2, 2048, "structured", (0.1, 0.3), FEW, TEN)
    yield from _seeds(1, 8192, "deferred", (0.3, 0.1), ONLINE)
    yield from _seeds(1, 8192, "structured", (0.3, 0.1, 0.001), ONLINE)


def _seeds(
    count: int, width: int, weights: NetworkWeights, resolutions: Sequence[float | None], steps: int, passes: int = 1
) -> Iterator[Training]:
    for seed in range(count):
        for resolution in resolutions:
            yield Training(width, weights, resolution, seed, steps, passes)


GROWING = [
    *_seeds(1, 2048, "deferred", (None, 0.1, 0.3), ONLINE),
    *_seeds(1, 2048, "structured", (0.001, 0.1, 0.3), ONLINE),
]


def read() -> list[dict[str, Any]]:
    """What was measured."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def main() -> None:
    """Measure what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--growth", action="store_true", help="count operations by tenths, of trainings that lack them")
    arguments = parser.parse_args()
    rows = read()
    if arguments.growth:
        for row in rows:
            training = Training(*(row[name] for name in Training.__annotations__))
            if training in GROWING and "growth" not in row:
                row["growth"] = training.run()["growth"]
                _keep(rows)
    if not (arguments.page or arguments.growth):
        known = {tuple(row[name] for name in Training.__annotations__) for row in rows}
        for training in trainings():
            if tuple(asdict(training).values()) not in known:
                rows.append(training.run())
                _keep(rows)
    filled(rows)


def _keep(rows: Sequence[dict[str, Any]]) -> None:
    write_text(RESULTS, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
