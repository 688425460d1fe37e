"""Forecast loss and learning rate of a GPT on bytes, then train it 16 times as large and as long.

    python -m studies.own_ladder

trains the small runs into own_ladder.csv beside it, writes what the laws say of the large ones into
own_ladder.json, and only then trains these, at the advised rate and at rates around it. Stop it at
any time: cells of the CSV are not trained again, and forecasts that are written are not remade. It
takes about two hours on one core. Stored are also the first target at the best rate of the largest
small network, and the second at a quarter of the advised one.

The stored forecasts are those of the laws as they stood before the targets were trained: 12 of 12
intervals of the loss held, all of them refused as too wide. A later law without calibrated wide
priors held 9; with them it holds 12 again.

The bytes are those of Python's own library, of which every sixteenth file is held out; the JSON
names the version of Python. Four widths, three depths, three lengths and three batches are a
fractional design of 66 of 108 cells: every shape of at most 68,000 parameters at every length and
two batches, four shapes at the third, largest and always worst.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

import nfd
from nfd.core.files import write_json
from nfd.core.tables import Row
from nfd.laws.ladder import LadderLaw
from studies.byte_gpt import Cell

RUNS = Path(__file__).with_suffix(".csv")
ANSWER = Path(__file__).with_suffix(".json")
COLUMNS = ("part", "width", "depth", "parameters", "tokens", "batch", "lr", "loss", "seconds")
SHAPES = ((16, 2), (24, 2), (32, 2), (48, 2), (16, 4), (24, 4), (32, 4), (16, 8), (24, 8))
LENGTHS = (2**17, 2**18, 2**19)
# Tokens.
BATCHES = (512, 1024, 2048)
# Factors of the advised rate.
AROUND = ((1.0,), (0.5, 2.0))
PLACE = COLUMNS[1:6]
# Parameters stand for width and depth.
SHAPE = {"width": None, "depth": None}
OF_ALL_BATCHES = ((16, 2), (32, 2), (48, 2), (24, 4))
# The runs that the laws named when they refused: widths, log2 of the tokens and of the lowest of
# three rates.
ASKED = ((88, 17, -9), (16, 20, -7), (16, 21, -7), (24, 20, -7), (24, 21, -7), (32, 20, -8))


def rates(width: int) -> tuple[float, ...]:
    """Five powers of 2 about ``1 / (2 width)``, the best learning rate of six cells of one seed."""
    middle = -round(math.log2(2 * width))
    return tuple(2.0**k for k in range(middle - 2, middle + 3))


def ladder() -> list[Cell]:
    """The cells of the design, the cheapest first."""
    cells = list[Cell]()
    for shape, tokens, batch in product(SHAPES, LENGTHS, BATCHES):
        if batch < BATCHES[2] or shape in OF_ALL_BATCHES:
            cells.append(Cell(*shape, tokens, batch, rates(shape[0])))
    for width, tokens, low in ASKED:
        three = tuple(2.0**k for k in range(low, low + 3))
        cells.append(Cell(width, 2, 2**tokens, BATCHES[0], three, "asked for"))
    return sorted(cells, key=lambda cell: cell.parameters * cell.tokens)


def train(cells: Iterable[Cell]) -> None:
    """Train what the CSV lacks, and add it there."""
    for cell in cells:
        about = [getattr(cell, name) for name in COLUMNS[:6]]
        stored = {tuple(row[name] for name in COLUMNS[:7]) for row in rows()}
        if all((*about, rate) in stored for rate in cell.rates):
            continue
        began = time.perf_counter()
        is_new = not RUNS.exists()
        losses = cell.trained()
        seconds = round((time.perf_counter() - began) / len(losses), 1)
        with RUNS.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if is_new:
                writer.writerow(COLUMNS)
            for rate, loss in zip(cell.rates, losses, strict=True):
                writer.writerow([*about, rate, round(loss, 5), seconds])
        print(about, losses, f"{seconds} s each", flush=True)


def rows() -> list[Row]:
    """Read the stored runs."""
    if not RUNS.exists():
        return []
    with RUNS.open(newline="", encoding="utf-8") as file:
        stored: list[Row] = list(csv.DictReader(file))
    for row in stored:
        for name, text in row.items():
            row[name] = text if name == "part" else float(text)
    return stored


def forecast(measured: Sequence[Row]) -> Row:
    """Forecast loss and learning rate of the targets from only the small runs.

    Losses are forecast by the laws with their priors, and by the usual fit.
    """
    whole = [row for row in measured if row["part"] == "ladder"]
    deep = [row for row in whole if row["depth"] == 2]
    asked = [row for row in measured if row["part"] == "asked for"]
    laws = {
        "all shapes": fitted(whole),
        "depth 2": fitted(deep),
        "depth 2, and what it asked for": fitted(deep + asked),
    }
    rates = nfd.fit_rate_law(whole, columns=SHAPE)
    forecasts = list[Row]()
    for name, cell in targets().items():
        size = {"parameters": cell.parameters, "tokens": cell.tokens}
        losses = dict[str, Row]()
        for runs, law in laws.items():
            usual = float(law.additive.loss(np.array([[*size.values()]]))[0])
            losses[runs] = law.at(**size).limits | {
                "refused": law.refused(**size),
                "additive": usual,
            }
        rate = rates.at(**size, batch=cell.batch)
        forecasts.append(
            {
                "target": name,
                "width": cell.width,
                "depth": cell.depth,
                **size,
                "batch": cell.batch,
                "losses": losses,
                "rate": rate.rate.limits,
                "advised": float(f"{rate.advised:.3g}"),
                "excess": rate.excess.limits,
            }
        )
    return {
        "python": platform.python_version(),
        "laws": {
            name: {
                "formula": law.formula,
                "residual": law.residual,
                "said": law.sentences,
                "notes": law.notes,
            }
            for name, law in laws.items()
        },
        "exponents": {name: exponent.limits for name, exponent in rates.exponents.items()},
        "forecasts": forecasts,
    }


def fitted(runs: Sequence[Row]) -> LadderLaw:
    """Fit the law to the best run of every size, over learning rates and batches."""
    best = dict[tuple[float, ...], Row]()
    for row in sorted(runs, key=lambda row: -row["loss"]):
        best[row["parameters"], row["tokens"]] = row
    return nfd.fit_ladder([*best.values()], columns=SHAPE)


def targets() -> dict[str, Cell]:
    """Runs 16 times as large, as long, and both, as the largest and longest of the ladder.

    Their learning rates are advised by the forecasts.
    """
    asked = {
        "16 times as large": (208, 1),
        "16 times as long": (48, 16),
        "16 times as large, 4 times as long": (208, 4),
        "16 times as large and as long": (208, 16),
    }
    return {
        name: Cell(width, 2, longer * LENGTHS[-1], BATCHES[0], (), "target")
        for name, (width, longer) in asked.items()
    }


def compare(answer: Row, measured: Sequence[Row]) -> Row:
    """Add what was measured to forecasts: the best run, and what the advised rate lost to it."""
    for row in answer["forecasts"]:
        place = ["target", *(row[name] for name in PLACE)]
        loss_by_rate = dict[float, float]()
        for run in measured:
            if [run[name] for name in COLUMNS[:6]] == place:
                loss_by_rate[run["lr"]] = run["loss"]
        runs = [list(pair) for pair in sorted(loss_by_rate.items())]
        if runs:
            rate, best = min(runs, key=lambda run: run[1])
            row |= {"runs": runs, "measured": best, "measured rate": rate}
            row |= {"measured excess": loss_by_rate[row["advised"]] / best - 1}
            for limits in row["losses"].values():
                limits |= {
                    "error": limits["value"] / best - 1,
                    "inside": limits["low"] <= best <= limits["high"],
                }
            # The row has the errors of the law of the ladder as designed.
            row |= {name: row["losses"]["all shapes"][name] for name in ("error", "inside")}
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--until",
        choices=("ladder", "forecast"),
        help="stop after the small runs, or the forecasts",
    )
    last = parser.parse_args().until
    torch.set_num_threads(1)
    train(ladder())
    if last != "ladder" and not ANSWER.exists():
        write_json(ANSWER, forecast(rows()))
    # The advised rate of every target comes first.
    for factors in () if last else AROUND:
        answer = json.loads(ANSWER.read_text("utf-8"))
        for row, cell in zip(answer["forecasts"], targets().values(), strict=True):
            train([replace(cell, rates=tuple(row["advised"] * factor for factor in factors))])
            write_json(ANSWER, compare(answer, rows()))


if __name__ == "__main__":
    main()
