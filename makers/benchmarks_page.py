"""Fill the tables of docs/benchmarks.md from a result: ``python -m makers.benchmarks_page RESULT``.

Without RESULT they are filled from the baseline. The table of sizes is that of
``benchmarks.growth``, which keeps its numbers by itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import fill

from benchmarks import growth
from benchmarks.check import BASELINE
from benchmarks.ratio import Ratio
from benchmarks.result import Result
from makers.tables import cell, fill_page, in_sentence, markdown
from nfd.core.tables import Row

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def tables_of(result: Result) -> dict[str, str]:
    """The texts of the page by the name of their place.

    They are sentences on the machine and on what costs what, and a table for every part that has
    a place on the page.
    """
    about = {name: cell(name, value) for name, value in result.machine.items()}
    machine = (
        f"Measured on {about['date'][:10]} on a shared machine: {about['processor']}, "
        f"{about['cores']} cores, {about['memory, GiB']} GiB, {about['threads']} threads; nfd "
        f"{about['nfd']}, PyTorch {about['torch']}, Python {about['python']}. It read "
        f"{about['read, GB/s']} GB/s from memory and multiplied large matrices at "
        f"{about['float32 products, GFLOP/s']} GFLOP/s in float32 and "
        f"{about['float64 products, GFLOP/s']} in float64."
    )
    powers = [f"{cell('', row['exponent'])} of the {row['size']}" for row in result.parts["growth"]]
    reached = list[str]()
    for row in result.parts["query"]:
        for name, value in row.items():
            if "share" in name:
                level = "" if reached else "95 %: "
                reached.append(in_sentence(name, value, level))
    plan = in_sentence("", _only_ratio(result.parts["plan"][0]))
    check = in_sentence("", _only_ratio(result.parts["check"][0]))
    costs = (
        f"Time grows as the power {', '.join(powers)}. A query of the factors reaches "
        f"{', '.join(reached)} of what memory and arithmetic allow. A plan by tracing takes {plan} "
        f"forward and backward passes of its Transformer. Of the time of a check training "
        f"takes {check}."
    )
    text = PAGE.read_text(encoding="utf-8")
    tables = {
        part: markdown(rows)
        for part, rows in result.parts.items()
        if f"<!-- made: {part} -->" in text
    }
    sizes = [growth.in_words(row) for row in json.loads(growth.STORED.read_text())["rows"]]
    texts = {"machine": fill(machine, 120), "costs": fill(costs, 120), "sizes": markdown(sizes)}
    return texts | tables


def _only_ratio(row: Row) -> Ratio:
    """The value of a row that is a ratio of times; there is one."""
    (ratio,) = (value for value in row.values() if isinstance(value, Ratio))
    return ratio


def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path, default=BASELINE)
    fill_page(PAGE, tables_of(Result.read(parser.parse_args().result)))


if __name__ == "__main__":
    main()
