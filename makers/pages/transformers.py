"""Texts of docs/transformers.md, from the stored numbers of version 0.2.0."""

from __future__ import annotations

from collections.abc import Sequence

from makers.pages.words import (
    DOCS,
    LEVEL,
    bracketed,
    paragraph,
    read_csv,
    sentence,
    where,
)
from makers.tables import markdown
from nfd.core.tables import Row

STORE = DOCS / "transformers.csv"
PLAN = "AdamW, mup, complete-p, depth-mup, width 64 to 256"
DEFAULT = "AdamW, standard, width 64 to 256"
MUON = "Muon, mup, complete-p, width 64 to 256"


def read() -> list[Row]:
    """The stored rows."""
    return read_csv(STORE)


def texts(rows: Sequence[Row]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(rows),
        "ladders": markdown([_ladder(rows, name) for name in _ladders(rows)]),
        "wider": _wider(rows),
    }


def _ladders(rows: Sequence[Row]) -> list[str]:
    """Names of ladders, those along width first."""
    names = dict.fromkeys(row["ladder"] for row in rows)
    return sorted(names, key=lambda name: "depth 2 to" in name)


def _answer(rows: Sequence[Row]) -> str:
    plan = sentence(where(rows, ladder=PLAN, quantity="drift"), level=LEVEL)
    default = sentence(where(rows, ladder=DEFAULT, quantity="drift"))
    kept = sentence(where(rows, ladder=PLAN, quantity="cost"), ".3f")
    lost = sentence(where(rows, ladder=DEFAULT, quantity="cost"))
    return paragraph(
        "**Use `complete-p`. Under AdamW and under Muon the best learning rate of a small GPT then "
        "serves one that is wider or deeper.** From width 64 to 256 under AdamW it moves by "
        f"{plan} doublings per doubling of width, and with PyTorch's defaults by {default}; the "
        f"rate of width 64 costs width 256 {kept} nats with a plan, {lost} without. At its own best "
        "rate the default network is as good."
    )


def _ladder(rows: Sequence[Row], name: str) -> Row:
    of_ladder = [row for row in rows if row["ladder"] == name]
    rates = [row["value"] for row in of_ladder if row["quantity"] == "best rate"]
    cost = where(of_ladder, quantity="cost")
    verdicts = {row["verdict"] for row in of_ladder}
    found = "no fault"
    if "GROWS" in verdicts:
        found = "updates grow"
    elif "COLLAPSES" in verdicts:
        found = "inner layers learn less"
    optimizer_and_rules, _, sizes = name.rpartition(", ")
    axis = sizes.split()[0]
    return {
        "axis": axis,
        "optimizer, rules": optimizer_and_rules,
        "best rate": f"{rates[0]:.2g} → {rates[-1]:.2g}",
        "drift": bracketed(where(of_ladder, quantity="drift"), "+.2f"),
        "cost, nats": f"{bracketed(cost, '+.3f')}, {cost['verdict']}",
        "check": found,
    }


def _wider(rows: Sequence[Row]) -> str:
    def loss(ladder: str, at: str = "rate of width 64", level: str = "") -> str:
        row = where(rows, ladder=ladder, quantity="loss of width 512", at=at)
        return sentence(row, ".3f", level=level)

    return paragraph(
        f"At width 512 and the rate of width 64 the loss is {loss(PLAN, level=LEVEL)} under muP's "
        f"rates and AdamW, and {loss(MUON)} under Muon. The default scaling has {loss(DEFAULT)}, and at half that rate "
        f"{loss(DEFAULT, 'half the rate of width 64')}."
    )
