"""What the time of a training without stored weights is made of: ``python -m benchmarks.split``.

PyTorch's profiler counts the time of every operation, by one thread, so that a busy machine changes
the seconds and hardly the shares. What is in none of them is Python: the layers, autograd and the
optimizer. The shares are kept in ``benchmarks/split.json``, from which the page of benchmarks is
made.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.jobs import unstored_run
from benchmarks.measure import Row, machine
from makers.tables import terminal
from nfd.core.files import write_json
from nfd.core.names import NetworkWeights

STORED = Path(__file__).parent / "split.json"
WIDTH, DEPTH, STEPS, BATCH = 4096, 16, 25, 8
KINDS = {
    "products": {"addmm", "addmm_", "baddbmm", "baddbmm_", "bmm", "mm"},
    "normal numbers": {"normal_"},
    "copies": {"_cat", "cat", "clone", "copy_", "fill_", "index_select", "zero_"},
}
SMALL = "small operations"
PYTHON = "Python and autograd"


def split(weights: NetworkWeights, *, by_muon: bool) -> Row:
    """Percent of the time of a training, by kind of operation."""
    unstored_run(WIDTH, DEPTH, 3, BATCH, weights, by_muon=by_muon)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        unstored_run(WIDTH, DEPTH, STEPS, BATCH, weights, by_muon=by_muon)
    seconds = dict.fromkeys([*KINDS, SMALL, PYTHON], 0.0)
    for event in profiled.key_averages():
        namespace, _, name = event.key.partition("::")
        kind = PYTHON
        if namespace == "aten":
            kind = next((kind for kind, names in KINDS.items() if name in names), SMALL)
        seconds[kind] += event.self_cpu_time_total
    total = sum(seconds.values())
    shares = {f"{kind}, %": round(100 * part / total) for kind, part in seconds.items()}
    return {"weights": weights, "by": "Muon" if by_muon else "SGD", **shares}


def main() -> None:
    """Measure, print and keep."""
    torch.set_num_threads(1)
    chosen = [name for name in get_args(NetworkWeights) if name != "dense"]
    rows = [split(name, by_muon=by_muon) for name in chosen for by_muon in (False, True)]
    terminal("split", rows)
    write_json(STORED, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
