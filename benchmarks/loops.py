"""Check and transfer against a plain loop of PyTorch: the same trainings, in processor time.

The model is the GPT of ``examples/wide_gpt.py``, trained by AdamW for 20 steps of 256 bytes. Each
training of a question is followed by a plain loop over a network of the same size, seed and rate,
which has no more than the five calls that training needs and a list of losses. So both meet the
same neighbours on the machine. Everything runs in one thread. The trainings of a check have its
meters; the rest of a question is planning, the plan's self-test, statistics and records.

Run: ``python -m benchmarks.loops`` prints both ratios.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import nfd
from benchmarks.measure import Round, Row
from benchmarks.ratio import Ratio
from benchmarks.result import merged
from benchmarks.watch import wide_gpt
from makers.tables import terminal
from nfd.core import machine
from nfd.runs.executors import Inline, Outcomes, Task

STEPS = 20
RATE = 4e-3
_Batches = list[tuple[Tensor, Tensor]]


class Alternating(Inline):
    """Trains in this process, and after each training runs a plain loop in its place.

    Attributes:
        count: how many trainings there were.
        trained, plain: the processor time of all trainings, and of all plain loops.
    """

    def __init__(self, batches: _Batches) -> None:
        self.batches = batches
        self.count = 0
        self.trained = 0.0
        self.plain = 0.0

    def run(self, tasks: Sequence[Task]) -> Outcomes:
        for index, task in enumerate(tasks):
            begun = time.process_time()
            record = task()
            ended = time.process_time()
            config = record.config
            plain_losses(
                config["width"], config["depth"], config["seed"], config["lr"], self.batches
            )
            self.count += 1
            self.trained += ended - begun
            self.plain += time.process_time() - ended
            yield index, record, None


def plain_losses(width: int, depth: int, seed: int, lr: float, batches: _Batches) -> list[float]:
    """Train one network with nothing but PyTorch; returns the loss before each update."""
    torch.manual_seed(seed)
    model = wide_gpt.GPT(width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr, fused=True)
    losses = []
    for ids, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss))
    return losses


def _checked(width: int, batches: _Batches, sweep: nfd.Sweep) -> None:
    """Check four networks from three seeds, by the model's own initial weights and rates."""
    nfd.check(
        wide_gpt.GPT,
        batches,
        [width // 2, width],
        [2, 4],
        lr=RATE,
        seeds=3,
        remedy=False,
        sweep=sweep,
    )


def _transferred(width: int, batches: _Batches, sweep: nfd.Sweep) -> None:
    """Ask whether the best of three rates transfers between two widths."""
    nfd.transfer(
        wide_gpt.GPT,
        batches,
        [width // 2, width],
        [4],
        [RATE / 2, RATE, 2 * RATE],
        rules=["complete-p"],
        sweep=sweep,
    )


QUESTIONS: dict[str, Callable[[int, _Batches, nfd.Sweep], None]] = {
    "check": _checked,
    "transfer": _transferred,
}


def against_plain(turn: Round) -> list[Row]:
    """Take the processor time of each question, and of a plain loop over its trainings."""
    rows = []
    # The first optimizer of a process loads the compiler of PyTorch, which is nobody's overhead.
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    with machine.threads(1):
        for width in (128,) if turn.quick else (128, 256):
            rows += [_row(question, width) for question in QUESTIONS]
    return rows


def _row(question: str, width: int) -> Row:
    """Compare one question with a plain loop."""
    batches: _Batches = list(wide_gpt.batches(STEPS))
    alternating = Alternating(batches)
    with nfd.Sweep(executor=alternating, progress=False) as sweep:
        begun = time.process_time()
        QUESTIONS[question](width, batches, sweep)
        took = time.process_time() - begun - alternating.plain
    return {
        "question": question,
        "width": width,
        "trainings": alternating.count,
        "question, s each": took / alternating.count,
        "plain, s each": alternating.plain / alternating.count,
        "trainings / plain": Ratio.of(alternating.trained / alternating.plain, less_is_better=True),
        "question / plain": Ratio.of(took / alternating.plain, less_is_better=True),
    }


def main() -> None:
    """Print the ratios of some rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only the smaller size")
    arguments = parser.parse_args()
    # Short trainings warn of their noise.
    warnings.simplefilter("ignore")
    rounds = [against_plain(Round(n, arguments.quick)) for n in range(arguments.rounds)]
    terminal("questions over a plain loop, processor time", merged(rounds))


if __name__ == "__main__":
    main()
