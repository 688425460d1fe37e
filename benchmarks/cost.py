"""Measure what a question costs on one core: CPU time and memory of every verb, by size.

Each question is asked of the GPT of examples/wide_gpt.py, in batches of 256 bytes, in a process of
its own: check over four networks, 3 seeds and 5 steps; transfer over two networks, 3 rates, 3 seeds
and 5 steps, then its 12 new starts of the largest; scaling_law over 9 networks, 2 seeds and 5
steps; plan; and a look of a watch, over a step of training. ``times`` is the time of a question
over that of the arithmetic, 6 x parameters x tokens x networks at the rate at which this core
trains that largest network.

Run: ``python -m benchmarks.cost`` prints the rows of docs/howto/cost.md.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

import nfd
from benchmarks.measure import apart
from benchmarks.watch import cpu_seconds, wide_gpt
from nfd.core.machine import peak_memory

SIZES = ((128, 4), (256, 4), (512, 4))
TOKENS = 256
STEPS = 5
RATES = [2e-3, 4e-3, 8e-3]


def asked(verb: str, width: int, depth: int) -> dict[str, Any]:
    """What a question costs: CPU seconds, peak memory in GiB, and the work of its trainings.

    The work is the sum of parameters times tokens.
    """
    torch.set_num_threads(1)
    batches = list(wide_gpt.batches(STEPS))
    widths = [width // 2, width]
    depths = [depth // 2, depth]
    begun = time.process_time()
    sweep = nfd.Sweep(progress=False)
    with sweep:
        if verb == "check":
            nfd.check(
                wide_gpt.GPT,
                batches,
                widths,
                depths,
                lr=4e-3,
                seeds=3,
                remedy=False,
                sweep=sweep,
            )
        elif verb == "transfer":
            nfd.transfer(
                wide_gpt.GPT, batches, widths, [depth], RATES, rules=["complete-p"], sweep=sweep
            )
        elif verb == "scaling_law":
            law = [64, width // 2, width] if width > 128 else [64, 128, 192]
            nfd.scaling_law(
                wide_gpt.GPT, batches, law, [1, depth // 2, depth], lr=4e-3, seeds=2, sweep=sweep
            )
        elif verb == "plan":
            nfd.plan(
                wide_gpt.GPT(width, depth), (64, 2), make_model=wide_gpt.GPT, sample=batches[0][0]
            )
        trained = [
            (record.config["width"], record.config["depth"]) for record in sweep.store.records()
        ]
    seconds = time.process_time() - begun
    with torch.device("meta"):
        counts = {size: _parameters(*size) for size in {*trained, (width, depth)}}
    work = sum(counts[size] for size in trained) * TOKENS * STEPS
    return {
        "parameters": counts[width, depth],
        "seconds": seconds,
        "gib": peak_memory() / 2**30,
        "work": work,
        "networks": len(trained),
    }


def _parameters(width: int, depth: int) -> int:
    """The number of parameters of the GPT."""
    return sum(p.numel() for p in wide_gpt.GPT(width, depth).parameters())


def step(width: int, depth: int) -> dict[str, float]:
    """The CPU seconds of a step of AdamW."""
    torch.set_num_threads(1)
    x, y = next(wide_gpt.batches(1))
    model = wide_gpt.GPT(width, depth)
    optimizer = torch.optim.AdamW(model.parameters())

    def one() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(
            torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        )
        optimizer.step()

    return {"step": cpu_seconds(10, one)}


def main() -> None:
    """Print a row for each size and verb."""
    for width, depth in SIZES:
        of_step = apart(f"benchmarks.cost:step({width}, {depth})", OMP_NUM_THREADS="1")
        for verb in ("plan", "check", "transfer", "scaling_law"):
            row = apart(f"benchmarks.cost:asked({verb!r}, {width}, {depth})", OMP_NUM_THREADS="1")
            rate = 6 * row["parameters"] * TOKENS / of_step["step"]
            row |= of_step | {
                "gflops": rate / 1e9,
                "times": row["seconds"] * rate / (6 * row["work"] or float("nan")),
            }
            print(verb, width, depth, json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
