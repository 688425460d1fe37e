"""Best rates, their drift and their regret in charts, tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nfd.core.estimates import mean
from nfd.core.findings import Axes, Finding, columns, numbers
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.rates.optimum import in_words, rate_in_words, rate_of, signed
from nfd.rates.transfer import RateAgainst, Recommendation, RuleTransfer, Transfer, TransferVerdict

# ---- Best rates, their drift and their regret in charts, tables and sentences


_MEANINGS: dict[TransferVerdict, str] = {
    "TRANSFERS": "it transfers",
    "COSTS": "it does not transfer",
    "UNCERTAIN": "the seeds leave open whether it transfers",
}


def transfer_findings(transfer: Transfer) -> list[Finding]:
    """The best rate against depth, width and further settings, and for every rule the loss against the rate."""
    drifts = [_drift(transfer, axis) for axis in reversed(AXES) if any(axis in answer.drifts for answer in transfer)]
    return [*drifts, *(_losses(transfer, answer) for answer in transfer), *against_findings(transfer)]


def sentence(answer: RuleTransfer) -> str:
    """The verdict on a rule, with its numbers."""
    sizes = [*answer.cells]
    small, large = sizes[0], sizes[-1]
    rates = " and ".join(
        f"{rate_in_words(rate_of(answer.optimum(size)))} at {in_words(size)}" for size in dict.fromkeys((small, large))
    )
    drifts = [f"{signed(drift)} doublings per doubling of {axis}" for axis, drift in answer.drifts.items()]
    reading = f"{answer.rule}: the best {answer.rate} is {rates}"
    reading += f", a drift of {' and '.join(drifts)}" if drifts else ""
    if answer.regret is None:
        return f"{reading}: {answer.doubt}." if answer.doubt else f"{reading}."
    loss, share = answer.regret.loss, answer.regret.share
    cost = "an unknown loss" if math.isnan(loss.value) else f"{loss} nats"
    reading += f"; the smallest network's best rate costs the largest {cost}"
    if math.isfinite(share.value):
        reading += f", {100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] of its progress"
    return f"{reading}: {answer.doubt or answer.lacks or _MEANINGS[answer.verdict]}."


def table(answers: Sequence[RuleTransfer]) -> list[dict[str, str]]:
    """One line per rule."""
    lines = []
    for answer in answers:
        sizes = [*answer.cells]
        line = {"rule": answer.rule}
        for name, size in (("smallest", sizes[0]), ("largest", sizes[-1])):
            line[f"best {answer.rate}, {name}"] = rate_in_words(rate_of(answer.optimum(size)))
            line[f"loss, {name}"] = answer.loss(size).unsigned
        line |= {f"drift per doubling of {axis}": signed(drift) for axis, drift in answer.drifts.items()}
        if answer.regret is not None:
            line |= {"regret (nats)": str(answer.regret.loss), "verdict": answer.verdict}
        lines.append(line)
    return lines


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """The rules as ``result.json`` holds them."""
    return [
        {
            "rule": answer.rule,
            "verdict": answer.verdict,
            "sentence": sentence(answer),
            "drift": {axis: numbers(answer.drifts.get(axis)) for axis in AXES},
            "regret": numbers(None if answer.regret is None else answer.regret.loss),
            "regret_share": numbers(None if answer.regret is None else answer.regret.share),
            "doubt": str(answer.doubt),
            "against": [against_result(against) for against in answer.against.values()],
            "optima": [
                {
                    "width": n,
                    "depth": L,
                    f"log2_{answer.rate}": numbers(answer.optimum((n, L))),
                    "loss": numbers(answer.loss((n, L))),
                }
                for n, L in answer.cells
            ],
        }
        for answer in answers
    ]


def advice(recommendation: Recommendation) -> dict[str, Any]:
    """The recommendation as ``result.json`` holds it."""
    small, large = recommendation.small, recommendation.large
    return {
        "kind": recommendation.kind,
        "rule": recommendation.rule,
        recommendation.name: numbers(recommendation.rate),
        "small": {"width": small[0], "depth": small[1]},
        "large": {"width": large[0], "depth": large[1]},
        "regret_share": numbers(recommendation.share),
        "better": recommendation.better,
        "gap": numbers(recommendation.gap),
        "sentence": str(recommendation),
    }


def _drift(transfer: Transfer, axis: Axis) -> Finding:
    """The best rate along one axis, the other at its largest."""
    drifts = [f"{answer.rule} {signed(answer.drifts[axis])}" for answer in transfer if axis in answer.drifts]
    rate = transfer.rules[0].rate
    return Finding(
        axis,
        f"Does the best learning rate move with {axis}?",
        f"Doublings of the best {rate} per doubling of {axis}: {'; '.join(drifts)}.",
        [
            {"series": answer.rule, axis: x} | columns(rate, rate_of(answer.optimum(size)))
            for answer in transfer
            for x, size in answer.along(axis).items()
            if size in answer.inside
        ],
        Axes(axis, rate, axis, f"best {rate}", "logarithmic"),
        f"{_held(transfer.rules[0], axis)} Bars: 95 % intervals. {transfer.about}",
    )


def _losses(transfer: Transfer, answer: RuleTransfer) -> Finding:
    """Loss against rate, a line per depth (or width, where depth does not vary)."""
    axis: Axis = "depth" if len({depth for _, depth in answer.cells}) > 1 else "width"
    along = answer.along(axis)
    rows: list[Row] = [
        {"series": f"{axis} {x}", axis: x, answer.rate: math.pow(2, log2_rate)} | columns("loss", mean(losses))
        for x, size in along.items()
        for log2_rate, losses in zip(answer.cells[size].log2_eta.tolist(), answer.cells[size].scores.T, strict=True)
    ]
    return Finding(
        f"loss-{answer.rule}",
        f"{answer.rule}: loss against the learning rate",
        sentence(answer),
        rows,
        Axes(answer.rate, "loss", answer.rate, transfer.score, "semilogarithmic", zero=False, colour=axis),
        f"{_held(answer, axis)} Bars: 95 % intervals over seeds. Upright lines: the best rates, as fitted. "
        f"{transfer.about}",
        table=[
            {axis: str(x), f"best {answer.rate}": rate_in_words(rate_of(answer.optimum(size)))}
            for x, size in along.items()
        ],
        references=[
            {"series": f"best at {axis} {x}", answer.rate: rate_of(answer.optimum(size)).value, "loss": end}
            for x, size in along.items()
            if size in answer.inside
            for end in (min(row["loss"] for row in rows), max(row["loss"] for row in rows))
        ],
    )


def _held(answer: RuleTransfer, axis: Axis) -> str:
    """The size of the other axis."""
    place = 1 - AXES.index(axis)
    return f"At {AXES[place]} {max(size[place] for size in answer.cells)}."


# ---- The best rate against further settings in charts and tables


def against_findings(transfer: Transfer) -> list[Finding]:
    """For every setting the best rate against it, and for every rule the losses against rate and setting."""
    findings = []
    for name in transfer.rules[0].against:
        answers = [answer.against[name] for answer in transfer]
        findings += [_rates(answers, transfer), *(_against_losses(answer, transfer) for answer in answers)]
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


def _against_losses(answer: RateAgainst, transfer: Transfer) -> Finding:
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
