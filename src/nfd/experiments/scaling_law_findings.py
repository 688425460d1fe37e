"""The answers of a law of the loss about a network and about budgets, for a report: sentences,
numbers and charts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.estimates import Interval, mean
from nfd.core.findings import Axes, Finding, columns
from nfd.core.tables import Lead, Row
from nfd.core.words import in_words
from nfd.laws.best_size import BestSize, amount
from nfd.laws.ladder import BestSplit, LadderLaw
from nfd.laws.scaling_law import ScalingLaw


@dataclass(frozen=True)
class Answers:
    """The answers of a law about a network of a size (width, depth), and about the best size for
    each budget.

    ``best`` has every budget as it was given, and the size or why there is none.
    """

    fitted: ScalingLaw
    size: tuple[int, int] | None
    best: Mapping[str, tuple[str | int, BestSize | InputError]]

    @property
    def lead(self) -> Lead:
        """How far a network is above the floor, or why the law gives none; the floor, and the first
        best size.
        """
        numbers = {"floor": self.fitted.floor.unsigned} if self.fitted.law.good else {}
        if numbers and self.size is not None:
            numbers["above it, in nats"] = self.fitted.law.excess(*self.size).unsigned
        for resource, (budget, size) in list(self.best.items())[:1]:
            if not isinstance(size, InputError):
                numbers[f"best size for {budget} {resource}"] = _shape(size)
        return Lead(self.sentences[0], "good" if self.fitted.law.good else "bad", numbers)

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the most important first."""
        law = self.fitted.law
        held = self.fitted.held_out
        sentences = list[str]()
        if not law.good:
            return [
                f"The law {law.formula} may not be used beyond the sizes trained, and gives no "
                f"floor. {law.note}"
            ]
        if self.size is not None:
            n, L = self.size
            left = law.excess(n, L)
            larger = (
                "a larger one helps"
                if left.low > 0
                else f"a larger one gains {left.high:.2g} nats at most"
            )
            sentences.append(
                f"At {self.fitted.named(self.size)} the loss is {left.unsigned} nats above the "
                "floor, that of the infinitely large network: "
                f"{larger if left.high > 0 else 'this one is better than that'}."
            )
            wider = law.bought(n, L, 2 * n, L)
            deeper = law.bought(n, L, n, 2 * L)
            sentences.append(f"Doubling its width buys {wider} nats, doubling its depth {deeper}.")
        sentences.append(f"The law: {law.formula}; it holds ({law.test}). {law.note}".strip())
        for resource, (budget, size) in self.best.items():
            is_not = (
                "there is no best size:" if isinstance(size, InputError) else "the best size is"
            )
            shown = f"{budget:,}" if isinstance(budget, int) else budget
            sentences.append(f"For {shown} {resource} {is_not} {size}")
        if held is not None:
            outcome = (
                "holds" if held.inside else "fails, as their mean lies outside of its interval"
            )
            sentences.append(
                f"Held out: for the mean of {held.networks} networks of "
                f"{self.fitted.named(held.size)} the law predicted {held.predicted.unsigned}; "
                f"trained, they reach {held.measured.unsigned}: the prediction {outcome}."
            )
        return sentences

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        law = self.fitted.law
        held = self.fitted.held_out
        fit: dict[str, Any] = {name: term.limits for name, term in law.terms.items()}
        content: dict[str, Any] = {
            "fit": fit | {"p_value": law.p_value, "good": law.good, "note": law.note}
        }
        if held is not None:
            size = dict(zip(law.variables, held.size, strict=True)) | {
                "networks": held.networks,
                "inside": held.inside,
            }
            content["held_out"] = size | {
                "predicted": held.predicted.limits,
                "measured": held.measured.limits,
            }
        if law.good:
            sizes = {
                resource: size
                for resource, (_, size) in self.best.items()
                if not isinstance(size, InputError)
            }
            content["best"] = {
                resource: {
                    "loss" if name == "predicted" else name: value.limits
                    if isinstance(value, Interval)
                    else value
                    for name, value in vars(size).items()
                }
                for resource, size in sizes.items()
            }
        if law.good and self.size is not None:
            n, L = self.size
            wider = law.bought(n, L, 2 * n, L).limits
            deeper = law.bought(n, L, n, 2 * L).limits
            content["network"] = {"width": n, "depth": L, "excess": law.excess(n, L).limits}
            content["network"] |= {"doubling_width": wider, "doubling_depth": deeper}
        return content


