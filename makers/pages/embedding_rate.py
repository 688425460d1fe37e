"""Texts of docs/embedding-rate.md."""

from __future__ import annotations

import json
from typing import Any

from makers.pages.words import (
    LEVEL,
    STUDIES,
    bracketed,
    negated,
    number,
    paragraph,
    sentence,
    where,
)
from makers.tables import markdown
from nfd.core.tables import Row
from studies.embedding_rate import NEGLIGIBLE, WIDTHS

STORE = STUDIES / "embedding_rate.json"
DRIFT = "drift per doubling of width"
# By recipe, the learning rates that it gives, where m is the width over that of the base.
RECIPES = {
    "standard": "lr for all",
    "by-width": "lr/m for all",
    "embedding": "lr/m, lr for embeddings",
    "mup": "as `nfd` has them",
    "mup-without": "the same, lr/m for embeddings",
    "small-head": "as embedding; muP's initial head (added)",
    "standard-decay": "lr for all",
    "mup-decay": "as `nfd` has them",
}
# The recipes that others are compared with.
RIVALS = ("mup", "mup-decay")


def read() -> dict[str, Any]:
    """The stored numbers."""
    numbers: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: dict[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(numbers),
        "recipes": markdown([_recipe(name, numbers[name]) for name in RECIPES]),
        "costs": _costs(numbers),
        "says": _says(numbers),
    }


def _negligible(numbers: dict[str, Any]) -> str:
    return number(NEGLIGIBLE * numbers["mup"]["progress"], ".3f")


def _answer(numbers: dict[str, Any]) -> str:
    added = numbers["added"]
    lead = negated(numbers["by-width"]["cost over muP"])
    decay = numbers["standard-decay"]
    drift = sentence(where(decay["table"], quantity=DRIFT))
    return paragraph(
        "**No: in this setting the standard scaling lacks nothing that muP gives, once all its "
        f"learning rates fall as 1/width.** At width {WIDTHS[-1]:,} it is then below muP by "
        f"{sentence(lead, '.3f', level=LEVEL)} nats. The embedding's rate adds "
        f"{sentence(added['by-width over embedding'], '.3f')} nats to that, and "
        f"{sentence(added['mup-without over mup'], '.3f')} within muP. Nor do decay and a long "
        "warm-up replace muP at a kept rate: that costs "
        f"{sentence(decay['cost over muP'], '.3f')} nats, where {_negligible(numbers)} is "
        f"negligible, and best rates still fall, by {drift} doublings per doubling of width."
    )


def _recipe(name: str, recipe: dict[str, Any]) -> Row:
    cells: Row = {"recipe": name, "rates": RECIPES[name], "drift": "", "lowest loss": ""}
    if "table" in recipe:
        cells["drift"] = bracketed(where(recipe["table"], quantity=DRIFT))
        lowest = where(recipe["table"], quantity="best loss", width=WIDTHS[-1])
        cells["lowest loss"] = bracketed(lowest, ".3f")
    cells["loss at the rate of 64"] = number(recipe["carried"]["value"], ".3f")
    over = bracketed(recipe["cost over muP"], ".3f")
    cells["over muP"] = "" if name in RIVALS else f"{over}, {recipe['word']}"
    return cells


def _costs(numbers: dict[str, Any]) -> str:
    costs = list[str]()
    for name in ("standard", "embedding", "mup"):
        row = where(numbers[name]["table"], quantity="regret (nats)")
        costs.append(f"{name} {sentence(row, '.3f', level='' if costs else LEVEL)}")
    return paragraph(
        f'"Equals": the interval lies below 2 % of muP\'s progress, {_negligible(numbers)} nats; '
        f'"lacks": above. The rate of width 64 costs the largest network, beside its own best rate, '
        f"{costs[0]} nats, {costs[1]}, {costs[2]}."
    )


def _says(numbers: dict[str, Any]) -> str:
    lead = numbers["added"]["mup over embedding"]["value"]
    head = number(lead + numbers["small-head"]["cost over muP"]["value"], ".3f")
    return paragraph(
        "**muP loses by the initial weights of its head** (added afterwards): with these, "
        f'"embedding" loses {head} of its lead of {number(lead, ".3f")} nats ([the same in a '
        "nanoGPT](against-others.md))."
    )
