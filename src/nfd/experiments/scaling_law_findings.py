"""The answers of a loss law, for a report: sentences, numbers and charts.

They are about a network, and about the best size for budgets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.estimates import mean
from nfd.core.findings import Axes, Finding, columns
from nfd.core.tables import Lead, Row
from nfd.core.words import in_words
from nfd.laws.best_size import BestSize, amount
from nfd.laws.ladder import BestSplit, LadderLaw
from nfd.laws.loss_law import HeldOut
from nfd.laws.scaling_law import ScalingLaw


@dataclass(frozen=True)
class Answers:
    """The answers of a loss law about a network, and about the best size for each budget.

    Attributes:
        size: width and depth of the network; None where the law is not in these.
        best: by resource, the budget as it was given, and the size or why there is none.
    """

    fitted: ScalingLaw
    size: tuple[int, int] | None
    best: Mapping[str, tuple[str | int, BestSize | InputError]]

    @property
    def lead(self) -> Lead:
        """The first sentence, the floor, and how far above it the network is.

        The first best size follows, if there is one.
        """
        law = self.fitted.law
        numbers = dict[str, Any]()
        if law.good:
            numbers["floor"] = self.fitted.floor.unsigned
            if self.size is not None:
                numbers["above it, in nats"] = law.excess(*self.size).unsigned
        for resource, (budget, size) in list(self.best.items())[:1]:
            if not isinstance(size, InputError):
                numbers[f"best size for {budget} {resource}"] = _shape(size)
        return Lead(self.sentences[0], "good" if law.good else "bad", numbers)

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the most important first."""
        law = self.fitted.law
        if not law.good:
            return [
                f"The law {law.formula} may not be used beyond the sizes trained, and gives no "
                f"floor. {law.note}"
            ]
        sentences = list[str]()
        if self.size is not None:
            sentences += self._about_network(*self.size)
        sentences.append(f"The law: {law.formula}; it holds ({law.test}). {law.note}".strip())
        for resource, (budget, size) in self.best.items():
            answer = "the best size is"
            if isinstance(size, InputError):
                answer = "there is no best size:"
            shown = f"{budget:,}" if isinstance(budget, int) else budget
            sentences.append(f"For {shown} {resource} {answer} {size}")
        if self.fitted.held_out is not None:
            sentences.append(self._about_held_out(self.fitted.held_out))
        return sentences

    def _about_network(self, n: int, L: int) -> list[str]:
        """Say how far a network is above the floor, and what doubling its width or depth buys."""
        law = self.fitted.law
        excess = law.excess(n, L)
        if excess.high <= 0:
            larger = "this one is better than that"
        elif excess.low > 0:
            larger = "a larger one helps"
        else:
            larger = f"a larger one gains {excess.high:.2g} nats at most"
        wider = law.bought(n, L, 2 * n, L)
        deeper = law.bought(n, L, n, 2 * L)
        return [
            f"At {self.fitted.named((n, L))} the loss is {excess.unsigned} nats above the floor, "
            f"the loss of the infinitely large network: {larger}.",
            f"Doubling its width buys {wider} nats, doubling its depth {deeper}.",
        ]

    def _about_held_out(self, held: HeldOut) -> str:
        """Say whether the prediction of the largest size holds."""
        outcome = "holds" if held.inside else "fails, as their mean lies outside of its interval"
        return (
            f"Held out: for the mean of {held.networks} networks of "
            f"{self.fitted.named(held.size)} the law predicted {held.predicted.unsigned}; "
            f"trained, they reach {held.measured.unsigned}: the prediction {outcome}."
        )

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        law = self.fitted.law
        held = self.fitted.held_out
        content = dict[str, Any]()
        content["fit"] = {name: term.limits for name, term in law.terms.items()}
        content["fit"] |= {"p_value": law.p_value, "good": law.good, "note": law.note}
        if held is not None:
            content["held_out"] = dict(zip(law.variables, held.size, strict=True)) | {
                "networks": held.networks,
                "inside": held.inside,
                "predicted": held.predicted.limits,
                "measured": held.measured.limits,
            }
        if not law.good:
            return content
        content["best"] = {}
        for resource, (_, size) in self.best.items():
            if not isinstance(size, InputError):
                content["best"][resource] = _numbers(size)
        if self.size is not None:
            n, L = self.size
            content["network"] = {
                "width": n,
                "depth": L,
                "excess": law.excess(n, L).limits,
                "doubling_width": law.bought(n, L, 2 * n, L).limits,
                "doubling_depth": law.bought(n, L, n, 2 * L).limits,
            }
        return content


