"""The page of ``inner_layers_gpt.py``: its tables, chart and sentences; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from page_parts import bracketed, table

from nfd.core.estimates import Interval, mean
from nfd.core.files import write_bytes, write_text
from nfd.core.findings import Axes
from nfd.report.charts import beside, points, styled

Row = Mapping[str, Any]

NAMES = {"adamw": "AdamW", "sgd": "SGD"}
RULES = {"depth-mup": "uniform rates", "depth-mup-inner": "Eq. 8", "complete-p": "complete-p"}
UNIFORM = "depth-mup"
POWER = "depth^-1/2"
THEORY = {  # exponents of depth: what inner layers move, and what that does to the function
    "depth-mup": {"inner_update": -0.5, "function_update_inner": 0.0},
    "depth-mup-inner": {"inner_update": 0.0, "function_update_inner": 0.5},
    "complete-p": {"inner_update": 0.0, "function_update_inner": 0.0},
}
METERS = {
    "inner_update": "update of inner layers",
    "function_update_inner": "update of the function by inner layers",
    "stream_update": "update of the stream",
    "function_update": "update of the function",
}

PAGE = """# Inner layers of a GPT: do they stop learning with depth?

Find out here whether the paper's prediction for two-layer blocks holds for a small Transformer: whether its inner
layers stop learning as it gets deeper, whether Eq. 8 and `complete-p` cure it, and what the cure is worth in loss.

*Made by `python examples/inner_layers_gpt.py`. Brackets hold 95 % intervals over {seeds} seeds.*

{answers}

## What was trained

The GPT of `examples/wide_gpt.py` at width {width}: pre-norm blocks of attention and a two-layer MLP. Inner layers
are those that read the stream: queries, keys, values, and the first matrix of the MLP. Each network takes {steps}
steps of 8 windows of 32 bytes at a constant rate. The loss is that of a file which no network is trained on.
Plans have their base at depth {base}.

## What moves in a step, by depth

Exponents of depth, from depth {shallowest} to {deepest}, at the best rate of depth {base}. Theory is that of
[inner layers](mathematics/inner-layers.md) for the first step.

![What the inner layers move in the first step, against depth, by rule and optimizer](images/inner-layers-gpt.png)

*Width {width}, {seeds} seeds; lines join means, bars hold 95 % intervals. Grey: the power -1/2 of depth.*

{exponents}

## What it is worth

The loss at the best rate of each depth, nats per byte. The rate of each seed is chosen by the other seeds, so that
the choice does not make the loss look lower.

{losses}

At depth {tuned}, minus the loss of uniform rates, seed by seed:

{differences}

How far the best rate moves, in doublings per doubling of depth:

{drifts}

## What this page does not show

{steps} steps of one small model on one kind of text. A longer training gives inner layers more time to matter. Depth
{tuned} is the deepest network that was tuned.
"""


def named(answer: Row) -> str:
    """Optimizer and rule."""
    return f"{NAMES[answer['optimizer']]}, {RULES[answer['rule']]}"


def exponent(answer: Row, meter: str, step: int) -> Row:
    """A row of the check."""
    return next(row for row in answer["exponents"] if (row["meter"], row["step"]) == (meter, step))


def exponents(answers: list[Row], steps: int) -> str:
    """Of every meter after the first step and the last, beside theory."""
    rows = []
    for answer in answers:
        for meter, words in METERS.items():
            theory = THEORY[answer["rule"]].get(meter)
            first, last = (exponent(answer, meter, step) for step in (1, steps))
            expected = "" if theory is None else f"{theory:+.1f}"
            rows.append([named(answer), words, expected, bracketed(first), bracketed(last), last["verdict"]])
    return table(["", "meter", "theory", "step 1", f"step {steps}", f"verdict at step {steps}"], rows)


def losses_of(answer: Row, depth: int | str) -> torch.Tensor:
    """By seed."""
    return torch.tensor(answer["losses"][str(depth)], dtype=torch.float64)


def losses(answers: list[Row]) -> str:
    """At the best rate, by depth."""
    depths = list(answers[0]["losses"])
    rows = [[named(a), *(bracketed(mean(losses_of(a, L)).limits, ".3f") for L in depths)] for a in answers]
    return table(["", *(f"depth {depth}" for depth in depths)], rows)


def gain(answers: list[Row], answer: Row, depth: int) -> Interval:
    """The loss of a rule minus that of uniform rates, of the same seeds."""
    uniform = next(a for a in answers if (a["optimizer"], a["rule"]) == (answer["optimizer"], UNIFORM))
    return mean(losses_of(answer, depth) - losses_of(uniform, depth))


def others(answers: list[Row]) -> list[Row]:
    """The cures."""
    return [answer for answer in answers if answer["rule"] != UNIFORM]


def sentence(answers: list[Row], answer: Row, steps: int, depth: int) -> str:
    """What one rule does under one optimizer."""
    first, last = (exponent(answer, "inner_update", step) for step in (1, steps))
    moved = exponent(answer, "function_update_inner", 1)
    text = (
        f"- **{named(answer)}**: inner updates scale with depth by the power {bracketed(first)} at step 1 and "
        f"{bracketed(last)} at step {steps}; their effect on the function by {bracketed(moved)} at step 1."
    )
    if answer["rule"] == UNIFORM:
        return text
    difference = gain(answers, answer, depth)
    word = "is lower" if difference.high < 0 else "is higher" if difference.low > 0 else "does not differ significantly"
    return f"{text} At depth {depth} its loss {word}: {bracketed(difference.limits, '+.3f')} nats."


def chart(answers: list[Row]) -> bytes:
    """What inner layers move in the first step against depth, a panel for each optimizer, as PNG."""
    axes = Axes("depth", "value", "depth (blocks)", "inner update, first step (RMS)", "logarithmic")
    panels = {}
    for optimizer in dict.fromkeys(answer["optimizer"] for answer in answers):
        own = {answer["rule"]: answer["inner"] for answer in answers if answer["optimizer"] == optimizer}
        rows = [{"series": RULES[rule], **row} for rule, moved in own.items() for row in moved]
        first, *_ = own[UNIFORM]
        guide = [
            {"series": POWER, "depth": row["depth"], "value": first["value"] * (row["depth"] / first["depth"]) ** -0.5}
            for row in own[UNIFORM]
        ]
        panels[NAMES[optimizer]] = points(rows, styled(rows, axes), axes, guide)
    return beside(panels)[1]


def write(folder: Path, numbers: str) -> None:
    """The page and its chart, into ``folder``."""
    known = json.loads((folder / numbers).read_text())
    setting, answers = known["setting"], known["answers"]
    steps, tuned, deepest = setting["steps"], setting["depths"][-1], setting["deeper"][-1]
    images = folder / "images"  # of docs
    write_bytes((images if images.is_dir() else folder) / "inner-layers-gpt.png", chart(answers))
    text = PAGE.format(
        seeds=setting["seeds"], width=setting["width"], steps=steps, base=setting["depths"][0], tuned=tuned,
        shallowest=setting["deeper"][0], deepest=deepest,
        answers="\n".join(sentence(answers, answer, steps, tuned) for answer in answers),
        exponents=exponents(answers, steps),
        losses=losses(answers),
        differences="\n".join(
            f"- {named(a)}: {bracketed(gain(answers, a, tuned).limits, '+.3f')}" for a in others(answers)
        ),
        drifts="\n".join(f"- {named(answer)}: {bracketed(answer['drift'])}" for answer in answers),
    )  # fmt: skip
    write_text(folder / numbers.replace(".json", ".md"), text)
