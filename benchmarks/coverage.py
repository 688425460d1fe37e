"""``make coverage``: how often 95 % intervals contain the truth, by repetition, as JSON, a table and a page.

Every kind of interval is made by the function that the library makes it with, from numbers or networks whose truth is
known. Parts are cut into chunks of repetitions with random numbers of their own, which two processes measure.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.coverage_case import Row, joined, verdict
from benchmarks.coverage_page import PAGE, page, reason
from benchmarks.measure import machine
from benchmarks.show import terminal
from nfd.core.errors import check_count
from nfd.core.files import prepare_directory, write_json, write_text
from nfd.core.random import derive

# Part -> the module of benchmarks and its function (repetitions, seed) -> rows {kind, case, nominal, measured, error,
# count}. The slowest come first, so that no process is left with one of them at the end.
PARTS = {
    "predict": ("coverage_predict", "predict_covers"),
    "laws": ("coverage_laws", "laws_cover"),
    "claims": ("coverage_claims", "claims_cover"),
    "networks": ("coverage_slopes", "networks_cover"),
    "study": ("coverage_study", "study_covers"),
    "slopes": ("coverage_slopes", "slopes_cover"),
    "noise": ("coverage_noise", "noise_covers"),
    "means": ("coverage_means", "means_cover"),
}
RESULT = Path(__file__).with_name("coverage.json")
_WORKERS, _CHUNK, _QUICK = 2, 250, 50
_MOST = {"predict": 100}  # repetitions of a part that trains dozens of networks in each
_WHOLE = ("networks",)  # in one chunk: nfd.check counts its seeds from zero


def available() -> dict[str, tuple[str, str]]:
    """The parts whose module is there."""
    return {name: where for name, where in PARTS.items() if importlib.util.find_spec(f"benchmarks.{where[0]}")}


def chunk(part: str, repetitions: int, seed: int) -> tuple[list[Row], float]:
    """The rows of some repetitions of one part, and the seconds they took; runs in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # of short runs about their own noise
    module, function = PARTS[part]
    start = time.perf_counter()
    rows: list[Row] = getattr(importlib.import_module(f"benchmarks.{module}"), function)(repetitions, seed)
    return rows, time.perf_counter() - start


def chunks(part: str, repetitions: int) -> list[int]:
    """Repetitions of every chunk of a part."""
    repetitions = min(repetitions, _MOST.get(part, repetitions))
    count = 1 if part in _WHOLE else max(-(-repetitions // _CHUNK), min(_WORKERS, repetitions) if part in _MOST else 1)
    return [repetitions // count + (index < repetitions % count) for index in range(count)]


def measured(
    parts: Sequence[str], repetitions: int, seed: int, said: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Rows of the parts, and what each took, measured by two processes."""
    with ProcessPoolExecutor(_WORKERS, mp_context=get_context("spawn")) as pool:
        jobs = {
            part: [
                pool.submit(chunk, part, count, derive(seed, "coverage", part, index))
                for index, count in enumerate(chunks(part, repetitions))
            ]
            for part in parts
        }
        rows, took = dict[str, list[Row]](), dict[str, float]()
        for part, futures in jobs.items():
            done = [future.result() for future in futures]
            rows[part] = [row | {"verdict": verdict(row)} for row in joined(found for found, _ in done)]
            took[part] = sum(seconds for _, seconds in done)
            said(f"{part}: {took[part]:.0f} s")
    about = machine()
    counts, dates = {part: sum(chunks(part, repetitions)) for part in parts}, dict.fromkeys(parts, about["date"])
    return {"machine": about, "seed": seed, "repetitions": counts, "dates": dates, "seconds": took, "parts": rows}


def kept(result: dict[str, Any]) -> None:
    """Put the parts of a result in place of those that are stored, and write the page."""
    stored = json.loads(RESULT.read_text())
    parts = {name: stored[name] | result[name] for name in ("repetitions", "dates", "seconds", "parts")}
    write_json(RESULT, stored | {"machine": result["machine"], "seed": result["seed"]} | parts)
    write_text(PAGE, page(json.loads(RESULT.read_text())))


def short(result: dict[str, Any]) -> list[Row]:
    """The rows that fall short, and of which no reason is known."""
    rows = (row for rows in result["parts"].values() for row in rows)
    return [row for row in rows if row["verdict"] == "falls short" and not reason(row)]


def main() -> int:
    """Measure, print, keep; 1 if an interval falls short and the page does not say why."""
    parts = available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000, help="of every case")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK} repetitions")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=list(parts), help="these parts; leaves the page")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the result goes; benchmarks/coverage.json for a whole run")
    parser.add_argument("--page-of", type=Path, metavar="RESULT", help="measure nothing: keep its parts, and the page")
    arguments = parser.parse_args()
    if arguments.page_of:
        kept(json.loads(arguments.page_of.read_text()))
        return 0
    repetitions = _QUICK if arguments.quick else check_count("--repetitions", arguments.repetitions, minimum=2)
    whole = not arguments.quick and not arguments.only
    out = arguments.out or (RESULT if whole else Path("out/coverage/coverage.json"))
    start = time.perf_counter()
    result = measured(arguments.only or list(parts), repetitions, arguments.seed, lambda text: print(text, flush=True))
    for part, rows in result["parts"].items():
        terminal(part, rows)
    prepare_directory(out.parent)
    write_json(out, result)
    if whole:
        kept(result)
    print(f"{time.perf_counter() - start:.0f} s. Result: {out}{f', page: {PAGE}' if whole else ''}")
    missing = [row for row in short(result) if repetitions >= _CHUNK]
    for row in missing:
        print(f"Falls short, and the page does not say why: {row['kind']}, {row['case']}: {row['measured']:.3f}.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
