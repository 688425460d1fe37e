"""Measure every number of the performance page, as JSON and as tables: ``make bench``.

All parts are measured once, then all again: the repeats of a ratio lie minutes apart, so that their
scatter is that of the machine and not that of a moment. Each run is kept in ``out/bench``, and none
is overwritten.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks import gpu, kernels, looks, loops, networks, particles, plans, structured
from benchmarks.measure import ON_SHARED, Round, Row, UnavailableError, machine
from benchmarks.result import Result, merged
from makers.tables import terminal

_QUICK_ROUNDS = 3


@dataclass(frozen=True)
class Part:
    """One section of the page: its name, what measures it once, and in how many rounds it is."""

    name: str
    measure: Callable[[Round], list[Row]]
    rounds: int = 5


def wide(turn: Round) -> list[Row]:
    """Time one wide network, on a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = gpu.WIDTH // 16 if turn.quick else gpu.WIDTH
    return gpu.large(device, width)


PARTS = (
    Part("dense", networks.against_dense, 3),
    Part("structured", partial(networks.against_dense, weights="structured"), 3),
    Part("muon", networks.by_muon, 3),
    Part("updates", structured.updates, 3),
    Part("structured-large", structured.large, 2),
    Part("structured-growth", structured.growth, 3),
    Part("structured-calls", structured.calls, 1),
    Part("query", networks.queries),
    Part("large", networks.large, 2),
    Part("reference", networks.reference_problem, 3),
    Part("growth", networks.growth, 3),
    Part("grams", kernels.grams, 2),
    Part("tables", kernels.tables, 3),
    Part("looks", looks.looks, 3),
    Part("horizons", kernels.long_horizons, 1),
    Part("recursion", kernels.against_recursion),
    Part("neural-tangents", kernels.against_neural_tangents, 1),
    Part("particles", particles.against_deferred, 2),
    Part("samples", particles.many_samples, 2),
    Part("plan", plans.planning),
    Part("check", plans.checking, 3),
    Part("loops", loops.against_plain, 3),
    Part("wide", wide, 2),
)


def measured(
    parts: Sequence[Part], quick: bool, report: Callable[[str], None] = lambda text: None
) -> Result:
    """Measure every part in each of its rounds.

    A part that lacks what it needs is missing in the result, with the reason.
    """
    rounds_of: dict[str, list[list[Row]]] = {part.name: [] for part in parts}
    took = dict.fromkeys(rounds_of, 0.0)
    missing: dict[str, str] = {}
    for number in range(max(part.rounds for part in parts)):
        for part in parts:
            rounds = min(part.rounds, _QUICK_ROUNDS) if quick else part.rounds
            if number >= rounds or part.name in missing:
                continue
            report(f"round {number + 1}: {part.name}")
            start = time.perf_counter()
            try:
                rounds_of[part.name].append(part.measure(Round(number, quick)))
            except UnavailableError as reason:
                missing[part.name] = str(reason)
            took[part.name] += time.perf_counter() - start
    rows = {name: merged(rounds) for name, rounds in rounds_of.items() if any(rounds)}
    return Result(machine(), quick, rows, took, missing)


def main() -> None:
    """Measure, print, keep."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, three rounds: under three minutes"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=names, default=names, help=", ".join(names)
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="one thread, in time of the process: where others use the machine",
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of all results")
    arguments = parser.parse_args()
    if arguments.shared:
        # Fresh processes read both.
        os.environ |= {ON_SHARED: "1", "OMP_NUM_THREADS": "1"}
        torch.set_num_threads(1)
    # Short runs warn of their noise.
    warnings.simplefilter("ignore", RuntimeWarning)
    chosen = [part for part in PARTS if part.name in arguments.only]
    result = measured(chosen, arguments.quick, partial(print, flush=True))
    path = result.keep(arguments.out)
    terminal("machine", [{"": name, "found": value} for name, value in result.machine.items()])
    for name, rows in result.parts.items():
        terminal(f"{name}, {result.seconds[name]:.0f} s", rows)
    for name, reason in result.missing.items():
        print(f"{name}: not measured, {reason}.")
    print(f"{sum(result.seconds.values()):.0f} s. Result: {path}")


if __name__ == "__main__":
    main()
