"""How time and memory grow with every size that a user may raise, beside how they should.

python -m benchmarks.growth                          # all, kept in benchmarks/growth.json
python -m benchmarks.growth --only "rows of a log"   # some, only printed
python -m makers.growth_page                         # the table of docs/benchmarks.md

Each point is a fresh process, a fork of one that has imported everything and done nothing else. It
reports the processor time of the job and by how much the job raised the peak of memory. A power is
the slope of a line through logarithms, with Student's 95 % interval. It is compared with the power
that the algorithm has: a power that is surely larger, by more than ``SLACK``, is called a fault,
and the command exits with 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import nfd
from benchmarks.jobs import unstored_run
from benchmarks.measure import Row, machine
from makers.tables import terminal
from nfd.core.files import write_json
from nfd.core.machine import peak_memory
from nfd.data import digits
from nfd.laws.logs import read_log
from nfd.store import Record, Store

STORED = Path(__file__).with_name("growth.json")
# Caches, allocators and the price of a first call bend lines by so much.
SLACK = 0.15
# Memory that a job raises the peak by is measured from here on.
_LEAST = 4.0
_MIB = 2**20

Job = Callable[[int], Callable[[], object]]


@dataclass(frozen=True)
class Quantity:
    """One size, and a job of that size.

    Attributes:
        size: what grows.
        job: from the size to what is measured; what it does before is not.
        sizes: the sizes, each a few times the one before.
        theory: the power of time.
        memory: the power of memory; None where no array or list grows.
        why: why the time has that power.
    """

    size: str
    job: Job
    sizes: tuple[int, ...]
    theory: float
    memory: float | None
    why: str


# ---- training without stored weights


def _trained(weights: Any, size: str, value: int) -> Callable[[], object]:
    about = {"width": 4096, "depth": 2, "steps": 4} | {size: value}
    width, depth, steps = about["width"], about["depth"], about["steps"]
    return partial(unstored_run, width, depth, steps, 8, weights)


def _samples(value: int) -> Callable[[], object]:
    return partial(unstored_run, 4096, 1, value // 32, 32, "deferred")


def _predicted(value: int) -> Callable[[], object]:
    x, y = digits().batches(8, value, 0)
    batches = list(zip(x, y, strict=True))
    return partial(nfd.predict, nfd.resnets(64, 10), batches, 0.3, depth=2, width=256, replicates=2)


# ---- plans and watches of models with many tensors


class _Mixture(nn.Module):
    """A residual block of 16 experts: 33 tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(16))
        self.down = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(16))

    def forward(self, h: Tensor) -> Tensor:
        """The stream with what all experts add."""
        x = self.norm(h)
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(torch.relu(up(x))) / 4
        return h


