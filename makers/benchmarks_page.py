"""Fill the tables of docs/benchmarks.md from a result: ``python -m makers.benchmarks_page RESULT``.

Without RESULT they are filled from the baseline. The tables of sizes and of what time is made of
are those of ``benchmarks.growth`` and ``benchmarks.split``, which keep their numbers themselves.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from textwrap import fill

from benchmarks import growth, split
from benchmarks.check import BASELINE
from benchmarks.measure import SHARE
from benchmarks.result import Result
from makers.tables import cell, fill_page, in_sentence, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def tables_of(result: Result) -> dict[str, str]:
    """The texts of the page by the name of their place.

    They are sentences on the machine and on what costs what, and a table for every part that has
    a place on the page.
    """
    about = {name: cell(name, value) for name, value in result.machine.items()}
    machine = (
        f"Measured on {about['date'][:10]}: {about['processor']}, "
        f"{about['cores']} cores, {about['memory, GiB']} GiB, {about['threads']} threads; nfd "
        f"{about['nfd']}, PyTorch {about['torch']}, Python {about['python']}. It read "
        f"{about['read, GB/s']} GB/s from memory and multiplied large matrices at "
        f"{about['float32 products, GFLOP/s']} GFLOP/s in float32 and "
        f"{about['float64 products, GFLOP/s']} in float64."
    )
    powers = [f"{cell('', row['exponent'])} of the {row['size']}" for row in result.parts["growth"]]
    reached = list[str]()
    for row in result.parts["query"]:
        level = "" if reached else "95 %: "
        reached.append(in_sentence(SHARE, row[SHARE], level))
    plan = in_sentence("", result.parts["plan"][0]["plan / forward and backward"])
    check = in_sentence("", result.parts["check"][0]["training alone / check"])
    costs = (
        f"Time grows as the power {', '.join(powers)}. A query of the factors reaches "
        f"{', '.join(reached)} of what memory and arithmetic allow. A plan by tracing takes {plan} "
        f"forward and backward passes of its Transformer. Of the time of a check training "
        f"takes {check}."
    )
    text = PAGE.read_text(encoding="utf-8")
    sizes = [growth.in_words(row) for row in json.loads(growth.STORED.read_text())["rows"]]
    texts = {"machine": fill(machine, 120), "costs": fill(costs, 120), "sizes": markdown(sizes)}
    texts["split"] = markdown(json.loads(split.STORED.read_text())["rows"])
    texts["findings"] = _findings(result)
    for part in re.findall("<!-- made: ([a-z-]+) -->", text):
        if part not in texts:
            rows = result.parts.get(part)
            texts[part] = markdown(rows) if rows else "*Not measured yet.*"
    return texts


def _findings(result: Result) -> str:
    """The first numbers of the page, and the picture with what it shows."""
    faster = list[str]()
    for row in result.parts["dense"]:
        level = "" if faster else "95 %: "
        times = in_sentence("", row["dense / deferred"], level)
        faster.append(f"of width {row['width']:,} {times} times")
    sentence = (
        "Deferred weights trained 16 layers faster than dense ones do: " + ", ".join(faster) + "."
    )
    picture = (
        "![How many times as fast as their opponents wide networks and kernels are]"
        "(images/benchmarks.svg)"
    )
    return f"{fill(sentence, 120)}\n\n{picture}"


def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path, default=BASELINE)
    fill_page(PAGE, tables_of(Result.read(parser.parse_args().result)))


if __name__ == "__main__":
    main()
