"""The time of every stage as it is predicted before the stage starts, against the time that it takes.

python -m benchmarks.stages            # four minutes on two idle cores; stopped, it goes on from there
python -m benchmarks.growth_page       # the table, on docs/growth.md

A stage is what a sweep trains at once. Its prediction is the first time left that the bar shows. Everything runs as the
commands run it, on as many processes of one thread as there are cores.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nfd
from benchmarks.measure import Row, machine
from benchmarks.modules import mlp, transformer
from nfd.cli.main import main as command
from nfd.core.files import write_json
from nfd.core.progress import Bar
from nfd.data.digits import digits
from nfd.runs.executors.processes import Processes

STAGES = Path(__file__).with_name("stages.json")
_LEAST = 2.0  # seconds; shorter stages end before one reads the bar
WITHIN = 1.5  # the factor that is wanted


class Noting(Bar):
    """A bar that notes the first time left, and when it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[float, float] | None = None

    @property
    def is_shown(self) -> bool:
        """As if it had a screen."""
        return True

    def expect(self, seconds: float) -> None:
        """Note what is left."""
        if self.first is None:
            self.first = seconds, time.perf_counter()


@contextmanager
def noted(rows: list[Row]) -> Iterator[None]:
    """A row for every stage of the sweeps in the block: its name, and its seconds as predicted and as measured."""

    @contextmanager
    def bar(label: str, *, enabled: bool = True) -> Iterator[Bar]:
        shown, begun = Noting(), time.perf_counter()
        yield shown
        if shown.first is not None:
            predicted, start = shown.first
            took = time.perf_counter() - start
            rows.append({"stage": label, "predicted, s": predicted, "measured, s": took, "rehearsal, s": start - begun})

    with patch("nfd.runs.sweep.bar", bar):
        yield


def _command(line: str) -> None:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        command([*line.split(), "--out", folder])


def _batches(steps: int, *shape: int) -> list[tuple[Any, Any]]:
    """Digits as several tokens of this shape, each with the label of the digit; without one, their first 16 pixels."""
    x, y = digits().batches(32, steps, 0)
    if not shape:
        return list(zip(x[..., :16], y, strict=True))
    tokens = x.reshape(len(x), -1, *shape)
    return list(zip(tokens, y[..., None].expand(-1, -1, shape[0]), strict=True))


def _own_transfer() -> None:
    nfd.transfer(
        transformer, [32, 64], [2, 4], _batches(40, 4, 16), rules=("standard", "complete-p"),
        lr=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), executor=Processes(), progress=True,
    )  # fmt: skip


def _own_capacity() -> None:
    nfd.capacity(
        mlp, [16, 32, 64, 128], [2, 4, 8], _batches(100), lr=4e-3, seeds=8, executor=Processes(), progress=True
    )


CASES: Mapping[str, Callable[[], None]] = {
    "`nfd predict --depth inf`": partial(_command, "predict --depth inf --rtol 0.05"),
    "`nfd predict --depth 8`, dense": partial(_command, "predict --depth 8 --weights dense"),
    "`nfd transfer`, two rules": partial(
        _command, "transfer --rules mup depth-mup --widths 32 128 --depths 4 16 --seeds 4"
    ),
    "`nfd capacity`, two horizons": partial(_command, "capacity --widths 64 128 --depths 4 8 16 --horizons 0.5 1"),
    "`nfd.transfer` of a Transformer": _own_transfer,
    "`nfd.capacity` of an MLP": _own_capacity,
}


def factor(row: Row) -> float:
    """How far the prediction is off: 2 where it is twice or half of what was measured."""
    return float(max(row["predicted, s"] / row["measured, s"], row["measured, s"] / row["predicted, s"]))


def long_stages(rows: Sequence[Row]) -> list[Row]:
    """The stages that take longer than a moment, with their factors."""
    return [row | {"factor": factor(row)} for row in rows if row["measured, s"] > _LEAST]


def summary(rows: Sequence[Row]) -> str:
    """How many stages were predicted within the factor that is wanted."""
    factors = [row["factor"] for row in long_stages(rows)]
    if not factors:
        return "Not measured."
    near = sum(value <= WITHIN for value in factors)
    return (
        f"{near} of {len(factors)} stages of more than {_LEAST:g} s were predicted within a factor of {WITHIN}; the "
        f"largest factor is {max(factors):.2f}."
    )


def measured(what: str) -> list[Row]:
    """A row for every stage of a case."""
    rows: list[Row] = []
    with noted(rows):
        CASES[what]()
    return [{"what": what, **row} for row in rows]


def read(path: Path = STAGES) -> dict[str, Any]:
    """What was measured: the machine with its load before, and the rows."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="measure again what is there")
    parser.add_argument("--out", type=Path, default=STAGES, help="file of the measurements")
    arguments = parser.parse_args()
    load, content = os.getloadavg()[0], {} if arguments.again else read(arguments.out)
    content = content or {"machine": {**machine(), "load": load}, "rows": []}
    for what in CASES:
        if not any(row["what"] == what for row in content["rows"]):
            content["rows"] += (rows := measured(what))
            write_json(arguments.out, content)
            print(f"{what}: {summary(rows)}", flush=True)


if __name__ == "__main__":
    main()
