"""Texts of docs/muon-depth.md about depth 64."""

from __future__ import annotations

import json
from typing import Any

from makers.pages.words import (
    LEVEL,
    STUDIES,
    bracketed,
    number,
    paragraph,
    scaled,
    sentence,
    where,
)
from makers.tables import markdown
from nfd.core.tables import Row

STORE = STUDIES / "muon_depth.json"
RULES = {"1/L": "complete-p", "1/√L": "depth-mup"}
METERS = {
    "inner update": "inner_update",
    "what inner layers do to the function": "function_update_inner",
}
DRIFT = "drift per doubling of depth"
REGRET = "regret over progress"


def read() -> dict[str, Any]:
    """The stored numbers."""
    numbers: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: dict[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "deep": _deep(numbers),
        "gpt": _gpt(numbers["gpt"]),
        "digits": _digits(numbers["mlp"]),
        "inner": markdown(_inner(numbers["gpt"])),
        "depth": _depth(numbers["gpt"]),
    }


def _lost(network: dict[str, Any], depth: int, level: str = "") -> str:
    return sentence(network["1/sqrt(L) over 1/L"][str(depth)], ".3f", level=level)


def _deep(numbers: dict[str, Any]) -> str:
    gpt = numbers["gpt"]
    drifts = {name: where(gpt["added"][rule], quantity=DRIFT) for name, rule in RULES.items()}
    return paragraph(
        "In a GPT, from depth 4 to 64, it moves by "
        f"{sentence(drifts['1/L'], level=LEVEL)} doublings per doubling of depth; under `depth-mup`, "
        f"branches of 1/√L, by {sentence(drifts['1/√L'])}, which loses {_lost(gpt, 64)} nats at "
        "equal tuning."
    )


def _gpt(gpt: dict[str, Any]) -> str:
    first = {name: gpt["rules"][rule]["transfer"] for name, rule in RULES.items()}
    costs = {name: scaled(where(table, quantity=REGRET), 100) for name, table in first.items()}
    drifts = {name: where(table, quantity=DRIFT) for name, table in first.items()}
    return paragraph(
        f"At equal tuning $1/\\sqrt L$ loses {_lost(gpt, 8, LEVEL)} nats at depth 8, "
        f"{_lost(gpt, 32)} at 32 and, on new seeds, {_lost(gpt, 64)} at 64. The rate of depth 4 costs "
        f"depth 64 {sentence(costs['1/L'], '.1f', ' %')} of its progress under $1/L$, and "
        f"{sentence(costs['1/√L'], '.1f', ' %')} under $1/\\sqrt L$. With rates in octaves drifts were "
        f"{sentence(drifts['1/L'])} and {sentence(drifts['1/√L'])}, which left the answer open; two "
        "rates between were **added later**, at all depths under both rules."
    )


def _digits(mlp: dict[str, Any]) -> str:
    tables = {name: mlp["rules"][rule]["transfer"] for name, rule in RULES.items()}
    drifts = [sentence(where(tables["1/L"], quantity=DRIFT), level=LEVEL)]
    drifts.append(sentence(where(tables["1/√L"], quantity=DRIFT)))
    return paragraph(
        f"Drifts are {drifts[0]} doublings per doubling of depth under $1/L$ and {drifts[1]} under "
        f"$1/\\sqrt L$, which loses {_lost(mlp, 64)} nats at depth 64: **undecided**. To depth 32, by "
        "the table above, both stay."
    )


def _inner(gpt: dict[str, Any]) -> list[Row]:
    table = list[Row]()
    for words, meter in METERS.items():
        cells: Row = {"exponent in depth after 60 steps": words}
        for name, rule in RULES.items():
            row = where(gpt["rules"][rule]["check"], meter=meter, step=60)
            text = bracketed(row)
            cells[name] = f"**{text}**" if row["verdict"] == "COLLAPSES" else text
        table.append(cells)
    return table


def _depth(gpt: dict[str, Any]) -> str:
    losses = [
        where(gpt["added"]["complete-p"], quantity="best loss", depth=depth)["value"]
        for depth in (4, 64)
    ]
    return paragraph(
        "Depth does not help in 60 steps: under $1/L$ the lowest loss is "
        f"{number(losses[0], '.3f')} at depth 4 and {number(losses[1], '.3f')} at depth 64. Weights of "
        "fixed norm, as HyperP has them, were not trained."
    )
