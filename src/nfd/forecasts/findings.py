"""The answers of a law of the loss about a network and about budgets, for a report: sentences, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nfd.core.errors import InputError, check_choice
from nfd.core.estimates import Interval, mean
from nfd.core.files import Axes, Finding, columns
from nfd.core.tables import Row, in_words
from nfd.forecasts.ladder import BestSplit, LadderLaw
from nfd.forecasts.scaling_law import BestSize, ScalingLaw, amount


@dataclass(frozen=True)
class Answers:
    """The answers of a law about a network of a size (width, depth), and about the best size for each budget.

    ``best`` has every budget as it was given, and the size or why there is none.
    """

    fitted: ScalingLaw
    size: tuple[int, int] | None
    best: Mapping[str, tuple[str | int, BestSize | InputError]]

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
            better = ": it is better than the infinite network" if left.high < 0 else ""
            sentences.append(
                f"A network of {self.fitted.named(self.size)} loses {left.unsigned} nats to its size{better}. Doubling "
                f"its width buys {law.bought(n, L, 2 * n, L)}, doubling its depth {law.bought(n, L, n, 2 * L)}."
            )
        for resource, (budget, size) in self.best.items():
            is_not = "there is no best size:" if isinstance(size, InputError) else "the best size is"
            shown = f"{budget:,} {resource}" if isinstance(budget, int) else f"{budget} of {resource}"
            sentences.append(f"For {shown} {is_not} {size}")
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
        if law.good:
            sizes = {resource: size for resource, (_, size) in self.best.items() if not isinstance(size, InputError)}
            content["best"] = {
                resource: {
                    "loss" if name == "predicted" else name: value.limits if isinstance(value, Interval) else value
                    for name, value in vars(size).items()
                }
                for resource, size in sizes.items()
            }
        if law.good and self.size is not None:
            n, L = self.size
            wider, deeper = law.bought(n, L, 2 * n, L).limits, law.bought(n, L, n, 2 * L).limits
            content["network"] = {"width": n, "depth": L, "excess": law.excess(n, L).limits}
            content["network"] |= {"doubling_width": wider, "doubling_depth": deeper}
        return content


def answers_of(fitted: ScalingLaw, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """The answers about a network, by default the largest of the fit, and about budgets, by default its parameters.

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


def answers_of_ladder(fitted: LadderLaw, size: dict[str, float], budgets: Mapping[str, str]) -> LadderAnswers:
    """The answers about a new run of a size, and about budgets in operations.

    Raises:
        ValueError: for a budget in anything else.
    """
    if others := [resource for resource in budgets if resource != "flops"]:
        raise InputError(f"a law in parameters and tokens takes budgets in flops; got {', '.join(others)}.")
    for name in size:
        check_choice("at", name, fitted.variables)
    best = {budget: fitted.best(flops=amount("flops", budget)) for budget in budgets.values()}
    return LadderAnswers(fitted, size, best)


def ceiling(answers: Answers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the others, over the floor."""
    fitted, rows = answers.fitted, list[Row]()
    *others, last = fitted.law.variables
    for size, losses in sorted(fitted.losses.items()):
        if all(math.isfinite(loss) for loss in losses):
            sizes = dict(zip(fitted.law.variables, size, strict=True))
            series = ", ".join(f"{name} {sizes[name]:g}" for name in others) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean(losses)))
    floor = {"series": "floor of the law"} | dict.fromkeys(others, math.inf) | columns("loss", fitted.floor)
    rows += [floor | {last: place} for place in sorted({size[-1] for size in fitted.losses}) if fitted.law.good]
    colour = others[0] if others else "series"
    return Finding(
        "ceiling",
        "How far is a network from its ceiling?",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False, colour=colour),
        f"Bars: 95 % intervals over seeds. {fitted.about}",
    )


_LINES = 6  # sizes in the chart of a ladder


def ladder_chart(answers: LadderAnswers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the other, and of the forecasts."""
    fitted, rows = answers.fitted, list[Row]()
    *others, last = fitted.variables
    firsts = sorted({size[0] for size in fitted.losses}) if others else []
    shown = firsts if len(firsts) <= _LINES else [firsts[k * (len(firsts) - 1) // (_LINES - 1)] for k in range(_LINES)]
    for size, losses in sorted(fitted.losses.items()):
        if not others or size[0] in shown:
            sizes = dict(zip(fitted.variables, size, strict=True))
            series = in_words({name: sizes[name] for name in others}) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean(losses)))
    asked = [answers.size] if answers.size else []
    asked += [{"parameters": best.parameters.value, "tokens": best.tokens.value} for best in answers.best.values()]
    rows += [{"series": f"forecast: {in_words(size)}"} | size | columns("loss", fitted.at(**size)) for size in asked]
    drawn = f" Lines: {len(shown)} of {len(firsts)} sizes." if len(shown) < len(firsts) else ""
    return Finding(
        "ladder",
        "What will a larger run reach?",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False),
        f"Bars: of a forecast the 95 % interval of one new run, of runs that over seeds.{drawn} {fitted.about}",
    )
