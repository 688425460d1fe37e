"""The page of ``nfd explore``: sliders over stored numbers, drawn by a script of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nfd.report.series import COLOURS, DARK, ORDERED
from nfd.report.templates import templates

STORED = Path(__file__).with_name("explore.json")  # made by docs/explore.py
_TITLE = "Width, depth, horizon, rate and rule"


def stored() -> dict[str, Any]:
    """The table that comes with the package (``nfd.questions.explored``)."""
    table: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return table


def explore_page(table: Mapping[str, Any]) -> str:
    """The page over a table of ``nfd.questions.explored``, as one HTML file that loads nothing."""
    grid = table["grid"]
    depths = len(grid["depths"])
    ordered = [ORDERED[round(k * (len(ORDERED) - 1) / max(1, depths - 1))] for k in range(depths)]
    palette = {f"rule{k}": COLOURS[k] for k in range(len(grid["rules"]))}
    palette |= {f"depth{k}": colour for k, colour in enumerate(ordered)}
    return (
        templates()
        .get_template("explore.html")
        .render(
            title=_TITLE,
            table=table,
            about=about(table),
            colours=[(name, colour, DARK.get(colour, colour)) for name, colour in palette.items()],
            dark={},
        )
    )


def about(table: Mapping[str, Any]) -> str:
    """What was run, in words."""
    grid = table["grid"]
    lists = {name: ", ".join(f"{x:,g}" for x in grid[name]) for name in ("widths", "depths", "horizons", "measured")}
    return (
        f"{table['data']}: residual networks of two-layer blocks (relu), trained by SGD for {grid['steps']} steps of "
        f"{grid['batch']} samples, the same batches for all; widths {lists['widths']}, depths {lists['depths']}, "
        f"horizons {lists['horizons']}, {len(grid['rates'])} rates and {len(grid['rules'])} rules, {grid['seeds']} "
        "seeds of each. The loss is that of the last batch, before its update. Updates were measured at widths "
        f"{lists['measured']}. Limits come from {grid['replicates']} networks of width {grid['limit_width']} and as "
        f"many narrower ones. Computed by nfd {table['version']}."
    )
