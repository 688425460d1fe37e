"""Best rates, their drift and their regret in charts and in ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.findings import Axes, Finding, columns, numbers
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.core.words import listed
from nfd.laws.best_rate import Scores, in_words, rate_in_words
from nfd.laws.rate_against import RateAgainst
from nfd.laws.rule_transfer import RuleTransfer
from nfd.laws.transfer import Transfer
from nfd.scaling.rules import RULES


def transfer_findings(transfer: Transfer) -> list[Finding]:
    """The best rate against depth, width and further settings, and for every rule the loss against
    the rate.
    """
    findings = [
        _drift(transfer, axis)
        for axis in reversed(AXES)
        if any(axis in answer.drifts for answer in transfer)
    ]
    for answer in transfer:
        axis: Axis = "depth" if len({depth for _, depth in answer.cells}) > 1 else "width"
        cells = {f"{axis} {x:g}": cell for x, cell in answer.along(axis).items()}
        title = f"{answer.rule}: {_lost(answer)}"
        held = _held(answer, axis)
        findings.append(_losses(f"loss-{answer.rule}", title, cells, held, transfer, str(answer)))
    for name in transfer.rules[0].against if transfer.rules else ():
        findings.append(_against([answer.against[name] for answer in transfer], transfer))
    return findings


def hero(transfer: Transfer) -> list[Finding]:
    """The smallest network beside the largest under two rules, with the loss that is lost by tuning
    the smallest.
    """
    found = []
    for answer in transfer.rules[:1] + transfer.rules[1:][-1:]:
        sizes = [*answer.cells]
        cells = {
            in_words(size): answer.cells[size] for size in dict.fromkeys((sizes[0], sizes[-1]))
        }
        shown = _losses(answer.rule, f"{answer.rule}: {_lost(answer)}", cells, "", transfer, "")
        axes = replace(shown.axes, colour="series")
        caption = "Bars: 95 % intervals. Diamonds below: best rates."
        found.append(replace(shown, axes=axes, caption=caption, marks=_marks(answer), table=[]))
    return found


def _lost(answer: RuleTransfer) -> str:
    """What tuning the smallest network costs, for a title."""
    if answer.regret is None:
        return "loss against the learning rate"
    loss = answer.regret.loss
    return (
        f"tuning small costs {loss.value:.2g} nats"
        if loss.resolved
        else "tuning small costs nothing measurable"
    )


def _marks(answer: RuleTransfer) -> list[Row]:
    """The loss of the largest network at the smallest one's best rate, down to that at its own."""
    if answer.regret is None or not answer.regret.loss.resolved:
        return []
    (lr, _) = np.exp2(answer.regret.new.log2_eta)
    (lost, own) = answer.regret.new.scores.mean(0)
    place = {"lr": float(lr), "loss": float(lost), "low": float(own), "high": float(lost)}
    return [place | {"text": f"{lost - own:+.2g} nats"}]


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """The rules as ``result.json`` holds them."""
    return [
        {"rule": answer.rule, "verdict": answer.verdict, "sentence": str(answer)}
        | {"drift": {axis: numbers(answer.drifts.get(axis)) for axis in AXES}}
        for answer in answers
    ]


# ---- Charts


def _drift(transfer: Transfer, axis: Axis) -> Finding:
    """The best rate along one axis, the other at its largest."""
    drifts = [
        f"{answer.rule} {answer.drifts[axis]}" for answer in transfer if axis in answer.drifts
    ]
    words = dict[str, list[str]]()
    for answer in transfer:
        words.setdefault(_trend(answer.drifts.get(axis, UNKNOWN)), []).append(answer.rule)
    return Finding(
        axis,
        f"With {axis} the best rate "
        f"{', '.join(f'{word} under {listed(own)}' for word, own in words.items())}",
        f"Doublings of the best lr per doubling of {axis}: {'; '.join(drifts)}.",
        [
            {"series": answer.rule, axis: x} | columns("lr", cell.rate())
            for answer in transfer
            for x, cell in answer.along(axis).items()
            if cell.has_optimum
        ],
        Axes(axis, "lr", axis, "best lr", "logarithmic", order=_order(transfer)),
        f"{_held(transfer.rules[0], axis)} Bars: 95 % intervals. {transfer.about}",
    )


def _trend(drift: Interval) -> str:
    """What a best rate does, for a title."""
    return "falls" if drift.high < 0 else "rises" if drift.low > 0 else "has no clear trend"


def _order(transfer: Transfer) -> tuple[str, ...]:
    """The rules in an order that gives each its colour in every chart."""
    return tuple(dict.fromkeys([*RULES, *(answer.rule for answer in transfer)]))


def _losses(
    name: str, title: str, cells: Mapping[str, Scores], held: str, transfer: Transfer, headline: str
) -> Finding:
    """Loss against rate, a line per cell, and below it the best rates."""
    rows: list[Row] = [
        {"series": x, "size": k, "lr": math.pow(2, log2_rate)} | columns("loss", mean(losses))
        for k, (x, cell) in enumerate(cells.items())
        for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True)
    ]
    return Finding(
        name,
        title,
        headline,
        rows,
        Axes("lr", "loss", "lr", transfer.score, "semilogarithmic", zero=False, colour="size"),
        f"{held} Bars: 95 % intervals, over seeds; diamonds below: best rates. {transfer.about}",
        table=[{"network": x, "best lr": rate_in_words(cell.rate())} for x, cell in cells.items()],
        best=[
            {"series": x} | columns("lr", cell.rate())
            for x, cell in cells.items()
            if cell.has_optimum
        ],
    )


def _against(answers: Sequence[RateAgainst], transfer: Transfer) -> Finding:
    """The best rate at the largest size against one setting, a line per rule."""
    setting = answers[0].setting
    size = answers[0].sizes[-1]
    return Finding(
        f"rate-{setting}",
        "; ".join(
            f"{answer.rule}: the best rate {_trend(answer.exponent)} with {setting}"
            for answer in answers
        ),
        " ".join(answer.sentence for answer in answers),
        [
            {"series": answer.rule, setting: value}
            | columns("lr", answer.cells[size, value].rate())
            for answer in answers
            for value in answer.values
            if answer.cells[size, value].has_optimum and value > 0
        ],
        Axes(setting, "lr", setting, "best lr", "logarithmic", order=_order(transfer)),
        f"At {in_words(size)}. Bars: 95 % intervals. {transfer.about}",
    )


def _held(answer: RuleTransfer, axis: Axis) -> str:
    """The size of the other axis."""
    place = 1 - AXES.index(axis)
    return f"At {AXES[place]} {max(size[place] for size in answer.cells)}."
