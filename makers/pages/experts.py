"""Texts of docs/experts.md."""

from __future__ import annotations

import json
from typing import Any

from makers.pages.words import LEVEL, STUDIES, bracketed, number, paragraph, sentence
from makers.tables import markdown
from nfd.core.tables import Row

STORE = STUDIES / "experts.json"
TUNED = (8, 2)


def read() -> dict[str, Any]:
    """The stored numbers."""
    numbers: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: dict[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    costs = []
    for row in numbers["cost"]:
        size = (row["experts"], row["top_k"])
        if size != TUNED and row["top_k"] <= TUNED[1]:
            costs.append(_cost(row))
    return {"answer": _answer(numbers), "costs": markdown(costs)}


def _answer(numbers: dict[str, Any]) -> str:
    experts = numbers["experts"]
    top_k = numbers["top_k"]
    kept = max(row["none"] / row["progress"] for row in numbers["cost"] if row["top_k"] <= TUNED[1])
    return paragraph(
        "**Experts may keep their learning rate: at this scale it costs at most "
        f"{number(100 * kept, '.1f')} % of the progress.** The best rate follows the number of "
        f"experts E with a power of {sentence(experts['exponent'], level=LEVEL)} at k = 2, and the "
        f"number k that a token uses with {sentence(top_k['exponent'])} at E = 16. That is "
        "**undecided** between no law and (k/E)^1/2. With intervals over seeds only, added "
        f"afterwards, the powers are {sentence(experts['exponent by parabola'])} and "
        f"{sentence(top_k['exponent by parabola'])}."
    )


def _cost(row: Row) -> Row:
    size = f"E = {row['experts']}"
    if row["top_k"] != TUNED[1]:
        size += f", k = {row['top_k']}"
    return {
        "carried to": size,
        "kept, it costs": f"{number(100 * row['none'] / row['progress'], '.1f')} %",
        "by the root": f"{number(100 * row['sqrt(k/E)'] / row['progress'], '.1f')} %",
        "root over kept, nats": bracketed(row["sqrt(k/E) over none"], ".3f"),
    }
