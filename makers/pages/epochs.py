"""Texts of docs/epochs.md, from the stored numbers of version 0.2.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from makers.pages.words import (
    DOCS,
    LEVEL,
    NUMBERS,
    bracketed,
    number,
    paragraph,
    read_csv,
    sentence,
    where,
)
from makers.tables import markdown
from nfd.core.tables import Row

STORE = DOCS / "epochs.csv"
LIMITS = NUMBERS / "epochs-limits.csv"
ERROR = "test error, %"
SHOWN = (("dense", 64), ("structured", 2048), ("structured", 8192))


def read() -> dict[str, list[Row]]:
    """The rows of networks, and of their limits."""
    return {"networks": read_csv(STORE), "limits": read_csv(LIMITS)}


def texts(numbers: Mapping[str, list[Row]]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(numbers["limits"]),
        "table": markdown(_table(numbers)),
        "cost": _cost(numbers["networks"]),
    }


def _answer(limits: list[Row]) -> str:
    wide = where(limits, name="infinite width, with the error of the resolution")
    nngp = sentence(where(limits, name="NNGP, depth 4"), ".1f", " %")
    ntk = sentence(where(limits, name="NTK, depth 4"), ".1f", " %")
    narrow = sentence(where(limits, name="width 64 over infinite width"), ".1f", " points")
    return paragraph(
        "**Not in ten passes over 2,000 images: it is as good as kernels, and better than narrow "
        f"networks.** The infinitely wide network errs on {sentence(wide, '.1f', ' %', LEVEL)} of "
        f"the test images, regression with the NNGP of the same depth on {nngp}, with the NTK on "
        f"{ntk}: no difference is significant. Width 64 adds {narrow}."
    )


def _table(numbers: Mapping[str, list[Row]]) -> list[Row]:
    table = list[Row]()
    for weights, width in SHOWN:
        row = where(numbers["networks"], weights=weights, width=width)
        cells: Row = {"width": f"{width:,}", "weights": weights}
        for name, column, spec in (
            (ERROR, "test_error", ".2f"),
            ("test loss", "test_loss", ".3f"),
            ("training loss", "train_loss", ".3f"),
        ):
            ends = {"low": row[f"{column}_low"], "high": row[f"{column}_high"]}
            cells[name] = bracketed({"value": row[column], **ends}, spec)
        table.append(cells)
    limit = {"width": "infinite", "weights": "`a + b / n` of the last two"}
    for quantity, spec in ((ERROR, ".2f"), ("test loss", ".3f")):
        limit[quantity] = bracketed(
            where(numbers["limits"], name="infinite width", quantity=quantity), spec
        )
    table.append(limit)
    return table


def _cost(networks: list[Row]) -> str:
    widest: dict[str, Any] = where(networks, weights="structured", width=8192)
    return paragraph(
        "With [structured weights](mathematics/structured.md) an image that was seen before adds "
        f"almost nothing: a layer of width 8,192 recorded {number(widest['directions'], '.0f')} "
        "directions of 20,000 samples."
    )
