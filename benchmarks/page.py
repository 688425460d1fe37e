"""``python -m benchmarks.page [RESULT]``: the tables of docs/benchmarks.md from a result, the baseline by default."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from textwrap import fill

from benchmarks.check import BASELINE
from benchmarks.result import Result
from benchmarks.show import cell, fill_page, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def made(result: Result) -> dict[str, str]:
    """A sentence on the machine, and a table for every part that has a place on the page."""
    about = {name: cell(name, value) for name, value in result.machine.items()}
    machine = (
        f"Measured on {about['date'][:10]} on a shared machine: {about['processor']}, {about['cores']} cores, "
        f"{about['memory, GiB']} GiB, {about['threads']} threads; nfd {about['nfd']}, PyTorch {about['torch']}, Python "
        f"{about['python']}. It read {about['read, GB/s']} GB/s from memory and multiplied large matrices at "
        f"{about['float32 products, GFLOP/s']} GFLOP/s in float32 and {about['float64 products, GFLOP/s']} in float64."
    )
    text = PAGE.read_text(encoding="utf-8")
    tables = {part: markdown(rows) for part, rows in result.parts.items() if f"<!-- made: {part} -->" in text}
    return {"machine": fill(machine, 120)} | tables


def main() -> int:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path, default=BASELINE)
    try:
        fill_page(PAGE, made(Result.read(parser.parse_args().result)))
    except ValueError as error:
        print(f"benchmarks.page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
