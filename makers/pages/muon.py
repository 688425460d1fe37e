"""Texts of docs/muon-depth.md about blocks of two layers, from the stored numbers of version 0.2.0."""

from __future__ import annotations

from collections.abc import Sequence

from makers.pages.words import (
    LEVEL,
    NUMBERS,
    bracketed,
    paragraph,
    read_csv,
    scaled,
    sentence,
    shifted,
    where,
)
from makers.tables import markdown
from nfd.core.tables import Row

STORE = NUMBERS / "muon.csv"
# By optimizer, what follows the axis and which rule.
LADDERS = {
    "Muon, width": ("muon", "width", "complete-p"),
    "Muon, depth, complete-p": ("muon", "depth", "complete-p"),
    "Muon, depth, depth-mup": ("muon", "depth", "depth-mup"),
    "SGD, width": ("sgd", "width", "complete-p"),
    "SGD, depth, complete-p": ("sgd", "depth", "complete-p"),
    "SGD, depth, depth-mup": ("sgd", "depth", "depth-mup"),
}
QUANTITIES = {
    "best rate": "drift",
    "function update": "function update",
    "inner update": "inner update",
}
# By rule, the powers of depth that a plan gives the rates of inner and outer matrices.
PLANNED = {"complete-p": {"inner": 0.0, "outer": -1.0}, "depth-mup": {"inner": -0.5, "outer": -1.0}}
# Of a check: an exponent stays where its interval lies within this.
MARGIN = 0.25


def read() -> list[Row]:
    """The stored rows."""
    return read_csv(STORE)


def texts(rows: Sequence[Row]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(rows),
        "exponents": markdown(_exponents(rows)),
        "others": _others(rows),
        "powers": markdown(_powers(rows)),
    }


def _of(rows: Sequence[Row], ladder: tuple[str, str, str], quantity: str) -> Row:
    optimizer, axis, rule = ladder
    wanted = {"optimizer": optimizer, "axis": axis, "rule": rule, "quantity": quantity}
    return where(rows, stepped="all", **wanted)


def _answer(rows: Sequence[Row]) -> str:
    width = sentence(_of(rows, LADDERS["Muon, width"], "drift"), level=LEVEL)
    depth = sentence(_of(rows, LADDERS["Muon, depth, complete-p"], "drift"))
    return paragraph(
        "**Use `complete-p`, branches of 1/L: under it Muon's best learning rate stays, and inner "
        "layers learn.** In blocks of two layers it moves, in doublings per doubling of the size, by "
        f"{width} in width, from 64 to 4,096, and by {depth} in depth, from 4 to 32."
    )


def _exponents(rows: Sequence[Row]) -> list[Row]:
    table = list[Row]()
    for name, ladder in LADDERS.items():
        cells: Row = {"": name}
        for column, quantity in QUANTITIES.items():
            row = _of(rows, ladder, quantity)
            stays = row["low"] > -MARGIN and row["high"] < MARGIN
            text = bracketed(row, "+.2f")
            cells[column] = text if stays else f"**{text}**"
        table.append(cells)
    return table


def _others(rows: Sequence[Row]) -> str:
    adamw = sentence(_of(rows, ("adamw", "depth", "depth-mup"), "inner update"), level=LEVEL)
    gpt = sentence(_of(rows, ("gpt, muon", "depth", "depth-mup"), "inner update"))
    moved = dict[str, str]()
    lost = dict[str, str]()
    for rule in ("depth-mup-inner", "mup"):
        ladder = ("muon", "depth", rule)
        moved[rule] = sentence(_of(rows, ladder, "drift"))
        cost = scaled(_of(rows, ladder, "regret over progress"), 100)
        lost[rule] = sentence(cost, ".0f", " %")
    return paragraph(
        "Bold: not within 0.25 of zero, as [a check](checks.md) asks. Under AdamW losses are too flat "
        f"to tell best rates; inner updates under `depth-mup` fall by {adamw}, in a GPT of depths 2 to 8 "
        f"under Muon by {gpt}. Eq. 8 (`depth-mup-inner`) cures that, but moves Muon's best rate by "
        f"{moved['depth-mup-inner']}, which costs {lost['depth-mup-inner']} of the progress at depth "
        f"32; `mup` moves it by {moved['mup']}, which costs {lost['mup']}."
    )


def _powers(rows: Sequence[Row]) -> list[Row]:
    table = list[Row]()
    for rule, powers in PLANNED.items():
        cells: Row = {"initial weights": f"`{rule}`"}
        for stepped, power in powers.items():
            drift = where(rows, optimizer="muon", rule=rule, stepped=stepped, quantity="drift")
            cells[f"{stepped} matrices, measured"] = bracketed(shifted(drift, power), "+.2f")
            cells[f"{stepped}, plan"] = f"{power:g}"
        table.append(cells)
    return table
