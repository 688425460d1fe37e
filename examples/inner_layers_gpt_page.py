"""The page of ``inner_layers_gpt.py``: its tables, chart and sentences; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import torch
from page_parts import bracketed, table

from nfd.core.files import write_text
from nfd.core.statistics import Interval, mean
from nfd.report.series import COLOURS

Row = Mapping[str, Any]

NAMES = {"adamw": "AdamW", "sgd": "SGD"}
RULES = {"depth-mup": "uniform rates", "depth-mup-inner": "Eq. 8", "complete-p": "complete-p"}
UNIFORM = "depth-mup"
LABEL_GAP = 1.25
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

*Width {width}, {seeds} seeds; lines join means, bars hold 95 % intervals. Dotted: the power -1/2 of depth.*

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


def apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, moved up where one would lie over the next."""
    moved: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row["value"]):
        least = LABEL_GAP * moved[-1]["value"] if moved else 0.0
        moved.append({**row, "value": max(row["value"], least)})
    return moved


def chart(answers: list[Row]) -> alt.HConcatChart:
    """What inner layers move in the first step against depth, a panel for each optimizer."""
    colour = alt.Color(
        "rule:N", title=None, sort=list(RULES.values()),
        scale=alt.Scale(domain=list(RULES.values()), range=list(COLOURS[: len(RULES)])), legend=None,
    )  # fmt: skip

    def panel(optimizer: str) -> alt.LayerChart:
        own = [answer for answer in answers if answer["optimizer"] == optimizer]
        rows = [{"rule": RULES[answer["rule"]], **row} for answer in own for row in answer["inner"]]
        depths = sorted({row["depth"] for row in rows})
        start = next(row for row in rows if row["rule"] == RULES[UNIFORM])
        guide = [{"depth": L, "value": start["value"] * (L / start["depth"]) ** -0.5} for L in depths]
        across = alt.X(
            "depth:Q", title="depth (blocks)", axis=alt.Axis(values=depths, grid=False),
            scale=alt.Scale(type="log", base=2, domain=[depths[0], depths[-1] * 2.4]),
        )  # fmt: skip
        up = alt.Y("value:Q", title="inner update, first step (RMS)", scale=alt.Scale(type="log"))
        base = alt.Chart(alt.Data(values=rows)).encode(x=across, color=colour)
        ends = alt.Chart(alt.Data(values=apart([row for row in rows if row["depth"] == depths[-1]])))
        return alt.layer(
            alt.Chart(alt.Data(values=guide)).mark_line(strokeDash=[2, 3], color="grey").encode(x=across, y=up),
            base.mark_line().encode(y=up),
            base.mark_rule().encode(y="low:Q", y2="high:Q"),
            base.mark_point(filled=True, size=50, opacity=1).encode(y=up, shape=alt.Shape("rule:N", legend=None)),
            ends.mark_text(align="left", dx=8).encode(x=across, y=up, color=colour, text="rule:N"),
        ).properties(title=NAMES[optimizer], width=300, height=240)

    return alt.hconcat(*(panel(optimizer) for optimizer in dict.fromkeys(a["optimizer"] for a in answers)))


def write(folder: Path, numbers: str) -> None:
    """The page and its chart, into ``folder``."""
    known = json.loads((folder / numbers).read_text())
    setting, answers = known["setting"], known["answers"]
    steps, tuned, deepest = setting["steps"], setting["depths"][-1], setting["deeper"][-1]
    images = folder / "images"  # of docs
    chart(answers).save((images if images.is_dir() else folder) / "inner-layers-gpt.png", scale_factor=2)
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
