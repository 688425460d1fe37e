"""Texts of docs/best-rate-in-width.md."""

from __future__ import annotations

import json
from typing import Any

from makers.pages.words import LEVEL, STUDIES, bracketed, number, paragraph, sentence, where
from makers.tables import markdown
from nfd.core.tables import Row

STORE = STUDIES / "rate_in_width.json"
CASES = {
    "linear-1": "linear, 1 step",
    "sgd-1": "SGD, 1 step",
    "sgd-10": "SGD, 10 steps",
    "sgd-40": "SGD, 40 steps",
    "muon-1": "Muon, 1 step",
    "muon-10": "Muon, 10 steps",
    "muon-40": "Muon, 40 steps",
}
BOUND = {
    "faster than the bound": "faster",
    "as the bound": "the bound",
    "slower than the bound": "slower",
}
WIDTHS = (64, 256, 1024)


def read() -> dict[str, Any]:
    """The stored numbers."""
    numbers: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: dict[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(numbers),
        "powers": markdown([_power(words, numbers[name]) for name, words in CASES.items()]),
        "alike": _alike(numbers),
        "costs": markdown(_costs(numbers)),
        "turn": _turn(numbers),
    }


def _answer(numbers: dict[str, Any]) -> str:
    def of_mean(name: str, level: str = "") -> str:
        return sentence(numbers[name]["mean"]["p"], level=level)

    def of_one(name: str) -> str:
        return sentence(numbers[name]["one network"]["every network alike"])

    return paragraph(
        "**Two learning rates converge, with two powers of the width $n$.** The best rate of the "
        f"*mean* loss over initialisations converges as $n^{{-p}}$ with p = "
        f"{of_mean('sgd-40', LEVEL)} after 40 steps of SGD, and {of_mean('linear-1')} in a linear "
        "network after one: faster than the published bound, $n^{-1/2}$. The best rate of *one* "
        f"network scatters about it with p = {of_one('sgd-40')} and {of_one('linear-1')}, as the "
        f"bound says. Under Muon even the mean is slow: {of_mean('muon-1')} after one step, "
        f"{of_mean('muon-40')} after 40."
    )


def _power(words: str, case: dict[str, Any]) -> Row:
    mean = case["mean"]
    one = case["one network"]
    cells: Row = {"case": words, "p of the mean": "no power fits"}
    if "p" in mean:
        bound = BOUND.get(mean["word"], mean["word"])
        cells["p of the mean"] = f"{bracketed(mean['p'])}, {bound}"
    cells["p of one network"] = bracketed(one["p"]) if "p" in one else "undecided"
    return cells


def _alike(numbers: dict[str, Any]) -> str:
    flat = numbers["muon-10"]["one network"]["every network alike"]
    others = []
    for name in CASES:
        alike = numbers[name]["one network"].get("every network alike")
        if name != "muon-10" and alike:
            others.append(alike["value"])
    ends = f"{number(min(others))} to {number(max(others))}"
    return paragraph(
        '"p of one network": of the standard deviation over seeds. When every network weighs alike '
        f"(added later) it is {ends}, with 1/2 in all intervals, but for Muon after 10 steps, "
        f"{sentence(flat, level=LEVEL)}."
    )


def _costs(numbers: dict[str, Any]) -> list[Row]:
    table = list[Row]()
    for width in WIDTHS:
        cells: Row = {"width": f"{width:,}"}
        for name, words in CASES.items():
            row = where(numbers[name]["widths"], width=width)
            cells[words.replace(" steps", "").replace(" step", "")] = _cost(row["cost"]["value"])
        table.append(cells)
    cells = {"width": "64, mean of seeds"}
    for name, words in CASES.items():
        row = where(numbers[name]["widths"], width=64)
        cells[words.replace(" steps", "").replace(" step", "")] = _cost(row["cost of the mean's"])
    return [*table, cells]


def _cost(percent: float) -> str:
    """A cost with two digits."""
    if percent >= 10:
        return number(percent, ".0f")
    return number(percent, ".1f" if percent >= 1 else ".2f")


def _turn(numbers: dict[str, Any]) -> str:
    turn = sentence(numbers["sgd-1"]["one network"]["turn"], level=LEVEL)
    return paragraph(
        "**No change at 1,024 was seen**, from where the paper's curve falls much faster: exponents "
        f"of one network below and above it differ by {turn} under SGD after one step. Other cases "
        "decide nothing."
    )
