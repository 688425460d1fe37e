"""The page of ``open_settings.py``: what the paper leaves open, and what the gap is under every choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_parts import bracketed, table

from nfd.core.files import write_text

Row = Mapping[str, Any]

NONE = 0.05  # of the progress: a gap within is none, as claim corollary1-trained has it
LEARNT = 0.05  # nats: a network that learns less has no gap to compare
OPEN = (  # the setting, the figures that leave it open, what we take, what else ran and where
    ("epochs", "1, 2, 4, 5 d to j, 7", "1; 2 in Figs. 2 a, b and 5 h to j", "3: below, and in Fig. 5 d"),
    ("steps", "6", "500", "every 50 steps up to there: Fig. 6 c, d"),
    ("T", "all but 2", "1", "0.5 and 2: below; 0.5 to 4: [two limits](two-limits.md)"),
    ("activation", "3, 4, 6, 7", "relu", "tanh: below, and Fig. 3 a, b; gelu, erf: [two limits](two-limits.md)"),
    ("depths", "1 a, 2 c and d, 4, 5 a to c, 7", "see [figures](figures.md)", "depth 64 for the claims of Fig. 4 c"),
    ("widths", "1 a, 5 d to g", "128; 64 and 128", "none"),
    ("seeds", "1, 3, 4, 5, 7", "3 to 12", "up to 40 where a claim needs them ([open statements](undecided.md))"),
    ("what LR is", "all but 5 a to c", "eta_c", "eta: below"),
    ("rates", "5 d to j", "a grid of ten, of five", "all of the grid: Fig. 5 d to g; claims compare the best ones"),
    ("the decoupled copy", "4, 7", "gets the updates of the forward weights", "is never updated: below"),
    ("loss", "all", "cross-entropy, mean over the batch", "squared and logistic: [two limits](two-limits.md)"),
    ("outputs", "all", "10, scaled by 1/n", "1: [two limits](two-limits.md)"),
    ("inputs", "all", "normalised per channel", "none"),
    ("order of the batches", "all", "the same for all seeds", "a second one: below"),
    ("momentum", "all", "none", "0.9: below"),
)  # fmt: skip

PAGE = """# Settings that the paper leaves open

Find out whether a verdict depends on a setting that the paper does not state: how long it trains, at which T, with
which loss.

*Made by `python examples/open_settings.py --data-dir DIR --store out/figures`. Brackets hold 95 % intervals over
{seeds} seeds of the initial weights.*

{answers}

## What is left open, and what ran

{open}

## The gap under every choice

The comparison of Fig. 4 c: standard and [decoupled](glossary.md#networks) depth-muP networks of width {width} on
{data}, {steps} steps of 128 unless a row says otherwise. The paper expects both to train alike in deep networks.

The gap is the decoupled training loss minus the standard one, over the second half of training. It is divided by the
progress of the standard network, which is log 10 minus its loss. Each row changes one setting of the first.

{rows}

Progress is that of depth {deepest}. A gap within {none:g} counts as none. The exponent is that of the gap in depth: it
would be -1/2 if outputs came closer as the paper's rates say. The last column is the change of the final training loss
of standard networks from depth {shallowest} to {deepest}.

## What this page does not show

One setting is changed at a time. Other statements of the [claims](claims.md) were not judged under every choice.
"""


def learns(row: Row) -> bool:
    """Whether the networks learn enough to be compared."""
    return bool(row["progress"]["low"] > LEARNT)


def line(row: Row) -> list[str]:
    """A choice, as a line of the table."""
    gaps = [bracketed(gap, "+.3f") for gap in row["gaps"]] + [bracketed(row["exponent"])]
    middle = gaps if learns(row) else ["learns too little"] * len(gaps)
    return [row["setting"], row["value"], bracketed(row["progress"], ".3f"), *middle, bracketed(row["gain"], "+.4f")]


def answers(rows: Sequence[Row], deepest: int) -> str:
    """How many choices agree with the verdicts of the claims."""
    compared = [row for row in rows if learns(row)]
    stays = [row for row in compared if row["gaps"][-1]["low"] > NONE]
    shrinks = [row for row in compared if row["exponent"]["high"] < 0]
    less = _named("The interval reaches below that with", [row for row in compared if row not in stays])
    few = _named("Networks learn too little to be compared with", [row for row in rows if not learns(row)])
    return (
        f"- With {len(stays)} of {len(compared)} choices the whole interval of the gap at depth {deepest} lies above "
        f"{NONE:g} of the progress.{less}{few}\n"
        f"- With {len(shrinks)} of {len(compared)} choices the gap shrinks significantly with depth."
        f"{_named('It does with', shrinks)}"
    )


def _named(start: str, rows: Sequence[Row]) -> str:
    return f" {start} {'; '.join(row['value'] for row in rows)}." if rows else ""


def write(folder: Path, name: str) -> None:
    """The page, into ``folder``."""
    numbers = json.loads((folder / name).read_text(encoding="utf-8"))
    rows, (shallowest, deepest) = numbers["rows"], numbers["depths"]
    gaps = [f"gap, depth {depth}" for depth in numbers["depths"]]
    text = PAGE.format(
        seeds=numbers["seeds"], width=numbers["width"], data=numbers["data"], steps=numbers["steps"],
        shallowest=shallowest, deepest=deepest, none=NONE, answers=answers(rows, deepest),
        open=table(["setting", "left open in Figs.", "we take", "also ran"], OPEN),
        rows=table(["setting", "value", "progress", *gaps, "exponent", "what depth changes"], list(map(line, rows))),
    )  # fmt: skip
    write_text(folder / name.replace(".json", ".md"), text)
