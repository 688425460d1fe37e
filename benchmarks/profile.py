# ruff: noqa: A005  (python -m benchmarks.profile: nothing imports it by its last name alone)
"""``python -m benchmarks.profile``: where the commands spend their time, and what bounds the paths that are hottest.

First the functions with the largest shares of ``nfd study``, ``nfd sweep`` and ``nfd predict``, by cProfile in this
process; then the accounts (benchmarks/accounting.py) of the paths that they lead to.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import nfd
from benchmarks.accounting import account
from benchmarks.jobs import revealed
from benchmarks.measure import Round, Row
from benchmarks.show import terminal
from benchmarks.stacks import stacked_step
from nfd.core.machine import threads
from nfd.data.digits import digits
from nfd.limits.table import table
from nfd.questions.study import Study
from nfd.runs.grid import grid
from nfd.runs.settings import StudyConfig
from nfd.runs.sweep import Sweep

_LISTED = 8


def hot_paths(turn: Round) -> list[Row]:
    """The accounts of the paths where the commands spend their time."""
    sizes = ((8192, 104, 8),) if turn.quick else ((4096, 104, 8), (65536, 104, 8))
    rows = [_query(*size) for size in sizes]
    with threads(1):
        shapes = ((16, 128, 8, 128),) if turn.quick else ((16, 32, 8, 16), (16, 128, 64, 128))
        rows += [_stack(*shape) for shape in shapes]
        rows += [_training_step()] if turn.quick else [_training_step(), _particles(), _table(), _gram(2000)]
    return rows


def _query(width: int, rank: int, batch: int) -> Row:
    matrix, x = revealed(width, rank, batch), torch.randn(batch, width)
    return account(
        f"a query: width {width:,}, {rank} directions, {batch} rows",
        lambda: matrix.ask(matrix.forward, x, scale=1.0, update=None, record=False),
    )


def _stack(networks: int, width: int, depth: int, batch: int) -> Row:
    name = f"a stacked step: {networks} networks, width {width}, depth {depth}, batch {batch}"
    return account(name, stacked_step(networks, width, depth, batch))


def _training_step() -> Row:
    """A step of a deferred network as ``nfd study`` makes it; unrecorded, so that it can be repeated."""
    x, y = digits().batches(16, 20, 0)
    net = nfd.ResNet(64, 10, 2048, 16, weights="deferred")
    optimizer = nfd.SGD(net.param_groups(0.3))
    for inputs, targets in zip(x, y, strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    net.eval()

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[0]), y[0]).backward()  # type: ignore[no-untyped-call]

    return account("forward and backward, deferred: width 2,048, depth 16, batch 16, 320 samples", step, 3)


def _particles() -> Row:
    x, y = digits().inputs[:48].double(), torch.ones(48, dtype=torch.float64)

    def solve() -> None:
        nfd.solve_nfd(x, y, grid=8, particles=2048, replicates=2, eta_c=0.01)

    return account("particles: 48 samples, grid 8, 2,048 particles, twice", solve, 2)


def _table() -> Row:
    x = digits().inputs[:4].double()

    def make() -> None:
        table.cache_clear()
        nfd.kernel(x, kind="ntk", activation="relu")

    return account("a kernel's table: relu, NTK", make, 3)


def _gram(count: int) -> Row:
    x = digits().inputs[:count].double()
    nfd.kernel(x[:4], kind="ntk", activation="relu")
    return account(f"a Gram matrix from its table: {len(x)} inputs, relu, NTK", lambda: nfd.kernel(x, kind="ntk"), 3)


def study() -> None:
    """``nfd study`` with fewer seeds and depths."""
    settings = StudyConfig(
        depths=(4, 8), replicates=3, widths=(64, 256), seeds=2, block_depths=(8, 16), block_seeds=2, steps=20
    )
    with Sweep(None) as made:
        Study(settings).measure(made)


def sweep() -> None:
    """``nfd sweep`` over rates, seeds and widths, in this process."""
    configs = grid(width=[32, 128], depth=8, eta_c=[0.1, 0.3], seed=list(range(8)), steps=30, batch=64)
    with tempfile.TemporaryDirectory() as folder, Sweep(folder) as made:
        made.run(configs)


def predict() -> None:
    """``nfd predict --depth 8``."""
    x, y = digits().batches(8, 12, 0)
    nfd.predict(x, y, depth=8, eta_c=0.3, rtol=0.05)


COMMANDS: dict[str, Callable[[], None]] = {"study": study, "sweep": sweep, "predict": predict}


def hottest(command: str) -> list[Row]:
    """The functions with the largest shares of the command's time, without what they call."""
    profiler = cProfile.Profile()
    profiler.enable()
    COMMANDS[command]()
    profiler.disable()
    stats = pstats.Stats(profiler)
    times = {function: entry[2] for function, entry in stats.stats.items()}  # type: ignore[attr-defined]
    calls = {function: entry[1] for function, entry in stats.stats.items()}  # type: ignore[attr-defined]
    total = sum(times.values())
    found = sorted(times, key=lambda function: times[function], reverse=True)[:_LISTED]
    return [
        {
            "command": command,
            "function": _said(*function),
            "calls": float(calls[function]),
            "share of the time": times[function] / total,
        }
        for function in found
    ]


def _said(file: str, line: int, name: str) -> str:
    place = Path(file)
    return name if file == "~" else f"{place.parent.name}/{place.name}:{line} {name}"


def main() -> None:
    """Profile, account, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--only", choices=[*COMMANDS, "paths"], help="one command, or the paths")
    arguments = parser.parse_args()
    for command in COMMANDS:
        if arguments.only in (None, command):
            terminal(f"nfd {command}", hottest(command))
    if arguments.only in (None, "paths"):
        terminal("hot paths", hot_paths(Round(0, arguments.quick)))


if __name__ == "__main__":
    main()
