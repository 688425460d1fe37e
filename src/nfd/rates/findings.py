"""Best rates, their drift and their regret in charts and in ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nfd.core.errors import AXES, Axis
from nfd.core.estimates import mean
from nfd.core.files import Axes, Finding, columns, numbers
from nfd.core.tables import Row
from nfd.rates.optimum import Scores, in_words, rate_in_words
from nfd.rates.transfer import RateAgainst, RuleTransfer, Transfer


def transfer_findings(transfer: Transfer) -> list[Finding]:
    """The best rate against depth, width and further settings, and for every rule the loss against the rate."""
    findings = [_drift(transfer, axis) for axis in reversed(AXES) if any(axis in answer.drifts for answer in transfer)]
    for answer in transfer:
        axis: Axis = "depth" if len({depth for _, depth in answer.cells}) > 1 else "width"
        name, title = f"loss-{answer.rule}", f"{answer.rule}: loss against the learning rate"
        held = _held(answer, axis)
        findings.append(_losses(name, title, axis, answer.along(axis), held, transfer, str(answer)))
    for name in transfer.rules[0].against if transfer.rules else ():
        findings.append(_against([answer.against[name] for answer in transfer], transfer))
    return findings


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """The rules as ``result.json`` holds them."""
    return [
        {"rule": answer.rule, "verdict": answer.verdict, "sentence": str(answer)}
        | {"drift": {axis: numbers(answer.drifts.get(axis)) for axis in AXES}}
        for answer in answers
    ]


# ---- Charts ----------------------------------------------------------------------------------------------------------


def _drift(transfer: Transfer, axis: Axis) -> Finding:
    """The best rate along one axis, the other at its largest."""
    drifts = [f"{answer.rule} {answer.drifts[axis]}" for answer in transfer if axis in answer.drifts]
    return Finding(
        axis,
        f"Does the best learning rate move with {axis}?",
        f"Doublings of the best lr per doubling of {axis}: {'; '.join(drifts)}.",
        [
            {"series": answer.rule, axis: x} | columns("lr", cell.rate())
            for answer in transfer
            for x, cell in answer.along(axis).items()
            if cell.has_optimum
        ],
        Axes(axis, "lr", axis, "best lr", "logarithmic"),
        f"{_held(transfer.rules[0], axis)} Bars: 95 % intervals. {transfer.about}",
    )


def _losses(
    name: str, title: str, axis: str, cells: Mapping[Any, Scores], held: str, transfer: Transfer, headline: str
) -> Finding:
    """Loss against rate, a line per value of an axis."""
    rows: list[Row] = [
        {"series": f"{axis} {x:g}", axis: x, "lr": math.pow(2, log2_rate)} | columns("loss", mean(losses))
        for x, cell in cells.items()
        for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True)
    ]
    return Finding(
        name,
        title,
        headline,
        rows,
        Axes("lr", "loss", "lr", transfer.score, "semilogarithmic", zero=False, colour=axis),
        f"{held} Bars: 95 % intervals over seeds. {transfer.about}",
        table=[{axis: f"{x:g}", "best lr": rate_in_words(cell.rate())} for x, cell in cells.items()],
    )


def _against(answers: Sequence[RateAgainst], transfer: Transfer) -> Finding:
    """The best rate at the largest size against one setting, a line per rule."""
    setting, size = answers[0].setting, answers[0].sizes[-1]
    return Finding(
        f"rate-{setting}",
        f"How does the best learning rate follow {setting}?",
        " ".join(answer.sentence for answer in answers),
        [
            {"series": answer.rule, setting: value} | columns("lr", answer.cells[size, value].rate())
            for answer in answers
            for value in answer.values
            if answer.cells[size, value].has_optimum and value > 0
        ],
        Axes(setting, "lr", setting, "best lr", "logarithmic"),
        f"At {in_words(size)}. Bars: 95 % intervals. {transfer.about}",
    )


def _held(answer: RuleTransfer, axis: Axis) -> str:
    """The size of the other axis."""
    place = 1 - AXES.index(axis)
    return f"At {AXES[place]} {max(size[place] for size in answer.cells)}."
