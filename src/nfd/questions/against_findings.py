"""The best rate against further settings in charts and tables."""

from __future__ import annotations

import math
from typing import Any

from nfd.core.estimates import mean
from nfd.core.tables import Row
from nfd.questions.against import RateAgainst
from nfd.questions.finding import Axes, Finding, columns, numbers
from nfd.questions.optimum import in_words, rate_in_words, rate_of
from nfd.questions.transfer import Transfer


def against_findings(transfer: Transfer) -> list[Finding]:
    """For every setting the best rate against it, and for every rule the losses against rate and setting."""
    findings = []
    for name in transfer.rules[0].against:
        answers = [answer.against[name] for answer in transfer]
        findings += [_rates(answers, transfer), *(_losses(answer, transfer) for answer in answers)]
    return findings


def against_result(answer: RateAgainst) -> dict[str, Any]:
    """One setting as ``result.json`` holds it."""
    assumed = answer.axis.assumed
    return {
        "setting": answer.axis.name,
        "sentence": answer.sentence,
        "exponent": numbers(answer.exponent),
        "doublings": numbers(answer.moved),
        "assumed": None if assumed is None else vars(assumed),
        "agreement": answer.agreement,
        "optima": [
            {
                "width": n,
                "depth": L,
                answer.axis.name: value,
                f"log2_{answer.rate}": numbers(answer.optimum((n, L), value)),
            }
            for (n, L), value in answer.cells
        ],
    }


def _rates(answers: list[RateAgainst], transfer: Transfer) -> Finding:
    """The best rate at the largest size against one setting, a line per rule, and what is usually assumed."""
    axis, rate, size = answers[0].axis, answers[0].rate, answers[0].sizes[-1]
    drawn = [value for value in axis.values if value > 0 or not axis.has_exponent]
    return Finding(
        f"rate-{axis.name}",
        f"How does the best learning rate follow {axis.name}?",
        " ".join(answer.sentence for answer in answers),
        [
            {"series": answer.rule, axis.name: value} | columns(rate, rate_of(answer.optimum(size, value)))
            for answer in answers
            for value in drawn
            if (size, value) in answer.inside
        ],
        Axes(axis.name, rate, axis.name, f"best {rate}", "logarithmic" if axis.has_exponent else "linear"),
        f"At {in_words(size)}. Bars: 95 % intervals. {transfer.about}",
        table=[_line(answer, value) for answer in answers for value in axis.values],
        references=[row for answer in answers for row in _assumed(answer)],
    )


def _line(answer: RateAgainst, value: float) -> dict[str, str]:
    size = answer.sizes[-1]
    best, cell = answer.best(size, value), answer.cells[size, value]
    loss = mean(cell.scores[:, int(cell.typical.argmin())])
    return {
        "rule": answer.rule,
        answer.axis.name: f"{value:g}",
        f"best {answer.rate}": rate_in_words(best),
        "loss": loss.unsigned,
    }


def _assumed(answer: RateAgainst) -> list[Row]:
    """The assumed power through the middle of the best rates at the largest size."""
    axis, size = answer.axis, answer.sizes[-1]
    known = {value: answer.optimum(size, value).value for value in axis.values if value > 0}
    known = {value: place for value, place in known.items() if not math.isnan(place)}
    if axis.assumed is None or not known:
        return []
    middle = sum(place - axis.assumed.exponent * math.log2(value) for value, place in known.items()) / len(known)
    return [
        {
            "series": f"{axis.assumed.name}, {answer.rule}",
            axis.name: value,
            answer.rate: math.pow(2, middle + axis.assumed.exponent * math.log2(value)),
        }
        for value in (min(known), max(known))
    ]


def _losses(answer: RateAgainst, transfer: Transfer) -> Finding:
    """Losses against the rate at the largest size, a line per value of the setting."""
    name, size = answer.axis.name, answer.sizes[-1]
    cells = {value: answer.cells[size, value] for value in answer.axis.values}
    return Finding(
        f"loss-{answer.rule}-{name}",
        f"{answer.rule}: loss against the learning rate and {name}",
        answer.sentence,
        [
            {"series": f"{name} {value:g}", name: value, answer.rate: math.pow(2, log2_rate)}
            | columns("loss", mean(losses))
            for value, cell in cells.items()
            for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True)
        ],
        Axes(answer.rate, "loss", answer.rate, transfer.score, "semilogarithmic", zero=False, colour=name),
        f"At {in_words(size)}. Bars: 95 % intervals over seeds. {transfer.about}",
    )
