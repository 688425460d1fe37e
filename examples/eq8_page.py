"""The page of ``eq8.py``: tables and sentences from its numbers and from those of ``inner_layers_gpt.py``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inner_layers_gpt_page import NAMES, RULES, THEORY, UNIFORM, exponent, gain, others
from page_parts import bracketed, table

from nfd.core.files import write_text

Row = Mapping[str, Any]

DOCS = Path(__file__).parents[1] / "docs"
GPT = "inner-layers-gpt.json"
METERS = {
    "inner_update": "update of inner layers",
    "function_update_inner": "update of the function by inner layers",
    "stream_update": "update of the stream",
}
STEPS = (1, 100, 300)  # after which updates are shown
METRICS = {
    "train_loss": "training loss, nats",
    "test_loss": "test loss, nats",
    "test_accuracy": "test accuracy",
}

PAGE = """# How far Eq. 8 helps, and what it costs

Find out what the paper's cure for inner layers does at every depth, what it costs, and whether a multiplier of 1/L
(`complete-p`) does the same without that cost.

*Made by `python examples/eq8.py --data-dir DIR --store out/figures`, on {data}.
Networks with two-layer blocks, width {width}, depth {shallowest} to {deepest}, batches of 128, eta_c = {eta_c:g},
{seeds} seeds. Brackets hold 95 % intervals over seeds of the initial weights.*

{answers}

## What moves, by depth

