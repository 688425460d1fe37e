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
    depths, rules = len(table["axes"]["depth"]), len(table["axes"]["rule"])
    ordered = [ORDERED[round(k * (len(ORDERED) - 1) / max(1, depths - 1))] for k in range(depths)]
    palette = {f"rule{k}": COLOURS[k] for k in range(rules)}
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
    axes, settings = table["axes"], table["settings"]
    lists = {name: ", ".join(f"{x:,g}" for x in axes[name]) for name in ("width", "depth", "horizon")}
    networks = sum(seeds for *_, seeds in (cell[:6] for cell in table["cells"]))
    more = [f"{name}={value}" for name, value in settings.items() if name not in ("block", "steps", "batch")]
    texts = [
        f"{table['data']}: {networks:,} residual networks of {settings['block']} blocks, trained for "
        f"{settings['steps']} steps of {settings['batch']} samples{''.join(f', {setting}' for setting in more)}; "
        f"widths {lists['width']}, depths {lists['depth']}, horizons {lists['horizon']}, rules "
        f"{', '.join(axes['rule'])}; not every size at every "
        "horizon. The loss is the mean over the last tenth of the steps, before each update."
    ]
    if limits := table.get("limits"):
        texts += [
            f"Limits come from {limits['replicates']} networks of width {limits['width']} and as many narrower ones."
        ]
    return " ".join([*texts, f"Computed by nfd {table['version']}."])