def answers_of(fitted: ScalingLaw, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """The answers about a network, by default the largest of the fit, and about budgets, by default
    its parameters.

    A law that is not in width and depth says nothing of a network of theirs.
    """
    asked: dict[str, str | int] = {**budgets}
    shape = None
    if fitted.law.variables == ("width", "depth"):
        width, depth = map(int, fitted.law.largest)
        shape = size.get("width", width), size.get("depth", depth)
        if not asked and "parameters" in fitted.costs:
            asked["parameters"] = fitted.costs["parameters"].at(width, depth)
    best = dict[str, tuple[str | int, BestSize | InputError]]()
    for resource, budget in asked.items():
        try:
            best[resource] = budget, fitted.best(**{resource: budget})
        except InputError as error:
            best[resource] = budget, error
    return Answers(fitted, shape, best)


@dataclass(frozen=True)
class LadderAnswers:
    """The answers of a law over parameters and tokens: the loss of a new run, and the best size for
    budgets.
    """

    fitted: LadderLaw
    size: dict[str, float]
    best: Mapping[str, BestSplit]

    @property
    def lead(self) -> Lead:
        """The forecast, or the law; the floor, and the first best size."""
        refused = self.fitted.refused(**self.size) if self.size else self.fitted.refusal
        numbers = {
            "floor": self.fitted.floor.unsigned,
            "runs scatter by": f"{self.fitted.residual:.2%}",
        }
        numbers |= {
            f"best size for {budget} flops": _split(split)
            for budget, split in [*self.best.items()][:1]
        }
        return Lead(self.sentences[0], "bad" if refused else "good", numbers)

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the forecast first."""
        fitted = self.fitted
        asked = list[str]()
        if self.size:
            loss = (
                f"A new run of {in_words(self.size)} has the loss "
                f"{fitted.at(**self.size).unsigned}."
            )
            refused = fitted.refused(**self.size)
            asked.append(f"{loss} Do not trust it. {refused}" if refused else loss)
        asked += [
            f"For {budget} flops the best size is {split}" for budget, split in self.best.items()
        ]
        general = fitted.refusal if self.size else None  # about a size that nobody asked for
        return [*asked, *(sentence for sentence in fitted.sentences if sentence != general)]

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        fitted = self.fitted
        content: dict[str, Any] = {
            "fit": {name: term.limits for name, term in fitted.terms.items()},
            "additive": vars(fitted.additive),
            "prior": fitted.prior,
            "residual": fitted.residual,
            "warning": fitted.warning,
            "refusal": fitted.refused(**self.size) if self.size else fitted.refusal,
        }
        if self.size:
            content["at"] = self.size | {"loss": fitted.at(**self.size).limits}
        for budget, split in self.best.items():
            limits = {
                name: getattr(split, name).limits for name in ("parameters", "tokens", "predicted")
            }
            content.setdefault("best", {})[budget] = limits
        return content


def answers_of_ladder(
    fitted: LadderLaw, size: dict[str, float], budgets: Mapping[str, str]
) -> LadderAnswers:
    """The answers about a new run of a size, and about budgets in operations.

    Raises:
        ValueError: for a budget in anything else.
    """
    if others := [resource for resource in budgets if resource != "flops"]:
        raise InputError(
            f"a law in parameters and tokens takes budgets in flops; got {', '.join(others)}."
        )
    for name in size:
        check_choice("at", name, fitted.variables)
    best = {budget: fitted.best(flops=amount("flops", budget)) for budget in budgets.values()}
    return LadderAnswers(fitted, size, best)


_OUTSIDE = " (outside of the sizes trained)"


def _shape(size: BestSize) -> str:
    return f"width {size.width:,}, depth {size.depth:,}{'' if size.inside else _OUTSIDE}"


def _split(split: BestSplit) -> str:
    size = {"parameters": split.parameters.value, "tokens": split.tokens.value}
    return f"{in_words(size)}{'' if split.inside else _OUTSIDE}"


def _at(budget: str, size: str) -> str:
    return f"best for {budget}:\n{size}".replace(" (", "\n(")


def above_floor(answers: Answers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the others, over
    the floor.
    """
    fitted = answers.fitted
    rows = list[Row]()
    *others, last = fitted.law.variables
    for size, losses in sorted(fitted.losses.items()):
        if all(math.isfinite(loss) for loss in losses):
            sizes = dict(zip(fitted.law.variables, size, strict=True))
            series = ", ".join(f"{name} {sizes[name]:g}" for name in others) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean(losses)))
    floor = {"series": "floor"} | dict.fromkeys(others, math.inf) | columns("loss", fitted.floor)
    rows += [
        floor | {last: place}
        for place in sorted({size[-1] for size in fitted.losses})
        if fitted.law.good
    ]
    marks = [
        {
            last: getattr(size, last),
            "loss": size.predicted.value,
            "text": _at(f"{budget} {resource}", _shape(size)),
        }
        for resource, (budget, size) in answers.best.items()
        if not isinstance(size, InputError) and hasattr(size, last)
    ]
    colour = others[0] if others else "series"
    return Finding(
        "floor",
        "How far the loss is above its floor"
        if fitted.law.good
        else "The law does not hold, and gives no floor",
        answers.sentences[0],
        rows,
        Axes(
            last,
            "loss",
            last,
            f"{fitted.score} after training",
            "semilogarithmic",
            zero=False,
            colour=colour,
        ),
        f"Bars: 95 % intervals of mean losses. {fitted.about}",
        marks=marks,
    )


_LINES = 6  # sizes in the chart of a ladder


def ladder_chart(answers: LadderAnswers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the other, and of
    the forecasts.
    """
    fitted = answers.fitted
    rows = list[Row]()
    *others, last = fitted.variables
    firsts = sorted({size[0] for size in fitted.losses}) if others else []
    shown = (
        firsts
        if len(firsts) <= _LINES
        else [firsts[k * (len(firsts) - 1) // (_LINES - 1)] for k in range(_LINES)]
    )
    for size, losses in sorted(fitted.losses.items()):
        if not others or size[0] in shown:
            sizes = dict(zip(fitted.variables, size, strict=True))
            series = in_words({name: sizes[name] for name in others}) or "runs"
            rows.append({"series": series} | sizes | {"loss": mean(losses).value})
    if answers.size:
        forecast = columns("loss", fitted.at(**answers.size))
        rows.append({"series": f"forecast: {in_words(answers.size)}"} | answers.size | forecast)
    marks = [
        {
            last: getattr(own, last).value,
            "loss": own.predicted.value,
            "text": _at(f"{budget} flops", _split(own)),
        }
        for budget, own in answers.best.items()
    ]
    drawn = f" Lines: {len(shown)} of {len(firsts)} sizes." if len(shown) < len(firsts) else ""
    return Finding(
        "ladder",
        "What larger runs reach",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False),
        f"Bar: 95 % interval of one new run.{drawn} {fitted.about}",
        marks=marks,
    )