With uniform rates, inner updates fall as 1/sqrt(L). Eq. 8 multiplies the rate of [inner](glossary.md#networks) layers
by sqrt(L), and `complete-p` takes the branch multiplier 1/L in place of 1/sqrt(L). The theory of the first step is
derived in [inner layers](mathematics/inner-layers.md). An exponent of 0 means that a number does not depend on depth.
Exponents of depth:

{exponents}

Exponents hide sizes. This is each number at depth {deepest}, divided by the number with uniform rates at that depth.
Theory for the first step of Eq. 8 is sqrt(L) = {root:.3g} for inner layers and for the function.

{ratios}

The price shows less and less in the function: as the loss falls, outputs come near their targets and cannot move
further at any rate. It shows in the best rate: from depth 8 to 256 the best rate of Eq. 8 falls by the power
-0.33 [-0.44, -0.21], those of uniform rates and of `complete-p` stay ([sweeps](sweeps.md#transfer)).

## What it is worth

Depth {depth}, {steps} steps, {deep_seeds} seeds (Fig. 5 h to j): Eq. 8 minus uniform rates, paired by seed. Most of
the gain at a small rate is the gain of a larger rate. The best uniform rate is the largest of the five that ran, so a
still larger one may narrow the difference.

{losses}

## On a GPT

A GPT over bytes of width {gpt_width}, trained for {gpt_steps} steps ([inner layers of a GPT](inner-layers-gpt.md)):
exponents after the first step, and the loss at depth {tuned} minus that of uniform rates, each at its best rate.

{gpt}

## What this page does not show

One width, one rate for the exponents, one order of the batches. `complete-p` was not tuned at depth {depth} here;
[sweeps](sweeps.md#transfer) tunes all three at depths 8 to 256 for 60 steps.
"""


def row_of(numbers: Row, rule: str, meter: str, step: int) -> Row:
    """The row of a rule, a meter and a step."""
    return next(row for row in numbers["updates"] if (row["rule"], row["meter"], row["step"]) == (rule, meter, step))


def exponents(numbers: Row) -> str:
    """Of every rule and meter, beside theory."""
    rows = []
    for rule, name in RULES.items():
        for meter, words in METERS.items():
            theory = THEORY[rule].get(meter, 0.0)
            cells = [bracketed(row_of(numbers, rule, meter, step)["exponent"]) for step in STEPS]
            rows.append([name, words, f"{theory:+.1f}", *cells])
    return table(["", "meter", "theory, step 1", *(f"step {step}" for step in STEPS)], rows)


def ratios(numbers: Row) -> str:
    """What moves at the largest depth, over what moves there with uniform rates."""
    rows = []
    for rule, name in RULES.items():
        for meter, words in METERS.items():
            if rule != UNIFORM:
                of_steps = [row_of(numbers, rule, meter, step)["ratio"] for step in STEPS]
                rows.append([name, words, *(bracketed(ratio, ".3g") for ratio in of_steps)])
    return table(["", "meter", *(f"step {step}" for step in STEPS)], rows)


def losses(numbers: Row) -> str:
    """Eq. 8 minus uniform rates in deep networks."""
    first, *_ = numbers["losses"]
    rates = ", ".join(f"{rate:g} for {RULES[rule]}" for rule, rate in first["rates"].items())
    head = ["", f"both at eta_c = {first['eta_c']:g}", f"each at its best ({rates})"]
    rows = [
        [METRICS[row["metric"]], *(bracketed(row[name], "+.4f") for name in ("same", "tuned"))]
        for row in numbers["losses"]
    ]
    return table(head, rows)


def gpt_table(answers: list[Row], tuned: int) -> str:
    """The same two meters of a GPT, and losses."""
    rows = []
    for answer in answers:
        measured = [bracketed(exponent(answer, meter, 1)) for meter in ("inner_update", "function_update_inner")]
        apart = "" if answer["rule"] == UNIFORM else bracketed(gain(answers, answer, tuned).limits, "+.3f")
        rows.append([f"{NAMES[answer['optimizer']]}, {RULES[answer['rule']]}", *measured, apart])
    head = ["", METERS["inner_update"], METERS["function_update_inner"], "loss minus that of uniform rates"]
    return table(head, rows)


def answers(numbers: Row, gpt: Row) -> str:
    """What the tables say, in sentences."""

    def power(rule: str, meter: str) -> str:
        return f"L^{bracketed(row_of(numbers, rule, meter, 1)['exponent'])}"

    eq8, complete = (rule for rule in RULES if rule != UNIFORM)
    deepest = row_of(numbers, eq8, "inner_update", 1)["depths"][-1]
    ratio = {rule: row_of(numbers, rule, "inner_update", 1)["ratio"] for rule in (eq8, complete)}
    moved = row_of(numbers, eq8, "function_update_inner", 1)["ratio"]
    loss, *_ = numbers["losses"]
    tuned = gpt["setting"]["depths"][-1]
    better = [a for a in others(gpt["answers"]) if gain(gpt["answers"], a, tuned).high < 0]
    said = f"{len(better)} of {len(others(gpt['answers']))}"
    return "\n".join(
        [
            f"- **It helps.** Inner updates of the first step go as {power(UNIFORM, 'inner_update')} with uniform "
            f"rates and as {power(eq8, 'inner_update')} with Eq. 8: {bracketed(ratio[eq8], '.3g')} times as far at "
            f"depth {deepest:g}.",
            f"- **It costs.** What inner layers do to the function goes as {power(eq8, 'function_update_inner')}: "
            f"{bracketed(moved, '.3g')} times as much as with uniform rates at depth {deepest:g}. A step of fixed "
            "eta_c moves deeper networks further, so no limit of infinite depth exists at fixed eta_c.",
            f"- **`complete-p` has both.** Its inner updates go as {power(complete, 'inner_update')} "
            f"({bracketed(ratio[complete], '.3g')} times those of uniform rates at depth {deepest:g}), and what they "
            f"do to the function as {power(complete, 'function_update_inner')}.",
            f"- **What it is worth.** At eta_c = {loss['eta_c']:g} Eq. 8 changes the training loss at depth "
            f"{numbers['deep']['depth']} by {bracketed(loss['same'], '+.3f')} nats, and by "
            f"{bracketed(loss['tuned'], '+.3f')} with each rule at its best rate. On a small GPT of depth {tuned}, "
            f"{said} trainings with a cure end at a significantly lower loss.",
        ]
    )


def write(folder: Path, name: str) -> None:
    """The page, into ``folder``."""
    numbers = json.loads((folder / name).read_text(encoding="utf-8"))
    gpt = json.loads((DOCS / GPT).read_text(encoding="utf-8"))
    depths = row_of(numbers, UNIFORM, "inner_update", 1)["depths"]
    text = PAGE.format(
        data=numbers["data"], width=numbers["width"], eta_c=numbers["eta_c"], seeds=numbers["seeds"],
        shallowest=f"{depths[0]:g}", deepest=f"{depths[-1]:g}", root=depths[-1] ** 0.5,
        answers=answers(numbers, gpt), exponents=exponents(numbers), ratios=ratios(numbers), losses=losses(numbers),
        depth=numbers["deep"]["depth"], steps=numbers["deep"]["steps"], deep_seeds=numbers["deep"]["seeds"],
        gpt=gpt_table(gpt["answers"], gpt["setting"]["depths"][-1]), gpt_width=gpt["setting"]["width"],
        gpt_steps=gpt["setting"]["steps"], tuned=gpt["setting"]["depths"][-1],
    )  # fmt: skip
    write_text(folder / name.replace(".json", ".md"), text)
