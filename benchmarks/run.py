"""``make bench``: every number of the performance claims, as JSON and as a table.

Usage: ``python -m benchmarks.run [--quick] [--out FILE]``. Quote ratios: machines differ and are shared.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import limits, measure, stacks
from nfd.core.files import write_json

Row = dict[str, Any]
_QUERIES = ((4096, 104, 8), (65536, 104, 8), (65536, 96, 32))  # width, rank, batch


def everything(quick: bool) -> dict[str, list[Row]]:
    """All parts; quick leaves out the sizes that need more than a minute or 4 GiB."""
    large = [(65536, 8, 25, 8)] if quick else [(65536, 8, 25, 8), (1048576, 4, 12, 8)]
    return {
        "machine": [measure.machine()],
        "deferred against dense": [
            measure.against_dense(n, repeat) for n, repeat in ((4096, 3),) + (() if quick else ((8192, 2),))
        ],
        "one query against its bound": [
            measure.query(n, r, b) for n, r, b in ((4096, 104, 8), (65536, 104, 8), (65536, 96, 32))
        ],
        "large networks": [measure.alone(*size) for size in large],
        "reference problem A": [measure.reference_problem()],
        "exponents of growth": [measure.growth()],
        "networks trained together": [stacks.together(*shape) for shape in stacks.SHAPES[: 2 if quick else None]],
        "kernels": [
            limits.gram(name, kind, 1000 if quick else 4000)
            for name in ("relu", "erf", "tanh", "gelu")
            for kind in ("nngp", "ntk")
        ],
        "definition 1: variance of plain sampling over that of others": [
            row
            for activation, eta_c in (("tanh", 0.1), ("relu", 0.1), ("relu", 0.3))
            for row in limits.sampling(activation, eta_c, 4 if quick else 48)
        ],
        "definition 1 against deferred networks": [limits.definition_1()],
        "definition 1, many samples": [limits.many_samples()],
    }


def show(parts: dict[str, list[Row]]) -> None:
    """Print each part as a table."""
    console = Console()
    for title, rows in parts.items():
        table = Table(title=title, title_justify="left")
        for key in rows[0]:
            table.add_column(key)
        for row in rows:
            table.add_row(*map(_shown, row.values()))
        console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out what needs minutes or many GiB")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    arguments = parser.parse_args()
    parts = everything(arguments.quick)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, parts)
    show(parts)


if __name__ == "__main__":
    main()