def _mixture(width: int, depth: int) -> nn.Module:
    blocks = nn.Sequential(*[_Mixture(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(8, width), blocks, nn.Linear(width, 8))


_SAMPLE = torch.linspace(-1, 1, 32).view(4, 8)


def _plan_of_width(value: int) -> Callable[[], object]:
    with torch.device("meta"):
        model = _mixture(value, 4)
    return partial(nfd.plan, model, (16, 2), make_model=_mixture, sample=_SAMPLE)


def _plan_of_tensors(value: int) -> Callable[[], object]:
    with torch.device("meta"):
        model = _mixture(64, value // 33)

    def plan_and_ask() -> None:
        plan = nfd.plan(model, (16, 2), make_model=_mixture, sample=_SAMPLE)
        for name in plan.entries:
            plan.rate(name)
        str(plan)

    return plan_and_ask


def _watched(depth: int, steps: int, every: int) -> Callable[[], object]:
    """Attach a watch to a small mixture, train for some steps, and read what it shows."""
    model = _mixture(16, depth)
    plan = nfd.plan(model, (8, 2), make_model=_mixture, sample=_SAMPLE)
    plan.apply_(model)
    optimizer = plan.make_optimizer(model, lr=1e-4)

    def train() -> None:
        watch = nfd.Watch(model, plan, _SAMPLE, every=every)
        for _ in range(steps):
            loss = model(_SAMPLE).square().mean()
            loss.backward()
            optimizer.step()
            watch.step(loss)
            optimizer.zero_grad()
        _ = watch.table
        str(watch)

    return train


def _watch_of_tensors(value: int) -> Callable[[], object]:
    return _watched(value // 33, 2, 2)


def _watch_of_steps(value: int) -> Callable[[], object]:
    return _watched(1, value, 8)


def _check_of_tensors(value: int) -> Callable[[], object]:
    task = nfd.Task([(_SAMPLE, _SAMPLE)] * 2, loss="mse")
    about: dict[str, Any] = {"rule": "mup", "optimizer": "adamw", "seeds": 2, "remedy": False}
    return partial(nfd.check, _mixture, task, [8, 16], [value // 33], lr=1e-4, **about)


# ---- a store of trials


def _trials(count: int) -> list[nfd.Trial]:
    family = nfd.resnets(4, 2)
    task = nfd.Task([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))])
    return [nfd.Trial(family, task, 8, 2, seed, 0.1) for seed in range(count)]


def _fill(folder: str, trials: Sequence[nfd.Trial], *, at_once: bool = True) -> None:
    """Store every trial as trained, in one transaction or, as a sweep does, in one for each."""
    metrics = {"first_loss": 1.0, "highest_loss": 1.0, "train_loss": 1.0}
    curves = {"loss": np.ones(100)}
    store = Store(folder)
    if at_once:
        store._database.execute("BEGIN")
    for trial in trials:
        store.add(Record(trial.key, "done", trial.settings, metrics, curves))
    if at_once:
        store._database.execute("COMMIT")
    store.close()


def _appended(value: int) -> Callable[[], object]:
    trials = _trials(value)
    for trial in trials:
        _ = trial.key
    folder = tempfile.mkdtemp()
    return partial(_fill, folder, trials, at_once=False)


def _opened(value: int) -> Callable[[], object]:
    folder = tempfile.mkdtemp()
    _fill(folder, _trials(value))

    def open_and_list() -> None:
        store = Store(folder)
        store.records()
        store.close()

    return open_and_list


def _resumed(value: int) -> Callable[[], object]:
    folder = tempfile.mkdtemp()
    trials = _trials(value)
    _fill(folder, trials)

    def resume() -> None:
        with nfd.Sweep(folder, progress=False) as sweep:
            sweep.run(trials)

    return resume


def _asked_again(value: int) -> Callable[[], object]:
    """A search asks for one trial at a time, of a store that holds many others."""
    folder = tempfile.mkdtemp()
    trials = _trials(value + 16)
    _fill(folder, trials[:value])

    def search() -> None:
        with nfd.Sweep(folder, progress=False) as sweep:
            for trial in trials[value:]:
                sweep.run([trial])

    return search


# ---- rows of a log


def _sweep_rows(count: int) -> list[dict[str, Any]]:
    """Rows of a sweep over learning rates, a parabola with noise at every width."""
    noise = np.random.default_rng(0).normal(size=count)
    rows = []
    for number in range(count):
        seed, place = divmod(number, 27)
        width, rate = 32 * 2 ** (place // 9), 2.0 ** (place % 9 - 12)
        loss = 2 + 0.1 * (math.log2(rate) + 8) ** 2 / 4 + 0.01 * float(noise[number])
        rows.append({"width": width, "depth": 2, "lr": rate, "seed": seed, "loss": loss})
    return rows


def _rates_of_rows(value: int) -> Callable[[], object]:
    return partial(nfd.fit_transfer, _sweep_rows(value))


def _steps_of_runs(count: int) -> list[dict[str, Any]]:
    """Rows of a log in which every run has a hundred steps."""
    rows = []
    for number in range(count):
        run, step = divmod(number, 100)
        row = {"run": f"run-{run}", "step": step + 1, "parameters": 10**6 * (1 + run % 10)}
        rows.append(row | {"tokens": 10**6 * (step + 1), "loss": 2 + 5 / (step + 1)})
    return rows


def _read(value: int) -> Callable[[], object]:
    rows = _steps_of_runs(value)
    return partial(read_log, rows, None, ("parameters", "tokens", "loss"))


def _losses(value: int) -> Callable[[], object]:
    losses = {step: 3 + 5 / step**0.3 for step in range(1, value + 1)}
    schedule = [1.0] * (2 * value)
    return partial(nfd.forecast_run, losses, schedule, 2 * value)


def _file(kind: str, value: int) -> Callable[[], object]:
    rows = _steps_of_runs(value)
    path = Path(tempfile.mkdtemp()) / f"log.{kind}"
    with path.open("w", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return partial(read_log, str(path), None, ("parameters", "tokens", "loss"))


# ---- all of them

_WIDTHS = (2**14, 2**16, 2**18, 2**20)
_STORE = (1250, 2500, 5000, 10_000)
_ROWS = (3125, 12_500, 50_000, 100_000)
_FILES = (12_500, 25_000, 50_000, 100_000)
_TENSORS = (1320, 2640, 5280, 10_560)
_EVERY_TENSOR = "every tensor is read a fixed number of times"

QUANTITIES = {
    "deferred training": Quantity(
        "width", partial(_trained, "deferred", "width"), _WIDTHS, 1, 1,
        "products of the batch with the directions known so far, of n numbers each",
    ),
    "structured training": Quantity(
        "width", partial(_trained, "structured", "width"), _WIDTHS, 1.06, 1,
        "transforms take n log n, a power of 1.06 between these widths",
    ),
    "plan": Quantity(
        "width", _plan_of_width, (2**10, 2**13, 2**16, 2**20), 0, None,
        "the base is built and traced, the model only named",
    ),
    "training over depth": Quantity(
        "depth", partial(_trained, "deferred", "depth"), (8, 16, 32, 64), 1, 1,
        "layers do the same one after the other",
    ),
    "deferred training over samples": Quantity(
        "samples seen", _samples, (128, 256, 512, 1024), 2, 1,
        "each step meets the directions of all steps before it",
    ),
    "predict": Quantity(
        "steps", _predicted, (32, 64, 128, 256), 2, 1,
        "at most: each step meets the directions of all steps before it, until they fill the width",
    ),
    "watch over steps": Quantity(
        "steps", _watch_of_steps, (32, 64, 128, 256), 1, None,
        "looks cost the same, however many there were",
    ),
    "store: append": Quantity(
        "trials in a store", _appended, _STORE, 1, None, "each is one row and one write to disk"
    ),
    "store: open and list": Quantity(
        "trials in a store", _opened, _STORE, 1, 1, "each row is read once"
    ),
    "sweep: resume": Quantity(
        "trials in a store", _resumed, _STORE, 1, 1, "each row is found by its key"
    ),
    "sweep: 16 more trials": Quantity(
        "trials in a store", _asked_again, _STORE, 1, None,
        "each stored row is compared once with what is asked for",
    ),
    "fit_transfer": Quantity(
        "rows of a log", _rates_of_rows, _ROWS, 1, 1, "each row enters sums of its size"
    ),
    "rows of a log": Quantity(
        "rows of a log", _read, _ROWS, 1, 1, "each row is read a fixed number of times"
    ),
    "CSV": Quantity("rows of a log", partial(_file, "csv"), _FILES, 1, 1, "as rows"),
    "JSON lines": Quantity("rows of a log", partial(_file, "jsonl"), _FILES, 1, 1, "as rows"),
    "forecast_run": Quantity(
        "rows of a log", _losses, _ROWS, 1, 1, "losses are averaged in bins before anything else"
    ),
    "plan and its table": Quantity(
        "tensors of a model", _plan_of_tensors, _TENSORS, 1, 1, _EVERY_TENSOR
    ),
    "watch: attach and look": Quantity(
        "tensors of a model", _watch_of_tensors, _TENSORS, 1, 1, _EVERY_TENSOR
    ),
    "check": Quantity(
        "tensors of a model", _check_of_tensors, (528, 1056, 2112, 4224), 1, 1, _EVERY_TENSOR
    ),
}  # fmt: skip


# ---- measuring


def measured(name: str, size: int) -> tuple[float, float]:
    """Processor time in seconds, and by how many MiB the job raised the peak of this process."""
    torch.manual_seed(0)
    job = QUANTITIES[name].job(size)
    before = peak_memory()
    start = time.process_time()
    job()
    return time.process_time() - start, (peak_memory() - before) / _MIB


def warm_up() -> None:
    """Import what the jobs import: PyTorch's optimizers bring its compiler."""
    nfd.plan(_mixture(16, 2), (8, 2), make_model=_mixture, sample=_SAMPLE)
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])


def fitted(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float, float]:
    """The power of a size, and the ends of its 95 % interval."""
    line = stats.linregress(np.log(sizes), np.log(values))
    error = float(stats.t.ppf(0.975, len(sizes) - 2) * line.stderr)
    return float(line.slope), float(line.slope) - error, float(line.slope) + error


def grown(name: str) -> Row:
    """Measure one quantity at all of its sizes."""
    quantity = QUANTITIES[name]
    points = []
    for size in quantity.sizes:
        with get_context("fork").Pool(1) as pool:
            seconds, mib = pool.apply(measured, (name, size))
        points.append((size, seconds, mib))
    power, low, high = fitted(quantity.sizes, [seconds for _, seconds, _ in points])
    row: Row = {
        "quantity": name,
        "size": quantity.size,
        "points": points,
        "power": power,
        "low": low,
        "high": high,
        "theory": quantity.theory,
        "why": quantity.why,
        "is_fault": low > quantity.theory + SLACK,
    }
    large = [(size, mib) for size, _, mib in points if mib >= _LEAST]
    if quantity.memory is not None and len(large) > 2:
        sizes, peaks = zip(*large, strict=True)
        power, low, high = fitted(sizes, peaks)
        row |= {"memory power": power, "memory low": low, "memory high": high}
        row |= {"memory theory": quantity.memory}
        row["is_fault"] |= low > quantity.memory + SLACK
    return row


def in_words(row: Row) -> Row:
    """A row of the table."""
    (smallest, first, _), *_, (largest, last, peak) = row["points"]
    memory = ""
    if "memory power" in row:
        memory = _with_interval(row, "memory ")
    return {
        "of": row["quantity"],
        "grows": f"{row['size']}, {smallest:,} to {largest:,}",
        "s": f"{first:.2g} to {last:.2g}",
        "power of time": _with_interval(row, ""),
        "theory": f"{row['theory']:g}",
        "largest, MiB": f"{peak:.0f}",
        "power of memory": memory,
        "why": row["why"],
    }


def _with_interval(row: Row, of: str) -> str:
    value, low, high = (row[f"{of}{end}"] for end in ("power", "low", "high"))
    text = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return f"{text} (theory {row['memory theory']:g})" if of else text


def main() -> int:
    """Measure, print and, where all were measured, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=QUANTITIES, metavar="QUANTITY")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    warm_up()
    rows = []
    for name in only or QUANTITIES:
        rows.append(grown(name))
        terminal(name, [in_words(rows[-1])])
    if only is None:
        write_json(STORED, {"machine": machine(), "rows": rows})
    return int(any(row["is_fault"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
