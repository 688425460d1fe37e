"""How costs grow: seconds and memory against width, depth, samples, replicates and cores, for every kind of weights.

python -m benchmarks.growth            # five minutes on two idle cores; stopped, it goes on from there
python -m benchmarks.growth --study    # `nfd study` on one core and on all of them too
python -m benchmarks.growth_page       # the figures and the page

Every case has processes of its own, of one thread each. One network is trained by one process; replicates are those of
``nfd.predict``, on as many processes as cores. The first training of a process is not timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import nfd
from benchmarks.accounting import Ledger
from benchmarks.jobs import ETA_C, unstored_run
from benchmarks.measure import Row, machine, seconds
from nfd.core.files import write_json
from nfd.core.machine import cores, peak_memory, threads
from nfd.core.names import NetworkWeights
from nfd.data.digits import digits
from nfd.runs.executors.processes import Processes
from nfd.store.store import Store

GROWTH = Path(__file__).with_name("growth.json")
BATCH, REPEATS = 8, 3
_COMPARED = ("processor", "cores", "nfd")  # of the machine: measurements that go on must agree in these

T = TypeVar("T")
Work = Literal["training", "prediction", "study"]
Axis = Literal["width", "depth", "samples", "replicates", "cores"]


@dataclass(frozen=True)
class Case:
    """What is measured: one training, a prediction by replicates, or the study."""

    work: Work
    weights: str
    width: int
    depth: int
    samples: int
    replicates: int
    cores: int

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value:,}" for name, value in asdict(self).items() if isinstance(value, int))
        return f"{self.work}, {self.weights}: {sizes}"


_WIDE: dict[NetworkWeights, tuple[int, ...]] = {
    "deferred": (4096, 16384, 65536, 262144),
    "structured": (4096, 16384, 65536, 262144),
    "dense": (512, 1024, 2048, 4096),
}
_DEPTHS, _SAMPLES, _REPLICATES = (4, 8, 16, 32), (96, 192, 384, 768), (2, 4, 8)


def cases(axis: Axis, weights: NetworkWeights, most_cores: int) -> list[Case]:
    """The cases of one figure and one kind of weights, by size."""
    widths = _WIDE[weights]
    one = Case("training", weights, 8192 if weights != "dense" else 1024, 4, 40, 1, 1)
    several = replace(
        one, work="prediction", width=widths[0], depth=8, samples=24, replicates=_REPLICATES[-1], cores=most_cores
    )
    sizes: dict[Axis, tuple[Case, Sequence[int]]] = {
        "width": (one, widths),
        "depth": (one, _DEPTHS),
        "samples": (replace(one, depth=2), _SAMPLES),
        "replicates": (several, _REPLICATES),
        "cores": (several, doublings(most_cores)),
    }
    base, values = sizes[axis]
    return [Case(**{**asdict(base), axis: value}) for value in values]


def studies(most_cores: int) -> list[Case]:
    """The study at its defaults by cores."""
    return [Case("study", "auto", 0, 0, 0, 1, count) for count in doublings(most_cores)]


def doublings(most: int) -> list[int]:
    """1, 2, 4 and so on, and ``most``."""
    return [*(1 << bits for bits in range((most - 1).bit_length())), most]


# ---- one case -------------------------------------------------------------------------------------------------


def measured(case: Case, repeats: int = REPEATS) -> Row:
    """Seconds of every repeat, and bytes of all workers together beyond what they held after a small training.

    Of the study the seconds of its networks, in its first repeat, in place of bytes.
    """
    with pinned(case.cores):
        if case.work == "study":
            studied = [_study() for _ in range(repeats)]
            return asdict(case) | {"seconds": [whole for whole, _ in studied], "networks": studied[0][1]}
        took, held = forked(_training, case, repeats) if case.work == "training" else _prediction(case, repeats)
    return asdict(case) | {"seconds": took, "bytes": held}


def forked(function: Callable[..., T], *arguments: Any) -> T:
    """The value of a call in a process that begins with all that this one has loaded."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def pinned(count: int) -> Iterator[None]:
    """This process and those that it starts have this many cores in the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _training(case: Case, repeats: int) -> tuple[list[float], float]:
    """In seconds of the processor, which neighbours do not lengthen."""
    with threads(1):
        _train(_small(case))
        return _costs(lambda: seconds(lambda: _train(case), time.process_time), repeats, peak_memory)


def _costs(timed: Callable[[], float], repeats: int, peak: Callable[[], float]) -> tuple[list[float], float]:
    """Seconds of every repeat, and bytes of the first: later ones begin before all memory of earlier ones is free."""
    before, first = peak(), timed()
    held = peak() - before
    return [first, *(timed() for _ in range(repeats - 1))], held


def _train(case: Case) -> None:
    unstored_run(case.width, case.depth, case.samples // BATCH, BATCH, cast(NetworkWeights, case.weights))


def _prediction(case: Case, repeats: int) -> tuple[list[float], float]:
    with Processes(case.cores, 1) as workers:
        _predict(_small(case), workers)
        return _costs(lambda: seconds(lambda: _predict(case, workers)), repeats, _peaks)


def _study() -> tuple[float, list[float]]:
    """Seconds of `nfd study` from a cold start to its last file, and those of every network, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "nfd", "study", "--out", folder]
        took = seconds(lambda: subprocess.run(call, stdout=subprocess.DEVNULL, check=True))
        with Store.read(folder) as store:
            return took, [record.seconds for record in store.records()]