def answers_of(fitted: ScalingLaw, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """Answer about a network, by default the largest of the fit, and about budgets.

    The default budget is the network's parameters. A law that is not in width and depth says
    nothing of a network of theirs.
    """
    asked: dict[str, str | int] = {**budgets}
    shape = None
    if fitted.law.variables == ("width", "depth"):
        width, depth = map(int, fitted.law.largest)
        shape = (size.get("width", width), size.get("depth", depth))
        if not asked and "parameters" in fitted.costs:
            asked["parameters"] = fitted.costs["parameters"].at(width, depth)
    best = dict[str, tuple[str | int, BestSize | InputError]]()
    for resource, budget in asked.items():
        try:
            best[resource] = (budget, fitted.best(**{resource: budget}))
        except InputError as error:
            best[resource] = (budget, error)
    return Answers(fitted, shape, best)


@dataclass(frozen=True)
class LadderAnswers:
    """The answers of a loss law over parameters and tokens.

    These are the loss of a new training run, and the best size for each budget in operations.
    """

    fitted: LadderLaw
    size: dict[str, float]
    best: Mapping[str, BestSplit]

    @property
    def lead(self) -> Lead:
        """The forecast, or the law; the floor, the scatter of runs, and the first best size."""
        numbers = {
            "floor": self.fitted.floor.unsigned,
            "runs scatter by": f"{self.fitted.residual:.2%}",
        }
        for budget, split in list(self.best.items())[:1]:
            numbers[f"best size for {budget} flops"] = _split(split)
        return Lead(self.sentences[0], "bad" if self._refusal else "good", numbers)

    @property
    def _refusal(self) -> str | None:
        """Why the law is not to be trusted about the size asked for, or in general."""
        if self.size:
            return self.fitted.refused(**self.size)
        return self.fitted.refusal

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the forecast first."""
        fitted = self.fitted
        sentences = list[str]()
        if self.size:
            loss = fitted.at(**self.size).unsigned
            sentence = f"A new run of {in_words(self.size)} has the loss {loss}."
            if self._refusal:
                sentence += f" Do not trust it. {self._refusal}"
            sentences.append(sentence)
        for budget, split in self.best.items():
            sentences.append(f"For {budget} flops the best size is {split}")
        for sentence in fitted.sentences:
            # The general refusal is about a size that nobody asked for.
            if not self.size or sentence != fitted.refusal:
                sentences.append(sentence)
        return sentences

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
            "refusal": self._refusal,
        }
        if self.size:
            content["at"] = self.size | {"loss": fitted.at(**self.size).limits}
        for budget, split in self.best.items():
            content.setdefault("best", {})[budget] = {
                "parameters": split.parameters.limits,
                "tokens": split.tokens.limits,
                "predicted": split.predicted.limits,
            }
        return content


def answers_of_ladder(
    fitted: LadderLaw, size: dict[str, float], budgets: Mapping[str, str]
) -> LadderAnswers:
    """Answer about a new training run of a size, and about budgets in operations.

    Raises:
        ValueError: for a budget in anything else.
    """
    other_resources = [resource for resource in budgets if resource != "flops"]
    if other_resources:
        raise InputError(
            "a law in parameters and tokens takes budgets in flops; got "
            f"{', '.join(other_resources)}."
        )
    for name in size:
        check_choice("at", name, fitted.variables)
    best = {budget: fitted.best(flops=amount("flops", budget)) for budget in budgets.values()}
    return LadderAnswers(fitted, size, best)


_OUTSIDE = " (outside of the sizes trained)"


def _numbers(size: BestSize) -> dict[str, Any]:
    """Return a best size as ``result.json`` holds it."""
    return {
        "width": size.width,
        "depth": size.depth,
        "cost": size.cost,
        "loss": size.predicted.limits,
        "inside": size.inside,
        "note": size.note,
    }


def _shape(size: BestSize) -> str:
    """Write ``width 64, depth 4``, and whether that is outside of the sizes trained."""
    return f"width {size.width:,}, depth {size.depth:,}{'' if size.inside else _OUTSIDE}"


def _split(split: BestSplit) -> str:
    """Write the parameters and tokens, and whether they are outside of the sizes trained."""
    size = {"parameters": split.parameters.value, "tokens": split.tokens.value}
    return f"{in_words(size)}{'' if split.inside else _OUTSIDE}"


def _at(budget: str, size: str) -> str:
    """Write the label of a best size in a chart, on two lines or three."""
    return f"best for {budget}:\n{size}".replace(" (", "\n(")


def above_floor(answers: Answers) -> Finding:
    """Chart the measured losses over the floor.

    They are against the last variable, a line per size of the variables before it.
    """
    fitted = answers.fitted
    *of_lines, last = fitted.law.variables
    rows = list[Row]()
    for size, losses in sorted(fitted.losses.items()):
        if all(math.isfinite(loss) for loss in losses):
            sizes = dict(zip(fitted.law.variables, size, strict=True))
            series = ", ".join(f"{name} {sizes[name]:g}" for name in of_lines) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean(losses)))
    title = "The law does not hold, and gives no floor"
    if fitted.law.good:
        title = "How far the loss is above its floor"
        infinite = dict.fromkeys(of_lines, math.inf)
        for place in sorted({size[-1] for size in fitted.losses}):
            floor = {"series": "floor"} | infinite | columns("loss", fitted.floor)
            rows.append(floor | {last: place})
    y_title = f"{fitted.score} after training"
    colour = of_lines[0] if of_lines else "series"
    return Finding(
        "floor",
        title,
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, y_title, "semilogarithmic", zero=False, colour=colour),
        f"Bars: 95 % intervals of mean losses. {fitted.about}",
        marks=_marks(answers, last),
    )


def _marks(answers: Answers, variable: str) -> list[Row]:
    """Mark the best sizes that have a variable."""
    marks = list[Row]()
    for resource, (budget, size) in answers.best.items():
        if isinstance(size, InputError) or not hasattr(size, variable):
            continue
        text = _at(f"{budget} {resource}", _shape(size))
        place = getattr(size, variable)
        marks.append({variable: place, "loss": size.predicted.value, "text": text})
    return marks


# Sizes in the chart of a ladder.
_LINES = 6


def ladder_chart(answers: LadderAnswers) -> Finding:
    """Chart the measured losses and the forecasts of a ladder.

    They are against the last variable, a line per size of the other.
    """
    fitted = answers.fitted
    *of_lines, last = fitted.variables
    firsts = list[float]()
    if of_lines:
        firsts = sorted({size[0] for size in fitted.losses})
    shown = _spread(firsts, _LINES)
    rows = list[Row]()
    for size, losses in sorted(fitted.losses.items()):
        if not of_lines or size[0] in shown:
            sizes = dict(zip(fitted.variables, size, strict=True))
            series = in_words({name: sizes[name] for name in of_lines}) or "runs"
            rows.append({"series": series} | sizes | {"loss": mean(losses).value})
    if answers.size:
        forecast = columns("loss", fitted.at(**answers.size))
        rows.append({"series": f"forecast: {in_words(answers.size)}"} | answers.size | forecast)
    marks = list[Row]()
    for budget, split in answers.best.items():
        text = _at(f"{budget} flops", _split(split))
        place = getattr(split, last).value
        marks.append({last: place, "loss": split.predicted.value, "text": text})
    caption = "Bar: 95 % interval of one new run."
    if len(shown) < len(firsts):
        caption += f" Lines: {len(shown)} of {len(firsts)} sizes."
    return Finding(
        "ladder",
        "What larger runs reach",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False),
        f"{caption} {fitted.about}",
        marks=marks,
    )


def _spread(values: Sequence[float], count: int) -> Sequence[float]:
    """Return so many values, evenly spread from the first to the last; all if there are fewer."""
    if len(values) <= count:
        return values
    return [values[k * (len(values) - 1) // (count - 1)] for k in range(count)]
