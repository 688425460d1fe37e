"""The answers of a law of the loss about a network and about budgets, for a report: sentences, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nfd.core.errors import InputError, check_choice
from nfd.core.estimates import mean
from nfd.core.files import Axes, Finding, columns
from nfd.core.tables import Row, in_words
from nfd.forecasts.ladder import BestSplit, LadderLaw
from nfd.forecasts.scaling_law import BestSize, ScalingLaw, amount


@dataclass(frozen=True)
class Answers:
    """The answers of a law about a network of a size (width, depth), and about the best size for so many parameters, or
    why there is none."""

    fitted: ScalingLaw
    size: tuple[int, int] | None
    budget: str | int | None
    best: BestSize | InputError | None

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the most important first."""
        law, held = self.fitted.law, self.fitted.held_out
        if not law.good:
            return [f"The law {law.formula} may not be used beyond the sizes trained, and gives no floor. {law.note}"]
        sentences = [f"The law: {law.formula}; it holds ({law.test}). {law.note}".strip()]
        if self.size is not None:
            n, L = self.size
            left = law.excess(n, L)
            sentences.append(
                f"A network of {self.fitted.named(self.size)} loses {left.unsigned} nats to its size. Doubling "
                f"its width buys {law.bought(n, L, 2 * n, L)}, doubling its depth {law.bought(n, L, n, 2 * L)}."
            )
        if self.best is not None:
            shown = f"{self.budget:,}" if isinstance(self.budget, int) else self.budget
            is_not = "there is no best size:" if isinstance(self.best, InputError) else "the best size is"
            sentences.append(f"For {shown} parameters {is_not} {self.best}")
        if held is not None:
            outcome = "holds" if held.inside else "fails, as their mean lies outside of its interval"
            sentences.append(
                f"Held out: for the mean of {held.networks} networks of {self.fitted.named(held.size)} the law "
                f"predicted {held.predicted.unsigned}; trained, they reach {held.measured.unsigned}: the prediction "
                f"{outcome}."
            )
        return sentences

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        law, held = self.fitted.law, self.fitted.held_out
        fit: dict[str, Any] = {name: term.limits for name, term in law.terms.items()}
        content: dict[str, Any] = {"fit": fit | {"p_value": law.p_value, "good": law.good, "note": law.note}}
        if held is not None:
            size = dict(zip(law.variables, held.size, strict=True)) | {"networks": held.networks, "inside": held.inside}
            content["held_out"] = size | {"predicted": held.predicted.limits, "measured": held.measured.limits}
        if isinstance(self.best, BestSize):
            content["best"] = vars(self.best) | {"predicted": self.best.predicted.limits}
        if law.good and self.size is not None:
            n, L = self.size
            wider, deeper = law.bought(n, L, 2 * n, L).limits, law.bought(n, L, n, 2 * L).limits
            content["network"] = {"width": n, "depth": L, "excess": law.excess(n, L).limits}
            content["network"] |= {"doubling_width": wider, "doubling_depth": deeper}
        return content

    @property
    def beyond(self) -> list[Row]:
        """The floor of the law, as rows of a chart."""
        *others, last = self.fitted.law.variables
        floor = {"series": "floor of the law"} | dict.fromkeys(others, math.inf) | columns("loss", self.fitted.floor)
        places = {size[-1] for size in self.fitted.losses} if self.fitted.law.good else ()
        return [floor | {last: place} for place in sorted(places)]


def answers_of(fitted: ScalingLaw, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """The answers about a network, by default the largest of the fit, and about a budget, by default its parameters.

    A law that is not in width and depth says nothing of a network of theirs.

    Raises:
        ValueError: for a budget in anything but parameters.
    """
    _check_budgets("width and depth", "parameters", budgets)
    budget: str | int | None = budgets.get("parameters")
    shape: tuple[int, int] | None = None
    best: BestSize | InputError | None = None
    if fitted.law.variables == ("width", "depth"):
        width, depth = map(int, fitted.law.largest)
        shape = size.get("width", width), size.get("depth", depth)
        if budget is None and fitted.cost is not None:
            budget = fitted.cost.at(width, depth)
    if budget is not None:
        try:
            best = fitted.best(parameters=budget)
        except InputError as error:
            best = error
    return Answers(fitted, shape, budget, best)


def _check_budgets(variables: str, resource: str, budgets: Mapping[str, str]) -> None:
    if others := ", ".join(name for name in budgets if name != resource):
        raise InputError(f"a law in {variables} takes a budget in {resource}; got {others}.")


@dataclass(frozen=True)
class LadderAnswers:
    """The answers of a law over parameters and tokens: the loss of a new run, and the best size for budgets."""

    fitted: LadderLaw
    size: dict[str, float]
    best: Mapping[str, BestSplit]

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the forecast first."""
        fitted, asked = self.fitted, list[str]()
        if self.size:
            loss = f"A new run of {in_words(self.size)} has the loss {fitted.at(**self.size).unsigned}."
            refused = fitted.refused(**self.size)
            asked.append(f"{loss} Do not trust it. {refused}" if refused else loss)
        asked += [f"For {budget} flops the best size is {split}" for budget, split in self.best.items()]
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
            limits = {name: getattr(split, name).limits for name in ("parameters", "tokens", "predicted")}
            content.setdefault("best", {})[budget] = limits
        return content

    @property
    def beyond(self) -> list[Row]:
        """The forecasts, as rows of a chart."""
        asked = [self.size] if self.size else []
        asked += [{"parameters": best.parameters.value, "tokens": best.tokens.value} for best in self.best.values()]
        forecasts = [(size, self.fitted.at(**size)) for size in asked]
        return [{"series": f"forecast: {in_words(size)}"} | size | columns("loss", loss) for size, loss in forecasts]


def answers_of_ladder(fitted: LadderLaw, size: dict[str, float], budgets: Mapping[str, str]) -> LadderAnswers:
    """The answers about a new run of a size, and about budgets in operations.

    Raises:
        ValueError: for a budget in anything else, and for another size than that of the law.
    """
    _check_budgets("parameters and tokens", "flops", budgets)
    for name in size:
        check_choice("at", name, fitted.variables)
    best = {budget: fitted.best(flops=amount("flops", budget)) for budget in budgets.values()}
    return LadderAnswers(fitted, size, best)


_LINES = 6  # sizes in a chart


def chart(answers: Answers | LadderAnswers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the others, and of what the law says
    beyond them."""
    fitted = answers.fitted
    *others, last = fitted.variables
    firsts = sorted({size[:-1] for size in fitted.losses})
    shown = firsts if len(firsts) <= _LINES else [firsts[k * (len(firsts) - 1) // (_LINES - 1)] for k in range(_LINES)]
    rows = [
        {"series": in_words(dict(zip(others, size, strict=False))) or "runs"}
        | dict(zip(fitted.variables, size, strict=True))
        | columns("loss", mean(losses))
        for size, losses in sorted(fitted.losses.items())
        if size[:-1] in shown and all(map(math.isfinite, losses))
    ]
    drawn = f" Lines: {len(shown)} of {len(firsts)} sizes." if len(shown) < len(firsts) else ""
    return Finding(
        "law",
        "What will a larger network reach?",
        answers.sentences[0],
        rows + answers.beyond,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False),
        f"Bars: of a forecast the 95 % interval of one new run, of runs that over seeds.{drawn} {fitted.about}",
    )