def _predict(case: Case, workers: Processes) -> None:
    x, y = digits().batches(BATCH, case.samples // BATCH, 0)
    sizes = {"width": case.width, "depth": case.depth, "replicates": case.replicates, "weights": case.weights}
    nfd.predict(x, y, eta_c=ETA_C, executor=workers, **sizes)


def _small(case: Case) -> Case:
    """What loads all that there is to load."""
    return replace(case, width=128, depth=2, samples=2 * BATCH)


def _peaks() -> float:
    """The most bytes that the workers have held, all together."""
    return sum(peak_memory(worker.pid) for worker in multiprocessing.active_children())


def calls(weights: NetworkWeights, steps: int = 6) -> float:
    """Operations of PyTorch in a step of training for every matrix: what two layers more add."""

    def counted(depth: int) -> int:
        ledger = Ledger(keep=False)
        with ledger:
            unstored_run(256, depth, steps, BATCH, weights)
        return ledger.count

    return (counted(4) - counted(2)) / (2 * steps)


# ---- all cases ------------------------------------------------------------------------------------------------


@dataclass
class Growth:
    """A machine and its measurements, in a file that every new one is written to at once.

    ``machine``: with one thread, and its load before. ``calls``: operations of PyTorch for each matrix and step, by
    kind of weights.
    """

    path: Path
    machine: Mapping[str, Any]
    calls: Mapping[str, float]
    rows: list[Row]

    @classmethod
    def opened(cls, path: Path, here: Mapping[str, Any], again: bool = False) -> Growth:
        """What the file holds, or nothing; ValueError where it was measured elsewhere."""
        if again or not path.exists():
            return cls(path, {**here, "load": os.getloadavg()[0]}, {kind: forked(calls, kind) for kind in kinds()}, [])
        before = cls.read(path)
        if differing := [name for name in _COMPARED if before.machine.get(name) != here.get(name)]:
            raise ValueError(f"{path} was measured with another {' and '.join(differing)}. --again measures all again.")
        return before

    @classmethod
    def read(cls, path: Path = GROWTH) -> Growth:
        """What was measured."""
        content = json.loads(path.read_text())
        return cls(path, content["machine"], content["calls"], content["rows"])

    def row(self, case: Case) -> Row | None:
        """The measurement of a case, where there is one."""
        wanted = asdict(case)
        return next((row for row in self.rows if wanted.items() <= row.items()), None)

    def add(self, row: Row) -> None:
        """Keep a measurement."""
        self.rows.append(row)
        write_json(self.path, {"machine": dict(self.machine), "calls": dict(self.calls), "rows": self.rows})


def axes() -> tuple[Axis, ...]:
    """What costs are measured against."""
    return ("width", "depth", "samples", "replicates", "cores")


def kinds() -> tuple[NetworkWeights, ...]:
    """The kinds of weights that are measured."""
    return tuple(_WIDE)


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", action="store_true", help="the study at its defaults too, by cores: 8 minutes more")
    parser.add_argument("--again", action="store_true", help="measure again what is there")
    parser.add_argument("--out", type=Path, default=GROWTH, help="file of the measurements")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of few replicates about their own noise
    try:
        with threads(1):
            growth = Growth.opened(arguments.out, machine(time.process_time), arguments.again)
    except ValueError as error:
        parser.error(str(error))
    wanted = [case for axis in axes() for weights in kinds() for case in cases(axis, weights, cores())]
    for case in [*wanted, *(studies(cores()) if arguments.study else [])]:
        if growth.row(case) is None:
            growth.add(row := measured(case))
            print(f"{case}: {min(row['seconds']):.3g} s", flush=True)


if __name__ == "__main__":
    main()
