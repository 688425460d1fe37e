"""What a watch costs: CPU time of a look over that of the steps between two looks.

python -m benchmarks.watch                    # the small GPT of the examples, 128 wide and 4 deep
python -m benchmarks.watch --width 512
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import nfd

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
wide_gpt: Any = import_module("wide_gpt")

EVERY: int = inspect.signature(nfd.Watch).parameters["every"].default
STEPS = 20
LOOKS = 5


def cpu_seconds(repeat: int, run: Callable[[], object]) -> float:
    """Of one call, on all cores together, after two calls that are not counted."""
    run()
    run()
    begun = time.process_time()
    for _ in range(repeat):
        run()
    return (time.process_time() - begun) / repeat


def main(width: int, depth: int) -> float:
    """Print and return the share of the time that the watch takes."""
    torch.manual_seed(0)
    x, y = next(wide_gpt.batches(1))
    model = wide_gpt.GPT(width, depth)
    plan = nfd.plan(model, rule="complete-p", make_model=wide_gpt.GPT, base=(64, 2), sample=x)
    plan.apply_(model)
    optimizer = plan.make_optimizer(model, lr=3e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(
            torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        )
        optimizer.step()

    alone = cpu_seconds(STEPS, step)
    watch = nfd.Watch(model, plan, x, every=1)
    # The watch says that nothing trains between these looks.
    with warnings.catch_warnings(action="ignore"):
        look = cpu_seconds(LOOKS, watch.step)
    share = look / (EVERY * alone)
    print(
        f"GPT {width} x {depth}: a look takes {look / alone:.2f} steps, {share:.2%} of the time at "
        f"every={EVERY}"
    )
    return share


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    main(**vars(parser.parse_args()))
