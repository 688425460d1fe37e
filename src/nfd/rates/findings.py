"""Best rates, their drift and their regret in charts, tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nfd.core.estimates import mean
from nfd.core.findings import Axes, Finding, columns, numbers
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.rates.optimum import Scores, in_words, rate_in_words, rate_of, signed
from nfd.rates.transfer import RateAgainst, Recommendation, RuleTransfer, Transfer


def transfer_findings(transfer: Transfer) -> list[Finding]:
    """The best rate against depth, width and further settings, and for every rule the loss against the rate."""
    findings = [_drift(transfer, axis) for axis in reversed(AXES) if any(axis in answer.drifts for answer in transfer)]
    for answer in transfer:
        axis: Axis = "depth" if len({depth for _, depth in answer.cells}) > 1 else "width"
        along = answer.along(axis)
        cells = {x: answer.cells[size] for x, size in along.items()}
        name, held = f"loss-{answer.rule}", _held(answer, axis)
        findings.append(_losses(name, f"{answer.rule}: loss against the learning rate", axis, cells, held, transfer,
                                answer.sentence, marked=True))  # fmt: skip
    for name in transfer.rules[0].against:
        answers = [answer.against[name] for answer in transfer]
        findings.append(_against(answers, transfer))
        for against in answers:
            size = against.sizes[-1]
            own = {value: against.cells[size, value] for value in against.axis.values}
            title = f"{against.rule}: loss against the learning rate and {name}"
            findings.append(_losses(f"loss-{against.rule}-{name}", title, name, own, f"At {in_words(size)}.", transfer,
                                    against.sentence))  # fmt: skip
    return findings


def table(answers: Sequence[RuleTransfer]) -> list[dict[str, str]]:
    """One line per rule."""
    lines = []
    for answer in answers:
        sizes = [*answer.cells]
        line = {"rule": answer.rule}
        for name, size in (("smallest", sizes[0]), ("largest", sizes[-1])):
            line[f"best lr, {name}"] = rate_in_words(rate_of(answer.optimum(size)))
            line[f"loss, {name}"] = answer.loss(size).unsigned
        line |= {f"drift per doubling of {axis}": signed(drift) for axis, drift in answer.drifts.items()}
        if answer.regret is not None:
            line |= {"regret (nats)": str(answer.regret.loss), "verdict": answer.verdict}
        lines.append(line)
    return lines


# ---- As result.json holds them ---------------------------------------------------------------------------------------


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """The rules, with their best rates against further settings."""
    return [
        {
            "rule": answer.rule,
            "verdict": answer.verdict,
            "sentence": answer.sentence,
            "drift": {axis: numbers(answer.drifts.get(axis)) for axis in AXES},
            "regret": numbers(None if answer.regret is None else answer.regret.loss),
            "regret_share": numbers(None if answer.regret is None else answer.regret.share),
            "doubt": str(answer.doubt),
            "against": [_against_result(against) for against in answer.against.values()],
            "optima": [
                {"width": n, "depth": L, "log2_lr": numbers(answer.optimum((n, L)))}
                | {"loss": numbers(answer.loss((n, L)))}
                for n, L in answer.cells
            ],
        }
        for answer in answers
    ]


def _against_result(answer: RateAgainst) -> dict[str, Any]:
    assumed, name = answer.axis.assumed, answer.axis.name
    return {
        "setting": name,
        "sentence": answer.sentence,
        "exponent": numbers(answer.exponent),
        "doublings": numbers(answer.moved),
        "assumed": None if assumed is None else vars(assumed),
        "agreement": answer.agreement,
        "optima": [
            {"width": n, "depth": L, name: value, "log2_lr": numbers(answer.optimum((n, L), value))}
            for (n, L), value in answer.cells
        ],
    }


def advice(recommendation: Recommendation) -> dict[str, Any]:
    """The recommendation."""
    kept = {name: getattr(recommendation, name) for name in ("kind", "rule", "sentence")}
    return kept | {"lr": numbers(recommendation.rate)}


# ---- Charts ----------------------------------------------------------------------------------------------------------


def _drift(transfer: Transfer, axis: Axis) -> Finding:
    """The best rate along one axis, the other at its largest."""
    drifts = [f"{answer.rule} {signed(answer.drifts[axis])}" for answer in transfer if axis in answer.drifts]
    return Finding(
        axis,
        f"Does the best learning rate move with {axis}?",
        f"Doublings of the best lr per doubling of {axis}: {'; '.join(drifts)}.",
        [
            {"series": answer.rule, axis: x} | columns("lr", rate_of(answer.optimum(size)))
            for answer in transfer
            for x, size in answer.along(axis).items()
            if size in answer.inside
        ],
        Axes(axis, "lr", axis, "best lr", "logarithmic"),
        f"{_held(transfer.rules[0], axis)} Bars: 95 % intervals. {transfer.about}",
    )


def _losses(
    name: str,
    title: str,
    axis: str,
    cells: Mapping[Any, Scores],
    held: str,
    transfer: Transfer,
    headline: str,
    *,
    marked: bool = False,
) -> Finding:
    """Loss against rate, a line per value of an axis; ``marked`` with upright lines at the best rates."""
    rows: list[Row] = [
        {"series": f"{axis} {x:g}", axis: x, "lr": math.pow(2, log2_rate)} | columns("loss", mean(losses))
        for x, cell in cells.items()
        for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True)
    ]
    known = {x: rate_of(cell.optimum()) for x, cell in cells.items() if cell.has_optimum} if marked else {}
    lines: Iterable[Row] = (
        {"series": f"best at {axis} {x}", "lr": rate.value, "loss": end}
        for x, rate in known.items()
        for end in (min(row["loss"] for row in rows), max(row["loss"] for row in rows))
    )
    upright = "Upright lines: the best rates, as fitted. " if marked else ""
    return Finding(
        name,
        title,
        headline,
        rows,
        Axes("lr", "loss", "lr", transfer.score, "semilogarithmic", zero=False, colour=axis),
        f"{held} Bars: 95 % intervals over seeds. {upright}{transfer.about}",
        table=[{axis: str(x), "best lr": rate_in_words(known[x]) if x in known else "unknown"} for x in cells]
        if marked
        else [],
        references=list(lines),
    )


def _against(answers: Sequence[RateAgainst], transfer: Transfer) -> Finding:
    """The best rate at the largest size against one setting, a line per rule, and what is usually assumed."""
    axis, size = answers[0].axis, answers[0].sizes[-1]
    drawn = [value for value in axis.values if value > 0 or not axis.has_exponent]
    lines, references = list[dict[str, str]](), list[Row]()
    for answer in answers:
        for value in axis.values:
            cell = answer.cells[size, value]
            loss = mean(cell.scores[:, int(cell.typical.argmin())]).unsigned
            rate = rate_in_words(answer.best(size, value))
            lines.append({"rule": answer.rule, axis.name: f"{value:g}", "best lr": rate, "loss": loss})
        known = {value: answer.optimum(size, value).value for value in drawn if (size, value) in answer.inside}
        if axis.assumed is not None and known:  # the assumed power, through the middle of the best rates
            p = axis.assumed.exponent
            middle = sum(place - p * math.log2(value) for value, place in known.items()) / len(known)
            references += [
                {"series": f"{axis.assumed.name}, {answer.rule}", axis.name: value, "lr": 2**middle * value**p}
                for value in (min(known), max(known))
            ]
    return Finding(
        f"rate-{axis.name}",
        f"How does the best learning rate follow {axis.name}?",
        " ".join(answer.sentence for answer in answers),
        [
            {"series": answer.rule, axis.name: value} | columns("lr", answer.best(size, value))
            for answer in answers
            for value in drawn
            if (size, value) in answer.inside
        ],
        Axes(axis.name, "lr", axis.name, "best lr", "logarithmic" if axis.has_exponent else "linear"),
        f"At {in_words(size)}. Bars: 95 % intervals. {transfer.about}",
        table=lines,
        references=references,
    )


def _held(answer: RuleTransfer, axis: Axis) -> str:
    """The size of the other axis."""
    place = 1 - AXES.index(axis)
    return f"At {AXES[place]} {max(size[place] for size in answer.cells)}."
