"""Best learning rates, their drift and their regret in charts and in ``result.json``."""

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
    """Chart the best rate against depth, width and further settings.

    For every rule there is also a chart of the loss against the rate.
    """
    findings = list[Finding]()
    for axis in reversed(AXES):
        if any(axis in answer.drifts for answer in transfer):
            findings.append(_drift(transfer, axis))
    for answer in transfer:
        has_depths = len({depth for _, depth in answer.cells}) > 1
        along: Axis = "depth" if has_depths else "width"
        cells = {f"{along} {x:g}": cell for x, cell in answer.along(along).items()}
        chart = _losses(answer, cells, transfer)
        findings.append(replace(chart, caption=f"{_held(answer, along)} {chart.caption}"))
    for setting in transfer.rules[0].against if transfer.rules else ():
        findings.append(_against([answer.against[setting] for answer in transfer], transfer))
    return findings


def hero(transfer: Transfer) -> list[Finding]:
    """Chart the smallest network beside the largest, under two rules.

    The charts show the loss that is lost by tuning the smallest.
    """
    findings = list[Finding]()
    for answer in transfer.rules[:1] + transfer.rules[1:][-1:]:
        sizes = list(answer.cells)
        cells = {in_words(size): answer.cells[size] for size in (sizes[0], sizes[-1])}
        chart = _losses(answer, cells, transfer)
        hero_chart = replace(
            chart,
            name=answer.rule,
            headline="",
            axes=replace(chart.axes, colour="series"),
            caption="Bars: 95 % intervals. Diamonds below: best rates.",
            table=[],
            marks=_marks(answer),
        )
        findings.append(hero_chart)
    return findings


def _cost(answer: RuleTransfer) -> str:
    """What tuning the smallest network costs, for a title."""
    if answer.regret is None:
        return "loss against the learning rate"
    loss = answer.regret.loss
    if not loss.resolved:
        return "tuning small costs nothing measurable"
    return f"tuning small costs {loss.value:.2g} nats"


def _marks(answer: RuleTransfer) -> list[Row]:
    """Mark the loss of the largest network at the smallest one's best rate.

    A line leads down to its loss at its own best rate.
    """
    if answer.regret is None or not answer.regret.loss.resolved:
        return []
    lr = float(np.exp2(answer.regret.new.log2_eta[0]))
    high, low = answer.regret.new.scores.mean(0).tolist()
    return [{"lr": lr, "loss": high, "low": low, "high": high, "text": f"{high - low:+.2g} nats"}]


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """Return the rules as ``result.json`` holds them."""
    rules = list[dict[str, Any]]()
    for answer in answers:
        drift = {axis: numbers(answer.drifts.get(axis)) for axis in AXES}
        rules.append(
            {
                "rule": answer.rule,
                "verdict": answer.verdict,
                "sentence": str(answer),
                "drift": drift,
            }
        )
    return rules


# ---- Charts


def _drift(transfer: Transfer, axis: Axis) -> Finding:
    """Chart the best rate along one axis, the other at its largest."""
    rules_by_trend = dict[str, list[str]]()
    drifts = list[str]()
    rows = list[Row]()
    for answer in transfer:
        trend = _trend(answer.drifts.get(axis, UNKNOWN))
        rules_by_trend.setdefault(trend, []).append(answer.rule)
        if axis in answer.drifts:
            drifts.append(f"{answer.rule} {answer.drifts[axis]}")
        for x, cell in answer.along(axis).items():
            if cell.has_optimum:
                rows.append({"series": answer.rule, axis: x} | columns("lr", cell.rate()))
    trends = [f"{trend} under {listed(rules)}" for trend, rules in rules_by_trend.items()]
    return Finding(
        axis,
        f"With {axis} the best rate {', '.join(trends)}",
        f"Doublings of the best lr per doubling of {axis}: {'; '.join(drifts)}.",
        rows,
        Axes(axis, "lr", axis, "best lr", "logarithmic", order=_order(transfer)),
        f"{_held(transfer.rules[0], axis)} Bars: 95 % intervals. {transfer.about}",
    )


def _trend(drift: Interval) -> str:
    """What a best rate does, for a title."""
    if drift.high < 0:
        return "falls"
    return "rises" if drift.low > 0 else "has no clear trend"


def _order(transfer: Transfer) -> tuple[str, ...]:
    """Return the rules in an order that gives each its colour in every chart."""
    return tuple(dict.fromkeys([*RULES, *(answer.rule for answer in transfer)]))


def _losses(answer: RuleTransfer, cells: Mapping[str, Scores], transfer: Transfer) -> Finding:
    """Chart loss against rate under one rule, a line per cell, and below it the best rates."""
    rows = list[Row]()
    best_rates = list[Row]()
    table = list[dict[str, str]]()
    for index, (name, cell) in enumerate(cells.items()):
        for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True):
            place = {"series": name, "size": index, "lr": math.pow(2, log2_rate)}
            rows.append(place | columns("loss", mean(losses)))
        table.append({"network": name, "best lr": rate_in_words(cell.rate())})
        if cell.has_optimum:
            best_rates.append({"series": name} | columns("lr", cell.rate()))
    return Finding(
        f"loss-{answer.rule}",
        f"{answer.rule}: {_cost(answer)}",
        str(answer),
        rows,
        Axes("lr", "loss", "lr", transfer.score, "semilogarithmic", zero=False, colour="size"),
        f"Bars: 95 % intervals, over seeds; diamonds below: best rates. {transfer.about}",
        table=table,
        best=best_rates,
    )


def _against(answers: Sequence[RateAgainst], transfer: Transfer) -> Finding:
    """Chart the best rate at the largest size against one setting, a line per rule."""
    setting = answers[0].setting
    size = answers[0].sizes[-1]
    trends = list[str]()
    rows = list[Row]()
    for answer in answers:
        trends.append(f"{answer.rule}: the best rate {_trend(answer.exponent)} with {setting}")
        for value in answer.values:
            cell = answer.cells[size, value]
            # A logarithmic axis has no place for 0.
            if cell.has_optimum and value > 0:
                place = {"series": answer.rule, setting: value}
                rows.append(place | columns("lr", cell.rate()))
    return Finding(
        f"rate-{setting}",
        "; ".join(trends),
        " ".join(answer.sentence for answer in answers),
        rows,
        Axes(setting, "lr", setting, "best lr", "logarithmic", order=_order(transfer)),
        f"At {in_words(size)}. Bars: 95 % intervals. {transfer.about}",
    )


def _held(answer: RuleTransfer, axis: Axis) -> str:
    """Say at which size the other axis is held."""
    place = 1 - AXES.index(axis)
    return f"At {AXES[place]} {max(size[place] for size in answer.cells)}."
